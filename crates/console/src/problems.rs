//! The page with the findings of the analysis.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{more, node_link, or_dash, resource_link, state, table, type_name},
    text::{address, count, shell},
};

/// The contents of the page.
#[derive(Debug, Default)]
pub struct Query {
    /// The scope; empty for all.
    pub scope: String,
    /// The rule; empty for all.
    pub rule: String,
    /// The end of the page before.
    pub cursor: String,
}

/// Returns the page.
#[must_use]
pub fn page(query: &Query, answer: &pb::AnalyzeResponse) -> Page {
    let scope = match query.scope.as_str() {
        "" => String::new(),
        scope => format!(" --scope {}", shell(scope)),
    };
    let is_shown =
        |finding: &&pb::AnalysisFinding| query.rule.is_empty() || finding.rule_id == query.rule;
    let findings: Vec<&pb::AnalysisFinding> = answer.findings.iter().filter(is_shown).collect();
    Page {
        section: Section::Problems,
        title: "Problems".to_owned(),
        command: format!("chancery analyze{scope}"),
        live: Live::Off,
        not_asked: answer.not_asked.clone(),
        notes: Vec::new(),
        body: html! {
            (filters(query, answer))
            p.sentence { (count(answer.warnings, "warning")) " in " (count(answer.resources, "resource")) "." }
            (rows(&findings))
            (more(&answer.next, "/ui/problems", &[("scope", &query.scope), ("rule", &query.rule)]))
        },
    }
}

fn filters(query: &Query, answer: &pb::AnalyzeResponse) -> Markup {
    let mut rules: Vec<&str> =
        answer.findings.iter().map(|finding| finding.rule_id.as_str()).collect();
    rules.push(&query.rule);
    rules.sort_unstable();
    rules.dedup();
    html! {
        form.filters method="get" action="/ui/problems" role="search" {
            label { "Scope" input type="search" name="scope" value=(query.scope); }
            label { "Rule"
                select name="rule" {
                    option value="" { "all" }
                    @for rule in rules.into_iter().filter(|rule| !rule.is_empty()) {
                        option value=(rule) selected[rule == query.rule] { (rule) }
                    }
                }
            }
            button type="submit" { "Show" }
            a href="/ui/problems" { "Reset" }
        }
    }
}

fn rows(findings: &[&pb::AnalysisFinding]) -> Markup {
    if findings.is_empty() {
        return html! { p.empty { "The analysis finds no such problem." } };
    }
    let rows = html! {
        @for one in findings {
            tr {
                td { (state(&one.severity)) }
                td { a href=(address("/ui/problems", &[("rule", &one.rule_id)])) { (one.rule_id) } }
                td { (object(one)) }
                td.cause { (one.message) @if !one.field_path.is_empty() { " (" code { (one.field_path) } ")" } }
                td.cause { (or_dash(&one.fix)) }
            }
        }
    };
    table("Findings", &["severity", "rule", "object", "problem", "correction"], &rows)
}

fn object(one: &pb::AnalysisFinding) -> Markup {
    html! {
        @if !one.type_url.is_empty() {
            (type_name(&one.type_url)) " " (resource_link(&one.type_url, &one.name, &one.scope)) " in " (one.scope)
        } @else if one.rule_id.starts_with("node.") && !one.name.is_empty() {
            (node_link(&one.name))
        } @else if one.name.is_empty() {
            (or_dash(&one.scope))
        } @else {
            (one.name)
        }
    }
}
