//! The Grafana dashboards: JSON from the table in `boards.rs`.
//!
//! The threshold of a panel is the limit of its alert, so both cannot differ.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Value, json};

use super::{
    boards::{BOARDS, Board, Kind, Panel},
    query::{Catalog, Limit},
    rules::RuleFile,
};

/// The version of Grafana's format. Grafana converts older versions when it loads a dashboard.
const SCHEMA_VERSION: u32 = 39;
const WIDTH: u32 = 24;
/// The threshold of an alert that fires at any value above 0.
const ABOVE_ZERO: f64 = 1e-6;
const DATASOURCE: &str = "${datasource}";
/// The prefixes of the series to which the generator adds the variables.
const PREFIXES: [&str; 3] = ["chancery_", "chancery:", "process_"];

/// Returns the files of all dashboards by name, or complaints about the table.
pub(super) fn generate(
    alerts: &RuleFile,
    catalog: &Catalog,
) -> Result<BTreeMap<String, String>, Vec<String>> {
    let mut complaints = Vec::new();
    let known: BTreeMap<&str, Option<Limit>> = alerts
        .rules()
        .map(|rule| {
            (rule.alert.as_str(), catalog.check(&rule.expr).ok().and_then(|facts| facts.limit))
        })
        .collect();
    let panels = || BOARDS.iter().flat_map(|board| board.rows).flat_map(|row| row.panels);
    for panel in panels() {
        let found = complaints_of(panel, &known, catalog).into_iter();
        complaints.extend(found.map(|complaint| format!("panel {:?}: {complaint}", panel.title)));
    }
    let shown: Vec<&&str> = panels().flat_map(|panel| panel.alerts).collect();
    let unseen = known.keys().filter(|alert| !shown.contains(alert));
    complaints.extend(unseen.map(|alert| format!("{alert}: no panel in boards/*.rs names it")));
    if !complaints.is_empty() {
        return Err(complaints);
    }
    Ok(BOARDS.iter().map(|board| (format!("{}.json", board.uid), file(board, &known))).collect())
}

fn complaints_of(
    panel: &Panel,
    known: &BTreeMap<&str, Option<Limit>>,
    catalog: &Catalog,
) -> Vec<String> {
    let mut complaints = Vec::new();
    let unknown = panel.alerts.iter().filter(|alert| !known.contains_key(**alert));
    complaints.extend(unknown.map(|alert| format!("there is no alert {alert}")));
    for (expr, legend) in panel.queries {
        match catalog.check(&query(expr).replace("$__rate_interval", "5m")) {
            Ok(facts) => {
                let names = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
                let unknown = names.filter(|name| !facts.labels.contains(*name));
                complaints.extend(unknown.map(|name| format!("the query has no label {name:?}")));
            }
            Err(found) => complaints.extend(found),
        }
    }
    complaints
}

/// Returns the title and the text of each query of all panels. The variables of the boards select all series.
pub(super) fn queries() -> impl Iterator<Item = (&'static str, String)> {
    let panels = BOARDS.iter().flat_map(|board| board.rows).flat_map(|row| row.panels);
    let queries =
        panels.flat_map(|panel| panel.queries.iter().map(|(expr, _)| (panel.title, *expr)));
    queries.map(|(title, expr)| {
        let text = query(expr).replace("$__rate_interval", "10s");
        let text = ["$cluster", "$namespace", "$job", "$instance"]
            .iter()
            .fold(text, |text, variable| text.replace(variable, ".*"));
        (title, text)
    })
}

