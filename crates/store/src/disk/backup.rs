//! A backup: a snapshot in a file, with a descriptive header.
//!
//! ```text
//! "CHYBACK1" │ frame: BackupHeader │ the bytes of a snapshot
//! ```
//!
//! Checksums cover every byte, so that a reader detects a truncated or changed file before it uses
//! the content.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use chancery_model::{Incarnation, Revision};
use chancery_raft_proto::v1 as pb;
use prost::Message;

use crate::{
    ClusterId, OpenError, ReadError,
    disk::{
        content_reader::ContentReader,
        database::Database,
        directory::{Directory, damaged},
        high_water::HighWater,
        image::Image,
        parts::read_mark,
        published::Published,
        recovery,
        snapshot::{Contents, Decoder, Kind, SnapshotData, SnapshotError, pieces},
    },
    format::{
        codec::cluster_id_from_proto,
        frames::{Frames, frame},
        raft_codec::log_id_to_proto,
    },
};

/// The only format version.
const FORMAT_VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"CHYBACK1";
/// The size of the pieces in which a backup is produced and read, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// The header of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupInfo {
    /// The version of the program that made the backup.
    pub program: String,
    /// The ID of the cluster.
    pub cluster_id: ClusterId,
    /// The incarnation of the cluster.
    pub incarnation: Incarnation,
    /// The ID of the replica that made the backup.
    pub replica_id: u64,
    /// The revision of the state.
    pub revision: Revision,
    /// The number of resources in the backup.
    pub n_resources: u64,
    /// The time of the backup, in milliseconds since 1970.
    pub time_ms: u64,
    /// The origin of the state.
    pub source: BackupSource,
    /// Term and index of the last log entry that the backup includes. Of two replicas of a cluster,
    /// the one with the greater pair has more entries.
    pub position: (u64, u64),
    /// The reason why the replica had diverged from its cluster. The state may then be wrong.
    pub diverged: Option<String>,
}

/// The origin of the state of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupSource {
    /// The state has all entries that were committed when the backup was requested.
    Current,
    /// The state has the entries that the replica had applied.
    Stale,
    /// The state has all entries in the log of a stopped replica, some of which may not have been
    /// committed.
    Directory,
}

/// The reason why a backup cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The replica cannot determine whether its state is current.
    #[error(transparent)]
    NotCurrent(#[from] ReadError),
    /// The replica has no state yet.
    #[error("the replica has no state yet")]
    NoState,
    /// The file is not a backup.
    #[error("it is not a backup: it does not begin with {:?}", str::from_utf8(MAGIC).unwrap_or_default())]
    Foreign,
    /// Another release wrote the backup, in another format.
    #[error(
        "the backup has format version {found}, made by chancery {program}, but this program \
         supports only version {FORMAT_VERSION}; use the release that made it, or a newer one"
    )]
    Format {
        /// The format version of the backup.
        found: u32,
        /// The version of the program that made the backup.
        program: String,
    },
    /// The content is damaged.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
    /// The backup cannot be read.
    #[error("cannot read the backup: {0}")]
    Io(#[from] io::Error),
}

impl From<SnapshotError> for BackupError {
    fn from(error: SnapshotError) -> Self {
        Self::Damaged(error.to_string())
    }
}

/// The state of a cluster, ready to be written to a file. Cheap to make: the state is shared, not
/// copied.
#[derive(Debug, Clone)]
pub struct Backup {
    info: BackupInfo,
    data: SnapshotData,
    /// The database of a stopped replica, kept open for the content of earlier revisions.
    _database: Option<Arc<Database>>,
}

impl Backup {
    /// Makes a backup of an image.
    pub(crate) fn of(
        image: Image,
        content: ContentReader,
        replica_id: u64,
        source: BackupSource,
    ) -> Result<Self, BackupError> {
        let cluster_id = image.cluster_id.ok_or(BackupError::NoState)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let position = image.applied.as_ref().map(log_id_to_proto).unwrap_or_default();
        let info = BackupInfo {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            cluster_id: ClusterId(cluster_id),
            incarnation: image.state.incarnation,
            replica_id,
            revision: image.state.revision,
            n_resources: image.n_resources,
            time_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            source,
            position: (position.term, position.index),
            diverged: None,
        };
        let data = SnapshotData { image: Arc::new(image), content: Some(content) };
        Ok(Self { info, data, _database: None })
    }

