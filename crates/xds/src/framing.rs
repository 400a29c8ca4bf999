//! Reads gRPC messages from the body of a request.
//!
//! A message that arrives in one piece is a slice of the bytes that the connection read. Only a message
//! that spans frames is copied, into a buffer that grows with the bytes that have arrived. An idle
//! stream has no buffer. A large message needs memory of the budget ([`MemoryBudget`]) for its buffer, and must
//! continue to arrive.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use chancery_fanout::limit_hit;
use futures::poll;
use http_body::Body;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::memory_budget::{BudgetShare, MemoryBudget};

/// The length of the prefix of each message: a flag, and a length of four bytes.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The size above which a message is large and needs memory of the budget.
const LARGE_BYTES: usize = 256 << 10;

/// The number of bytes that a large message may take outside the budget: about one frame.
const FREE_BYTES: usize = 16 << 10;

/// The number of bytes that are copied before other tasks run.
const COPY_BYTES: usize = 8 << 20;

/// The number of bytes of a large message that must arrive in each [`PROGRESS_PART`] of its time.
pub(crate) const PROGRESS_BYTES: usize = 64 << 10;

/// See [`PROGRESS_BYTES`].
pub(crate) const PROGRESS_PART: u32 = 10;

/// The reason why a message could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The client disconnected, or reset the stream.
    #[error("the connection was lost")]
    Gone,
    /// The body ended inside a message.
    #[error("the request stream ended inside a message, after {have} of {expected} bytes")]
    Truncated { have: usize, expected: usize },
    /// OPS-12.
    #[error("a request of {len} bytes exceeds the limit of {max} bytes (request_bytes_max)")]
    TooLong { len: usize, max: usize },
    /// The message holds memory for which others wait, and takes too long.
    #[error("a large request did not arrive within {} s (large_request_timeout)", limit.as_secs_f64())]
    Slow { limit: Duration },
    /// The message makes too little progress to arrive in time.
    #[error(
        "less than {PROGRESS_BYTES} bytes of a large request arrived within {} s (a tenth of \
         large_request_timeout)",
        limit.as_secs_f64()
    )]
    Stalled { limit: Duration },
    /// The message is compressed with the declared encoding.
    #[error("compressed requests are not supported; send grpc-encoding: identity")]
    Compressed,
    /// The message is marked as compressed, but the headers declare no encoding.
    #[error("a message is marked as compressed, but no grpc-encoding was declared")]
    Undeclared,
    /// The first byte of a message is neither 0 nor 1.
    #[error("a message has the flag {0}, only 0 and 1 are defined")]
    Flag(u8),
}

/// The encoding that the request's headers declare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Identity,
    Declared,
}

/// The bounds of the messages of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// The maximum length of a message in bytes.
    pub(crate) message_bytes_max: usize,
    /// The memory budget for the large messages of all streams.
    pub(crate) budget: MemoryBudget,
    /// The maximum time for a large message to arrive, excluding the time that it waits for memory.
    pub(crate) timeout: Duration,
}

/// A message with its part of the memory budget, to be held until the message has been used.
#[derive(Debug)]
pub(crate) struct Framed {
    pub(crate) message: Bytes,
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

/// The messages of a request.
#[derive(Debug)]
pub(crate) struct Frames<B> {
    body: B,
    encoding: Encoding,
    bounds: Bounds,
    /// Bytes that have been read but not parsed.
    chunk: Bytes,
    /// The start of a message that spans chunks.
    partial: BytesMut,
    /// The state of that message if it is large.
    large: Option<Large>,
}

/// A large message that is arriving.
#[derive(Debug)]
struct Large {
    held: Option<BudgetShare>,
    /// The number of its bytes that the held memory covers.
    covered: usize,
    /// The time by which it must be complete.
    until: Instant,
    /// The time by which [`PROGRESS_BYTES`] after `mark` must have arrived.
    progress_until: Instant,
    mark: usize,
    /// Whether it had to wait for memory.
    has_waited: bool,
}

impl<B: Body<Data = Bytes> + Unpin> Frames<B> {
    pub(crate) fn new(body: B, encoding: Encoding, bounds: Bounds) -> Self {
        let (chunk, partial) = (Bytes::new(), BytesMut::new());
        Self { body, encoding, bounds, chunk, partial, large: None }
    }

