//! Listeners whose address a stored listener has.

use serde_json::json;

use crate::support::Server;

fn listener(name: &str, port: u16) -> String {
    format!(
        "{{name: {name}, address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}, \
         filter_chains: [{{}}]}}"
    )
}

fn manifest(name: &str, port: u16) -> String {
    let listener = listener(name, port);
    let listener = listener.replacen(
        '{',
        "{'@type': type.googleapis.com/envoy.config.listener.v3.Listener, ",
        1,
    );
    format!("resources: [{listener}]")
}

/// Envoy would reject the second listener: "has duplicate address as existing listener".
#[tokio::test]
async fn address_of_a_stored_listener_is_refused_by_apply_and_import() {
    let server = Server::start().await;
    let apply = "/v1/apply?validation=enforce";
    server.done("POST", apply, &manifest("a", 80)).await;
    let bootstrap = format!("static_resources: {{listeners: [{}]}}", listener("b", 80));
    for (uri, body) in [
        (apply, manifest("b", 80)),
        ("/v1/apply?validation=enforce&dry_run=true", manifest("b", 80)),
        ("/v1/import?validation=enforce", bootstrap),
    ] {
        let (status, code, text) = server.refused("POST", uri, &body).await;
        assert_eq!((status, code.as_str()), (400, "INVALID_ARGUMENT"), "{text}");
        assert!(text.contains("127.0.0.1:80 is also an address of Listener \"a\""), "{text}");
        assert!(text.contains("[listener.shared_address]"), "{text}");
        let column = body.find("address:").unwrap() + 1;
        assert!(text.starts_with(&format!("request body:1:{column}: ")), "{column}: {text}");
    }
    // Both change in one transaction, or the author insists.
    let moved = format!("{}\n---\n{}\n", manifest("a", 81), manifest("b", 80));
    let moved = server.done("POST", apply, &moved).await;
    assert_eq!(moved["warnings"][0]["rule_id"], "listener.moved_address", "{moved}");
    let stored = server.done("POST", "/v1/apply?validation=warn", &manifest("c", 80)).await;
    assert_eq!(stored["warnings"][0]["rule_id"], "listener.shared_address", "{stored}");
    let stored = server.done("POST", "/v1/apply?validation=off", &manifest("d", 80)).await;
    assert_eq!(stored["warnings"], json!([]));
    server.stop().await;
}

/// Two listeners of one bootstrap were stored before, although Envoy rejects the second one.
#[tokio::test]
async fn two_listeners_of_a_bootstrap_with_one_address_are_refused() {
    let server = Server::start().await;
    let both = format!("{}, {}", listener("a", 80), listener("b", 80));
    let bootstrap = format!("static_resources: {{listeners: [{both}]}}");
    let (status, _, text) =
        server.refused("POST", "/v1/import?validation=enforce", &bootstrap).await;
    assert!(status == 400 && text.contains("is also the address of \"a\""), "{status} {text}");
    server.stop().await;
}
