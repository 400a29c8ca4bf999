//! Faults in a cluster of real processes under load, and a check of its guarantees (L1 to L6, L8
//! and L13).
//!
//! Each round causes one fault of a seeded schedule ([`Nemesis`]) and heals it. Then every replica
//! must soon accept writes again. Writers and clients work all the time ([`load`], [`streams`]).
//! One [`History`] records their requests and everything that they receive. At the end, faults and
//! writes stop. Every client must then get all committed values, and the history of every register
//! must be linearizable ([`linear`]). A seed reproduces the schedule, but not the activity of the
//! processes.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use crate::{
    common::Common,
    random::Random,
    report::{Findings, Gate, say},
    stats::{Latencies, count, float},
};

mod cluster;
mod disk;
mod faults;
mod history;
mod linear;
mod load;
mod power;
mod proxy;
mod ready_replicas;
mod replica;
mod streams;

use cluster::{Cluster, compare_states};
use disk::PossibleFaults;
use faults::{Fault, Nemesis};
use history::{Guarantee, History, Indefinite};
use linear::Time;
use load::{Admin, Writer, read_at_last};
use streams::{Client, ClientValues, Protocol, State};

/// The maximum time without faults and writes until all clients have all committed values.
const QUIET: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Inject faults into a cluster under load and check all guarantees
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Seed of the schedule of faults and of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum number of rounds; each has one fault
    #[arg(long, default_value_t = 100_000)]
    rounds: u64,
    /// Minutes after which no new round begins
    #[arg(long, default_value_t = 120.0)]
    minutes: f64,
    /// Minimum number of SIGKILLs; the run continues until this and the next two numbers are
    /// reached
    #[arg(long, default_value_t = 300)]
    kills: u64,
    /// Minimum number of partitions
    #[arg(long, default_value_t = 100)]
    partitions: u64,
    /// Minimum number of disk faults
    #[arg(long, default_value_t = 100)]
    disk_faults: u64,
    /// Minimum number of power cuts [default: 30 where disks can lose their power, 2 with --short,
    /// 0 with --only]
    #[arg(long)]
    power_cuts: Option<u64>,
    /// Run one round of each of a few kinds, regardless of the numbers above
    #[arg(long)]
    short: bool,
    /// Voting replicas: 3 or 5
    #[arg(long, default_value_t = 3)]
    replicas: u64,
    /// Concurrent writers
    #[arg(long, default_value_t = 12)]
    writers: u64,
    /// Milliseconds between two operations of a writer, on average
    #[arg(long, default_value_t = 60)]
    pause_ms: u64,
    /// Delta streams
    #[arg(long, default_value_t = 32)]
    delta: u64,
    /// SotW streams
    #[arg(long, default_value_t = 8)]
    sotw: u64,
    /// Registers that the writers use
    #[arg(long, default_value_t = 40)]
    keys: usize,
    /// Approximate maximum duration of a fault in seconds [default: 5, or 1.2 with --short]
    #[arg(long)]
    hold: Option<f64>,
    /// Seconds within which a healed cluster must accept writes at every replica
    #[arg(long, default_value_t = 10.0)]
    progress: f64,
    /// Minimum rate of acknowledged writes per second, on average
    #[arg(long, default_value_t = 10.0)]
    rate_min: f64,
    /// Inject only these faults (`kill_leader`, …), in turn, until `--rounds`, `--minutes` or
    /// `--power-cuts` is reached
    #[arg(long, value_name = "FAULT,…", value_parser = parse_fault, value_delimiter = ',')]
    only: Vec<Fault>,
}

/// The tasks that run beside the faults.
struct Load {
    stop_writing: Arc<AtomicBool>,
    stop_listening: Arc<AtomicBool>,
    writers: JoinSet<Result<()>>,
    clients: JoinSet<Result<()>>,
    /// Compares the states of the replicas.
    comparing: JoinSet<()>,
    client_values: Vec<(String, ClientValues)>,
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    serde_json::from_value(json!(text)).map_err(|error| error.to_string())
}

