//! The rules for PromQL queries: a query parses, names existing metrics and labels, and fits the kinds.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};

use crate::metrics_page::Known;

/// The labels that Prometheus adds to the series of a target.
pub(super) const TARGET_LABELS: [&str; 4] = ["cluster", "namespace", "job", "instance"];

/// The series of a histogram, by suffix.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// The names that queries may use.
#[derive(Debug)]
pub(super) struct Catalog {
    /// The metrics of the program.
    pub(super) metrics: BTreeMap<String, Known>,
    /// The labels of recorded series.
    pub(super) recorded: BTreeMap<String, BTreeSet<String>>,
}

/// The facts about a valid query.
#[derive(Debug, PartialEq)]
pub(super) struct Facts {
    /// The labels that the result can have.
    pub(super) labels: BTreeSet<String>,
    /// The metrics and recorded series in the query, without the suffixes of histograms.
    pub(super) metrics: BTreeSet<String>,
    /// The comparison with a constant, if it decides the result.
    pub(super) limit: Option<Limit>,
}

/// A comparison with a constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Limit {
    /// The result has the values above the constant.
    Above(f64),
    /// The result has the values below the constant.
    Below(f64),
}

impl Catalog {
    /// Returns the facts about a query, or complaints.
    pub(super) fn check(&self, query: &str) -> Result<Facts, Vec<String>> {
        let expr = parser::parse(query).map_err(|error| vec![format!("{query:?}: {error}")])?;
        let mut walk = Walk { catalog: self, metrics: BTreeSet::new(), complaints: Vec::new() };
        walk.visit(&expr, None);
        if walk.complaints.is_empty() {
            let metrics = walk.metrics;
            return Ok(Facts { labels: self.labels(&expr), metrics, limit: limit(&expr) });
        }
        Err(walk.complaints)
    }

    /// Returns the metric of a series such as `chancery_a_b{port="xds"}`, or a complaint.
    pub(super) fn check_series(&self, series: &str) -> Result<String, String> {
        match parser::parse(series) {
            Ok(Expr::VectorSelector(selector)) => {
                let labels = self.labels_of(&selector)?;
                complain_of_matchers(&selector, &labels)?;
                Ok(self.base(selector.name.as_deref().unwrap_or_default()).to_owned())
            }
            Ok(_) => Err(format!("{series:?} is not a series")),
            Err(error) => Err(format!("{series:?}: {error}")),
        }
    }

    /// Returns the metric to which a series belongs.
    fn base<'a>(&self, name: &'a str) -> &'a str {
        let base = SERIES.iter().find_map(|suffix| name.strip_suffix(suffix));
        base.filter(|base| self.metrics.get(*base).is_some_and(|known| known.kind == "histogram"))
            .unwrap_or(name)
    }

    /// Returns the labels of the series that a selector finds.
    fn labels_of(&self, selector: &VectorSelector) -> Result<BTreeSet<String>, String> {
        let name = selector.name.as_deref().unwrap_or_default();
        if let Some(labels) = self.recorded.get(name) {
            return Ok(labels.clone());
        }
        let Some(known) = self.metrics.get(self.base(name)) else {
            return Err(format!("no such metric: {name:?}"));
        };
        let mut labels = known.labels.clone();
        labels.extend(TARGET_LABELS.map(str::to_owned));
        if name.ends_with("_bucket") {
            labels.insert("le".to_owned());
        }
        Ok(labels)
    }

    /// Returns the labels that the result of a valid expression can have.
    fn labels(&self, expr: &Expr) -> BTreeSet<String> {
        match expr {
            Expr::Aggregate(aggregate) => match &aggregate.modifier {
                Some(LabelModifier::Include(by)) => by.labels.iter().cloned().collect(),
                Some(LabelModifier::Exclude(without)) => {
                    let mut labels = self.labels(&aggregate.expr);
                    labels.retain(|label| !without.labels.contains(label));
                    labels
                }
                None => BTreeSet::new(),
            },
            Expr::Binary(binary) => {
                let left = self.labels(&binary.lhs);
                if binary.op.to_string() == "or" || left.is_empty() {
                    return &left | &self.labels(&binary.rhs);
                }
                left
            }
            Expr::Unary(unary) => self.labels(&unary.expr),
            Expr::Paren(paren) => self.labels(&paren.expr),
            Expr::Subquery(subquery) => self.labels(&subquery.expr),
            Expr::VectorSelector(selector) => self.labels_of(selector).unwrap_or_default(),
            Expr::MatrixSelector(matrix) => self.labels_of(&matrix.vs).unwrap_or_default(),
            Expr::Call(call) if call.func.name == "absent" => BTreeSet::new(),
            Expr::Call(call) => {
                let mut labels: BTreeSet<String> =
                    call.args.args.iter().flat_map(|argument| self.labels(argument)).collect();
                if call.func.name == "histogram_quantile" {
                    labels.remove("le");
                }
                labels
            }
            _ => BTreeSet::new(),
        }
    }
}

