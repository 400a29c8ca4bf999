//! The storage of a running replica: log, state machine, and the thread that writes the log.

use std::{
    io,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    Config,
    disk::{
        content_reader::ContentReader,
        database::Database,
        digest::Digests,
        flusher::Flusher,
        high_water::HighWater,
        log::{LogStore, WeakLogStore},
        log_size::LogSize,
        machine::Machine,
        opening::Opener,
        preparer::Preparer,
        progress::Progress,
        published::Published,
        recovery::Recovered,
        space::Space,
    },
    failure::Failure,
    metrics::StoreMetrics,
};

/// The parts of the storage that other modules use while Raft owns the log and the state machine. Cheap to
/// clone.
#[derive(Clone)]
pub(crate) struct Storage {
    pub(crate) published: Published,
    pub(crate) content: ContentReader,
    /// The database, to which snapshots write the content of earlier revisions.
    pub(crate) database: Weak<Database>,
    /// The digests of the newest applied positions.
    pub(crate) digests: Arc<Digests>,
    pub(crate) preparer: Preparer,
    pub(crate) log: WeakLogStore,
    pub(crate) log_size: Arc<Mutex<LogSize>>,
    pub(crate) space: Arc<Space>,
    /// The progress of this replica in receiving and installing snapshots.
    pub(crate) snapshot_progress: Progress,
    /// Whether the replica has tried to unwrap its keys.
    pub(crate) has_tried_keys: watch::Receiver<bool>,
}

/// The started storage.
pub(crate) struct Started {
    pub(crate) storage: Storage,
    pub(crate) log: LogStore,
    pub(crate) machine: Machine,
    pub(crate) flusher: Flusher,
    pub(crate) opener: Opener,
}

impl Storage {
    /// Starts the thread that writes the log, over a database with the content in `recovered`.
    pub(crate) fn start(
        config: &Config,
        database: &Arc<Database>,
        high_water: HighWater,
        recovered: Recovered,
        failure: &Failure,
        metrics: &StoreMetrics,
    ) -> io::Result<Started> {
        let Recovered { ends, size, image, generation } = recovered;
        let log_size = Arc::new(Mutex::new(size));
        let (failure, metrics) = (|| failure.clone(), || metrics.clone());
        let (flusher, jobs) =
            Flusher::spawn(Arc::clone(database), high_water, failure(), metrics())?;
        let (data, size) = (Arc::clone(database), Arc::clone(&log_size));
        let secrets = || config.secrets.clone();
        let machine =
            Machine::new(Arc::clone(database), image, generation, failure(), metrics(), secrets());
        let ahead = machine.ahead();
        let log = LogStore::new(data, jobs, ends, size, ahead, failure(), metrics());
        let (has_tried, has_tried_keys) = watch::channel(false);
        let opener = Opener { machine: machine.clone(), secrets: secrets(), has_tried };
        let storage = Self {
            published: machine.published(),
            content: machine.content(),
            database: Arc::downgrade(database),
            digests: machine.digests(),
            preparer: Preparer::new(machine.published(), secrets()),
            log: log.downgrade(),
            log_size,
            space: Arc::new(Space::new(&config.data_dir, config.free_bytes_min)),
            snapshot_progress: machine.progress(),
            has_tried_keys,
        };
        Ok(Started { storage, log, machine, flusher, opener })
    }
}
