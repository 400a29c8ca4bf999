//! The Mesh Configuration Protocol over a real socket: sinks, and MCP over xDS as istiod requests it.

use bytes::Bytes;
use chancery_model::{ResourceDraft, Transaction, Upsert};
use chancery_proto::{
    discovery::{DiscoveryRequest, DiscoveryResponse},
    istio::mcp::v1alpha1::{self as pb, RequestResources, Resources},
    node::Node,
};
use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use tonic::Code;

use crate::support::*;

pub(crate) const SOURCE: &str = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";
const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";
/// Collections as istiod names them.
const VIRTUAL_SERVICE: &str = "networking.istio.io/v1alpha3/VirtualService";
const GATEWAY: &str = "networking.istio.io/v1alpha3/Gateway";
const MCP_RESOURCE: &str = "type.googleapis.com/istio.mcp.v1alpha1.Resource";

pub(crate) type Sink = Client<RequestResources, Resources>;

async fn sink(server: &Server) -> Sink {
    Client::open(server.channel().await, SOURCE).await.unwrap()
}

fn publish(server: &Server, collection: &str, resources: &[(&str, &str)]) {
    let upsert = |(name, text): &(&str, &str)| {
        let metadata = pb::Metadata {
            name: (*name).to_owned(),
            version: "of-the-author".to_owned(),
            ..pb::Metadata::default()
        };
        let type_url = "x.y/a.B".to_owned();
        let body = prost_types::Any { type_url, value: text.as_bytes().to_vec() };
        let body = pb::Resource { metadata: Some(metadata), body: Some(body) }.encode_to_vec();
        let draft = ResourceDraft::new(key(collection, name), Bytes::from(body));
        Upsert { scope: scope("default"), draft }
    };
    let upserts = resources.iter().map(upsert).collect();
    server.apply(&Transaction { upserts, ..Transaction::default() });
}

/// Returns the first request of a sink for its only collection.
pub(crate) fn request(id: &str) -> RequestResources {
    RequestResources {
        sink_node: Some(pb::SinkNode { id: id.to_owned(), ..pb::SinkNode::default() }),
        collection: SERVICES.to_owned(),
        incremental: true,
        ..RequestResources::default()
    }
}

pub(crate) fn ack(response: &Resources) -> RequestResources {
    let response_nonce = response.nonce.clone();
    RequestResources { sink_node: None, response_nonce, ..request("") }
}

/// Returns the name, the version and the text of a resource.
fn parts(resource: &pb::Resource) -> (&str, &str, &str) {
    let (metadata, body) = (resource.metadata.as_ref().unwrap(), resource.body.as_ref().unwrap());
    (&metadata.name, &metadata.version, std::str::from_utf8(&body.value).unwrap())
}

fn contents(response: &Resources) -> Vec<(&str, &str)> {
    let pair = |resource| {
        let (name, _, text) = parts(resource);
        (name, text)
    };
    response.resources.iter().map(pair).collect()
}

