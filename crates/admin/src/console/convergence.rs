//! The quantiles of a histogram in the text format of Prometheus.

use chancery_console::fleet::Convergence;

const HISTOGRAM: &str = "chancery_xds_convergence_seconds";

/// Returns the distribution of the times from a change to its acknowledgment, from the metrics of this replica.
pub(super) fn of_metrics(text: &str) -> Convergence {
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(HISTOGRAM)) {
        let Some(rest) = line.strip_prefix("_bucket{") else { continue };
        let Some((labels, n)) = rest.rsplit_once("} ") else { continue };
        let bound = labels.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
        let bound = bound.and_then(|bound| bound.replace("+Inf", "inf").parse().ok());
        let (Some(bound), Ok(n)) = (bound, n.trim().parse()) else { continue };
        match buckets.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += n,
            None => buckets.push((bound, n)),
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = buckets.last().map_or(0, |(_, n)| *n);
    Convergence { p50: quantile(&buckets, n, 50), p99: quantile(&buckets, n, 99), n }
}

/// Returns the value that a percentage of the observations does not exceed, interpolated within its bucket.
fn quantile(buckets: &[(f64, u64)], n: u64, percent: u32) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let float = |n: u64| n as f64;
    let rank = float(n) * f64::from(percent) / 100.0;
    let (mut from, mut before) = (0.0, 0);
    for (bound, until) in buckets {
        if float(*until) >= rank && *until > before {
            let share = (rank - float(before)) / float(until - before);
            return if bound.is_finite() { from + (bound - from) * share } else { from };
        }
        (from, before) = (*bound, *until);
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        let text = "# TYPE chancery_xds_convergence_seconds histogram\n\
            chancery_xds_convergence_seconds_bucket{le=\"0.1\"} 50\n\
            chancery_xds_convergence_seconds_bucket{le=\"0.2\"} 100\n\
            chancery_xds_convergence_seconds_bucket{le=\"+Inf\"} 100\n\
            chancery_xds_convergence_seconds_count 100\n";
        let found = of_metrics(text);
        assert_eq!(found.n, 100);
        assert!((found.p50 - 0.1).abs() < 1e-9 && (found.p99 - 0.198).abs() < 1e-9, "{found:?}");
        assert_eq!(of_metrics("").n, 0);
    }
}
