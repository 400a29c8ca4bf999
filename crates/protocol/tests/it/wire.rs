//! Encoded responses, decoded according to the protobuf specification.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use chancery_model::{
    Incarnation, Node, ResourceDraft, ResourceKey, ResourceName, ScopeName, State, Transaction,
    TypeUrl, Upsert, types,
};
use chancery_proto::discovery::{DeltaDiscoveryResponse, DiscoveryResponse, Resource};
use chancery_protocol::{
    Config, DeltaRequest, LifetimeSupport, Protocol, Request, Response, Session, SotwRequest,
    StreamKind,
};
use chancery_view::{Differ, View};
use prost::Message as _;

fn scope() -> ScopeName {
    ScopeName::new("default").unwrap()
}

/// Returns a state with one cluster per body.
fn state(bodies: &[Bytes]) -> State {
    let upserts = bodies.iter().enumerate().map(|(at, body)| Upsert {
        scope: scope(),
        draft: ResourceDraft::new(
            ResourceKey {
                type_url: TypeUrl::from_static(types::CLUSTER),
                name: ResourceName::new(&format!("c{at:04}")).unwrap(),
            },
            body.clone(),
        ),
    });
    let transaction = Transaction { upserts: upserts.collect(), ..Transaction::default() };
    State::new(Incarnation(7)).apply(&transaction).state
}

/// Returns the responses to an opening wildcard.
fn opening(protocol: Protocol, state: &State, config: Config) -> Vec<Response> {
    let kind = StreamKind { protocol, type_url: None };
    let mut session = Session::new(kind, Arc::new(config));
    let type_url = types::CLUSTER.to_owned();
    let request = match protocol {
        Protocol::Sotw => Request::Sotw(SotwRequest { type_url, ..SotwRequest::default() }),
        Protocol::Delta => Request::Delta(DeltaRequest { type_url, ..DeltaRequest::default() }),
        Protocol::Mcp => unreachable!("a test of xDS"),
    };
    let view = View::resolve(state, &[scope()]);
    session.handle_request(request, Some(&view), 1).unwrap();
    let differ = Differ::new();
    std::iter::from_fn(|| session.poll(Some(&view), &differ, 1)).collect()
}

/// Returns the message without its prefix, and the pieces of the encoded message.
fn encode(response: Response) -> (Bytes, Vec<Bytes>) {
    let mut message = response.into_message("replica-1");
    message.set_prefix(b"abcde");
    let len = message.len();
    let pieces: Vec<Bytes> = message.collect();
    let mut all = BytesMut::new();
    pieces.iter().for_each(|piece| all.extend_from_slice(piece));
    assert_eq!(all.split_to(5), &b"abcde"[..]);
    assert_eq!(all.len(), len, "the announced length");
    (all.freeze(), pieces)
}

/// SVC-16, SVC-17, SVC-20, SVC-21, SOTW-17, SOTW-113: resources of the type of the response,
/// without a wrapper.
#[test]
fn sotw_response_decodes_as_discovery_response() {
    let state = state(&[Bytes::from_static(b"one"), Bytes::from_static(b"two")]);
    let mut responses = opening(Protocol::Sotw, &state, Config::DEFAULTS);
    let (bytes, _) = encode(responses.remove(0));
    let read = DiscoveryResponse::decode(bytes).unwrap();
    assert_eq!(read.version_info, "1-7");
    assert_eq!(read.type_url, types::CLUSTER);
    assert!(!read.nonce.is_empty());
    assert!(!read.canary);
    assert_eq!(read.control_plane.unwrap().identifier, "replica-1");
    let resources: Vec<_> =
        read.resources.iter().map(|any| (any.type_url.as_str(), &any.value[..])).collect();
    assert_eq!(resources, [(types::CLUSTER, &b"one"[..]), (types::CLUSTER, &b"two"[..])]);
}