impl Args {
    pub(crate) async fn run(&self, common: &Common, dir: &Path) -> Result<Findings> {
        ensure!(matches!(self.replicas, 3 | 5), "--replicas must be 3 or 5");
        ensure!(self.writers > 0 && self.keys > 0, "--writers and --keys must be greater than 0");
        let hold = self.hold.unwrap_or(if self.short { 1.2 } else { 5.0 });
        let hold = Duration::try_from_secs_f64(hold).context("--hold")?;
        let start = Instant::now();
        let history = Arc::new(History::new());
        let progress = Duration::from_secs_f64(self.progress);
        let cluster = Cluster::start(
            (&common.binary, dir),
            self.replicas,
            self.keys,
            progress,
            Arc::clone(&history),
        )
        .await?;
        let possible = cluster.replicas.values().next().context("no replicas")?.disk.possible();
        say!("possible disk faults: {possible:?}");
        let mut load = self.start_load(&history, &cluster);
        let compared = compare_states(
            Arc::clone(&cluster.ready),
            Arc::clone(&history),
            Arc::clone(&load.stop_listening),
        );
        load.comparing.spawn(compared);
        let first_term = cluster.term().await;
        let mut nemesis = Nemesis::new(cluster, Random::new(self.seed), hold, possible);
        let ended = self.torment(&mut nemesis, start).await;
        let load_time = start.elapsed();
        let mut checked = Checked { load_time, ..Checked::default() };
        match ended {
            Ok(()) => checked.streams = self.settle(&mut nemesis, &mut load, &history).await?,
            // The cause is in the history, or it is an error of the test.
            Err(error) => {
                history.report(Guarantee::Progress, format!("the run was aborted: {error:#}"))
            }
        }
        load.stop_writing.store(true, Ordering::Relaxed);
        load.stop_listening.store(true, Ordering::Relaxed);
        checked.elections = nemesis.cluster.term().await.saturating_sub(first_term);
        nemesis.cluster.end().await?;
        drop(load);
        checked.indefinite = history.check();
        if !history.violations().1.is_empty() {
            keep(&nemesis, dir, self.seed)?;
        }
        self.findings(&nemesis, &history, &checked)
    }

    fn start_load(&self, history: &Arc<History>, cluster: &Cluster) -> Load {
        let mut load = Load {
            stop_writing: Arc::default(),
            stop_listening: Arc::default(),
            writers: JoinSet::new(),
            clients: JoinSet::new(),
            comparing: JoinSet::new(),
            client_values: Vec::new(),
        };
        let random = |n: u64| Random::new(self.seed.wrapping_mul(1_000_003).wrapping_add(n));
        for n in 0..self.writers {
            let writer = Writer {
                keys: self.keys,
                random: random(n),
                history: Arc::clone(history),
                ready: Arc::clone(&cluster.ready),
                pause: Duration::from_millis(self.pause_ms),
                stop: Arc::clone(&load.stop_writing),
                known: HashMap::new(),
            };
            load.writers.spawn(writer.run());
        }
        let clients = (0..self.delta)
            .map(|n| (Protocol::Delta, n))
            .chain((0..self.sotw).map(|n| (Protocol::Sotw, n)));
        for (protocol, n) in clients {
            let id = format!("{protocol:?}-{n}").to_lowercase();
            let values = ClientValues::default();
            load.client_values.push((id.clone(), Arc::clone(&values)));
            let client = Client {
                id,
                protocol,
                random: random(1000 + n),
                history: Arc::clone(history),
                ready: Arc::clone(&cluster.ready),
                values,
                stay: Duration::from_secs(10),
                stop: Arc::clone(&load.stop_listening),
                state: State::default(),
            };
            load.clients.spawn(client.run());
        }
        load
    }

