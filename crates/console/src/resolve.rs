//! The page that follows a request through the resources of a node.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    node::resolve_form,
    page::{Live, Page, Section},
    parts::{Part, lacking, node_link, or_dash, resource_link, state, table},
    text::{count, shell},
};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// Returns the page.
#[must_use]
pub fn page(node: &str, url: &str, answer: &Part<pb::ResolveResponse>) -> Page {
    Page {
        section: Section::Nodes,
        title: format!("Where a request to {node} goes"),
        command: format!("chancery resolve {} {}", shell(node), shell(url)),
        live: Live::Off,
        not_asked: Vec::new(),
        notes: Vec::new(),
        body: html! {
            p { "Node " (node_link(node)) ", by the resources that it has acknowledged." }
            (resolve_form(node, url))
            @match answer {
                Err(reason) => { (lacking(reason)) },
                Ok(answer) => {
                    @for path in &answer.resolutions { (resolution(path)) }
                    @if answer.listeners_omitted > 0 {
                        p.note { (count(answer.listeners_omitted, "further listener")) " accept the connection." }
                    }
                },
            }
        },
    }
}

fn resolution(path: &pb::Resolution) -> Markup {
    let end = path.end.clone().unwrap_or_default();
    html! {
        section {
            h2 { "Listener " (or_dash(&path.listener)) }
            p.sentence { (state(if end.served { "served" } else { "not served" })) ", " (end.kind) " " (end.message) }
            @if !end.location.is_empty() { p { "Redirect " (end.status) " to " (end.location) } }
            @for cluster in &end.clusters { (destination(cluster)) }
            h3 { "Steps" }
            ol {
                @for step in &path.steps {
                    li {
                        b { (step.kind) } " " code { (or_dash(&step.place)) } ": " (step.result)
                        @if !step.skipped.is_empty() {
                            ul { @for skipped in &step.skipped { li { code { (skipped.place) } ": " (skipped.reason) } } }
                        }
                    }
                }
            }
            @if !path.undecided.is_empty() {
                h3 { "Conditions that are not decided" }
                ul {
                    @for one in &path.undecided { li { code { (one.place) } ": " (one.reason) " " (one.otherwise) } }
                }
            }
        }
    }
}

fn destination(cluster: &pb::ResolvedCluster) -> Markup {
    let rows = html! {
        @for locality in &cluster.localities {
            @for endpoint in &locality.endpoints {
                tr {
                    td { (endpoint.address) }
                    td { (or_dash(&endpoint.health)) }
                    td.number { (locality.priority) }
                    td { (locality.region) " " (locality.zone) " " (locality.sub_zone) }
                }
            }
        }
    };
    html! {
        h3 { "Cluster " (resource_link(CLUSTER, &cluster.name, "")) @if cluster.weight > 0 { ", weight " (cluster.weight) } }
        @if !cluster.missing.is_empty() { p.problem { (cluster.missing) } }
        @if !cluster.localities.is_empty() {
            (table("Endpoints", &["address", "health", "priority", "locality"], &rows))
        }
        @for member in &cluster.members { (destination(member)) }
    }
}
