//! The page with the nodes: search, filter, and pages.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{STATES, more, node_link, or_dash, state, table, time},
    text::{address, shell},
};

/// The order of the nodes of one page.
pub const ORDERS: [(&str, &str); 4] = [
    ("", "ID"),
    ("state", "state, the worst first"),
    ("since", "time in the state"),
    ("client", "client"),
];

/// The contents of the page.
#[derive(Debug, Default)]
pub struct Query {
    /// The pattern of the ID.
    pub id: String,
    /// The state.
    pub state: String,
    /// Only nodes that have not acknowledged this revision.
    pub behind: String,
    /// The order of the nodes of the page, one of [`ORDERS`].
    pub sort: String,
    /// The end of the page before.
    pub cursor: String,
}

/// Returns the page.
#[must_use]
pub fn page(query: &Query, mut list: pb::ListNodesResponse) -> Page {
    sort(&mut list.nodes, &query.sort);
    let not_asked = std::mem::take(&mut list.not_asked);
    Page {
        section: Section::Nodes,
        title: "Nodes".to_owned(),
        command: command(query),
        live: Live::On,
        not_asked,
        notes: held(&list.held),
        body: html! {
            (filters(query))
            div data-part="nodes" {
                (rows(&list))
                (more(&list.next, "/ui/nodes", &[
                    ("id", &query.id),
                    ("state", &query.state),
                    ("behind", &query.behind),
                    ("sort", &query.sort),
                ]))
            }
        },
    }
}

fn command(query: &Query) -> String {
    let mut command = "chancery nodes".to_owned();
    for (flag, value) in
        [("--id", &query.id), ("--state", &query.state), ("--behind", &query.behind)]
    {
        if !value.is_empty() {
            command.push_str(&format!(" {flag} {}", shell(value)));
        }
    }
    command
}

fn held(held: &[pb::HeldBy]) -> Vec<String> {
    let note = |one: &pb::HeldBy| match one.scope.as_str() {
        "" => format!("A freeze holds all changes after revision {} back.", one.revision),
        scope => format!("A freeze holds changes of {scope} after revision {} back.", one.revision),
    };
    held.iter().map(note).collect()
}

fn filters(query: &Query) -> Markup {
    html! {
        form.filters method="get" action="/ui/nodes" role="search" {
            label { "ID (* matches any text)" input type="search" name="id" value=(query.id) placeholder="edge-*"; }
            label { "State"
                select name="state" {
                    option value="" { "all" }
                    @for (word, sign) in STATES {
                        option value=(word) selected[word == query.state] { (sign) " " (word) }
                    }
                }
            }
            label { "Lacks revision" input type="text" inputmode="numeric" name="behind" value=(query.behind); }
            label { "Order of the page"
                select name="sort" {
                    @for (word, text) in ORDERS { option value=(word) selected[word == query.sort] { (text) } }
                }
            }
            button type="submit" { "Show" }
            a href="/ui/nodes" { "Reset" }
        }
    }
}

fn sort(nodes: &mut [pb::NodeStatus], order: &str) {
    let rank = |node: &pb::NodeStatus| {
        let word = node.condition.as_ref().map_or("", |one| one.state.as_str());
        STATES.iter().position(|(known, _)| *known == word)
    };
    match order {
        "state" => nodes.sort_by_key(rank),
        "since" => nodes.sort_by_key(|node| node.condition.as_ref().map(|one| one.since_ms)),
        "client" => nodes.sort_by(|a, b| a.user_agent.cmp(&b.user_agent)),
        _ => {}
    }
}

fn rows(list: &pb::ListNodesResponse) -> Markup {
    if list.nodes.is_empty() && list.disconnected.is_empty() {
        return html! {
            p.empty { "No node matches. " a href="/ui/nodes" { "Show all nodes" } }
        };
    }
    let rows = html! {
        @for node in &list.nodes { (row(node)) }
        @for node in &list.disconnected {
            tr {
                th scope="row" { (node_link(&node.id)) }
                td { (state("disconnected")) }
                td { (time(node.since_ms)) }
                td {}
                td { (or_dash(&node.user_agent)) }
                td { (or_dash(&node.cluster)) }
                td.number { (node.replica_id) }
            }
        }
    };
    table("Nodes", &["node", "state", "since", "reason", "client", "cluster", "replica"], &rows)
}

fn row(node: &pb::NodeStatus) -> Markup {
    let condition = node.condition.clone().unwrap_or_default();
    let mut replicas: Vec<u64> = node.streams.iter().map(|stream| stream.replica_id).collect();
    replicas.sort_unstable();
    replicas.dedup();
    let replicas: Vec<String> = replicas.iter().map(ToString::to_string).collect();
    html! {
        tr {
            th scope="row" { (node_link(&node.id)) }
            td {
                a href=(address("/ui/nodes", &[("state", &condition.state)])) { (state(&condition.state)) }
                @if node.duplicates > 0 { " " (node.duplicates) " clients" }
            }
            td { (time(condition.since_ms)) }
            td.cause { (or_dash(&condition.message)) }
            td { (or_dash(&node.user_agent)) }
            td { (or_dash(&node.cluster)) }
            td.number { (replicas.join(", ")) }
        }
    }
}
