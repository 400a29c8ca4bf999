//! A page of metrics in the Prometheus text format.

use anyhow::{Context as _, Result};

/// The metrics of a server at one time.
#[derive(Debug, Clone)]
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) fn new(page: String) -> Self {
        Self(page)
    }

    /// Returns the sum of a metric over all its series. A missing metric is an error, so that a
    /// renamed counter does not read as 0.
    pub(crate) fn sum(&self, name: &str) -> Result<f64> {
        let mut sum = None;
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name) else { continue };
            if !rest.starts_with(['{', ' ']) {
                continue;
            }
            let value = rest.rsplit(' ').next().unwrap_or_default();
            let value: f64 = value.parse().with_context(|| format!("parse the metric {line:?}"))?;
            sum = Some(sum.unwrap_or(0.0) + value);
        }
        sum.with_context(|| format!("the server has no metric {name}"))
    }

    /// Returns the quantile `share` of the values that came after `earlier`, in all series with
    /// `labels`. The quantile is the upper bound of a bucket, in the unit of the histogram. Returns
    /// `None` if there are no such values.
    pub(crate) fn quantile_since(
        &self,
        earlier: &Self,
        name: &str,
        labels: &str,
        share: f64,
    ) -> Result<Option<f64>> {
        let (now, before) = (self.buckets(name, labels)?, earlier.buckets(name, labels)?);
        let since = |(bound, n): &(f64, f64)| {
            let before = before.iter().find(|(known, _)| known == bound).map_or(0.0, |(_, n)| *n);
            (*bound, n - before)
        };
        let counts: Vec<(f64, f64)> = now.iter().map(since).collect();
        let all = counts.last().map_or(0.0, |(_, n)| *n);
        let enough = counts.iter().find(|(_, n)| *n >= all * share);
        Ok(enough.filter(|_| all > 0.0).map(|(bound, _)| *bound))
    }

    /// Returns the cumulative counts of a histogram by upper bound, in order, over all series with
    /// `labels`.
    fn buckets(&self, name: &str, labels: &str) -> Result<Vec<(f64, f64)>> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for line in self.0.lines() {
            let Some(rest) = line.strip_prefix(name).and_then(|it| it.strip_prefix("_bucket{"))
            else {
                continue;
            };
            let Some((series, n)) = rest.split_once("} ").filter(|(it, _)| it.contains(labels))
            else {
                continue;
            };
            let bound = series.split("le=\"").nth(1).and_then(|it| it.split('"').next());
            let bound: f64 = match bound.context("a bucket has no bound")? {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().with_context(|| format!("parse the metric {line:?}"))?,
            };
            let n: f64 = n.parse().with_context(|| format!("parse the metric {line:?}"))?;
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += n,
                None => buckets.push((bound, n)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(buckets)
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

    #[test]
    fn quantile_covers_only_new_observations() {
        let page = |a: u32, b: u32, c: u32| {
            Metrics::new(format!(
                "w_bucket{{lane=\"x\",le=\"0.1\"}} {a}\nw_bucket{{lane=\"x\",le=\"1\"}} {b}\n\
                 w_bucket{{lane=\"x\",le=\"+Inf\"}} {c}\nw_bucket{{lane=\"y\",le=\"+Inf\"}} 99\n"
            ))
        };
        let (before, after) = (page(100, 100, 100), page(100, 198, 200));
        let of = |share| after.quantile_since(&before, "w", "lane=\"x\"", share).unwrap();
        assert_eq!((of(0.5), of(0.98), of(0.99)), (Some(1.0), Some(1.0), Some(f64::INFINITY)));
        assert_eq!(after.quantile_since(&after, "w", "lane=\"x\"", 0.5).unwrap(), None);
    }
}
