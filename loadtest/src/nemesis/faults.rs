//! The schedule of the faults, and each fault.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::join_all;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{
    cluster::Cluster,
    disk::{PossibleFaults, SyncFault},
    linear::Time,
    load::{self, Admin, Change},
    power::PowerCut,
    proxy::{Id, Rules},
};
use crate::{random::Random, report::say};

/// The number of writes after which the log of the leader no longer reaches back to a lagging
/// replica.
const BURST: usize = 600;
/// The number of concurrent writes in a burst.
const BURST_WIDTH: usize = 12;
/// The maximum duration of a burst. A slow machine makes fewer writes.
const BURST_TIME: Duration = Duration::from_secs(15);
/// The maximum additional delay of the network.
const DELAY_MAX: Duration = Duration::from_millis(250);
/// The maximum of the random delay of a slow disk.
const SLOW_MAX: Duration = Duration::from_millis(100);
/// The time after which strace has attached to a process.
const STRACE_STARTS: Duration = Duration::from_millis(400);
/// The maximum time between two changes of a flapping network.
const FLAP_MAX: Duration = Duration::from_millis(400);

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    KillLeader,
    KillFollower,
    KillSeveral,
    KillAll,
    StopLeader,
    StopFollower,
    PartLeader,
    PartFollower,
    OneWay,
    Flapping,
    Bridge,
    Delay,
    DiskFull,
    DiskSlow,
    DiskError,
    Lag,
    Wipe,
    RemoveAndWipe,
    RollBack,
    Learner,
    Transfer,
    Terminate,
    PowerCutAll,
    PowerCutLeader,
    PowerCutPair,
}

/// The number of events by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) partitions: u64,
    pub(crate) delays: u64,
    pub(crate) disk_faults: u64,
    pub(crate) membership_changes: u64,
    pub(crate) restarts_of_all: u64,
    pub(crate) orderly_restarts: u64,
    pub(crate) transfers: u64,
    pub(crate) roll_backs: u64,
    pub(crate) power_cuts: u64,
    pub(crate) power_cuts_of_all: u64,
    pub(crate) power_cuts_of_leader: u64,
    pub(crate) power_cuts_of_pairs: u64,
}

/// The source of the faults.
#[derive(Debug)]
pub(crate) struct Nemesis {
    pub(crate) cluster: Cluster,
    pub(crate) random: Random,
    pub(crate) tally: Tally,
    /// The time scale of faults. Most faults last between 0.25 and 1.25 times this time.
    pub(crate) hold: Duration,
    pub(crate) possible: PossibleFaults,
    /// The times at which the leader was lost.
    pub(crate) losses: Vec<Time>,
    bag: Vec<Fault>,
}

impl Fault {
    /// Returns the possible kinds of faults. Frequent kinds occur more than once.
    fn all(possible: PossibleFaults) -> Vec<Self> {
        use Fault::*;
        let (disk, syscalls) = (usize::from(possible.mount), usize::from(possible.strace));
        let power = usize::from(possible.power.is_some());
        let shares = [
            (3, KillLeader),
            (2, KillFollower),
            (2, KillSeveral),
            (1, KillAll),
            (2, StopLeader),
            (1, StopFollower),
            (3, PartLeader),
            (2, PartFollower),
            (2, OneWay),
            (2, Flapping),
            (1, Bridge),
            (1, Delay),
            (4 * disk, DiskFull),
            (2 * syscalls, DiskSlow),
            (4 * syscalls, DiskError),
            (2, Lag),
            (1, Wipe),
            (1, RemoveAndWipe),
            (1, RollBack),
            (1, Learner),
            (1, Transfer),
            (1, Terminate),
            (2 * power, PowerCutAll),
            (2 * power, PowerCutLeader),
            (power, PowerCutPair),
        ];
        shares.into_iter().flat_map(|(n, fault)| std::iter::repeat_n(fault, n)).collect()
    }

    /// Returns the faults of a short run.
    pub(crate) fn few(possible: PossibleFaults) -> Vec<Self> {
        use Fault::*;
        let mut few = vec![
            PartLeader,
            KillLeader,
            Lag,
            StopLeader,
            KillAll,
            OneWay,
            KillSeveral,
            Wipe,
            RollBack,
            Flapping,
        ];
        if possible.mount {
            few.push(DiskFull);
        }
        if possible.strace {
            few.push(DiskError);
        }
        if possible.power.is_some() {
            few.extend([PowerCutLeader, PowerCutAll]);
        }
        few
    }
}

