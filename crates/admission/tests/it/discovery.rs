//! Files with one `DiscoveryResponse` each, in all four encodings.

use std::time::Duration;

use bytes::Bytes;
use chancery_admission::{
    FileEncoding, Manifest, Options, admit, body_to_json, canonical_json, manifest_of_file,
    write_discovery_response,
};
use chancery_model::{ScopeName, Transaction, TypeUrl, types};
use chancery_proto::{
    discovery::{Any, DiscoveryResponse, Resource},
    envoy_pool,
};
use proptest::prelude::*;
use prost_reflect::{DynamicMessage, prost::Message};
use serde_json::{Value as Json, json};

use crate::support::{Rng, message};

const ENCODINGS: [FileEncoding; 4] =
    [FileEncoding::Json, FileEncoding::Yaml, FileEncoding::Binary, FileEncoding::Text];

fn file(encoding: FileEncoding) -> String {
    format!("f.{}", encoding.extension())
}

fn read(encoding: FileEncoding, content: &[u8]) -> Result<Transaction, String> {
    let manifest = manifest_of_file(&file(encoding), encoding, content.to_vec());
    admit_one(manifest.map_err(|problem| problem.to_string())?)
}

fn admit_one(manifest: Manifest) -> Result<Transaction, String> {
    let options = Options::new(ScopeName::new("default").unwrap());
    admit(&[manifest], &options)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn bodies(transaction: Transaction) -> Vec<(String, Bytes)> {
    let upserts = transaction.upserts.into_iter();
    upserts.map(|it| (it.draft.key.name.as_str().to_owned(), it.draft.body)).collect()
}

/// A cluster with maps, nested `Any`s, and texts that need quotes.
const CLUSTER: &str = r#"{resources: [{
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: "wéb \"1\"",
    alt_stat_name: "a\nb", connect_timeout: 0.25s,
    metadata: {filter_metadata: {z: {b: 1, a: [true, null, "\\x"]}, a: {k: v}, m: {}}},
    lb_policy: LEAST_REQUEST, circuit_breakers: {thresholds: [{max_requests: 7, track_remaining: true}]},
    typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
        explicit_http_config: {http2_protocol_options: {}}}},
    outlier_detection: {enforcing_success_rate: 1}, common_lb_config: {healthy_panic_threshold: {value: 12.5}}}]}"#;

/// FS-01, FS-02, FS-10, FS-15: each encoding holds the resource itself, with its type.
#[test]
fn resource_is_the_same_through_all_four_encodings() {
    let manifest = Manifest { file: "-".to_owned(), content: CLUSTER.to_owned() };
    let expected = bodies(admit_one(manifest).unwrap());
    let type_url = TypeUrl::from_static(types::CLUSTER);
    let resources = [(expected[0].0.as_str(), expected[0].1.clone())];
    for encoding in ENCODINGS {
        let write = || write_discovery_response(encoding, "7-ab", &type_url, &resources).unwrap();
        let written = write();
        for _ in 0..20 {
            assert_eq!(write(), written, "{encoding:?} is not deterministic");
        }
        let again = read(encoding, &written);
        let again =
            again.unwrap_or_else(|it| panic!("{it}\n{}", String::from_utf8_lossy(&written)));
        assert_eq!(bodies(again), expected, "{encoding:?}");
        if encoding != FileEncoding::Binary {
            let text = String::from_utf8(written).unwrap();
            assert!(text.contains("version_info") && text.contains("7-ab"), "{text}");
            assert!(text.contains("type.googleapis.com/envoy.config.cluster.v3.Cluster"), "{text}");
        }
    }
}

