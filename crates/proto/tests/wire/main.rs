//! Tests that the hand-written messages are compatible with Envoy's descriptors. Each field has the
//! same name, number and kind, and each side decodes the output of the other.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod lrs;

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_proto::{
    csds::{
        ClientConfig, ClientStatusRequest, ClientStatusResponse, ConfigStatus, DoubleMatcher,
        DoublePattern, DoubleRange, GenericXdsConfig, NodeMatcher, OrMatcher, PathSegment,
        StringMatcher, StringPattern, StructMatcher, UpdateFailureState, ValueMatcher,
        ValuePattern,
    },
    discovery::{
        Any, CacheControl, ControlPlane, DeltaDiscoveryRequest, DeltaDiscoveryResponse,
        DiscoveryRequest, DiscoveryResponse, Resource, ResourceError, ResourceLocator,
        ResourceName, Status,
    },
    envoy_pool,
    node::{BuildVersion, ContextParams, Locality, Node, SemanticVersion, UserAgentVersion},
};
use prost::Message;
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::{Value, json};

/// Decodes the bytes with Envoy's descriptors, and fails on a field that the descriptors lack.
fn read_by_descriptor(name: &str, bytes: &[u8]) -> Value {
    let message = envoy_pool().get_message_by_name(name).unwrap();
    let decoded = DynamicMessage::decode(message, bytes).unwrap();
    assert_eq!(decoded.unknown_fields().count(), 0, "{name} has fields that are not in the API");
    let options = SerializeOptions::new().use_proto_field_name(true);
    decoded.serialize_with_options(serde_json::value::Serializer, &options).unwrap()
}

fn written_by_descriptor(name: &str, value: &Value) -> Vec<u8> {
    let message = envoy_pool().get_message_by_name(name).unwrap();
    DynamicMessage::deserialize(message, value.clone()).unwrap().encode_to_vec()
}

fn check<M: Message + Default + PartialEq + std::fmt::Debug>(
    name: &str,
    message: &M,
    json: &Value,
) {
    assert_eq!(&read_by_descriptor(name, &message.encode_to_vec()), json);
    let bytes = written_by_descriptor(name, json);
    assert_eq!(&M::decode(Bytes::from(bytes)).unwrap(), message);
}

const NODE: &[u8] = b"\x0a\x01n";

fn status() -> Status {
    Status { code: 13, message: "no".into(), details: vec![] }
}

fn locators() -> Vec<ResourceLocator> {
    vec![ResourceLocator {
        name: "l".into(),
        dynamic_parameters: BTreeMap::from([("k".into(), "v".into())]),
    }]
}

fn resource_name() -> ResourceName {
    ResourceName { name: "n".into(), dynamic_parameter_constraints: None }
}

/// Table 3, requests.
#[test]
fn requests_match_envoy_descriptors() {
    let request = DiscoveryRequest {
        version_info: "1".into(),
        node: Some(Bytes::from_static(NODE)),
        resource_names: vec!["a".into(), "b".into()],
        type_url: "t".into(),
        response_nonce: "n".into(),
        error_detail: Some(status()),
        resource_locators: locators(),
    };
    let locator = json!([{"name": "l", "dynamic_parameters": {"k": "v"}}]);
    check(
        "envoy.service.discovery.v3.DiscoveryRequest",
        &request,
        &json!({
            "version_info": "1", "node": {"id": "n"}, "resource_names": ["a", "b"],
            "type_url": "t", "response_nonce": "n",
            "error_detail": {"code": 13, "message": "no"}, "resource_locators": locator,
        }),
    );
    let request = DeltaDiscoveryRequest {
        node: Some(Bytes::from_static(NODE)),
        type_url: "t".into(),
        resource_names_subscribe: vec!["a".into()],
        resource_names_unsubscribe: vec!["b".into()],
        initial_resource_versions: BTreeMap::from([("a".into(), "1".into())]),
        response_nonce: "n".into(),
        error_detail: Some(status()),
        resource_locators_subscribe: locators(),
        resource_locators_unsubscribe: locators(),
    };
    check(
        "envoy.service.discovery.v3.DeltaDiscoveryRequest",
        &request,
        &json!({
            "node": {"id": "n"}, "type_url": "t", "resource_names_subscribe": ["a"],
            "resource_names_unsubscribe": ["b"], "initial_resource_versions": {"a": "1"},
            "response_nonce": "n", "error_detail": {"code": 13, "message": "no"},
            "resource_locators_subscribe": locator, "resource_locators_unsubscribe": locator,
        }),
    );
}

