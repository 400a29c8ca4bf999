//! The queries in documents: each must name an existing metric and fit its kind.

use std::collections::BTreeMap;

/// The prefix of the names of Chancery's own metrics.
const OWN: &str = "chancery_";
/// The prefix of the names that all programs use for the metrics of their process.
const PROCESS: &str = "process_";

/// The suffixes of the series of a histogram.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Returns complaints about a document, each with its line number first. `metrics` maps names to
/// kinds.
pub(super) fn wrong(text: &str, metrics: &BTreeMap<&str, &str>) -> impl Iterator<Item = String> {
    let mut complaints = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        for (before, name) in names(line) {
            if let Some(complaint) = complain(before, name, is_code, metrics) {
                complaints.push(format!("{number}: {complaint}"));
            }
        }
    }
    complaints.into_iter()
}

/// Returns the words of a line that look like metrics, each with the preceding text.
fn names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    [OWN, PROCESS].into_iter().flat_map(|prefix| line.match_indices(prefix)).filter_map(
        |(at, _)| {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let before = &line[..at];
            let rest = &line[at..];
            let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            // A path such as chancery_xds::metrics is not a metric.
            let is_path = rest[name.len()..].starts_with("::") || before.ends_with(is_word);
            (is_name(name) && !is_path).then_some((before, name))
        },
    )
}

fn complain(
    before: &str,
    name: &str,
    is_code: bool,
    metrics: &BTreeMap<&str, &str>,
) -> Option<String> {
    let base = SERIES.iter().find_map(|series| name.strip_suffix(series));
    let histogram = base.filter(|base| metrics.get(base) == Some(&"histogram"));
    let kind = match histogram {
        Some(_) => "series of a histogram",
        None => metrics.get(name).copied().unwrap_or("nothing"),
    };
    let is_rate = ["rate(", "increase("].iter().any(|function| before.ends_with(function));
    match kind {
        "nothing" => Some(format!("no such metric: {name}")),
        "histogram" if is_code => {
            Some(format!("{name} has no samples: add _bucket, _sum or _count"))
        }
        "gauge" if is_rate => Some(format!("{name} is a gauge: remove the rate or increase")),
        "counter" if is_code && !is_rate => Some(format!("{name} is a counter: query its rate")),
        _ => None,
    }
}

/// Returns whether a text is the name of a metric.
pub(super) fn is_name(text: &str) -> bool {
    let is_word =
        |rest: &str| rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    // `chancery_server=debug` is a log filter, `chancery_xds` a crate.
    let own = text.strip_prefix(OWN).filter(|rest| rest.contains('_'));
    own.or_else(|| text.strip_prefix(PROCESS)).is_some_and(|rest| !rest.is_empty() && is_word(rest))
}

/// Returns the histogram to which a series belongs.
pub(super) fn base_name(name: &str) -> &str {
    SERIES.iter().find_map(|series| name.strip_suffix(series)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        let metrics = BTreeMap::from([
            ("chancery_a_b_total", "counter"),
            ("chancery_a_c", "gauge"),
            ("chancery_a_d_seconds", "histogram"),
        ]);
        wrong(text, &metrics).collect()
    }

    #[test]
    fn valid_queries_have_no_complaints() {
        let text = "See `chancery_a_d_seconds` and `chancery_a_b_total`, of chancery_a_b::x.\n\
             ```\nrate(chancery_a_b_total{x=\"y\"}[5m]) + chancery_a_c > 0\n\
             sum(increase(chancery_a_d_seconds_bucket[5m]))\n```\n";
        assert_eq!(complaints(text), [""; 0]);
    }

    #[test]
    fn invalid_query_is_reported_with_its_line() {
        for (query, expected) in [
            ("rate(chancery_a_x_total[5m])", "2: no such metric: chancery_a_x_total"),
            ("rate(chancery_a_c_sum[5m])", "2: no such metric: chancery_a_c_sum"),
            ("rate(chancery_a_c[5m])", "2: chancery_a_c is a gauge: remove the rate or increase"),
            ("chancery_a_b_total > 1", "2: chancery_a_b_total is a counter: query its rate"),
            (
                "rate(chancery_a_d_seconds[1m])",
                "2: chancery_a_d_seconds has no samples: add _bucket, _sum or _count",
            ),
        ] {
            assert_eq!(complaints(&format!("```\n{query}\n```")), [expected]);
        }
        assert_eq!(complaints("`chancery_a_x`"), ["1: no such metric: chancery_a_x"]);
    }
}