/// SVC-18: bytes that another program encoded stay unchanged, with fields that this release does not know.
#[test]
fn wire_format_keeps_the_bytes_of_a_resource() {
    let type_url = TypeUrl::from_static(types::CLUSTER);
    // The name, and the unknown field 3000.
    let body = Bytes::from_static(b"\x0a\x01w\xc2\xbb\x01\x02hi");
    let resources = [("w", body.clone())];
    let write = |encoding| write_discovery_response(encoding, "1", &type_url, &resources);
    for encoding in [FileEncoding::Binary, FileEncoding::Text] {
        let read_again = read(encoding, &write(encoding).unwrap());
        match encoding {
            FileEncoding::Binary => assert_eq!(bodies(read_again.unwrap())[0].1, body),
            // The reader of the text format cannot keep the order of fields.
            _ => assert!(read_again.unwrap_err().contains("@unknown_fields")),
        }
    }
    assert_eq!(
        write(FileEncoding::Json).unwrap_err(),
        "json cannot express \"w\": it has fields that this release does not know; use the encoding pb"
    );
    let thing = TypeUrl::new("type.googleapis.com/acme.Thing").unwrap();
    let resources = [("t", Bytes::from_static(b"\x01"))];
    let write = |encoding| write_discovery_response(encoding, "1", &thing, &resources);
    assert!(
        write(FileEncoding::Yaml).unwrap_err().contains("of a type that this release does not")
    );
    assert!(
        String::from_utf8(write(FileEncoding::Text).unwrap()).unwrap().contains(r#"value: "\001""#)
    );
}

/// FS-15: Envoy reads a number of metadata as text from YAML, unless it is an integer of 32 bits. It reads U+0085 as the
/// end of a line.
#[test]
fn yaml_refuses_what_envoy_would_read_otherwise() {
    let write = |encoding, value: &str| {
        let content = format!(
            "resources: [{{'@type': {}, name: w, metadata: {{filter_metadata: {{a: {{v: {value}}}}}}}}}]",
            types::CLUSTER
        );
        let admitted = admit_one(Manifest { file: "-".to_owned(), content }).unwrap();
        let (_, body) = bodies(admitted)[0].clone();
        let type_url = TypeUrl::from_static(types::CLUSTER);
        write_discovery_response(encoding, "1", &type_url, &[("w", body)])
    };
    for good in ["5", "-2147483648", "true", "'0.5'", "null"] {
        assert!(write(FileEncoding::Yaml, good).is_ok(), "{good}");
    }
    for bad in ["0.5", "3000000000", "[{b: -0.25}]", "\"a\\u0085b\""] {
        let error = write(FileEncoding::Yaml, bad).unwrap_err();
        assert!(error.starts_with("yaml cannot express \"w\": Envoy reads "), "{error}");
        assert!(write(FileEncoding::Json, bad).is_ok(), "{bad}");
    }
}

/// FS-15, FS-17: a file with wrapped resources, as a response with lifetimes has them, is input too.
#[test]
fn wrapped_resource_keeps_its_body_ttl_and_aliases() {
    let wrapped = |resource: &str| {
        format!(
            "{{version_info: '7', type_url: {}, resources: [{{'@type': \
             type.googleapis.com/envoy.service.discovery.v3.Resource, name: w, {resource}}}]}}",
            types::CLUSTER
        )
    };
    let body = format!("resource: {{'@type': {}, name: w, alt_stat_name: x}}", types::CLUSTER);
    let good = wrapped(&format!("version: '3', ttl: 2.5s, aliases: [v], {body}"));
    let pool = envoy_pool().get_message_by_name("envoy.service.discovery.v3.DiscoveryResponse");
    let mut json = serde_json::Deserializer::from_str(
        r#"{"resources": [{"@type": "type.googleapis.com/envoy.service.discovery.v3.Resource", "name": "w",
            "version": "3", "ttl": "2.500s", "aliases": ["v"], "resource":
            {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "w", "alt_stat_name": "x"}}]}"#,
    );
    let message = DynamicMessage::deserialize(pool.unwrap(), &mut json).unwrap();
    for (encoding, content) in [
        (FileEncoding::Yaml, good.into_bytes()),
        (FileEncoding::Binary, message.encode_to_vec()),
        (FileEncoding::Text, message.to_text_format().into_bytes()),
    ] {
        let draft = read(encoding, &content).unwrap().upserts.remove(0).draft;
        assert_eq!((draft.key.name.as_str(), draft.aliases[0].as_str()), ("w", "v"));
        assert_eq!(draft.ttl, Some(Duration::from_millis(2500)));
        let shown = body_to_json(&draft.key.type_url, &draft.body);
        assert_eq!(shown["alt_stat_name"], "x", "{encoding:?}");
    }
    for (resource, expected) in [
        ("ttl: 1s", "document 1: resources[0] Resource \"w\": resource: has no content"),
        (&format!("{body}, ttl: x"), "resources[0] Cluster \"w\": ttl: expected a duration"),
        (&format!("{body}, cache_control: {{}}"), "cache_control: unknown key"),
        (
            "resource: {'@type': type.googleapis.com/envoy.config.listener.v3.Listener, name: w}",
            "@type: is ",
        ),
    ] {
        let problem = read(FileEncoding::Yaml, wrapped(resource).as_bytes()).unwrap_err();
        assert!(problem.contains(expected), "{problem}\nexpected {expected}");
    }
}

