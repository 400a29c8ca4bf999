//! The connected nodes of all replicas, each counted once: by state, and by problem.
//!
//! Each replica answers page by page, with the hashes of the IDs of nodes with one client, grouped by their facts. The
//! survey asks again for facts about nodes that are on several replicas. Only one page of each replica is in memory,
//! whatever the size of the fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use chancery_admin_proto::v1 as pb;
use chancery_model::Revision;
use chancery_raft_proto::v1::{NodeFacts, NodeSurveyAnswer, NodeSurveyQuestion};

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    node_facts::{add_first, hash_of},
    node_state::{NodeState, SILENT_AFTER},
    times::millis,
    wait_progress::random_number,
    work::Size,
};

/// The maximum number of hashes in a question.
const HASHES_MAX: usize = 10_000;
/// The maximum number of nodes that are counted in a small job ([`Size::Small`]).
const SMALL_NODES_MAX: usize = 10_000;
/// The number of history entries that are read at a time.
const HISTORY_PIECE: usize = 100;

/// The maximum number of clients that an answer names.
const CLIENTS_MAX: usize = 100;
/// The key of the clients that an answer does not name.
const OTHER_CLIENTS: &str = "other";

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
    /// The first IDs, at most [`NAMED_MAX`](crate::node_facts::NAMED_MAX).
    pub(crate) first: BTreeSet<String>,
}

impl NodesWith {
    fn add(&mut self, n: u64, ids: impl Iterator<Item = impl AsRef<str>>) {
        self.n += n;
        ids.for_each(|id| add_first(&mut self.first, id.as_ref()));
    }
}

/// The result of counting the pages of all replicas.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    /// The hashes of nodes on several replicas, in order. They are not counted yet.
    on_several: Vec<u64>,
    /// The hash at which the next pages begin.
    next: Option<u64>,
}