    /// Returns the next message; `None` when the client has closed its half of the stream.
    ///
    /// A large message is read only as far as memory is available. Beyond that, its client waits, like
    /// other clients whose large messages need more memory.
    pub(crate) async fn next(&mut self) -> Result<Option<Framed>, FrameError> {
        loop {
            if let Some(message) = self.take()? {
                let held = self.large.take().and_then(|large| large.held);
                let memory = match held {
                    Some(held) => Some(held.into_permit()),
                    // It was read outside the budget, and may now wait long for its shard.
                    None if message.len() > FREE_BYTES => {
                        Some(self.bounds.budget.queue(message.len()).await)
                    }
                    None => None,
                };
                return Ok(Some(Framed { message, memory }));
            }
            if !self.chunk.is_empty() {
                self.grow().await?;
                continue;
            }
            match self.frame().await? {
                Some(data) => self.chunk = data,
                None if self.partial.is_empty() => return Ok(None),
                None => {
                    let have = self.partial.len();
                    let expected = self.expected(&self.partial)?.unwrap_or(PREFIX_BYTES);
                    return Err(FrameError::Truncated { have, expected });
                }
            }
        }
    }

    /// Reads more of the body; `None` at its end.
    async fn frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
        let frame = match &self.large {
            None => frame.await,
            Some(large) => {
                let due = large.until.min(large.progress_until);
                match tokio::time::timeout_at(due, frame).await {
                    Ok(frame) => frame,
                    Err(_elapsed) if large.until <= large.progress_until => {
                        return Err(FrameError::Slow { limit: self.bounds.timeout });
                    }
                    Err(_elapsed) => {
                        let limit = self.bounds.timeout / PROGRESS_PART;
                        return Err(FrameError::Stalled { limit });
                    }
                }
            }
        };
        match frame {
            None => Ok(None),
            // Trailers are ignored.
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(_)) => Err(FrameError::Gone),
        }
    }

    /// Takes a complete message from the bytes that have been read. After `None`, either the chunk is
    /// used up, or a large message needs memory.
    fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.partial.is_empty()
            && let Some(expected) = self.expected(&self.chunk)?
        {
            if self.chunk.len() >= expected {
                let mut message = self.chunk.split_to(expected);
                message.advance(PREFIX_BYTES);
                return Ok(Some(message));
            }
            self.partial.reserve(self.chunk.len());
        }
        while !self.chunk.is_empty() {
            let expected = self.expected(&self.partial)?;
            if expected.is_some_and(|expected| expected > LARGE_BYTES) && self.large.is_none() {
                self.large = Some(Large::new(self.bounds.timeout));
            }
            let covered = self.large.as_ref().map_or(usize::MAX, |large| large.covered);
            let end = expected.unwrap_or(PREFIX_BYTES).min(covered);
            let fits = end.saturating_sub(self.partial.len()).min(self.chunk.len());
            if fits == 0 {
                return Ok(None);
            }
            self.partial.extend_from_slice(&self.chunk.split_to(fits));
            if let Some(large) = &mut self.large {
                large.on_progress(self.partial.len(), self.bounds.timeout);
            }
            if self.expected(&self.partial)? == Some(self.partial.len()) {
                let mut message = std::mem::take(&mut self.partial).freeze();
                message.advance(PREFIX_BYTES);
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Gets memory for twice the current size of the large message. The held memory is therefore at
    /// most twice the received bytes.
    async fn grow(&mut self) -> Result<(), FrameError> {
        let expected = self.expected(&self.partial)?;
        let (Some(large), Some(expected)) = (&mut self.large, expected) else {
            return Ok(());
        };
        let covered = large.covered.saturating_mul(2).min(expected);
        let since = Instant::now();
        let mut cover = pin!(self.bounds.budget.cover(&mut large.held, covered));
        if poll!(cover.as_mut()).is_pending() {
            if !std::mem::replace(&mut large.has_waited, true) {
                limit_hit("large_requests_bytes");
            }
            cover.await;
        }
        // The wait does not count, because the message could not progress.
        let waited = since.elapsed();
        large.until += waited;
        large.progress_until += waited;
        large.covered = covered;
        // The capacity is exactly the memory that is held.
        let mut grown = BytesMut::with_capacity(covered);
        for piece in self.partial.chunks(COPY_BYTES) {
            grown.extend_from_slice(piece);
            if piece.len() == COPY_BYTES {
                tokio::task::yield_now().await;
            }
        }
        self.partial = grown;
        Ok(())
    }

    /// Returns the length of the message at `start`, including its prefix; `None` while the prefix is
    /// incomplete.
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
        if len > max { Err(FrameError::TooLong { len, max }) } else { Ok(Some(PREFIX_BYTES + len)) }
    }
}

