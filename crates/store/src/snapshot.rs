//! A snapshot: an [`Image`], and the bytes it travels as.
//!
//! A snapshot within a replica is the image itself and costs nothing. For another replica it is a
//! sequence of frames, each shared as soon as it is made:
//!
//! ```text
//! "CHYSNAP1" │ frame: SnapshotHeader │ frame: SnapshotRecord … │ frame: SnapshotTrailer
//! frame = kind (1) │ length, little endian (4) │ XXH3-64 of kind and message (8) │ message
//! ```

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use chancery_proto::raft::v1 as pb;
use prost::Message;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    image::{Image, Record},
    loader::{LoadError, Loader},
    raft::SnapshotMeta,
    raft_codec::{log_id_to_proto, stored_membership_to_proto},
    record::Family,
};

/// The content of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotData(pub(crate) Arc<Image>);

const MAGIC: &[u8; 8] = b"CHYSNAP1";
const FRAME_HEADER_LEN: usize = 13;
/// Larger than any record: a transaction is limited to 1 GiB.
const FRAME_LEN_MAX: usize = (1 << 30) + (1 << 20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Header = 1,
    Record = 2,
    Trailer = 3,
}

/// Why bytes are not a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// They do not begin as one.
    #[error("it does not begin with {:?}", str::from_utf8(MAGIC).unwrap_or_default())]
    Magic,
    /// A frame is not what was sent.
    #[error("frame {frame} is damaged: {detail}")]
    Frame {
        /// Its number, from 0.
        frame: u64,
        /// What is wrong.
        detail: String,
    },
    /// It ends too early, or goes on after its end.
    #[error("it has {frames} whole frames, of which the last is not a trailer")]
    Length {
        /// Frames so far.
        frames: u64,
    },
    /// Its records do not make an image.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl SnapshotData {
    /// What Raft wants to know of it.
    pub(crate) fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.0.applied, last_membership: self.0.membership.clone() }
    }

    /// Its bytes, frame by frame.
    pub(crate) fn encode(&self) -> impl Iterator<Item = Bytes> + '_ {
        let image = &*self.0;
        let applied = image.applied_to_proto(0);
        let header = pb::SnapshotHeader {
            cluster_id: applied.cluster_id,
            incarnation: applied.incarnation,
            revision: applied.revision,
            last_log_id: image.applied.as_ref().map(log_id_to_proto),
            membership: Some(stored_membership_to_proto(&image.membership)),
        };
        let trailer =
            pb::SnapshotTrailer { records: image.tally.records, records_sum: image.tally.sum };
        let records = image.records().map(|Record { family, key, record }| {
            let (key, value) = (Bytes::from(key), Bytes::from(record));
            frame(Kind::Record, &pb::SnapshotRecord { family: family as u32, key, value })
        });
        [Bytes::from_static(MAGIC), frame(Kind::Header, &header)]
            .into_iter()
            .chain(records)
            .chain(std::iter::once_with(move || frame(Kind::Trailer, &trailer)))
    }
}

fn checksum(kind: u8, message: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[kind]);
    hash.update(message);
    hash.digest()
}

fn frame(kind: Kind, message: &impl Message) -> Bytes {
    let len = message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_LEN + len);
    frame.put_u8(kind as u8);
    frame.put_u32_le(u32::try_from(len).expect("a record is smaller than 4 GiB"));
    frame.put_u64_le(0);
    message.encode(&mut frame).expect("a buffer grows as needed");
    let checksum = checksum(kind as u8, &frame[FRAME_HEADER_LEN..]);
    frame[5..FRAME_HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    frame.freeze()
}

/// Puts a snapshot together from bytes in pieces of any size. Holds one frame at most.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: BytesMut,
    begun: bool,
    frames: u64,
    header: Option<pb::SnapshotHeader>,
    loader: Loader,
    trailer: Option<pb::SnapshotTrailer>,
}

impl Decoder {
    /// Takes the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.buffer.extend_from_slice(bytes);
        if !self.begun {
            if self.buffer.len() < MAGIC.len() {
                return Ok(());
            }
            if self.buffer.split_to(MAGIC.len()) != MAGIC[..] {
                return Err(SnapshotError::Magic);
            }
            self.begun = true;
        }
        while let Some((kind, message)) = self.next_frame()? {
            self.on_frame(kind, message)?;
            self.frames += 1;
        }
        Ok(())
    }

    fn damaged(&self, detail: impl ToString) -> SnapshotError {
        SnapshotError::Frame { frame: self.frames, detail: detail.to_string() }
    }

    fn next_frame(&mut self) -> Result<Option<(u8, Bytes)>, SnapshotError> {
        if self.buffer.len() < FRAME_HEADER_LEN {
            return Ok(None);
        }
        let mut header = &self.buffer[..FRAME_HEADER_LEN];
        let (kind, len, stored) = (header.get_u8(), header.get_u32_le(), header.get_u64_le());
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > FRAME_LEN_MAX {
            return Err(self.damaged(format!("its length is {len}, at most {FRAME_LEN_MAX}")));
        }
        if self.buffer.len() < FRAME_HEADER_LEN + len {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEADER_LEN);
        let message = self.buffer.split_to(len).freeze();
        if checksum(kind, &message) != stored {
            return Err(self.damaged("its checksum does not fit its content"));
        }
        Ok(Some((kind, message)))
    }

    fn on_frame(&mut self, kind: u8, message: Bytes) -> Result<(), SnapshotError> {
        if self.trailer.is_some() {
            return Err(SnapshotError::Length { frames: self.frames });
        }
        if self.header.is_none() {
            if kind != Kind::Header as u8 {
                return Err(self.damaged("it is not a header"));
            }
            let header = pb::SnapshotHeader::decode(message).map_err(|e| self.damaged(e))?;
            self.header = Some(header);
        } else if kind == Kind::Record as u8 {
            let record = pb::SnapshotRecord::decode(message).map_err(|e| self.damaged(e))?;
            let family = Family::from_number(record.family)
                .ok_or_else(|| self.damaged(format!("it has family {}", record.family)))?;
            self.loader.add(family, &record.key, record.value)?;
        } else if kind == Kind::Trailer as u8 {
            let trailer = pb::SnapshotTrailer::decode(message).map_err(|e| self.damaged(e))?;
            self.trailer = Some(trailer);
        } else {
            return Err(self.damaged(format!("it is of the unknown kind {kind}")));
        }
        Ok(())
    }

    /// The snapshot, if all of it has come.
    pub(crate) fn finish(self) -> Result<SnapshotData, SnapshotError> {
        let (Some(header), Some(trailer), true) =
            (self.header, self.trailer, self.buffer.is_empty())
        else {
            return Err(SnapshotError::Length { frames: self.frames });
        };
        let applied = pb::AppliedRecord {
            id: header.last_log_id,
            membership: header.membership,
            cluster_id: header.cluster_id,
            incarnation: header.incarnation,
            revision: header.revision,
            records: trailer.records,
            records_sum: trailer.records_sum,
            generation: 0,
        };
        Ok(SnapshotData(Arc::new(self.loader.finish(applied)?)))
    }
}
