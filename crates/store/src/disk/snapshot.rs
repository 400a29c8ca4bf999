//! A snapshot: an [`Image`], and its encoding.
//!
//! Within a replica, a snapshot is the image itself and costs nothing. For another replica, it is a
//! sequence of frames, which are encoded one at a time:
//!
//! ```text
//! "CHYSNAP1" │ frame: SnapshotHeader │ frame: SnapshotRecord … │ frame: SnapshotContent … │ frame: SnapshotTrailer
//! ```
//!
//! The content of earlier revisions is not in the image. The sender reads it from its database while it encodes, and the
//! receiver writes it to its own while it decodes. Both may drop old revisions meanwhile, so the trailer says from which
//! revision on the content is complete.

use std::{
    io,
    sync::{Arc, Weak},
};

use bytes::{Bytes, BytesMut};
use chancery_model::Revision;
use chancery_raft_proto::v1 as pb;
use openraft::alias::SnapshotOf;
use prost::Message;

use crate::{
    disk::{
        content_reader::ContentReader,
        database::Database,
        earlier_content::{ContentError, ContentRecords, EarlierContent},
        image::Image,
        loader::{LoadError, Loader},
        records::Record,
        tally::Tally,
    },
    format::{
        content::Replaced,
        frames::{FrameError, Frames, frame},
        raft::{SnapshotMeta, Types},
        raft_codec::{log_id_to_proto, stored_membership_to_proto},
        record::Family,
    },
};

/// The content of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotData {
    pub(crate) image: Arc<Image>,
    /// The content of earlier revisions; `None` in a snapshot that was received, whose content is in the database.
    pub(crate) content: Option<ContentReader>,
}

/// Whether a snapshot is encoded with the content of earlier revisions. An older release cannot decode it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    Include,
    Omit,
}

/// A snapshot with Raft's description.
pub(crate) type Snapshot = SnapshotOf<Types, SnapshotData>;

const MAGIC: &[u8; 8] = b"CHYSNAP1";

/// The kinds of frames. The numbers never change their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Header = 1,
    Record = 2,
    Trailer = 3,
    /// Occurs only before a snapshot: the header of a backup.
    Backup = 4,
    Content = 5,
}

/// The reason why bytes are not a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The bytes do not start like a snapshot.
    #[error("it does not start with {:?}", str::from_utf8(MAGIC).unwrap_or_default())]
    Magic,
    /// A frame is damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The snapshot is truncated.
    #[error(
        "it is truncated after {frames} whole frames, at byte {offset}: its trailer is missing"
    )]
    Short {
        /// The number of whole frames.
        frames: u64,
        /// The end of these frames.
        offset: u64,
    },
    /// Bytes follow the trailer.
    #[error("it continues after its trailer, at byte {offset}")]
    Long {
        /// The end of the trailer.
        offset: u64,
    },
    /// The snapshot does not contain the records that were written.
    #[error(
        "it has {} records with the sum {:016x}, but its trailer says {} with the sum {:016x}",
        .found.records, .found.sum, .written.records, .written.sum
    )]
    Tally {
        /// The tally of its records.
        found: Tally,
        /// The tally in its trailer.
        written: Tally,
    },
    /// The records do not form an image.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The content of an earlier revision is not complete.
    #[error("it has {found} of the {expected} records that revision {revision} replaced")]
    Content {
        revision: Revision,
        /// The number of records.
        found: u64,
        /// The number of records that the revision replaced.
        expected: u64,
    },
    /// The content of earlier revisions cannot be written.
    #[error("cannot write the content of earlier revisions: {0}")]
    Write(#[source] io::Error),
}

impl SnapshotData {
    /// Returns Raft's description of the snapshot.
    pub(crate) fn meta(&self) -> SnapshotMeta {
        let Image { applied, membership, .. } = &*self.image;
        SnapshotMeta { last_log_id: *applied, last_membership: membership.clone() }
    }

    /// Creates a snapshot without the content of earlier revisions.
    #[cfg(test)]
    pub(crate) fn without_content(image: Image) -> Self {
        Self { image: Arc::new(image), content: None }
    }

