//! The replicas as a cluster: leadership, membership and recovery.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_admin_proto::v1::ClusterStatus;
use futures::future::join_all;
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::{
    disk::SyncFault,
    history::{Guarantee, History},
    load::{self, Admin, Change},
    power,
    proxy::{Id, Network, Rules},
    ready_replicas::ReadyReplicas,
    replica::{Replica, Start},
};
use crate::{metrics::Metrics, random::Random, report::say, server::get};

const POLL: Duration = Duration::from_millis(50);
/// The timeout of a status request. A replica that exceeds it counts as not answering.
const STATUS: Duration = Duration::from_secs(3);
/// The time between the copy of the data and the power cut. Writes of this time are lost.
const LOST: Duration = Duration::from_millis(200);
/// The interval between two comparisons of the states of all replicas.
const COMPARE: Duration = Duration::from_millis(500);
const CHANGE: Duration = Duration::from_secs(12);
/// The maximum time until all replicas are ready again, for a debug build on a busy machine.
const READY: Duration = Duration::from_secs(120);
/// The time in which a fault of a disk may still have an effect after it was healed.
const BY_ITSELF: Duration = Duration::from_secs(2);
/// The number of registers for probes and bursts, which follow those of the writers.
const MORE_KEYS: usize = 32;
/// The error of a replica whose data must not be served.
const STOPPED: &str = "it has stopped serving";
const INSTALLED: &str = "chancery_store_snapshots_installed_total";

/// All replicas.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) replicas: BTreeMap<Id, Replica>,
    pub(crate) network: Network,
    pub(crate) ready: Arc<ReadyReplicas>,
    pub(crate) history: Arc<History>,
    pub(crate) binary: PathBuf,
    pub(crate) dir: PathBuf,
    /// The number of registers that writers use. The registers after them are for probes and
    /// bursts.
    pub(crate) keys: usize,
    /// The maximum time until a healed cluster accepts a write at each replica.
    pub(crate) progress: Duration,
    /// The replicas that should vote.
    voters: BTreeSet<Id>,
    /// The replicas whose disk had a fault since the last recovery.
    had_disk_fault: BTreeSet<Id>,
    /// The number of installed snapshots, by replica and process.
    installed: HashMap<(Id, u32), f64>,
    /// The longest time until a healed cluster accepted a write.
    pub(crate) slowest_progress: Duration,
    /// The number of processes that were restarted because their store had stopped.
    pub(crate) restarted_after_failure: u64,
    starts: u64,
}

impl Cluster {
    /// Starts replicas `1..=n`. The first one forms the cluster.
    pub(crate) async fn start(
        (binary, dir): (&Path, &Path),
        n: Id,
        keys: usize,
        progress: Duration,
        history: Arc<History>,
    ) -> Result<Self> {
        // One more for a learner.
        let network = Network::new(1..=n + 1).await?;
        let mut cluster = Self {
            replicas: BTreeMap::new(),
            network,
            ready: Arc::default(),
            history,
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            keys,
            progress,
            voters: (1..=n).collect(),
            had_disk_fault: BTreeSet::new(),
            installed: HashMap::new(),
            slowest_progress: Duration::ZERO,
            restarted_after_failure: 0,
            starts: 0,
        };
        for id in 1..=n {
            cluster.add(id)?;
            cluster.spawn(id, id > 1, false)?;
        }
        cluster.recover().await?;
        let ports = cluster.ready.ports(1).context("replica 1 is not ready")?;
        Admin::new(ports)?.assign(keys + MORE_KEYS).await?;
        Ok(cluster)
    }

    /// Creates a replica without a process.
    pub(crate) fn add(&mut self, id: Id) -> Result<()> {
        let replica = Replica::new(id, &self.binary, &self.dir, &self.ready)?;
        self.replicas.insert(id, replica);
        Ok(())
    }

    pub(crate) fn replica(&mut self, id: Id) -> Result<&mut Replica> {
        self.replicas.get_mut(&id).with_context(|| format!("there is no replica {id}"))
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.replicas.keys().copied().collect()
    }