/// The connected nodes of the replicas that answered.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The number of nodes by state.
    pub(crate) counts: BTreeMap<NodeState, u64>,
    pub(crate) problems: BTreeMap<NodeProblem, NodesWith>,
    /// The number of nodes by client and version.
    clients: BTreeMap<String, u64>,
    /// The number of nodes by replica.
    by_replica: BTreeMap<u64, u64>,
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
    question: NodeSurveyQuestion,
    is_local: bool,
) -> Result<Survey, AdminError> {
    let revision = expected_revision(ctx);
    let question = NodeSurveyQuestion { seed: random_number(), revision: revision.0, ..question };
    let mut survey = Survey { revision, ..Survey::default() };
    let mut from = Some(0);
    while let Some(start) = from {
        let question = NodeSurveyQuestion { from: start, ..question.clone() };
        let pages = survey.ask(ctx, &question, is_local).await?;
        let groups = pages.iter().flat_map(|(_, page)| &page.groups);
        let n_nodes: usize = groups.map(|group| group.hashes.len()).sum();
        let asked = question.clone();
        let count = move || {
            let counted = survey.count(pages, &asked);
            (survey, counted)
        };
        let counted;
        (survey, counted) = ctx.deps.work.run(Size::of(n_nodes <= SMALL_NODES_MAX), count).await?;
        for hashes in counted.on_several.chunks(HASHES_MAX) {
            let question = NodeSurveyQuestion { hashes: hashes.to_vec(), ..question.clone() };
            survey.count_shared(ctx, question, is_local).await?;
        }
        from = counted.next;
    }
    Ok(survey)
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

/// Returns the hash at which the next pages begin.
fn next_page(pages: &[(u64, NodeSurveyAnswer)], question: &NodeSurveyQuestion) -> Option<u64> {
    pages.iter().map(|(_, page)| page.next).filter(|next| *next > question.from).min()
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

    /// Asks the replicas for a page of their nodes.
    async fn ask(
        &mut self,
        ctx: &Ctx,
        question: &NodeSurveyQuestion,
        is_local: bool,
    ) -> Result<Vec<(u64, NodeSurveyAnswer)>, AdminError> {
        let here = question.clone().answer_here(ctx);
        let (here, there) = tokio::join!(here, fleet::ask_unless(is_local, ctx, question));
        self.note_missing(&there.not_asked, there.n_not_asked);
        self.replicas = 1 + there.n_answered();
        Ok([(ctx.deps.replica.id(), here?)].into_iter().chain(there.replies).collect())
    }

    /// Counts the nodes that only one replica has, and the nodes of each replica. `pages` begin at the same hash; nodes
    /// after the end of the shortest page count later. A replica that repeats a page ends the survey.
    fn count(
        &mut self,
        pages: Vec<(u64, NodeSurveyAnswer)>,
        question: &NodeSurveyQuestion,
    ) -> Counted {
        let (next, seed) = (next_page(&pages, question), question.seed);
        let is_here = |hash: u64| next.is_none_or(|next| hash < next);
        let (mut groups, mut others) = (Vec::new(), Vec::new());
        for (replica_id, mut page) in pages {
            page.groups.iter_mut().for_each(|group| group.hashes.retain(|hash| is_here(*hash)));
            let n_grouped: usize = page.groups.iter().map(|group| group.hashes.len()).sum();
            groups.extend(page.groups);
            let n_before = others.len();
            let named = page.others.into_iter().map(|node| (hash_of(&node.id, seed), node));
            others.extend(named.filter(|(hash, _)| is_here(*hash)));
            let n = n_grouped + others.len() - n_before;
            *self.by_replica.entry(replica_id).or_default() += n as u64;
        }
        let of_groups = groups.iter().flat_map(|group| &group.hashes);
        let mut hashes: Vec<u64> =
            of_groups.chain(others.iter().map(|(hash, _)| hash)).copied().collect();
        hashes.sort_unstable();
        let repeated = hashes.chunk_by(|a, b| a == b).filter(|same| same.len() > 1);
        let on_several: Vec<u64> = repeated.map(|same| same[0]).collect();
        let is_on_one = |hash: u64| on_several.binary_search(&hash).is_err();
        for group in &groups {
            let n = group.hashes.iter().filter(|hash| is_on_one(**hash)).count() as u64;
            let first = group.first.iter().filter(|id| {
                let hash = hash_of(id, seed);
                is_here(hash) && is_on_one(hash)
            });
            let state = NodeState::parse(&group.state).unwrap_or_default();
            let problems = problems(state, group.behind, false, group.unknown_version);
            self.add_nodes(n, state, problems, first);
            self.add_client(n, &group.client);
        }
        for (_, node) in others.iter().filter(|(hash, _)| is_on_one(*hash)) {
            self.add(std::slice::from_ref(node));
        }
        Counted { on_several, next }
    }

    /// Counts the nodes with the hashes of a question, each of which may have streams to several replicas.
    async fn count_shared(
        &mut self,
        ctx: &Ctx,
        mut question: NodeSurveyQuestion,
        is_local: bool,
    ) -> Result<(), AdminError> {
        loop {
            let pages = self.ask(ctx, &question, is_local).await?;
            let next = next_page(&pages, &question);
            self.add_all(pages.into_iter().flat_map(|(_, page)| page.others), |node| {
                next.is_none_or(|next| hash_of(&node.id, question.seed) < next)
            });
            match next {
                Some(next) => question.from = next,
                None => return Ok(()),
            }
        }
    }

    /// Counts the nodes that `is_here` selects. Facts about one node may come from several replicas.
    fn add_all(
        &mut self,
        nodes: impl Iterator<Item = NodeFacts>,
        is_here: impl Fn(&NodeFacts) -> bool,
    ) {
        let mut nodes: Vec<NodeFacts> = nodes.filter(is_here).collect();
        nodes.sort_by(|a, b| a.id.cmp(&b.id));
        nodes.chunk_by(|a, b| a.id == b.id).for_each(|parts| self.add(parts));
    }

    /// Counts a node. `parts` has what each replica knows of it.
    fn add(&mut self, parts: &[NodeFacts]) {
        let Some(NodeFacts { id, .. }) = parts.first() else { return };
        let states = parts.iter().filter_map(|part| NodeState::parse(&part.state));
        let state = states.max().unwrap_or_default();
        let is_behind = parts.iter().any(|part| part.behind);
        let has_unknown_version = parts.iter().any(|part| part.unknown_version);
        let problems = problems(state, is_behind, n_clients(parts) > 1, has_unknown_version);
        self.add_nodes(1, state, problems, std::iter::once(id));
        let client = parts.iter().map(|part| part.client.as_str()).max();
        self.add_client(1, client.unwrap_or_default());
    }

    fn add_client(&mut self, n: u64, client: &str) {
        match self.clients.get_mut(client) {
            Some(known) => *known += n,
            None if n > 0 => drop(self.clients.insert(client.to_owned(), n)),
            None => {}
        }
    }

    fn add_nodes<'a>(
        &mut self,
        n: u64,
        state: NodeState,
        problems: impl Iterator<Item = NodeProblem>,
        first: impl Iterator<Item = &'a String> + Clone,
    ) {
        if n == 0 {
            return;
        }
        *self.counts.entry(state).or_default() += n;
        for problem in problems {
            self.problems.entry(problem).or_default().add(n, first.clone());
        }
    }

    /// Returns the answer to a request that counts.
    pub(crate) fn into_response(self) -> pb::ListNodesResponse {
        let counts = self.counts.into_iter().map(|(state, n)| (state.word().to_owned(), n));
        let problem = |(problem, nodes): (NodeProblem, NodesWith)| pb::NodeProblem {
            rule_id: problem.rule_id().to_owned(),
            nodes: nodes.n,
            ids: nodes.first.into_iter().collect(),
        };
        pb::ListNodesResponse {
            counts: counts.collect(),
            problems: self.problems.into_iter().map(problem).collect(),
            clients: first_clients(self.clients).into_iter().collect(),
            nodes_by_replica: self.by_replica.into_iter().collect(),
            replicas: self.replicas,
            replicas_not_asked: self.n_not_asked,
            not_asked: self.not_asked,
            ..pb::ListNodesResponse::default()
        }
    }
}