    /// Returns the encoding, frame by frame.
    pub(crate) fn encode(&self, contents: Contents) -> impl Iterator<Item = Bytes> + '_ {
        let image = &*self.image;
        let applied = image.applied_to_proto(0);
        let header = pb::SnapshotHeader {
            cluster_id: applied.cluster_id,
            incarnation: applied.incarnation,
            revision: applied.revision,
            last_log_id: image.applied.as_ref().map(log_id_to_proto),
            membership: Some(stored_membership_to_proto(&image.membership)),
            history_anchor: applied.history_anchor,
        };
        let records = image.records().map(|Record { family, key, record }| {
            let (key, value) = (Bytes::from(key), Bytes::from(record));
            frame(Kind::Record as u8, &pb::SnapshotRecord { family: family as u32, key, value })
        });
        let reader = self.content.as_ref().filter(|_| contents == Contents::Include);
        let mut content = reader.map(|reader| ContentRecords::new(reader, image));
        let mut trailer = Some(pb::SnapshotTrailer {
            records: applied.records,
            records_sum: applied.records_sum,
            content_from: 0,
        });
        let rest = std::iter::from_fn(move || {
            if let Some((key, value)) = content.as_mut().and_then(ContentRecords::next) {
                return Some(frame(Kind::Content as u8, &pb::SnapshotContent { key, value }));
            }
            let content_from = content.as_ref().map_or(0, |content| content.complete_from().0);
            let trailer = pb::SnapshotTrailer { content_from, ..trailer.take()? };
            Some(frame(Kind::Trailer as u8, &trailer))
        });
        [Bytes::from_static(MAGIC), frame(Kind::Header as u8, &header)]
            .into_iter()
            .chain(records)
            .chain(rest)
    }
}

/// Joins frames into pieces of equal size; the last one may be smaller.
pub(crate) fn pieces(
    mut frames: impl Iterator<Item = Bytes>,
    piece_bytes: usize,
) -> impl Iterator<Item = Bytes> {
    let mut piece = BytesMut::new();
    std::iter::from_fn(move || {
        while piece.len() < piece_bytes {
            match frames.next() {
                Some(frame) => piece.extend_from_slice(&frame),
                None if piece.is_empty() => return None,
                None => return Some(piece.split().freeze()),
            }
        }
        Some(piece.split_to(piece_bytes).freeze())
    })
}

/// Decodes a snapshot from pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    frames: Frames,
    begun: bool,
    header: Option<pb::SnapshotHeader>,
    content: Content,
    earlier: EarlierContent,
    trailer: Option<pb::SnapshotTrailer>,
}

/// The parts of a complete snapshot.
struct Whole {
    header: pb::SnapshotHeader,
    trailer: pb::SnapshotTrailer,
    content: Content,
    replaced: Vec<Replaced>,
}

/// The destination of the records.
#[derive(Debug)]
enum Content {
    /// The records form an image.
    Load(Box<Loader>),
    /// The records are counted.
    Check(Tally),
}

impl Default for Content {
    fn default() -> Self {
        Self::Load(Box::default())
    }
}

impl Decoder {
    /// Creates a decoder that continues after another reader of the same frames.
    pub(crate) fn after(frames: Frames) -> Self {
        Self { frames, ..Self::default() }
    }

    /// Creates a decoder that keeps nothing, for [`Decoder::check`] alone.
    pub(crate) fn checking_after(frames: Frames) -> Self {
        Self { frames, content: Content::Check(Tally::default()), ..Self::default() }
    }

    /// Writes the content of earlier revisions to `database`.
    pub(crate) fn writing_to(self, database: Weak<Database>) -> Self {
        Self { earlier: EarlierContent::writing_to(database), ..self }
    }

