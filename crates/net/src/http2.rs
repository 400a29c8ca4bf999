//! The frames of HTTP/2 (RFC 9113): a limit for frames without data, and the rejection of a client.
//!
//! HTTP/2 itself limits some floods (resets, headers without end, empty data). It does not limit PING,
//! SETTINGS, PRIORITY and others: each costs an answer or a check. Here each frame other than DATA
//! takes a token. Time returns tokens, and so do bytes written to the client, because a client that
//! receives much data sends many window updates.

use std::fmt;

use tokio::time::Instant;

use crate::bucket::Bucket;

/// The connection preface of a client (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEAD_BYTES: usize = 9;
/// A SETTINGS frame without settings.
const EMPTY_SETTINGS: [u8; HEAD_BYTES] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const DATA: u8 = 0;
const GOAWAY: u8 = 7;
/// HTTP/2 itself limits these frames.
const CONTINUATION: u8 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;
/// The number of bytes written to the client that allow one more frame. A small message with its frame
/// has about twice as many, and a client may update two windows for it.
const BYTES_PER_TOKEN: f64 = 32.0;

/// The limit of HTTP/2 frames without data on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRate {
    /// The sustained rate.
    pub per_second: u32,
    /// The number of frames that may arrive at once.
    pub burst: u32,
    /// The configuration key of the rate, if there is one.
    pub key: Option<&'static str>,
}

impl fmt::Display for FrameRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} frames without data per second", self.per_second)?;
        self.key.map_or(Ok(()), |key| write!(f, " ({key})"))
    }
}

/// Counts the frames without data of a connection.
#[derive(Debug)]
pub(crate) struct FrameLimit {
    rate: FrameRate,
    frames: Frames,
    bucket: Bucket,
}

/// Finds the headers of frames in the bytes that are read.
#[derive(Debug)]
struct Frames {
    /// The number of bytes until the next header.
    skip: usize,
    head: [u8; HEAD_BYTES],
    n_head: usize,
}

impl FrameLimit {
    pub(crate) fn new(rate: FrameRate) -> Self {
        let bucket = Bucket::new(rate.per_second, rate.burst);
        Self { rate, frames: Frames::new(), bucket }
    }

    pub(crate) fn rate(&self) -> FrameRate {
        self.rate
    }

    /// Returns whether the frames that start in these bytes are within the limit.
    pub(crate) fn allows(&mut self, bytes: &[u8]) -> bool {
        let n_frames = self.frames.count(bytes);
        n_frames == 0 || self.bucket.take(Instant::now(), n_frames)
    }

    /// Records that `n` bytes were written.
    pub(crate) fn on_written(&mut self, n: usize) {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 bytes")]
        self.bucket.give(n as f64 / BYTES_PER_TOKEN);
    }
}

impl Frames {
    fn new() -> Self {
        Self { skip: PREFACE.len(), head: [0; HEAD_BYTES], n_head: 0 }
    }

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

/// Returns a `GOAWAY` frame with `ENHANCE_YOUR_CALM` and a text. Clients log the text.
pub(crate) fn goaway(text: &str) -> Vec<u8> {
    // No stream was left unhandled, so the client must not retry any.
    goaway_after(i32::MAX, text)
}

/// Returns a `GOAWAY` frame for a connection whose last handled stream is `last_stream`.
fn goaway_after(last_stream: i32, text: &str) -> Vec<u8> {
    let text = &text.as_bytes()[..text.len().min(255)];
    let len = u8::try_from(8 + text.len()).unwrap_or(u8::MAX);
    let text = &text[..usize::from(len) - 8];
    let mut frame = vec![0, 0, len, GOAWAY, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&last_stream.to_be_bytes());
    frame.extend_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
    frame.extend_from_slice(text);
    frame
}

/// Returns all bytes for a rejected connection: empty settings, and the reason.
#[must_use]
pub fn refusal(text: &str) -> Vec<u8> {
    [EMPTY_SETTINGS.to_vec(), goaway(text)].concat()
}

/// Returns the same for a connection without a handled request. The client may repeat its requests elsewhere, and its
/// requests fail with the reason.
#[must_use]
pub fn refusal_of_requests(text: &str) -> Vec<u8> {
    [EMPTY_SETTINGS.to_vec(), goaway_after(0, text)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, len: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, len, kind, 0, 0, 0, 0, 0];
        frame.extend(vec![0x55; usize::from(len)]);
        frame
    }

    #[test]
    fn frame_count_is_independent_of_chunking() {
        let mut bytes = vec![b'P'; PREFACE.len()];
        for (kind, len) in
            [(4, 6), (1, 30), (DATA, 200), (DATA, 0), (CONTINUATION, 3), (6, 8), (3, 4)]
        {
            bytes.extend(frame(kind, len));
        }
        for size in 1..=bytes.len() {
            let mut frames = Frames::new();
            let n: usize = bytes.chunks(size).map(|chunk| frames.count(chunk)).sum();
            assert_eq!(n, 4, "in chunks of {size}");
        }
    }

    #[test]
    fn goaway_text_is_truncated_to_fit() {
        for len in [0, 1, 247, 248, 1000] {
            let frame = goaway(&"x".repeat(len));
            assert_eq!(usize::from(frame[2]) + HEAD_BYTES, frame.len(), "{len}");
        }
    }
}
