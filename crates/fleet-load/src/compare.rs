//! The comparison of two reports.

use crate::{
    plan::to_f64,
    report::{Percentiles, PhaseReport, Report},
};

/// The probability of a difference by chance below which it counts.
const SIGNIFICANT: f64 = 0.01;

/// Compares two reports, phase by phase.
///
/// The writes of two phases are compared by their times to the last client, with the test of Mann and Whitney. It makes no
/// assumption about the distribution.
///
/// # Errors
/// Fails if no phase has the same name in both.
pub fn compare(before: &Report, after: &Report) -> Result<String, String> {
    let mut out = Vec::new();
    if before.plan != after.plan {
        out.push("the plans differ, so a difference may come from them".to_owned());
    }
    let mut n_phases = 0;
    for old in &before.phases {
        let Some(new) = after.phases.iter().find(|phase| phase.name == old.name) else { continue };
        n_phases += 1;
        out.push(format!("phase {}", old.name));
        compare_phases(&mut out, old, new);
    }
    for (name, report) in [("first", before), ("second", after)] {
        if let Some(reason) = &report.generator.invalid {
            out.push(format!("the {name} report is not valid: {reason}"));
        }
        if !report.correctness.holds() {
            out.push(format!("in the {name} report, not every client has what it should have"));
        }
    }
    if n_phases == 0 {
        return Err("no phase has the same name in both reports".to_owned());
    }
    Ok(out.join("\n"))
}

fn compare_phases(out: &mut Vec<String>, old: &PhaseReport, new: &PhaseReport) {
    for (name, old, new) in [
        ("answer to the author", old.answer_ms, new.answer_ms),
        ("to each client", old.delivery_ms, new.delivery_ms),
        ("to the last client", old.last_client_ms, new.last_client_ms),
        ("first state", old.first_state_ms, new.first_state_ms),
    ] {
        let (Some(old), Some(new)) = (old, new) else { continue };
        let at = |name: &str, of: fn(&Percentiles) -> f64| {
            let (old, new) = (of(&old), of(&new));
            format!(
                "{name} {old:.2} to {new:.2} ms ({:+.0} %)",
                (new / old.max(1e-9) - 1.0) * 100.0
            )
        };
        let (p50, p99) = (at("p50", |times| times.p50), at("p99", |times| times.p99));
        out.push(format!("  {name:<22} {p50}, {p99}"));
    }
    let verdict = match chance(&old.last_client_each_ms, &new.last_client_each_ms) {
        None => "too few writes to compare the times to the last client".to_owned(),
        Some(p) if p < SIGNIFICANT => {
            format!("the times to the last client differ (p = {p:.1e}, Mann-Whitney)")
        }
        Some(p) => {
            format!("no significant difference to the last client (p = {p:.2}, Mann-Whitney)")
        }
    };
    out.push(format!("  {verdict}"));
}

/// Returns the probability that two samples of one distribution differ as much in their ranks, by the approximation with
/// the normal distribution. `None` for samples of fewer than 8 values.
fn chance(a: &[f64], b: &[f64]) -> Option<f64> {
    let (n_a, n_b) = (a.len(), b.len());
    if n_a.min(n_b) < 8 {
        return None;
    }
    let of =
        |values: &[f64], is_first| values.iter().map(move |value| (*value, is_first)).collect();
    let mut all: Vec<(f64, bool)> = of(a, true);
    let second: Vec<(f64, bool)> = of(b, false);
    all.extend(second);
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut start) = (0.0, 0.0, 0.0);
    for same in all.chunk_by(|x, y| x.0.total_cmp(&y.0).is_eq()) {
        let n = to_f64(same.len());
        let rank = start + (n + 1.0) / 2.0;
        rank_sum += rank * to_f64(same.iter().filter(|(_, is_first)| *is_first).count());
        ties += n * n * n - n;
        start += n;
    }
    let (n_a, n_b) = (to_f64(n_a), to_f64(n_b));
    let n = n_a + n_b;
    let u = rank_sum - n_a * (n_a + 1.0) / 2.0;
    let variance = n_a * n_b / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)));
    if variance <= 0.0 {
        return Some(1.0);
    }
    let z = ((u - n_a * n_b / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    Some(two_sided(z))
}

/// Returns the probability of a standard normal value at least as far from 0 as `z` (Abramowitz and Stegun 26.2.17).
fn two_sided(z: f64) -> f64 {
    let t = 1.0 / 0.231_641_9f64.mul_add(z, 1.0);
    let factors = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let series = factors.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    (2.0 * density * series).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_that_of_the_normal_distribution() {
        for (z, expected) in [(0.0, 1.0), (1.0, 0.317_3), (1.96, 0.05), (2.576, 0.01)] {
            assert!((two_sided(z) - expected).abs() < 1e-4, "{z}: {}", two_sided(z));
        }
    }

    #[test]
    fn shifted_samples_differ_and_equal_ones_do_not() {
        let of =
            |shift: f64| -> Vec<f64> { (0..50).map(|n| f64::from(n * 37 % 50) + shift).collect() };
        assert!(chance(&of(0.0), &of(0.0)).unwrap() > 0.9);
        assert!(chance(&of(0.0), &of(20.0)).unwrap() < 1e-3);
        assert!(chance(&[1.0; 20], &[1.0; 20]).unwrap() > 0.9, "all values are equal");
        assert_eq!(chance(&[1.0; 7], &of(0.0)), None);
    }
}