impl Nemesis {
    pub(crate) fn new(
        cluster: Cluster,
        random: Random,
        hold: Duration,
        possible: PossibleFaults,
    ) -> Self {
        let (tally, losses, bag) = (Tally::default(), Vec::new(), Vec::new());
        Self { cluster, random, tally, hold, possible, losses, bag }
    }

    /// Returns a random fault from the bag of all kinds. An empty bag is filled again.
    pub(crate) fn next(&mut self) -> Fault {
        if self.bag.is_empty() {
            self.bag = Fault::all(self.possible);
        }
        let at = self.random.below(crate::stats::count(self.bag.len()));
        self.bag.swap_remove(usize::try_from(at).unwrap_or(0))
    }

    /// Causes a fault, heals it, and waits until the cluster has recovered.
    pub(crate) async fn round(&mut self, fault: Fault) -> Result<()> {
        self.tally.rounds += 1;
        say!("{:>4}  {fault:?}", self.tally.rounds);
        self.inflict(fault).await?;
        self.cluster.recover().await?;
        ensure!(self.cluster.network.is_whole(), "a proxy has ended");
        Ok(())
    }

    async fn inflict(&mut self, fault: Fault) -> Result<()> {
        use Fault::*;
        match fault {
            KillLeader => {
                let id = self.leader().await?;
                self.kill(id).await?;
                self.wait().await;
            }
            KillFollower => {
                let id = self.follower().await?;
                self.kill(id).await?;
                self.wait().await;
            }
            KillSeveral => self.kill_several().await?,
            KillAll => self.kill_all().await?,
            StopLeader => {
                let id = self.leader().await?;
                self.stop(id).await?;
            }
            StopFollower => {
                let id = self.follower().await?;
                self.stop(id).await?;
            }
            PartLeader | PartFollower | OneWay | Bridge | Flapping | Delay => {
                self.disturb(fault).await?;
            }
            DiskFull | DiskSlow | DiskError => self.spoil_disk(fault).await?,
            PowerCutAll | PowerCutLeader | PowerCutPair => self.cut_power(fault).await?,
            Lag => self.lag().await?,
            Wipe | RemoveAndWipe => self.wipe(fault).await?,
            RollBack => self.roll_back().await?,
            Learner => self.learner().await?,
            Transfer => {
                self.note_loss();
                let to = self.follower().await?;
                // The transfer may be refused if the target lags.
                if self.cluster.change(Change::Transfer(to)).await.is_ok() {
                    self.tally.transfers += 1;
                }
            }
            Terminate => {
                let leads = self.random.one_in(2);
                let id = self.cluster.pick(&mut self.random, leads).await?;
                self.cluster.count_snapshots().await;
                self.cluster.replica(id)?.end().await?;
                self.tally.orderly_restarts += 1;
                self.wait().await;
            }
        }
        Ok(())
    }

    async fn leader(&mut self) -> Result<Id> {
        let id = self.cluster.pick(&mut self.random, true).await?;
        self.note_loss();
        Ok(id)
    }

    async fn follower(&mut self) -> Result<Id> {
        self.cluster.pick(&mut self.random, false).await
    }

    fn note_loss(&mut self) {
        self.losses.push(self.cluster.history.now());
    }

    async fn wait(&mut self) {
        let time = self.hold / 4 + self.random.time(self.hold);
        sleep(time).await;
    }

    async fn kill(&mut self, id: Id) -> Result<()> {
        let replica = self.cluster.replica(id)?;
        if replica.kill().await?.is_some() {
            self.tally.kills += 1;
        }
        Ok(())
    }

    async fn start(&mut self, id: Id) -> Result<()> {
        self.cluster.spawn(id, true, false)
    }

    /// Kills and starts three replicas in sequence, while the previous one may still be starting.
    async fn kill_several(&mut self) -> Result<()> {
        self.note_loss();
        for _ in 0..3 {
            let leads = self.random.one_in(2);
            let id = self.cluster.pick(&mut self.random, leads).await?;
            self.kill(id).await?;
            sleep(self.random.time(self.hold / 3)).await;
            self.start(id).await?;
            sleep(self.random.time(self.hold / 3)).await;
        }
        Ok(())
    }

    async fn kill_all(&mut self) -> Result<()> {
        self.cluster.count_snapshots().await;
        for id in self.cluster.ids() {
            self.kill(id).await?;
        }
        self.tally.restarts_of_all += 1;
        Ok(())
    }

    async fn stop(&mut self, id: Id) -> Result<()> {
        self.cluster.replica(id)?.signal(Signal::STOP)?;
        self.tally.stops += 1;
        self.wait().await;
        self.cluster.replica(id)?.signal(Signal::CONT)
    }

