//! The pages about the history: the revisions, one revision, and the difference between two.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    fleet::acknowledged,
    page::{Live, Page, Section, Viewer},
    parts::{
        Part, difference, facts, lacking, more, node_link, or_dash, resource_link, revision_link,
        state, table, time, type_name,
    },
    text::{address, count, number, shell, short_type},
};

/// The contents of the page of revisions.
#[derive(Debug, Default)]
pub struct Query {
    /// The scope; empty for all.
    pub scope: String,
    /// The type; empty for all.
    pub r#type: String,
    /// The name; empty for all.
    pub name: String,
    /// A part of the author.
    pub author: String,
    /// The label.
    pub label: String,
    /// The end of the page before.
    pub cursor: String,
}

impl Query {
    fn parameters(&self) -> [(&str, &str); 5] {
        [
            ("scope", &self.scope),
            ("type", &self.r#type),
            ("name", &self.name),
            ("author", &self.author),
            ("label", &self.label),
        ]
    }
}

/// Returns the page with the revisions.
#[must_use]
pub fn page(query: &Query, list: &pb::ListHistoryResponse, viewer: &Viewer) -> Page {
    let mut command = "chancery history".to_owned();
    for (name, value) in query.parameters().into_iter().filter(|(_, value)| !value.is_empty()) {
        command.push_str(&format!(" --{name} {}", shell(value)));
    }
    Page {
        section: Section::History,
        title: "History".to_owned(),
        command,
        live: Live::On,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            (filters(query))
            p { a href="/ui/freezes" { "Freezes" } " · " a href="/ui/diff" { "Compare two revisions" } }
            div data-part="history" {
                @if list.entries.is_empty() { p.empty { "No revision on this page matches." } }
                @else { (entries(&list.entries, viewer)) }
                (more(&list.next, "/ui/history", &query.parameters()))
            }
        },
    }
}

fn filters(query: &Query) -> Markup {
    html! {
        form.filters method="get" action="/ui/history" role="search" {
            @for (name, label) in [("scope", "Scope"), ("type", "Type"), ("name", "Name (with a type)"), ("author", "Author"), ("label", "Label")] {
                @let value = query.parameters().into_iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value);
                label { (label) input type="search" name=(name) value=(value); }
            }
            button type="submit" { "Show" }
            a href="/ui/history" { "Reset" }
        }
    }
}

/// Returns a table of revisions.
pub(crate) fn entries(entries: &[pb::HistoryEntry], viewer: &Viewer) -> Markup {
    let rows = html! {
        @for entry in entries {
            tr {
                th.number scope="row" { (revision_link(entry.revision)) }
                td { (time(entry.time_ms)) }
                td { (or_dash(&entry.author)) }
                td { (numbers(entry)) @if entry.held { " " (state("pending")) " held" } }
                td.cause { (or_dash(&entry.reason)) }
                td { @if viewer.may("apply") && entry.revision > 1 { (undo_link(entry.revision)) } }
            }
        }
    };
    table(
        "Revisions, the newest first",
        &["revision", "time", "author", "changes", "reason", "action"],
        &rows,
    )
}

fn undo_link(revision: u64) -> Markup {
    html! {
        a href=(address("/ui/undo", &[("revision", &revision.to_string())])) {
            "Undo" span.sr { " revision " (revision) }
        }
    }
}

fn numbers(entry: &pb::HistoryEntry) -> String {
    let numbers = [
        (entry.changed, "changed"),
        (entry.removed, "removed"),
        (entry.assignments, "assignments"),
        (entry.access, "access"),
    ];
    let shown = numbers.into_iter().filter(|(n, _)| *n > 0);
    let shown: Vec<String> = shown.map(|(n, word)| format!("{} {word}", number(n))).collect();
    shown.join(", ")
}

/// The content of the page about one revision.
#[derive(Debug)]
pub struct Revision {
    /// The changes.
    pub changes: pb::RevisionChanges,
    /// The sessions that have acknowledged it.
    pub live: Part<pb::WaitResult>,
}

/// Returns the page about one revision.
#[must_use]
pub fn revision_page(revision: &Revision, viewer: &Viewer) -> Page {
    let entry = revision.changes.entry.clone().unwrap_or_default();
    let n = entry.revision;
    let not_asked = revision.live.as_ref().map(|live| live.not_asked.clone());
    Page {
        section: Section::History,
        title: format!("Revision {n}"),
        command: format!("chancery history show {n}\nchancery wait {n}"),
        live: Live::On,
        not_asked: not_asked.unwrap_or_default(),
        notes: not_kept(&revision.changes),
        body: html! {
            section data-part="live" aria-labelledby="live-at" {
                h2 #live-at { "Is it live?" }
                (live(&revision.live, entry.held))
            }
            (about(&entry))
            @if viewer.may("apply") && n > 1 {
                p.actions {
                    a.button href=(address("/ui/undo", &[("revision", &n.to_string())])) { "Undo this revision" }
                    " "
                    a.button href=(address("/ui/rollback", &[("to", &n.to_string()), ("all", "true")])) {
                        "Roll everything back to this revision"
                    }
                }
            }
            h2 { "Changes" }
            (changes(&revision.changes.changes))
            (assignment_changes(&revision.changes.assignment_changes))
            (access_changes(&revision.changes.access_changes))
            (more(&revision.changes.next, "/ui/revision", &[("revision", &n.to_string())]))
        },
    }
}

