//! `mixin.libsonnet`, evaluated with Debian's Jsonnet: it has the rules and dashboards of the other files.

use std::{collections::BTreeSet, process::Command};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};

use crate::{paths::Paths, proc, say::say, setup, source::Source};

const FILE: &str = "deploy/mixin/mixin.libsonnet";

/// The address with which the check replaces the beginning of all links.
const BASE: &str = "https://git.example/chancery/";

/// Fails if the evaluated file differs from the alerts, the recording rules or the files of the dashboards.
pub(super) fn check(
    paths: &Paths,
    alerts: Value,
    recording: Value,
    boards: &[Source],
) -> Result<()> {
    let jsonnet = setup::jsonnet(paths)?;
    let program = format!(
        "local mixin = (import '{FILE}') + {{ _config+:: {{ runbookBase: '{BASE}' }} }};\n\
         {{ alerts: mixin.prometheusAlerts, rules: mixin.prometheusRules, dashboards: mixin.grafanaDashboards }}"
    );
    let mut command = Command::new(jsonnet);
    let text = proc::output(command.current_dir(&paths.root).args(["--exec", &program]))?;
    let found: Value = serde_json::from_str(&text).context("parse the output of jsonnet")?;
    let expected =
        [("alerts", with_base(alerts)?), ("rules", recording), ("dashboards", dashboards(boards)?)];
    for (part, expected) in expected {
        if let Some(at) = difference(&found[part], &expected) {
            bail!("{FILE}: the {part} differ from the files beside it at {at}");
        }
    }
    say!("jsonnet: {FILE} has the rules and dashboards of the files beside it");
    Ok(())
}

/// Returns the rules with links that begin with [`BASE`].
fn with_base(mut alerts: Value) -> Result<Value> {
    let groups = alerts["groups"].as_array_mut().context("the alerts have no groups")?;
    for rule in groups.iter_mut().filter_map(|group| group["rules"].as_array_mut()).flatten() {
        let link = &mut rule["annotations"]["runbook_url"];
        *link = json!(format!("{BASE}{}", link.as_str().context("an alert has no runbook_url")?));
    }
    Ok(alerts)
}

/// Returns the dashboards by the names of their files.
fn dashboards(files: &[Source]) -> Result<Value> {
    let mut all = Map::new();
    for Source { path, text, .. } in files {
        let board = serde_json::from_str(text).with_context(|| format!("parse {path}"))?;
        let name = path.rsplit('/').next().unwrap_or(path);
        all.insert(name.to_owned(), board);
    }
    Ok(Value::Object(all))
}

/// Returns the place of the first difference. Jsonnet has one type of numbers, so 3 equals 3.0.
fn difference(one: &Value, other: &Value) -> Option<String> {
    let below = |name: String, one, other| Some(format!("/{name}{}", difference(one, other)?));
    match (one, other) {
        (Value::Object(ones), Value::Object(others)) => {
            let names: BTreeSet<&String> = ones.keys().chain(others.keys()).collect();
            names.into_iter().find_map(|name| below(name.clone(), &one[name], &other[name]))
        }
        (Value::Array(ones), Value::Array(others)) if ones.len() == others.len() => {
            let mut items = ones.iter().zip(others).enumerate();
            items.find_map(|(at, (one, other))| below(at.to_string(), one, other))
        }
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => None,
        _ => (one != other).then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_difference_is_found() {
        let value = json!({"a": [1, {"b": "x"}], "c": null});
        assert_eq!(difference(&value, &value), None);
        assert_eq!(difference(&json!(3), &json!(3.0)), None);
        for (other, at) in [
            (json!({"a": [1, {"b": "y"}], "c": null}), "/a/1/b"),
            (json!({"a": [2, {"b": "x"}], "c": null}), "/a/0"),
            (json!({"a": [1], "c": null}), "/a"),
            (json!({"a": [1, {"b": "x"}], "d": 1}), "/d"),
        ] {
            assert_eq!(difference(&value, &other).as_deref(), Some(at));
        }
    }
}
