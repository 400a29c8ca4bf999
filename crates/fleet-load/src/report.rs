//! The report of a run.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    client::Shared,
    correctness::Correctness,
    measures::{OfPhase, Times, times},
    plan::{Plan, to_f64},
};

/// The share of a processor from which a thread of clients is the limit.
const CPU_SHARE_MAX: f64 = 0.9;
/// The lag of a thread of clients that never matters.
const LAG_MS_MIN: f64 = 5.0;
/// The share of the p99 of deliveries that the lag may have.
const LAG_SHARE_MAX: f64 = 0.2;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this format.
    pub format: u32,
    /// The version of the program.
    pub version: String,
    /// The ID of the run.
    pub run: String,
    /// The addresses under test.
    pub servers: Vec<String>,
    /// The plan.
    pub plan: Plan,
    /// The time to the first state, of the first connections.
    pub first_state_ms: Option<Percentiles>,
    /// The phases.
    pub phases: Vec<PhaseReport>,
    /// The errors by text.
    pub errors: BTreeMap<String, u64>,
    /// The comparison of all clients at the end.
    pub correctness: Correctness,
    /// The load of the generator itself.
    pub generator: Generator,
    /// The reason why resources of the test remain; `None` if it left nothing.
    pub left: Option<String>,
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// The name.
    pub name: String,
    /// The duration.
    pub seconds: f64,
    /// The writes that started.
    pub writes: u64,
    /// The writes that failed.
    pub failed_writes: u64,
    /// From the scheduled start of a transaction to the answer to its author.
    pub answer_ms: Option<Percentiles>,
    /// From the scheduled start of a write to each client.
    pub delivery_ms: Option<Percentiles>,
    /// From the scheduled start of a write to the first client.
    pub first_client_ms: Option<Percentiles>,
    /// From the scheduled start of a write until 99 % of the clients had it.
    pub most_clients_ms: Option<Percentiles>,
    /// From the scheduled start of a write to the last client.
    pub last_client_ms: Option<Percentiles>,
    /// From the first client to each other one, of changes by others.
    pub spread_ms: Option<Percentiles>,
    /// From the start of a connection to the first state, of clients that reconnected.
    pub first_state_ms: Option<Percentiles>,
    /// The deliveries of writes that did not arrive.
    pub undelivered: u64,
    /// The deliveries that came only with a newer write of the same resource.
    pub replaced: u64,
    /// The connections that the test ended.
    pub reconnects: u64,
    /// The responses to all clients.
    pub responses: u64,
    /// The changed resources in these responses.
    pub resources: u64,
    /// The bytes of these responses.
    pub bytes: u64,
    /// The deliveries by the second in which their writes were to start.
    pub by_second: Vec<Second>,
    /// The milliseconds to the last client, write by write.
    pub last_client_each_ms: Vec<f64>,
}

/// The deliveries of the writes of a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// The number of deliveries.
    pub n: u64,
    /// The median in milliseconds.
    pub p50: f64,
    /// The 99th percentile in milliseconds.
    pub p99: f64,
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of values.
    pub n: u64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

/// The load of the generator itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// The largest share of a processor that a thread of clients used.
    pub cpu_share: f64,
    /// The p99 of the time by which the threads of clients were late, in milliseconds.
    pub lag_p99_ms: f64,
    /// The reason why the result says more about the generator than about the server; `None` if it is valid.
    pub invalid: Option<String>,
}

impl Percentiles {
    /// Returns `None` if there are no values.
    pub(crate) fn of(times: &Times) -> Option<Self> {
        let at = |quantile: f64| millis(times.value_at_quantile(quantile));
        (!times.is_empty()).then(|| Self {
            n: times.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: millis(times.max()),
        })
    }

    fn of_all(all: &[Duration]) -> Option<Self> {
        let mut times = times();
        all.iter().for_each(|time| crate::measures::record(&mut times, *time));
        Self::of(&times)
    }
}