/// Returns the responses to a client with both features, and its first renewal.
fn renewed(protocol: Protocol, body: &Bytes) -> [(Bytes, Vec<Bytes>); 2] {
    let state = state(&[body.clone(), Bytes::from_static(b"bare")]);
    let key = ResourceKey {
        type_url: TypeUrl::from_static(types::CLUSTER),
        name: ResourceName::new("c0000").unwrap(),
    };
    let mut draft = ResourceDraft::new(key, body.clone());
    draft.ttl = Some(Duration::from_millis(90_500));
    let upserts = vec![Upsert { scope: scope(), draft }];
    let state = state.apply(&Transaction { upserts, ..Transaction::default() }).state;
    let kind = StreamKind { protocol, type_url: None };
    let mut session = Session::new(kind, Arc::new(Config::DEFAULTS));
    let features = ["xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"];
    let client_features = features.map(str::to_owned).to_vec();
    let node = Node { client_features, ..Node::default() };
    session.support_lifetimes(LifetimeSupport::of(&node, 7));
    let type_url = types::CLUSTER.to_owned();
    let request = match protocol {
        Protocol::Sotw => Request::Sotw(SotwRequest { type_url, ..SotwRequest::default() }),
        Protocol::Delta => Request::Delta(DeltaRequest { type_url, ..DeltaRequest::default() }),
        Protocol::Mcp => unreachable!("a test of xDS"),
    };
    let (view, differ) = (View::resolve(&state, &[scope()]), Differ::new());
    session.handle_request(request, Some(&view), 1).unwrap();
    let first = session.poll(Some(&view), &differ, 1).unwrap();
    assert!(session.poll(Some(&view), &differ, 1).is_none());
    let at = session.renewal_at(1).unwrap();
    assert!(session.renew(&differ, at - 1).is_none());
    [encode(first), encode(session.renew(&differ, at).unwrap())]
}

/// TTL-01, TTL-03: in delta, the lifetime is a field of the resource. A heartbeat has the name, the
/// version and the lifetime. The bytes of a large resource are shared.
#[test]
fn delta_lifetime_reads_as_one() {
    for size in [3, 100_000] {
        let body = Bytes::from(vec![b'x'; size]);
        let [first, renewal] = renewed(Protocol::Delta, &body);
        let read = DeltaDiscoveryResponse::decode(first.0).unwrap();
        let with_ttl = read.resources.iter().find(|one| one.name == "c0000").unwrap();
        let ttl = with_ttl.ttl.unwrap();
        assert_eq!((ttl.seconds, ttl.nanos), (90, 500_000_000));
        assert!(with_ttl.version.starts_with("2-"));
        assert_eq!(with_ttl.resource.as_ref().unwrap().value, body);
        let bare = read.resources.iter().find(|one| one.name == "c0001").unwrap();
        assert_eq!((bare.ttl, bare.version.starts_with("1-")), (None, true));
        let heartbeats = DeltaDiscoveryResponse::decode(renewal.0).unwrap();
        assert_eq!(heartbeats.system_version_info, read.system_version_info);
        let expected = Resource { resource: None, ..with_ttl.clone() };
        assert_eq!(heartbeats.resources, [expected]);
        assert_eq!(first.1.len(), if size > 4096 { 3 } else { 1 });
        assert_eq!(renewal.1.len(), 1);
    }
}

/// TTL-05, TTL-06, SOTW-113, CLI-E-45: in SotW, a resource with a lifetime is wrapped, and the others are bare.
/// The wrapper has the version of the response.
#[test]
fn sotw_lifetime_reads_as_a_wrapper() {
    for size in [3, 100_000] {
        let body = Bytes::from(vec![b'x'; size]);
        let responses = renewed(Protocol::Sotw, &body);
        let [first, second] = responses.map(|(bytes, _)| DiscoveryResponse::decode(bytes).unwrap());
        assert_eq!(
            (&first.version_info, &first.type_url),
            (&second.version_info, &second.type_url)
        );
        assert_ne!(first.nonce, second.nonce);
        for (read, content) in [(&first, Some(&body)), (&second, None)] {
            let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource";
            let (wrapped, bare): (Vec<_>, Vec<_>) =
                read.resources.iter().partition(|any| any.type_url == wrapper);
            assert_eq!((wrapped.len(), bare.len()), (1, 1));
            assert_eq!(
                (bare[0].type_url.as_str(), &bare[0].value[..]),
                (types::CLUSTER, &b"bare"[..])
            );
            let resource = Resource::decode(&wrapped[0].value[..]).unwrap();
            assert_eq!((resource.name.as_str(), &resource.version), ("c0000", &read.version_info));
            let ttl = resource.ttl.unwrap();
            assert_eq!((ttl.seconds, ttl.nanos), (90, 500_000_000));
            assert_eq!(resource.resource.map(|any| any.value), content.cloned());
        }
    }
}

