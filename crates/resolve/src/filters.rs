//! The filters of a chain, up to the one that ends the connection.

use crate::{
    answer::End,
    clusters::{choose, weighted},
    http_filters::content,
    manager::{Connection, follow_manager},
    message::Msg,
    walk::Walk,
};

const MANAGER: &str = "HttpConnectionManager";
const TCP_PROXY: &str = "TcpProxy";

/// Follows a connection through a filter chain.
pub(crate) fn follow_chain(walk: &mut Walk<'_>, chain: Msg<'_>, port: i64) -> End {
    let is_tls = chain.has("transport_socket") && !is_plain(chain);
    if walk.request.is_tls() != is_tls {
        let (place, reason) = (
            "filter chain, transport_socket",
            if is_tls {
                "the chain expects TLS, and the URL begins with http; the answer assumes that the handshake succeeds"
            } else {
                "the chain does not end TLS, and the URL begins with https; the answer assumes that a proxy before it does"
            },
        );
        walk.doubt(place, reason, "the connection fails");
    }
    let mut last = String::new();
    for (index, filter) in chain.list("filters").enumerate() {
        let Some(content) = content(walk, filter) else {
            last = filter.text("name").to_owned();
            continue;
        };
        match (content.short_name(), content.message()) {
            (MANAGER, Some(manager)) => {
                let connection = Connection { port, is_tls: walk.request.is_tls() };
                return follow_manager(walk, manager, connection);
            }
            (TCP_PROXY, Some(proxy)) => return follow_tcp_proxy(walk, proxy),
            (other, _) => {
                last = other.to_owned();
                let place = format!("filters[{index}] {other}");
                walk.doubt(&place, "the filter may close the connection or answer", "");
            }
        }
    }
    let reason =
        format!("the filter chain has no HTTP connection manager; its last filter is {last:?}");
    End::Undecided { reason }
}

/// Returns whether the transport socket of a chain does not end TLS.
fn is_plain(chain: Msg<'_>) -> bool {
    let socket = chain.sub("transport_socket").and_then(|socket| socket.any("typed_config"));
    socket.is_some_and(|content| content.short_name() == "RawBuffer")
}

fn follow_tcp_proxy(walk: &mut Walk<'_>, proxy: Msg<'_>) -> End {
    let names = match proxy.member("cluster_specifier").as_deref() {
        Some("weighted_clusters") => {
            proxy.sub("weighted_clusters").map(|it| weighted(walk, it, None)).unwrap_or_default()
        }
        _ => vec![(proxy.text("cluster").to_owned(), 0)],
    };
    End::Tcp { clusters: choose(walk, names) }
}