/// A wrapper around a wrapper is no resource, in any encoding.
#[test]
fn wrapped_resource_inside_another_wrapper_is_refused() {
    let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource";
    let wrap = |any: Any| {
        let resource =
            Resource { name: "x".to_owned(), resource: Some(any), ..Resource::default() };
        Any { type_url: wrapper.to_owned(), value: resource.encode_to_vec().into() }
    };
    let own = Any { type_url: "x/acme.Foo".to_owned(), value: Bytes::new() };
    let response = |any: Any| DiscoveryResponse { resources: vec![any], ..Default::default() };
    let binary = |any: Any| read(FileEncoding::Binary, &response(any).encode_to_vec());
    assert!(binary(wrap(own.clone())).is_ok());
    let own_json = json!({"@type": "x/acme.Foo", "value": ""});
    let inner = json!({"@type": wrapper, "name": "x", "resource": own_json});
    let twice = json!({"@type": wrapper, "name": "x", "resource": inner});
    let in_manifest = json!({"name": "x", "resource": inner});
    let of = |entry: Json| {
        read(FileEncoding::Json, json!({"resources": [entry]}).to_string().as_bytes())
    };
    for refused in [binary(wrap(wrap(own))), of(twice), of(in_manifest)] {
        let problem = refused.unwrap_err();
        let expected = "resource: is another wrapper of a resource; write the resource itself";
        assert!(problem.ends_with(expected), "{problem}");
    }
    assert!(of(inner).is_ok());
}

/// MCP-12: in MCP over xDS, the type of a response is the collection, and that of its resources is their message.
#[test]
fn response_with_a_collection_of_mcp_is_read_in_all_encodings() {
    let (collection, of_message) = (
        "networking.istio.io/v1/VirtualService",
        "type.googleapis.com/istio.mcp.v1alpha1.Resource",
    );
    let body = json!({
        "@type": "type.googleapis.com/istio.networking.v1alpha3.VirtualService", "hosts": ["a.b"],
    });
    let resource = |of: &str| json!({"@type": of, "metadata": {"name": "a/b"}, "body": body});
    let manifest = json!({"resources": [resource(collection)]}).to_string();
    let expected = admit_one(Manifest { file: "-".to_owned(), content: manifest }).unwrap();
    let expected = &expected.upserts[0].draft;
    for of in [collection, of_message] {
        let any = Any { type_url: of.to_owned(), value: expected.body.clone() };
        let response = DiscoveryResponse {
            type_url: collection.to_owned(),
            resources: vec![any],
            ..Default::default()
        };
        for (encoding, content) in [
            (FileEncoding::Binary, response.encode_to_vec()),
            (
                FileEncoding::Json,
                json!({"type_url": collection, "resources": [resource(of)]}).to_string().into(),
            ),
        ] {
            let transaction = read(encoding, &content).unwrap();
            let draft = &transaction.upserts[0].draft;
            assert_eq!((&draft.key, &draft.body), (&expected.key, &expected.body), "{encoding:?}");
        }
    }
    let type_url = TypeUrl::new(collection).unwrap();
    let resources = [("a/b", expected.body.clone())];
    let text = write_discovery_response(FileEncoding::Text, "1", &type_url, &resources).unwrap();
    assert_eq!(bodies(read(FileEncoding::Text, &text).unwrap())[0].1, expected.body);
    let other =
        json!({"type_url": collection, "resources": [{"@type": "x/acme.Foo", "value": ""}]});
    let problem = read(FileEncoding::Json, other.to_string().as_bytes()).unwrap_err();
    assert!(problem.contains("but the type_url of the file is"), "{problem}");
}

