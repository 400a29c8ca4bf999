//! Many sinks of one collection of MCP, in one thread. Each sink has a stream and acknowledges every response.
//!
//! The first sink receives the full state. Every other sink resumes with the versions of the first one and receives an
//! empty incremental response. Full states for all sinks would be as large as the collection times the number of sinks.
//! The sinks resume one after the other, so that the server holds one list of versions at a time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use chancery_fleet_load::stream::{self, Requests, Responses, Target};
use chancery_proto::istio::mcp::v1alpha1::{RequestResources, SinkNode};
use prost::Message as _;
use tokio::sync::oneshot;

use crate::{
    resource::{COLLECTION, name_hash},
    stats::count,
    wildcard_clients::{Expected, Shared, WildcardClients},
};

const METHOD: &str = "/istio.mcp.v1alpha1.ResourceSource/EstablishResourceStream";
/// The maximum time for the first response of a sink, in a debug build on a busy machine.
const FIRST_RESPONSE: Duration = Duration::from_secs(120);
const PREFIX_BYTES: usize = 5;

/// Names and versions.
type Versions = BTreeMap<String, String>;

struct Sink {
    shared: Arc<Shared>,
    requests: Requests,
    /// `None` after the first response.
    start: Option<Start>,
}

/// The first response that a sink expects.
enum Start {
    /// The full state, whose versions the other sinks need.
    Full(oneshot::Sender<Versions>),
    /// An incremental response without resources.
    Resumed,
}

/// The fields of `istio.mcp.v1alpha1.Resources` that the sinks read. The resources stay encoded.
#[derive(Clone, PartialEq, prost::Message)]
struct Received {
    #[prost(bytes = "bytes", repeated, tag = "3")]
    resources: Vec<Bytes>,
    #[prost(string, repeated, tag = "4")]
    removed: Vec<String>,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(bool, tag = "6")]
    incremental: bool,
}

/// The field `metadata` of a resource.
#[derive(Clone, PartialEq, prost::Message)]
struct Head {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

/// The name and the version in the metadata of a resource.
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    version: String,
}

/// Opens `streams` streams, with `per_connection` on each connection. Returns when all sinks have acknowledged their
/// first response.
pub(crate) async fn connect(
    target: impl Into<Target>,
    streams: usize,
    per_connection: usize,
    expected: Expected,
) -> Result<WildcardClients> {
    let mut clients = WildcardClients::new(streams, expected);
    let target = target.into();
    let (mut connection, mut list) = (None, None);
    for n in 0..streams {
        let sender = match connection.take() {
            Some(sender) if n % per_connection.max(1) != 0 => sender,
            _ => clients.open_connection(target.clone()).await?,
        };
        let none: &[RequestResources] = &[];
        let (sender, mut requests, responses) =
            stream::open_with(sender, target.at, METHOD, none).await?;
        let (give, given) = oneshot::channel();
        let (start, versions) = match &list {
            None => (Start::Full(give), request(Versions::new())),
            Some(list) => (Start::Resumed, Bytes::clone(list)),
        };
        for piece in framed(n, versions)? {
            requests.send_bytes(piece)?;
        }
        let sink = Sink { shared: clients.shared(), requests, start: Some(start) };
        clients.spawn(sink.run(responses));
        clients.n_synced(count(n + 1), FIRST_RESPONSE).await.context("start a sink")?;
        if list.is_none() {
            list = Some(request(given.await.context("the first sink has no full state")?));
        }
        connection = Some(sender);
    }
    Ok(clients)
}

/// Returns the encoded first request, without the node.
fn request(versions: Versions) -> Bytes {
    let request = RequestResources {
        collection: COLLECTION.to_owned(),
        initial_resource_versions: versions,
        incremental: true,
        ..RequestResources::default()
    };
    request.encode_to_vec().into()
}

/// Adds the node and the prefix of gRPC to a request that all sinks share.
fn framed(n: usize, request: Bytes) -> Result<[Bytes; 2]> {
    let node = SinkNode { id: format!("loadtest-{n}"), ..SinkNode::default() };
    let node = RequestResources { sink_node: Some(node), ..RequestResources::default() };
    let len = node.encoded_len() + request.len();
    let mut head = BytesMut::new();
    head.put_u8(0);
    head.put_u32(u32::try_from(len).context("the request exceeds 4 GiB")?);
    node.encode(&mut head)?;
    Ok([head.freeze(), request])
}

