//! The report of the measurements, and the check of their growth.
//!
//! The check uses ratios of values from the same round, and takes the median of these ratios over the
//! rounds.

use std::io;

use anyhow::Result;

use crate::{
    case::{Case, Growth},
    measure::{Place, Samples, Sizes},
    stopwatch::float,
};

/// The median and the quartiles of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// The allowed growth factors of a cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The factor besides log M, from the smallest number of resources to the largest.
    pub(crate) resources: f64,
    /// The factor per view or session, from the smallest number of views to the largest.
    pub(crate) views: f64,
}

/// Prints a table for each case. Returns the violations of the limits.
pub(crate) fn write(
    samples: &Samples,
    sizes: &Sizes,
    limits: Limits,
    out: &mut dyn io::Write,
) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    let (Some(least), Some(most)) = (sizes.resources.first(), sizes.resources.last()) else {
        return Ok(violations);
    };
    let log_m = float(*most).ln() / float(*least).ln();
    let limit_m = limits.resources * log_m;
    for case in Case::ALL {
        let is_measured = |views: &&usize| {
            samples.contains_key(&Place { case: *case, resources: *least, views: **views })
        };
        let views: Vec<usize> = sizes.views.iter().filter(is_measured).copied().collect();
        if views.is_empty() {
            continue;
        }
        let of = |resources: usize, views: usize| {
            samples.get(&Place { case: *case, resources, views }).map_or(&[][..], Vec::as_slice)
        };
        let check = |what: String, ratio: Option<Spread>, limit: f64, out: &mut Vec<String>| {
            let Some(ratio) = ratio else { return "-".to_owned() };
            let text = format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high);
            if case.growth() == Growth::Flat && ratio.median > limit {
                out.push(format!("{case}, {what}: grows by {text}, at most {limit:.2} is allowed"));
                return format!("{text} !");
            }
            text
        };
        writeln!(out, "\n{case}; ns per {}", case.unit())?;
        write!(out, "  {:>12}", "views")?;
        for resources in &sizes.resources {
            write!(out, " {:>26}", format!("M = {resources}"))?;
        }
        writeln!(out, " {:>26}", format!("M = {most} to {least}"))?;
        for v in &views {
            write!(out, "  {v:>12}")?;
            for resources in &sizes.resources {
                write!(out, " {:>26}", shown(Spread::of(of(*resources, *v))))?;
            }
            let ratio = ratios(of(*most, *v), of(*least, *v));
            let ratio = check(format!("{v} views"), ratio, limit_m, &mut violations);
            writeln!(out, " {ratio:>26}")?;
        }
        if let [first, .., last] = views.as_slice() {
            write!(out, "  {:>12}", format!("{last} to {first}"))?;
            for resources in &sizes.resources {
                let ratio = ratios(of(*resources, *last), of(*resources, *first));
                let what = format!("{last} to {first} views of {resources} resources");
                let ratio = check(what, ratio, limits.views, &mut violations);
                write!(out, " {ratio:>26}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(violations)
}

fn shown(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |Spread { low, median, high }| format!("{median:.0} ({low:.0} to {high:.0})"),
    )
}

/// Returns the spread of the ratios, each of two values from the same round.
fn ratios(above: &[f64], below: &[f64]) -> Option<Spread> {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b.max(1.0)).collect();
    Spread::of(&ratios)
}

impl Spread {
    /// Computes the spread of a sample, or `None` for an empty sample.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |quarter: usize| sorted.get((last * quarter).div_ceil(4)).copied();
        Some(Self { low: at(1)?, median: at(2)?, high: at(3)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(cost: impl Fn(usize, usize) -> f64) -> (Samples, Sizes) {
        let sizes = Sizes { resources: vec![1000, 1_000_000], views: vec![1, 10_000], rounds: 3 };
        let mut samples = Samples::new();
        for resources in &sizes.resources {
            for views in &sizes.views {
                let cost = cost(*resources, *views);
                for case in [Case::CommitOne, Case::SotwFull] {
                    let place = Place { case, resources: *resources, views: *views };
                    samples.insert(place, vec![cost * 0.9, cost, cost * 1.2]);
                }
            }
        }
        (samples, sizes)
    }

    fn violations(cost: impl Fn(usize, usize) -> f64) -> Vec<String> {
        let (samples, sizes) = samples(cost);
        let limits = Limits { resources: 1.5, views: 4.0 };
        let mut page = Vec::new();
        let violations = write(&samples, &sizes, limits, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("ns per commit") && page.contains("ns per KiB"), "{page}");
        assert_eq!(page.matches('!').count(), violations.len(), "{page}");
        violations
    }

    #[test]
    fn growth_with_log_m_is_allowed_and_growth_with_m_or_v_is_not() {
        assert_eq!(violations(|m, _| 100.0 * float(m).ln()), Vec::<String>::new());
        // The square root of M is far above log M.
        let of_m = violations(|m, _| float(m).sqrt());
        assert_eq!(of_m.len(), 2, "{of_m:?}");
        assert_eq!(
            of_m[0],
            "commit: 1 resource of the shared scope, 1 views: grows by 31.62 (31.62 to 31.62), \
             at most 3.00 is allowed"
        );
        let of_v = violations(|_, v| float(v).sqrt());
        assert_eq!(of_v.len(), 2, "{of_v:?}");
        assert!(of_v[1].contains("10000 to 1 views of 1000000 resources"), "{of_v:?}");
    }

    #[test]
    fn spread_has_median_and_quartiles() {
        assert_eq!(Spread::of(&[]), None);
        let of = Spread::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((of.low, of.median, of.high), (2.0, 3.0, 4.0));
        let one = Spread::of(&[7.0]).unwrap();
        assert_eq!((one.low, one.median, one.high), (7.0, 7.0, 7.0));
    }
}
