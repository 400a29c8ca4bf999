//! The report and the gates of a run.

use std::{fmt::Write as _, time::Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{
    args::Args,
    arrivals::{Arrivals, Part},
    clients::Counts,
    memory::Course,
};
use crate::{
    process::CpuTime,
    report::{Findings, Gate},
    stats::{Spread, float},
};

/// The measurements of some time.
#[derive(Debug)]
pub(super) struct Measured {
    /// Whether faulty clients were connected.
    pub(super) with_faulty: bool,
    pub(super) part: Part,
    pub(super) from: Instant,
    pub(super) to: Instant,
    pub(super) server: CpuTime,
    pub(super) own: CpuTime,
    pub(super) others: f64,
    pub(super) counts: Counts,
}

/// The totals of the faulty clients over the whole run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Faulty {
    pub(super) seconds: f64,
    /// Responses to clients that never acknowledge, beyond their first state.
    pub(super) unacknowledged: u64,
    /// Connections of clients that never read.
    pub(super) connects: u64,
    /// Ended streams of clients that never acknowledge.
    pub(super) ended: u64,
    /// Updates that a healthy client did not receive while the faulty clients were connected.
    pub(super) missing: u64,
}

/// RSS at some times, in MiB.
#[derive(Debug, Serialize)]
pub(super) struct Rss {
    pub(super) loaded: f64,
    /// With the healthy clients, before the long part.
    pub(super) healthy: f64,
    /// With all clients, at the end of the long part.
    pub(super) all: f64,
    /// After the faulty clients have left.
    pub(super) after: f64,
    /// After all clients have left.
    pub(super) end: f64,
}

/// The streams and connections that the server still counts after clients have left.
#[derive(Debug, Serialize)]
pub(super) struct Left {
    pub(super) streams: f64,
    pub(super) connections: f64,
}

/// The report of some time.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) with_faulty: bool,
    seconds: f64,
    /// The time from when an update was due to when a healthy client had it.
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    /// The number of measured arrivals: updates times healthy clients.
    arrivals: u64,
    /// The rate of responses to all healthy clients together.
    responses_per_second: f64,
    updates_per_response: f64,
    /// Updates that were never sent, because a newer update of the same cluster was.
    replaced: u64,
    /// The CPUs that the server used.
    server_cpus: f64,
    /// The CPUs that the clients used.
    client_cpus: f64,
    /// The CPUs that other processes used.
    other_cpus: f64,
}

/// All results of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) rounds: Vec<Row>,
    pub(super) long: Row,
    pub(super) course: Option<Course>,
    pub(super) rss: Rss,
    pub(super) updates: u64,
    pub(super) write_p50_ms: f64,
    pub(super) write_p99_ms: f64,
    pub(super) failed_writes: u64,
    pub(super) write_error: Option<String>,
    /// Updates that did not reach every healthy client.
    pub(super) missing: u64,
    pub(super) wrong: u64,
    pub(super) faulty: Faulty,
    pub(super) left_of_faulty: Left,
    pub(super) left_at_end: Left,
}

impl Row {
    pub(super) fn of(measured: &Measured, arrivals: &Arrivals) -> Self {
        let times = arrivals.times(measured.part);
        let seconds = (measured.to - measured.from).as_secs_f64();
        let counts = measured.counts;
        let per_second = |n: f64| n / seconds.max(1e-9);
        Self {
            with_faulty: measured.with_faulty,
            seconds,
            p50_ms: ms(&times, 0.5),
            p99_ms: ms(&times, 0.99),
            p999_ms: ms(&times, 0.999),
            max_ms: ms(&times, 1.0),
            arrivals: times.len(),
            responses_per_second: per_second(float(counts.responses)),
            updates_per_response: float(counts.updates) / float(counts.responses.max(1)),
            replaced: counts.updates.saturating_sub(counts.resources),
            server_cpus: per_second(measured.server.total().as_secs_f64()),
            client_cpus: per_second(measured.own.total().as_secs_f64()),
            other_cpus: measured.others,
        }
    }
}

impl Report {
    /// Returns the ratio of each round with faulty clients: its p99 to the mean of the rounds
    /// before and after it.
    fn ratios(&self) -> Vec<f64> {
        let beside = self.rounds.windows(3).filter(|rows| rows[1].with_faulty);
        beside.map(|rows| rows[1].p99_ms / f64::midpoint(rows[0].p99_ms, rows[2].p99_ms)).collect()
    }