    /// Starts the process of a replica.
    pub(crate) fn spawn(&mut self, id: Id, joins: bool, learner: bool) -> Result<()> {
        let mut join = Vec::new();
        if joins {
            for other in self.voters.iter().filter(|other| **other != id) {
                join.push(self.network.address(*other)?);
            }
        }
        self.starts += 1;
        let config = config(self.starts);
        let replica = self.replicas.get_mut(&id).context("no such replica")?;
        replica.spawn(&self.network, &Start { join, learner, config })
    }

    /// Returns the status of a replica, or `None` if it does not answer.
    pub(crate) async fn status(&self, id: Id) -> Option<ClusterStatus> {
        status(id, &self.ready, &self.history).await
    }

    /// Records that the process of a replica may observe a failing disk.
    pub(crate) fn note_disk_fault(&mut self, id: Id) {
        self.had_disk_fault.insert(id);
    }

    /// Cuts the power of the disks of some replicas.
    pub(crate) async fn shut_down_disks(&mut self, ids: &[Id]) -> Result<()> {
        let mut paths = Vec::new();
        for id in ids {
            self.note_disk_fault(*id);
            paths.push(self.replica(*id)?.disk.path().to_owned());
        }
        power::cut(&paths).await
    }

    /// Simulates a power cut without an image: from some time on, no disk completes a sync.
    pub(crate) async fn hold_syncs(&mut self, ids: &[Id], strace_starts: Duration) -> Result<()> {
        for id in ids {
            self.note_disk_fault(*id);
            let replica = self.replica(*id)?;
            let pid = replica.pid().context("the replica has no process")?;
            replica.disk.start_sync_fault(pid, SyncFault::Hold)?;
        }
        sleep(strace_starts).await;
        for id in ids {
            self.replica(*id)?.disk.copy_synced()?;
        }
        sleep(LOST).await;
        Ok(())
    }

    /// Kills the processes of replicas whose disks have lost power, and starts them again at once.
    pub(crate) async fn power_up(&mut self, ids: &[Id]) -> Result<()> {
        for id in ids {
            self.replica(*id)?.signal(Signal::KILL)?;
        }
        for id in ids {
            // After the SIGKILL, so that no delayed sync returns. Before the wait, because strace
            // keeps the process from ending.
            self.replica(*id)?.disk.end_sync_fault().await?;
            self.replica(*id)?.kill().await?;
        }
        for id in ids {
            self.replica(*id)?.disk.power_up().await?;
            self.spawn(*id, true, !self.voters.contains(id))?;
        }
        Ok(())
    }

    /// Returns the leader of the highest known term.
    pub(crate) async fn leader(&self) -> Option<Id> {
        let known = self.statuses().await.into_iter().flatten();
        let leaders = known.filter_map(|status| Some((status.term, status.leader?)));
        leaders.max().map(|(_, leader)| leader)
    }

    async fn statuses(&self) -> Vec<Option<ClusterStatus>> {
        join_all(self.ids().into_iter().map(|id| self.status(id))).await
    }

    /// Returns the highest known term.
    pub(crate) async fn term(&self) -> u64 {
        let known = self.statuses().await.into_iter().flatten();
        known.map(|status| status.term).max().unwrap_or(0)
    }

    /// Returns a random voter that leads, or one that does not lead, depending on `leads`. Returns
    /// any voter if none fits.
    pub(crate) async fn pick(&self, random: &mut Random, leads: bool) -> Result<Id> {
        let leader = self.leader().await;
        let all: Vec<Id> = self.voters.iter().copied().collect();
        let fit: Vec<Id> =
            all.iter().copied().filter(|id| (Some(*id) == leader) == leads).collect();
        let from = if fit.is_empty() { all } else { fit };
        let at = usize::try_from(random.below(crate::stats::count(from.len())))?;
        from.get(at).copied().context("there are no replicas")
    }

    /// Requests a change of the membership from each replica in turn, until one succeeds.
    pub(crate) async fn change(&self, change: Change) -> Result<String> {
        let deadline = Instant::now() + 3 * CHANGE;
        let mut reason = String::new();
        while Instant::now() < deadline {
            for id in self.ids() {
                let Some(ports) = self.ready.ports(id) else { continue };
                let mut admin = Admin::new(ports)?;
                let asked = timeout(CHANGE, admin.change(change)).await;
                match asked.context("no answer in time").and_then(|asked| asked) {
                    Ok(text) => return Ok(text),
                    Err(error) => reason = format!("replica {id}: {error:#}"),
                }
            }
            sleep(POLL).await;
        }
        bail!("{change:?} failed: {reason}")
    }

