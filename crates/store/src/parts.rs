//! Everything that has to be ready before Raft runs: the directory, its files, and what is in them.

use chancery_model::Incarnation;

use crate::{
    Config, OpenError,
    database::{Access, Database},
    directory::{Directory, Found, damaged},
    high_water::{HighWater, MarkError},
    identity::Identity,
    image::Image,
    log::Ends,
    log_size::LogSize,
    recovery::{self, Recovered},
};

/// All that is ready before Raft runs.
pub(crate) struct Parts {
    pub(crate) directory: Directory,
    pub(crate) identity: Identity,
    pub(crate) high_water: HighWater,
    pub(crate) database: Database,
    pub(crate) recovered: Recovered,
    pub(crate) fresh: bool,
}

impl Parts {
    /// Everything that blocks. Changes nothing before it has decided that the directory can be used.
    pub(crate) fn open(config: &Config) -> Result<Self, OpenError> {
        let (directory, found) = Directory::open(&config.data_dir, config.replica_id)?;
        match found {
            Found::Replica(identity) => Self::load(directory, identity),
            Found::Fresh => Self::form(directory, config.replica_id),
        }
    }

    fn load(directory: Directory, identity: Identity) -> Result<Self, OpenError> {
        let path = directory.high_water();
        let mut high_water =
            HighWater::open(&path, identity.cluster_id).map_err(|error| match error {
                MarkError::Io(source) => OpenError::Io { what: "read", path: path.clone(), source },
                error => damaged(directory.path(), "the file HIGHWATER", error),
            })?;
        let (database, recovered) = recovery::recover(&directory, identity, high_water.mark())?;
        // A process that was killed has left a mark that may not be synced; the new slot is only
        // written when the other is.
        high_water.resync().map_err(|source| OpenError::Io { what: "sync", path, source })?;
        Ok(Self { directory, identity, high_water, database, recovered, fresh: false })
    }

    fn form(directory: Directory, replica_id: u64) -> Result<Self, OpenError> {
        let mut cluster_id = [0; 16];
        let mut incarnation = [0; 4];
        for bytes in [&mut cluster_id[..], &mut incarnation[..]] {
            fill_random(bytes).map_err(|source| OpenError::Io {
                what: "get random bytes for",
                path: directory.path().to_owned(),
                source,
            })?;
        }
        let incarnation = Incarnation(u32::from_le_bytes(incarnation));
        let identity = Identity { cluster_id, replica_id, incarnation };
        directory.begin(identity)?;
        let path = directory.high_water();
        let high_water = HighWater::create(&path, cluster_id).map_err(|source| OpenError::Io {
            what: "create",
            path,
            source,
        })?;
        let path = directory.database();
        let database = Database::open(&path, Access::Create).map_err(|source| OpenError::Io {
            what: "create the database in",
            path,
            source,
        })?;
        let recovered = Recovered {
            ends: Ends::default(),
            size: LogSize::default(),
            image: Image::new(),
            generation: 0,
        };
        Ok(Self { directory, identity, high_water, database, recovered, fresh: true })
    }
}

fn fill_random(mut bytes: &mut [u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let n = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
        bytes = &mut bytes[n..];
    }
    Ok(())
}
