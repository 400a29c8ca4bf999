//! The connected nodes of all replicas, each counted once: by state, and by problem.
//!
//! Each replica answers with facts about its nodes, page by page in the order of their IDs. Only one page of each replica
//! is in memory, whatever the size of the fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use chancery_admin_proto::v1 as pb;
use chancery_model::Revision;
use chancery_raft_proto::v1::{NodeFacts, NodeFactsAnswer, NodeFactsQuestion};

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    node_state::{NodeState, SILENT_AFTER},
    nodes::INLINE_STREAMS_MAX,
    times::millis,
    work::Size,
};

/// The maximum number of nodes of a problem that are named.
pub(crate) const NAMED_MAX: usize = 20;
/// The number of history entries that are read at a time.
const HISTORY_PIECE: usize = 100;

/// A problem of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeProblem {
    Unassigned,
    Rejected,
    Silent,
    /// A node that is not unassigned, rejected or silent has not acknowledged a revision that is older than [`SILENT_AFTER`].
    Behind,
    Waiting,
    /// Several clients use the ID at the same time.
    Duplicate,
    /// The user agent names no known client, or no version.
    Version,
}

impl NodeProblem {
    /// Returns the ID of the rule.
    pub(crate) fn rule_id(self) -> &'static str {
        match self {
            Self::Unassigned => "node.unassigned",
            Self::Rejected => "node.rejected",
            Self::Silent => "node.silent",
            Self::Behind => "node.behind",
            Self::Waiting => "node.waiting",
            Self::Duplicate => "node.duplicate",
            Self::Version => "node.version",
        }
    }

    /// Returns the problem of a connected node in a state.
    fn of_state(state: NodeState, is_behind: bool) -> Option<Self> {
        match state {
            NodeState::Unassigned => Some(Self::Unassigned),
            NodeState::Rejected => Some(Self::Rejected),
            NodeState::Silent => Some(Self::Silent),
            _ if is_behind => Some(Self::Behind),
            NodeState::Waiting => Some(Self::Waiting),
            NodeState::Pending | NodeState::Synced => None,
        }
    }
}

/// The nodes with a problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NodesWith {
    pub(crate) n: u64,
    /// The first IDs, at most [`NAMED_MAX`].
    pub(crate) first: Vec<String>,
}

/// The connected nodes of the replicas that answered.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The number of nodes by state.
    pub(crate) counts: BTreeMap<NodeState, u64>,
    pub(crate) problems: BTreeMap<NodeProblem, NodesWith>,
    /// The revision that nodes have to have acknowledged.
    pub(crate) revision: Revision,
    /// The number of replicas that have answered.
    pub(crate) replicas: u64,
    pub(crate) not_asked: Vec<pb::ReplicaNotAsked>,
    pub(crate) n_not_asked: u64,
}

/// Surveys the nodes that a question selects: of all replicas, or of this one if `is_local`.
pub(crate) async fn survey(
    ctx: &Ctx,
    question: NodeFactsQuestion,
    is_local: bool,
) -> Result<Survey, AdminError> {
    let revision = expected_revision(ctx);
    let mut question = NodeFactsQuestion { revision: revision.0, ..question };
    let mut survey = Survey { revision, ..Survey::default() };
    loop {
        let here = question.clone().answer_here(ctx);
        let (here, there) = tokio::join!(here, fleet::ask_unless(is_local, ctx, &question));
        survey.note_missing(&there.not_asked, there.n_not_asked);
        survey.replicas = 1 + there.n_answered();
        let pages: Vec<NodeFactsAnswer> = [here?].into_iter().chain(there.into_replies()).collect();
        let n_nodes: usize = pages.iter().map(|page| page.nodes.len()).sum();
        let count = move || {
            let end = survey.count(pages);
            (survey, end)
        };
        let size = Size::of(n_nodes <= INLINE_STREAMS_MAX);
        let end;
        (survey, end) = ctx.deps.work.run(size, count).await?;
        match end.filter(|end| *end > question.after) {
            Some(end) => question.after = end,
            None => return Ok(survey),
        }
    }
}

