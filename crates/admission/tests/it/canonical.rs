//! The canonical bytes of manifests. They never change, and they agree with other readers of proto3 JSON.

use bytes::Bytes;
use chancery_admission::{Manifest, Options, admit, body_to_json, canonical_json, draft_from_body};
use chancery_model::{ResourceDraft, ScopeName, TypeUrl, types};
use chancery_proto::envoy_pool;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions, prost::Message};
use serde_json::{Value as Json, json};

use crate::support::{Rng, is_foreign, message};

fn draft(content: &str) -> ResourceDraft {
    let options = Options::new(ScopeName::new("default").unwrap());
    let file = Manifest { file: "a.json".into(), content: content.into() };
    let transaction = admit(&[file], &options).unwrap_or_else(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("{content}\n{}", problems.join("\n"))
    });
    transaction.upserts.into_iter().next().unwrap().draft
}

fn type_url(message: &MessageDescriptor) -> TypeUrl {
    TypeUrl::new(&format!("type.googleapis.com/{}", message.full_name())).unwrap()
}

/// Admits a message in JSON inside a resource, and returns its bytes.
fn through_json(any: &Json) -> Bytes {
    let resource = json!({"@type": types::EXTENSION, "name": "x", "typed_config": any});
    let draft = draft(&json!({"resources": [resource]}).to_string());
    let extension = envoy_pool().get_message_by_name(draft.key.type_url.message_name()).unwrap();
    let decoded = DynamicMessage::decode(extension, draft.body).unwrap();
    let any = decoded.get_field_by_name("typed_config").unwrap();
    let value = any.as_message().unwrap().get_field_by_name("value").unwrap();
    value.as_bytes().unwrap().clone()
}

fn messages() -> impl Iterator<Item = MessageDescriptor> {
    envoy_pool().all_messages().filter(|m| !m.is_map_entry() && !is_foreign(m))
}

/// A number in JSON is read as the nearest double, so it has the same bytes as in YAML.
#[test]
fn number_of_json_is_the_nearest_double() {
    for number in ["-0.5e33", "3.518437208883201171875e13", "1.544444404444444444444444444444444"] {
        let resource = format!(
            r#"{{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "web",
            "metadata": {{"filter_metadata": {{"a": {{"b": {number}}}}}}}}}"#
        );
        let body = |file: &str, content: String| {
            let manifest = Manifest { file: file.to_owned(), content };
            let options = Options::new(ScopeName::new("default").unwrap());
            let transaction = admit(&[manifest], &options).unwrap();
            transaction.upserts[0].draft.body.clone()
        };
        let json = body("a.json", format!(r#"{{"resources": [{resource}]}}"#));
        // Without the tag, Envoy would take it for text.
        let resource = resource.replace(number, &format!("!!float {number}"));
        let yaml = body("a.yaml", format!("resources:\n- {resource}\n"));
        let nearest = number.parse::<f64>().unwrap().to_le_bytes();
        assert_eq!(json, yaml, "{number}");
        assert!(json.windows(8).any(|bytes| bytes == nearest), "{number}");
    }
}

/// The errors of prost-reflect for an empty `Any`, and for the largest float in its shortest form.
const UNREAD: [&str; 2] = ["expected '@type' field", "float value out of range"];

/// Random messages of every type of the API survive the conversion to JSON and back. `prost-reflect` reads each
/// message unchanged from this JSON, and admission reads it unchanged from the JSON that `prost-reflect` writes.
#[test]
fn every_type_survives_json_in_both_directions() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let mut n = 0;
    for of in messages() {
        let made = message(&of, &mut rng, &mut 40);
        let shown = body_to_json(&type_url(&of), &made.encode_to_vec());
        let read = DynamicMessage::decode(of.clone(), through_json(&shown)).unwrap();
        assert_eq!(normal(&read), normal(&made), "{shown:#}");

        // The other implementation reads this JSON, and this one reads the other's.
        let any = envoy_pool().get_message_by_name("google.protobuf.Any").unwrap();
        n += 1;
        let theirs = match DynamicMessage::deserialize(any.clone(), shown.clone()) {
            Ok(theirs) => theirs,
            Err(error) if UNREAD.iter().any(|text| error.to_string().starts_with(text)) => continue,
            Err(error) => panic!("{error}: {shown:#}"),
        };
        let value = theirs.get_field_by_name("value").unwrap().as_bytes().unwrap().clone();
        let theirs = DynamicMessage::decode(of.clone(), value).unwrap();
        assert_eq!(normal(&theirs), normal(&made), "{shown:#}");
        let mut wrapped = DynamicMessage::new(any);
        let url = prost_reflect::Value::String(type_url(&of).to_string());
        wrapped.set_field_by_name("type_url", url);
        let value = prost_reflect::Value::Bytes(made.encode_to_vec().into());
        wrapped.set_field_by_name("value", value);
        let options = SerializeOptions::new().skip_default_fields(n % 2 == 0);
        let written = wrapped
            .serialize_with_options(serde_json::value::Serializer, &options)
            .unwrap_or_else(|error| panic!("{error}: {shown:#}"));
        let read = DynamicMessage::decode(of, through_json(&written)).unwrap();
        assert_eq!(normal(&read), normal(&made), "{written:#}");
    }
    assert!(n > 1000, "{n} types");
}