/// A walk through the parts of an expression.
struct Walk<'a> {
    catalog: &'a Catalog,
    metrics: BTreeSet<String>,
    complaints: Vec<String>,
}

impl Walk<'_> {
    /// Visits an expression. `function` is the function whose argument it is.
    fn visit(&mut self, expr: &Expr, function: Option<&str>) {
        match expr {
            Expr::Aggregate(aggregate) => {
                self.visit(&aggregate.expr, None);
                if let Some(modifier) = &aggregate.modifier {
                    let inner = self.catalog.labels(&aggregate.expr);
                    let unknown = modifier.labels().labels.iter().find(|l| !inner.contains(*l));
                    self.complaints
                        .extend(unknown.map(|label| format!("{expr}: no label {label:?}")));
                }
            }
            Expr::Binary(binary) => {
                self.visit(&binary.lhs, None);
                self.visit(&binary.rhs, None);
            }
            Expr::Unary(unary) => self.visit(&unary.expr, None),
            Expr::Paren(paren) => self.visit(&paren.expr, function),
            Expr::Subquery(subquery) => self.visit(&subquery.expr, None),
            Expr::VectorSelector(selector) => self.select(selector, None),
            Expr::MatrixSelector(matrix) => self.select(&matrix.vs, function),
            Expr::Call(call) => {
                let name = call.func.name;
                call.args.args.iter().for_each(|argument| self.visit(argument, Some(name)));
                let has_le = |argument: &Expr| self.catalog.labels(argument).contains("le");
                if name == "histogram_quantile" && !call.args.args.iter().any(|arg| has_le(arg)) {
                    self.complaints.push(format!("{expr}: the label le is missing"));
                }
            }
            _ => {}
        }
    }

    /// Checks a selector. `function` is the function that reads its range.
    fn select(&mut self, selector: &VectorSelector, function: Option<&str>) {
        let name = selector.name.clone().unwrap_or_default();
        let labels = self.catalog.labels_of(selector);
        let checked = labels.and_then(|labels| complain_of_matchers(selector, &labels));
        self.complaints.extend(checked.err());
        let base = self.catalog.base(&name);
        let kind = self.catalog.metrics.get(base).map(|known| known.kind.as_str());
        let is_rate = matches!(function, Some("rate" | "increase"));
        let complaint = match kind {
            Some("histogram") if base == name => "has no samples: add _bucket, _sum or _count",
            Some("counter" | "histogram") if !is_rate => "only grows: query its rate or increase",
            Some("gauge") if is_rate => "is a gauge: remove the rate or increase",
            _ => "",
        };
        if !complaint.is_empty() {
            self.complaints.push(format!("{name} {complaint}"));
        }
        self.metrics.insert(base.to_owned());
    }
}

fn complain_of_matchers(
    selector: &VectorSelector,
    labels: &BTreeSet<String>,
) -> Result<(), String> {
    let unknown = selector.matchers.matchers.iter().find(|m| !labels.contains(&m.name));
    let name = selector.name.as_deref().unwrap_or_default();
    unknown.map_or(Ok(()), |matcher| Err(format!("{name} has no label {:?}", matcher.name)))
}

fn limit(expr: &Expr) -> Option<Limit> {
    let Expr::Binary(binary) = expr else { return None };
    let constant = constant(&binary.rhs)?;
    match binary.op.to_string().as_str() {
        ">" => Some(Limit::Above(constant)),
        "<" => Some(Limit::Below(constant)),
        _ => None,
    }
}