/// Returns a query with the variables of the board as labels of each series.
fn query(expr: &str) -> String {
    let mut query = String::new();
    let mut rest = expr;
    while let Some(at) = PREFIXES.iter().filter_map(|prefix| rest.find(prefix)).min() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let (before, name) = rest.split_at(at);
        let (name, after) = name.split_at(name.find(|c| !is_name(c)).unwrap_or(name.len()));
        // Recorded series have no instance.
        let instance = if name.contains(':') { "" } else { ", instance=~\"$instance\"" };
        let labels =
            format!("cluster=~\"$cluster\", namespace=~\"$namespace\", job=~\"$job\"{instance}");
        query.push_str(before);
        query.push_str(name);
        rest = match after.strip_prefix('{') {
            Some(after) => {
                query.push_str(&format!("{{{labels}, "));
                after
            }
            None => {
                query.push_str(&format!("{{{labels}}}"));
                after
            }
        };
    }
    query + rest
}

fn file(board: &Board, known: &BTreeMap<&str, Option<Limit>>) -> String {
    let mut panels = Vec::new();
    let mut y = 0;
    for row in board.rows {
        let id = panels.len() + 1;
        panels.push(json!({
            "id": id, "type": "row", "title": row.title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }));
        y += 1;
        let mut x = 0;
        let mut height = 0;
        for panel in row.panels {
            let (w, h) = if panel.kind == Kind::Stat { (4, 4) } else { (WIDTH / 2, 8) };
            if x + w > WIDTH {
                (x, y) = (0, y + height);
            }
            height = h;
            panels.push(panel_json(panels.len() + 1, panel, known, [x, y, w, h]));
            x += w;
        }
        y += height;
    }
    let mut text = String::new();
    let json = serde_json::to_string_pretty(&sorted(&board_json(board, &panels)));
    writeln!(text, "{}", json.expect("a value of JSON has a text"))
        .expect("writing to a String cannot fail");
    text
}

fn board_json(board: &Board, panels: &[Value]) -> Value {
    let variable = |name: &str, label: &str, query: &str| {
        json!({
            "type": "query", "name": name, "label": label, "datasource": datasource(),
            "query": {"query": query, "refId": name}, "definition": query,
            "includeAll": true, "allValue": ".*", "multi": true,
            "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
        })
    };
    json!({
        "uid": board.uid,
        "title": board.title,
        "description": format!("{} Generated by `cargo xtask dashboards`.", board.description),
        "tags": ["chancery"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [{
            "type": "dashboards", "title": "Chancery", "tags": ["chancery"], "asDropdown": true,
            "includeVars": true, "keepTime": true,
        }],
        "annotations": {"list": [{
            "name": "Writes", "enable": true, "datasource": datasource(), "iconColor": "blue",
            "expr": format!(
                "max by (cluster, namespace, job) (changes({}[1m])) > 0", query("chancery_store_revision")
            ),
            "step": "1m", "titleFormat": "The state of {{cluster}} {{namespace}} {{job}} changed",
        }]},
        "templating": {"list": [
            {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
            variable("cluster", "Cluster", "label_values(chancery_build_info, cluster)"),
            variable(
                "namespace",
                "Namespace",
                "label_values(chancery_build_info{cluster=~\"$cluster\"}, namespace)",
            ),
            variable(
                "job",
                "Job",
                "label_values(chancery_build_info{cluster=~\"$cluster\", namespace=~\"$namespace\"}, job)",
            ),
            variable(
                "instance",
                "Replica",
                "label_values(chancery_build_info{cluster=~\"$cluster\", namespace=~\"$namespace\", job=~\"$job\"}, instance)",
            ),
        ]},
        "panels": panels,
    })
}

fn panel_json(
    id: usize,
    panel: &Panel,
    known: &BTreeMap<&str, Option<Limit>>,
    [x, y, w, h]: [u32; 4],
) -> Value {
    let kind = match panel.kind {
        Kind::Stat => "stat",
        Kind::Lines => "timeseries",
        Kind::Heatmap => "heatmap",
        Kind::Table => "table",
    };
    let targets: Vec<Value> = ('A'..)
        .zip(panel.queries)
        .map(|(id, (expr, legend))| {
            let format = match panel.kind {
                Kind::Heatmap => "heatmap",
                Kind::Table => "table",
                Kind::Stat | Kind::Lines => "time_series",
            };
            let is_instant = matches!(panel.kind, Kind::Stat | Kind::Table);
            json!({
                "refId": id, "expr": query(expr), "legendFormat": legend, "format": format,
                "instant": is_instant, "range": !is_instant, "datasource": datasource(),
            })
        })
        .collect();
    let mut description = panel.description.to_owned();
    for alert in panel.alerts {
        description.push_str(&format!(" Alert: {alert}."));
    }
    let limit = panel.alerts.iter().find_map(|alert| *known.get(alert)?);
    let is_line = panel.kind == Kind::Lines && limit.is_some();
    json!({
        "id": id,
        "type": kind,
        "title": panel.title,
        "description": description,
        "datasource": datasource(),
        "gridPos": {"x": x, "y": y, "w": w, "h": h},
        "targets": targets,
        "options": {},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": steps(limit)},
                "custom": {"thresholdsStyle": {"mode": if is_line { "line" } else { "off" }}},
            },
            "overrides": [],
        },
    })
}