/// Converts microseconds to milliseconds.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and rounded after that")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}

impl Generator {
    /// Judges the loads of the threads.
    pub(crate) fn new(shared: &Shared, loads: &[(Times, f64)]) -> Self {
        let mut lags = times();
        for (of_thread, _) in loads {
            // Histograms with the same digits add up.
            lags += of_thread;
        }
        let cpu_share = loads.iter().map(|(_, share)| *share).fold(0.0, f64::max);
        let lag_p99_ms = millis(lags.value_at_quantile(0.99));
        let measures = shared.measures.lock();
        let worst =
            measures.phases.iter().skip(1).map(|phase| phase.deliveries.value_at_quantile(0.99));
        let p99 = millis(worst.max().unwrap_or_default());
        Self { cpu_share, lag_p99_ms, invalid: limit(cpu_share, lag_p99_ms, p99) }
    }
}

/// Returns the reason why the generator was the limit.
fn limit(cpu_share: f64, lag_p99_ms: f64, delivery_p99_ms: f64) -> Option<String> {
    if cpu_share > CPU_SHARE_MAX {
        let percent = cpu_share * 100.0;
        return Some(format!(
            "a thread of clients used {percent:.0} % of a processor; use more --threads or fewer clients"
        ));
    }
    (lag_p99_ms > LAG_MS_MIN.max(delivery_p99_ms * LAG_SHARE_MAX)).then(|| {
        format!("the clients were late by {lag_p99_ms:.1} ms (p99); the machine was too busy")
    })
}

impl Report {
    pub(crate) fn new(
        shared: &Shared,
        servers: Vec<String>,
        generator: Generator,
        correctness: Correctness,
    ) -> Self {
        let measures = shared.measures.lock();
        let phases = shared.plan.phases.iter().enumerate().filter_map(|(n, phase)| {
            let measured = measures.phases.get(n + 1)?;
            let [first, most, last] = measures.spans(n + 1);
            Some(PhaseReport {
                name: phase.name.clone(),
                undelivered: measures.n_undelivered(n + 1),
                first_client_ms: Percentiles::of_all(&first),
                most_clients_ms: Percentiles::of_all(&most),
                last_client_ms: Percentiles::of_all(&last),
                last_client_each_ms: last.iter().map(|time| time.as_secs_f64() * 1e3).collect(),
                ..PhaseReport::of(measured)
            })
        });
        Self {
            format: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            run: shared.run.clone(),
            servers,
            plan: shared.plan.clone(),
            first_state_ms: Percentiles::of(&measures.phases[0].first_states),
            phases: phases.collect(),
            errors: measures.errors.clone(),
            correctness,
            generator,
            left: None,
        }
    }

    /// Returns whether every client has what it should have, no write failed, and the test itself was fast enough.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.correctness.holds()
            && self.left.is_none()
            && self.generator.invalid.is_none()
            && self.phases.iter().all(|phase| phase.failed_writes == 0)
    }

    /// Returns the report as text for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = Vec::new();
        let mut line = |text: String| out.push(text);
        let plan = &self.plan;
        line(format!("{} clients of {}", plan.clients, self.servers.join(", ")));
        if let Some(times) = &self.first_state_ms {
            line(format!("first state: {}", shown(times)));
        }
        for phase in &self.phases {
            phase.write(&mut line);
        }
        for (error, n) in &self.errors {
            line(format!("error, {n} times: {error}"));
        }
        self.write_checks(&mut line);
        out.join("\n")
    }

    fn write_checks(&self, line: &mut impl FnMut(String)) {
        let Correctness { equal, different, not_connected, rejecting, .. } = &self.correctness;
        let checks = &self.correctness;
        line(format!(
            "clients with exactly the {} resources of a new client: {equal} of {}",
            checks.resources,
            equal + different + not_connected
        ));
        for (n, what) in [
            (count(*not_connected), "clients were not connected at the end"),
            (count(*rejecting), "clients reject changes, and were not compared"),
            (checks.undelivered, "deliveries are missing"),
            (checks.repeats, "resources came again without a change"),
            (checks.older, "resources were older than what the client had"),
        ] {
            if n > 0 {
                line(format!("{n} {what}"));
            }
        }
        checks.examples.iter().for_each(|example| line(format!("  {example}")));
        let Generator { cpu_share, lag_p99_ms, invalid } = &self.generator;
        let percent = cpu_share * 100.0;
        line(format!(
            "generator: {percent:.0} % of a processor per thread, lag p99 {lag_p99_ms:.1} ms"
        ));
        if let Some(reason) = invalid {
            line(format!("NOT VALID: {reason}"));
        }
        if let Some(left) = &self.left {
            line(format!("NOT CLEAN: {left}"));
        }
        if !checks.holds() {
            line("WRONG: not every client has what it should have, in order and once".to_owned());
        }
    }
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

