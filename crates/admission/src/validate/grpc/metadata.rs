//! Typed metadata (gRFC A83): of clusters, and for Java also of localities and endpoints.

use super::rules::{At, CPP, JAVA, Rules, bad_struct_url, ip};
use crate::{node::shown, validate::tree::Message};

const ID: &str = "grpc.metadata";
const AUDIENCE: &str = "envoy.extensions.filters.http.gcp_authn.v3.Audience";
const ADDRESS: &str = "envoy.config.core.v3.Address";

/// Checks the metadata of known types.
pub(super) fn check(metadata: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    for entry in metadata.messages("typed_filter_metadata") {
        let (at, key) = (at.field("typed_filter_metadata"), entry.text("key"));
        let at = at.key(key);
        if let Some(reason) = entry.message("value").and_then(bad_struct_url) {
            rules.refuse(&at, CPP, ID, reason, "");
        }
        let Some(content) = entry.any("value") else { continue };
        match content.kind.name.as_str() {
            AUDIENCE if content.text("url").is_empty() => {
                let reason = "the audience has no url";
                rules.refuse(&at.field("url"), CPP | JAVA, ID, reason, "give url");
            }
            ADDRESS => address(content, &at, rules),
            _ => {}
        }
    }
}

/// Java reads the address of a proxy, which has to be an IP address with a port.
fn address(address: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let at = at.field("socket_address");
    let socket = address.message("socket_address");
    let text = socket.map_or("", |socket| socket.text("address"));
    let port = socket.map_or(0, |socket| socket.bits("port_value"));
    if ip(text).is_none() || port > 65535 {
        let reason =
            format!("{} with the port {port} is not an IP address with a port", shown(text));
        let fix = "give an IP address and a port up to 65535";
        rules.refuse(&at, JAVA.since(72), ID, reason, fix);
    }
}
