//! A SotW client that moves from one replica to another while a cluster is replaced.

use chancery_model::types::{CLUSTER, ROUTE};
use chancery_proto::discovery::{Any, DiscoveryRequest, DiscoveryResponse};
use prost::Message;
use tokio::runtime::Runtime;

use crate::{
    cluster::{Replica, eventually, joined},
    fleet_wait::Client,
    support::clusters,
};

/// A cluster, of which only the name is read.
#[derive(Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

/// A cluster, and a route table that refers to it.
fn manifest(cluster: &str) -> String {
    format!(
        "{}- \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n  name: main\n  virtual_hosts: [{{name: \
         all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]}}]\n",
        clusters(&[cluster], "1s")
    )
}

/// Makes a manifest the whole content of the scope.
fn publish(replica: &Replica, cluster: &str) {
    let done = replica.run(&["apply", "--prune", "-f", "-"], &manifest(cluster));
    assert_eq!(done.code, 0, "{done:?}");
}

async fn request(client: &Client, type_url: &str, version: &str, nonce: &str) {
    let names: &[&str] = if type_url == ROUTE { &["main"] } else { &[] };
    let request = DiscoveryRequest {
        type_url: type_url.to_owned(),
        version_info: version.to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    };
    client.requests.send(request).await.unwrap();
}

/// Reads the next response, checks its type, and accepts it.
async fn accept(client: &mut Client, type_url: &str) -> DiscoveryResponse {
    let response = client.read().await;
    assert_eq!(response.type_url, type_url, "{response:?}");
    request(client, type_url, &response.version_info, &response.nonce).await;
    response
}

/// Returns the names of the clusters of a response.
fn names(response: &DiscoveryResponse) -> Vec<String> {
    let name = |any: &Any| Named::decode(any.value.clone()).unwrap().name;
    response.resources.iter().map(name).collect()
}

/// ADS-08, ADS-09: a client ends its stream to a replica, and a write swaps its cluster. At another replica, which has
/// never sent it anything, the old cluster stays until the client has acknowledged the new routes. The old replica may be
/// gone.
#[test]
fn client_that_moves_to_another_replica_keeps_a_swapped_cluster_until_its_routes_are_accepted() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = joined(root.path());
    let runtime = Runtime::new().unwrap();
    publish(&replicas[0], "old");
    let (version, routes) = runtime.block_on(async {
        let mut client = Client::resume(&replicas[0], "moving", "").await;
        let clusters = accept(&mut client, CLUSTER).await;
        request(&client, ROUTE, "", "").await;
        let routes = accept(&mut client, ROUTE).await;
        (clusters.version_info, routes.version_info)
    });
    replicas[0].kill();
    eventually("another replica leads", || {
        let done = replicas[1].run(&["apply", "--prune", "-f", "-"], &manifest("new"));
        (done.code == 0).then_some(())
    });
    for replica in &replicas[1..] {
        runtime.block_on(async {
            let mut client = Client::resume(replica, "moving", &version).await;
            request(&client, ROUTE, &routes, "").await;
            assert_eq!(names(&accept(&mut client, CLUSTER).await), ["new", "old"]);
            let moved = client.read().await;
            assert_eq!(moved.type_url, ROUTE, "{moved:?}");
            request(&client, ROUTE, &moved.version_info, &moved.nonce).await;
            assert_eq!(names(&accept(&mut client, CLUSTER).await), ["new"]);
        });
    }
}
