//! State-of-the-world clients that reconnect keep the clusters that their routes refer to.

use chancery_model::types::{LISTENER as LDS, ROUTE as RDS};
use chancery_proto::discovery::DiscoveryRequest;

use crate::support::*;

/// The cluster subscription of a reconnecting client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// All clusters, as Envoy subscribes.
    All,
    /// The cluster that its routes name, as gRPC subscribes.
    Names(&'static [&'static str]),
}

impl Asks {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::All => &[],
            Self::Names(names) => names,
        }
    }
}

/// A client has the cluster `old` and a route to it. Its stream ends, and the cluster is replaced.
/// Returns the server, the version of the client's clusters, and the new stream.
async fn moved_meanwhile(asks: Asks) -> (Server, String, Sotw) {
    let server = Server::start().await;
    server.put(CDS, &[("old", "old"), ("other", "other")]);
    server.put(RDS, &[("r", "to old")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(CDS, asks.names()).await;
    let clusters = client.next().await;
    client.ack(&clusters, asks.names()).await;
    client.subscribe(RDS, &["r"]).await;
    let routes = client.next().await;
    client.ack(&routes, &["r"]).await;
    drop(client);
    server.until_no_stream().await;
    server.put(CDS, &[("new", "new")]);
    server.put(RDS, &[("r", "to new")]);
    server.delete(CDS, &["old"]);
    let comes = server.sotw(SOTW_ADS).await;
    (server, clusters.version_info, comes)
}

async fn ask_again(client: &Sotw, type_url: &str, names: &[&str], version: &str) {
    client
        .send(DiscoveryRequest {
            type_url: type_url.into(),
            version_info: version.into(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            node: node("n1"),
            ..DiscoveryRequest::default()
        })
        .await;
}

/// ADS-08, OPS-13, SOTW-15, SOTW-100: a wildcard client reconnects. It gets the cluster that its routes refer
/// to until it acknowledges the new routes. The version shows that this is another state.
#[tokio::test]
async fn removed_cluster_is_kept_until_routes_have_moved() {
    let (_server, version, mut client) = moved_meanwhile(Asks::All).await;
    ask_again(&client, CDS, &[], &version).await;
    ask_again(&client, RDS, &["r"], "1").await;
    let clusters = client.next().await;
    assert_eq!(bodies(&clusters), ["new", "old", "other"]);
    client.ack(&clusters, &[]).await;
    let routes = client.next().await;
    assert_eq!(bodies(&routes), ["to new"]);
    client.ack(&routes, &["r"]).await;
    let rest = client.next().await;
    assert_eq!(bodies(&rest), ["new", "other"]);
    assert_ne!(rest.version_info, clusters.version_info);
}

/// ADS-08, CLI-G-08, CLI-G-09: the same with names. The client unsubscribes from one of them when its
/// routes have moved.
#[tokio::test]
async fn removed_cluster_is_kept_while_it_is_requested() {
    const BOTH: &[&str] = &["old", "new"];
    let (server, version, mut client) = moved_meanwhile(Asks::Names(&["old"])).await;
    ask_again(&client, CDS, &["old"], &version).await;
    ask_again(&client, RDS, &["r"], "1").await;
    let clusters = client.next().await;
    assert_eq!(bodies(&clusters), ["old"]);
    client.ack(&clusters, &["old"]).await;
    let routes = client.next().await;
    assert_eq!(bodies(&routes), ["to new"]);
    client.ack(&routes, &["r"]).await;
    client.ack(&clusters, BOTH).await;
    let clusters = client.next().await;
    assert_eq!(bodies(&clusters), ["new", "old"]);
    client.ack(&clusters, &["new"]).await;
    // Clusters go before listeners.
    server.put(LDS, &[("l", "1")]);
    client.subscribe(LDS, &["l"]).await;
    let next = client.next().await;
    assert_eq!(next.type_url, LDS, "the client has unsubscribed from the old cluster itself");
}

/// SOTW-100, SOTW-105: a client receives only the current state if it has no version, or an invented one. A client of
/// another node ID may have received a known version from another replica (ADR 14).
#[tokio::test]
async fn client_without_known_version_gets_only_current_state() {
    let (server, version, fresh) = moved_meanwhile(Asks::All).await;
    let mut stranger = server.sotw(SOTW_ADS).await;
    stranger
        .send(DiscoveryRequest {
            type_url: CDS.into(),
            version_info: version,
            node: node("n2"),
            ..DiscoveryRequest::default()
        })
        .await;
    let liar = server.sotw(SOTW_ADS).await;
    ask_again(&liar, CDS, &[], "1-nobody").await;
    ask_again(&fresh, CDS, &[], "").await;
    for mut client in [fresh, liar] {
        assert_eq!(bodies(&client.next().await), ["new", "other"]);
    }
    let response = stranger.next().await;
    let received = bodies(&response);
    assert!(received.contains(&"new") && received.contains(&"other"), "{received:?}");
}
