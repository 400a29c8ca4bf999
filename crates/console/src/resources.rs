//! The page with the resources of scopes and types.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{more, resource_link, revision_link, table, type_name},
    text::{bytes, shell, short_type},
};

/// The types of resources, by their alias.
const TYPES: [(&str, &str); 11] = [
    ("listener", "Listener"),
    ("route", "RouteConfiguration"),
    ("scoped-route", "ScopedRouteConfiguration"),
    ("virtual-host", "VirtualHost"),
    ("cluster", "Cluster"),
    ("endpoint", "ClusterLoadAssignment"),
    ("secret", "Secret"),
    ("runtime", "Runtime"),
    ("extension", "TypedExtensionConfig"),
    ("lb-endpoint", "LbEndpoint"),
    ("", ""),
];

/// The contents of the page.
#[derive(Debug, Default)]
pub struct Query {
    /// The scope; empty for all.
    pub scope: String,
    /// The type, as an alias or a type URL; empty for all.
    pub r#type: String,
    /// The name; empty for all.
    pub name: String,
    /// The end of the page before.
    pub cursor: String,
}

/// Returns the page.
#[must_use]
pub fn page(query: &Query, list: &pb::ListResourcesResponse) -> Page {
    Page {
        section: Section::Resources,
        title: "Resources".to_owned(),
        command: command(query),
        live: Live::On,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            (filters(query))
            div data-part="resources" {
                (rows(list))
                (more(&list.next, "/ui/resources", &[
                    ("scope", &query.scope),
                    ("type", &query.r#type),
                    ("name", &query.name),
                ]))
            }
        },
    }
}

fn command(query: &Query) -> String {
    let mut command = "chancery get".to_owned();
    for argument in [&query.r#type, &query.name] {
        if !argument.is_empty() {
            command.push_str(&format!(" {}", shell(argument)));
        }
    }
    if !query.scope.is_empty() {
        command.push_str(&format!(" --scope {}", shell(&query.scope)));
    }
    command
}

fn filters(query: &Query) -> Markup {
    let is_alias = TYPES.iter().any(|(alias, _)| *alias == query.r#type);
    html! {
        form.filters method="get" action="/ui/resources" role="search" {
            label { "Scope" input type="search" name="scope" value=(query.scope); }
            label { "Type"
                select name="type" {
                    option value="" { "all" }
                    @if !is_alias { option value=(query.r#type) selected { (short_type(&query.r#type)) } }
                    @for (alias, name) in TYPES.iter().filter(|(alias, _)| !alias.is_empty()) {
                        option value=(alias) selected[*alias == query.r#type] { (name) }
                    }
                }
            }
            label { "Name (with a type)" input type="search" name="name" value=(query.name); }
            button type="submit" { "Show" }
            a href="/ui/resources" { "Reset" }
            a href="/ui/problems?rule=resource.unused" { "Unused resources" }
        }
    }
}

fn rows(list: &pb::ListResourcesResponse) -> Markup {
    if list.resources.is_empty() {
        return html! { p.empty { "No resource matches. " a href="/ui/resources" { "Show all resources" } } };
    }
    let rows = html! {
        @for one in &list.resources {
            tr {
                td { (one.scope) }
                td { (type_name(&one.type_url)) }
                th scope="row" {
                    (resource_link(&one.type_url, &one.name, &one.scope))
                    @if !one.variant.is_empty() { " (" (one.variant) ")" }
                }
                td { (one.version) }
                td.number { (revision_link(one.revision)) }
                td.number { (bytes(one.bytes)) }
            }
        }
    };
    table("Resources", &["scope", "type", "name", "version", "revision", "size"], &rows)
}
