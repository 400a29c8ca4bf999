//! Parts that several pages have: states, times, tables, lists and notes.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::text::{address, count, iso, number, short_type, utc};

/// A part of a page, or the reason why the page lacks it.
pub type Part<T> = Result<T, String>;

/// The states of nodes, the worst first, each with a sign that does not depend on colors.
pub(crate) const STATES: [(&str, &str); 7] = [
    ("unassigned", "∅"),
    ("rejected", "✕"),
    ("silent", "○"),
    ("pending", "◐"),
    ("waiting", "…"),
    ("synced", "✓"),
    ("disconnected", "⏻"),
];

/// Returns a state as a sign and a word.
pub(crate) fn state(word: &str) -> Markup {
    let word = if word == "nacked" { "rejected" } else { word };
    let known = STATES.iter().find(|(known, _)| *known == word);
    let (class, sign) = match (known, word) {
        (Some((known, sign)), _) => (*known, *sign),
        (None, "up" | "ready" | "present" | "matches" | "served" | "connected" | "added") => {
            ("synced", "✓")
        }
        (
            None,
            "down" | "diverged" | "missing" | "not served" | "removed" | "deleted" | "warning",
        ) => ("rejected", "✕"),
        (None, "updated" | "missing-in-some-views" | "connecting") => ("pending", "◐"),
        (None, _) => ("idle", "·"),
    };
    html! {
        span.state .{ "s-" (class) } { span aria-hidden="true" { (sign) } " " (word) }
    }
}

/// Returns a time with its zone, or a dash.
pub(crate) fn time(ms: u64) -> Markup {
    html! {
        @if ms == 0 { span.none { "–" } } @else { time datetime=(iso(ms)) { (utc(ms)) } }
    }
}

/// Returns a text, or a dash.
pub(crate) fn or_dash(text: &str) -> Markup {
    html! {
        @if text.is_empty() { span.none { "–" } } @else { (text) }
    }
}

/// Returns the reason why a page lacks a part.
pub(crate) fn lacking(reason: &str) -> Markup {
    html! { p.note role="note" { "This part is missing: " (reason) } }
}

/// Returns which replicas did not answer.
pub(crate) fn replicas_without_answer(not_asked: &[pb::ReplicaNotAsked]) -> Markup {
    if not_asked.is_empty() {
        return html! {};
    }
    html! {
        div.note role="note" {
            p { b { "This answer is partial. " } "These replicas did not answer, and their nodes are not on this page:" }
            ul {
                @for replica in not_asked {
                    li { "replica " (replica.replica_id) " " (replica.message) " (" (replica.reason) ")" }
                }
            }
        }
    }
}

/// Returns a hidden field of a form.
pub(crate) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}

/// Returns a table that scrolls within its width.
pub(crate) fn table(caption: &str, heads: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Returns a list of terms and their values.
pub(crate) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (term, value) in facts {
                div { dt { (term) } dd { (value) } }
            }
        }
    }
}

/// Returns the link to the next page of a list.
pub(crate) fn more(next: &str, path: &str, parameters: &[(&str, &str)]) -> Markup {
    if next.is_empty() {
        return html! {};
    }
    let mut all = parameters.to_vec();
    all.push(("cursor", next));
    html! {
        nav.pages aria-label="Pages of the list" { a rel="next" href=(address(path, &all)) { "Next page" } }
    }
}

/// Returns a link to a node.
pub(crate) fn node_link(id: &str) -> Markup {
    html! { a href=(address("/ui/node", &[("id", id)])) { (or_dash(id)) } }
}

/// Returns a link to a resource.
pub(crate) fn resource_link(type_url: &str, name: &str, scope: &str) -> Markup {
    html! { a href=(resource_address(type_url, name, scope)) { (or_dash(name)) } }
}

pub(crate) fn resource_address(type_url: &str, name: &str, scope: &str) -> String {
    address("/ui/resource", &[("type", type_url), ("name", name), ("scope", scope)])
}

/// Returns a link to a revision.
pub(crate) fn revision_link(revision: u64) -> Markup {
    html! {
        a href=(address("/ui/revision", &[("revision", &revision.to_string())])) { (revision) }
    }
}

/// Returns the short name of a type, with the whole type URL as its title.
pub(crate) fn type_name(type_url: &str) -> Markup {
    html! { span title=(type_url) { (short_type(type_url)) } }
}

/// Returns bars with labels, one for each number, the widest one for the greatest.
pub(crate) fn bars(caption: &str, rows: &[(Markup, u64)]) -> Markup {
    let max = rows.iter().map(|(_, n)| *n).max().unwrap_or_default().max(1);
    let cells = html! {
        @for (label, n) in rows {
            tr {
                th scope="row" { (label) }
                td.number { (number(*n)) }
                td.wide { (bar(*n, max)) }
            }
        }
    };
    table(caption, &["group", "nodes", "share"], &cells)
}

/// Returns a bar of which a part is filled.
pub(crate) fn bar(n: u64, of: u64) -> Markup {
    let width = if n == 0 { 0 } else { (n.saturating_mul(200) / of.max(1)).clamp(1, 200) };
    html! {
        svg.bar viewBox="0 0 200 10" preserveAspectRatio="none" aria-hidden="true" {
            rect.track x="0" y="0" width="200" height="10" {}
            rect.fill x="0" y="0" width=(width) height="10" {}
        }
    }
}

/// Returns the lines of a difference, each with its sign.
pub(crate) fn difference(unified: &str, omitted: u64) -> Markup {
    html! {
        pre.diff tabindex="0" {
            @for line in unified.lines() {
                @let class = match line.as_bytes().first() {
                    Some(b'+') => "plus",
                    Some(b'-') => "minus",
                    Some(b'~') => "moved",
                    _ => "same",
                };
                span class=(class) { (line) "\n" }
            }
            @if omitted > 0 { span.same { "… " (count(omitted, "further line")) "\n" } }
        }
    }
}