/// Returns the newest revision that is older than [`SILENT_AFTER`].
fn expected_revision(ctx: &Ctx) -> Revision {
    let until = SystemTime::now().checked_sub(SILENT_AFTER).map(millis).unwrap_or_default();
    let mut before = Revision(u64::MAX);
    loop {
        let entries = ctx.deps.replica.history_before(before, HISTORY_PIECE);
        if let Some(found) = entries.iter().find(|entry| entry.meta.time_ms <= until) {
            return found.revision;
        }
        match entries.last() {
            Some(last) => before = last.revision,
            None => return Revision(0),
        }
    }
}

impl Survey {
    /// Adds the replicas that did not answer for a page.
    fn note_missing(&mut self, not_asked: &[pb::ReplicaNotAsked], n_not_asked: u64) {
        let is_new = |one: &&pb::ReplicaNotAsked| {
            self.not_asked.iter().all(|known| known.replica_id != one.replica_id)
        };
        let new: Vec<pb::ReplicaNotAsked> = not_asked.iter().filter(is_new).cloned().collect();
        self.not_asked.extend(new);
        self.n_not_asked = self.n_not_asked.max(n_not_asked).max(self.not_asked.len() as u64);
    }

    /// Counts the nodes of pages with the same beginning, up to the end of the shortest one. Returns that end; `None` if no
    /// nodes follow.
    fn count(&mut self, pages: Vec<NodeFactsAnswer>) -> Option<String> {
        let ends = pages.iter().map(|page| &page.next).filter(|next| !next.is_empty());
        let end = ends.min().cloned();
        let nodes = pages.into_iter().flat_map(|page| page.nodes);
        let mut nodes: Vec<NodeFacts> =
            nodes.filter(|node| end.as_ref().is_none_or(|end| node.id <= *end)).collect();
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        nodes.chunk_by(|a, b| a.id == b.id).for_each(|parts| self.add(parts));
        end
    }

    /// Counts a node. `parts` has what each replica knows of it.
    fn add(&mut self, parts: &[NodeFacts]) {
        let Some(NodeFacts { id, .. }) = parts.first() else { return };
        let states = parts.iter().filter_map(|part| NodeState::parse(&part.state));
        let state = states.max().unwrap_or_default();
        *self.counts.entry(state).or_default() += 1;
        let of_state = NodeProblem::of_state(state, parts.iter().any(|part| part.behind));
        let duplicate = (n_clients(parts) > 1).then_some(NodeProblem::Duplicate);
        let has_unknown_version = parts.iter().any(|part| part.unknown_version);
        let version = has_unknown_version.then_some(NodeProblem::Version);
        for problem in [of_state, duplicate, version].into_iter().flatten() {
            let nodes = self.problems.entry(problem).or_default();
            nodes.n += 1;
            if nodes.first.len() < NAMED_MAX {
                nodes.first.push(id.clone());
            }
        }
    }

    /// Returns the answer to a request that counts.
    pub(crate) fn into_response(self) -> pb::ListNodesResponse {
        let counts = self.counts.into_iter().map(|(state, n)| (state.word().to_owned(), n));
        let problem = |(problem, nodes): (NodeProblem, NodesWith)| pb::NodeProblem {
            rule_id: problem.rule_id().to_owned(),
            nodes: nodes.n,
            ids: nodes.first,
        };
        pb::ListNodesResponse {
            counts: counts.collect(),
            problems: self.problems.into_iter().map(problem).collect(),
            replicas: self.replicas,
            replicas_not_asked: self.n_not_asked,
            not_asked: self.not_asked,
            ..pb::ListNodesResponse::default()
        }
    }
}

