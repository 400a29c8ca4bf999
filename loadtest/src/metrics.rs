//! A page of metrics in Prometheus' text form.

use anyhow::{Context as _, Result};

/// What a server counted of itself at one time.
#[derive(Debug, Clone)]
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) fn new(page: String) -> Self {
        Self(page)
    }

    /// The sum of a metric over all of its series. An error if there is none: a counter that was
    /// renamed must not read as 0.
    pub(crate) fn sum(&self, name: &str) -> Result<f64> {
        let mut sum = None;
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            if !rest.starts_with(['{', ' ']) {
                continue;
            }
            let value = rest.rsplit(' ').next().unwrap_or_default();
            let value: f64 = value.parse().with_context(|| format!("the metric {line:?}"))?;
            sum = Some(sum.unwrap_or(0.0) + value);
        }
        sum.with_context(|| format!("the server has no metric {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_and_similar_names_are_not() {
        let page =
            "# HELP a_total x\na_total{type=\"b c\"} 3\na_total{type=\"d\"} 4\na_total_x 9\nb 5\n";
        let metrics = Metrics::new(page.to_owned());
        assert_eq!(metrics.sum("a_total").unwrap(), 7.0);
        assert_eq!(metrics.sum("b").unwrap(), 5.0);
        assert!(metrics.sum("c").is_err());
    }
}