/// Returns the clients with the most nodes. The number of the others is under one key, because clients choose their
/// versions.
fn first_clients(clients: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    if clients.len() <= CLIENTS_MAX {
        return clients;
    }
    let mut clients: Vec<(String, u64)> = clients.into_iter().collect();
    clients.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let others = clients.split_off(CLIENTS_MAX).iter().map(|(_, n)| n).sum();
    clients.push((OTHER_CLIENTS.to_owned(), others));
    clients.into_iter().collect()
}

/// Returns the problems of a node.
fn problems(
    state: NodeState,
    is_behind: bool,
    is_duplicate: bool,
    has_unknown_version: bool,
) -> impl Iterator<Item = NodeProblem> {
    let duplicate = is_duplicate.then_some(NodeProblem::Duplicate);
    let version = has_unknown_version.then_some(NodeProblem::Version);
    [NodeProblem::of_state(state, is_behind), duplicate, version].into_iter().flatten()
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
    use chancery_raft_proto::v1::{ClientsOfType, SurveyedNodes};

    use super::*;
    use crate::node_facts::NAMED_MAX;

    const SEED: u64 = 7;

    fn node(id: &str, state: &str, connections: u64, hosts: &[&str]) -> NodeFacts {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let clients = vec![ClientsOfType { type_url: String::new(), connections, hosts }];
        let (id, state) = (id.to_owned(), state.to_owned());
        NodeFacts { id, state, clients, ..NodeFacts::default() }
    }

    fn group(state: &str, ids: &[&str]) -> SurveyedNodes {
        let hashes = ids.iter().map(|id| hash_of(id, SEED)).collect();
        let first = ids.iter().map(|id| (*id).to_owned()).collect();
        SurveyedNodes { state: state.to_owned(), hashes, first, ..SurveyedNodes::default() }
    }

    fn page(ordinary: &[&str], others: &[NodeFacts], next: u64) -> (u64, NodeSurveyAnswer) {
        let groups = vec![group("synced", ordinary)];
        (1, NodeSurveyAnswer { groups, others: others.to_vec(), next })
    }

    fn question(from: u64) -> NodeSurveyQuestion {
        NodeSurveyQuestion { seed: SEED, from, ..Default::default() }
    }

    fn counts(survey: &Survey) -> Vec<(&'static str, u64)> {
        survey.counts.iter().map(|(state, n)| (state.word(), *n)).collect()
    }

    fn problem(survey: &Survey, problem: NodeProblem) -> (u64, String) {
        let nodes = survey.problems.get(&problem).cloned().unwrap_or_default();
        let first: Vec<String> = nodes.first.into_iter().collect();
        (nodes.n, first.join(" "))
    }

    /// A node with streams to two replicas counted twice.
    #[test]
    fn node_on_two_replicas_counts_once_with_its_worst_state() {
        let mut survey = Survey::default();
        let here = page(&["a", "b"], &[node("d", "silent", 1, &[])], 0);
        let there = page(&["d"], &[node("a", "rejected", 1, &[]), node("c", "silent", 1, &[])], 0);
        let mut shared = [hash_of("a", SEED), hash_of("d", SEED)];
        shared.sort_unstable();
        let counted = survey.count(vec![here, there], &question(0));
        assert_eq!(counted, Counted { on_several: shared.to_vec(), next: None });
        assert_eq!(counts(&survey), [("synced", 1), ("silent", 1)]);
        let asked_again = [
            node("a", "synced", 1, &[]),
            node("d", "silent", 0, &["10.0.0.1"]),
            node("a", "rejected", 1, &[]),
            node("d", "synced", 0, &["10.0.0.1"]),
        ];
        survey.add_all(asked_again.into_iter(), |_| true);
        assert_eq!(counts(&survey), [("synced", 1), ("silent", 2), ("rejected", 1)]);
        assert_eq!(problem(&survey, NodeProblem::Rejected), (1, "a".to_owned()));
        assert_eq!(problem(&survey, NodeProblem::Duplicate), (1, "a".to_owned()));
    }

    /// A node after the end of a page may have streams to the replica that has more.
    #[test]
    fn nodes_after_the_end_of_the_shortest_page_count_in_the_next_one() {
        let mut survey = Survey::default();
        let mut ids = ["a", "b", "c"];
        ids.sort_by_key(|id| hash_of(id, SEED));
        let [first, second, third] = ids;
        let end = hash_of(second, SEED);
        let pages =
            vec![page(&[first], &[], end), page(&[second], &[node(third, "silent", 1, &[])], 0)];
        let counted = survey.count(pages, &question(0));
        assert_eq!(counted, Counted { on_several: vec![], next: Some(end) });
        assert_eq!(counts(&survey), [("synced", 1)]);
        let pages = vec![
            page(&[second, third], &[], 0),
            page(&[second], &[node(third, "silent", 1, &[])], 0),
        ];
        let counted = survey.count(pages, &question(0));
        assert_eq!((counted.on_several.len(), counted.next), (2, None));
        assert_eq!(counts(&survey), [("synced", 1)]);
    }

    #[test]
    fn replica_that_repeats_a_page_ends_the_survey() {
        let pages = || vec![page(&["a"], &[], 7)];
        assert_eq!(Survey::default().count(pages(), &question(6)).next, Some(7));
        assert_eq!(Survey::default().count(pages(), &question(7)).next, None);
    }

    /// A node of a group is named only if it counts with that group.
    #[test]
    fn groups_count_and_name_nodes_of_one_replica() {
        let mut survey = Survey::default();
        let silent = SurveyedNodes { unknown_version: true, ..group("silent", &["a", "b"]) };
        let here = NodeSurveyAnswer { groups: vec![silent], ..Default::default() };
        let counted = survey.count(vec![(2, here), page(&["b", "c"], &[], 0)], &question(0));
        assert_eq!(counted.on_several, [hash_of("b", SEED)]);
        // A node on two replicas counts for both.
        assert_eq!(survey.by_replica, BTreeMap::from([(1, 2), (2, 2)]));
        assert_eq!(survey.clients, BTreeMap::from([(String::new(), 2)]));
        assert_eq!(counts(&survey), [("synced", 1), ("silent", 1)]);
        for of in [NodeProblem::Silent, NodeProblem::Version] {
            assert_eq!(problem(&survey, of), (1, "a".to_owned()));
        }
    }

    /// Clients choose their user agents.
    #[test]
    fn number_of_named_clients_is_bounded() {
        let clients = (1..=200).map(|n| (format!("envoy@1.{n}"), n)).collect();
        let first = first_clients(clients);
        assert_eq!((first.len(), first.get(OTHER_CLIENTS)), (CLIENTS_MAX + 1, Some(&5050)));
        assert!(first.contains_key("envoy@1.101") && !first.contains_key("envoy@1.100"));
    }

    #[test]
    fn problems_name_the_first_nodes_and_count_all() {
        let mut survey = Survey::default();
        let odd = |n: usize| NodeFacts {
            behind: true,
            unknown_version: true,
            ..node(&format!("n{n:02}"), "pending", 1, &[])
        };
        survey.count(vec![page(&[], &(0..30).rev().map(odd).collect::<Vec<_>>(), 0)], &question(0));
        let rejecting = NodeFacts { behind: true, ..node("x", "rejected", 1, &["10.0.0.1"]) };
        survey.count(vec![page(&[], &[rejecting], 0)], &question(0));
        let (n, first) = problem(&survey, NodeProblem::Behind);
        assert_eq!((n, first.split(' ').count()), (30, NAMED_MAX));
        assert!(first.starts_with("n00") && first.ends_with("n19"), "{first}");
        assert_eq!(problem(&survey, NodeProblem::Version).0, 30);
        // The rejection is the reason why the node is behind.
        assert_eq!(problem(&survey, NodeProblem::Rejected), (1, "x".to_owned()));
        assert_eq!(problem(&survey, NodeProblem::Duplicate).0, 1);
    }
}
