//! The tree of policies as indented text.

use std::io::{self, Write};

use chancery_lb_policy::{LbConfig, Priority, Tree};
use serde_json::{Map, Value};

/// Writes a tree: a line per policy with its settings, and its children below it.
pub(super) fn write(cluster: &str, tree: &Tree, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "cluster {cluster:?} in gRPC clients")?;
    writeln!(out, "{}", tree.config.name)?;
    for priority in &tree.priorities {
        let child = &tree.config.config["children"][&priority.name];
        let ignores = child["ignoreReresolutionRequests"] == true;
        let note = if ignores { " (ignores re-resolution requests)" } else { "" };
        writeln!(out, "  {}: cluster {:?}{note}", priority.name, priority.cluster)?;
        write_policies(&child["config"], priority, 4, out)?;
    }
    for warning in &tree.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// Writes a list of policies, of which the first is used, and below them the localities.
fn write_policies(
    list: &Value,
    priority: &Priority,
    indent: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let first = list.as_array().and_then(|list| list.first()).and_then(Value::as_object);
    let Some((name, Value::Object(config))) = first.and_then(|entry| entry.iter().next()) else {
        return write_localities(priority, indent, None, out);
    };
    let mut settings: Map<String, Value> = config.clone();
    let child = settings.remove("childPolicy");
    let settings =
        if settings.is_empty() { String::new() } else { format!(" {}", Value::Object(settings)) };
    writeln!(out, "{:indent$}{name}{settings}", "")?;
    match (child, &priority.weighted_target) {
        (Some(child), Some(target)) if name == chancery_lb_policy::names::WRR_LOCALITY => {
            writeln!(out, "{:1$}{2}", "", indent + 2, target.name)?;
            write_localities(priority, indent + 4, Some(&child), out)
        }
        (Some(child), _) => write_policies(&child, priority, indent + 2, out),
        (None, _) => write_localities(priority, indent + 2, None, out),
    }
}

/// Writes the localities with their weights and endpoints, and the policy of each.
fn write_localities(
    priority: &Priority,
    indent: usize,
    child: Option<&Value>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if priority.localities.is_empty() {
        writeln!(out, "{:indent$}(no endpoints)", "")?;
    }
    for locality in &priority.localities {
        let weight = locality.weight.unwrap_or_default();
        writeln!(out, "{:indent$}{locality} weight {weight}", "")?;
        let inner = indent + 2;
        if let Some(child) = child {
            writeln!(out, "{:inner$}{}", "", one_line(child))?;
        }
        if locality.endpoints.is_empty() {
            writeln!(out, "{:inner$}(no endpoints)", "")?
        } else {
            writeln!(out, "{:inner$}{}", "", locality.endpoints.join(", "))?
        }
    }
    Ok(())
}

fn one_line(list: &Value) -> String {
    let first = list.as_array().and_then(|list| list.first()).and_then(Value::as_object);
    match first.and_then(|entry| entry.iter().next()) {
        Some((name, config)) => format!("{name} {config}"),
        None => LbConfig::new("", list.clone()).to_string(),
    }
}