/// Takes the next message from the received bytes, with its length on the wire.
fn next_message(received: &mut BytesMut) -> Result<Option<(Received, u64)>> {
    let Some(&[flag, a, b, c, d]) = received.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    ensure!(flag == 0, "a message is compressed");
    let len = usize::try_from(u32::from_be_bytes([a, b, c, d]))?;
    if received.len() < PREFIX_BYTES + len {
        return Ok(None);
    }
    received.advance(PREFIX_BYTES);
    let message = Received::decode(received.split_to(len).freeze())?;
    Ok(Some((message, count(PREFIX_BYTES + len))))
}

impl Sink {
    async fn run(mut self, responses: Responses) -> Result<()> {
        let mut received = BytesMut::new();
        let read = responses.read(|chunk| {
            received.extend_from_slice(chunk);
            while let Some((message, bytes)) = next_message(&mut received)? {
                self.requests.send(&RequestResources {
                    collection: COLLECTION.to_owned(),
                    response_nonce: message.nonce.clone(),
                    incremental: true,
                    ..RequestResources::default()
                })?;
                self.take(message, bytes)?;
            }
            Ok(())
        });
        read.await
    }

    /// Checks a response that has been acknowledged.
    fn take(&mut self, message: Received, bytes: u64) -> Result<()> {
        ensure!(message.removed.is_empty(), "a response removes names; none was expected");
        let heads = message.resources.into_iter().map(|resource| {
            let head = Head::decode(resource).context("decode the metadata of a resource")?;
            head.metadata.context("a resource has no metadata")
        });
        let heads = heads.collect::<Result<Vec<_>>>()?;
        let names = heads.iter().map(|head| name_hash(head.name.as_bytes()));
        let found =
            Expected { resources: count(heads.len()), names: names.fold(0, u64::wrapping_add) };
        self.shared.count(found.resources, bytes);
        match self.start.take() {
            None => {
                if !message.incremental {
                    self.shared.on_full_resend();
                }
                self.shared.on_change(found.resources, found.names);
                return Ok(());
            }
            Some(Start::Full(give)) => {
                let is_all = !message.incremental && found == self.shared.expected;
                ensure!(is_all, "the first response is not the full state of the collection");
                let versions = heads.into_iter().map(|head| (head.name, head.version));
                // The receiver is gone only if the run has failed.
                drop(give.send(versions.collect()));
            }
            Some(Start::Resumed) => {
                let is_empty = message.incremental && found.resources == 0;
                ensure!(is_empty, "a sink that resumes received resources again");
            }
        }
        self.shared.on_synced();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_taken_when_it_is_complete() {
        let message = Received { nonce: "7".to_owned(), ..Received::default() };
        let encoded = message.encode_to_vec();
        let mut sent = vec![0, 0, 0, 0, u8::try_from(encoded.len()).unwrap()];
        sent.extend_from_slice(&encoded);
        let mut received = BytesMut::new();
        for byte in &sent {
            assert_eq!(next_message(&mut received).unwrap(), None);
            received.put_u8(*byte);
        }
        received.extend_from_slice(&sent);
        for _ in 0..2 {
            let taken = next_message(&mut received).unwrap();
            assert_eq!(taken, Some((message.clone(), count(sent.len()))));
        }
        assert_eq!(next_message(&mut received).unwrap(), None);
        received.extend_from_slice(&[1, 0, 0, 0, 0]);
        assert!(next_message(&mut received).is_err());
    }

    #[test]
    fn request_in_pieces_has_the_node_and_the_versions() {
        let versions = Versions::from([("a/b".to_owned(), "1-2".to_owned())]);
        let [head, rest] = framed(3, request(versions.clone())).unwrap();
        let message = RequestResources::decode(head.slice(PREFIX_BYTES..).chain(rest)).unwrap();
        assert_eq!(message.sink_node.unwrap().id, "loadtest-3");
        assert_eq!((message.initial_resource_versions, message.incremental), (versions, true));
    }
}
