//! The page about the sources of MCP.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{facts, or_dash, state, table},
    text::number,
};

/// Returns the page.
#[must_use]
pub fn page(status: &pb::McpStatus) -> Page {
    Page {
        section: Section::Mcp,
        title: "MCP".to_owned(),
        command: "chancery mcp status".to_owned(),
        live: Live::On,
        not_asked: status.not_asked.clone(),
        notes: Vec::new(),
        body: html! {
            div data-part="mcp" {
                @if status.sources.is_empty() { p.empty { "The configuration has no source of MCP." } }
                @else { p { "Status on replica " (status.replica_id) "." } }
                @for source in &status.sources { (one(source)) }
            }
        },
    }
}

fn one(source: &pb::McpSource) -> Markup {
    let rows = html! {
        @for all in &source.collections {
            tr {
                th scope="row" { (all.name) }
                td.number { (number(all.resources)) }
                td.number { (number(all.accepted)) }
                td.number { (number(all.rejected)) }
                td.cause { (or_dash(&all.last_rejection)) }
                td { @if let Some(held) = &all.held { (number(held.deletions)) " of " (number(held.stored)) } @else { span.none { "–" } } }
            }
        }
    };
    html! {
        h2 { "Source " (source.name) }
        (facts(&[
            ("connection", state(&source.connection)),
            ("scope", or_dash(&source.scope)),
            ("address", or_dash(&source.address)),
            ("listens on", or_dash(&source.listen)),
            ("peer", or_dash(&source.peer)),
            ("last error", or_dash(&source.last_error)),
        ]))
        (table("Collections", &["collection", "resources", "accepted", "rejected", "last rejection", "held deletions"], &rows))
    }
}