    /// Causes a fault of the network. In one of three cases a replica is killed too.
    async fn disturb(&mut self, fault: Fault) -> Result<()> {
        let leader = self.leader().await?;
        let others: Vec<Id> = self.cluster.ids().into_iter().filter(|id| *id != leader).collect();
        let follower = self.follower().await?;
        let rest: Vec<Id> = self.cluster.ids().into_iter().filter(|id| *id != follower).collect();
        let part_leader = || Rules::default().part(&[leader], &others);
        match fault {
            Fault::PartLeader => self.cluster.network.set(part_leader()),
            Fault::PartFollower => {
                self.cluster.network.set(Rules::default().part(&[follower], &rest));
            }
            // From the leader to all, from all to the leader, or from the leader to one follower.
            Fault::OneWay => {
                let mut rules = Rules::default();
                rules = match self.random.below(3) {
                    0 => others.iter().fold(rules, |rules, to| rules.cut(leader, *to)),
                    1 => others.iter().fold(rules, |rules, from| rules.cut(*from, leader)),
                    _ => rules.cut(leader, follower),
                };
                self.cluster.network.set(rules);
            }
            // The third replica reaches both.
            Fault::Bridge => {
                self.cluster.network.set(Rules::default().part(&[leader], &[follower]));
            }
            Fault::Flapping => {
                let rules = if self.random.one_in(2) {
                    part_leader()
                } else {
                    Rules::default().part(&[follower], &rest)
                };
                for _ in 0..6 {
                    self.cluster.network.set(rules.clone());
                    sleep(self.random.time(FLAP_MAX)).await;
                    self.cluster.network.set(Rules::default());
                    sleep(self.random.time(FLAP_MAX)).await;
                }
                self.cluster.network.set(rules);
            }
            _ => {
                let mut rules = Rules::default();
                for from in self.cluster.ids() {
                    for to in self.cluster.ids() {
                        rules = rules.delay(from, to, self.random.time(DELAY_MAX));
                    }
                }
                self.cluster.network.set(rules);
            }
        }
        match fault {
            Fault::Delay => self.tally.delays += 1,
            _ => self.tally.partitions += 1,
        }
        self.wait().await;
        if self.random.one_in(3) {
            let victim = if self.random.one_in(2) { leader } else { follower };
            self.kill(victim).await?;
            self.start(victim).await?;
            self.wait().await;
        }
        Ok(())
    }

    async fn spoil_disk(&mut self, fault: Fault) -> Result<()> {
        let leads = self.random.one_in(2);
        let id = self.cluster.pick(&mut self.random, leads).await?;
        if leads {
            self.note_loss();
        }
        let how = match fault {
            Fault::DiskSlow => Some(SyncFault::Slow(SLOW_MAX / 10 + self.random.time(SLOW_MAX))),
            Fault::DiskError => Some(SyncFault::Fail),
            _ => None,
        };
        self.cluster.note_disk_fault(id);
        let replica = self.cluster.replica(id)?;
        match (how, replica.pid()) {
            (Some(how), Some(pid)) => replica.disk.start_sync_fault(pid, how)?,
            _ => replica.disk.fill()?,
        }
        self.tally.disk_faults += 1;
        self.wait().await;
        // Acknowledged writes are on the disk, even if the process ends now.
        if self.random.one_in(3) {
            self.kill(id).await?;
        }
        Ok(())
    }

    /// Cuts the power of the machines of some replicas, and restores it at once.
    async fn cut_power(&mut self, fault: Fault) -> Result<()> {
        let leader = self.leader().await?;
        let mut ids = match fault {
            Fault::PowerCutAll => self.cluster.ids(),
            _ => vec![leader],
        };
        if fault == Fault::PowerCutPair {
            ids.push(self.follower().await?);
            ids.dedup();
        }
        // The followers then have entries that the leader has not synced yet, and commit them.
        let is_image = self.possible.power == Some(PowerCut::Image);
        if is_image && self.possible.strace && !self.random.one_in(3) {
            let replica = self.cluster.replica(leader)?;
            if let Some(pid) = replica.pid() {
                let by = SLOW_MAX / 2 + self.random.time(SLOW_MAX);
                self.cluster.replica(leader)?.disk.start_sync_fault(pid, SyncFault::Slow(by))?;
                sleep(STRACE_STARTS).await;
            }
        }
        sleep(self.random.time(self.hold / 8)).await;
        self.cluster.count_snapshots().await;
        match self.possible.power {
            Some(PowerCut::Image) => self.cluster.shut_down_disks(&ids).await?,
            _ => self.cluster.hold_syncs(&ids, STRACE_STARTS).await?,
        }
        self.cluster.power_up(&ids).await?;
        self.tally.power_cuts += 1;
        match fault {
            Fault::PowerCutAll => self.tally.power_cuts_of_all += 1,
            Fault::PowerCutLeader => self.tally.power_cuts_of_leader += 1,
            _ => self.tally.power_cuts_of_pairs += 1,
        }
        sleep(self.random.time(self.hold / 2)).await;
        Ok(())
    }

