//! The parts that must be ready before Raft runs: the directory, its files, and their content.

use std::path::Path;

use chancery_model::Incarnation;

use crate::{
    Config, OpenError, OpenProgress,
    disk::{
        database::{Access, Batch, Database},
        directory::{Directory, DirectoryPurpose, Found, change, damaged},
        high_water::{HighWater, MarkError},
        image::Image,
        log::Ends,
        log_size::LogSize,
        recovery::{self, Recovered},
    },
    format::{
        identity::{Identity, fill_random, new_instance},
        keys::VOTE_KEY,
        raft::Vote,
        raft_codec::vote_to_proto,
        record::{self, Family},
    },
};

/// The parts that are ready before Raft runs.
pub(crate) struct Parts {
    pub(crate) directory: Directory,
    pub(crate) identity: Identity,
    pub(crate) high_water: HighWater,
    pub(crate) database: Database,
    pub(crate) recovered: Recovered,
    pub(crate) start: Start,
}

/// How a replica starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// With its existing data.
    Existing,
    /// By forming a cluster.
    Form,
    /// Without data, in a cluster that has admitted it.
    Joined,
}

/// The way in which a replica without data starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bootstrap {
    /// It forms a cluster of its own.
    Form,
    /// It joins a cluster that admitted it.
    Joined {
        /// The identity of the replica in that cluster.
        identity: Identity,
        /// The vote of the leader.
        vote: Vote,
    },
}

/// A directory that this process owns.
pub(crate) enum Opened {
    /// The directory contains a replica that can run.
    Replica(Box<Parts>),
    /// The directory is empty.
    Fresh(Directory),
}

impl Parts {
    /// Opens the directory. Changes nothing before it has determined that the directory can be
    /// used.
    pub(crate) fn open(config: &Config, progress: &OpenProgress) -> Result<Opened, OpenError> {
        let (directory, found) = Directory::open(&config.data_dir, Some(config.replica_id))?;
        match found {
            Found::Replica(identity) => {
                if let Some(reason) = directory.diverged()? {
                    return Err(OpenError::Diverged { path: config.data_dir.clone(), reason });
                }
                let parts = Self::load(directory, identity, progress)?;
                Ok(Opened::Replica(Box::new(parts)))
            }
            Found::Fresh => Ok(Opened::Fresh(directory)),
            Found::Unrestored => Err(OpenError::Unrestored { path: config.data_dir.clone() }),
        }
    }

    fn load(
        directory: Directory,
        identity: Identity,
        progress: &OpenProgress,
    ) -> Result<Self, OpenError> {
        let mut high_water = read_mark(&directory, identity, HighWater::open)?;
        let (database, recovered) =
            recovery::recover(&directory, identity, high_water.mark(), progress)?;
        // A killed process may have left a mark that is not synced. A new mark is written to one
        // slot only while the other slot is synced.
        high_water.resync().map_err(|source| OpenError::Io {
            what: "sync",
            path: directory.high_water(),
            source,
        })?;
        Ok(Self { directory, identity, high_water, database, recovered, start: Start::Existing })
    }

    /// Creates a replica in an empty directory.
    pub(crate) fn begin(
        directory: Directory,
        beginning: Bootstrap,
        replica_id: u64,
    ) -> Result<Self, OpenError> {
        let (identity, vote, start) = match beginning {
            Bootstrap::Form => (new_identity(directory.path(), replica_id)?, None, Start::Form),
            Bootstrap::Joined { identity, vote } => (identity, Some(vote), Start::Joined),
        };
        directory.begin(identity, DirectoryPurpose::Replica)?;
        let path = directory.high_water();
        let high_water = change("create", &path, || HighWater::create(&path, identity.cluster_id))?;
        let path = directory.database();
        let failed = |what| {
            let path = path.clone();
            move |source| OpenError::Io { what, path, source }
        };
        let database =
            change("create the database in", &path, || Database::open(&path, Access::Create))?;
        let mut ends = Ends::default();
        if let Some(vote) = vote {
            let mut batch = Batch::default();
            let record = record::seal(Family::Meta, VOTE_KEY, &vote_to_proto(&vote));
            database.put(&mut batch, Family::Meta, VOTE_KEY, &record);
            database.write(batch).map_err(failed("write the database in"))?;
            database.sync().map_err(failed("sync the database in"))?;
            ends.vote = Some(vote);
            // Nothing has been acknowledged, and the cluster knows the replica: from here on, lost
            // data counts as damage. There is no applied record before the first entry or snapshot
            // arrives.
            directory.finish(DirectoryPurpose::Replica)?;
        }
        let recovered =
            Recovered { ends, size: LogSize::default(), image: Image::new(), generation: 0 };
        Ok(Self { directory, identity, high_water, database, recovered, start })
    }
}

/// Reads the high-water mark of a directory.
pub(crate) fn read_mark(
    directory: &Directory,
    identity: Identity,
    open: impl FnOnce(&Path, [u8; 16]) -> Result<HighWater, MarkError>,
) -> Result<HighWater, OpenError> {
    let path = directory.high_water();
    open(&path, identity.cluster_id).map_err(|error| match error {
        MarkError::Io(source) => OpenError::Io { what: "read", path: path.clone(), source },
        error => damaged(directory.path(), "the file HIGHWATER", error),
    })
}

/// Returns the identity of a new cluster.
pub(crate) fn new_identity(path: &Path, replica_id: u64) -> Result<Identity, OpenError> {
    let mut cluster_id = [0; 16];
    let mut incarnation = [0; 4];
    let failed = |source| random_failed(path, source);
    for bytes in [&mut cluster_id[..], &mut incarnation[..]] {
        fill_random(bytes).map_err(failed)?;
    }
    let incarnation = Incarnation(u32::from_le_bytes(incarnation));
    let instance = new_instance().map_err(failed)?;
    Ok(Identity { cluster_id, replica_id, incarnation, instance })
}

/// Returns the error for missing random bytes for a directory.
pub(crate) fn random_failed(path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Io { what: "get random bytes for", path: path.to_owned(), source }
}
