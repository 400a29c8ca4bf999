//! The report of the restarts.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{
    args::Args,
    shared::{Counts, End, Protocol},
    writers::Written,
};
use crate::{
    report::{Findings, Gate},
    stats::{Latencies, count, float},
};

/// One restart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) end: End,
    pub(super) was_leader: bool,
    pub(super) from: Instant,
    pub(super) to: Instant,
    /// The time from the start of the following change until the last client has it.
    pub(super) current_in: Duration,
}

/// All results of a run.
pub(super) struct Outcome {
    pub(super) counts: BTreeMap<Protocol, Counts>,
    /// The reasons of the first streams that ended otherwise.
    pub(super) reasons: Vec<String>,
    /// The number of clients with wrong resources at the end.
    pub(super) clients_differ: u64,
    /// The number of pairs of replicas with different versions.
    pub(super) replicas_differ: u64,
    /// The number of acknowledged writes that a replica lacked at the end.
    pub(super) lost: u64,
    /// The restarts, each with the longest time without an acknowledged write.
    pub(super) pauses: Vec<(Step, Duration)>,
    pub(super) written: Vec<Written>,
}

impl Outcome {
    fn sum(&self, of: impl Fn(&Counts) -> u64) -> u64 {
        self.counts.values().map(of).sum()
    }

    fn gaps(&self, end: End, was_leader: bool) -> Option<Latencies> {
        let wanted = |step: &Step| step.end == end && step.was_leader == was_leader;
        let pauses = self.pauses.iter().filter(|(step, _)| wanted(step));
        Latencies::of(pauses.map(|(_, pause)| *pause).collect())
    }

    fn current(&self) -> Option<Latencies> {
        Latencies::of(self.pauses.iter().map(|(step, _)| step.current_in).collect())
    }

    fn restarts(&self, end: End) -> Option<Latencies> {
        let steps = self.pauses.iter().map(|(step, _)| step).filter(|step| step.end == end);
        Latencies::of(steps.map(|step: &Step| step.to - step.from).collect())
    }

    fn failed(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for (what, n) in self.written.iter().flat_map(|written| &written.failed) {
            *all.entry(what.as_str()).or_default() += n;
        }
        all
    }
}

pub(super) fn findings(args: &Args, outcome: &Outcome) -> Result<Findings> {
    let latencies = outcome.written.iter().flat_map(|written| written.latencies.iter().copied());
    let latency = Latencies::of(latencies.collect()).context("no write was acknowledged")?;
    let times: Vec<Instant> =
        outcome.written.iter().flat_map(|written| written.acked.iter().copied()).collect();
    let elapsed = times.iter().max().zip(times.iter().min()).map(|(last, first)| *last - *first);
    let per_second = float(count(latency.n)) / elapsed.unwrap_or_default().as_secs_f64().max(1e-9);
    let gaps = [
        ("the leader, SIGTERM", outcome.gaps(End::Asked, true)),
        ("another replica, SIGTERM", outcome.gaps(End::Asked, false)),
        ("the leader, SIGKILL", outcome.gaps(End::Killed, true)),
    ];
    let failed = outcome.failed();
    let mut text = String::new();
    writeln!(
        text,
        "{} replicas, {} delta and {} SotW streams of {} clusters; {} writers",
        args.replicas, args.delta, args.sotw, args.resources, args.writers
    )?;
    for (protocol, counts) in &outcome.counts {
        write_counts(&mut text, *protocol, counts)?;
    }
    for reasons in &outcome.reasons {
        writeln!(text, "  ended otherwise: {reasons}")?;
    }
    writeln!(text, "\nwrites")?;
    writeln!(text, "  acknowledged                  {} ({per_second:.0} per second)", latency.n)?;
    writeln!(text, "  latency                       {latency}")?;
    for (what, n) in &failed {
        writeln!(text, "  failed or unknown             {n}: {what}")?;
    }
    writeln!(text, "\nlongest time without an acknowledged write, by restart of")?;
    for (what, gap) in gaps.iter().filter_map(|(what, gap)| Some((what, gap.as_ref()?))) {
        writeln!(text, "  {what:<28}  {gap}")?;
    }
    for (what, time) in [
        ("restart, SIGTERM to recovery", outcome.restarts(End::Asked)),
        ("restart, SIGKILL to recovery", outcome.restarts(End::Killed)),
        ("then a change to all clients", outcome.current()),
    ] {
        if let Some(time) = time {
            writeln!(text, "{what:<30}  {time}")?;
        }
    }
    let streams: BTreeMap<String, &Counts> = outcome
        .counts
        .iter()
        .map(|(protocol, counts)| (format!("{protocol:?}").to_lowercase(), counts))
        .collect();
    let data = json!({
        "streams": streams,
        "writes": {"acknowledged": latency.n, "latency": latency, "failed": failed, "lost": outcome.lost},
        "gaps": {
            "leader_asked": gaps[0].1,
            "other_asked": gaps[1].1,
            "leader_killed": gaps[2].1,
        },
        "leader_changes": outcome.pauses.iter().filter(|(step, _)| step.was_leader).count(),
        "current": outcome.current(),
    });
    Ok(Findings { text, data, gates: gates(args, outcome) })
}

