//! Resources in collections of MCP.

use std::sync::Arc;

use chancery_admission::{
    Manifest, Options, Validation, ValidationMode, admit_unless as admit, body_to_json,
    draft_from_body, redacted,
};
use chancery_model::{ResourceDraft, ScopeName, TypeUrl};
use chancery_proto::istio::mcp::v1alpha1 as pb;
use prost::Message;

use crate::validate::warnings;

const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";
const OF_ISTIOD: &str = "networking.istio.io/v1alpha3/VirtualService";

fn admitted(content: &str) -> Result<Vec<ResourceDraft>, Vec<String>> {
    let manifest = Manifest { file: "f.yaml".to_owned(), content: content.to_owned() };
    let options = Options {
        validation: Validation::of(ValidationMode::Enforce),
        ..Options::new(ScopeName::new("default").unwrap())
    };
    match admit(&[manifest], &options, &Arc::default()) {
        Ok(admitted) => {
            Ok(admitted.transaction.upserts.into_iter().map(|upsert| upsert.draft).collect())
        }
        Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
    }
}

/// Returns a manifest with one resource, whose body is any message.
fn manifest(collection: &str, name: &str) -> String {
    format!(
        r#"
resources:
- "@type": {collection}
  metadata:
    name: {name}
    version: "7"
    createTime: "2026-11-23T20:00:00Z"
    labels: {{app: shop}}
    annotations: {{note: x}}
  body:
    "@type": type.googleapis.com/istio.networking.v1alpha3.VirtualService
    value: CgdyZXZpZXdz
"#
    )
}

/// MCP-12, MCP-15: a resource in a manifest has metadata and any content. Its JSON form is valid in a manifest.
#[test]
fn resource_of_a_collection_has_metadata_and_any_content() {
    let drafts = admitted(&manifest(SERVICES, "ns/a")).unwrap();
    let [draft] = &drafts[..] else { panic!("{drafts:?}") };
    assert_eq!((draft.key.type_url.as_str(), draft.key.name.as_str()), (SERVICES, "ns/a"));
    let read = pb::Resource::decode(draft.body.clone()).unwrap();
    let metadata = read.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.version.as_str()), ("ns/a", "7"));
    assert_eq!(metadata.labels["app"], "shop");
    assert_eq!(metadata.annotations["note"], "x");
    assert_eq!(metadata.create_time.unwrap().seconds, 1_795_464_000);
    let body = read.body.unwrap();
    assert_eq!(
        (body.type_url.rsplit('.').next(), &*body.value),
        (Some("VirtualService"), &b"\n\x07reviews"[..])
    );
    let shown = body_to_json(&draft.key.type_url, &draft.body);
    let again = serde_json::json!({"resources": [shown]}).to_string();
    assert_eq!(admitted(&again).unwrap(), drafts);
}

/// MCP-13: names are opaque, with or without a leading slash. In a collection of istiod they have two segments.
#[test]
fn names_of_collections_have_segments() {
    for name in ["a", "ns/a", "/a", "org/team/a", "ns/a.b"] {
        let drafts = admitted(&manifest(SERVICES, name)).unwrap();
        assert_eq!(drafts[0].key.name.as_str(), name, "never normalized");
    }
    for name in ["ns//a", "ns/", "/"] {
        let problems = admitted(&manifest(SERVICES, name)).unwrap_err();
        assert!(problems[0].contains("has an empty segment"), "{problems:?}");
        assert!(problems[0].contains("metadata.name"), "{problems:?}");
    }
    admitted(&manifest(OF_ISTIOD, "ns/a")).unwrap();
    admitted(&manifest(OF_ISTIOD, "/a")).unwrap();
    for name in ["a", "org/team/a"] {
        let problems = admitted(&manifest(OF_ISTIOD, name)).unwrap_err();
        assert!(problems[0].contains("istiod rejects"), "{problems:?}");
    }
}

#[test]
fn problems_of_a_collection_name_resource_and_field() {
    let unnamed = manifest(SERVICES, "\"\"");
    let unknown = manifest(SERVICES, "ns/a").replace("annotations:", "annotation:");
    for (content, expected) in [
        (unnamed, "metadata.name"),
        (unknown, "metadata.annotation"),
        (manifest(SERVICES, "ns/a").replace("value: CgdyZXZpZXdz", "value: '%'"), "body.value"),
        (format!("resources: [{{\"@type\": {SERVICES}, name: a}}]"), "name"),
        (
            format!("resources: [{{\"@type\": {SERVICES}, metadata: {{name: a}}}}]"),
            "body: is missing",
        ),
        (manifest(SERVICES, "\"a\\u0001\""), "metadata.name: "),
    ] {
        let problems = admitted(&content).unwrap_err();
        assert!(problems[0].contains(expected), "{expected}: {problems:?}");
        assert!(problems[0].contains("virtualservices"), "{problems:?}");
    }
}

