//! Frames: the encoding of the messages in a snapshot and in a backup.
//!
//! ```text
//! kind (1) │ length, little endian (4) │ XXH3-64 of kind and message (8) │ message
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use xxhash_rust::xxh3::Xxh3;

const HEADER_LEN: usize = 13;
/// The maximum length of a message, in bytes. It exceeds any record: a transaction is limited to 1
/// GiB.
const LEN_MAX: usize = (1 << 30) + (1 << 20);

/// A damaged frame.
#[derive(Debug, thiserror::Error)]
#[error("frame {frame}, at byte {offset}: {detail}")]
pub(crate) struct FrameError {
    /// The number of the frame, from 0.
    pub(crate) frame: u64,
    /// The byte offset of the frame.
    pub(crate) offset: u64,
    /// The kind of damage.
    pub(crate) detail: String,
}

fn checksum(kind: u8, message: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[kind]);
    hash.update(message);
    hash.digest()
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEADER_LEN + len);
    frame.put_u8(kind);
    frame.put_u32_le(u32::try_from(len).expect("a record is smaller than 4 GiB"));
    frame.put_u64_le(0);
    message.encode(&mut frame).expect("a buffer grows as needed");
    let checksum = checksum(kind, &frame[HEADER_LEN..]);
    frame[5..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    frame.freeze()
}

/// A decoder that accepts bytes in pieces of any size, and returns frames. It holds one frame at
/// most.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: BytesMut,
    frames: u64,
    /// The offset of the start of the buffer.
    offset: u64,
}

impl Frames {
    /// Appends the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next `len` bytes if they have arrived.
    pub(crate) fn take(&mut self, len: usize) -> Option<BytesMut> {
        (self.buffer.len() >= len).then(|| self.split(len))
    }

    fn split(&mut self, len: usize) -> BytesMut {
        self.offset += len as u64;
        self.buffer.split_to(len)
    }

    /// Returns kind and message of the next frame if it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<(u8, Bytes)>, FrameError> {
        if self.buffer.len() < HEADER_LEN {
            return Ok(None);
        }
        let mut header = &self.buffer[..HEADER_LEN];
        let (kind, len, stored) = (header.get_u8(), header.get_u32_le(), header.get_u64_le());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > LEN_MAX {
            return Err(self.damaged(format!("its length is {len}, at most {LEN_MAX} is allowed")));
        }
        if self.buffer.len() < HEADER_LEN + len {
            return Ok(None);
        }
        if checksum(kind, &self.buffer[HEADER_LEN..HEADER_LEN + len]) != stored {
            return Err(self.damaged("its checksum does not match its content"));
        }
        let message = self.split(HEADER_LEN + len).freeze().slice(HEADER_LEN..);
        self.frames += 1;
        Ok(Some((kind, message)))
    }

    /// Returns the number of frames returned so far.
    pub(crate) fn n_frames(&self) -> u64 {
        self.frames
    }

    /// Returns the number of bytes consumed so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns whether no unread bytes remain.
    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns an error for the next frame.
    fn damaged(&self, detail: impl ToString) -> FrameError {
        FrameError { frame: self.frames, offset: self.offset, detail: detail.to_string() }
    }

    /// Returns an error for the frame that was returned last.
    pub(crate) fn damaged_last(&self, len: usize, detail: impl ToString) -> FrameError {
        let offset = self.offset.saturating_sub((HEADER_LEN + len) as u64);
        FrameError { frame: self.frames.saturating_sub(1), offset, detail: detail.to_string() }
    }
}