/// Table 3, responses.
#[test]
fn responses_match_envoy_descriptors() {
    let any = Any {
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(),
        value: Bytes::from_static(b"\x0a\x01c"),
    };
    let any_json = json!({"@type": any.type_url, "name": "c"});
    let errors =
        vec![ResourceError { resource_name: Some(resource_name()), error_detail: Some(status()) }];
    let errors_json = json!([{
        "resource_name": {"name": "n"}, "error_detail": {"code": 13, "message": "no"},
    }]);
    let control_plane = Some(ControlPlane { identifier: "r1".into() });
    let response = DiscoveryResponse {
        version_info: "1".into(),
        resources: vec![any.clone()],
        canary: true,
        type_url: "t".into(),
        nonce: "n".into(),
        control_plane: control_plane.clone(),
        resource_errors: errors.clone(),
    };
    check(
        "envoy.service.discovery.v3.DiscoveryResponse",
        &response,
        &json!({
            "version_info": "1", "resources": [any_json], "canary": true, "type_url": "t",
            "nonce": "n", "control_plane": {"identifier": "r1"}, "resource_errors": errors_json,
        }),
    );
    let resource = Resource {
        version: "1".into(),
        resource: Some(any),
        name: "c".into(),
        aliases: vec!["d".into()],
        ttl: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        cache_control: Some(CacheControl { do_not_cache: true }),
        resource_name: Some(resource_name()),
        metadata: Some(Bytes::new()),
    };
    let response = DeltaDiscoveryResponse {
        system_version_info: "1".into(),
        resources: vec![resource],
        type_url: "t".into(),
        nonce: "n".into(),
        removed_resources: vec!["x".into()],
        control_plane,
        removed_resource_names: vec![resource_name()],
        resource_errors: errors,
    };
    check(
        "envoy.service.discovery.v3.DeltaDiscoveryResponse",
        &response,
        &json!({
            "system_version_info": "1",
            "resources": [{
                "version": "1", "resource": any_json, "name": "c", "aliases": ["d"], "ttl": "1s",
                "cache_control": {"do_not_cache": true}, "resource_name": {"name": "n"},
                "metadata": {},
            }],
            "type_url": "t", "nonce": "n", "removed_resources": ["x"],
            "control_plane": {"identifier": "r1"}, "removed_resource_names": [{"name": "n"}],
            "resource_errors": errors_json,
        }),
    );
}

#[test]
fn node_matches_envoy_descriptors() {
    let version = BuildVersion {
        version: Some(SemanticVersion { major_number: 1, minor_number: 36, patch: 2 }),
    };
    let node = Node {
        id: "n".into(),
        cluster: "c".into(),
        metadata: Some(prost_types::Struct { fields: BTreeMap::new() }),
        locality: Some(Locality { region: "r".into(), zone: "z".into(), sub_zone: "s".into() }),
        build_version: String::new(),
        user_agent_name: "envoy".into(),
        user_agent_version: Some(UserAgentVersion::Build(version)),
        client_features: vec!["f".into()],
        dynamic_parameters: BTreeMap::from([(
            "t".to_owned(),
            ContextParams { params: BTreeMap::from([("k".to_owned(), "v".to_owned())]) },
        )]),
    };
    check(
        "envoy.config.core.v3.Node",
        &node,
        &json!({
            "id": "n", "cluster": "c", "metadata": {},
            "locality": {"region": "r", "zone": "z", "sub_zone": "s"},
            "user_agent_name": "envoy",
            "user_agent_build_version": {
                "version": {"major_number": 1, "minor_number": 36, "patch": 2},
            },
            "client_features": ["f"],
            "dynamic_parameters": {"t": {"params": {"k": "v"}}},
        }),
    );
}

/// The decoder skips unknown fields of a request (SVC-19) and leaves the node encoded.
#[test]
fn request_decodes_with_unknown_fields_and_encoded_node() {
    let node = json!({
        "id": "n", "user_agent_version": "1", "extensions": [{"name": "x"}],
        "listening_addresses": [{"pipe": {"path": "p"}}],
    });
    let name = "envoy.service.discovery.v3.DiscoveryRequest";
    let mut bytes = written_by_descriptor(name, &json!({"node": node, "type_url": "t"}));
    // Field 2000 does not exist.
    bytes.extend(b"\x82\x7d\x01x");
    let bytes = Bytes::from(bytes);
    let request = DiscoveryRequest::decode(bytes.clone()).unwrap();
    let node = request.node.unwrap();
    assert!(bytes.as_ptr_range().contains(&node.as_ptr()), "a slice of the request, not a copy");
    let node = Node::decode(node).unwrap();
    assert_eq!(node.id, "n");
    assert_eq!(node.user_agent_version, Some(UserAgentVersion::Text("1".into())));
}

