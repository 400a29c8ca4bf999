//! The effects of a write on connected nodes, as the output of the command shows them.

use std::io;

use chancery_admin_proto::v1 as pb;

use crate::text::{count, has_colors, plain};

/// The maximum number of nodes that are shown.
const NODES_SHOWN_MAX: usize = 100;

/// Writes the connected nodes whose access the write would change.
pub(super) fn write_access_effects(
    response: &pb::WriteResponse,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for effect in response.access_effects.iter().take(NODES_SHOWN_MAX) {
        let (node, identity) = (plain(&effect.node), plain(&effect.identity));
        if effect.allowed {
            writeln!(out, "node {node} ({identity}) would no longer be refused")?
        } else {
            writeln!(out, "node {node} ({identity}) would be refused: {}", plain(&effect.reason))?;
        }
    }
    match response.access_effects.len().saturating_sub(NODES_SHOWN_MAX) {
        0 => {}
        n => writeln!(out, "… {n} more nodes")?,
    }
    // Only a dry run lists nodes.
    for replica in response.not_asked.iter().filter(|_| response.dry_run && response.access > 0) {
        let (id, reason) = (replica.replica_id, plain(&replica.message));
        writeln!(out, "replica {id} {reason}; its nodes are not listed")?;
    }
    Ok(())
}

/// Writes the guards that the write trips, and in a dry run how to confirm them.
pub(super) fn write_guards(
    response: &pb::WriteResponse,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for finding in &response.guards {
        let confirmed = if finding.confirmed { ", confirmed" } else { "" };
        writeln!(out, "guard {}{confirmed}:", finding.guard)?;
        for effect in &finding.effects {
            writeln!(out, "  {}", plain(effect))?;
        }
        if finding.effects_omitted > 0 {
            writeln!(out, "  … {} more", finding.effects_omitted)?;
        }
        if finding.replicas_not_asked > 0 && finding.guard != "unasked" {
            let others = count(finding.replicas_not_asked, "other replica");
            writeln!(out, "  the nodes of {others} were not asked")?;
        }
    }
    if response.dry_run && response.guards.iter().any(|finding| !finding.confirmed) {
        let names: Vec<&str> = response.guards.iter().map(|one| one.guard.as_str()).collect();
        writeln!(out, "the write is rejected without --confirm {}", names.join(","))?;
    }
    Ok(())
}

/// Returns the object of a change of access, in words.
pub(super) fn access_object(change: &pb::AccessChange) -> &str {
    match change.object.as_str() {
        "rule" => "access rule",
        object => object,
    }
}

/// The differences of one object in the answer to a write.
pub(super) struct Differences<'a> {
    pub(super) unified: &'a str,
    pub(super) lines_omitted: u64,
    /// The fields that differ, which a server of an earlier release has instead of lines.
    pub(super) fields: &'a [pb::FieldDifference],
}

/// Writes the differences of an object after a line with its name, if there are any.
pub(super) fn write_differences(
    object: &str,
    differences: &Differences<'_>,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let Differences { unified, lines_omitted, fields } = differences;
    if unified.is_empty() && fields.is_empty() {
        return Ok(());
    }
    writeln!(out, "{object}:")?;
    let colors = has_colors();
    for line in unified.lines() {
        let color = match line.as_bytes().first() {
            Some(b'-') if colors => "\x1b[31m",
            Some(b'+') if colors => "\x1b[32m",
            Some(b'~') if colors => "\x1b[33m",
            _ => "",
        };
        let reset = if color.is_empty() { "" } else { "\x1b[0m" };
        writeln!(out, "{color}{}{reset}", plain(line))?;
    }
    if *lines_omitted > 0 {
        writeln!(out, "  … {}", count(*lines_omitted, "more line"))?;
    }
    for difference in fields.iter().filter(|_| unified.is_empty()) {
        let side =
            |text: &String| if text.is_empty() { "(nothing)".to_owned() } else { plain(text) };
        let (before, after) = (side(&difference.before), side(&difference.after));
        writeln!(out, "  {}: {before} -> {after}", plain(&difference.path))?;
    }
    Ok(())
}

/// Writes the fields of the first access rules, tokens and quotas that differ.
pub(super) fn write_access_changes(
    response: &pb::WriteResponse,
    n_shown_max: usize,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for change in response.access_changes.iter().take(n_shown_max) {
        let object = format!("{} {:?}", access_object(change), change.name);
        let differences = Differences {
            unified: &change.unified,
            lines_omitted: change.unified_lines_omitted,
            fields: &change.differences,
        };
        write_differences(&object, &differences, out)?;
    }
    Ok(())
}