/// Returns a message as JSON, so that nested `Any`s compare by content. Their bytes may differ, because the
/// random message was encoded with its maps in random order.
fn normal(message: &DynamicMessage) -> Json {
    use prost_reflect::ReflectMessage;
    body_to_json(&type_url(&message.descriptor()), &message.encode_to_vec())
}

/// Returns JSON text with the keys of each map in random order.
fn shuffled(json: &Json, rng: &mut Rng) -> String {
    match json {
        Json::Object(fields) => {
            let mut fields: Vec<(&String, &Json)> = fields.iter().collect();
            for last in (1..fields.len()).rev() {
                let other = usize::try_from(rng.below(last as u64 + 1)).unwrap();
                fields.swap(last, other);
            }
            let fields: Vec<String> = fields
                .into_iter()
                .map(|(key, value)| {
                    format!("{}:{}", Json::from(key.as_str()), shuffled(value, rng))
                })
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| shuffled(item, rng)).collect();
            format!("[{}]", items.join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// SVC-22, SVC-25: the type defines the name of a resource. An endpoint assignment has the name of its
/// cluster, and an extension that of its filter.
#[test]
fn resource_name_is_the_name_clients_request() {
    for known in &types::KNOWN {
        let Some(field) = known.name_field else { continue };
        let resource = json!({"@type": known.url, field: "asked/for"});
        let draft = draft(&json!({"resources": [resource]}).to_string());
        assert_eq!(draft.key.name.as_str(), "asked/for", "{}", known.url);
        assert_eq!(draft.key.type_url.as_str(), known.url);
    }
    let field = |url| types::KNOWN.iter().find(|known| known.url == url).unwrap().name_field;
    assert_eq!(field(types::ENDPOINT), Some("cluster_name"));
    assert_eq!(field(types::EXTENSION), Some("name"));
}

/// SVC-23: without validation, admission does not enforce the rules that clients enforce.
#[test]
fn client_validation_rules_are_switchable() {
    for resource in [
        // The priority is above 128, and the weight is 0.
        json!({"@type": types::ENDPOINT, "cluster_name": "x", "endpoints": [
            {"priority": 4_000_000, "load_balancing_weight": 0}]}),
        // The route has no match and no action, and the virtual host no domains.
        json!({"@type": types::ROUTE, "name": "x", "virtual_hosts": [{"routes": [{}]}]}),
    ] {
        assert!(!draft(&json!({"resources": [resource]}).to_string()).body.is_empty());
    }
}

/// SVC-24: admission sets no defaults in fields that the author did not set.
#[test]
fn no_default_is_filled_in() {
    for (url, field, tag) in
        [(types::CLUSTER, "name", 0x0a), (types::ENDPOINT, "cluster_name", 0x0a)]
    {
        let resource = json!({"@type": url, field: "x"});
        let body = draft(&json!({"resources": [resource]}).to_string()).body;
        assert_eq!(body[..], [tag, 1, b'x'], "{url}");
    }
}

/// SVC-18: applying a resource again is not a change, regardless of the order of keys.
#[test]
fn the_same_content_gives_the_same_bytes_in_any_order_of_keys() {
    let mut rng = Rng(42);
    for of in messages().step_by(7) {
        let made = message(&of, &mut rng, &mut 60);
        let shown = body_to_json(&type_url(&of), &made.encode_to_vec());
        let first = through_json(&shown);
        for _ in 0..5 {
            let resource = json!({"@type": types::EXTENSION, "name": "x", "typed_config": shown});
            let text = shuffled(&json!({"resources": [resource]}), &mut rng);
            let body = draft(&text).body;
            let tail = &body[body.len() - first.len()..];
            assert_eq!(tail, first, "{text}");
        }
    }
}

const LISTENER: &str = r#"{"resources": [{
    "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
    "name": "in",
    "metadata": {"filter_metadata": {"b": {"z": 1, "a": [true, null, "x"]}, "a": {}}},
    "address": {"socket_address": {"address": "::1", "port_value": 80}},
    "access_log": [{"name": "f", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": "/dev/null", "log_format": {"json_format": {"m": "%M%", "d": {"k": 2.5}}}}}]
}]}"#;

/// Versions that clients hold across upgrades depend on these bytes.
#[test]
fn canonical_bytes_are_stable_between_releases() {
    let body = draft(LISTENER).body;
    let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
    let golden = "\
        0a02696e12090a0712033a3a31185032340a050a016112000a2b0a016212260a140a0161120f320d0a0220010a\
        0208000a031a01780a0e0a017a120911000000000000f03fb20187010a01662281010a49747970652e676f6f67\
        6c65617069732e636f6d2f656e766f792e657874656e73696f6e732e6163636573735f6c6f67676572732e6669\
        6c652e76332e46696c654163636573734c6f6712340a092f6465762f6e756c6c2a2712250a170a016412122a10\
        0a0e0a016b12091100000000000004400a0a0a016d12051a03254d25";
    assert_eq!(hex, golden);
}

/// SVC-18: the body has an unusual order of fields, an overlong varint, and an unknown field.
#[test]
fn encoded_bodies_are_kept_as_they_are() {
    let body = Bytes::from_static(b"\x10\x83\x00\x0a\x01w\xfa\xff\x03\x02hi\x1a\x03\x12\x01s");
    let cluster = TypeUrl::from_static(types::CLUSTER);
    let draft = draft_from_body(&cluster, None, body.clone()).unwrap();
    assert_eq!(draft.body, body);
    assert_eq!(draft.body.as_ptr(), body.as_ptr(), "not copied");
    assert_eq!(draft.key.name.as_str(), "w");
    let children: Vec<String> = draft.children.iter().map(ToString::to_string).collect();
    assert_eq!(children, ["envoy.config.endpoint.v3.ClusterLoadAssignment \"s\""]);
    let shown = body_to_json(&cluster, &body);
    assert_eq!(shown["type"], "EDS");
    assert_eq!(shown["@unknown_fields"], "+v8DAmhp", "nothing is omitted silently");
}

#[test]
fn encoded_bodies_that_do_not_parse_are_refused_with_the_place() {
    let cluster = TypeUrl::from_static(types::CLUSTER);
    for (body, said) in [
        (&b"\x0a\x05we"[..], "Cluster: the bytes end inside a field"),
        (b"\x0a\x02\xff\xfe", "Cluster: name: a string is not valid UTF-8"),
        (b"\x08\x01", "Cluster: name: the wire type does not match the field"),
        (b"\x0a\x01w\x1a\x02\x12\x05", "Cluster: eds_cluster_config: the bytes end inside a field"),
        (b"\x0f", "Cluster: a field has an invalid wire type"),
        (b"\x02\x00", "Cluster: a field has an invalid number"),
        (b"", "Cluster: name: is empty: it is the name of the resource"),
    ] {
        let problem = draft_from_body(&cluster, None, Bytes::from_static(body)).unwrap_err();
        assert_eq!(problem.to_string(), said);
    }
    let body = Bytes::from_static(b"\x0a\x01w");
    let problem = draft_from_body(&cluster, Some("x"), body).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "Cluster \"x\": name: the resource is named \"x\", but its name is \"w\""
    );
}

#[test]
fn malformed_body_inside_any_is_rejected() {
    // transport_socket { name: "t" typed_config { UpstreamTlsContext, value: truncated } }
    let url = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let mut any = vec![0x0a, u8::try_from(url.len()).unwrap()];
    any.extend_from_slice(url.as_bytes());
    any.extend_from_slice(b"\x12\x02\x12\x05");
    let mut socket = b"\x0a\x01t\x1a".to_vec();
    socket.push(u8::try_from(any.len()).unwrap());
    socket.extend_from_slice(&any);
    let mut body = b"\x0a\x01w\xc2\x01".to_vec();
    body.push(u8::try_from(socket.len()).unwrap());
    body.extend_from_slice(&socket);
    let cluster = TypeUrl::from_static(types::CLUSTER);
    let problem = draft_from_body(&cluster, None, body.into()).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "Cluster: transport_socket.typed_config: the bytes end inside a field"
    );
}