    /// Decodes the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.frames.push(bytes);
        if !self.begun {
            let Some(magic) = self.frames.take(MAGIC.len()) else { return Ok(()) };
            if magic != MAGIC[..] {
                return Err(SnapshotError::Magic);
            }
            self.begun = true;
        }
        while self.trailer.is_none()
            && let Some((kind, message)) = self.frames.next()?
        {
            self.on_frame(kind, message)?;
        }
        if self.trailer.is_some() && !self.frames.is_empty() {
            return Err(SnapshotError::Long { offset: self.frames.offset() });
        }
        Ok(())
    }

    fn on_frame(&mut self, kind: u8, message: Bytes) -> Result<(), SnapshotError> {
        let (frames, len) = (&self.frames, message.len());
        let damaged = |detail: &dyn std::fmt::Display| frames.damaged_last(len, detail);
        if self.header.is_none() {
            if kind != Kind::Header as u8 {
                return Err(damaged(&"it is not a header").into());
            }
            self.header = Some(pb::SnapshotHeader::decode(message).map_err(|e| damaged(&e))?);
        } else if kind == Kind::Record as u8 {
            let record = pb::SnapshotRecord::decode(message).map_err(|e| damaged(&e))?;
            let family = Family::from_number(record.family)
                .ok_or_else(|| damaged(&format_args!("it has family {}", record.family)))?;
            match &mut self.content {
                Content::Load(loader) => loader.add(family, &record.key, record.value)?,
                Content::Check(tally) => tally.add(&record.value),
            }
        } else if kind == Kind::Content as u8 {
            let pb::SnapshotContent { key, value } =
                pb::SnapshotContent::decode(message).map_err(|e| damaged(&e))?;
            self.earlier.add(&key, value).map_err(|error| match error {
                ContentError::Invalid(error) => damaged(&error).into(),
                ContentError::Write(error) => SnapshotError::Write(error),
            })?;
        } else if kind == Kind::Trailer as u8 {
            self.trailer = Some(pb::SnapshotTrailer::decode(message).map_err(|e| damaged(&e))?);
        } else {
            return Err(damaged(&format_args!("it has the unknown kind {kind}")).into());
        }
        Ok(())
    }

    /// Returns header, trailer and content if the snapshot is complete.
    fn whole(self) -> Result<Whole, SnapshotError> {
        let (frames, offset) = (self.frames.n_frames(), self.frames.offset());
        let (Some(header), Some(trailer)) = (self.header, self.trailer) else {
            return Err(SnapshotError::Short { frames, offset });
        };
        let replaced = self.earlier.finish().map_err(SnapshotError::Write)?;
        for (Replaced { revision, records: expected, .. }, found) in &replaced {
            if revision.0 > trailer.content_from && found != expected {
                let (revision, found, expected) = (*revision, *found, *expected);
                return Err(SnapshotError::Content { revision, found, expected });
            }
        }
        let replaced = replaced.into_iter().map(|(replaced, _)| replaced).collect();
        Ok(Whole { header, trailer, content: self.content, replaced })
    }

    /// Returns the snapshot if it is complete.
    pub(crate) fn finish(self) -> Result<SnapshotData, SnapshotError> {
        let Whole { header, trailer, content, replaced } = self.whole()?;
        let applied = pb::AppliedRecord {
            id: header.last_log_id,
            membership: header.membership,
            cluster_id: header.cluster_id,
            incarnation: header.incarnation,
            revision: header.revision,
            records: trailer.records,
            records_sum: trailer.records_sum,
            generation: 0,
            history_anchor: header.history_anchor,
            history_head: Bytes::new(),
            staged: false,
            content_from: trailer.content_from,
        };
        let mut loader = match content {
            Content::Load(loader) => *loader,
            // A checking decoder keeps no records, so loading fails for lack of records.
            Content::Check(_) => Loader::default(),
        };
        replaced.into_iter().for_each(|replaced| loader.add_replaced(replaced));
        Ok(SnapshotData { image: Arc::new(loader.finish(applied)?), content: None })
    }

    /// Checks that the snapshot is complete.
    pub(crate) fn check(self) -> Result<(), SnapshotError> {
        let Whole { trailer, content, .. } = self.whole()?;
        let written = Tally { records: trailer.records, sum: trailer.records_sum };
        match content {
            Content::Check(found) if found != written => {
                Err(SnapshotError::Tally { found, written })
            }
            Content::Check(_) | Content::Load(_) => Ok(()),
        }
    }
}
