//! Samples that are computed at each scrape, in Prometheus' text format.
//!
//! The recorder holds counters as whole numbers, but times in seconds need fractions. It also holds a value until somebody sets
//! it again, but the state of the process changes by itself.

use std::fmt::Write as _;

use crate::{Metric, MetricKind};

/// The value of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The name of the metric, which has a row in a table.
    pub name: &'static str,
    /// A label and its value.
    pub label: Option<(&'static str, &'static str)>,
    /// The value at the time of the scrape.
    pub value: f64,
}

/// Returns a [`Sample`]: `sample!("name", value)`, or `sample!("name", "label" => text, value)`.
#[macro_export]
macro_rules! sample {
    ($name:literal, $value:expr) => {
        $crate::Sample { name: $name, label: None, value: $value }
    };
    ($name:literal, $label:literal => $text:expr, $value:expr) => {
        $crate::Sample { name: $name, label: Some(($label, $text)), value: $value }
    };
}

/// Appends the metrics of a table that have samples.
pub fn append_samples(text: &mut String, table: &[Metric], samples: &[Sample]) {
    for Metric { name, kind, help } in table {
        let mut own = samples.iter().filter(|sample| sample.name == *name).peekable();
        if own.peek().is_none() {
            continue;
        }
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        push(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        for Sample { label, value, .. } in own {
            match label {
                Some((label, of)) => {
                    push(text, format_args!("{name}{{{label}=\"{of}\"}} {value}\n"))
                }
                None => push(text, format_args!("{name} {value}\n")),
            }
        }
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_with_the_help_and_the_kind_of_their_metric() {
        let table = [
            ("a_seconds_total", MetricKind::Counter, "Seconds"),
            ("b_c", MetricKind::Gauge, "Without a sample"),
            ("d_e", MetricKind::Gauge, "Things"),
        ]
        .map(|(name, kind, help)| Metric { name, kind, help });
        let samples = [
            sample!("d_e", "of" => "x", 3.0),
            sample!("a_seconds_total", 1.25),
            sample!("d_e", "of" => "y", 4e10),
        ];
        let mut text = "before 1\n".to_owned();
        append_samples(&mut text, &table, &samples);
        assert_eq!(
            text,
            "before 1\n# HELP a_seconds_total Seconds\n# TYPE a_seconds_total counter\na_seconds_total 1.25\n\
             # HELP d_e Things\n# TYPE d_e gauge\nd_e{of=\"x\"} 3\nd_e{of=\"y\"} 40000000000\n"
        );
    }
}
