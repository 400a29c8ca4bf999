//! The bootstrap of a gRPC client (gRFCs A27, A65 and A97).

use std::path::Path;

use serde_json::{Map, Value, json};

use super::client::{Client, Server, Tls, is_ip};

/// The time after which a client reads its certificates again.
const REFRESH_INTERVAL: &str = "60s";

/// Returns the bootstrap. Its client uses the first server that it can reach (gRFC A71).
pub(crate) fn bootstrap(client: &Client) -> Value {
    let servers: Vec<Value> = client.servers.iter().map(|one| server(client, one)).collect();
    let mut node = json!({"id": client.node, "cluster": client.cluster});
    if !client.metadata.is_empty() {
        let field = |(key, value): &(String, String)| (key.clone(), value.clone().into());
        let fields: Map<String, Value> = client.metadata.iter().map(field).collect();
        node["metadata"] = Value::Object(fields);
    }
    json!({
        "xds_servers": servers,
        "node": node,
        "server_listener_resource_name_template": "grpc/server?xds.resource.listening_address=%s",
    })
}

fn server(client: &Client, Server { host, port }: &Server) -> Value {
    let host = if is_ip(host) && host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut server = json!({
        "server_uri": format!("{host}:{port}"),
        "channel_creds": [credentials(client.tls.as_ref())],
        "server_features": ["xds_v3"],
    });
    if let Some(token) = &client.token_file {
        let config = json!({"jwt_token_file": text(token)});
        server["call_creds"] = json!([{"type": "jwt_token_file", "config": config}]);
    }
    server
}

fn credentials(tls: Option<&Tls>) -> Value {
    let Some(Tls { ca, cert_and_key, .. }) = tls else { return json!({"type": "insecure"}) };
    let mut config = json!({"refresh_interval": REFRESH_INTERVAL});
    if let Some(ca) = ca {
        config["ca_certificate_file"] = text(ca);
    }
    if let Some((cert, key)) = cert_and_key {
        config["certificate_file"] = text(cert);
        config["private_key_file"] = text(key);
    }
    json!({"type": "tls", "config": config})
}

fn text(path: &Path) -> Value {
    path.display().to_string().into()
}
