//! The health of a replica: its status, its failure, and whether its disk works again.

use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;

use crate::{
    Status,
    disk::{
        directory::Directory,
        probe::{read_all, write_probe},
    },
    replication::core::Core,
    status::ClusterId,
};

/// The number of state digests that [`Status`] shows: of the newest positions, and of positions
/// that are kept for longer.
const SHOWN_NEWEST: usize = 4;
const SHOWN_STEPS: usize = 28;
/// The interval between checks of the disk after a failure.
const DISK_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns the reason why the replica no longer accepts writes, or `None` if it does.
pub(super) fn failure(core: &Core) -> Option<String> {
    let stopped = || {
        let raft = core.node.raft.metrics();
        let raft = raft.borrow_watched();
        raft.running_state.as_ref().err().map(ToString::to_string)
    };
    core.failure.get().map(str::to_owned).or_else(stopped)
}

/// Waits until the replica has failed because of an error of its disk, and the disk has then worked for `steady`.
/// Returns the reason of the failure. The open database may lack data that it believes to be written, so only
/// another start brings the replica back.
pub(super) async fn disk_works_again(core: &Core, steady: Duration) -> String {
    let mut since = None;
    loop {
        tokio::time::sleep(DISK_CHECK_INTERVAL).await;
        if !core.failure.is_of_disk() || core.divergence.reason().is_some() {
            continue;
        }
        let data_dir = core.config.data_dir.clone();
        let is_last = since.is_some_and(|since: Instant| since.elapsed() >= steady);
        let checked = tokio::task::spawn_blocking(move || {
            write_probe(&data_dir)?;
            // Reads much, so only once.
            if is_last { read_all(&data_dir) } else { Ok(()) }
        });
        let works = matches!(checked.await, Ok(Ok(()))) && core.storage.space.full().is_none();
        if works && is_last {
            return core.failure.get().unwrap_or_default().to_owned();
        }
        since = since.filter(|_| works).or_else(|| works.then(Instant::now));
    }
}

/// Returns the status of the replica.
pub(super) fn status(core: &Core) -> Status {
    let image = core.storage.published.newest();
    let raft = core.node.raft.metrics().borrow_watched().clone();
    let membership = &raft.membership_config;
    Status {
        replica_id: core.config.replica_id,
        cluster_id: ClusterId(core.identity.cluster_id),
        incarnation: core.identity.incarnation,
        revision: image.state.revision,
        n_resources: image.n_resources,
        term: raft.current_term,
        leader: core.node.present_leader(),
        last_log_index: raft.last_log_index,
        committed: raft.local_committed.map(|id| id.index),
        applied: image.applied.map(|id| id.index),
        snapshot: raft.snapshot.map(|id| id.index),
        purged: raft.purged.map(|id| id.index),
        voters: membership.voter_ids().collect(),
        learners: membership.membership().learner_ids().collect(),
        log_bytes: core.storage.log_size.lock().bytes(),
        disk_bytes: Directory::disk_bytes(&core.config.data_dir),
        free_bytes: core.storage.space.free(),
        full: core.storage.space.full().map(|full| full.to_string()),
        digests: core.storage.digests.recent(SHOWN_NEWEST, SHOWN_STEPS),
        fsyncs: core.metrics.fsyncs(),
        failure: failure(core),
    }
}