impl Large {
    fn new(timeout: Duration) -> Self {
        let now = Instant::now();
        let progress_until = now + timeout / PROGRESS_PART;
        Self {
            held: None,
            covered: FREE_BYTES,
            until: now + timeout,
            progress_until,
            mark: 0,
            has_waited: false,
        }
    }

    fn on_progress(&mut self, len: usize, timeout: Duration) {
        if len.saturating_sub(self.mark) >= PROGRESS_BYTES {
            self.mark = len;
            self.progress_until = Instant::now() + timeout / PROGRESS_PART;
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

    /// The behavior of a body after its chunks.
    #[derive(Clone, Copy)]
    enum Then {
        End,
        Nothing,
    }

    struct Chunks {
        chunks: VecDeque<Bytes>,
        then: Then,
        /// The delay before each chunk.
        pause: Duration,
        paused: Option<Pin<Box<tokio::time::Sleep>>>,
    }

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if !self.pause.is_zero() && !self.chunks.is_empty() {
                let pause = self.pause;
                let paused = self.paused.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
                std::task::ready!(paused.as_mut().poll(cx));
                self.paused = None;
            }
            match (self.chunks.pop_front(), self.then) {
                (Some(chunk), _) => Poll::Ready(Some(Ok(Frame::data(chunk)))),
                (None, Then::End) => Poll::Ready(None),
                (None, Then::Nothing) => Poll::Pending,
            }
        }
    }

    fn frames(bytes: &[u8], chunk: usize, bounds: &Bounds, then: Then) -> Frames<Chunks> {
        let chunks = bytes.chunks(chunk).map(Bytes::copy_from_slice).collect();
        let body = Chunks { chunks, then, pause: Duration::ZERO, paused: None };
        Frames::new(body, Encoding::Identity, bounds.clone())
    }

    /// Creates a budget for one message at a time and `more` further bytes.
    fn bounds(message_bytes_max: usize, more: usize) -> Bounds {
        // The reserve is rounded up.
        let budget = MemoryBudget::new(message_bytes_max + more + 1024, message_bytes_max);
        Bounds { message_bytes_max, budget, timeout: Duration::from_secs(60) }
    }

    fn message(len: usize) -> Vec<u8> {
        let mut message = vec![b'a'; PREFIX_BYTES + len];
        message[0] = 0;
        message[1..PREFIX_BYTES].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
        message
    }

    fn read(bytes: &[u8], chunk: usize, max: usize) -> Result<Vec<Bytes>, FrameError> {
        let mut frames = frames(bytes, chunk, &bounds(max, 0), Then::End);
        let mut messages = Vec::new();
        while let Some(framed) = frames.next().now_or_never().expect("the body never waits")? {
            messages.push(framed.message);
        }
        Ok(messages)
    }

    /// T8: the memory of all large requests together is bounded, and small requests do not wait.
    #[tokio::test]
    async fn large_message_waits_for_memory() {
        const LEN: usize = 600 << 10;
        let large = message(LEN);
        let bounds = bounds(1 << 20, 0);
        let mut first = frames(&large, 16 << 10, &bounds, Then::End);
        let mut second = frames(&large, 16 << 10, &bounds, Then::End);
        let held = first.next().now_or_never().expect("there is memory").unwrap().unwrap();
        assert_eq!(held.message.len(), LEN);
        assert!(second.next().now_or_never().is_none(), "there is no memory for two");
        assert!(second.partial.capacity() <= FREE_BYTES, "{} bytes", second.partial.capacity());
        let mut small = frames(b"\0\0\0\0\x01a", 9, &bounds, Then::End);
        assert_eq!(small.next().await.unwrap().unwrap().message, "a");
        drop(held);
        assert_eq!(second.next().await.unwrap().unwrap().message.len(), LEN);
        assert_eq!(bounds.budget.free(), (0, 1));
    }

