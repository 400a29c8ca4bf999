//! gRPC messages out of a request's body.
//!
//! A message that arrived in one piece is handed on as a slice of what the connection has read; only
//! one that spans frames is put together, in a buffer that grows with what has really arrived. An
//! idle stream holds no buffer.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// A flag and a length of four bytes stand before each message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// A message is large from here on: it needs room.
const LARGE_BYTES: usize = 256 << 10;

/// What room is counted in.
pub(crate) const ROOM_UNIT_BYTES: usize = 1024;

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
    /// It holds room that others wait for.
    #[error("a large request did not arrive within {} s (large_request_timeout)", limit.as_secs_f64())]
    Slow { limit: Duration },
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

/// Bounds of the messages of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// Longest message.
    pub(crate) message_bytes_max: usize,
    /// Room for large messages, of all streams together, in units of [`ROOM_UNIT_BYTES`].
    pub(crate) room: Arc<Semaphore>,
    /// How long a large message may take to arrive once it has room.
    pub(crate) timeout: Duration,
}

/// A message, and its room if it is a large one: to be held until the message has been used.
#[derive(Debug)]
pub(crate) struct Framed {
    pub(crate) message: Bytes,
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

/// The messages of a request.
#[derive(Debug)]
pub(crate) struct Frames<B> {
    body: B,
    encoding: Encoding,
    bounds: Bounds,
    /// What has been read and not looked at.
    chunk: Bytes,
    /// The beginning of a message that spans chunks.
    partial: BytesMut,
    /// The room of that message, and when it has to be complete.
    room: Option<(OwnedSemaphorePermit, Instant)>,
}

impl<B: Body<Data = Bytes> + Unpin> Frames<B> {
    pub(crate) fn new(body: B, encoding: Encoding, bounds: Bounds) -> Self {
        let (chunk, partial) = (Bytes::new(), BytesMut::new());
        Self { body, encoding, bounds, chunk, partial, room: None }
    }

    /// The next message; `None` when the client has closed its half.
    ///
    /// A large one is not read further than its first chunk before there is room for it: the client
    /// waits, and others with it that come with large ones, in the order of their coming.
    pub(crate) async fn next(&mut self) -> Result<Option<Framed>, FrameError> {
        loop {
            if let Some(message) = self.take()? {
                let room = self.room.take().map(|(room, _)| room);
                return Ok(Some(Framed { message, room }));
            }
            if let Some(expected) = self.expected(&self.partial)?
                && expected > LARGE_BYTES
                && self.room.is_none()
            {
                let units = u32::try_from(expected.div_ceil(ROOM_UNIT_BYTES)).unwrap_or(u32::MAX);
                let room = Arc::clone(&self.bounds.room).acquire_many_owned(units).await;
                let room = room.map_err(|_closed| FrameError::Gone)?;
                self.room = Some((room, Instant::now() + self.bounds.timeout));
            }
            let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
            let frame = match &self.room {
                None => frame.await,
                Some((_, until)) => match tokio::time::timeout_at(*until, frame).await {
                    Ok(frame) => frame,
                    Err(_elapsed) => {
                        return Err(FrameError::Slow { limit: self.bounds.timeout });
                    }
                },
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.chunk = data;
                    }
                }
                Some(Err(_)) => return Err(FrameError::Gone),
                None if self.partial.is_empty() => return Ok(None),
                None => {
                    let have = self.partial.len();
                    let expected = self.expected(&self.partial)?.unwrap_or(PREFIX_BYTES);
                    return Err(FrameError::Truncated { have, expected });
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
        let max = self.bounds.message_bytes_max;
        match len > max {
            true => Err(FrameError::TooLong { len, max }),
            false => Ok(Some(PREFIX_BYTES + len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        convert::Infallible,
        task::{Context, Poll},
    };

    use futures::FutureExt;
    use http_body::Frame;

    use super::*;

    /// Gives its chunks, and then its end or nothing more.
    struct Chunks {
        chunks: VecDeque<Bytes>,
        ends: bool,
    }

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.chunks.pop_front() {
                Some(chunk) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn frames(bytes: &[u8], chunk: usize, bounds: Bounds, ends: bool) -> Frames<Chunks> {
        let chunks = bytes.chunks(chunk).map(Bytes::copy_from_slice).collect();
        Frames::new(Chunks { chunks, ends }, Encoding::Identity, bounds)
    }

    fn bounds(message_bytes_max: usize) -> Bounds {
        let room = Arc::new(Semaphore::new(1000));
        Bounds { message_bytes_max, room, timeout: Duration::from_millis(50) }
    }

    fn read(bytes: &[u8], chunk: usize, max: usize) -> Result<Vec<Bytes>, FrameError> {
        let mut frames = frames(bytes, chunk, bounds(max), true);
        let mut messages = Vec::new();
        while let Some(framed) = frames.next().now_or_never().expect("it never waits")? {
            messages.push(framed.message);
        }
        Ok(messages)
    }

    /// T8: what large requests of all streams take together is bounded, and small ones do not wait.
    #[tokio::test]
    async fn a_large_message_waits_for_room_and_has_to_use_it() {
        const LEN: usize = 600 << 10;
        let mut large = vec![0; PREFIX_BYTES + LEN];
        large[1..PREFIX_BYTES].copy_from_slice(&u32::try_from(LEN).unwrap().to_be_bytes());
        let bounds = bounds(1 << 20);
        let mut first = frames(&large, 16 << 10, bounds.clone(), true);
        let mut second = frames(&large, 16 << 10, bounds.clone(), true);
        let held = first.next().now_or_never().expect("there is room").unwrap().unwrap();
        assert_eq!(held.message.len(), LEN);
        assert!(second.next().now_or_never().is_none(), "there is no room for two");
        assert!(second.partial.len() <= 16 << 10, "{} bytes are held", second.partial.len());
        let mut small = frames(b"\0\0\0\0\x01a", 9, bounds.clone(), true);
        assert_eq!(small.next().await.unwrap().unwrap().message, "a");
        drop(held);
        assert_eq!(second.next().await.unwrap().unwrap().message.len(), LEN);
        let mut slow = frames(&large[..100_000], 16 << 10, bounds.clone(), false);
        let error = slow.next().await.unwrap_err();
        assert_eq!(error, FrameError::Slow { limit: bounds.timeout });
        drop(slow);
        assert_eq!(bounds.room.available_permits(), 1000);
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