    async fn torment(&self, nemesis: &mut Nemesis, start: Instant) -> Result<()> {
        sleep(POLL * 10).await;
        if self.short {
            for fault in Fault::few(nemesis.possible) {
                nemesis.round(fault).await?;
            }
            return Ok(());
        }
        let end = start + Duration::from_secs_f64(self.minutes * 60.0);
        while Instant::now() < end && nemesis.tally.rounds < self.rounds {
            let tally = nemesis.tally;
            let cuts = self.least_power_cuts(nemesis.possible);
            let is_enough = if self.only.is_empty() {
                tally.kills >= self.kills
                    && tally.partitions >= self.partitions
                    && tally.disk_faults >= self.disk_faults
            } else {
                cuts > 0
            };
            if is_enough && tally.power_cuts >= cuts {
                break;
            }
            let next = nemesis.next();
            let turn = usize::try_from(tally.rounds)?.checked_rem(self.only.len());
            nemesis.round(turn.map_or(next, |turn| self.only[turn])).await?;
        }
        Ok(())
    }

    /// Returns the minimum number of power cuts, below which a run fails.
    fn least_power_cuts(&self, possible: PossibleFaults) -> u64 {
        let default = match (self.short, self.only.is_empty(), possible.power.is_some()) {
            (true, _, true) => 2,
            (false, true, true) => 30,
            _ => 0,
        };
        self.power_cuts.unwrap_or(default)
    }

    /// Stops writes and faults, and waits until every client has all committed values. Then reads
    /// every register. Returns the number of clients that have all committed values.
    async fn settle(
        &self,
        nemesis: &mut Nemesis,
        load: &mut Load,
        history: &History,
    ) -> Result<u64> {
        load.stop_writing.store(true, Ordering::Relaxed);
        while let Some(ended) = load.writers.join_next().await {
            ended??;
        }
        let deadline = Instant::now() + QUIET;
        let wrong = loop {
            let wrong = match self.differences(nemesis, load).await {
                Ok(differences) => differences,
                Err(error) => vec![format!("{error:#}")],
            };
            if wrong.is_empty() {
                break wrong;
            }
            if Instant::now() > deadline {
                let what = format!("{QUIET:?} after the last write: {}", wrong.join("; "));
                history.report(Guarantee::Complete, what);
                break wrong;
            }
            sleep(POLL).await;
        };
        for id in nemesis.cluster.ids() {
            let ports = nemesis.cluster.ready.ports(id).context("a replica is not ready")?;
            let mut admin = Admin::new(ports)?;
            for key in 0..self.keys {
                read_at_last(history, id, &mut admin, key).await?;
            }
        }
        Ok(count(load.client_values.len()).saturating_sub(count(wrong_clients(&wrong))))
    }

    /// Returns the differences between replicas and clients.
    async fn differences(&self, nemesis: &Nemesis, load: &Load) -> Result<Vec<String>> {
        let mut states: Vec<(u64, BTreeMap<String, String>)> = Vec::new();
        let mut committed: HashMap<String, u64> = HashMap::new();
        for id in nemesis.cluster.ids() {
            let ports = nemesis.cluster.ready.ports(id).context("a replica is not ready")?;
            let (revision, all) = Admin::new(ports)?.read_all().await?;
            let show = |(name, (value, version)): (&String, &(u64, _))| {
                (name.clone(), format!("v{value} {version}"))
            };
            states.push((revision, all.iter().map(show).collect()));
            committed = all.into_iter().map(|(name, (value, _))| (name, value)).collect();
        }
        let mut differences = Vec::new();
        if !states.iter().zip(states.iter().skip(1)).all(|(one, next)| one == next) {
            let revisions: Vec<u64> = states.iter().map(|state| state.0).collect();
            differences.push(format!("replicas differ, at revisions {revisions:?}"));
        }
        for (id, values) in &load.client_values {
            let values = values.lock();
            let differs = |name: &&String| values.get(*name) != committed.get(*name);
            let names = values.keys().chain(committed.keys()).find(differs);
            if let Some(name) = names {
                differences.push(format!(
                    "client {id} has {:?} for {name}, but {:?} is committed",
                    values.get(name),
                    committed.get(name)
                ));
            }
        }
        Ok(differences)
    }