fn gates(args: &Args, outcome: &Outcome) -> Vec<Gate> {
    let delta = outcome.counts.get(&Protocol::Delta);
    let needlessly = delta.map_or(0, |counts| counts.types.values().map(|it| it.needlessly).sum());
    let resumed = delta.map_or(0, |counts| counts.resumed);
    let ended = outcome.sum(|counts| counts.moved + counts.cut + counts.ended_otherwise);
    let changes =
        outcome.pauses.iter().filter(|(step, _)| step.was_leader && step.end == End::Asked);
    let mut gates = vec![
        Gate::none("resources sent again to delta wildcard streams", needlessly),
        Gate::none(
            "older versions, or equal versions with other bytes",
            outcome.sum(|counts| counts.backwards + counts.other_bytes),
        ),
        Gate::none(
            "streams that ended for any other reason",
            outcome.sum(|counts| counts.ended_otherwise),
        ),
        Gate::none(
            "streams that ended and did not resume",
            ended.saturating_sub(outcome.sum(|counts| counts.resumed)),
        ),
        Gate::none("clients with wrong resources at the end", outcome.clients_differ),
        Gate::none("pairs of replicas with different versions", outcome.replicas_differ),
        Gate::none("acknowledged writes lost", outcome.lost),
        Gate::at_least("delta streams that resumed", float(resumed), float(count(args.delta))),
        Gate::at_least(
            "changes of the leader",
            float(count(changes.count())),
            float(count(args.leader_changes)),
        ),
    ];
    for (what, end, limit) in [
        ("seconds without a write when the leader changes, p99", End::Asked, args.gap_max),
        (
            "seconds without a write when the leader was killed, p99",
            End::Killed,
            args.gap_killed_max,
        ),
    ] {
        if let Some(gap) = outcome.gaps(end, true) {
            gates.push(Gate::at_most(what, gap.p99_ms / 1e3, limit));
        }
    }
    gates
}

fn write_counts(text: &mut String, protocol: Protocol, counts: &Counts) -> Result<()> {
    let Counts { resumed, moved, cut, ended_otherwise, backwards, other_bytes, types } = counts;
    writeln!(text, "\n{protocol:?}")?;
    writeln!(text, "  streams ended, and resumed    {}, {resumed}", moved + cut + ended_otherwise)?;
    writeln!(text, "    ended: TERM, KILL, other    {moved}, {cut}, {ended_otherwise}")?;
    writeln!(text, "  versions backwards            {backwards}")?;
    writeln!(text, "  same version, other bytes     {other_bytes}")?;
    for (type_url, sent) in types {
        let name = type_url.rsplit('.').next().unwrap_or(type_url);
        writeln!(
            text,
            "  {name:<28}  {} sent, {} of them again and unchanged on a resumed stream",
            sent.resources, sent.needlessly
        )?;
    }
    Ok(())
}
