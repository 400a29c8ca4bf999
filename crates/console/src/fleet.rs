//! The page about the fleet: whether it has what it should, and which nodes do not, and why.

use chancery_admin_proto::v1 as pb;
use maud::{Markup, html};

use crate::{
    page::{Live, Page, Section},
    parts::{
        Part, STATES, bar, bars, facts, lacking, node_link, or_dash, revision_link, state, table,
        time, type_name,
    },
    text::{address, count, number},
};

/// The content of the page.
#[derive(Debug)]
pub struct Fleet {
    /// The nodes by state, client and replica, and their problems.
    pub counts: Part<pb::ListNodesResponse>,
    /// The members.
    pub cluster: Part<pb::ClusterStatus>,
    /// The first nodes that rejected a response.
    pub rejected: Part<Vec<pb::NodeStatus>>,
    /// The newest revisions, with the sessions that have acknowledged them. An earlier revision than one that all sessions
    /// have acknowledged has no result.
    pub timeline: Part<Vec<(pb::HistoryEntry, Option<pb::WaitResult>)>>,
    /// The freezes.
    pub freezes: Part<Vec<pb::Freeze>>,
    /// The times from a change to its acknowledgment, as this replica measured them.
    pub convergence: Part<Convergence>,
}

/// The distribution of the times from a change to its acknowledgment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Convergence {
    /// The median in seconds.
    pub p50: f64,
    /// The time in seconds that 99% do not exceed.
    pub p99: f64,
    /// The number of acknowledgments.
    pub n: u64,
}

/// Returns the page.
#[must_use]
pub fn page(fleet: &Fleet) -> Page {
    let not_asked = fleet.counts.as_ref().map(|counts| counts.not_asked.clone());
    Page {
        section: Section::Fleet,
        title: "Fleet".to_owned(),
        command: "chancery doctor\nchancery nodes\nchancery watch".to_owned(),
        live: Live::On,
        not_asked: not_asked.unwrap_or_default(),
        notes: Vec::new(),
        body: html! {
            (verdict(fleet))
            section aria-labelledby="states" data-part="states" {
                h2 #states { "Nodes by state" }
                (states(&fleet.counts))
            }
            section aria-labelledby="rejections" data-part="rejections" {
                h2 #rejections { "Rejections" }
                (rejections(&fleet.rejected))
            }
            section aria-labelledby="revisions" data-part="revisions" {
                h2 #revisions { "Revisions and their acknowledgments" }
                (timeline(&fleet.timeline))
            }
            section aria-labelledby="convergence" data-part="convergence" {
                h2 #convergence { "Convergence" }
                (convergence(&fleet.convergence))
            }
            section aria-labelledby="groups" data-part="groups" {
                h2 #groups { "Nodes by client and replica" }
                (groups(&fleet.counts))
            }
        },
    }
}

/// The verdict: whether all nodes have what they should.
fn verdict(fleet: &Fleet) -> Markup {
    let (class, text) = verdict_text(fleet);
    let problems = fleet.counts.as_ref().map(|counts| counts.problems.as_slice());
    let freezes = fleet.freezes.as_deref().unwrap_or_default();
    html! {
        div.verdict .(class) data-part="verdict" role="status" {
            p.sentence { (text) }
            ul {
                @for problem in problems.unwrap_or_default() {
                    li { (problem_line(problem)) }
                }
                @for freeze in freezes {
                    li {
                        "A freeze holds changes of "
                        @if freeze.scope.is_empty() { "all scopes" } @else { "the scope " b { (freeze.scope) } }
                        " back: " (count(freeze.held_resources, "resource")) ". "
                        a href="/ui/freezes" { "Show the freezes" }
                    }
                }
                @if let Ok(cluster) = &fleet.cluster {
                    @for warning in &cluster.warnings { li { (warning) } }
                }
            }
        }
    }
}