/// SVC-16, SVC-18, SVC-22, DELTA-51, DELTA-54: the name, the version and exactly the published
/// bytes.
#[test]
fn delta_response_decodes_as_delta_discovery_response() {
    let state = state(&[Bytes::from_static(b"one")]);
    let mut responses = opening(Protocol::Delta, &state, Config::DEFAULTS);
    let (bytes, _) = encode(responses.remove(0));
    let read = DeltaDiscoveryResponse::decode(bytes).unwrap();
    assert_eq!(read.system_version_info, "1-7");
    assert_eq!(read.type_url, types::CLUSTER);
    assert_eq!(read.control_plane.unwrap().identifier, "replica-1");
    assert!(read.removed_resources.is_empty());
    let resource = &read.resources[0];
    assert_eq!(resource.name, "c0000");
    assert!(resource.version.starts_with("1-"));
    let any = resource.resource.as_ref().unwrap();
    assert_eq!((any.type_url.as_str(), &any.value[..]), (types::CLUSTER, &b"one"[..]));
}

/// SOTW-14, SOTW-15, DELTA-51, CLI-E-44: the same history gives the same versions of types and resources.
/// Another incarnation of the cluster gives other type versions. Other content gives other versions of both.
#[test]
fn versions_depend_on_history_and_content() {
    let versions = |incarnation, bodies: &[&'static str]| {
        let mut state = State::new(Incarnation(incarnation));
        for body in bodies {
            let key = ResourceKey {
                type_url: TypeUrl::from_static(types::CLUSTER),
                name: ResourceName::new("c").unwrap(),
            };
            let draft = ResourceDraft::new(key, Bytes::from_static(body.as_bytes()));
            let upserts = vec![Upsert { scope: scope(), draft }];
            state = state.apply(&Transaction { upserts, ..Transaction::default() }).state;
        }
        let response = opening(Protocol::Delta, &state, Config::DEFAULTS).remove(0);
        let read = DeltaDiscoveryResponse::decode(encode(response).0).unwrap();
        (read.system_version_info, read.resources[0].version.clone())
    };
    let (of_type, of_resource) = versions(7, &["a", "b"]);
    assert_eq!(versions(7, &["a", "b"]), (of_type.clone(), of_resource.clone()));
    assert_eq!(versions(7, &["a", "b", "b"]), (of_type.clone(), of_resource.clone()));
    for other in [versions(7, &["a", "c", "b"]), versions(7, &["a"])] {
        assert!(other.0 != of_type && other.1 != of_resource, "{other:?}");
    }
    assert_ne!(versions(8, &["a", "b"]).0, of_type);
    assert_ne!(versions(7, &["a", "c"]).1, of_resource, "the same revision, other content");
}

/// DELTA-73, DELTA-42, DELTA-41: a removal is a name in `removed_resources`. Nothing is sent with
/// constraints, so nothing is removed with them.
#[test]
fn removal_is_a_name_in_removed_resources() {
    let type_url = types::CLUSTER.to_owned();
    let kind = StreamKind { protocol: Protocol::Delta, type_url: None };
    let mut session = Session::new(kind, Arc::new(Config::DEFAULTS));
    let subscribe = vec!["gone".to_owned()];
    let request = Request::Delta(DeltaRequest {
        type_url,
        subscribe: subscribe.into(),
        ..DeltaRequest::default()
    });
    let view = View::resolve(&state(&[]), &[scope()]);
    session.handle_request(request, Some(&view), 1).unwrap();
    let response = session.poll(Some(&view), &Differ::new(), 1).unwrap();
    let read = DeltaDiscoveryResponse::decode(encode(response).0).unwrap();
    assert_eq!(read.removed_resources, ["gone"]);
    assert!(read.removed_resource_names.is_empty());
    assert!(read.resources.is_empty());
}