/// FS-17: an error names the file, the place in it, and the resource.
#[test]
#[expect(clippy::too_many_lines, reason = "one table of mistakes")]
fn broken_file_is_refused_with_its_place() {
    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let any = |type_url: &str, value: &'static [u8]| Any {
        type_url: type_url.to_owned(),
        value: Bytes::from_static(value),
    };
    let response = |resources| DiscoveryResponse { resources, ..DiscoveryResponse::default() };
    let binary = |resources| response(resources).encode_to_vec();
    let text = |text: &str| (FileEncoding::Text, text.as_bytes().to_vec());
    let yaml = |text: &str| (FileEncoding::Yaml, text.as_bytes().to_vec());
    for ((encoding, content), expected) in [
        (
            (FileEncoding::Binary, vec![]),
            "f.pb: the file is empty; a DiscoveryResponse is expected",
        ),
        (
            (FileEncoding::Binary, vec![0xff; 3]),
            "f.pb: not a DiscoveryResponse in the wire format: ",
        ),
        (
            (
                FileEncoding::Binary,
                binary(vec![any(cluster, b"\x0a\x01a"), any(cluster, b"\x0a\xff")]),
            ),
            "f.pb: document 1: resources[1] Cluster: value: not an encoded Cluster: ",
        ),
        ((FileEncoding::Binary, binary(vec![any("", b"")])), "f.pb: resources[0]: type_url: "),
        (
            (
                FileEncoding::Binary,
                DiscoveryResponse {
                    type_url: types::LISTENER.to_owned(),
                    ..response(vec![any(cluster, b"\x0a\x01a")])
                }
                .encode_to_vec(),
            ),
            "f.pb: document 1: resources[0] Cluster: @type: is \
             \"type.googleapis.com/envoy.config.cluster.v3.Cluster\", but the type_url of the file is \
             \"type.googleapis.com/envoy.config.listener.v3.Listener\"",
        ),
        (text(""), "f.pb_text: the file is empty; a DiscoveryResponse is expected"),
        ((FileEncoding::Text, b"ab\xff".to_vec()), "f.pb_text: byte 2 is not UTF-8 text"),
        (
            text(
                "version_info: \"}\" # {\nresources {\n  [type.googleapis.com/envoy.config.cluster.v3.Cluster] {\n    \
                 name: \"a\"\n  }\n}\n\nresources {\n  [type.googleapis.com/envoy.config.cluster.v3.Cluster] { nam: \
                 \"b\" }\n}\n",
            ),
            "f.pb_text:8:1: resources[1]: not the protobuf text format: field 'nam' not found for message \
             'envoy.config.cluster.v3.Cluster'",
        ),
        (
            text(
                "resources { [type.googleapis.com/envoy.config.cluster.v3.Cluster] { name: 's3cret' 7 } }",
            ),
            "f.pb_text:1:1: resources[0]: not the protobuf text format: expected '}' or a field name",
        ),
        (
            text(&"resources {".repeat(200_000)),
            "f.pb_text:1:1: resources[0]: nested deeper than 100 messages",
        ),
        (text(&"a <".repeat(200)), "f.pb_text:1:1: nested deeper than 100 messages"),
        (
            yaml("version_info: 1\nresources: []"),
            "f.yaml:1:1: document 1: version_info: expected text, found",
        ),
        (
            yaml("versionInfo: a\nresource: []"),
            "f.yaml:2:1: document 1: resource: unknown key; did you mean",
        ),
        (
            yaml(
                "typeUrl: type.googleapis.com/envoy.config.listener.v3.Listener\nresources: [{'@type': \
                  type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a}]",
            ),
            "f.yaml:2:14: document 1: resources[0] Cluster \"a\": @type: is ",
        ),
    ] {
        let problem = read(encoding, &content).unwrap_err();
        assert!(problem.starts_with(expected), "{problem}\nexpected {expected}");
        assert!(!problem.contains("s3cret"), "{problem}");
    }
}

