//! The report of the comparison.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::{
    args::Args,
    turn::{Turn, VALUE_BYTES},
};
use crate::{
    report::{Findings, Gate},
    stats::{Latencies, Spread},
};

/// The measurements of one round.
pub(super) struct Round {
    /// The median latency of the disk alone when a block is overwritten, in milliseconds.
    pub(super) over_ms: f64,
    /// The median latency of the disk alone when a block is appended, in milliseconds.
    pub(super) append_ms: f64,
    /// The turns of each subject, in order: one writer, many writers.
    pub(super) turns: Vec<(Turn, Turn)>,
}

/// The statistics of one system with one number of writers.
#[derive(Debug, Serialize)]
struct Row {
    writes_per_second: Spread,
    latency: Latencies,
    /// The median latency, by round.
    p50_ms: Spread,
    /// The maximum latency, by round.
    slowest_ms: Spread,
    /// Microseconds of CPU per write, for all replicas together.
    cpu_us: Spread,
    /// Microseconds of CPU per write, for this program.
    own_cpu_us: Spread,
    /// The CPUs that other processes used.
    others: Spread,
    /// Syncs of all Chancery replicas together, per write.
    fsyncs_per_write: Spread,
}

fn row<'a>(turns: impl Iterator<Item = &'a Turn> + Clone) -> Option<Row> {
    let spread = |of: &dyn Fn(&Turn) -> Option<f64>| {
        Spread::of(&turns.clone().filter_map(of).collect::<Vec<_>>())
    };
    let latencies = |turn: &Turn| Latencies::of(turn.latencies.clone());
    let all: Vec<Duration> =
        turns.clone().flat_map(|turn| turn.latencies.iter().copied()).collect();
    Some(Row {
        writes_per_second: spread(&|turn| Some(turn.writes_per_second))?,
        latency: Latencies::of(all)?,
        p50_ms: spread(&|turn| Some(latencies(turn)?.p50_ms))?,
        slowest_ms: spread(&|turn| Some(latencies(turn)?.max_ms))?,
        cpu_us: spread(&|turn| Some(turn.cpu_us))?,
        own_cpu_us: spread(&|turn| Some(turn.own_cpu_us))?,
        others: spread(&|turn| Some(turn.others))?,
        fsyncs_per_write: spread(&|turn| Some(turn.fsyncs))?,
    })
}

impl Row {
    fn write(&self, text: &mut String, name: &str, writers: usize) -> Result<()> {
        writeln!(text, "\n{name}, {writers} writers")?;
        writeln!(text, "  writes per second             {:.0}", self.writes_per_second)?;
        writeln!(text, "  latency                       {}", self.latency)?;
        writeln!(text, "  median by round, ms           {:.2}", self.p50_ms)?;
        writeln!(text, "  slowest by round, ms          {:.1}", self.slowest_ms)?;
        writeln!(text, "  CPU per write, all replicas, µs  {:.0}", self.cpu_us)?;
        writeln!(text, "  CPU per write, the writers, µs   {:.0}", self.own_cpu_us)?;
        writeln!(text, "  CPUs used by others           {:.2}", self.others)?;
        if name == "chancery" {
            writeln!(text, "  syncs of all replicas per write  {:.3}", self.fsyncs_per_write)?;
        }
        Ok(())
    }
}

pub(super) fn findings(args: &Args, etcd: &str, rounds: &[Round]) -> Result<Findings> {
    let of = |subject: usize| {
        let turns = rounds.iter().filter_map(move |round| round.turns.get(subject));
        let one = row(turns.clone().map(|turns| &turns.0));
        one.zip(row(turns.map(|turns| &turns.1))).context("no turns")
    };
    let (ours, theirs) = (of(0)?, of(1)?);
    let ratio = |of: &dyn Fn(&Round) -> Option<f64>| {
        Spread::of(&rounds.iter().filter_map(of).collect::<Vec<_>>()).context("no rounds")
    };
    let throughput = ratio(&|round| match round.turns.as_slice() {
        [(_, ours), (_, theirs)] => Some(ours.writes_per_second / theirs.writes_per_second),
        _ => None,
    })?;
    let p50 = |turn: &Turn| Latencies::of(turn.latencies.clone()).map(|it| it.p50_ms);
    let single = ratio(&|round| Some(p50(&round.turns.first()?.0)? / round.append_ms))?;
    let over = ratio(&|round| Some(round.over_ms))?;
    let append = ratio(&|round| Some(round.append_ms))?;
    let mut text = String::new();
    writeln!(
        text,
        "writes of {VALUE_BYTES} bytes, {} replicas each, {} connections; {} rounds of {} s per turn; median (min to max)",
        args.replicas, args.connections, args.rounds, args.seconds
    )?;
    writeln!(text, "{etcd}")?;
    writeln!(text, "fdatasync of 4 KiB, p50: overwritten {over:.3} ms, appended {append:.3} ms")?;
    for (name, (one, many)) in [("chancery", &ours), ("etcd", &theirs)] {
        for (writers, row) in [(1, one), (args.writers, many)] {
            row.write(&mut text, name, writers)?;
        }
    }
    writeln!(text, "\nthroughput, ratio to etcd in the same round  {throughput:.2}")?;
    writeln!(text, "one writer's p50, ratio to disk (appended)   {single:.2}")?;
    let gates = vec![
        Gate::at_least(
            "writes per second, ratio to etcd, median of the rounds",
            throughput.median,
            args.ratio_min,
        ),
        Gate::at_most(
            "seconds of the slowest write",
            ours.1.latency.max_ms / 1e3,
            args.slowest_max,
        ),
        Gate::at_most(
            "one writer's p50, ratio to fdatasync after an append, median of the rounds",
            single.median,
            args.fsync_ratio_max,
        ),
    ];
    let data = serde_json::json!({
        "etcd_version": etcd,
        "rounds": args.rounds,
        "writers": args.writers,
        "fdatasync_over_ms": over,
        "fdatasync_append_ms": append,
        "chancery": {"one": ours.0, "many": ours.1},
        "etcd": {"one": theirs.0, "many": theirs.1},
        "throughput_ratio": throughput,
        "single_ratio": single,
    });
    Ok(Findings { text, data, gates })
}