/// MCP-01, MCP-30, MCP-33, MCP-37, MCP-71: a sink receives the collection, then incremental responses, and resumes on
/// another stream. Another sink is independent of it.
#[tokio::test]
async fn sink_follows_a_collection_and_resumes() {
    let server = Server::start().await;
    publish(&server, SERVICES, &[("ns/a", "1"), ("ns/b", "1")]);
    let (mut first, mut other) = (sink(&server).await, sink(&server).await);
    first.send(request("istiod")).await;
    other.send(request("istiod")).await;
    let full = first.next().await;
    assert_eq!(contents(&full), [("ns/a", "1"), ("ns/b", "1")]);
    assert!(!full.incremental);
    first.send(ack(&full)).await;
    publish(&server, SERVICES, &[("ns/b", "2")]);
    let difference = first.next().await;
    assert_eq!((contents(&difference), difference.incremental), (vec![("ns/b", "2")], true));
    first.send(ack(&difference)).await;
    // The other sink has not acknowledged its first response.
    let full = other.next().await;
    assert_eq!(contents(&full), [("ns/a", "1"), ("ns/b", "1")]);
    server.delete(SERVICES, &["ns/a"]);
    let removal = first.next().await;
    assert_eq!(
        (contents(&removal).len(), &removal.removed_resources[..]),
        (0, &["ns/a".to_owned()][..])
    );
    other.send(ack(&full)).await;
    let merged = other.next().await;
    assert_eq!(contents(&merged), [("ns/b", "2")]);
    assert_eq!(merged.removed_resources, ["ns/a"]);

    let mut again = sink(&server).await;
    let mut resumed = request("istiod");
    for resource in full.resources.iter().chain(&merged.resources) {
        let (name, version, _) = parts(resource);
        resumed.initial_resource_versions.insert(name.to_owned(), version.to_owned());
    }
    again.send(resumed).await;
    let difference = again.next().await;
    assert!(difference.incremental && difference.resources.is_empty());
    assert_eq!(difference.removed_resources, ["ns/a"]);
}

/// MCP-20, MCP-25, MCP-26: the first request has the node, which no later one changes. A collection that is not served
/// ends the stream.
#[tokio::test]
async fn stream_needs_a_node_and_a_served_collection() {
    let server = Server::start().await;
    let mut anonymous = sink(&server).await;
    anonymous.send(request("")).await;
    let status = anonymous.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("sink_node.id is empty"), "{status}");
    let mut client = sink(&server).await;
    client.send(request("istiod")).await;
    let full = client.next().await;
    client.send(RequestResources { sink_node: request("other").sink_node, ..ack(&full) }).await;
    publish(&server, SERVICES, &[("ns/a", "1")]);
    assert_eq!(contents(&client.next().await), [("ns/a", "1")]);
    client.send(RequestResources { collection: CDS.to_owned(), ..request("istiod") }).await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("is not served here"), "{status}");
}