/// CSDS-03, CSDS-04: all matchers have the names and numbers of the API, also those that the server
/// rejects.
#[test]
fn client_status_request_matches_descriptors() {
    let string = |pattern| StringMatcher { pattern: Some(pattern), ignore_case: true };
    let exact = || string(StringPattern::Exact("e".into()));
    let value = |pattern| ValueMatcher { pattern: Some(pattern) };
    let number = |pattern| value(ValuePattern::Double(DoubleMatcher { pattern: Some(pattern) }));
    let texts = [
        (StringPattern::Exact("e".into()), json!({"exact": "e", "ignore_case": true})),
        (StringPattern::Prefix("p".into()), json!({"prefix": "p", "ignore_case": true})),
        (StringPattern::Suffix("s".into()), json!({"suffix": "s", "ignore_case": true})),
        (StringPattern::Contains("c".into()), json!({"contains": "c", "ignore_case": true})),
        (
            StringPattern::SafeRegex(Bytes::from_static(b"\x12\x01.")),
            json!({"safe_regex": {"regex": "."}, "ignore_case": true}),
        ),
        (
            StringPattern::Custom(Bytes::from_static(b"\x0a\x01x")),
            json!({"custom": {"name": "x"}, "ignore_case": true}),
        ),
    ];
    let values = [
        (value(ValuePattern::Null(Bytes::new())), json!({"null_match": {}})),
        (number(DoublePattern::Exact(1.5)), json!({"double_match": {"exact": 1.5}})),
        (
            number(DoublePattern::Range(DoubleRange { start: 1.5, end: 2.5 })),
            json!({"double_match": {"range": {"start": 1.5, "end": 2.5}}}),
        ),
        (
            value(ValuePattern::String(exact())),
            json!({"string_match": {"exact": "e", "ignore_case": true}}),
        ),
        (value(ValuePattern::Bool(true)), json!({"bool_match": true})),
        (value(ValuePattern::Present(true)), json!({"present_match": true})),
        (value(ValuePattern::List(Bytes::new())), json!({"list_match": {}})),
        (
            value(ValuePattern::Or(OrMatcher {
                value_matchers: vec![value(ValuePattern::Bool(false))],
            })),
            json!({"or_match": {"value_matchers": [{"bool_match": false}]}}),
        ),
    ];
    for (pattern, json) in texts {
        let matcher = NodeMatcher { node_id: Some(string(pattern)), node_metadatas: vec![] };
        check("envoy.type.matcher.v3.NodeMatcher", &matcher, &json!({"node_id": json}));
    }
    for (value, json) in values {
        let path = vec![PathSegment { key: "k".into() }];
        let matcher = StructMatcher { path, value: Some(value) };
        let request = ClientStatusRequest {
            node_matchers: vec![NodeMatcher { node_id: None, node_metadatas: vec![matcher] }],
            node: Some(Bytes::from_static(NODE)),
            exclude_resource_contents: true,
        };
        let metadata = json!([{"path": [{"key": "k"}], "value": json}]);
        check(
            "envoy.service.status.v3.ClientStatusRequest",
            &request,
            &json!({
                "node_matchers": [{"node_metadatas": metadata}],
                "node": {"id": "n"},
                "exclude_resource_contents": true,
            }),
        );
    }
}

/// CSDS-05, CSDS-06, CSDS-07: the response has the names, numbers and states of the API.
#[test]
fn client_status_response_matches_descriptors() {
    const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let time = || Some(prost_types::Timestamp { seconds: 1, nanos: 0 });
    for (state, name) in [
        (ConfigStatus::Synced, "SYNCED"),
        (ConfigStatus::NotSent, "NOT_SENT"),
        (ConfigStatus::Stale, "STALE"),
        (ConfigStatus::Error, "ERROR"),
    ] {
        let value = Bytes::from_static(b"\x0a\x01a");
        let config = GenericXdsConfig {
            type_url: CLUSTER.into(),
            name: "a".into(),
            version_info: "v".into(),
            xds_config: Some(Any { type_url: CLUSTER.into(), value }),
            last_updated: time(),
            config_status: state.into(),
            error_state: Some(UpdateFailureState {
                last_update_attempt: time(),
                details: "no".into(),
                version_info: "w".into(),
            }),
        };
        let client = ClientConfig {
            node: Some(Node { id: "n".into(), ..Node::default() }),
            generic_xds_configs: vec![config],
            client_scope: "s".into(),
        };
        check(
            "envoy.service.status.v3.ClientStatusResponse",
            &ClientStatusResponse { config: vec![client] },
            &json!({"config": [{
                "node": {"id": "n"},
                "generic_xds_configs": [{
                    "type_url": CLUSTER,
                    "name": "a",
                    "version_info": "v",
                    "xds_config": {"@type": CLUSTER, "name": "a"},
                    "last_updated": "1970-01-01T00:00:01Z",
                    "config_status": name,
                    "error_state": {
                        "last_update_attempt": "1970-01-01T00:00:01Z",
                        "details": "no",
                        "version_info": "w",
                    },
                }],
                "client_scope": "s",
            }]}),
        );
    }
}
