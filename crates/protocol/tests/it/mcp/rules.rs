//! One test for each rule of a source.

use chancery_protocol::{Config, McpRequest, ProtocolError, RequestKind, Verdict};

use crate::mcp::world::{
    GATEWAYS, SERVICES, World, answer, body, contents, initial, rejection, versions,
};

/// Returns a world in which the sink has acknowledged `a` and `b`, with the sink's next request taking a difference or
/// not.
fn acknowledged(incremental: bool) -> World {
    let mut world = World::new();
    world.publish(SERVICES, &[("ns/a", Some("1")), ("ns/b", Some("1"))]);
    world.request(SERVICES, initial(&[], incremental));
    let first = world.next();
    world.request(SERVICES, answer(&first.nonce, incremental));
    assert_eq!(world.poll(), None);
    world
}

fn pairs<'a>(contents: &'a [(&'a str, &'a str)]) -> Vec<(String, String)> {
    contents.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn assert_has(response: &chancery_proto::istio::mcp::v1alpha1::Resources, all: &[(&str, &str)]) {
    assert_eq!(contents(response).into_iter().collect::<Vec<_>>(), pairs(all));
}

/// MCP-14, -15, -40: the metadata of the author is unchanged, except that the version is that of Chancery.
#[test]
fn resource_keeps_its_metadata_except_the_version() {
    let mut world = World::new();
    world.publish(SERVICES, &[("ns/a", Some("1"))]);
    world.request(SERVICES, initial(&[], false));
    let read = world.next();
    assert_eq!((read.collection.as_str(), read.incremental), (SERVICES, false));
    assert!(!read.nonce.is_empty() && !read.system_version_info.is_empty());
    let version = versions(&read)[0].1.clone();
    assert!(version.starts_with("1-") && version.ends_with("-7"), "{version}");
    let mut expected = body("ns/a", "1");
    expected.metadata.as_mut().unwrap().version = version;
    assert_eq!(read.resources, [expected]);
}

/// MCP-20, MCP-23, MCP-30, MCP-48: one response at a time. A change while it is unanswered follows the ACK, and a
/// request with another nonce changes nothing.
#[test]
fn next_response_waits_for_the_answer_however_long() {
    let mut world = World::new();
    world.publish(SERVICES, &[("ns/a", Some("1"))]);
    world.request(SERVICES, initial(&[], true));
    let first = world.next();
    world.publish(SERVICES, &[("ns/a", Some("2"))]);
    world.publish(SERVICES, &[("ns/a", Some("3"))]);
    assert_eq!(world.poll(), None);
    world.now += 24 * 3600 * 1000;
    assert_eq!(world.poll(), None, "the ACK timeout of xDS does not apply");
    for nonce in ["77", "not-a-nonce"] {
        let receipt = world.request(SERVICES, answer(nonce, false));
        assert_eq!((receipt.kind, receipt.verdict), (RequestKind::Stale, None));
        assert_eq!(world.poll(), None);
    }
    let receipt = world.request(SERVICES, answer(&first.nonce, true));
    assert!(matches!(receipt.verdict, Some(Verdict::Ack { .. })));
    let second = world.next();
    assert_has(&second, &[("ns/a", "3")]);
    assert!(second.incremental);
    assert_ne!(second.nonce, first.nonce, "MCP-31");
    let receipt = world.request(SERVICES, answer(&first.nonce, true));
    assert_eq!(receipt.kind, RequestKind::Stale);
}

/// MCP-10, MCP-30, MCP-31, MCP-36: collections are independent, with nonces that are unique on the stream. The first
/// response of each collection is a full state.
#[test]
fn collections_of_a_stream_are_independent() {
    let mut world = acknowledged(true);
    world.publish(GATEWAYS, &[("ns/g", Some("1"))]);
    world.publish(SERVICES, &[("ns/a", Some("2"))]);
    let services = world.next();
    assert_eq!((services.collection.as_str(), services.incremental), (SERVICES, true));
    world.request(GATEWAYS, initial(&[], true));
    let gateways = world.next();
    assert_eq!((gateways.collection.as_str(), gateways.incremental), (GATEWAYS, false));
    assert_ne!(gateways.nonce, services.nonce);
    assert_eq!(world.poll(), None);
    world.request(GATEWAYS, answer(&services.nonce, true));
    world.publish(GATEWAYS, &[("ns/g", Some("2"))]);
    assert_eq!(world.poll(), None, "the nonce is that of another collection");
}

/// MCP-11: the name of a collection is an exact string in each form that Istio uses.
#[test]
fn names_of_collections_are_exact() {
    let names = [
        SERVICES,
        "istio/networking/v1alpha3/VirtualServices",
        "istio/networking/v1alpha3/VirtualService",
        "istio/networking/v1alpha3",
        "k8s/apps/v1/Deployment",
        "k8s/v1/Service",
    ];
    let mut world = World::new();
    for (at, collection) in names.into_iter().enumerate() {
        world.publish(collection, &[("ns/a", Some(&at.to_string()))]);
    }
    for (at, collection) in names.into_iter().enumerate() {
        world.request(collection, initial(&[], true));
        let full = world.next();
        assert_eq!(full.collection, collection);
        assert_has(&full, &[("ns/a", &at.to_string())]);
    }
}

/// MCP-13, MCP-17: a sink receives all of a collection, also without names in its request. Names with and without a
/// leading slash differ.
#[test]
fn sink_receives_the_whole_collection() {
    let mut world = World::new();
    let names = ["/c", "/org/team/n", "c", "ns/a", "org/team/n"];
    world.publish(SERVICES, &names.map(|name| (name, Some(name))));
    world.request(SERVICES, initial(&[], false));
    assert_has(&world.next(), &names.map(|name| (name, name)));
}

/// MCP-22, MCP-39: an empty collection is answered once, with an empty full state.
#[test]
fn empty_collection_is_answered_with_empty_full_state() {
    for incremental in [false, true] {
        let mut world = World::new();
        world.request(SERVICES, initial(&[], incremental));
        let empty = world.next();
        assert!(empty.resources.is_empty() && empty.removed_resources.is_empty());
        assert!(!empty.incremental);
        world.request(SERVICES, answer(&empty.nonce, incremental));
        assert_eq!(world.poll(), None);
    }
}

/// MCP-32, MCP-34: without `incremental` in the most recent request, each response is the full state.
#[test]
fn response_is_full_state_unless_the_sink_accepts_incremental() {
    let mut world = acknowledged(false);
    world.publish(SERVICES, &[("ns/a", None), ("ns/c", Some("1"))]);
    let full = world.next();
    assert!(!full.incremental && full.removed_resources.is_empty());
    assert_has(&full, &[("ns/b", "1"), ("ns/c", "1")]);
    world.request(SERVICES, answer(&full.nonce, true));
    world.publish(SERVICES, &[("ns/b", Some("2"))]);
    let difference = world.next();
    assert!(difference.incremental);
    assert_has(&difference, &[("ns/b", "2")]);
    world.request(SERVICES, answer(&difference.nonce, false));
    world.publish(SERVICES, &[("ns/b", Some("3"))]);
    assert_has(&world.next(), &[("ns/b", "3"), ("ns/c", "1")]);
}

/// MCP-33, MCP-39, MCP-41: a difference has changes and removals, and is never empty.
#[test]
fn incremental_response_has_changes_and_removals() {
    let mut world = acknowledged(true);
    world.publish(SERVICES, &[("ns/a", Some("1"))]);
    assert_eq!(world.poll(), None, "the content is equal");
    world.publish(SERVICES, &[("ns/a", Some("2")), ("ns/b", None), ("ns/c", Some("1"))]);
    let difference = world.next();
    assert!(difference.incremental);
    assert_has(&difference, &[("ns/a", "2"), ("ns/c", "1")]);
    assert_eq!(difference.removed_resources, ["ns/b"]);
}

/// MCP-39: a change that is undone while a response is unanswered causes no response.
#[test]
fn undone_change_sends_nothing() {
    let mut world = acknowledged(true);
    world.publish(SERVICES, &[("ns/a", Some("2"))]);
    let difference = world.next();
    world.publish(SERVICES, &[("ns/c", Some("1"))]);
    world.publish(SERVICES, &[("ns/c", None)]);
    world.request(SERVICES, answer(&difference.nonce, true));
    assert_eq!(world.poll(), None);
}

/// MCP-20, MCP-35, MCP-45, MCP-46: after a NACK nothing is sent until a change, and then the full state.
#[test]
fn rejected_state_is_not_sent_again_and_full_state_follows() {
    for incremental in [false, true] {
        let mut world = acknowledged(true);
        world.publish(SERVICES, &[("ns/a", Some("bad"))]);
        let rejected = world.next();
        let receipt = world.request(SERVICES, rejection(&rejected.nonce, incremental));
        let Some(Verdict::Nack { code, message, .. }) = receipt.verdict else { panic!() };
        assert_eq!((code, message.as_str()), (3, "bad"));
        assert!(world.session.is_rejecting(), "MCP-47");
        world.now += 3_600_000;
        assert_eq!(world.poll(), None);
        world.publish(SERVICES, &[("ns/c", Some("1"))]);
        let full = world.next();
        assert!(!full.incremental);
        assert_has(&full, &[("ns/a", "bad"), ("ns/b", "1"), ("ns/c", "1")]);
        world.request(SERVICES, answer(&full.nonce, true));
        assert!(!world.session.is_rejecting());
        world.publish(SERVICES, &[("ns/c", Some("2"))]);
        assert!(world.next().incremental);
    }
}

/// MCP-20: the error in a request without a nonce is ignored.
#[test]
fn error_without_nonce_is_not_a_rejection() {
    let mut world = World::new();
    world.publish(SERVICES, &[("ns/a", Some("1"))]);
    let receipt = world.request(SERVICES, rejection("", false));
    assert_eq!((receipt.kind, receipt.verdict), (RequestKind::Subscribe, None));
    assert_has(&world.next(), &[("ns/a", "1")]);
}

/// MCP-24: a first request with the nonce of another stream opens the collection.
#[test]
fn first_request_with_unknown_nonce_is_answered() {
    for request in [answer("5", false), rejection("5", false)] {
        let mut world = World::new();
        world.publish(SERVICES, &[("ns/a", Some("1"))]);
        assert_eq!(world.request(SERVICES, request).verdict, None);
        assert_has(&world.next(), &[("ns/a", "1")]);
    }
}

/// MCP-21, MCP-36, MCP-37: a sink that lists its versions receives the difference to them, which may be empty.
#[test]
fn sink_resumes_by_its_versions() {
    let mut world = World::new();
    world.publish(SERVICES, &[("ns/a", Some("1")), ("ns/b", Some("1")), ("ns/c", Some("1"))]);
    world.request(SERVICES, initial(&[], true));
    let held = versions(&world.next());
    let held: Vec<(&str, &str)> = held.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    world.reconnect();
    world.request(SERVICES, initial(&held, true));
    let nothing = world.next();
    assert!(nothing.incremental && nothing.resources.is_empty());
    assert!(nothing.removed_resources.is_empty());
    world.publish(SERVICES, &[("ns/a", None), ("ns/b", Some("2")), ("ns/d", Some("1"))]);
    world.reconnect();
    world.request(SERVICES, initial(&held, true));
    let difference = world.next();
    assert!(difference.incremental);
    assert_has(&difference, &[("ns/b", "2"), ("ns/d", "1")]);
    assert_eq!(difference.removed_resources, ["ns/a"]);
    let all = [("ns/b", "2"), ("ns/c", "1"), ("ns/d", "1")];
    world.reconnect();
    world.request(SERVICES, initial(&held, false));
    let full = world.next();
    assert!(!full.incremental, "MCP-34");
    assert_has(&full, &all);
    world.reconnect();
    world.request(SERVICES, initial(&[("ns/a", "from elsewhere")], true));
    let full = world.next();
    assert!(!full.incremental, "versions of another source cannot be trusted");
    assert_has(&full, &all);
    // The names of the server's own identifiers contain such characters.
    for name in ["ns/b\u{1}ff", "ns/b\u{2}k=v"] {
        world.reconnect();
        world.request(SERVICES, initial(&[(name, "1-12345678-7")], true));
        let full = world.next();
        assert!(!full.incremental);
        assert_has(&full, &all);
    }
}

/// MCP-37: versions of another cluster have the same form and possibly the same revisions, but the sink receives the full
/// state. One such version is enough.
#[test]
fn versions_of_another_cluster_are_answered_with_the_full_state() {
    let resources = [("ns/a", Some("1")), ("ns/b", Some("1"))];
    let (mut other, mut world) = (World::elsewhere(), World::new());
    let versions_of = |world: &mut World| {
        world.publish(SERVICES, &resources);
        world.request(SERVICES, initial(&[], true));
        versions(&world.next())
    };
    let (foreign, own) = (versions_of(&mut other), versions_of(&mut world));
    assert_eq!(foreign[0].1.strip_suffix("-8"), own[0].1.strip_suffix("-7"));
    for held in [[&foreign[0], &foreign[1]], [&own[0], &foreign[1]]] {
        let held = held.map(|(name, version)| (name.as_str(), version.as_str()));
        world.reconnect();
        world.request(SERVICES, initial(&held, true));
        let full = world.next();
        assert!(!full.incremental && full.removed_resources.is_empty());
        assert_has(&full, &[("ns/a", "1"), ("ns/b", "1")]);
        // The sink now holds versions of this cluster.
        world.request(SERVICES, answer(&full.nonce, true));
        world.publish(SERVICES, &[("ns/c", Some("1"))]);
        assert!(world.next().incremental);
        world.publish(SERVICES, &[("ns/c", None)]);
    }
}

/// MCP-21: versions have an effect in the first request of each collection, and not in an answer.
#[test]
fn versions_in_an_answer_have_no_effect() {
    let mut world = World::new();
    world.publish(SERVICES, &[("ns/a", Some("1"))]);
    world.publish(GATEWAYS, &[("ns/a", Some("1"))]);
    let mut versions_of = |collection| {
        world.request(collection, initial(&[], true));
        versions(&world.next())[0].1.clone()
    };
    let held = [SERVICES, GATEWAYS].map(&mut versions_of);
    world.reconnect();
    // The second collection starts later, and lists its versions, too.
    for (collection, version) in [SERVICES, GATEWAYS].into_iter().zip(&held) {
        world.request(collection, initial(&[("ns/a", version)], true));
        let nothing = world.next();
        assert!(nothing.incremental && nothing.resources.is_empty());
        let listed = initial(&[("ns/a", "from elsewhere"), ("ns/gone", version)], true);
        world.request(collection, McpRequest { response_nonce: nothing.nonce, ..listed });
        assert_eq!(world.poll(), None);
        world.publish(collection, &[("ns/b", Some("1"))]);
        let difference = world.next();
        assert!(difference.incremental && difference.removed_resources.is_empty());
        assert_has(&difference, &[("ns/b", "1")]);
    }
}

/// MCP-49: the session reports since when an answer is missing, and how long a late answer took.
#[test]
fn late_answer_is_reported() {
    let config = Config { ack_close_after_ms: Some(60_000), ..Config::DEFAULTS };
    let mut world = World::with_config(config);
    world.request(SERVICES, initial(&[], true));
    let sent_at = world.now;
    let first = world.next();
    world.now += 59_999;
    assert_eq!(world.session.silent_since(), Some(sent_at));
    assert_eq!(world.session.overdue(world.now), None);
    let late = world.session.overdue(world.now + 1).unwrap();
    assert_eq!((late.type_url.as_str(), late.silent_ms), (SERVICES, 60_000));
    let receipt = world.request(SERVICES, answer(&first.nonce, true));
    assert!(matches!(receipt.verdict, Some(Verdict::Ack { waited_ms: 59_999, .. })));
    assert_eq!(world.session.silent_since(), None);
}

/// MCP-27: a request without a nonce starts again. While a response is unanswered, it only says whether the sink takes a
/// difference.
#[test]
fn second_request_without_nonce_starts_again() {
    let mut world = acknowledged(true);
    world.request(SERVICES, initial(&[], true));
    let full = world.next();
    assert!(!full.incremental);
    assert_has(&full, &[("ns/a", "1"), ("ns/b", "1")]);
    world.publish(SERVICES, &[("ns/a", Some("2"))]);
    let receipt = world.request(SERVICES, initial(&[], false));
    assert_eq!(receipt.verdict, None);
    assert_eq!(world.poll(), None, "it is no ACK");
    let receipt = world.request(SERVICES, answer(&full.nonce, true));
    assert!(matches!(receipt.verdict, Some(Verdict::Ack { .. })));
    assert!(world.next().incremental);
}

/// MCP-27, MCP-45: after a NACK, a request without a nonce brings the current state, although nothing has changed. If
/// the sink lists its versions, it receives an incremental response.
#[test]
fn rejected_state_is_sent_when_the_sink_asks_again() {
    for lists in [false, true] {
        let mut world = acknowledged(true);
        world.request(SERVICES, initial(&[], true));
        let full = world.next();
        let held = versions(&full);
        let held = held.iter().map(|(n, v)| (n.as_str(), v.as_str())).filter(|_| lists);
        let held: Vec<(&str, &str)> = held.collect();
        world.request(SERVICES, answer(&full.nonce, true));
        world.publish(SERVICES, &[("ns/a", None)]);
        let rejected = world.next();
        world.request(SERVICES, rejection(&rejected.nonce, true));
        assert_eq!(world.poll(), None);
        world.request(SERVICES, initial(&held, true));
        let current = world.next();
        assert_eq!(current.incremental, lists);
        if lists {
            assert_eq!(current.removed_resources, ["ns/a"])
        } else {
            assert_has(&current, &[("ns/b", "1")])
        }
    }
}

/// MCP-26: a collection that is not served ends the stream, or is ignored if so configured.
#[test]
fn unknown_collection_ends_the_stream_or_is_ignored() {
    let mut world = World::new();
    for name in ["", "services", "type.googleapis.com/a.B"] {
        let error = world.try_request(name, McpRequest::default()).unwrap_err();
        assert!(error.to_string().contains("collection"), "{error}");
    }
    let listed = Some(std::sync::Arc::new([SERVICES.to_owned()].into()));
    let mut config = Config { collections: listed, ..Config::DEFAULTS };
    let mut world = World::with_config(config.clone());
    assert_eq!(
        world.try_request(GATEWAYS, McpRequest::default()),
        Err(ProtocolError::Collection(GATEWAYS.to_owned()))
    );
    config.ignore_other_collections = true;
    let mut world = World::with_config(config);
    world.publish(GATEWAYS, &[("ns/g", Some("1"))]);
    world.request(GATEWAYS, McpRequest::default());
    assert_eq!(world.poll(), None);
    world.request(SERVICES, initial(&[], false));
    assert_eq!(world.next().collection, SERVICES);
}

/// MCP-30: a response is never split, however large it is.
#[test]
fn response_has_no_parts() {
    let mut world = World::with_config(Config { response_bytes_target: 100, ..Config::DEFAULTS });
    let text = "x".repeat(1_000);
    let names: Vec<String> = (0..50).map(|n| format!("ns/{n:02}")).collect();
    let all: Vec<(&str, Option<&str>)> = names.iter().map(|n| (n.as_str(), Some(&*text))).collect();
    world.publish(SERVICES, &all);
    world.request(SERVICES, initial(&[], true));
    assert_eq!(world.next().resources.len(), 50);
    assert_eq!(world.poll(), None);
}
