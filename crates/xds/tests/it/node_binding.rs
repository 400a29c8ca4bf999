//! The values that an access rule requires of a node, as clients send them.

use std::slice;

use bytes::Bytes;
use chancery_model::{AccessRule, Template, Variables};
use chancery_proto::{discovery::DeltaDiscoveryRequest, node::Node};
use prost::Message;
use prost_types::{ListValue, Struct, Value, value::Kind};
use tonic::Code;

use crate::{
    access::{Guarded, end_without_response, rule},
    support::*,
};

/// Returns a rule for nodes with the metadata `zone: a`.
fn bound() -> AccessRule {
    let mut bound = rule("r", &["default"], &[]);
    let variables = Variables { identities: &bound.identities, node: false };
    let zone = Template::parse("a", variables).unwrap();
    bound.node.metadata = [("zone".to_owned(), zone)].into();
    bound
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn list(values: Vec<Value>) -> Value {
    value(Kind::ListValue(ListValue { values }))
}

/// Encodes a node whose metadata has the key `zone` once for each value.
fn with_zones(id: &str, zones: &[Value]) -> Bytes {
    let part = |zone: &Value| {
        let fields = [("zone".to_owned(), zone.clone())].into();
        Node { metadata: Some(Struct { fields }), ..Node::default() }.encode_to_vec()
    };
    let node = Node { id: id.to_owned(), cluster: "test".to_owned(), ..Node::default() };
    // A decoder merges the parts of a message.
    let parts: Vec<Vec<u8>> = zones.iter().map(part).collect();
    [node.encode_to_vec(), parts.concat()].concat().into()
}

async fn open(guarded: &Guarded, node: Bytes) -> Delta {
    let stream = guarded.delta(DELTA_ADS, Some(&guarded.token)).await.unwrap();
    let request = DeltaDiscoveryRequest {
        type_url: CDS.into(),
        node: Some(node),
        ..DeltaDiscoveryRequest::default()
    };
    stream.send(request).await;
    stream
}

/// Attacks 14 and 15: a node without its ID, or whose bound metadata is missing, empty or not a scalar, receives
/// nothing. Of a key that is sent twice, the last value counts, as for every protobuf decoder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_its_bound_values_is_refused_before_any_response() {
    let guarded = Guarded::start(Some(bound())).await;
    let (a, b) = (text("a"), text("b"));
    for node in [with_zones("n1", slice::from_ref(&a)), with_zones("n1", &[b.clone(), a.clone()])] {
        let mut stream = open(&guarded, node).await;
        assert_eq!(names(&stream.next().await), ["a", "b"]);
    }
    let nested =
        value(Kind::StructValue(Struct { fields: [("zone".to_owned(), a.clone())].into() }));
    for zones in [
        vec![],
        vec![text("")],
        vec![b.clone()],
        vec![a.clone(), b],
        vec![list(vec![])],
        vec![list(vec![a.clone()])],
        vec![a.clone(), list(vec![a.clone()])],
        vec![nested],
        vec![value(Kind::NullValue(0))],
        vec![Value { kind: None }],
    ] {
        let status = end_without_response(open(&guarded, with_zones("n1", &zones)).await).await;
        assert_eq!(status.code(), Code::PermissionDenied, "{zones:?}: {status:?}");
    }
    for (id, code) in [("", Code::InvalidArgument), ("n2", Code::PermissionDenied)] {
        let node = with_zones(id, slice::from_ref(&a));
        let status = end_without_response(open(&guarded, node).await).await;
        assert_eq!(status.code(), code, "{id:?}: {status:?}");
    }
    let missing = end_without_response(open(&guarded, Bytes::new()).await).await;
    assert_eq!(missing.code(), Code::InvalidArgument, "{missing:?}");

    // The same node in a poll.
    let mut client = Http1::connect(&guarded.server).await;
    for (node, status) in [
        (r#"{"id": "n1", "metadata": {"zone": "a"}}"#, 200),
        (r#"{"id": "n1"}"#, 403),
        (r#"{"id": "n1", "metadata": {"zone": ""}}"#, 403),
        (r#"{"id": "n1", "metadata": {"zone": ["a"]}}"#, 403),
        (r#"{"id": "n1", "metadata": {"zone": "a", "zone": "b"}}"#, 403),
        (r#"{"id": "n2", "metadata": {"zone": "a"}}"#, 403),
        (r#"{"id": "", "metadata": {"zone": "a"}}"#, 400),
    ] {
        let poll = format!(r#"{{"node": {node}}}"#);
        let reply = client.post_as(REST_CDS, &poll, &guarded.token).await;
        assert_eq!(reply.status, status, "{node}: {:?}", String::from_utf8_lossy(&reply.body));
    }
}
