//! Habits of real clients on a connection, and the unsupported parts of the protocol.

use bytes::Bytes;
use chancery_model::types;
use chancery_proto::{
    discovery::{DeltaDiscoveryRequest, DiscoveryRequest},
    node::Node,
};
use prost::Message;
use tonic::Code;

use crate::support::*;

/// SVC-03, SVC-12, SVC-13, SVC-26, CLI-G-26: the path decides. Services of v2, the method names of 2018
/// and the misspelled names of the documentation are rejected with a message, whatever the requested
/// type.
#[tokio::test]
async fn paths_of_other_versions_are_not_served() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    for path in [
        "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources",
        "/envoy.service.discovery.v2.AggregatedDiscoveryService/DeltaAggregatedResources",
        "/envoy.service.discovery.v2.SecretDiscoveryService/StreamSecrets",
        "/envoy.api.v2.ClusterDiscoveryService/StreamClusters",
        "/envoy.api.v2.ClusterDiscoveryService/IncrementalClusters",
        "/envoy.service.discovery.v3.AggregatedDiscoveryService/IncrementalAggregatedResources",
        "/envoy.service.cluster.v3.ClusterDiscoveryService/IncrementalClusters",
        "/envoy.service.route.v3.ScopedRouteDiscoveryService/StreamScopedRoutes",
        "/envoy.service.route.v3.VirtualHostDiscoveryService/StreamVirtualHosts",
    ] {
        let refused = Sotw::open(server.channel().await, path).await.err().expect(path);
        assert_eq!(refused.code(), Code::Unimplemented, "{path}: {refused}");
        let method = path.rsplit('/').next().unwrap();
        assert!(refused.message().contains(method), "{path}: {refused}");
    }
}

/// SVC-01, SVC-03, SVC-05, SVC-07, SVC-17: each method of each service serves its type, whether or not
/// the request names it. Every response names the type, including an empty one.
#[tokio::test]
async fn each_method_serves_its_type() {
    let server = Server::start().await;
    let mut served = 0;
    for known in &types::KNOWN {
        let Some(service) = &known.service else { continue };
        // There are few paths, and each lives as long as the test process.
        let path = |method: &str| -> &'static str {
            Box::leak(format!("/{}/{method}", service.name).into_boxed_str())
        };
        let mut delta = server.delta(path(service.delta)).await;
        delta.subscribe("", &["there", "missing"]).await;
        let absent = delta.next().await;
        assert_eq!(absent.type_url, known.url);
        delta.ack(&absent).await;
        let mut sotw = match service.sotw {
            Some(method) => Some(server.sotw(path(method)).await),
            None => None,
        };
        if let Some(sotw) = &mut sotw {
            sotw.subscribe(known.url, &["there", "missing"]).await;
            if known.full_state {
                let empty = sotw.next().await;
                assert_eq!((empty.type_url.as_str(), empty.resources.len()), (known.url, 0));
                sotw.ack(&empty, &["there", "missing"]).await;
            }
        }
        server.put(known.url, &[("there", "body")]);
        let response = delta.next().await;
        assert_eq!((response.type_url.as_str(), names(&response)), (known.url, vec!["there"]));
        if let Some(sotw) = &mut sotw {
            let response = sotw.next().await;
            assert_eq!((response.type_url.as_str(), bodies(&response)), (known.url, vec!["body"]));
        }
        served += 1;
    }
    assert_eq!(served, 10);
}