    /// Reads the directory of a stopped replica. Changes nothing in the directory except its lock.
    ///
    /// Makes the same checks as a start of the replica. This function also applies the log entries
    /// that the replica had not yet applied. In a cluster without a majority, nobody knows which of
    /// them were committed, and the backup must include every acknowledged entry. The replica may have
    /// diverged ([`BackupInfo::diverged`]).
    ///
    /// # Errors
    /// Fails if the directory is in use, contains no replica, or is damaged.
    pub fn of_directory(path: &Path) -> Result<Self, OpenError> {
        let (directory, identity) = Directory::open_existing(path)?;
        let mark = read_mark(&directory, identity, HighWater::open_read_only)?.mark();
        let (database, recovered) = recovery::read(&directory, identity, mark)?;
        let mut image = recovered.image;
        let replaced = recovery::apply_rest(path, &database, &mut image)?;
        let database = Arc::new(database);
        let content =
            ContentReader::new(&database, Published::new(image.clone())).with_unstored(replaced);
        let source = BackupSource::Directory;
        let mut backup = Self::of(image, content, identity.replica_id, source)
            .map_err(|error| damaged(path, "the state", error))?;
        backup._database = Some(database);
        backup.info.diverged = directory.diverged()?;
        Ok(backup)
    }

    /// Returns the header.
    #[must_use]
    pub fn info(&self) -> &BackupInfo {
        &self.info
    }

    /// Returns the bytes of the backup in pieces, which are produced on demand.
    pub fn pieces(&self) -> impl Iterator<Item = Bytes> + '_ {
        let header = frame(Kind::Backup as u8, &self.info.to_proto());
        let first = [Bytes::from_static(MAGIC), header];
        pieces(first.into_iter().chain(self.data.encode(Contents::Include)), PIECE_BYTES)
    }
}

impl BackupInfo {
    fn to_proto(&self) -> pb::BackupHeader {
        let source = match self.source {
            BackupSource::Current => pb::BackupSource::Current,
            BackupSource::Stale => pb::BackupSource::Stale,
            BackupSource::Directory => pb::BackupSource::Directory,
        };
        let (term, index) = self.position;
        pb::BackupHeader {
            format: FORMAT_VERSION,
            program: self.program.clone(),
            cluster_id: self.cluster_id.0.to_vec().into(),
            incarnation: self.incarnation.0,
            replica_id: self.replica_id,
            revision: self.revision.0,
            resources: self.n_resources,
            time_ms: self.time_ms,
            source: source.into(),
            last_log_id: Some(pb::LogId { term, index }),
            diverged: self.diverged.clone().unwrap_or_default(),
        }
    }

    fn from_proto(header: pb::BackupHeader) -> Result<Self, BackupError> {
        if header.format != FORMAT_VERSION {
            let (found, program) = (header.format, header.program);
            return Err(BackupError::Format { found, program });
        }
        let cluster_id = cluster_id_from_proto(&header.cluster_id);
        let cluster_id = cluster_id.map_err(|error| BackupError::Damaged(error.to_string()))?;
        let source = match header.source() {
            pb::BackupSource::Current => BackupSource::Current,
            pb::BackupSource::Directory => BackupSource::Directory,
            pb::BackupSource::Unspecified | pb::BackupSource::Stale => BackupSource::Stale,
        };
        let position = header.last_log_id.unwrap_or_default();
        Ok(Self {
            program: header.program,
            cluster_id: ClusterId(cluster_id),
            incarnation: Incarnation(header.incarnation),
            replica_id: header.replica_id,
            revision: Revision(header.revision),
            n_resources: header.resources,
            time_ms: header.time_ms,
            source,
            position: (position.term, position.index),
            diverged: Some(header.diverged).filter(|reason| !reason.is_empty()),
        })
    }
}

// === reading ===

/// Checks the bytes of a backup as they arrive, without keeping them.
#[derive(Debug)]
pub struct BackupCheck(Reader<fn(Frames) -> Decoder>);

impl Default for BackupCheck {
    fn default() -> Self {
        Self(Reader::new(Decoder::checking_after))
    }
}