    /// T8: a message takes memory for received bytes, and never less than its buffer holds.
    #[tokio::test]
    async fn announced_message_takes_memory_for_received_bytes_only() {
        const MIB: usize = 1 << 20;
        let large = message(8 * MIB);
        for sent in [PREFIX_BYTES, 100, FREE_BYTES, FREE_BYTES + 1, 100_000, MIB, 5 * MIB] {
            let bounds = bounds(8 * MIB, 16 * MIB);
            let (pool, _) = bounds.budget.free();
            let mut frames = frames(&large[..sent], 16 << 10, &bounds, Then::Nothing);
            assert!(frames.next().now_or_never().is_none());
            let taken = (pool - bounds.budget.free().0) * 1024;
            if sent <= FREE_BYTES {
                assert_eq!(taken, 0, "{sent} bytes");
            } else {
                assert!((sent..=2 * sent + 1024).contains(&taken), "{taken} for {sent} bytes");
                assert!(frames.partial.capacity() <= taken, "{} bytes", frames.partial.capacity());
            }
            drop(frames);
            assert_eq!(bounds.budget.free(), (pool, 1));
        }
    }

    /// OPS-17: more large messages arrive at a time than the memory allows; all of them complete.
    #[tokio::test(start_paused = true)]
    async fn messages_that_arrive_together_do_not_block_each_other() {
        const LEN: usize = 700 << 10;
        let large = message(LEN);
        let bounds = bounds(1 << 20, 1 << 20);
        let before = bounds.budget.free();
        let all = futures::future::join_all((0..30).map(|_| {
            let mut frames = frames(&large, 16 << 10, &bounds, Then::End);
            frames.body.pause = Duration::from_millis(10);
            async move { frames.next().await.map(|framed| framed.unwrap().message.len()) }
        }));
        let all =
            tokio::time::timeout(Duration::from_secs(3600), all).await.expect("messages are stuck");
        assert!(all.iter().all(|len| *len == Ok(LEN)), "{all:?}");
        assert_eq!(bounds.budget.free(), before);
    }

    /// T8: a message that holds memory must make progress.
    #[tokio::test(start_paused = true)]
    async fn stalled_large_message_is_rejected() {
        let bounds = bounds(8 << 20, 8 << 20);
        let before = bounds.budget.free();
        let large = message(8 << 20);
        for sent in [100, 100_000, 1 << 20] {
            let mut stalled = frames(&large[..sent], 16 << 10, &bounds, Then::Nothing);
            let since = Instant::now();
            let error = stalled.next().await.unwrap_err();
            assert_eq!(error, FrameError::Stalled { limit: Duration::from_secs(6) });
            assert!(since.elapsed() < Duration::from_secs(7), "{:?}", since.elapsed());
        }
        let mut slow = frames(&large, 16 << 10, &bounds, Then::End);
        slow.body.pause = Duration::from_secs(1);
        let since = Instant::now();
        let error = slow.next().await.unwrap_err();
        assert_eq!(error, FrameError::Slow { limit: bounds.timeout });
        assert_eq!(since.elapsed().as_secs(), 61, "60 s from its first chunk on");
        drop(slow);
        assert_eq!(bounds.budget.free(), before);
    }

    /// The time that a message waits for other messages does not count.
    #[tokio::test(start_paused = true)]
    async fn memory_wait_does_not_count_as_stall() {
        let large = message(600 << 10);
        let bounds = bounds(1 << 20, 0);
        let mut first = frames(&large, 16 << 10, &bounds, Then::End);
        let held = first.next().await.unwrap().unwrap();
        let mut second = frames(&large, 16 << 10, &bounds, Then::End);
        second.body.pause = Duration::from_millis(100);
        let free = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            drop(held);
        };
        let second = tokio::time::timeout(Duration::from_secs(900), second.next());
        let (second, ()) = futures::join!(second, free);
        let second = second.expect("the second message still waits");
        assert_eq!(second.unwrap().unwrap().message.len(), 600 << 10);
    }

    #[test]
    fn message_framing_is_independent_of_chunking() {
        let bytes = b"\0\0\0\0\x03abc\0\0\0\0\0\0\0\0\0\x01d";
        for chunk in 1..=bytes.len() {
            let messages = read(bytes, chunk, 3).unwrap();
            assert_eq!(messages, [&b"abc"[..], b"", b"d"], "in chunks of {chunk}");
        }
    }

    #[test]
    fn framing_errors_have_distinct_kinds() {
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