/// SVC-13, SVC-15, SVC-17: a path of v3 sends v3 responses, whatever the requested type. A type of v2
/// has only the resources that were stored under it.
#[tokio::test]
async fn a_v2_type_is_answered_in_v3() {
    const V2_CLUSTER: &str = "type.googleapis.com/envoy.api.v2.Cluster";
    let server = Server::start().await;
    server.put(CDS, &[("a", "three")]);
    server.put(V2_CLUSTER, &[("a", "two")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(V2_CLUSTER, &["a"]).await;
    let response = client.next().await;
    assert_eq!((response.type_url.as_str(), bodies(&response)), (V2_CLUSTER, vec!["two"]));
    assert!(response.resources.iter().all(|any| any.type_url == V2_CLUSTER));
}

/// SVC-04, SVC-07, SVC-14, SVC-15, SVC-17: each method of v2 serves its own type if v2 is enabled, only
/// from the resources stored under it, and under its own type URL.
#[tokio::test]
async fn v2_services_serve_only_v2_resources() {
    let config = chancery_xds::Config { v2_services: true, ..chancery_xds::Config::default() };
    let server = Server::with(config, fanout_config()).await;
    for known in &types::KNOWN {
        server.put(known.url, &[("a", "three")]);
    }
    for known in &types::V2 {
        server.put(known.url, &[("a", "two")]);
    }
    for known in &types::V2 {
        let service = known.service.as_ref().unwrap();
        // There are few paths, and each lives as long as the test process.
        let path = |method: &str| -> &'static str {
            Box::leak(format!("/{}/{method}", service.name).into_boxed_str())
        };
        let mut delta = server.delta(path(service.delta)).await;
        delta.subscribe("", &["a"]).await;
        let response = delta.next().await;
        assert_eq!((response.type_url.as_str(), names(&response)), (known.url, vec!["a"]));
        let Some(method) = service.sotw else { continue };
        let mut sotw = server.sotw(path(method)).await;
        let asked: &[&str] = if known.wildcard { &[] } else { &["a"] };
        sotw.subscribe(known.url, asked).await;
        let response = sotw.next().await;
        assert_eq!((response.type_url.as_str(), bodies(&response)), (known.url, vec!["two"]));
        assert!(response.resources.iter().all(|any| any.type_url == known.url));
    }
    // SVC-14: the type in the request selects the version, not the transport.
    const V2_ADS: &str =
        "/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources";
    let mut client = server.sotw(V2_ADS).await;
    client.subscribe(CDS, &[]).await;
    let response = client.next().await;
    assert_eq!((response.type_url.as_str(), bodies(&response)), (CDS, vec!["three"]));
}

/// DELTA-74, SVC-05: delta is not served by REST, and delta-only types are not served by REST.
#[tokio::test]
async fn rest_does_not_serve_delta() {
    let server = Server::start().await;
    for path in [
        "/v3/discovery:virtual_hosts",
        "/v3/discovery:locality_endpoints",
        "/v3/delta_discovery:clusters",
        "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters",
    ] {
        let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        let request = http::Request::post(format!("http://chancery{path}"))
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        let mut client = client.ready().await.unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let status = tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap().status();
        assert!(status.is_client_error(), "{path}: {status}");
        connection.abort();
    }
}

/// DELTA-02, SOTW-02, SOTW-03, SOTW-06, SVC-09: delta has the same rules for the client's identity and
/// for the type.
#[tokio::test]
async fn delta_has_the_same_rules_for_node_and_type() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    let request = |type_url: &str, id: Option<&str>| DeltaDiscoveryRequest {
        type_url: type_url.into(),
        node: id.and_then(node),
        ..DeltaDiscoveryRequest::default()
    };
    for (first, text) in [
        (request(CDS, None), "has to carry a node"),
        (request(CDS, Some("")), "node.id is empty"),
        (request("", Some("n1")), "type_url is empty"),
    ] {
        let mut client = server.delta(DELTA_ADS).await;
        client.send(first).await;
        let status = client.end().await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(text), "{status}");
    }
    let mut client = server.delta(DELTA_ADS).await;
    client.send(request(CDS, Some("n1"))).await;
    let first = client.next().await;
    client.ack(&first).await;
    client.send(request(EDS, None)).await;
    server.put(CDS, &[("b", "1")]);
    assert_eq!(names(&client.next().await), ["b"]);
    client.send(request(EDS, Some("n2"))).await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("\"n1\"") && status.message().contains("\"n2\""), "{status}");
}