/// Returns the class and the sentence of the verdict.
fn verdict_text(fleet: &Fleet) -> (&'static str, String) {
    let counts = match &fleet.counts {
        Ok(counts) => counts,
        Err(reason) => {
            return ("unknown", format!("The state of the nodes is not known: {reason}"));
        }
    };
    let has_leader = fleet.cluster.as_ref().map_or(true, |cluster| cluster.leader.is_some());
    let all: u64 = counts.counts.values().sum();
    let of = |word: &str| counts.counts.get(word).copied().unwrap_or_default();
    let lacking = all - of("synced");
    let partial = match counts.not_asked.len() as u64 {
        0 => String::new(),
        n => format!(
            " {} did not answer, so this counts only a part of the nodes.",
            count(n, "replica")
        ),
    };
    let leader = if has_leader { "" } else { " The cluster has no leader, so nobody can write." };
    let (class, sentence) = if all == 0 {
        ("unknown", "No node is connected.".to_owned())
    } else if lacking == 0 {
        let subject = match all {
            1 => "The only node has".to_owned(),
            n => format!("All {} have", count(n, "node")),
        };
        ("good", format!("{subject} acknowledged everything that was sent."))
    } else {
        let causes = STATES.iter().filter(|(word, _)| *word != "synced" && of(word) > 0);
        let causes: Vec<String> =
            causes.map(|(word, _)| format!("{} {word}", number(of(word)))).collect();
        let subject = format!("{} of {}", number(lacking), count(all, "node"));
        let verb = if lacking == 1 { "lacks" } else { "lack" };
        ("bad", format!("{subject} {verb} something: {}.", causes.join(", ")))
    };
    let is_whole = partial.is_empty() && has_leader;
    let class = if class == "good" && !is_whole { "unknown" } else { class };
    (class, format!("{sentence}{partial}{leader}"))
}

fn problem_line(problem: &pb::NodeProblem) -> Markup {
    let what = match problem.rule_id.as_str() {
        "node.unassigned" => "no assignment matches",
        "node.rejected" => "rejected a response",
        "node.silent" => "left a response unanswered",
        "node.waiting" => "asks for names that it does not see",
        "node.behind" => "has not acknowledged a revision that is 10 s old",
        "node.duplicate" => "several clients use the ID",
        "node.version" => "the client or its version is unknown",
        other => other,
    };
    let shown = problem.ids.len().min(5);
    html! {
        (count(problem.nodes, "node")) ": " (what) ". "
        @for id in &problem.ids[..shown] { (node_link(id)) " " }
        @if problem.nodes > shown as u64 {
            a href=(problem_address(&problem.rule_id)) { "Show all" }
        }
    }
}

/// Returns the address of the nodes with a problem.
fn problem_address(rule_id: &str) -> String {
    let word = rule_id.trim_start_matches("node.");
    if STATES.iter().any(|(known, _)| *known == word) {
        return address("/ui/nodes", &[("state", word)]);
    }
    "/ui/problems".to_owned()
}

fn states(counts: &Part<pb::ListNodesResponse>) -> Markup {
    let counts = match counts {
        Ok(counts) => counts,
        Err(reason) => return lacking(reason),
    };
    let of = |word: &str| counts.counts.get(word).copied().unwrap_or_default();
    let rows: Vec<(Markup, u64)> = STATES
        .iter()
        .filter(|(word, _)| of(word) > 0)
        .map(|(word, _)| {
            let label =
                html! { a href=(address("/ui/nodes", &[("state", word)])) { (state(word)) } };
            (label, of(word))
        })
        .collect();
    html! {
        @if rows.is_empty() { p.empty { "No node is connected." } }
        @else { (bars("The number of nodes in each state", &rows)) }
    }
}

fn groups(counts: &Part<pb::ListNodesResponse>) -> Markup {
    let Ok(counts) = counts else { return html! {} };
    let mut clients: Vec<(&String, u64)> =
        counts.clients.iter().map(|(name, n)| (name, *n)).collect();
    clients.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let label = |name: &str| match name {
        "" => html! { "unknown" },
        name => html! { (name.replacen('@', " ", 1)) },
    };
    let clients: Vec<(Markup, u64)> =
        clients.into_iter().map(|(name, n)| (label(name), n)).collect();
    let mut replicas: Vec<(u64, u64)> =
        counts.nodes_by_replica.iter().map(|(id, n)| (*id, *n)).collect();
    replicas.sort_unstable();
    let replicas: Vec<(Markup, u64)> =
        replicas.into_iter().map(|(id, n)| (html! { "replica " (id) }, n)).collect();
    html! {
        div.columns {
            div { (bars("Nodes by client and version", &clients)) }
            div { (bars("Nodes by replica", &replicas)) }
        }
        p.hint { "A node with streams to two replicas counts for both." }
    }
}

fn rejections(rejected: &Part<Vec<pb::NodeStatus>>) -> Markup {
    let nodes = match rejected {
        Ok(nodes) => nodes,
        Err(reason) => return lacking(reason),
    };
    let nacks = nodes.iter().flat_map(|node| {
        let of_stream = |stream: &'_ pb::StreamStatus| stream.nacks.clone();
        node.streams
            .iter()
            .flat_map(of_stream)
            .map(|nack| (node.id.clone(), nack))
            .collect::<Vec<_>>()
    });
    let rows = html! {
        @for (id, nack) in nacks {
            tr {
                td { (node_link(&id)) }
                td { (type_name(&nack.type_url)) }
                td.cause { (or_dash(&nack.message)) }
                td { (or_dash(&nack.version)) }
                td { (time(nack.time_ms)) }
            }
        }
    };
    html! {
        @if nodes.is_empty() { p.empty { "No node rejects a response." } }
        @else {
            (table("The first nodes that reject a response", &["node", "type", "cause", "version", "time"], &rows))
            p { a href="/ui/nodes?state=rejected" { "Show all nodes that reject a response" } }
        }
    }
}