fn not_kept(changes: &pb::RevisionChanges) -> Vec<String> {
    let hidden = (changes.hidden > 0)
        .then(|| format!("You may not read {}.", count(changes.hidden, "change")));
    let not_kept = (!changes.not_kept.is_empty()).then(|| changes.not_kept.clone());
    not_kept.into_iter().chain(hidden).collect()
}

fn live(live: &Part<pb::WaitResult>, is_held: bool) -> Markup {
    let result = match live {
        Ok(result) => result,
        Err(reason) => return lacking(reason),
    };
    let rows = html! {
        @for one in &result.unsettled {
            tr {
                th scope="row" { (node_link(&one.node)) }
                td { (type_name(&one.type_url)) }
                td { (state(&one.state)) }
                td.number { (one.replica_id) }
                td.cause { (or_dash(&one.message)) }
            }
        }
    };
    html! {
        p.sentence { (acknowledged(Some(result), is_held)) "." }
        @if !result.unsettled.is_empty() {
            (table("Sessions that have not acknowledged it", &["node", "type", "state", "replica", "reason"], &rows))
        }
        @if result.unsettled_omitted > 0 { p { (count(result.unsettled_omitted, "further session")) "." } }
    }
}

fn about(entry: &pb::HistoryEntry) -> Markup {
    let labels: Vec<String> =
        entry.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    facts(&[
        ("time", time(entry.time_ms)),
        ("author", or_dash(&entry.author)),
        ("from", or_dash(&entry.source)),
        ("reason", or_dash(&entry.reason)),
        ("label", or_dash(&entry.label)),
        ("labels", or_dash(&labels.join(", "))),
        ("confirmed guards", or_dash(&entry.confirmed.join(", "))),
        ("changes", or_dash(&numbers(entry))),
    ])
}

/// Returns the changed resources, each with its difference.
pub(crate) fn changes(changes: &[pb::Change]) -> Markup {
    html! {
        @if changes.is_empty() { p.empty { "No resource changes." } }
        @for change in changes {
            details open[changes.len() <= 5] {
                summary {
                    (state(&change.kind)) " " (short_type(&change.type_url)) " "
                    b { (change.name) } " in " (change.scope)
                }
                p { (resource_link(&change.type_url, &change.name, &change.scope)) }
                @if !change.unified.is_empty() { (difference(&change.unified, change.unified_lines_omitted)) }
                @else { (fields(&change.differences, change.differences_omitted)) }
            }
        }
    }
}

fn fields(fields: &[pb::FieldDifference], omitted: u64) -> Markup {
    let rows = html! {
        @for one in fields {
            tr {
                th scope="row" { code { (one.path) } }
                td { (state(&one.kind)) }
                td { code { (or_dash(&one.before)) } }
                td { code { (or_dash(&one.after)) } }
            }
        }
    };
    html! {
        @if !fields.is_empty() { (table("Fields that differ", &["field", "change", "before", "after"], &rows)) }
        @if omitted > 0 { p { (count(omitted, "further field")) "." } }
    }
}

/// Returns the changed assignments.
pub(crate) fn assignment_changes(changes: &[pb::AssignmentChange]) -> Markup {
    html! {
        @for change in changes {
            details open {
                summary { (state(&change.kind)) " assignment " b { (change.name) } }
                @if !change.unified.is_empty() { (difference(&change.unified, change.unified_lines_omitted)) }
                @else { (fields(&change.differences, change.differences_omitted)) }
            }
        }
    }
}

/// Returns the changed access rules, tokens and quotas.
pub(crate) fn access_changes(changes: &[pb::AccessChange]) -> Markup {
    html! {
        @for change in changes {
            details open {
                summary { (state(&change.kind)) " " (change.object) " " b { (change.name) } }
                @if !change.unified.is_empty() { (difference(&change.unified, change.unified_lines_omitted)) }
                @else { (fields(&change.differences, change.differences_omitted)) }
            }
        }
    }
}

/// Returns the page that compares two revisions.
#[must_use]
pub fn diff_page(
    from: &str,
    to: &str,
    scope: &str,
    answer: Option<&pb::RevisionComparison>,
) -> Page {
    let command = match answer {
        Some(_) => format!("chancery diff --from {}{}", shell(from), flag("--to", to)),
        None => String::new(),
    };
    Page {
        section: Section::History,
        title: "Compare two revisions".to_owned(),
        command,
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            form.filters method="get" action="/ui/diff" {
                label { "From revision" input type="text" inputmode="numeric" name="from" value=(from) required; }
                label { "To revision (empty for the newest)" input type="text" inputmode="numeric" name="to" value=(to); }
                label { "Scope" input type="search" name="scope" value=(scope); }
                button type="submit" { "Compare" }
            }
            @if let Some(answer) = answer {
                p.sentence {
                    (count(answer.total, "change")) " from revision " (revision_link(answer.from))
                    " to revision " (revision_link(answer.to)) "."
                }
                (changes(&answer.changes))
                (assignment_changes(&answer.assignment_changes))
                (access_changes(&answer.access_changes))
                (more(&answer.next, "/ui/diff", &[("from", from), ("to", to), ("scope", scope)]))
            }
        },
    }
}

fn flag(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name} {}", shell(value)) }
}