/// A sink knows a resource by one name only.
#[test]
fn resource_of_a_collection_has_no_aliases() {
    let inner =
        "{\"@type\": istio/a/b/c, metadata: {name: ns/a}, body: {\"@type\": a.b/c.D, value: \"\"}}";
    let with = |aliases: &str| format!("resources: [{{resource: {inner}, aliases: [{aliases}]}}]");
    admitted(&with("")).unwrap();
    let problems = admitted(&with("ns/b")).unwrap_err();
    assert!(problems[0].contains("aliases: are not possible"), "{problems:?}");
}

/// MCP-12: a body from gRPC, or from another source, is checked like a manifest.
#[test]
fn encoded_body_has_to_be_a_resource_of_that_name() {
    let type_url = TypeUrl::new(SERVICES).unwrap();
    let metadata = pb::Metadata { name: "ns/a".to_owned(), ..pb::Metadata::default() };
    let content = prost_types::Any { type_url: "x.y/a.B".to_owned(), value: Vec::new() };
    let body = pb::Resource { metadata: Some(metadata), body: Some(content) }.encode_to_vec();
    draft_from_body(&type_url, None, body.clone().into()).unwrap();
    draft_from_body(&type_url, Some("ns/a"), body.clone().into()).unwrap();
    for (name, body) in [
        (Some("ns/b"), body),
        (None, Vec::new()),
        (Some("ns/a"), Vec::new()),
        (None, vec![0xff; 9]),
    ] {
        assert!(draft_from_body(&type_url, name, body.into()).is_err(), "{name:?}");
    }
}

/// A secret inside of a collection is hidden like anywhere else.
#[test]
fn secrets_in_collections_are_hidden() {
    let content = format!(
        r#"
resources:
- "@type": {SERVICES}
  metadata: {{name: ns/a}}
  body:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
    name: s
    generic_secret: {{secret: {{inline_string: hush}}}}
"#
    );
    let drafts = admitted(&content).unwrap();
    let key = &drafts[0].key.type_url;
    assert!(body_to_json(key, &drafts[0].body).to_string().contains("hush"));
    let shown = body_to_json(key, &redacted(key, &drafts[0].body)).to_string();
    assert!(!shown.contains("hush"), "{shown}");
}

/// A content of an unknown type with a private key is hidden as a whole. What is shown is refused.
#[test]
fn hidden_content_is_not_accepted_in_its_place() {
    let key = "-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n";
    let content = [&[0x0a, u8::try_from(key.len()).unwrap()], key.as_bytes()].concat();
    let value = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, content);
    let drafts = admitted(&manifest(SERVICES, "ns/a").replace("CgdyZXZpZXdz", &value)).unwrap();
    let (type_url, body) = (&drafts[0].key.type_url, &drafts[0].body);
    let shown = body_to_json(type_url, &redacted(type_url, body));
    let again = serde_json::json!({"resources": [shown]}).to_string();
    let problems = admitted(&again).unwrap_err();
    assert!(problems[0].contains("in place of a secret"), "{problems:?}");
}

/// MCP-16: the contents of a collection have one type. Collections and scopes are independent.
#[test]
fn contents_of_a_collection_have_one_type() {
    let second = manifest(SERVICES, "ns/b").replace("VirtualService", "DestinationRule");
    let both = format!("{}---{second}", manifest(SERVICES, "ns/a"));
    let problems = admitted(&both).unwrap_err();
    let expected = "f.yaml:23:5: document 2: resources[0] virtualservices \"ns/b\": body.@type: has the type \
        \"type.googleapis.com/istio.networking.v1alpha3.DestinationRule\", but \"ns/a\" of the same collection has";
    assert!(problems[0].starts_with(expected), "{problems:?}");
    for other in [second.replace(SERVICES, OF_ISTIOD), format!("\nscope: other{second}")] {
        assert_eq!(
            admitted(&format!("{}---{other}", manifest(SERVICES, "ns/a"))).unwrap().len(),
            2
        );
    }
}

/// The messages of Istio's API are known: their fields are written and shown, and checked.
#[test]
fn content_of_istio_is_written_as_fields() {
    let encoded = "value: CgdyZXZpZXdz";
    let with = |fields: &str| manifest(OF_ISTIOD, "ns/a").replace(encoded, fields);
    let fields =
        "hosts: [reviews]\n    http: [{route: [{destination: {host: reviews, subset: v2}}]}]";
    let drafts = admitted(&with(fields)).unwrap();
    let shown = body_to_json(&drafts[0].key.type_url, &drafts[0].body);
    assert_eq!(shown["body"]["http"][0]["route"][0]["destination"]["subset"], "v2", "{shown}");
    let again = serde_json::json!({"resources": [shown]}).to_string();
    assert_eq!(admitted(&again).unwrap(), drafts);
    for (fields, expected) in [
        ("hosts: [reviews]\n    htttp: []", "body.htttp"),
        (
            "hosts: reviews.shop\n    http: [{route: [{destination: {hots: a}}]}]",
            "destination.hots",
        ),
        ("value: CgdyZXZpZXdz/w==", "body"),
    ] {
        let problems = admitted(&with(fields)).unwrap_err();
        assert!(problems[0].contains(expected), "{problems:?}");
    }
}