/// Creates a node as large as Envoy's, with unknown features. Returns it with its bytes, which have
/// fields that our type does not have.
fn large_node() -> (Node, Bytes) {
    let extensions = (0..516).flat_map(|n| {
        // `extensions` (9): a message with a name.
        let name = format!("envoy.filters.of.some.kind.number_{n}_{}", "x".repeat(70));
        let inner = Node { id: name, ..Node::default() }.encode_to_vec();
        let mut field = vec![0x4a];
        prost::encoding::encode_varint(u64::try_from(inner.len()).unwrap(), &mut field);
        field.extend(inner);
        field
    });
    let known = Node {
        id: "large".into(),
        cluster: "test".into(),
        client_features: vec![
            "envoy.lb.does_not_support_overprovisioning".into(),
            "xds.config.resource-in-sotw".into(),
            "xds.config.supports-resource-ttl".into(),
            "example.of.a.feature.that.nobody.knows".into(),
        ],
        ..Node::default()
    };
    let bytes: Vec<u8> = known.encode_to_vec().into_iter().chain(extensions).collect();
    assert!(bytes.len() > 50_000, "{}", bytes.len());
    (known, bytes.into())
}

/// CLI-E-05, CLI-E-41, CLI-G-05, CLI-G-19, SOTW-02, SVC-19: Envoy sends a large node with each request,
/// and gRPC with the first only. Both are served alike, and unknown features have no effect.
#[tokio::test]
async fn node_may_be_sent_in_every_request_or_only_the_first() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "0")]);
    let (known, bytes) = large_node();
    for always in [true, false] {
        let mut client = server.sotw(SOTW_ADS).await;
        let mut request = DiscoveryRequest {
            type_url: CDS.into(),
            node: Some(bytes.clone()),
            ..DiscoveryRequest::default()
        };
        client.send(request.clone()).await;
        for n in 1..10 {
            let response = client.next().await;
            assert_eq!(response.resources.len(), 1);
            request.node = always.then(|| bytes.clone());
            request.version_info = response.version_info;
            request.response_nonce = response.nonce;
            client.send(request.clone()).await;
            server.put(CDS, &[("a", &format!("{always}{n}"))]);
        }
        client.next().await;
        let nodes = server.fanout.nodes().await;
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].node.id, known.id);
        assert_eq!(nodes[0].node.client_features, known.client_features);
        drop(client);
        server.until_no_stream().await;
    }
}

/// ADS-27, ADS-02, CLI-G-25: a stream is SotW or delta. One node may have several streams of both
/// kinds, and they are separate clients.
#[tokio::test]
async fn one_node_may_have_streams_of_both_variants() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1"), ("b", "1")]);
    let mut sotw = server.sotw(SOTW_ADS).await;
    let mut delta = server.delta(DELTA_ADS).await;
    let mut named = server.delta(DELTA_ADS).await;
    sotw.subscribe(CDS, &[]).await;
    delta.subscribe(CDS, &[]).await;
    named.subscribe(CDS, &["b"]).await;
    let whole = sotw.next().await;
    assert_eq!(bodies(&whole), ["1", "1"]);
    sotw.ack(&whole, &[]).await;
    let all = delta.next().await;
    assert_eq!(names(&all), ["a", "b"]);
    let one = named.next().await;
    assert_eq!(names(&one), ["b"]);
    named.ack(&one).await;
    assert_eq!(all.nonce, one.nonce, "each stream has its own nonces");

    // One stream does not answer, another ends, and the third is not affected.
    drop(named);
    server.put(CDS, &[("a", "2")]);
    assert_eq!(bodies(&sotw.next().await), ["1", "2"]);
    delta.ack(&all).await;
    assert_eq!(names(&delta.next().await), ["a"]);
}

/// CLI-E-43: keepalive pings are answered, however many there are, and close no connection.
#[tokio::test]
async fn frequent_pings_are_answered() {
    let server = Server::start().await;
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (client, mut connection) = h2::client::handshake(stream).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("http://chancery{DELTA_ADS}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let mut client = client.ready().await.unwrap();
    let (response, stream) = client.send_request(request, false).unwrap();
    let response = tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap();
    for n in 0..500 {
        let pong = tokio::time::timeout(PATIENCE, pings.ping(h2::Ping::opaque())).await;
        pong.unwrap_or_else(|_| panic!("no pong to ping {n}")).unwrap();
    }
    assert_eq!(server.fanout.n_streams(), 1);
    assert!(!connection.is_finished());
    drop((response, stream));
    server.until_no_stream().await;
}