/// ERR-01, ERR-05, ERR-07, ERR-09, ERR-15: an error has the name and the status `NOT_FOUND`. A SotW
/// response has it in field 7, and a delta response in field 9. The announced length is exact.
#[test]
fn missing_name_reads_as_resource_error() {
    let long = "x".repeat(300);
    let names = vec!["gone".to_owned(), long.clone()];
    let view = View::resolve(&state(&[Bytes::from_static(b"one")]), &[scope()]);
    let type_url = types::CLUSTER.to_owned();
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let config = Config { resource_errors: true, ..Config::DEFAULTS };
        let mut session = Session::new(StreamKind { protocol, type_url: None }, Arc::new(config));
        let (type_url, names) = (type_url.clone(), names.clone().into());
        let request = match protocol {
            Protocol::Sotw => Request::Sotw(SotwRequest {
                type_url,
                resource_names: names,
                ..SotwRequest::default()
            }),
            Protocol::Delta => Request::Delta(DeltaRequest {
                type_url,
                subscribe: names,
                ..DeltaRequest::default()
            }),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        session.handle_request(request, Some(&view), 1).unwrap();
        let (bytes, _) = encode(session.poll(Some(&view), &Differ::new(), 1).unwrap());
        let errors = match protocol {
            Protocol::Sotw => DiscoveryResponse::decode(bytes).unwrap().resource_errors,
            Protocol::Delta => {
                let read = DeltaDiscoveryResponse::decode(bytes).unwrap();
                assert_eq!(read.removed_resources, ["gone", &long]);
                read.resource_errors
            }
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        for (error, name) in errors.iter().zip(["gone", &long]) {
            let named = error.resource_name.as_ref().unwrap();
            assert_eq!((named.name.as_str(), &named.dynamic_parameter_constraints), (name, &None));
            let detail = error.error_detail.as_ref().unwrap();
            assert_eq!(detail.code, 5);
            assert_eq!(detail.message, "this node has no resource of this type and name");
        }
        assert_eq!(errors.len(), 2);
    }
}

/// OPS-12: errors count towards the size at which a delta response is split.
#[test]
fn errors_count_towards_response_size() {
    let view = View::resolve(&state(&[]), &[scope()]);
    let config =
        Config { resource_errors: true, response_bytes_target: 10_000, ..Config::DEFAULTS };
    let kind = StreamKind { protocol: Protocol::Delta, type_url: None };
    let mut session = Session::new(kind, Arc::new(config));
    let subscribe = (0..1000).map(|n| format!("missing{n:04}")).collect();
    let type_url = types::CLUSTER.to_owned();
    let request = DeltaRequest { type_url, subscribe, ..DeltaRequest::default() };
    session.handle_request(Request::Delta(request), Some(&view), 1).unwrap();
    let differ = Differ::new();
    let responses = std::iter::from_fn(|| session.poll(Some(&view), &differ, 1));
    let (mut sizes, mut errors) = (Vec::new(), 0);
    for response in responses {
        errors += response.errors().len();
        sizes.push(encode(response).0.len());
    }
    assert_eq!(errors, 1000);
    assert!(sizes.iter().all(|size| *size <= 10_000 + 200), "{sizes:?}");
    assert!(sizes[..sizes.len() - 1].iter().all(|size| *size > 9_900), "{sizes:?}");
}

/// Large resources are passed on by reference, and small ones are copied together. Both give the
/// same message.
#[test]
fn large_resources_are_shared_and_small_ones_copied() {
    let sizes = [10, 5_000, 4_000, 20, 70_000, 3_000, 3_000, 3_000, 3_000, 3_000, 3_000, 1];
    let bodies: Vec<Bytes> = sizes.iter().map(|n| Bytes::from(vec![b'x'; *n])).collect();
    let state = state(&bodies);
    let collection = state.collection(&scope(), &TypeUrl::from_static(types::CLUSTER)).unwrap();
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut responses = opening(protocol, &state, Config::DEFAULTS);
        let (bytes, pieces) = encode(responses.remove(0));
        let read: Vec<usize> = match protocol {
            Protocol::Sotw => DiscoveryResponse::decode(bytes)
                .unwrap()
                .resources
                .iter()
                .map(|any| any.value.len())
                .collect(),
            Protocol::Delta => DeltaDiscoveryResponse::decode(bytes)
                .unwrap()
                .resources
                .iter()
                .map(|resource| resource.resource.as_ref().unwrap().value.len())
                .collect(),
            Protocol::Mcp => unreachable!("a test of xDS"),
        };
        assert_eq!(read, sizes);
        for resource in collection.resources.values() {
            let field = match protocol {
                Protocol::Sotw => resource.sotw_field(),
                Protocol::Delta => resource.delta_field(),
                Protocol::Mcp => unreachable!("a test of xDS"),
            };
            let shared = pieces.iter().any(|piece| piece.as_ptr() == field.as_ptr());
            assert_eq!(shared, field.len() >= 4096, "{} bytes", field.len());
        }
        let n_small = pieces.iter().filter(|piece| piece.len() < 1_000).count();
        assert!(n_small <= 2, "{:?}", pieces.iter().map(Bytes::len).collect::<Vec<_>>());
    }
}

/// OPS-12, SOTW-70, DELTA-53: a delta response is split at the target size. A full state is never
/// split.
#[test]
fn only_delta_responses_are_split() {
    let state = state(&vec![Bytes::from(vec![b'x'; 1000]); 50]);
    let config = Config { response_bytes_target: 10_000, ..Config::DEFAULTS };
    let sotw = opening(Protocol::Sotw, &state, config.clone());
    assert_eq!(sotw.iter().map(Response::n_resources).collect::<Vec<_>>(), [50]);
    let delta = opening(Protocol::Delta, &state, config);
    assert_eq!(delta.iter().map(Response::n_resources).sum::<usize>(), 50);
    for response in delta {
        let message = response.into_message("");
        assert!(message.len() <= 10_000 + 200, "{}", message.len());
    }
}