    /// Heals all faults, starts all missing processes, and waits until every replica accepts
    /// writes. A timeout is a violation.
    pub(crate) async fn recover(&mut self) -> Result<()> {
        self.network.set(Rules::default());
        for replica in self.replicas.values_mut() {
            replica.disk.heal().await?;
            replica.signal(Signal::CONT)?;
        }
        let deadline = Instant::now() + READY;
        loop {
            self.restart_ended().await?;
            if self.is_whole().await {
                break;
            }
            if Instant::now() > deadline {
                return self.give_up().await;
            }
            sleep(POLL).await;
        }
        for id in self.ids() {
            self.make_progress(id).await?;
        }
        self.had_disk_fault.clear();
        self.count_snapshots().await;
        Ok(())
    }

    /// Starts missing processes, and restarts processes whose store has stopped.
    async fn restart_ended(&mut self) -> Result<()> {
        for id in self.ids() {
            let is_excused = self.had_disk_fault.contains(&id);
            let replica = self.replica(id)?;
            let ended = replica.ended()?;
            if let Some(end) = ended {
                let words = replica.last_words();
                replica.kill().await?;
                let words = same_state(&self.history, id, words)?;
                if end.is_unasked() && !is_excused && !words.contains("cannot listen") {
                    let what = format!("replica {id} ended unexpectedly ({end:?}):\n{words}");
                    self.history.report(Guarantee::Alive, what);
                }
            }
            let failure = match self.ready.ports(id) {
                Some(_) => self.status(id).await.map(|status| status.failure),
                None => None,
            };
            if let Some(failure) = failure.filter(|failure| !failure.is_empty()) {
                let failure = same_state(&self.history, id, failure)?;
                if !is_excused {
                    let what = format!("the store of replica {id} stopped unexpectedly: {failure}");
                    self.history.report(Guarantee::Alive, what);
                }
                self.restarted_after_failure += 1;
                self.replica(id)?.kill().await?;
            }
            if self.replica(id)?.pid().is_none() {
                self.spawn(id, true, !self.voters.contains(&id))?;
            }
        }
        Ok(())
    }

    /// Returns whether all replicas are ready and agree on the leader and the voters.
    async fn is_whole(&self) -> bool {
        let mut leaders = BTreeSet::new();
        for status in self.statuses().await {
            let Some(status) = status else { return false };
            let voters: BTreeSet<Id> = status.voters.iter().copied().collect();
            if !status.ready || !status.failure.is_empty() || voters != self.voters {
                return false;
            }
            leaders.insert(status.leader);
        }
        leaders.len() == 1 && !leaders.contains(&None)
    }

    async fn give_up(&mut self) -> Result<()> {
        let mut all = Vec::new();
        for id in self.ids() {
            let status = self.status(id).await;
            all.push(format!("replica {id}: {status:?}\n{}", self.replica(id)?.last_words()));
        }
        let what = format!("the cluster has not recovered after {READY:?}:\n{}", all.join("\n"));
        self.history.report(Guarantee::Progress, what);
        bail!("the cluster has not recovered after {READY:?}")
    }

    /// Waits until a write through the replica is acknowledged. A timeout is a violation.
    async fn make_progress(&mut self, id: Id) -> Result<()> {
        let start = Instant::now();
        let key = self.keys + usize::try_from(id)?;
        loop {
            if let Some(ports) = self.ready.ports(id)
                && load::write(&self.history, id, &mut Admin::new(ports)?, key).await
            {
                self.slowest_progress = self.slowest_progress.max(start.elapsed());
                return Ok(());
            }
            self.restart_ended().await?;
            let excuse =
                if self.had_disk_fault.is_empty() { Duration::ZERO } else { BY_ITSELF + READY };
            if start.elapsed() > self.progress + excuse {
                let what = format!("no write through replica {id} for {:?}", start.elapsed());
                self.history.report(Guarantee::Progress, what);
                return Ok(());
            }
            sleep(POLL).await;
        }
    }