impl BackupCheck {
    /// Checks the next bytes.
    ///
    /// # Errors
    /// Fails if the bytes do not belong to a valid backup.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.0.push(bytes)
    }

    /// Returns the header once it has arrived.
    #[must_use]
    pub fn header(&self) -> Option<&BackupInfo> {
        match &self.0.stage {
            Stage::Snapshot(snapshot) => Some(&snapshot.0),
            Stage::Magic(_) | Stage::Header(_) => None,
        }
    }

    /// Returns the header if the backup is complete.
    ///
    /// # Errors
    /// Fails if a part is missing.
    pub fn finish(self) -> Result<BackupInfo, BackupError> {
        let (info, decoder) = self.0.whole()?;
        decoder.check()?;
        Ok(info)
    }
}

/// Reads a whole backup.
pub(crate) fn read(file: &mut File) -> Result<(BackupInfo, SnapshotData), BackupError> {
    let (info, decoder) = read_with(file, Decoder::after)?;
    let data = decoder.finish()?;
    let image = &data.image;
    let found = (image.cluster_id.map(ClusterId), image.state.revision, image.n_resources);
    let stated = (Some(info.cluster_id), info.revision, info.n_resources);
    if found != stated {
        let detail = format!("its header says {stated:?}, but its content is {found:?}");
        return Err(BackupError::Damaged(detail));
    }
    Ok((info, data))
}

/// Writes the content of earlier revisions in a backup, which [`read`] has read, to a database.
pub(crate) fn copy_content(file: &mut File, database: &Arc<Database>) -> Result<(), BackupError> {
    let database = Arc::downgrade(database);
    let decoder = move |frames| Decoder::checking_after(frames).writing_to(database.clone());
    let (_, decoder) = read_with(file, decoder)?;
    Ok(decoder.check()?)
}

fn read_with(
    file: &mut File,
    decoder: impl Fn(Frames) -> Decoder,
) -> Result<(BackupInfo, Decoder), BackupError> {
    let mut reader = Reader::new(decoder);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => reader.push(&piece[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    reader.whole()
}

#[derive(Debug)]
struct Reader<D> {
    stage: Stage,
    decoder: D,
}

#[derive(Debug)]
enum Stage {
    Magic(Frames),
    Header(Frames),
    Snapshot(Box<(BackupInfo, Decoder)>),
}

impl<D: Fn(Frames) -> Decoder> Reader<D> {
    fn new(decoder: D) -> Self {
        Self { stage: Stage::Magic(Frames::default()), decoder }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        let damaged = |error: &dyn std::fmt::Display| BackupError::Damaged(error.to_string());
        match &mut self.stage {
            Stage::Magic(frames) => {
                frames.push(bytes);
                let Some(magic) = frames.take(MAGIC.len()) else { return Ok(()) };
                if magic != MAGIC[..] {
                    return Err(BackupError::Foreign);
                }
                self.stage = Stage::Header(std::mem::take(frames));
                self.push(&[])
            }
            Stage::Header(frames) => {
                frames.push(bytes);
                let Some((kind, message)) = frames.next().map_err(|error| damaged(&error))? else {
                    return Ok(());
                };
                if kind != Kind::Backup as u8 {
                    let error =
                        frames.damaged_last(message.len(), "it is not the header of a backup");
                    return Err(damaged(&error));
                }
                let header = pb::BackupHeader::decode(message).map_err(|error| damaged(&error))?;
                let info = BackupInfo::from_proto(header)?;
                let decoder = (self.decoder)(std::mem::take(frames));
                self.stage = Stage::Snapshot(Box::new((info, decoder)));
                self.push(&[])
            }
            Stage::Snapshot(snapshot) => Ok(snapshot.1.push(bytes)?),
        }
    }

    fn whole(self) -> Result<(BackupInfo, Decoder), BackupError> {
        let short = |frames: &Frames| {
            let (frames, offset) = (frames.n_frames(), frames.offset());
            BackupError::from(SnapshotError::Short { frames, offset })
        };
        match self.stage {
            Stage::Magic(_) => Err(BackupError::Foreign),
            Stage::Header(frames) => Err(short(&frames)),
            Stage::Snapshot(snapshot) => Ok(*snapshot),
        }
    }
}
