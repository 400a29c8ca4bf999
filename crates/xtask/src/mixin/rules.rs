//! The rule files of the mixin: `alerts.yaml` and `recording.yaml`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::query::{Catalog, Facts};

/// The document with the runbooks.
pub(super) const RUNBOOKS: &str = "docs/operations.md";

const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    #[expect(dead_code, reason = "promtool checks the names of groups")]
    name: String,
    rules: Vec<Rule>,
}

/// An alert or a recording rule.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rule {
    pub(super) alert: String,
    pub(super) record: String,
    pub(super) expr: String,
    #[serde(rename = "for")]
    wait: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl RuleFile {
    /// Returns the rules of all groups.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.groups.iter().flat_map(|group| &group.rules)
    }
}

/// Adds the recorded series to the catalog. Returns complaints.
pub(super) fn record(rules: &RuleFile, catalog: &mut Catalog) -> Vec<String> {
    let mut complaints = Vec::new();
    for rule in rules.rules() {
        match catalog.check(&rule.expr) {
            Ok(facts) => drop(catalog.recorded.insert(rule.record.clone(), facts.labels)),
            Err(found) => complaints.extend(found),
        }
    }
    complaints
}

/// Returns complaints about the alerts. `runbooks` is the text of the document with the runbooks.
pub(super) fn complaints(alerts: &RuleFile, catalog: &Catalog, runbooks: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut names = BTreeSet::new();
    let headings: BTreeSet<&str> =
        runbooks.lines().filter_map(|line| line.strip_prefix("### Chancery")).collect();
    for rule in alerts.rules() {
        if !names.insert(rule.alert.strip_prefix("Chancery").unwrap_or_default()) {
            complaints.push(format!("{:?}: the name is not unique", rule.alert));
        }
        let found = match catalog.check(&rule.expr) {
            Ok(facts) => of_alert(rule, &facts),
            Err(found) => found,
        };
        complaints.extend(found.iter().map(|complaint| format!("{}: {complaint}", rule.alert)));
    }
    let differing = names.symmetric_difference(&headings);
    complaints.extend(differing.map(|name| {
        format!("Chancery{name}: an alert and its runbook `### Chancery{name}` in {RUNBOOKS} belong together; one is missing")
    }));
    complaints
}

/// Returns complaints about the labels and annotations of an alert.
fn of_alert(rule: &Rule, facts: &Facts) -> Vec<String> {
    let mut complaints = Vec::new();
    if !SEVERITIES.contains(&rule.labels.get("severity").map_or("", String::as_str)) {
        complaints.push(format!("the label severity is not one of {SEVERITIES:?}"));
    }
    let annotation = |name: &str| rule.annotations.get(name).map_or("", String::as_str);
    if annotation("summary").is_empty() || annotation("summary").ends_with('.') {
        complaints.push("the summary is missing, or ends in a full stop".to_owned());
    }
    if !annotation("description").contains("$value") {
        complaints.push("the description does not show the value".to_owned());
    }
    let runbook = format!("{RUNBOOKS}#{}", rule.alert.to_lowercase());
    if annotation("runbook_url") != runbook {
        complaints.push(format!("the runbook_url is not {runbook}"));
    }
    let texts = rule.annotations.values();
    let used = texts.flat_map(|text| text.split("$labels.").skip(1));
    let names = used.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
    let unknown = names.flatten().filter(|name| !facts.labels.contains(*name));
    complaints.extend(unknown.map(|name| format!("the alert has no label {name:?}")));
    complaints
}

#[cfg(test)]
mod tests {
    use super::{super::query::tests::catalog, *};

    const GOOD: &str = "
groups:
- name: g
  rules:
  - alert: ChanceryX
    expr: sum by (job, port) (rate(chancery_a_b_total[5m])) > 1
    for: 5m
    labels: {severity: warning}
    annotations:
      summary: 'Port {{ $labels.port }}'
      description: '{{ $value }}.'
      runbook_url: docs/operations.md#chanceryx
";

    fn found(rules: &str, runbooks: &str) -> Vec<String> {
        let rules = serde_saphyr::from_str(rules).expect("the YAML is valid");
        complaints(&rules, &catalog(), runbooks)
    }

    #[test]
    fn complete_alert_has_no_complaint() {
        assert_eq!(found(GOOD, "### ChanceryX\n"), [""; 0]);
    }

    #[test]
    fn incomplete_alert_is_reported() {
        for (from, to, complaint) in [
            ("severity: warning", "severity: bad", "ChanceryX: the label severity is not one of"),
            ("{severity: warning}", "{}", "ChanceryX: the label severity is not one of"),
            ("summary: 'P", "other: 'P", "ChanceryX: the summary is missing"),
            ("$value", "x", "ChanceryX: the description does not show the value"),
            ("#chanceryx", "#x", "ChanceryX: the runbook_url is not docs/operations.md#chanceryx"),
            ("$labels.port", "$labels.shard", "ChanceryX: the alert has no label \"shard\""),
            ("a_b_total", "a_z_total", "ChanceryX: no such metric"),
        ] {
            let found = found(&GOOD.replace(from, to), "### ChanceryX\n");
            assert!(found[0].starts_with(complaint), "{found:?}");
        }
    }

    #[test]
    fn alert_without_runbook_and_runbook_without_alert_are_reported() {
        assert!(found(GOOD, "")[0].starts_with("ChanceryX: an alert and its runbook"));
        let gone = "### ChanceryX\n### ChanceryGone\n";
        assert!(found(GOOD, gone)[0].starts_with("ChanceryGone: an alert and its runbook"));
    }
}
