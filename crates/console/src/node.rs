//! The page about one node: its streams and types, its assignment, and the resources that it sees.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{Part, facts, hidden, lacking, or_dash, resource_link, state, table, time, type_name},
    text::{address, count, number, shell},
};

/// The content of the page.
#[derive(Debug)]
pub struct Node {
    /// The ID.
    pub id: String,
    /// The streams; the reason if the node is not connected.
    pub status: Part<pb::NodeStatus>,
    /// The assignments that were tried, and the scopes.
    pub explanation: Part<pb::ExplainResponse>,
    /// The first resources that the node sees.
    pub resources: Part<pb::ListResourcesResponse>,
}

/// Returns the page.
#[must_use]
pub fn page(node: &Node) -> Page {
    let id = shell(&node.id);
    let not_asked = node.status.as_ref().map(|status| status.not_asked.clone());
    Page {
        section: Section::Nodes,
        title: format!("Node {}", node.id),
        command: format!("chancery node {id}\nchancery explain {id}\nchancery get --node {id}"),
        live: Live::On,
        not_asked: not_asked.unwrap_or_default(),
        notes: Vec::new(),
        body: html! {
            section data-part="status" aria-label="Status" { (status(&node.status)) }
            section aria-labelledby="resolve" {
                h2 #resolve { "Where a request goes" }
                (resolve_form(&node.id, ""))
            }
            section data-part="assignment" aria-labelledby="assignment" {
                h2 #assignment { "Assignment and scopes" }
                (explanation(&node.explanation))
            }
            section data-part="sees" aria-labelledby="sees" {
                h2 #sees { "Resources that the node sees" }
                (resources(&node.resources))
            }
            p.hint {
                "Clients report the load of clusters, not of nodes: " a href="/ui/load" { "load reports" } "."
            }
        },
    }
}

/// Returns the form that asks where a request to a node goes.
pub(crate) fn resolve_form(id: &str, url: &str) -> Markup {
    html! {
        form.filters method="get" action="/ui/resolve" {
            (hidden("node", id))
            label { "URL" input type="url" name="url" value=(url) placeholder="http://web.example/cart" required; }
            button type="submit" { "Resolve" }
        }
    }
}

fn status(status: &Part<pb::NodeStatus>) -> Markup {
    let node = match status {
        Ok(node) => node,
        Err(reason) => return lacking(reason),
    };
    let condition = node.condition.clone().unwrap_or_default();
    let locality = node.locality.clone().unwrap_or_default();
    let locality = [locality.region, locality.zone, locality.sub_zone];
    let locality: Vec<String> = locality.into_iter().filter(|part| !part.is_empty()).collect();
    html! {
        (facts(&[
            ("state", state(&condition.state)),
            ("since", time(condition.since_ms)),
            ("reason", or_dash(&condition.message)),
            ("client", or_dash(&node.user_agent)),
            ("cluster", or_dash(&node.cluster)),
            ("locality", or_dash(&locality.join(" / "))),
        ]))
        @if node.duplicates > 0 {
            p.problem { (count(node.duplicates, "client")) " use this ID at the same time." }
        }
        @for wait in &node.waits {
            p.note { (type_name(&wait.type_url)) ": " (wait.message) }
        }
        @for stream in &node.streams { (stream_status(stream)) }
    }
}

fn stream_status(stream: &pb::StreamStatus) -> Markup {
    let kind = if stream.type_url.is_empty() { "aggregated" } else { "one type" };
    let rows = html! {
        @for one in &stream.subscriptions {
            tr {
                th scope="row" { (type_name(&one.type_url)) }
                td { (state(&one.state)) }
                td { (asks(one)) }
                td { (or_dash(&one.sent_version)) }
                td { (or_dash(&one.acked_version)) }
                td { (or_dash(&one.nack_version)) }
                td.cause { (or_dash(&one.nack_message)) }
            }
        }
    };
    html! {
        h2 { "Stream to replica " (stream.replica_id) }
        (facts(&[
            ("protocol", html! { (stream.protocol) ", " (kind) }),
            ("address", or_dash(&stream.peer)),
            ("identity", or_dash(&stream.identity)),
            ("open since", time(stream.since_ms)),
        ]))
        @if stream.subscriptions.is_empty() { p.empty { "The stream has no subscription." } }
        @else {
            (table("Types of the stream", &["type", "state", "asks for", "sent", "acknowledged", "rejected", "cause"], &rows))
        }
        @if !stream.nacks.is_empty() { (last_nacks(&stream.nacks)) }
    }
}

fn asks(one: &pb::SubscriptionStatus) -> Markup {
    html! {
        @if one.wildcard { "everything" @if one.names > 0 { " and " } }
        @if one.names > 0 || !one.wildcard { (count(one.names, "name")) }
        @if one.missing > 0 {
            ", " (number(one.missing)) " not visible"
            @if !one.first_missing.is_empty() { ", such as " (one.first_missing) }
        }
        @if one.held_removals > 0 { ", " (count(one.held_removals, "removal")) " waiting" }
    }
}

fn last_nacks(nacks: &[pb::Nack]) -> Markup {
    let rows = html! {
        @for nack in nacks {
            tr {
                th scope="row" { (type_name(&nack.type_url)) }
                td { (or_dash(&nack.version)) }
                td { (time(nack.time_ms)) }
                td.cause { (or_dash(&nack.message)) }
            }
        }
    };
    table("The last rejection of each type", &["type", "version", "time", "cause"], &rows)
}

fn explanation(explanation: &Part<pb::ExplainResponse>) -> Markup {
    let answer = match explanation {
        Ok(answer) => answer,
        Err(reason) => return lacking(reason),
    };
    let trials = html! {
        @for trial in &answer.trials {
            tr {
                th scope="row" { (trial.name) }
                td.number { (trial.priority) }
                td {
                    @if trial.matched { (state("matches")) }
                    @else if trial.unknown { "unknown" }
                    @else { "does not match" }
                }
                td.cause { (or_dash(&trial.reason)) }
            }
        }
    };
    let scopes = html! {
        @for scope in &answer.scopes {
            tr {
                th scope="row" {
                    a href=(address("/ui/resources", &[("scope", &scope.scope)])) { (or_dash(&scope.scope)) }
                }
                td { (scope.template) }
                td.number { (number(scope.resources)) }
                td { (or_dash(&scope.shadowed_by)) }
            }
        }
    };
    html! {
        ul { @for sentence in &answer.conclusions { li { (sentence) } } }
        (table("Assignments in the order in which they were tried", &["assignment", "priority", "result", "reason"], &trials))
        @if !answer.scopes.is_empty() {
            (table("Scopes, the first one wins", &["scope", "template", "resources", "shadowed by"], &scopes))
        }
    }
}

fn resources(resources: &Part<pb::ListResourcesResponse>) -> Markup {
    let list = match resources {
        Ok(list) => list,
        Err(reason) => return lacking(reason),
    };
    let rows = html! {
        @for one in &list.resources {
            tr {
                td { (type_name(&one.type_url)) }
                th scope="row" { (resource_link(&one.type_url, &one.name, &one.scope)) }
                td { (one.scope) }
                td { (one.version) }
            }
        }
    };
    html! {
        @if list.resources.is_empty() { p.empty { "The node sees no resource." } }
        @else {
            (table("Resources", &["type", "name", "scope", "version"], &rows))
            @if !list.next.is_empty() { p { "The node sees more resources than these." } }
        }
    }
}