/// A list, separators, comments and both kinds of quotes and brackets.
#[test]
fn text_format_is_read_in_all_its_forms() {
    let text = "# a file\nresources: [\n  <[type.googleapis.com/envoy.config.cluster.v3.Cluster] {name: 'a\\'}\"'}>,\n  \
                {[type.googleapis.com/envoy.config.cluster.v3.Cluster]: {name: \"b\" \"c\"}}\n];\nversion_info: '1', \
                resources {[type.googleapis.com/envoy.config.cluster.v3.Cluster] {name: 'd'},};";
    let names: Vec<String> = bodies(read(FileEncoding::Text, text.as_bytes()).unwrap())
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(names, ["a'}\"", "bc", "d"]);
}

/// Returns a cluster with numbers in fields of the kinds `double` and `float`.
fn cluster_with_numbers(metadata: &str, double: &str, float: &str) -> String {
    let policy = "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3";
    format!(
        "resources {{ [{}] {{ name: 'web'
        metadata {{ filter_metadata {{ key: 'a' value {{ fields {{ key: 'b' value {{ number_value: {metadata} }} }} }} }} }}
        preconnect_policy {{ predictive_preconnect_ratio {{ value: {double} }} }}
        load_balancing_policy {{ policies {{ typed_extension_config {{ name: 'c' typed_config {{
          [type.googleapis.com/{policy}.ClientSideWeightedRoundRobin] {{ error_utilization_penalty {{ value: {float} }} }}
        }} }} }} }} }} }}",
        types::CLUSTER
    )
}

/// FS-17: all encodings keep the bits of a number. Minus zero has its own test.
#[test]
fn number_of_the_text_format_is_the_nearest_and_keeps_its_bits() {
    let type_url = TypeUrl::from_static(types::CLUSTER);
    for (metadata, double, float) in [
        // The product of 0.5 and 1e33 is another double.
        ("-0.5e33", "-5e32", "-0.5e33"),
        // The float nearest to this text differs from the float nearest to the double of this text.
        ("1.544444404444444444444444444444444", "9007199254740993", "7.0385307e-26"),
        ("5e-324", "2.2250738585072011e-308", "1e-45"),
        ("1.7976931348623157e308", "18446744073709551616", "3.4028235e38"),
        ("-0.0", "inf", "-inf"),
        ("9.5e-7", "nan", "nan"),
    ] {
        let text = cluster_with_numbers(metadata, double, float);
        let first = bodies(read(FileEncoding::Text, text.as_bytes()).unwrap());
        let has = |bits: &[u8]| first[0].1.windows(bits.len()).any(|bytes| bytes == bits);
        for number in [metadata, double] {
            assert!(has(&number.parse::<f64>().unwrap().to_le_bytes()), "{number}");
        }
        assert!(has(&float.parse::<f32>().unwrap().to_le_bytes()), "{float}");
        for encoding in ENCODINGS {
            let written = write_discovery_response(encoding, "1", &type_url, &first);
            if encoding == FileEncoding::Yaml {
                // Envoy would read the number of the metadata as text.
                assert!(written.unwrap_err().contains("as text"), "{text}");
                continue;
            }
            let written = written.unwrap();
            let again = bodies(read(encoding, &written).unwrap());
            assert_eq!(again, first, "{text}\n{}", String::from_utf8_lossy(&written));
        }
    }
}