/// Returns the first response to a client with these features that asks for one name.
fn answer(
    state: &State,
    protocol: Protocol,
    asked: &str,
    features: &[&str],
) -> (Bytes, Vec<Bytes>) {
    let view = View::resolve(state, &[scope()]);
    let mut session = Session::new(StreamKind { protocol, type_url: None }, Arc::default());
    let client_features = features.iter().map(|feature| (*feature).to_owned()).collect();
    let node = Node { client_features, ..Node::default() };
    session.support_lifetimes(LifetimeSupport::of(&node, 0));
    let (type_url, names) = (OPAQUE.to_owned(), vec![asked.to_owned()].into());
    let request = match protocol {
        Protocol::Sotw => {
            Request::Sotw(SotwRequest { type_url, resource_names: names, ..Default::default() })
        }
        Protocol::Delta => {
            Request::Delta(DeltaRequest { type_url, subscribe: names, ..Default::default() })
        }
        Protocol::Mcp => unreachable!("a test of xDS"),
    };
    session.handle_request(request, Some(&view), 1).unwrap();
    encode(session.poll(Some(&view), &Differ::new(), 1).unwrap())
}

const OPAQUE: &str = "type.googleapis.com/t.T";

/// XDSTP-03, TTL-05, DELTA-47: a resource that the client spells differently has the client's name, with and
/// without a lifetime. Its body is that of all clients. A SotW client without support for wrappers gets
/// the bare resource.
#[test]
fn spelled_name_is_encoded_around_the_shared_body() {
    let body = Bytes::from(vec![b'x'; 5000]);
    let name = "xdstp://a/t.T/x?k=1&l=2";
    for ttl in [None, Some(Duration::from_secs(3))] {
        let name_of = |name: &str| ResourceName::new(name).unwrap();
        let key = ResourceKey { type_url: TypeUrl::from_static(OPAQUE), name: name_of(name) };
        let draft = ResourceDraft {
            ttl,
            aliases: vec![name_of("also")],
            ..ResourceDraft::new(key, body.clone())
        };
        let upserts = vec![Upsert { scope: scope(), draft }];
        let transaction = Transaction { upserts, ..Transaction::default() };
        let state = State::new(Incarnation(7)).apply(&transaction).state;
        let shared = |pieces: &[Bytes]| pieces.iter().any(|piece| piece.len() > 5000);
        let all = ["xds.config.resource-in-sotw", "xds.config.supports-resource-ttl"];
        let asked = "xdstp://%61/t.T/x?l=2&k=1";
        let ttl = ttl.map(|ttl| i64::try_from(ttl.as_secs()).unwrap());
        for (asked, features) in [(asked, &all[..]), (asked, &all[..1]), (name, &all[..])] {
            let (bytes, pieces) = answer(&state, Protocol::Delta, asked, features);
            assert!(shared(&pieces));
            let read = DeltaDiscoveryResponse::decode(bytes).unwrap();
            let resource = &read.resources[0];
            assert_eq!((read.resources.len(), resource.name.as_str()), (1, asked));
            assert_eq!(resource.aliases, ["also"]);
            assert_eq!(resource.resource.as_ref().unwrap().value, body);
            assert!(resource.version.starts_with("1-"), "{}", resource.version);
            let sent = ttl.filter(|_| features.len() == 2);
            assert_eq!(resource.ttl.as_ref().map(|ttl| ttl.seconds), sent);
        }
        let (bytes, pieces) = answer(&state, Protocol::Sotw, asked, &all);
        assert!(shared(&pieces));
        let read = DiscoveryResponse::decode(bytes).unwrap();
        let wrapper = Resource::decode(&read.resources[0].value[..]).unwrap();
        assert_eq!((wrapper.name.as_str(), &wrapper.version), (asked, &read.version_info));
        assert_eq!(wrapper.ttl.map(|ttl| ttl.seconds), ttl);
        assert_eq!(wrapper.resource.unwrap().value, body);
        let (bytes, _) = answer(&state, Protocol::Sotw, asked, &[]);
        let any = DiscoveryResponse::decode(bytes).unwrap().resources.remove(0);
        assert_eq!((any.type_url.as_str(), &any.value), (OPAQUE, &body));
    }
}