/// Returns the steps of a threshold in Grafana's form: the first one has no lower bound.
fn steps(limit: Option<Limit>) -> Value {
    match limit {
        None => json!([{"color": "green", "value": null}]),
        Some(Limit::Above(value)) => {
            // Grafana compares with "at least". The alert does not fire at 0.
            let value = if value == 0.0 { ABOVE_ZERO } else { value };
            json!([{"color": "green", "value": null}, {"color": "red", "value": value}])
        }
        Some(Limit::Below(value)) => {
            json!([{"color": "red", "value": null}, {"color": "green", "value": value}])
        }
    }
}

fn datasource() -> Value {
    json!({"type": "prometheus", "uid": DATASOURCE})
}

/// Returns the value with sorted keys, whatever features serde_json was compiled with.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(map) => {
            let sorted_map: BTreeMap<&String, Value> =
                map.iter().map(|(key, value)| (key, sorted(value))).collect();
            sorted_map.into_iter().map(|(key, value)| (key.clone(), value)).collect()
        }
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_added_to_each_series() {
        assert_eq!(
            query("rate(chancery_a_b[5m]) / chancery_a_c{x=\"y\"} + chancery:a:b"),
            "rate(chancery_a_b{cluster=~\"$cluster\", namespace=~\"$namespace\", job=~\"$job\", instance=~\"$instance\"}[5m]) \
             / chancery_a_c{cluster=~\"$cluster\", namespace=~\"$namespace\", job=~\"$job\", instance=~\"$instance\", x=\"y\"} \
             + chancery:a:b{cluster=~\"$cluster\", namespace=~\"$namespace\", job=~\"$job\"}"
        );
    }

    #[test]
    fn threshold_is_the_limit_of_the_alert() {
        let panel = &super::super::boards::BOARDS[0].rows[0].panels[2];
        let alert = panel.alerts[0];
        let known = BTreeMap::from([(alert, Some(Limit::Above(120.0)))]);
        let json = panel_json(1, panel, &known, [0, 0, 4, 4]);
        let steps = &json["fieldConfig"]["defaults"]["thresholds"]["steps"];
        assert_eq!(steps[1]["value"], 120.0);
        assert_eq!(super::steps(Some(Limit::Above(0.0)))[1]["value"], ABOVE_ZERO);
        assert_eq!(super::steps(Some(Limit::Below(7.0)))[0]["color"], "red");
        assert!(json["description"].as_str().is_some_and(|text| text.contains(alert)));
    }

    #[test]
    fn table_without_its_alerts_is_reported() {
        let alerts = serde_saphyr::from_str("groups: []").expect("the YAML is valid");
        let complaints = generate(&alerts, &super::super::query::tests::catalog());
        let complaints = complaints.expect_err("the alerts and metrics of the table are missing");
        let has = |text: &str| complaints.iter().any(|complaint| complaint.contains(text));
        assert!(has("there is no alert ChanceryNoLeader"));
        assert!(has("no such metric: \"chancery_xds_streams\""));
    }
}