/// A body of an unknown type that no client can decode is refused. istiod deletes the object that it replaces.
#[test]
fn content_of_an_unknown_type_is_an_encoded_message() {
    for value in ["CgdyZXZpZXdz/w==", "eyJhIjogMX0=", "b25l"] {
        let expected = "value: is not an encoded message: ";
        let own =
            manifest(OF_ISTIOD, "ns/a").replace("CgdyZXZpZXdz", value).replace("istio.n", "own.n");
        let problems = admitted(&own).unwrap_err();
        assert!(problems[0].contains(&format!("body.{expected}")), "{problems:?}");
        // The same in a resource of an unknown type, and inside a known one.
        let unknown = format!("{{'@type': a.b/c.D, value: {value}}}");
        let cluster = format!(
            "{{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: x, \
             metadata: {{typed_filter_metadata: {{x: {unknown}}}}}}}"
        );
        for entry in [format!("{{name: x, resource: {unknown}}}"), cluster] {
            let problems = admitted(&format!("resources: [{entry}]")).unwrap_err();
            assert!(problems[0].contains(expected), "{problems:?}");
        }
    }
}

/// A kind that does not fit the collection, and a resource that istiod cannot read, cause a warning.
#[test]
fn content_that_istiod_cannot_read_is_a_warning() {
    assert_eq!(warnings(&manifest(OF_ISTIOD, "ns/a")), Vec::<String>::new());
    let gateways = "networking.istio.io/v1alpha3/Gateway";
    let other = warnings(&manifest(gateways, "ns/a"));
    let expected =
        "istiod expects the message istio.networking.v1alpha3.Gateway in this collection";
    assert!(other.len() == 1 && other[0].contains(expected), "{other:?}");
    for (group, version, package, is_decoded) in [
        ("networking.istio.io", "v1", "istio.networking.v1alpha3", true),
        ("networking.istio.io", "v1", "istio.networking.v1", false),
        ("networking.istio.io", "v1", "own.networking.v1alpha3", false),
        ("own.io", "v1", "own.networking.v1", true),
    ] {
        let content = manifest(&format!("{group}/{version}/VirtualService"), "ns/a")
            .replace("istio.networking.v1alpha3", package);
        let said = warnings(&content);
        let is_warned = said.iter().any(|warning| warning.contains("[collection.kind]"));
        assert_eq!(is_warned, !is_decoded, "{group} {package}: {said:?}");
    }
    let mesh = warnings(&manifest("core/v1alpha1/MeshConfig", "ns/a"));
    let expected = "istiod never acknowledges a resource of this collection";
    assert!(mesh.len() == 1 && mesh[0].contains(expected), "{mesh:?}");
}

/// The kinds of the table in `docs/mcp.md` have the packages that the page names.
#[test]
fn content_of_an_istio_kind_in_another_version_names_the_known_one() {
    for (group, package, kinds) in [
        (
            "networking",
            "istio.networking.v1alpha3",
            "DestinationRule Gateway ServiceEntry Sidecar VirtualService WorkloadEntry WorkloadGroup EnvoyFilter",
        ),
        ("networking", "istio.networking.v1beta1", "ProxyConfig"),
        (
            "security",
            "istio.security.v1beta1",
            "AuthorizationPolicy PeerAuthentication RequestAuthentication",
        ),
        ("telemetry", "istio.telemetry.v1alpha1", "Telemetry"),
        ("extensions", "istio.extensions.v1alpha1", "TrafficExtension WasmPlugin"),
    ] {
        for kind in kinds.split(' ') {
            let collection = format!("{group}.istio.io/v1/{kind}");
            let of = |message: &str| {
                format!(
                    "resources: [{{'@type': {collection}, metadata: {{name: a/b}}, \
                 body: {{'@type': type.googleapis.com/{message}}}}}]"
                )
            };
            assert!(admitted(&of(&format!("{package}.{kind}"))).is_ok(), "{kind}");
            let problems = admitted(&of(&format!("istio.{group}.v1.{kind}"))).unwrap_err();
            let meant = format!("did you mean \"type.googleapis.com/{package}.{kind}\"?");
            assert!(problems[0].contains(&meant), "{problems:?}");
        }
    }
}
