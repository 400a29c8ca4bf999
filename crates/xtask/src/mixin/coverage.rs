//! The unit tests of the alerts: each alert has one that fires, one that recovers, and one that stays
//! quiet.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{query::Catalog, rules::RuleFile};

/// A file of unit tests, as promtool reads it.
#[derive(Debug, Deserialize)]
pub(super) struct TestFile {
    tests: Vec<Test>,
}

#[derive(Debug, Deserialize)]
struct Test {
    name: String,
    input_series: Vec<Series>,
    alert_rule_test: Vec<Expectation>,
}

#[derive(Debug, Deserialize)]
struct Series {
    series: String,
}

#[derive(Debug, Deserialize)]
struct Expectation {
    alertname: String,
    eval_time: String,
    #[serde(default)]
    exp_alerts: Vec<serde_json::Value>,
}

/// The tests that an alert has.
#[derive(Debug, Default)]
struct Cases {
    fires: bool,
    recovers: bool,
    is_quiet: bool,
}

/// Returns complaints about missing tests, and about tests with the wrong series.
pub(super) fn complaints(
    files: &BTreeMap<String, TestFile>,
    alerts: &RuleFile,
    recording: &RuleFile,
    catalog: &Catalog,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let inputs = inputs(alerts, recording, catalog);
    let mut cases: BTreeMap<&str, Cases> =
        inputs.keys().map(|alert| (*alert, Cases::default())).collect();
    for (path, test) in
        files.iter().flat_map(|(path, file)| file.tests.iter().map(move |t| (path, t)))
    {
        let mut say =
            |complaint: String| complaints.push(format!("{path}: {}: {complaint}", test.name));
        let mut given = BTreeSet::new();
        for series in &test.input_series {
            match catalog.check_series(&series.series) {
                Ok(metric) => drop(given.insert(metric)),
                Err(complaint) => say(complaint),
            }
        }
        let names: BTreeSet<&str> =
            test.alert_rule_test.iter().map(|expectation| expectation.alertname.as_str()).collect();
        for name in names {
            let (Some(cases), Some(inputs)) = (cases.get_mut(name), inputs.get(name)) else {
                say(format!("there is no alert {name}"));
                continue;
            };
            if let Some(metric) = inputs.iter().find(|metric| !given.contains(*metric)) {
                say(format!("the alert {name} reads {metric}, which has no input series"));
            }
            if let Err(complaint) = cases.add(test, name) {
                say(complaint);
            }
        }
    }
    for (alert, Cases { fires, recovers, is_quiet }) in cases {
        for (case, is_there) in
            [("fires", fires), ("recovers", recovers), ("does not fire", is_quiet)]
        {
            if !is_there {
                complaints.push(format!("{alert}: no unit test in which the alert {case}"));
            }
        }
    }
    complaints
}

/// Returns the metrics that each alert reads, directly or from recorded series.
fn inputs<'a>(
    alerts: &'a RuleFile,
    recording: &RuleFile,
    catalog: &Catalog,
) -> BTreeMap<&'a str, BTreeSet<String>> {
    let read = |query: &str| catalog.check(query).map(|facts| facts.metrics).unwrap_or_default();
    let recorded: BTreeMap<&str, BTreeSet<String>> =
        recording.rules().map(|rule| (rule.record.as_str(), read(&rule.expr))).collect();
    alerts
        .rules()
        .map(|rule| {
            let metrics = read(&rule.expr).into_iter();
            let metrics = metrics.flat_map(|metric| {
                recorded.get(metric.as_str()).cloned().unwrap_or_else(|| BTreeSet::from([metric]))
            });
            (rule.alert.as_str(), metrics.collect())
        })
        .collect()
}

impl Cases {
    /// Adds the expectations of a test for an alert.
    fn add(&mut self, test: &Test, alert: &str) -> Result<(), String> {
        let mut first = None;
        let mut last_quiet = None;
        for expectation in test.alert_rule_test.iter().filter(|e| e.alertname == alert) {
            let time = minutes(&expectation.eval_time)?;
            if expectation.exp_alerts.is_empty() {
                last_quiet = last_quiet.max(Some(time));
            } else {
                first = first.or(Some(time));
            }
        }
        self.fires |= first.is_some();
        self.recovers |= first.is_some() && last_quiet > first;
        self.is_quiet |= first.is_none();
        Ok(())
    }
}

/// Parses a time such as `15m`.
fn minutes(time: &str) -> Result<u32, String> {
    let number = time.strip_suffix('m').and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("the time {time:?} is not a number of minutes, such as 15m"))
}

#[cfg(test)]
mod tests {
    use super::{super::query::tests::catalog, *};

    const ALERTS: &str = "
groups:
- name: g
  rules:
  - {alert: ChanceryX, expr: 'chancery:a:ratio > 1'}
";
    const RECORDING: &str = "
groups:
- name: g
  rules:
  - {record: 'chancery:a:ratio', expr: 'sum by (job) (chancery_a_c)'}
";
    const TESTS: &str = "
tests:
- name: fires
  input_series: [{series: 'chancery_a_c{job=\"x\"}', values: '1'}]
  alert_rule_test:
  - {alertname: ChanceryX, eval_time: 5m, exp_alerts: [{}]}
  - {alertname: ChanceryX, eval_time: 10m}
- name: quiet
  input_series: [{series: 'chancery_a_c{job=\"x\"}', values: '1'}]
  alert_rule_test:
  - {alertname: ChanceryX, eval_time: 5m}
";

    fn found(tests: &str) -> Vec<String> {
        fn yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
            serde_saphyr::from_str(text).expect("the YAML is valid")
        }
        let files = BTreeMap::from([("t.yaml".to_owned(), yaml(tests))]);
        complaints(&files, &yaml(ALERTS), &yaml(RECORDING), &catalog())
    }

    #[test]
    fn alert_with_all_cases_has_no_complaint() {
        assert_eq!(found(TESTS), [""; 0]);
    }

    #[test]
    fn missing_case_is_reported() {
        let missing =
            |case: &str| vec![format!("ChanceryX: no unit test in which the alert {case}")];
        assert_eq!(found(&TESTS.replace("eval_time: 10m", "eval_time: 4m")), missing("recovers"));
        let (fires, quiet) = TESTS.split_once("- name: quiet").expect("two tests");
        assert_eq!(found(fires), missing("does not fire"));
        assert_eq!(found(&format!("tests:\n- name: q{quiet}")).len(), 2);
    }

    #[test]
    fn series_that_the_alert_does_not_read_is_reported() {
        let other = TESTS.replacen("chancery_a_c{", "chancery_a_b_total{", 1);
        assert!(found(&other)[0].contains("reads chancery_a_c, which has no input series"));
        let gone = TESTS.replacen("chancery_a_c{", "chancery_a_gone{", 1);
        assert!(found(&gone)[0].contains("no such metric"));
    }
}