impl PhaseReport {
    fn of(measured: &OfPhase) -> Self {
        let by_second = measured.seconds.iter().map(|times| {
            let of = Percentiles::of(times);
            let [p50, p99] = of.map_or([0.0; 2], |of| [of.p50, of.p99]);
            Second { n: times.len(), p50, p99 }
        });
        Self {
            name: String::new(),
            seconds: measured.end.duration_since(measured.start).as_secs_f64(),
            writes: measured.n_writes,
            failed_writes: measured.n_failed,
            answer_ms: Percentiles::of(&measured.answers),
            delivery_ms: Percentiles::of(&measured.deliveries),
            first_client_ms: None,
            most_clients_ms: None,
            last_client_ms: None,
            spread_ms: Percentiles::of(&measured.spreads),
            first_state_ms: Percentiles::of(&measured.first_states),
            undelivered: 0,
            replaced: measured.n_replaced,
            reconnects: measured.n_reconnects,
            responses: measured.n_responses,
            resources: measured.n_resources,
            bytes: measured.n_bytes,
            by_second: by_second.collect(),
            last_client_each_ms: Vec::new(),
        }
    }

    fn write(&self, line: &mut impl FnMut(String)) {
        let per_second =
            to_f64(usize::try_from(self.responses).unwrap_or(usize::MAX)) / self.seconds;
        line(format!(
            "phase {}: {:.1} s, {} writes, {} failed, {} responses ({per_second:.0} per second)",
            self.name, self.seconds, self.writes, self.failed_writes, self.responses
        ));
        for (name, times) in [
            ("answer to the author", &self.answer_ms),
            ("to each client", &self.delivery_ms),
            ("to the first client", &self.first_client_ms),
            ("to 99 % of the clients", &self.most_clients_ms),
            ("to the last client", &self.last_client_ms),
            ("from the first client to the others", &self.spread_ms),
            ("first state after a reconnection", &self.first_state_ms),
        ] {
            if let Some(times) = times {
                line(format!("  {name:<36} {}", shown(times)));
            }
        }
        for (n, what) in [
            (self.undelivered, "did not arrive"),
            (self.replaced, "came only with a newer write of the same resource"),
        ] {
            if n > 0 {
                line(format!("  {n} deliveries {what}"));
            }
        }
    }
}

fn shown(Percentiles { n, p50, p90, p99, max }: &Percentiles) -> String {
    format!("p50 {p50:.2} ms, p90 {p90:.2} ms, p99 {p99:.2} ms, max {max:.2} ms (n={n})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_that_is_the_limit_is_named() {
        assert_eq!(limit(0.5, 4.0, 1.0), None);
        assert_eq!(limit(0.5, 19.0, 100.0), None);
        assert!(limit(0.5, 21.0, 100.0).is_some_and(|text| text.contains("late by 21.0 ms")));
        assert!(limit(0.95, 0.1, 1.0).is_some_and(|text| text.contains("95 %")));
    }
}