    pub(super) fn findings(&self, args: &Args) -> Result<Findings> {
        let ratio = Spread::of(&self.ratios()).context("no rounds")?;
        let course = self.course.as_ref().context(
            "cannot compute the growth of memory: the long part is too short; raise --minutes",
        )?;
        let Left { streams, connections } = self.left_of_faulty;
        let over = streams.max(connections) - float(crate::stats::count(args.healthy()));
        let at_end = self.left_at_end.streams + self.left_at_end.connections;
        let gates = vec![
            Gate::at_most(
                "p99 of healthy clients, ratio to that without faulty clients, median of the rounds",
                ratio.median,
                args.ratio_max,
            ),
            Gate::at_most(
                "growth of RSS over the long part, in percent",
                course.growth_percent,
                args.growth_percent_max,
            ),
            Gate::none("updates that a healthy client did not receive", self.missing),
            Gate::none(
                "updates that a healthy client did not receive beside faulty clients",
                self.faulty.missing,
            ),
            Gate::none("healthy streams that failed or received wrong resources", self.wrong),
            Gate::none("writes that failed", self.failed_writes),
            Gate::at_most("remaining streams or connections of faulty clients", over, 0.0),
            Gate::at_most("remaining streams and connections at the end", at_end, 0.0),
        ];
        let mut data = serde_json::to_value(self)?;
        if let Some(data) = data.as_object_mut() {
            data.insert("p99_ratio".to_owned(), serde_json::to_value(ratio)?);
            data.insert("healthy".to_owned(), args.healthy().into());
        }
        Ok(Findings { text: self.text(args, ratio, course)?, data, gates })
    }

    fn text(&self, args: &Args, ratio: Spread, course: &Course) -> Result<String> {
        let mut text = String::new();
        writeln!(
            text,
            "{} healthy wildcard delta clients, {} that never read, {} that never acknowledge; {} clusters, {} updates/s",
            args.healthy(),
            args.never_read,
            args.never_ack,
            args.resources,
            args.updates_per_second
        )?;
        writeln!(
            text,
            "from due to arrival, ms         p50      p99    p99.9      max  responses/s  updates each  CPUs: server  clients  others"
        )?;
        for row in self.rounds.iter().chain([&self.long]) {
            let who = if row.with_faulty { "with all" } else { "healthy only" };
            writeln!(
                text,
                "  {who:<14} {:>6.0} s {:>9.2} {:>8.2} {:>8.2} {:>8.2} {:>12.0} {:>13.2} {:>13.2} {:>8.2} {:>7.2}",
                row.seconds,
                row.p50_ms,
                row.p99_ms,
                row.p999_ms,
                row.max_ms,
                row.responses_per_second,
                row.updates_per_response,
                row.server_cpus,
                row.client_cpus,
                row.other_cpus
            )?;
        }
        let arrivals: u64 = self.rounds.iter().chain([&self.long]).map(|row| row.arrivals).sum();
        let replaced: u64 = self.rounds.iter().chain([&self.long]).map(|row| row.replaced).sum();
        writeln!(text, "p99 with all, ratio to healthy only: {ratio:.3}")?;
        writeln!(text, "{arrivals} arrivals measured; newer updates replaced {replaced} of them")?;
        writeln!(
            text,
            "{} updates, write latency p50 {:.1}, p99 {:.1} ms; failed: {} ({})",
            self.updates,
            self.write_p50_ms,
            self.write_p99_ms,
            self.failed_writes,
            self.write_error.as_deref().unwrap_or("no error")
        )?;
        let Course { seconds, mib, mib_per_hour, growth_percent, by_minute } = course;
        let by_minute: Vec<String> = by_minute.iter().map(|mib| format!("{mib:.1}")).collect();
        writeln!(
            text,
            "RSS of the long part, last {seconds:.0} s: {mib:.1} MiB, {mib_per_hour:+.1} MiB/h, {growth_percent:+.2} %; by minute {}",
            by_minute.join(" ")
        )?;
        let Rss { loaded, healthy, all, after, end } = self.rss;
        writeln!(
            text,
            "RSS in MiB: loaded {loaded:.1}, with healthy clients {healthy:.1}, with all {all:.1}, after the faulty clients left {after:.1}, without clients {end:.1}; {:.0} KiB per faulty client",
            (all - after) * 1024.0
                / float(crate::stats::count((args.never_read + args.never_ack).max(1)))
        )?;
        let Faulty { seconds, unacknowledged, connects, ended, .. } = self.faulty;
        let each = float(unacknowledged) / float(crate::stats::count(args.never_ack).max(1));
        writeln!(
            text,
            "faulty clients, in {seconds:.0} s: {:.1} s between responses to a client that never acknowledges, {ended} of these streams ended; {connects} connections of clients that never read",
            seconds / each
        )?;
        Ok(text)
    }
}

/// Returns a quantile of times in microseconds, converted to milliseconds.
pub(super) fn ms(times: &Histogram<u64>, quantile: f64) -> f64 {
    float(times.value_at_quantile(quantile)) / 1e3
}
