//! The response of a stream, as the connection asks for it.
//!
//! A chunk of a message is handed to HTTP/2 as the shared bytes that it is; nothing is copied. The
//! next message is asked for when the last chunk has been handed over, and not before: that is what
//! makes it tell the newest state (design 4.6).

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use chancery_fanout::{Delivery, End, EndCode, Outlet};
use chancery_protocol::Message;
use futures::future::AbortHandle;
use http_body::{Body, Frame, SizeHint};

use crate::{connection::Place, grpc};

/// Longest message that the four bytes of its prefix can announce.
const MESSAGE_BYTES_MAX: usize = u32::MAX as usize;

/// HTTP/2 takes a chunk whatever its length as soon as it may write a byte, and asks for the next one at
/// once; that it takes when it may write again, after all that it has. So of a message whose last chunk
/// is longer than this, the last byte is a chunk of its own: it is taken, and the next message asked
/// for and built, when all before it can go out. A shorter one is about to be written anyway.
const LAST_CHUNK_BYTES_MAX: usize = 16 << 10;

/// What follows the response headers.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// Nothing: the headers say it all.
    Empty,
    /// A stream's messages, then its status.
    Stream(Box<StreamBody>),
}

/// A stream's messages. Dropping it, which a reset or a lost connection does, frees the stream.
#[derive(Debug)]
pub(crate) struct StreamBody {
    outlet: Outlet,
    message: Option<Chunks>,
    state: State,
    /// Stops the reader: a response that has ended leaves nobody who would read.
    reader: AbortHandle,
    /// The stream's place in its connection.
    place: Place,
}

/// The chunks of a message that are left.
#[derive(Debug)]
struct Chunks {
    message: Message,
    /// Bytes of them.
    left: usize,
    /// The last byte of a long last chunk.
    last: Option<Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Ended,
}

impl Chunks {
    fn new(message: Message) -> Self {
        Self { left: message.len(), message, last: None }
    }
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let Some(mut chunk) = self.message.next() else { return self.last.take() };
        self.left = self.left.saturating_sub(chunk.len());
        if self.left == 0 && chunk.len() > LAST_CHUNK_BYTES_MAX {
            self.last = Some(chunk.split_off(chunk.len() - 1));
        }
        Some(chunk)
    }
}

impl StreamBody {
    pub(crate) fn new(outlet: Outlet, reader: AbortHandle, place: Place) -> Self {
        Self { outlet, message: None, state: State::Open, reader, place }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        loop {
            if self.state == State::Ended {
                return Poll::Ready(None);
            }
            if let Some(chunk) = self.message.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Some(Frame::data(chunk)));
            }
            self.message = None;
            if self.outlet.has_arrived() {
                self.place.establish();
            }
            let end = match ready!(self.outlet.poll_next(cx)) {
                Delivery::Message(message) if message.len() <= MESSAGE_BYTES_MAX => {
                    self.message = Some(Chunks::new(message));
                    continue;
                }
                Delivery::Message(message) => {
                    let len = message.len();
                    tracing::error!(len, "a response is longer than a gRPC message can be");
                    End::new(
                        EndCode::ResourceExhausted,
                        format!(
                            "a response of {len} bytes can not be sent; the longest gRPC message has {MESSAGE_BYTES_MAX}"
                        ),
                    )
                }
                Delivery::End(end) => end,
            };
            self.state = State::Ended;
            self.reader.abort();
            return Poll::Ready(Some(Frame::trailers(grpc::trailers(&end))));
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Stream(stream) => stream.poll_frame(cx).map(|frame| frame.map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Stream(stream) => stream.state == State::Ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
