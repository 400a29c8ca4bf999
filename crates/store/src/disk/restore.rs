//! Creates the directory of a cluster of one from a backup (`docs/adr/0005-restore.md`).
//!
//! Invariants:
//! - The whole backup is read and checked before anything is created.
//! - The directory is read back and checked before it gets its `IDENTITY`. After a failure it is
//!   left empty; after a kill of the process, it contains `IDENTITY.part`.
//! - The restored cluster is a new one, in a new incarnation, at a revision that the cluster of the
//!   backup has not used. A version that a client holds from lost revisions is therefore never
//!   reused for different content.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Seek},
    path::{Path, PathBuf},
    sync::Arc,
};

use chancery_model::{Incarnation, Revision, TransactionMeta};
use chancery_raft_proto::v1 as pb;

use crate::{
    BackupError, BackupInfo, ClusterId, OpenError, REPLICA_ID_MAX,
    disk::{
        backup,
        database::{Access, Batch, Database},
        directory::{self, Directory, DirectoryPurpose, Found, damaged},
        high_water::{HighWater, Mark},
        image::{Image, RestoredIdentity},
        parts::new_identity,
        records::Record,
        recovery,
        state_writer::BATCH_BYTES,
    },
    format::{
        content::{CONTENT, revision_key},
        identity::Identity,
        keys::{APPLIED_KEY, PURGED_KEY, VOTE_KEY, state_key},
        raft::{LogId, Membership, Peer, StoredMembership, Vote, log_id},
        raft_codec::{log_id_to_proto, vote_to_proto},
        record::{self, Family},
    },
};

/// The bits of a revision that count within one cluster. A restore starts the next block of 2^32
/// revisions, above all lost ones.
const REVISIONS_LEFT_OUT: u64 = (1 << 32) - 1;
/// The exclusive upper limit of revisions: numbers below it are exact in the JSON of every
/// language.
const REVISIONS_END: u64 = 1 << 53;
/// The term of the restored state, which is that of a newly formed cluster.
const TERM: u64 = 1;

/// The options of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreOptions {
    /// The directory, which must be empty or absent.
    pub data_dir: PathBuf,
    /// The ID of the new replica.
    pub replica_id: u64,
    /// A revision that the restored revision must exceed. For a backup that was restored before:
    /// the last revision of the cluster that came from that restore.
    pub after: Revision,
    /// The author and the time, for the history. The restore adds its own reason.
    pub meta: TransactionMeta,
}

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The header of the backup.
    pub backup: BackupInfo,
    /// The ID of the new cluster.
    pub cluster_id: ClusterId,
    /// The incarnation of the new cluster.
    pub incarnation: Incarnation,
    /// The revision of the new cluster.
    pub revision: Revision,
}

/// The reason why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup cannot be used.
    #[error("cannot restore {}: {source}", path.display())]
    Backup {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: BackupError,
    },
    /// The directory contains a replica.
    #[error(
        "{} is the data directory of replica {replica_id} of cluster {cluster_id}; use an empty directory",
        path.display()
    )]
    NotEmpty {
        /// The data directory.
        path: PathBuf,
        /// The ID of the replica.
        replica_id: u64,
        /// The ID of its cluster.
        cluster_id: ClusterId,
    },
    /// The directory is inside the data directory of a replica.
    #[error(
        "{} is inside {}, the data directory of a replica; use a directory outside of it",
        path.display(),
        data_dir.display()
    )]
    Inside {
        /// The directory to create.
        path: PathBuf,
        /// The data directory that contains it.
        data_dir: PathBuf,
    },
    /// The replica ID is invalid.
    #[error("the replica ID must be from 1 to {REPLICA_ID_MAX}")]
    ReplicaId,
    /// No unused revisions are left.
    #[error(
        "no revision is left after {0}: a restore skips up to 4294967296, and revisions stay below 2^53"
    )]
    Revision(Revision),
    /// The directory cannot be created.
    #[error(transparent)]
    Directory(#[from] OpenError),
}

/// Creates a directory from the backup in the file `from`. Blocks.
///
/// # Errors
/// See [`RestoreError`]. A failed restore creates nothing.
pub fn restore(from: &Path, options: &RestoreOptions) -> Result<Restored, RestoreError> {
    let unusable = |source| RestoreError::Backup { path: from.to_owned(), source };
    if !(1..=REPLICA_ID_MAX).contains(&options.replica_id) {
        return Err(RestoreError::ReplicaId);
    }
    let mut file = File::open(from).map_err(|error| unusable(error.into()))?;
    let (info, data) = backup::read(&mut file).map_err(unusable)?;
    let revision = next_revision(info.revision.max(options.after))
        .ok_or(RestoreError::Revision(info.revision.max(options.after)))?;
    let path = &options.data_dir;
    if let Some(data_dir) = directory::around(path) {
        return Err(RestoreError::Inside { path: path.clone(), data_dir });
    }
    let existed = path.exists();
    let (directory, found) = Directory::open(path, None)?;
    if let Found::Replica(identity) = found {
        return Err(RestoreError::NotEmpty {
            path: path.clone(),
            replica_id: identity.replica_id,
            cluster_id: ClusterId(identity.cluster_id),
        });
    }
    let identity = new_identity(path, options.replica_id)?;
    let mut image = Image::clone(&data.image);
    image.restore(restored_identity(identity, revision), meta(options, &info));
    let made = make(&directory, identity, &image, &mut file);
    if let Err(error) = made {
        // The first error says more than an error of the cleanup.
        if directory.abandon(DirectoryPurpose::Restore).is_ok() && !existed {
            drop(directory.remove());
        }
        return Err(error.into());
    }
    Ok(Restored {
        backup: info,
        cluster_id: ClusterId(identity.cluster_id),
        incarnation: identity.incarnation,
        revision,
    })
}