/// Minus zero is not the default value of a field, so canonical bytes contain it.
#[test]
fn minus_zero_survives_json_and_yaml() {
    let type_url = TypeUrl::from_static(types::CLUSTER);
    let manifest = Manifest {
        file: "-".to_owned(),
        content: format!(
            "resources: [{{'@type': {type_url}, name: web, least_request_lb_config: \
             {{active_request_bias: {{default_value: -0.0, runtime_key: a}}}}}}]"
        ),
    };
    let resources = bodies(admit_one(manifest).unwrap());
    assert!(resources[0].1.windows(8).any(|bytes| bytes == (-0.0_f64).to_le_bytes()));
    for encoding in [FileEncoding::Json, FileEncoding::Yaml] {
        let written = write_discovery_response(encoding, "1", &type_url, &resources).unwrap();
        assert_eq!(bodies(read(encoding, &written).unwrap()), resources, "{encoding:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Resources survive conversion to each format: files in all encodings, the manifests that `get` shows, and the
    /// JSON of REST.
    #[test]
    fn what_is_written_is_read_again(seed in 1..u64::MAX) {
        let mut rng = Rng(seed);
        for known in types::KNOWN.iter().filter(|known| known.name_field.is_some()) {
            let type_url = TypeUrl::from_static(known.url);
            let of = envoy_pool().get_message_by_name(type_url.message_name()).unwrap();
            let body = Bytes::from(message(&of, &mut rng, &mut 30).encode_to_vec());
            let resources = [("x", body.clone())];
            let write = |encoding| write_discovery_response(encoding, "1", &type_url, &resources);
            // A random resource may have an invalid name.
            if read(FileEncoding::Binary, &write(FileEncoding::Binary).unwrap()).is_err() {
                continue;
            }
            for encoding in ENCODINGS {
                let written = match write(encoding) {
                    // Envoy would read a number or a character of the resource otherwise.
                    Err(error) if error.starts_with("yaml cannot express") => continue,
                    written => written.unwrap(),
                };
                let transaction = read(encoding, &written);
                prop_assert!(transaction.is_ok(), "{encoding:?}: {transaction:?}");
                let transaction = transaction.unwrap();
                let again = &transaction.upserts[0].draft.body;
                prop_assert_eq!(body_to_json(&type_url, again), body_to_json(&type_url, &body));
                prop_assert!(DynamicMessage::decode(of.clone(), again.clone()).is_ok());
            }
            let shown = body_to_json(&type_url, &body);
            let content = json!({"resources": [shown]}).to_string();
            let applied = admit_one(Manifest { file: "get".to_owned(), content });
            prop_assert!(applied.is_ok(), "{applied:?}");
            let applied = &applied.unwrap().upserts[0].draft.body;
            prop_assert_eq!(&body_to_json(&type_url, applied), &shown);
            let polled = canonical_json(&type_url, &body);
            prop_assert!(polled.is_ok(), "{polled:?}");
            prop_assert_eq!(polled.unwrap(), shown);
        }
    }

    #[test]
    fn no_file_makes_the_reader_panic(
        seed in 1..u64::MAX,
        edits in prop::collection::vec((any::<usize>(), any::<u8>()), 0..6),
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut rng = Rng(seed);
        let type_url = TypeUrl::from_static(types::CLUSTER);
        let of = envoy_pool().get_message_by_name(type_url.message_name()).unwrap();
        let body = Bytes::from(message(&of, &mut rng, &mut 30).encode_to_vec());
        for encoding in ENCODINGS {
            let _ = read(encoding, &noise);
            let resources = [("x", body.clone())];
            let Ok(mut written) = write_discovery_response(encoding, "1", &type_url, &resources) else { continue };
            for (at, byte) in &edits {
                let at = at % written.len();
                written[at] = b"{}[]<>:,;\"'#\\0.-xX\n"[usize::from(*byte) % 19];
            }
            let _ = read(encoding, &written);
        }
    }
}
