//! The page about one resource: its content, its references, its versions, and the nodes that see it.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    graph::graph,
    history::entries,
    page::{Live, Page, Section, Viewer},
    parts::{
        Part, facts, lacking, node_link, or_dash, resource_link, revision_link, state, table, time,
        type_name,
    },
    text::{address, bytes, count, number, shell, short_type},
};

/// The content of the page.
#[derive(Debug)]
pub struct Resource {
    /// The type URL.
    pub type_url: String,
    /// The name.
    pub name: String,
    /// The only scope; empty for all.
    pub scope: String,
    /// The resource in each scope.
    pub description: pb::DescribeResourceResponse,
    /// The body in each scope as YAML, without secrets.
    pub bodies: Vec<String>,
    /// The revisions that set the lines of the only scope.
    pub blame: Option<Part<pb::BlameResponse>>,
    /// The revisions that changed the resource.
    pub versions: Part<pb::ListHistoryResponse>,
}

/// Returns the page.
#[must_use]
pub fn page(resource: &Resource, viewer: &Viewer) -> Page {
    let description = &resource.description;
    let short = short_type(&resource.type_url);
    let name = &resource.name;
    Page {
        section: Section::Resources,
        title: format!("{short} {name}"),
        command: command(resource),
        live: Live::On,
        not_asked: description.not_asked.clone(),
        notes: Vec::new(),
        body: html! {
            @if description.scopes.is_empty() { p.empty { "No scope has this resource now." } }
            @for (at, one) in description.scopes.iter().enumerate() {
                (in_scope(resource, one, resource.bodies.get(at).map_or("", String::as_str)))
            }
            section aria-labelledby="nacks" data-part="nacks" {
                h2 #nacks { "Rejections of its type by nodes that see it" }
                (nacks(&description.nacks))
            }
            section aria-labelledby="versions" data-part="versions" {
                h2 #versions { "Versions" }
                (versions(resource, viewer))
            }
        },
    }
}

fn command(resource: &Resource) -> String {
    let arguments = format!("{} {}", shell(&resource.type_url), shell(&resource.name));
    let scope = match resource.scope.as_str() {
        "" => String::new(),
        scope => format!(" --scope {}", shell(scope)),
    };
    format!(
        "chancery describe {arguments}{scope}\nchancery get {arguments}{scope}\nchancery blame {arguments}{scope}"
    )
}

fn in_scope(page: &Resource, one: &pb::ResourceInScope, body: &str) -> Markup {
    let resource = one.resource.clone().unwrap_or_default();
    let scope = &resource.scope;
    let labels: Vec<String> =
        resource.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    html! {
        section {
            h2 { "In the scope " (scope) @if !resource.variant.is_empty() { ", variant " (resource.variant) } }
            div data-part=(format!("facts {scope} {}", resource.variant)) {
                (facts(&[
                    ("type", type_name(&resource.type_url)),
                    ("version", or_dash(&resource.version)),
                    ("revision", revision_link(resource.revision)),
                    ("size", html! { (bytes(resource.bytes)) }),
                    ("labels", or_dash(&labels.join(", "))),
                    ("aliases", or_dash(&resource.aliases.join(", "))),
                    ("nodes that see it", html! {
                        (number(one.nodes_total))
                        @if one.nodes_shadowed > 0 { ", and " (count(one.nodes_shadowed, "node")) " see an earlier scope" }
                    }),
                ]))
                @for held in &one.held {
                    p.note { "A freeze holds this content back. Nodes have that of revision " (revision_link(held.revision)) "." }
                }
                @if !one.nodes.is_empty() {
                    details {
                        summary { "Nodes that see it" }
                        ul.names { @for id in &one.nodes { li { (node_link(id)) } } }
                        @if one.nodes_total > one.nodes.len() as u64 { p { "These are the first " (one.nodes.len()) "." } }
                    }
                }
                (graph(&resource.type_url, &resource.name, &one.referrers, &one.referents))
                (references("Resources that refer to it", &one.referrers, one.referrers_omitted))
                (references("Resources to which it refers", &one.referents, one.referents_omitted))
            }
            h3 { "Content" }
            (content(page, body))
        }
    }
}

fn references(caption: &str, all: &[pb::Reference], omitted: u64) -> Markup {
    if all.is_empty() {
        return html! {};
    }
    let rows = html! {
        @for one in all {
            tr {
                td { (type_name(&one.type_url)) }
                th scope="row" { (resource_link(&one.type_url, &one.name, &one.scope)) }
                td { (state(&one.state)) }
                td { (or_dash(&one.scope)) }
                td { code { (one.field_path) } }
            }
        }
    };
    html! {
        (table(caption, &["type", "name", "state", "scope", "field"], &rows))
        @if omitted > 0 { p { (count(omitted, "further reference")) } }
    }
}

/// The content as YAML. If the page is about one scope, each line has the revision that set it.
fn content(page: &Resource, body: &str) -> Markup {
    match &page.blame {
        Some(Ok(blame)) => html! {
            div.scroll role="region" tabindex="0" aria-label="Content with revisions" {
                table.blame {
                    thead { tr { th scope="col" { "revision" } th scope="col" { "line" } } }
                    tbody {
                        @for line in &blame.lines {
                            tr {
                                td.number {
                                    @if line.revision == 0 { "≤ " (blame.oldest) } @else { (revision_link(line.revision)) }
                                }
                                td { code { (line.text) } }
                            }
                        }
                    }
                }
            }
        },
        Some(Err(reason)) => html! { pre tabindex="0" { code { (body) } } (lacking(reason)) },
        None => html! { pre tabindex="0" { code { (body) } } },
    }
}

fn nacks(nacks: &[pb::Nack]) -> Markup {
    let rows = html! {
        @for nack in nacks {
            tr {
                td { (node_link(&nack.node)) }
                td { (or_dash(&nack.version)) }
                td { (time(nack.time_ms)) }
                td.cause { (or_dash(&nack.message)) }
            }
        }
    };
    html! {
        @if nacks.is_empty() { p.empty { "No node that sees it has rejected its type." } }
        @else { (table("Rejections", &["node", "version", "time", "cause"], &rows)) }
    }
}

fn versions(page: &Resource, viewer: &Viewer) -> Markup {
    match &page.versions {
        Err(reason) => lacking(reason),
        Ok(list) => html! {
            (entries(&list.entries, viewer))
            p {
                a href=(address("/ui/history", &[("type", &page.type_url), ("name", &page.name), ("scope", &page.scope)])) {
                    "All revisions that changed it"
                }
            }
        },
    }
}