/// Returns the first revision that a cluster at `revision` cannot have used, whatever it has done
/// since.
fn next_revision(revision: Revision) -> Option<Revision> {
    let next = (revision.0 | REVISIONS_LEFT_OUT).checked_add(1)?;
    (next < REVISIONS_END).then_some(Revision(next))
}

fn meta(options: &RestoreOptions, info: &BackupInfo) -> TransactionMeta {
    let mut reason = format!("restored from a backup of cluster {}", info.cluster_id);
    if !options.meta.reason.is_empty() {
        reason = format!("{}; {reason}", options.meta.reason);
    }
    TransactionMeta { reason, ..options.meta.clone() }
}

/// Returns the identity of a cluster of one.
fn restored_identity(identity: Identity, revision: Revision) -> RestoredIdentity {
    let Identity { cluster_id, replica_id, incarnation, instance } = identity;
    let peer = Peer { instance, ..Peer::default() };
    let members = Membership::from(BTreeMap::from([(replica_id, peer)]));
    RestoredIdentity {
        cluster_id,
        incarnation,
        revision,
        applied: last_entry(),
        membership: StoredMembership::new(Some(log_id(0, 0)), members),
    }
}

/// Returns the last entry of the log. It is purged, as if the restored state were a snapshot.
fn last_entry() -> LogId {
    log_id(TERM, 1)
}

fn make(
    directory: &Directory,
    identity: Identity,
    image: &Image,
    backup: &mut File,
) -> Result<(), OpenError> {
    directory.begin(identity, DirectoryPurpose::Restore)?;
    let vote = Vote::new_committed(TERM, identity.replica_id);
    let mark = Mark { last: Some(last_entry()), vote: Some(vote) };
    let path = directory.high_water();
    let made = HighWater::create(&path, identity.cluster_id)
        .and_then(|mut high_water| high_water.write(mark).and_then(|()| high_water.sync()));
    made.map_err(|source| OpenError::Io { what: "write", path, source })?;
    let path = directory.database();
    write(&path, vote, image, backup).map_err(|source| OpenError::Io {
        what: "write the database in",
        path,
        source,
    })?;
    let (database, found) = recovery::read(directory, identity, mark)?;
    drop(database);
    if found.image.computed.tally != image.computed.tally
        || found.image.state.revision != image.state.revision
    {
        return Err(damaged(
            directory.path(),
            "the database",
            "its content differs from what was written",
        ));
    }
    directory.finish(DirectoryPurpose::Restore)
}

fn write(path: &Path, vote: Vote, image: &Image, backup: &mut File) -> io::Result<()> {
    const GENERATION: u32 = 0;
    let database = Arc::new(Database::open(path, Access::Create)?);
    backup.rewind()?;
    backup::copy_content(backup, &database).map_err(io::Error::other)?;
    let mut batch = Batch::default();
    let mut bytes = 0;
    for Record { family, key, record } in image.records() {
        bytes += key.len() + record.len();
        database.put(&mut batch, family, &state_key(GENERATION, &key), &record);
        if bytes > BATCH_BYTES {
            database.write(std::mem::take(&mut batch))?;
            bytes = 0;
        }
    }
    // The revision of the restore itself replaced nothing.
    if let Some(restore) = image.computed.kept.revisions().last() {
        let key = state_key(CONTENT, &revision_key(restore.revision));
        database.put(&mut batch, Family::History, &key, &restore.seal());
    }
    let purged = pb::PurgedRecord { id: Some(log_id_to_proto(&last_entry())) };
    let meta = [
        (VOTE_KEY, record::seal(Family::Meta, VOTE_KEY, &vote_to_proto(&vote))),
        (PURGED_KEY, record::seal(Family::Meta, PURGED_KEY, &purged)),
        (APPLIED_KEY, record::seal(Family::Meta, APPLIED_KEY, &image.applied_to_proto(GENERATION))),
    ];
    for (key, record) in meta {
        database.put(&mut batch, Family::Meta, key, &record);
    }
    database.write(batch)?;
    database.flush()?;
    database.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SOTW-15: a restore starts a new block of revisions, above all lost ones.
    #[test]
    fn restored_revision_was_never_used() {
        let next = |revision| next_revision(Revision(revision)).map(|revision| revision.0);
        assert_eq!(next(0), Some(1 << 32));
        assert_eq!(next(4711), Some(1 << 32));
        assert_eq!(next((1 << 32) - 1), Some(1 << 32));
        assert_eq!(next(1 << 32), Some(2 << 32), "the cluster was restored before");
        assert_eq!(next((1 << 53) - (1 << 32) - 1), Some((1 << 53) - (1 << 32)));
        for revision in [(1 << 53) - (1 << 32), (1 << 53) - 1, 1 << 53, u64::MAX - 5] {
            assert_eq!(next(revision), None, "{revision}: revisions stay below 2^53 (ADR 5)");
        }
    }
}
