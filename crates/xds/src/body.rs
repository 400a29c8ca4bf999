//! The response body of a stream.
//!
//! HTTP/2 receives the chunks of a message as shared bytes, without a copy. The body requests the next
//! message only after the last chunk has been taken, so each message has the newest state.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use chancery_fanout::{Delivery, End, EndCode, Poll as RunningPoll, ResponseSource};
use chancery_protocol::Message;
use futures::{FutureExt, StreamExt, future::AbortHandle, stream::BoxStream};
use http_body::{Body, Frame, SizeHint};

use crate::{
    connection::{PollRegistration, StreamRegistration},
    framing::PREFIX_BYTES,
    grpc,
    refusal_delays::Delay,
    rest::json::Encoded,
};

/// The length above which the last byte of a last chunk becomes a separate chunk.
///
/// HTTP/2 takes a chunk of any length as soon as it may write one byte, and then requests the next
/// chunk. It takes that one only when it may write again, after all bytes that it has. With a separate
/// last byte, the next message is therefore built only when all bytes before it can be sent. A shorter
/// chunk is about to be written anyway.
const LAST_CHUNK_BYTES_MAX: usize = 16 << 10;

/// The body of a response.
#[derive(Debug, Default)]
pub(crate) enum ResponseBody {
    /// No body: the headers contain the status.
    #[default]
    Empty,
    /// The messages of a stream, then its status.
    Stream(Box<StreamBody>),
    /// The delayed status of a stream that was not opened.
    Refused(Box<DelayedEnd>),
    /// The response to a poll.
    Json(Box<JsonBody>),
    /// The responses to load reports, then the status.
    LoadReports(LoadReportsBody),
    /// A short text.
    Text(Option<Bytes>),
}

/// The response to a poll. All polls with the same response share its bytes.
#[derive(Debug)]
pub(crate) struct JsonBody {
    encoded: Arc<Encoded>,
    /// The index of the next chunk.
    next: usize,
    /// The number of remaining bytes.
    left: u64,
    /// The poll runs until the response has been sent.
    _poll: RunningPoll,
    _registration: PollRegistration,
}

impl JsonBody {
    pub(crate) fn new(
        encoded: Arc<Encoded>,
        poll: RunningPoll,
        registration: PollRegistration,
    ) -> Self {
        let left = encoded.len;
        Self { encoded, next: 0, left, _poll: poll, _registration: registration }
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        let chunk = self.encoded.chunks.get(self.next)?.clone();
        self.next += 1;
        self.left = self.left.saturating_sub(chunk.len() as u64);
        Some(chunk)
    }
}

/// The messages of a stream. A reset or a lost connection drops it, which frees the stream.
#[derive(Debug)]
pub(crate) struct StreamBody {
    responses: ResponseSource,
    message: Option<Chunks>,
    state: State,
    /// The status of a refused stream, until its client may receive it.
    delayed: Option<Box<DelayedEnd>>,
    /// Stops the reader when the response has ended.
    reader: AbortHandle,
    /// The registration of the stream in its connection.
    registration: StreamRegistration,
}

/// The status of a refused stream. Its client receives it after a delay.
#[derive(Debug)]
pub(crate) struct DelayedEnd {
    delay: Delay,
    /// `None` after the client has received it.
    end: Option<End>,
}

/// The remaining chunks of a message.
#[derive(Debug)]
struct Chunks {
    message: Message,
    /// The number of remaining bytes.
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
    /// Adds the gRPC header, or returns `None` if the header cannot express the length.
    fn new(mut message: Message) -> Option<Self> {
        let len = u32::try_from(message.len()).ok()?;
        let mut prefix = [0; PREFIX_BYTES];
        // The first byte says that the message is not compressed.
        prefix[1..].copy_from_slice(&len.to_be_bytes());
        message.set_prefix(&prefix);
        Some(Self { left: PREFIX_BYTES + message.len(), message, last: None })
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
    pub(crate) fn new(
        responses: ResponseSource,
        reader: AbortHandle,
        registration: StreamRegistration,
    ) -> Self {
        Self { responses, message: None, state: State::Open, delayed: None, reader, registration }
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        loop {
            if self.state == State::Ended {
                return Poll::Ready(None);
            }
            if let Some(delayed) = &mut self.delayed {
                let frame = ready!(delayed.poll_frame(cx));
                self.state = State::Ended;
                return Poll::Ready(frame);
            }
            if let Some(chunk) = self.message.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Some(Frame::data(chunk)));
            }
            self.message = None;
            if self.responses.is_established() {
                self.registration.establish();
            }
            let end = match ready!(self.responses.poll_next(cx)) {
                Delivery::Message(message) => {
                    let len = message.len();
                    self.message = Chunks::new(message);
                    if self.message.is_some() {
                        continue;
                    }
                    tracing::error!(len, "a response is longer than the longest gRPC message");
                    End::new(
                        EndCode::ResourceExhausted,
                        format!(
                            "a response of {len} bytes cannot be sent: the longest gRPC message has {} \
                             bytes",
                            u32::MAX
                        ),
                    )
                }
                Delivery::End(end) => end,
            };
            self.reader.abort();
            match self.registration.delay(&end) {
                Some(delay) => self.delayed = Some(Box::new(DelayedEnd::new(delay, end))),
                None => {
                    self.state = State::Ended;
                    return Poll::Ready(Some(Frame::trailers(grpc::trailers(&end))));
                }
            }
        }
    }
}

impl DelayedEnd {
    pub(crate) fn new(delay: Delay, end: End) -> Self {
        Self { delay, end: Some(end) }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if self.end.is_some() {
            ready!(self.delay.poll_unpin(cx));
        }
        Poll::Ready(self.end.take().map(|end| Frame::trailers(grpc::trailers(&end))))
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// The responses of a stream of load reports. A reset or a lost connection drops it, which ends the
/// stream.
pub(crate) struct LoadReportsBody {
    frames: BoxStream<'static, Frame<Bytes>>,
    /// Stops the reader of the stream.
    reader: AbortHandle,
}

impl LoadReportsBody {
    pub(crate) fn new(frames: BoxStream<'static, Frame<Bytes>>, reader: AbortHandle) -> Self {
        Self { frames, reader }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        self.frames.poll_next_unpin(cx)
    }
}

impl Drop for LoadReportsBody {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl fmt::Debug for LoadReportsBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadReportsBody")
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
            Self::Refused(refused) => refused.poll_frame(cx).map(|frame| frame.map(Ok)),
            Self::Json(json) => Poll::Ready(json.next_chunk().map(|chunk| Ok(Frame::data(chunk)))),
            Self::LoadReports(reports) => reports.poll_frame(cx).map(|frame| frame.map(Ok)),
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Stream(stream) => stream.state == State::Ended,
            Self::Refused(refused) => refused.end.is_none(),
            Self::LoadReports(_) => false,
            Self::Json(json) => json.next >= json.encoded.chunks.len(),
            Self::Text(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Stream(_) | Self::Refused(_) | Self::LoadReports(_) => SizeHint::default(),
            Self::Json(json) => SizeHint::with_exact(json.left),
            Self::Text(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}