/// Returns the number of clients that use the ID of a node at the same time: the greatest number with streams of one type.
fn n_clients(parts: &[NodeFacts]) -> u64 {
    let mut by_type: BTreeMap<&str, (u64, BTreeSet<&str>)> = BTreeMap::new();
    for clients in parts.iter().flat_map(|part| &part.clients) {
        let (connections, hosts) = by_type.entry(&clients.type_url).or_default();
        *connections += clients.connections;
        hosts.extend(clients.hosts.iter().map(String::as_str));
    }
    let numbers = by_type.values().map(|(connections, hosts)| connections + hosts.len() as u64);
    numbers.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use chancery_raft_proto::v1::ClientsOfType;

    use super::*;

    fn node(id: &str, state: &str, connections: u64, hosts: &[&str]) -> NodeFacts {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let clients = vec![ClientsOfType { type_url: String::new(), connections, hosts }];
        let (id, state) = (id.to_owned(), state.to_owned());
        NodeFacts { id, state, clients, ..NodeFacts::default() }
    }

    fn page(nodes: &[NodeFacts], next: &str) -> NodeFactsAnswer {
        NodeFactsAnswer { nodes: nodes.to_vec(), next: next.to_owned() }
    }

    fn problem(survey: &Survey, problem: NodeProblem) -> (u64, String) {
        let nodes = survey.problems.get(&problem).cloned().unwrap_or_default();
        (nodes.n, nodes.first.join(" "))
    }

    /// A node with streams to two replicas counted twice.
    #[test]
    fn node_on_two_replicas_counts_once_with_its_worst_state() {
        let mut survey = Survey::default();
        let here = page(&[node("a", "synced", 1, &[]), node("b", "synced", 1, &[])], "");
        let there = page(&[node("a", "rejected", 1, &[]), node("c", "silent", 1, &[])], "");
        assert_eq!(survey.count(vec![here, there]), None);
        let counts: Vec<_> = survey.counts.iter().map(|(state, n)| (state.word(), *n)).collect();
        assert_eq!(counts, [("synced", 1), ("silent", 1), ("rejected", 1)]);
        assert_eq!(problem(&survey, NodeProblem::Rejected), (1, "a".to_owned()));
        assert_eq!(problem(&survey, NodeProblem::Duplicate), (1, "a".to_owned()));
    }

    /// A node after the end of a page may have streams to the replica that has more.
    #[test]
    fn nodes_after_the_end_of_the_shortest_page_count_in_the_next_one() {
        let mut survey = Survey::default();
        let (a, b, z) = (
            node("a", "synced", 1, &[]),
            node("b", "synced", 0, &["10.0.0.1"]),
            node("z", "synced", 0, &["10.0.0.1"]),
        );
        let first = vec![page(&[a, b.clone()], "b"), page(&[b.clone(), z.clone()], "")];
        assert_eq!(survey.count(first).as_deref(), Some("b"));
        assert_eq!(survey.counts.values().sum::<u64>(), 2);
        assert_eq!(survey.count(vec![page(std::slice::from_ref(&z), ""), page(&[z], "")]), None);
        assert_eq!(survey.counts.values().sum::<u64>(), 3);
        assert!(!survey.problems.contains_key(&NodeProblem::Duplicate), "{survey:?}");
    }

    #[test]
    fn problems_name_the_first_nodes_and_count_all() {
        let mut survey = Survey::default();
        let odd = |n: usize| NodeFacts {
            behind: true,
            unknown_version: true,
            ..node(&format!("n{n:02}"), "pending", 1, &[])
        };
        survey.count(vec![page(&(0..30).map(odd).collect::<Vec<_>>(), "")]);
        let rejecting = NodeFacts { behind: true, ..node("x", "rejected", 1, &["10.0.0.1"]) };
        survey.count(vec![page(&[rejecting], "")]);
        let (n, first) = problem(&survey, NodeProblem::Behind);
        assert_eq!((n, first.split(' ').count()), (30, NAMED_MAX));
        assert!(first.ends_with("n19"), "{first}");
        assert_eq!(problem(&survey, NodeProblem::Version).0, 30);
        // The rejection is the reason why the node is behind.
        assert_eq!(problem(&survey, NodeProblem::Rejected), (1, "x".to_owned()));
        assert_eq!(problem(&survey, NodeProblem::Duplicate).0, 1);
    }
}
