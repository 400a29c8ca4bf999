//! The goal of a search for the largest fleet.

use std::str::FromStr;

use chancery_config::Span;
use chancery_fleet_load::{Percentiles, Report};

use crate::failure::Failure;

/// The maximum number of clients of a search.
const CLIENTS_MAX: usize = 1_000_000;
/// The search ends when the two limits differ by less than this share.
const PRECISION: f64 = 0.1;

/// A limit for the time of deliveries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    percentile: Percentile,
    max_ms: f64,
}

#[derive(Debug, Clone, Copy)]
enum Percentile {
    P50,
    P90,
    P99,
    Max,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no goal; write one such as p99=100ms");
        let (name, time) = text.split_once('=').ok_or_else(wrong)?;
        let percentile = match name {
            "p50" => Percentile::P50,
            "p90" => Percentile::P90,
            "p99" => Percentile::P99,
            "max" => Percentile::Max,
            _ => return Err(wrong()),
        };
        let time: Span = time.parse().map_err(|error| format!("{}: {error}", wrong()))?;
        Ok(Self {
            percentile,
            max_ms: std::time::Duration::from_millis(time.millis()).as_secs_f64() * 1e3,
        })
    }
}

impl Goal {
    /// Returns whether a run meets the goal in all phases.
    fn is_met(self, report: &Report) -> bool {
        let value = |times: &Percentiles| match self.percentile {
            Percentile::P50 => times.p50,
            Percentile::P90 => times.p90,
            Percentile::P99 => times.p99,
            Percentile::Max => times.max,
        };
        let times = report.phases.iter().map(|phase| phase.delivery_ms.as_ref());
        report.is_good()
            && times.into_iter().all(|of| of.is_some_and(|of| value(of) <= self.max_ms))
    }

    /// Doubles the number of clients until a run misses the goal, and then searches between. Returns the report of the
    /// largest fleet that met it.
    pub(super) async fn largest(
        self,
        first: usize,
        run: impl AsyncFn(usize) -> Result<Report, Failure>,
        say: impl Fn(&str),
    ) -> Result<Report, Failure> {
        let (mut best, mut n, mut limit): (Option<Report>, usize, Option<usize>) =
            (None, first, None);
        loop {
            let report = run(n).await?;
            let is_met = self.is_met(&report);
            say(&format!("{n} clients {} the goal", if is_met { "meet" } else { "miss" }));
            if is_met {
                best = Some(report);
            } else if n == 1 {
                return Err(Failure::new("even one client misses the goal"));
            } else {
                limit = Some(n);
            }
            let met = best.as_ref().map_or(0, |report| report.plan.clients);
            let next = next(met, limit);
            match next {
                Some(next) => n = next,
                None => return best.ok_or_else(|| Failure::new("no fleet meets the goal")),
            }
        }
    }
}

/// Returns the number of clients of the next run, if the search goes on. `met` is the largest that met the goal, and
/// `limit` the smallest that missed it.
#[expect(clippy::cast_precision_loss, reason = "numbers of clients are far below 2^53")]
fn next(met: usize, limit: Option<usize>) -> Option<usize> {
    match limit {
        None => (met < CLIENTS_MAX).then(|| (met * 2).min(CLIENTS_MAX)),
        Some(limit) => {
            let is_near = limit - met <= 1 || ((limit - met) as f64) < met as f64 * PRECISION;
            (!is_near).then(|| met.midpoint(limit))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_doubles_and_then_halves() {
        let find = |largest: usize, first: usize| {
            let (mut met, mut limit, mut n, mut runs) = (0, None, first, 0);
            loop {
                runs += 1;
                if n <= largest {
                    met = n
                } else {
                    limit = Some(n)
                }
                match next(met, limit) {
                    Some(next) => n = next,
                    None => return (met, runs),
                }
            }
        };
        let (met, runs) = find(700, 50);
        assert!((630..=700).contains(&met) && runs < 12, "{met} after {runs}");
        let (met, _) = find(3, 100);
        assert_eq!(met, 3);
        assert_eq!(find(CLIENTS_MAX, 50).0, CLIENTS_MAX);
    }

    #[test]
    fn goal_has_a_percentile_and_a_time() {
        let goal: Goal = "p99=1500ms".parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(goal.max_ms, 1500.0);
        for wrong in ["p99", "p98=1s", "p99=fast"] {
            assert!(wrong.parse::<Goal>().unwrap_err().contains("p99=100ms"));
        }
    }
}
