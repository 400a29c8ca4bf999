//! A wrapper of a connection's socket that detects stalled clients and floods of frames without data.
//!
//! HTTP/2 itself limits some floods (resets, headers without end, empty data). It does not limit PING,
//! SETTINGS, PRIORITY and others: each costs an answer or a check. Here each frame other than DATA
//! takes a token. Time returns tokens, and so do bytes written to the client, because a client that
//! receives much data sends many window updates.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use crate::{Config, bucket::Bucket, connection::Connection};

/// The length of the connection preface of an HTTP/2 client.
const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const DATA: u8 = 0;
const GOAWAY: u8 = 7;
/// HTTP/2 itself limits these frames.
const CONTINUATION: u8 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;
/// The number of bytes written to the client that allow one more frame. A small message with its frame
/// has about twice as many, and a client may update two windows for it.
const BYTES_PER_TOKEN: f64 = 32.0;

/// The reason for cutting off a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Disconnect {
    /// The client accepted no data.
    #[error("the client has accepted no data for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// The client sent too many frames without data.
    #[error(
        "more than {per_second} frames without data per second (control_frames_per_second_max)"
    )]
    Flood { per_second: u32 },
}

/// A watched connection.
#[derive(Debug)]
pub(crate) struct GuardedIo<I> {
    io: I,
    /// The maximum time without progress of a pending write.
    patience: Duration,
    /// Runs while the client accepts no data.
    stalled: Option<Pin<Box<Sleep>>>,
    frames: Frames,
    bucket: Bucket,
    /// Whether the last write was complete, so that another frame may follow.
    is_whole: bool,
    connection: Arc<Connection>,
    /// The end of the client's bytes, held until the connection has moved to the threads for closing.
    ended: Option<io::Result<()>>,
}

/// Finds the headers of frames in the bytes that are read.
#[derive(Debug)]
struct Frames {
    /// The number of bytes until the next header.
    skip: usize,
    head: [u8; HEAD_BYTES],
    n_head: usize,
}

// === impl Watched ===

impl<I> GuardedIo<I> {
    pub(crate) fn new(io: I, connection: Arc<Connection>, config: &Config) -> Self {
        let (rate, burst) = (config.control_frames_per_second_max, config.control_frames_burst_max);
        Self {
            io,
            patience: config.keepalive_interval.saturating_add(config.keepalive_timeout),
            stalled: None,
            frames: Frames { skip: PREFACE_BYTES, head: [0; HEAD_BYTES], n_head: 0 },
            bucket: Bucket::new(rate, burst),
            is_whole: true,
            connection,
            ended: None,
        }
    }

    /// Handles the result of a write.
    fn on_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => {
                let patience = self.patience;
                let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
                match stalled.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Err(cut(Disconnect::Stalled(patience)))),
                    Poll::Pending => Poll::Pending,
                }
            }
            Poll::Ready(result) => {
                self.stalled = None;
                if let Ok(n) = result {
                    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 bytes")]
                    self.bucket.give(n as f64 / BYTES_PER_TOKEN);
                    self.is_whole = n == len;
                }
                Poll::Ready(result)
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> GuardedIo<I> {
    /// Sends the client the reason for the disconnection, if that is possible at once.
    fn send_goaway(&mut self, cx: &mut Context<'_>, why: Disconnect) {
        if self.is_whole {
            let frame = goaway(&why.to_string());
            // The connection ends, whether the frame arrives or not.
            drop(Pin::new(&mut self.io).poll_write(cx, &frame));
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for GuardedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(ended) = this.ended.take() {
            return Poll::Ready(ended);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        let is_over = match &read {
            Poll::Ready(Ok(())) => buf.filled().len() == before && buf.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if is_over && this.connection.begin_closing() {
            // HTTP/2 frees the connection's memory when it reads the end, so the end is delivered on
            // other threads.
            if let Poll::Ready(ended) = read {
                this.ended = Some(ended);
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let n_frames = this.frames.count(&buf.filled()[before..]);
        if n_frames > 0 && !this.bucket.take(Instant::now(), n_frames) {
            let why = Disconnect::Flood { per_second: this.bucket.per_second };
            this.send_goaway(cx, why);
            return Poll::Ready(Err(cut(why)));
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for GuardedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.on_write(cx, written, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.on_write(cx, written, bufs.iter().map(|buf| buf.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Returns a `GOAWAY` frame with `ENHANCE_YOUR_CALM` and a text. Clients log the text.
fn goaway(text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(255)];
    let len = u8::try_from(8 + text.len()).unwrap_or(u8::MAX);
    let text = &text[..usize::from(len) - 8];
    let mut frame = vec![0, 0, len, GOAWAY, 0, 0, 0, 0, 0];
    // No stream was left unhandled, so the client must not retry any.
    frame.extend_from_slice(&i32::MAX.to_be_bytes());
    frame.extend_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
    frame.extend_from_slice(text);
    frame
}

/// Returns all bytes for a rejected connection: empty settings, and the reason.
pub(crate) fn refusal(text: &str) -> Vec<u8> {
    const EMPTY_SETTINGS: [u8; HEAD_BYTES] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut bytes = EMPTY_SETTINGS.to_vec();
    bytes.extend_from_slice(&goaway(text));
    bytes
}

fn cut(why: Disconnect) -> io::Error {
    let kind = match why {
        Disconnect::Stalled(_) => io::ErrorKind::TimedOut,
        Disconnect::Flood { .. } => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, why)
}

// === impl Frames ===

impl Frames {
    /// Counts the frames that start in these bytes, except DATA and CONTINUATION frames.
    fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut n_frames = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let n = self.skip.min(bytes.len());
                self.skip -= n;
                bytes = &bytes[n..];
                continue;
            }
            let n = (HEAD_BYTES - self.n_head).min(bytes.len());
            self.head[self.n_head..self.n_head + n].copy_from_slice(&bytes[..n]);
            self.n_head += n;
            bytes = &bytes[n..];
            if self.n_head == HEAD_BYTES {
                let [a, b, c, kind, ..] = self.head;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.n_head = 0;
                n_frames += usize::from(!matches!(kind, DATA | CONTINUATION));
            }
        }
        n_frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Frames {
        Frames { skip: PREFACE_BYTES, head: [0; HEAD_BYTES], n_head: 0 }
    }

    fn frame(kind: u8, len: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, len, kind, 0, 0, 0, 0, 0];
        frame.extend(vec![0x55; usize::from(len)]);
        frame
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut bytes = vec![b'P'; PREFACE_BYTES];
        for (kind, len) in
            [(4, 6), (1, 30), (DATA, 200), (DATA, 0), (CONTINUATION, 3), (6, 8), (3, 4)]
        {
            bytes.extend(frame(kind, len));
        }
        for size in 1..=bytes.len() {
            let mut frames = frames();
            let n: usize = bytes.chunks(size).map(|chunk| frames.count(chunk)).sum();
            assert_eq!(n, 4, "in chunks of {size}");
        }
    }

    #[test]
    fn a_text_of_any_length_fits_into_a_goaway() {
        for len in [0, 1, 247, 248, 1000] {
            let frame = goaway(&"x".repeat(len));
            assert_eq!(usize::from(frame[2]) + HEAD_BYTES, frame.len(), "{len}");
        }
    }
}