    fn findings(
        &self,
        nemesis: &Nemesis,
        history: &History,
        checked: &Checked,
    ) -> Result<Findings> {
        let (counts, (violations, by_guarantee)) = (history.counts(), history.violations());
        let rate = float(counts.acked_writes) / checked.load_time.as_secs_f64().max(1e-9);
        let gaps = Latencies::of(gaps(&nemesis.losses, &history.acks()));
        let mut text = self.summary(nemesis, checked)?;
        writeln!(text, "checked    {counts:?}, {rate:.1} acknowledged writes per second")?;
        if let Some(gaps) = &gaps {
            writeln!(text, "write gap  when the leader is lost: {gaps}")?;
        }
        for violation in &violations {
            writeln!(text, "\n{violation}")?;
        }
        let mut gates = guarantees(&by_guarantee);
        gates.extend([
            Gate::above("state digests compared", float(counts.compared_digests), 0.5),
            Gate::none("registers without a definite verdict", checked.indefinite.undecided),
            Gate::above("acknowledged writes per second", rate, self.rate_min),
            Gate::above(
                "deliveries per acknowledged write",
                float(counts.deliveries) / float(counts.acked_writes.max(1)),
                1.0,
            ),
        ]);
        gates.extend(self.coverage(nemesis));
        let data = json!({
            "seed": self.seed,
            "seconds": checked.load_time.as_secs_f64(),
            "faults": nemesis.tally,
            "restarted_after_failure": nemesis.cluster.restarted_after_failure,
            "snapshots_installed": nemesis.cluster.snapshots_installed(),
            "elections": checked.elections,
            "checked": counts,
            "clients_complete": checked.streams,
            "slowest_progress_ms": nemesis.cluster.slowest_progress.as_millis(),
            "write_gap": gaps,
            "violations": violations,
        });
        Ok(Findings { text, data, gates })
    }

    /// Returns the text about the faults and the state of the cluster.
    fn summary(&self, nemesis: &Nemesis, checked: &Checked) -> Result<String> {
        let mut text = String::new();
        writeln!(text, "seed {}, {:.0} s under load", self.seed, checked.load_time.as_secs_f64())?;
        writeln!(text, "faults     {:?}", nemesis.tally)?;
        writeln!(
            text,
            "disks      {:?}; stores restarted after a fault {}",
            nemesis.possible, nemesis.cluster.restarted_after_failure
        )?;
        if nemesis.possible.power.is_none() {
            let needs = "root, loop devices, mkfs.ext4 and python3; or strace";
            writeln!(text, "power      not cut: that needs {needs}")?;
        }
        let installed = nemesis.cluster.snapshots_installed();
        writeln!(text, "snapshots  {installed} installed; {} elections", checked.elections)?;
        writeln!(text, "quiet      {} clients have all committed values", checked.streams)?;
        writeln!(
            text,
            "progress   {:.2?} after healing, at most",
            nemesis.cluster.slowest_progress
        )?;
        writeln!(
            text,
            "registers  {} were checked without counting unobserved operations",
            checked.indefinite.uncounted
        )?;
        Ok(text)
    }

    /// Returns the gates for the minimum numbers of faults.
    fn coverage(&self, nemesis: &Nemesis) -> Vec<Gate> {
        let (tally, possible) = (nemesis.tally, nemesis.possible);
        let least =
            |what, found: u64, least: u64| Gate::above(what, float(found), float(least) - 0.5);
        let any = self.only.is_empty();
        let (kills, partitions, disks) = match (self.short, any) {
            (true, _) => (6, 3, u64::from(possible.mount) + u64::from(possible.strace)),
            (false, false) => (0, 0, 0),
            (false, true) => (self.kills, self.partitions, self.disk_faults),
        };
        let mut gates = vec![
            least("SIGKILLs", tally.kills, kills),
            least("partitions", tally.partitions, partitions),
            least("faults of disks", tally.disk_faults, disks),
            least("power cuts", tally.power_cuts, self.least_power_cuts(possible)),
        ];
        // Stores that stopped show that disks failed.
        if !self.short && any && possible.strace {
            let stopped = nemesis.cluster.restarted_after_failure;
            gates.push(least("stores that stopped because of their disk", stopped, 1));
        }
        if any {
            gates.push(least("restarts of all replicas", tally.restarts_of_all, 1));
            gates.push(least("stops", tally.stops, 1));
            gates.push(least("changes of the membership", tally.membership_changes, 1));
            gates.push(Gate::above(
                "snapshots installed",
                nemesis.cluster.snapshots_installed(),
                0.5,
            ));
        }
        gates
    }
}

