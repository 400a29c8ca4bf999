//! gRPC messages out of a request's body.
//!
//! A message that arrived in one piece is handed on as a slice of what the connection has read; only
//! one that spans frames is put together, in a buffer that grows with what has really arrived. An
//! idle stream holds no buffer.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;

/// A flag and a length of four bytes stand before each message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Why no message could be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The client went away, or reset the stream.
    #[error("the connection was lost")]
    Gone,
    /// The body ended inside a message.
    #[error("the request stream ended inside a message, after {have} of {expected} bytes")]
    Truncated { have: usize, expected: usize },
    /// OPS-12.
    #[error("a request of {len} bytes exceeds the limit of {max} bytes (request_bytes_max)")]
    TooLong { len: usize, max: usize },
    /// The message is compressed in a way that the headers declared.
    #[error("compressed requests are not supported; send grpc-encoding: identity")]
    Compressed,
    /// The message is marked as compressed, and the headers do not say how.
    #[error("a message is marked as compressed, but no grpc-encoding was declared")]
    Undeclared,
    /// The first byte of a message is neither 0 nor 1.
    #[error("a message has the flag {0}, only 0 and 1 are defined")]
    Flag(u8),
}

/// Whether the request's headers named an encoding other than identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Declared,
}

/// The messages of a request.
#[derive(Debug)]
pub(crate) struct Frames<B> {
    body: B,
    encoding: Encoding,
    message_bytes_max: usize,
    /// What has been read and not looked at.
    chunk: Bytes,
    /// The beginning of a message that spans chunks.
    partial: BytesMut,
}

impl<B: Body<Data = Bytes> + Unpin> Frames<B> {
    pub(crate) fn new(body: B, encoding: Encoding, message_bytes_max: usize) -> Self {
        let (chunk, partial) = (Bytes::new(), BytesMut::new());
        Self { body, encoding, message_bytes_max, chunk, partial }
    }

    /// The next message; `None` when the client has closed its half.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, FrameError>> {
        loop {
            if let Some(message) = self.take()? {
                return Poll::Ready(Ok(Some(message)));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.chunk = data;
                    }
                }
                Some(Err(_)) => return Poll::Ready(Err(FrameError::Gone)),
                None if self.partial.is_empty() => return Poll::Ready(Ok(None)),
                None => {
                    let have = self.partial.len();
                    let expected = self.expected(&self.partial)?.unwrap_or(PREFIX_BYTES);
                    return Poll::Ready(Err(FrameError::Truncated { have, expected }));
                }
            }
        }
    }

    /// A whole message out of what has been read. Otherwise the chunk is used up.
    fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.partial.is_empty() {
            if let Some(expected) = self.expected(&self.chunk)?
                && self.chunk.len() >= expected
            {
                let mut message = self.chunk.split_to(expected);
                message.advance(PREFIX_BYTES);
                return Ok(Some(message));
            }
            self.partial.extend_from_slice(&std::mem::take(&mut self.chunk));
            return Ok(None);
        }
        while !self.chunk.is_empty() {
            let expected = self.expected(&self.partial)?.unwrap_or(PREFIX_BYTES);
            let missing = expected.saturating_sub(self.partial.len()).min(self.chunk.len());
            self.partial.extend_from_slice(&self.chunk.split_to(missing));
            if let Some(expected) = self.expected(&self.partial)?
                && self.partial.len() == expected
            {
                let mut message = std::mem::take(&mut self.partial).freeze();
                message.advance(PREFIX_BYTES);
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Bytes of the message that begins here, prefix included; `None` while the prefix is not there.
    fn expected(&self, start: &[u8]) -> Result<Option<usize>, FrameError> {
        let Some(&[flag, a, b, c, d]) = start.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        match (flag, self.encoding) {
            (0, _) => {}
            (1, Encoding::Declared) => return Err(FrameError::Compressed),
            (1, Encoding::Identity) => return Err(FrameError::Undeclared),
            (flag, _) => return Err(FrameError::Flag(flag)),
        }
        let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let max = self.message_bytes_max;
        match len > max {
            true => Err(FrameError::TooLong { len, max }),
            false => Ok(Some(PREFIX_BYTES + len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use http_body::Frame;

    use super::*;

    struct Chunks(VecDeque<Bytes>);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|chunk| Ok(Frame::data(chunk))))
        }
    }

    fn read(bytes: &[u8], chunk: usize, max: usize) -> Result<Vec<Bytes>, FrameError> {
        let chunks = bytes.chunks(chunk).map(Bytes::copy_from_slice).collect();
        let mut frames = Frames::new(Chunks(chunks), Encoding::Identity, max);
        let mut messages = Vec::new();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        loop {
            let Poll::Ready(next) = frames.poll_next(&mut cx) else { panic!("it never waits") };
            match next? {
                Some(message) => messages.push(message),
                None => return Ok(messages),
            }
        }
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let bytes = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x01d";
        for chunk in 1..=bytes.len() {
            let messages = read(bytes, chunk, 3).unwrap();
            assert_eq!(messages, [&b"abc"[..], b"", b"d"], "in chunks of {chunk}");
        }
    }

    #[test]
    fn what_breaks_the_framing_is_told_apart() {
        let long = FrameError::TooLong { len: 4, max: 3 };
        assert_eq!(read(b"\0\0\0\0\x04", 1, 3), Err(long));
        assert_eq!(read(b"\x01\0\0\0\x01a", 2, 3), Err(FrameError::Undeclared));
        assert_eq!(read(b"\x02\0\0\0\x01a", 9, 3), Err(FrameError::Flag(2)));
        for chunk in 1..4 {
            let cut = FrameError::Truncated { have: 7, expected: 8 };
            assert_eq!(read(b"\0\0\0\0\x03ab", chunk, 3), Err(cut));
        }
        assert_eq!(read(b"\0\0", 2, 3), Err(FrameError::Truncated { have: 2, expected: 5 }));
    }
}