/// Returns the value of a constant expression.
fn constant(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::NumberLiteral(number) => Some(number.val),
        Expr::Paren(paren) => constant(&paren.expr),
        Expr::Binary(binary) => {
            let (left, right) = (constant(&binary.lhs)?, constant(&binary.rhs)?);
            match binary.op.to_string().as_str() {
                "*" => Some(left * right),
                "+" => Some(left + right),
                "-" => Some(left - right),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a catalog with a counter, a gauge, a histogram and a recorded series.
    pub(in crate::mixin) fn catalog() -> Catalog {
        let known = |kind: &str, labels: &[&str]| Known {
            kind: kind.to_owned(),
            labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        };
        Catalog {
            metrics: BTreeMap::from([
                ("chancery_a_b_total".to_owned(), known("counter", &["port"])),
                ("chancery_a_c".to_owned(), known("gauge", &[])),
                ("chancery_a_d_seconds".to_owned(), known("histogram", &["lane"])),
            ]),
            recorded: BTreeMap::from([(
                "chancery:a:ratio".to_owned(),
                BTreeSet::from(["job".to_owned()]),
            )]),
        }
    }

    #[test]
    fn valid_query_has_labels_metrics_and_limit() {
        let facts = |query: &str| catalog().check(query).expect("the query is valid");
        let labels = |query: &str| facts(query).labels.into_iter().collect::<Vec<_>>().join(",");
        assert_eq!(labels("sum by (job, port) (rate(chancery_a_b_total[5m])) > 1"), "job,port");
        assert_eq!(labels("chancery_a_c == 0"), "cluster,instance,job,namespace");
        assert_eq!(labels("absent(chancery_a_c) or max by (job) (chancery_a_c)"), "job");
        let quantile = "histogram_quantile(0.9, sum by (job, le) (rate(chancery_a_d_seconds_bucket{lane=\"x\"}[5m])))";
        assert_eq!(labels(quantile), "job");
        assert_eq!(
            facts(quantile).metrics.into_iter().collect::<Vec<_>>(),
            ["chancery_a_d_seconds"]
        );
        assert_eq!(facts("chancery_a_c < 2 * 1024").limit, Some(Limit::Below(2048.0)));
        assert_eq!(facts("chancery:a:ratio > 3 * 0.5").limit, Some(Limit::Above(1.5)));
        assert_eq!(facts("chancery_a_c > 0.1 * chancery_a_c").limit, None);
    }

    #[test]
    fn invalid_query_is_reported() {
        for (query, complaint) in [
            ("chancery_a_x", "no such metric: \"chancery_a_x\""),
            ("chancery_a_c{port=\"x\"}", "chancery_a_c has no label \"port\""),
            ("chancery_a_b_total > 1", "chancery_a_b_total only grows: query its rate or increase"),
            ("rate(chancery_a_c[5m])", "chancery_a_c is a gauge: remove the rate or increase"),
            (
                "rate(chancery_a_d_seconds[5m])",
                "chancery_a_d_seconds has no samples: add _bucket, _sum or _count",
            ),
            (
                "sum by (lane) (rate(chancery_a_b_total[5m]))",
                "sum by (lane) (rate(chancery_a_b_total[5m])): no label \"lane\"",
            ),
        ] {
            assert_eq!(catalog().check(query), Err(vec![complaint.to_owned()]), "{query}");
        }
        let no_le = "histogram_quantile(0.9, sum(rate(chancery_a_d_seconds_bucket[5m])))";
        assert!(catalog().check(no_le).unwrap_err()[0].ends_with("the label le is missing"));
        assert!(catalog().check("sum(").is_err());
    }

    #[test]
    fn series_of_a_test_is_checked() {
        assert_eq!(
            catalog().check_series("chancery_a_b_total{job=\"x\",port=\"xds\"}"),
            Ok("chancery_a_b_total".to_owned())
        );
        assert!(catalog().check_series("chancery_a_b_total{shard=\"1\"}").is_err());
        assert!(catalog().check_series("chancery_a_gone").is_err());
    }
}