/// Returns the gates that no guarantee was violated.
fn guarantees(violations: &BTreeMap<Guarantee, u64>) -> Vec<Gate> {
    use Guarantee::*;
    let gate = |what, guarantees: &[Guarantee]| {
        let found = guarantees.iter().filter_map(|guarantee| violations.get(guarantee)).sum();
        Gate::none(what, found)
    };
    vec![
        gate("acknowledged writes lost, or not linearizable", &[Linearizable, Order]),
        gate("resources that a client received after newer ones", &[Backwards]),
        gate("resources that no writer wrote", &[Phantom]),
        gate("versions with two contents, values with two versions", &[SameBytes]),
        gate("state digests that differ at one position", &[SameState]),
        gate("clients without all committed values", &[Complete]),
        gate("resources sent again to delta clients that had them", &[Resent]),
        gate("healed clusters that accepted no writes", &[Progress]),
        gate("processes that ended or panicked", &[Alive]),
    ]
}

/// The results of the end of a run.
#[derive(Debug, Default)]
struct Checked {
    load_time: Duration,
    /// The number of clients with all committed values.
    streams: u64,
    elections: u64,
    indefinite: Indefinite,
}

fn wrong_clients(differences: &[String]) -> usize {
    differences.iter().filter(|text| text.starts_with("client ")).count()
}

/// Returns the longest time without an acknowledged write around each of these times.
fn gaps(losses: &[Time], acks: &[Time]) -> Vec<Duration> {
    const BEFORE: Time = 200_000;
    const AFTER: Time = 1_000_000;
    let gap = |loss: &Time| {
        let from = acks.partition_point(|ack| *ack < loss.saturating_sub(BEFORE));
        let near = acks.get(from..)?;
        let starts = near.iter().take_while(|ack| **ack < loss + AFTER);
        starts.zip(near.iter().skip(1)).map(|(one, next)| next - one).max()
    };
    losses.iter().filter_map(gap).map(Duration::from_micros).collect()
}

/// Copies the data and the logs of all replicas to a directory that is kept.
fn keep(nemesis: &Nemesis, dir: &Path, seed: u64) -> Result<()> {
    let beside = dir.parent().unwrap_or(dir);
    let kept = tempfile::Builder::new()
        .prefix(&format!("chancery-nemesis-{seed}-"))
        .tempdir_in(beside)
        .context("create a directory for the data and logs")?
        .keep();
    for (id, replica) in &nemesis.cluster.replicas {
        let to = kept.join(format!("replica-{id}"));
        std::fs::create_dir_all(&to)?;
        replica.disk.keep(&to)?;
        std::fs::copy(replica.log(), to.join("chancery.log"))?;
    }
    say!("seed {seed}: data and logs are kept in {}", kept.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_is_the_longest_pause_around_a_fault() {
        let acks: Vec<Time> = vec![0, 100, 1_000_000, 1_100_000, 3_000_000, 3_100_000, 9_000_000];
        let found = gaps(&[1_050_000, 20_000_000], &acks);
        assert_eq!(found, [Duration::from_micros(1_900_000)]);
    }

    #[test]
    fn fault_names_are_parsed() {
        assert_eq!(parse_fault("kill_leader"), Ok(Fault::KillLeader));
        assert!(parse_fault("rain").is_err());
    }
}