/// MCP-69: the limits of xDS apply to sinks.
#[tokio::test]
async fn limits_apply_to_sinks() {
    let config = chancery_xds::Config {
        node_metadata_max: 3,
        names_per_request_max: 2,
        ..chancery_xds::Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let entries = |n: usize| (0..n).map(|n| (n.to_string(), "v".to_owned())).collect();
    let mut client = sink(&server).await;
    let node = pb::SinkNode { id: "a".to_owned(), annotations: entries(4) };
    client.send(RequestResources { sink_node: Some(node), ..request("a") }).await;
    assert_eq!(client.end().await.code(), Code::ResourceExhausted);
    let mut client = sink(&server).await;
    client.send(RequestResources { initial_resource_versions: entries(3), ..request("a") }).await;
    assert_eq!(client.end().await.code(), Code::ResourceExhausted);
}

/// MCP-73: the drain of a replica ends the streams of sinks with UNAVAILABLE.
#[tokio::test]
async fn drain_ends_streams_of_sinks() {
    let server = Server::start().await;
    let mut client = sink(&server).await;
    client.send(request("istiod")).await;
    client.next().await;
    server.drain.cancel();
    assert_eq!(client.end().await.code(), Code::Unavailable);
}

/// Returns a request of istiod's client: an aggregated SotW stream, and a nonce in every request.
fn istiod_request(type_url: &str, nonce: &str, version: &str) -> DiscoveryRequest {
    let value = Value { kind: Some(Kind::StringValue("api".to_owned())) };
    let metadata = Struct { fields: [("GENERATOR".to_owned(), value)].into() };
    let node = Node {
        id: "sidecar~10.0.0.1~istiod.istio-system~cluster.local".to_owned(),
        metadata: Some(metadata),
        ..Node::default()
    };
    DiscoveryRequest {
        node: Some(node.encode_to_vec().into()),
        type_url: type_url.to_owned(),
        response_nonce: nonce.to_owned(),
        version_info: version.to_owned(),
        ..DiscoveryRequest::default()
    }
}

/// Returns the resources of a response, as istiod decodes them.
fn istiod_reads(response: &DiscoveryResponse) -> Vec<pb::Resource> {
    let read = |any: &chancery_proto::discovery::Any| {
        assert_eq!(any.type_url, MCP_RESOURCE);
        let resource = pb::Resource::decode(any.value.clone()).unwrap();
        assert_eq!(parts(&resource).0.split('/').count(), 2, "istiod rejects other names");
        resource
    };
    response.resources.iter().map(read).collect()
}

/// MCP-06: the first requests of istiod have an invented nonce. Each collection is answered, even if it is empty.
/// After a change, the full state has a new version of the changed resource only. A new stream begins with full
/// states.
#[tokio::test]
async fn istiod_receives_every_collection_that_it_requests() {
    let server = Server::start().await;
    publish(&server, VIRTUAL_SERVICE, &[("ns/a", "1"), ("/b", "1")]);
    let mut client = server.sotw(SOTW_ADS).await;
    for type_url in [VIRTUAL_SERVICE, GATEWAY] {
        client.send(istiod_request(type_url, "2026-11-23 20:00:00 +0000 UTC", "")).await;
    }
    let mut by_type = std::collections::BTreeMap::new();
    for _ in 0..2 {
        let response = client.next().await;
        client
            .send(istiod_request(&response.type_url, &response.nonce, &response.version_info))
            .await;
        by_type.insert(response.type_url.clone(), response);
    }
    let booted = istiod_reads(&by_type[VIRTUAL_SERVICE]);
    let text = |all: &[pb::Resource]| {
        all.iter().map(|one| format!("{}={}", parts(one).0, parts(one).2)).collect::<Vec<_>>()
    };
    assert_eq!(text(&booted), ["/b=1", "ns/a=1"]);
    assert!(by_type[GATEWAY].resources.is_empty());

    publish(&server, VIRTUAL_SERVICE, &[("ns/a", "2")]);
    let response = client.next().await;
    let updated = istiod_reads(&response);
    assert_eq!(text(&updated), ["/b=1", "ns/a=2"]);
    let version = |all: &[pb::Resource], at: usize| parts(&all[at]).1.to_owned();
    assert_eq!(version(&updated, 0), version(&booted, 0));
    assert_ne!(version(&updated, 1), version(&booted, 1), "istiod ignores an equal version");
    client.send(istiod_request(VIRTUAL_SERVICE, &response.nonce, &response.version_info)).await;

    server.delete(VIRTUAL_SERVICE, &["ns/a", "/b"]);
    let response = client.next().await;
    assert_eq!((response.type_url.as_str(), response.resources.len()), (VIRTUAL_SERVICE, 0));

    publish(&server, VIRTUAL_SERVICE, &[("ns/c", "1")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.send(istiod_request(VIRTUAL_SERVICE, "2026-11-23 21:00:00 +0000 UTC", "")).await;
    assert_eq!(text(&istiod_reads(&client.next().await)), ["ns/c=1"]);
}

/// MCP-65: the rejection of the trigger is no request, also in the form of older releases of Istio.
#[tokio::test]
async fn rejection_of_the_trigger_is_ignored() {
    let server = Server::start().await;
    publish(&server, SERVICES, &[("ns/a", "1")]);
    let mut sink = sink(&server).await;
    let unimplemented = chancery_proto::google::rpc::Status { code: 12, ..Default::default() };
    for trigger in ["$triggerCollection", ""] {
        sink.send(RequestResources {
            collection: trigger.to_owned(),
            error_detail: Some(unimplemented.clone()),
            ..RequestResources::default()
        })
        .await;
    }
    sink.send(request("istiod")).await;
    assert_eq!(contents(&sink.next().await), [("ns/a", "1")]);
}