    /// Records the number of installed snapshots. Call this before processes end.
    pub(crate) async fn count_snapshots(&mut self) {
        for (id, replica) in &self.replicas {
            let (Some(pid), Some(ports)) = (replica.pid(), self.ready.ports(*id)) else { continue };
            let Ok(Ok(page)) = timeout(STATUS, get(ports.admin, "/metrics")).await else {
                continue;
            };
            if let Ok(n) = Metrics::new(page).sum(INSTALLED) {
                self.installed.insert((*id, pid), n);
            }
        }
    }

    /// Returns the number of snapshots installed so far.
    pub(crate) fn snapshots_installed(&self) -> f64 {
        self.installed.values().sum::<f64>()
    }

    /// Waits until a replica is ready. Fails after a timeout.
    pub(crate) async fn wait_ready(&self, id: Id) -> Result<()> {
        let deadline = Instant::now() + READY;
        while Instant::now() < deadline {
            if self.status(id).await.is_some_and(|status| status.ready) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        bail!("replica {id} is not ready after {READY:?}")
    }

    /// Waits until the others show that a replica has stopped serving. Fails after a timeout.
    pub(crate) async fn wait_stopped(&self, id: Id) -> Result<()> {
        let deadline = Instant::now() + READY;
        while Instant::now() < deadline {
            let statuses = self.statuses().await.into_iter().flatten();
            let mut members = statuses.flat_map(|status| status.members);
            if members.any(|it| it.replica_id == id && it.failure.contains(STOPPED)) {
                return Ok(());
            }
            sleep(POLL).await;
        }
        bail!("replica {id} has not stopped serving after {READY:?}")
    }

    /// Ends all processes, in order.
    pub(crate) async fn end(&mut self) -> Result<()> {
        self.count_snapshots().await;
        for replica in self.replicas.values_mut() {
            if let Err(error) = replica.end().await {
                self.history.report(Guarantee::Alive, format!("{error:#}"));
            }
            let panics = replica.panics()?;
            if panics > 0 {
                let what = format!("replica {} has panicked {panics} times", replica.id);
                self.history.report(Guarantee::Alive, what);
            }
        }
        say!("all replicas have ended");
        Ok(())
    }
}

/// Returns the status of a replica, or `None` if it does not answer. Records its state digests in
/// the history.
async fn status(id: Id, ready: &ReadyReplicas, history: &History) -> Option<ClusterStatus> {
    let mut admin = Admin::new(ready.ports(id)?).ok()?;
    let status = timeout(STATUS, admin.status()).await.ok()?.ok()?;
    for digest in &status.state_digests {
        history.state_digest(id, digest.applied_index, &digest.digest);
    }
    Some(status)
}

/// Fails if a replica has reported that its state or log differs from the others: the run cannot
/// continue.
fn same_state(history: &History, id: Id, words: String) -> Result<String> {
    if !words.contains(STOPPED) {
        return Ok(words);
    }
    history.report(Guarantee::SameState, format!("replica {id} has stopped: {words}"));
    bail!("the state or the log of replica {id} differs from the others")
}

/// Compares the states of all replicas repeatedly, until `stop`.
pub(crate) async fn compare_states(
    ready: Arc<ReadyReplicas>,
    history: Arc<History>,
    stop: Arc<AtomicBool>,
) {
    while !stop.load(Ordering::Relaxed) {
        join_all(ready.ids().into_iter().map(|id| status(id, &ready, &history))).await;
        sleep(COMPARE).await;
    }
}

/// Returns a configuration with frequent snapshots, so that lagging replicas need one. Every other
/// start keeps no space free on the disk, so that the disk really fills up.
fn config(start: u64) -> String {
    let free = if start.is_multiple_of(2) { "0" } else { "\"64MiB\"" };
    format!(
        "[store]\nsnapshot_log_entries = 120\nsnapshot_log_bytes = \"64KiB\"\nfree_bytes_min = {free}\n\
         [raft]\ncatch_up_timeout = \"3s\"\n"
    )
}