    /// Keeps a replica down until the log of the others no longer reaches back to it.
    async fn lag(&mut self) -> Result<()> {
        let id = self.follower().await?;
        let last = self.cluster.status(id).await.map_or(0, |status| status.last_log_index);
        self.cluster.count_snapshots().await;
        self.kill(id).await?;
        let through = self.cluster.pick(&mut self.random, true).await?;
        let first_key = self.cluster.keys + 16;
        let deadline = Instant::now() + BURST_TIME;
        for _ in 0..BURST / BURST_WIDTH {
            if Instant::now() > deadline {
                break;
            }
            let Some(ports) = self.cluster.ready.ports(through) else { break };
            let admin = Admin::new(ports)?;
            let history = &self.cluster.history;
            let writes = (0..BURST_WIDTH).map(|n| {
                let mut admin = admin.clone();
                async move { load::write(history, through, &mut admin, first_key + n).await }
            });
            join_all(writes).await;
        }
        let snapshot = self.cluster.status(through).await.map(|status| status.snapshot_index);
        say!(
            "      replica {id} has entries up to {last}; the snapshot of replica {through} is {snapshot:?}"
        );
        self.start(id).await?;
        // Sometimes the replica is killed while it receives the snapshot.
        if self.random.one_in(3) {
            sleep(self.random.time(Duration::from_secs(2))).await;
            self.kill(id).await?;
        }
        Ok(())
    }

    /// Deletes the data of a replica, which returns under its number.
    async fn wipe(&mut self, fault: Fault) -> Result<()> {
        let leads = self.random.one_in(4);
        let id = self.cluster.pick(&mut self.random, leads).await?;
        self.cluster.count_snapshots().await;
        if fault == Fault::RemoveAndWipe {
            self.cluster.change(Change::Remove(id)).await?;
            self.tally.membership_changes += 1;
            // The removed replica does no harm while it does not know that it was removed.
            self.wait().await;
        }
        self.kill(id).await?;
        let replica = self.cluster.replica(id)?;
        replica.wipe()?;
        self.start(id).await?;
        // The replica is removed (if it was not yet), added, and promoted.
        self.tally.membership_changes += 2;
        Ok(())
    }

    /// Starts a follower from an older copy of its directory. It stops and reports the reason, and
    /// the others continue. Then it joins again without data.
    async fn roll_back(&mut self) -> Result<()> {
        let id = self.follower().await?;
        self.cluster.count_snapshots().await;
        self.kill(id).await?;
        self.cluster.replica(id)?.disk.copy_synced()?;
        self.start(id).await?;
        self.cluster.wait_ready(id).await?;
        self.wait().await;
        self.kill(id).await?;
        self.cluster.replica(id)?.disk.put_back()?;
        self.start(id).await?;
        self.cluster.wait_stopped(id).await?;
        self.wait().await;
        self.kill(id).await?;
        self.cluster.replica(id)?.wipe()?;
        self.start(id).await?;
        self.tally.roll_backs += 1;
        self.tally.membership_changes += 2;
        Ok(())
    }

    /// Adds a learner, promotes it, and removes it.
    async fn learner(&mut self) -> Result<()> {
        let id = self.cluster.ids().into_iter().max().unwrap_or(0) + 1;
        self.cluster.add(id)?;
        self.cluster.spawn(id, true, true)?;
        self.cluster.wait_ready(id).await?;
        self.wait().await;
        self.cluster.change(Change::Promote(id)).await?;
        self.wait().await;
        let leader = self.cluster.pick(&mut self.random, true).await?;
        if self.random.one_in(2) {
            self.note_loss();
            self.kill(leader).await?;
            self.start(leader).await?;
            self.cluster.wait_ready(leader).await?;
        }
        self.cluster.change(Change::Remove(id)).await?;
        self.tally.membership_changes += 3;
        self.cluster.count_snapshots().await;
        self.kill(id).await?;
        self.cluster.replica(id)?.wipe()?;
        self.cluster.replicas.remove(&id);
        Ok(())
    }
}
