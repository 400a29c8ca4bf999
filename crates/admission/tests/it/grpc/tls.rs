//! TLS contexts in the forms that only some clients read.

use serde_json::{Value as Json, json};

use super::{
    any, cluster, found,
    listener::{chain, server},
    with,
};

const SOCKET: &str = "envoy.transport_sockets.tls";

fn client(common: &Json) -> Json {
    let name = "extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let config = any(name, &json!({"common_tls_context": common}));
    cluster(&json!({"transport_socket": {"name": SOCKET, "typed_config": config}}))
}

fn server_tls(common: &Json, rest: &Json) -> Json {
    let name = "extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    let config = any(name, &with(json!({"common_tls_context": common}), rest));
    let socket = json!({"name": SOCKET, "typed_config": config});
    server(&json!({"filter_chains": [chain(&json!({"transport_socket": socket}))]}))
}

/// Returns the clients that refuse the resource, and the last fields of the refusals.
fn refused(resource: &Json) -> Vec<String> {
    let shown = super::shown(&found(super::ALL, resource));
    let refusals = shown.iter().filter(|text| text.matches(": ").count() == 2);
    refusals
        .map(|text| {
            let (path, clients) = text.split_once(": grpc.tls: ").unwrap();
            format!("{}: {clients}", path.rsplit('.').next().unwrap())
        })
        .collect()
}

fn provider(name: &str) -> Json {
    json!({"instance_name": name})
}

/// GRPCV-18, -20: a provider has a name.
#[test]
fn provider_without_a_name_is_refused() {
    let client = |name| {
        client(&json!({"validation_context": {"ca_certificate_provider_instance": provider(name)}}))
    };
    let server = |name| {
        server_tls(&json!({"tls_certificate_provider_instance": provider(name)}), &json!({}))
    };
    assert_eq!(refused(&client("a")), [""; 0]);
    assert_eq!(refused(&client("")), ["common_tls_context: Go", "instance_name: C++, Java, Node"]);
    assert_eq!(refused(&server("a")), [""; 0]);
    assert_eq!(
        refused(&server("")),
        ["common_tls_context: C++, Go, Java, Node", "instance_name: C++, Java, Node"]
    );
}

/// GRPCV-13, -19: Java and Node refuse some options by their presence.
#[test]
fn option_that_is_off_is_refused_by_java_or_node() {
    let ca = provider("a");
    let context = json!({
        "ca_certificate_provider_instance": ca,
        "require_signed_certificate_timestamp": false,
    });
    assert_eq!(
        refused(&client(&json!({"validation_context": context}))),
        ["require_signed_certificate_timestamp: Java, Node"]
    );
    let own = json!({"tls_certificate_provider_instance": ca});
    let required = |is_on: bool| json!({"require_client_certificate": is_on});
    assert_eq!(refused(&server_tls(&own, &json!({}))), [""; 0]);
    assert_eq!(refused(&server_tls(&own, &required(false))), ["require_client_certificate: Node"]);
    assert_eq!(
        refused(&server_tls(&own, &required(true))),
        ["require_client_certificate: C++, Go, Node"]
    );
}

/// GRPCV-18: the deprecated forms of the authority.
#[test]
fn deprecated_authority_is_read_only_by_some_clients() {
    let old = "validation_context_certificate_provider_instance";
    let combined = json!({"combined_validation_context": {"default_validation_context": {}, old: provider("a")}});
    assert_eq!(refused(&client(&combined)), ["common_tls_context: Node"]);
    let direct = json!({old: provider("a")});
    assert_eq!(refused(&client(&direct)), ["common_tls_context: C++, Java, Node"]);
    let own = |field: &str| with(json!({field: provider("a")}), &direct);
    let (new_identity, old_identity) =
        ("tls_certificate_provider_instance", "tls_certificate_certificate_provider_instance");
    assert_eq!(refused(&server_tls(&own(new_identity), &json!({}))), [format!("{old}: Go, Node")]);
    let text = refused(&server_tls(&own(old_identity), &json!({})));
    assert_eq!(text, ["common_tls_context: Node".to_owned(), format!("{old}: Node")]);
}

/// GRPCV-20: C-core compares no name by an expression that ignores the case.
#[test]
fn expression_that_ignores_the_case_is_refused_by_cpp() {
    let san = json!({"safe_regex": {"regex": "a"}, "ignore_case": true});
    let context = json!({
        "ca_certificate_provider_instance": provider("a"),
        "match_subject_alt_names": [san],
    });
    let resource = client(&json!({"validation_context": context}));
    let found = super::shown(&found("grpc-cpp grpc-go", &resource));
    assert!(found.iter().any(|text| text.ends_with("ignore_case: grpc.regex: C++")), "{found:?}");
}

/// GRPCV-21: C-core bounds the name of the server. Go reads it only as an experiment.
#[test]
fn long_server_name_is_refused_by_cpp() {
    let context = |sni: &str| {
        let name = "extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        let validation = json!({"ca_certificate_provider_instance": provider("a")});
        let common = json!({"validation_context": validation});
        let config = any(name, &json!({"sni": sni, "common_tls_context": common}));
        cluster(&json!({"transport_socket": {"name": SOCKET, "typed_config": config}}))
    };
    assert_eq!(refused(&context(&"a".repeat(255))), [""; 0]);
    assert_eq!(refused(&context(&"a".repeat(256))), ["sni: C++"]);
}