#[test]
fn unknown_types_pass_as_bytes_in_both_directions() {
    let thing = TypeUrl::new("type.googleapis.com/acme.Thing").unwrap();
    let body = Bytes::from_static(b"\x0a\x08anything");
    let draft = draft_from_body(&thing, Some("t"), body.clone()).unwrap();
    assert_eq!((draft.body.clone(), draft.key.name.as_str()), (body.clone(), "t"));
    let shown = body_to_json(&thing, &body);
    assert_eq!(shown, json!({"@type": thing.as_str(), "value": "Cghhbnl0aGluZw=="}));
    let content = json!({"resources": [{"resource": shown, "name": "t"}]}).to_string();
    assert_eq!(self::draft(&content).body, body);

    let nested = json!({"@type": types::EXTENSION, "name": "x", "typed_config": shown});
    let draft = self::draft(&json!({"resources": [nested]}).to_string());
    assert_eq!(body_to_json(&draft.key.type_url, &draft.body), nested);
    let damaged = TypeUrl::from_static(types::CLUSTER);
    assert_eq!(
        body_to_json(&damaged, b"\xff"),
        json!({"@type": types::CLUSTER, "value": "/w=="}),
        "never fails"
    );
}

/// REST-02: an `Any` that is set but empty is written `{}`, and keeps its bytes through each conversion.
#[test]
fn empty_any_is_accepted_and_shown() {
    let filter =
        json!({"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}});
    let host = json!({"name": "v", "domains": ["*"], "typed_per_filter_config": {"ext": filter}});
    let route = json!({"@type": types::ROUTE, "name": "r", "virtual_hosts": [host]});
    let draft = self::draft(&json!({"resources": [route]}).to_string());
    let key = &draft.key.type_url;
    let shown = body_to_json(key, &draft.body);
    let filter = &shown["virtual_hosts"][0]["typed_per_filter_config"]["ext"];
    assert_eq!(filter["config"], json!({}), "{shown}");
    assert_eq!(canonical_json(key, &draft.body).unwrap(), shown);
    assert_eq!(self::draft(&json!({"resources": [shown]}).to_string()).body, draft.body);
    assert_eq!(draft_from_body(key, None, draft.body.clone()).unwrap().body, draft.body);
    // A value without a type has no form in YAML.
    let untyped = Bytes::from_static(b"\x0a\x01x\x12\x04\x12\x02\x08\x01");
    let problem =
        draft_from_body(&TypeUrl::from_static(types::EXTENSION), None, untyped).unwrap_err();
    assert!(
        problem.to_string().ends_with("typed_config.type_url: has a value, but no type"),
        "{problem}"
    );
}

/// The bytes of a message and its JSON form have one verdict about the type of an `Any`. Envoy unpacks only an `Any` with a
/// `/` before the name of its message.
#[test]
fn type_of_an_any_that_is_not_a_type_url_is_refused_in_each_encoding() {
    let tls = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let (tls, with_slash) = (tls.to_owned(), format!("/{tls}"));
    let extension = TypeUrl::from_static(types::EXTENSION);
    for (url, is_url) in [
        ("notaurl", false),
        ("acme.Foo", false),
        ("/", false),
        ("x/", false),
        (&tls, false),
        ("/acme.Foo", true),
        ("x/acme.Foo", true),
        (&with_slash, true),
    ] {
        let any = prost_types::Any { type_url: url.to_owned(), value: b"\x12\x01a".to_vec() };
        let any = any.encode_to_vec();
        // The name, and the typed_config.
        let body = [b"\x0a\x01x\x12", &[u8::try_from(any.len()).unwrap()][..], &any].concat();
        let in_bytes = draft_from_body(&extension, None, body.clone().into());
        let content = json!({"resources": [body_to_json(&extension, &body)]}).to_string();
        let manifest = Manifest { file: "a.json".to_owned(), content };
        let in_json = admit(&[manifest], &Options::new(ScopeName::new("s").unwrap()));
        assert_eq!((in_bytes.is_ok(), in_json.is_ok()), (is_url, is_url), "{url}");
        if let (Err(in_bytes), Err(in_json)) = (in_bytes, in_json) {
            assert_eq!(in_bytes.field_path.as_deref(), Some("typed_config.type_url"));
            assert_eq!(in_json[0].field_path.as_deref(), Some("typed_config.@type"));
            assert_eq!(in_bytes.rule, in_json[0].rule);
        }
    }
}

/// SVC-18: JSON shows a field that a type with a form of its own does not have, and canonical JSON refuses it.
#[test]
fn unknown_field_of_a_type_with_its_own_form_is_shown() {
    let cluster = TypeUrl::from_static(types::CLUSTER);
    // The field 2 of `Duration` is known, the field 7 is not.
    for (body, part) in [
        (&b"\x0a\x01w\x22\x04\x08\x05\x38\x01"[..], "connect_timeout"),
        (b"\x0a\x01w\x2a\x04\x08\x05\x38\x01", "per_connection_buffer_limit_bytes"),
        (b"\x0a\x01w\xc2\x01\x09\x1a\x07\x0a\x03x/y\x38\x01", "typed_config"),
    ] {
        let shown = body_to_json(&cluster, body);
        let part = shown.get(part).unwrap_or_else(|| &shown["transport_socket"][part]);
        assert_eq!(part["@unknown_fields"], "OAE=", "{shown}");
        assert!(canonical_json(&cluster, body).is_err(), "{shown}");
    }
}