fn timeline(timeline: &Part<Vec<(pb::HistoryEntry, Option<pb::WaitResult>)>>) -> Markup {
    let entries = match timeline {
        Ok(entries) => entries,
        Err(reason) => return lacking(reason),
    };
    let newest_complete = entries.iter().find_map(|(entry, result)| {
        result.as_ref().filter(|result| result.complete).map(|_| entry.revision)
    });
    let is_covered = |revision: u64| newest_complete.is_some_and(|newest| revision < newest);
    let rows = html! {
        @for (entry, result) in entries {
            tr {
                td.number { (revision_link(entry.revision)) }
                td { (time(entry.time_ms)) }
                td { (or_dash(&entry.author)) }
                td {
                    @if result.is_none() && !is_covered(entry.revision) { "not counted on this page" }
                    @else { (acknowledged(result.as_ref(), entry.held)) }
                }
                td.wide { @if let Some(result) = result { (bar(result.acknowledged, result.asked)) } }
            }
        }
    };
    html! {
        @if entries.is_empty() { p.empty { "The history has no revision." } }
        @else {
            (table(
                "The newest revisions and how many sessions have acknowledged them",
                &["revision", "time", "author", "acknowledged", "share"],
                &rows,
            ))
        }
    }
}

/// Returns how many sessions have acknowledged a revision.
pub(crate) fn acknowledged(result: Option<&pb::WaitResult>, is_held: bool) -> Markup {
    html! {
        @match result {
            _ if is_held => { (state("pending")) " a freeze holds it" },
            None => { "as a newer revision" },
            Some(result) if result.complete => {
                (state("synced")) " by all " (count(result.asked, "session"))
            },
            Some(result) if result.asked == 0 => { "no session is concerned" },
            Some(result) => {
                (state(if result.settled { "rejected" } else { "pending" }))
                " " (number(result.acknowledged)) " of " (count(result.asked, "session"))
            },
        }
    }
}

fn convergence(convergence: &Part<Convergence>) -> Markup {
    match convergence {
        Err(reason) => lacking(reason),
        Ok(Convergence { n: 0, .. }) => {
            html! { p.empty { "No client of this replica has acknowledged a change since its start." } }
        }
        Ok(Convergence { p50, p99, n }) => html! {
            (facts(&[
                ("median (p50)", html! { (seconds(*p50)) }),
                ("slowest 1% (p99)", html! { (seconds(*p99)) }),
                ("acknowledgments", html! { (number(*n)) }),
            ]))
            p.hint { "From a change to its acknowledgment, for the clients of this replica since its start." }
        },
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1000.0) } else { format!("{seconds:.1} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(counts: &[(&str, u64)], not_asked: usize, leader: Option<u64>) -> Fleet {
        let counts = pb::ListNodesResponse {
            counts: counts.iter().map(|(word, n)| ((*word).to_owned(), *n)).collect(),
            not_asked: vec![pb::ReplicaNotAsked::default(); not_asked],
            ..Default::default()
        };
        Fleet {
            counts: Ok(counts),
            cluster: Ok(pb::ClusterStatus { leader, ..Default::default() }),
            rejected: Ok(Vec::new()),
            timeline: Ok(Vec::new()),
            freezes: Ok(Vec::new()),
            convergence: Ok(Convergence::default()),
        }
    }

    #[test]
    fn verdict_names_what_is_wrong_in_one_sentence() {
        let text = |counts, not_asked, leader| verdict_text(&fleet(counts, not_asked, leader));
        let (class, sentence) = text(&[("synced", 1234)], 0, Some(1));
        assert_eq!(
            (class, sentence.as_str()),
            ("good", "All 1,234 nodes have acknowledged everything that was sent.")
        );
        let (class, sentence) = text(&[("synced", 97), ("rejected", 2), ("silent", 1)], 0, Some(1));
        assert_eq!(
            (class, sentence.as_str()),
            ("bad", "3 of 100 nodes lack something: 2 rejected, 1 silent.")
        );
        let (class, sentence) = text(&[("synced", 2)], 1, None);
        assert_eq!(class, "unknown");
        assert!(
            sentence.contains("1 replica did not answer") && sentence.contains("no leader"),
            "{sentence}"
        );
    }
}
