//! Entry points for the fuzz targets of `fuzz/`: the decoders of client input, which are private.
//!
//! The limits are small, so that short inputs reach them. Each function panics if a decoder breaks its
//! contract. The caller measures the memory that a decoder takes. A function calls `decoded` before it
//! compares the result with that of another decoder, whose memory does not count.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use chancery_protocol::Protocol;
use futures::FutureExt;
use http_body::{Body, Frame};
use tokio::runtime::{Builder, Runtime};

use crate::{
    framing::{Bounds, Encoding, FrameError, Frames},
    memory_budget::MemoryBudget,
    node::{self, NodeReader},
    rest::request,
};

/// The maximum length of an input to which the small limits apply.
const SHORT_BYTES_MAX: usize = 8 << 10;
const NAMES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 256;
const NACK_MESSAGE_BYTES_MAX: usize = 64;
const NODE_BYTES_MAX: usize = 2048;
const NODE_METADATA_MAX: usize = 32;
/// The ratio of the default limits of a node: bytes for each scalar in its metadata.
const NODE_BYTES_PER_SCALAR: usize = 256;
const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// The number of messages that are read from a body. Further messages reach no further code.
const MESSAGES_MAX: usize = 500;
/// From this value on, the first byte of an input of [`framing`] repeats the rest often.
const OFTEN: u8 = 0xf0;

/// Returns a limit for an input. The limits of long inputs are as large as the inputs, so that the time for long lists
/// and values shows.
fn limit(of_short: usize, input: &[u8]) -> usize {
    if input.len() <= SHORT_BYTES_MAX { of_short } else { input.len() }
}

/// Reads the node of a decoded request. `message` is the whole request.
pub fn request_node(protocol: Protocol, message: &[u8], node: Option<Bytes>) {
    let mut reader = node_reader(message);
    match protocol {
        Protocol::Sotw | Protocol::Delta => drop(reader.read(node)),
        Protocol::Mcp => drop(reader.read_sink(node.unwrap_or_default())),
    }
}

/// Returns the limit of scalars in the metadata of a node. The limits of long inputs have the ratio of the default
/// limits, because a value takes more memory than its bytes.
fn metadata_max(input: &[u8]) -> usize {
    limit(NODE_METADATA_MAX * NODE_BYTES_PER_SCALAR, input) / NODE_BYTES_PER_SCALAR
}

fn node_reader(input: &[u8]) -> NodeReader {
    NodeReader::new(limit(NODE_BYTES_MAX, input), metadata_max(input))
}

/// Decodes a node twice, as a stream does. The repeated node is no change.
pub fn node(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let mut reader = node_reader(&bytes);
    if let Ok(node) = reader.read(Some(bytes.clone())) {
        assert!(node.is_some_and(|node| !node.id.is_empty()), "the first node is new");
        assert_eq!(reader.read(Some(bytes)), Ok(None));
    }
}

/// Decodes the body of a REST poll with its node.
pub fn rest_request(json: &[u8]) {
    let limits = request::Limits {
        names_max: limit(NAMES_MAX, json),
        name_bytes_max: limit(NAME_BYTES_MAX, json),
        node_bytes_max: limit(NODE_BYTES_MAX, json),
        node_values_max: 4 * metadata_max(json),
        nack_message_bytes_max: limit(NACK_MESSAGE_BYTES_MAX, json),
    };
    let Ok(request) = request::parse(json, &limits) else { return };
    assert!(
        request.names.iter().count() == request.names.len()
            && request.names.len() <= limits.names_max
    );
    assert!(request.error.is_none_or(|error| error.message.len() <= limits.nack_message_bytes_max));
    if let Some(node) = request.node {
        drop(node::of_poll(node, limits.node_bytes_max, metadata_max(json)));
    }
}

/// Reads gRPC messages from a body in pieces, and in one piece. Both give the same messages and the same
/// error. Returns the length of the body.
///
/// The first byte of the input repeats the rest, so that a short input describes a large message. Most values
/// repeat it at most 8 times, because long bodies take long. The next four bytes are the lengths of the pieces.
pub fn framing(input: &[u8]) -> usize {
    let Some((&[repeat, a, b, c, d], part)) = input.split_first_chunk() else { return 0 };
    let times = match repeat.checked_sub(OFTEN) {
        None => 1 + usize::from(repeat % 8),
        Some(more) => 16 * (1 + usize::from(more)),
    };
    let body = Bytes::from(part.repeat(times));
    let mut pieces = Vec::new();
    let mut rest = body.clone();
    for length in [a, b, c, d].into_iter().cycle() {
        if rest.is_empty() || pieces.len() > 400 {
            break;
        }
        // Empty pieces are allowed.
        pieces.push(rest.split_to((usize::from(length) * usize::from(length)).min(rest.len())));
        if [a, b, c, d] == [0; 4] {
            break;
        }
    }
    pieces.push(rest);
    let len = body.len();
    let whole = messages(vec![body]);
    assert_eq!(messages(pieces), whole);
    len
}

fn messages(pieces: Vec<Bytes>) -> (Vec<Bytes>, Option<FrameError>) {
    let budget = MemoryBudget::new(MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX);
    let timeout = Duration::from_secs(60);
    let bounds = Bounds { message_bytes_max: MESSAGE_BYTES_MAX, budget, timeout };
    let mut frames = Frames::new(Pieces(pieces.into_iter()), Encoding::Identity, bounds);
    let mut found = Vec::new();
    let read = async {
        while found.len() < MESSAGES_MAX {
            match frames.next().await {
                Ok(Some(framed)) => found.push(framed.message),
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
        None
    };
    let error = TIMER.with(|timer| {
        let _entered = timer.enter();
        read.now_or_never()
    });
    let error = error.expect("the body is complete, and there is memory");
    (found, error)
}

thread_local! {
    /// The timer of large messages. It never fires, because the body is complete.
    static TIMER: Runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
}

/// A body whose pieces have all arrived.
struct Pieces(std::vec::IntoIter<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }
}
