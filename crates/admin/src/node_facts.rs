//! Facts about the connected nodes of this replica, for the counts of nodes and the findings about them.
//!
//! An answer contains the nodes with the lowest hashes of their IDs, and has a bounded size. It has the hashes of nodes
//! with one client, grouped by their facts, unless the question names hashes. The shards do not build the status of any
//! stream for an answer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use chancery_admission::ClientProfile;
use chancery_fanout::LiveStream;
use chancery_model::{Glob, Revision, TypeUrl, Verb};
use chancery_raft_proto::v1::{
    ClientsOfType, NodeFacts, NodeSurveyAnswer, NodeSurveyQuestion, SurveyedNodes,
};
use parking_lot::Mutex;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::FleetRequest,
    node_state::{NodeState, SILENT_AFTER, is_envoy, stream_state},
    nodes::check_answered,
};

/// The maximum number of nodes with one problem that are named.
pub(crate) const NAMED_MAX: usize = 20;
/// The size in bytes at which an answer ends, as estimated while it is collected.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// The estimated size of a node and of a further stream, without names.
const NODE_BYTES: usize = 40;
const STREAM_BYTES: usize = 24;

impl Needs for NodeSurveyQuestion {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for NodeSurveyQuestion {
    const NAME: &'static str = "chancery.raft.v1.NodeSurveyQuestion";
    type Reply = NodeSurveyAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<NodeSurveyAnswer, AdminError> {
        let page = Arc::new(Mutex::new(FactsPage::new(self, PAGE_BYTES_MAX)));
        let shared = Arc::clone(&page);
        let see = move |stream: &LiveStream<'_>| {
            shared.lock().see(stream);
            false
        };
        let since = Instant::now();
        ctx.deps.fanout.for_each_stream_of(Arc::new(see), |_| {}).await;
        check_answered(ctx, since)?;
        let page = std::mem::take(&mut *page.lock());
        Ok(page.into_answer())
    }
}

/// Returns the hash of the ID of a node.
pub(crate) fn hash_of(id: &str, seed: u64) -> u64 {
    xxh3_64_with_seed(id.as_bytes(), seed)
}

/// A client that uses the ID of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// An Envoy has one connection.
    Connection(SocketAddr),
    /// A process with gRPC may have one connection for each of its channels.
    Host(IpAddr),
}

/// The facts about one node.
#[derive(Debug, Clone)]
struct Facts {
    /// Empty for an ordinary node.
    id: String,
    state: NodeState,
    is_behind: bool,
    has_unknown_version: bool,
    /// The kind and the version of the client; the greatest one if the streams differ.
    profile: Option<ClientProfile>,
    /// The client of the first stream, and those of further streams. `None` is the type of aggregated streams.
    first: (Option<TypeUrl>, Client),
    further: Vec<(Option<TypeUrl>, Client)>,
    n_bytes: usize,
}

/// The nodes with the lowest hashes from `question.from` on.
#[derive(Debug, Default)]
struct FactsPage {
    question: NodeSurveyQuestion,
    glob: Option<Glob>,
    /// Only these nodes, if there are any.
    ids: BTreeSet<String>,
    hashes: HashSet<u64>,
    /// Streams that opened later may still have to acknowledge their first responses.
    opened_until: Option<SystemTime>,
    nodes: HashMap<u64, Facts>,
    n_bytes: usize,
    bytes_max: usize,
    /// The first hash that the page omits; `None` while there is space for any.
    end: Option<u64>,
}

impl FactsPage {
    fn new(mut question: NodeSurveyQuestion, bytes_max: usize) -> Self {
        Self {
            glob: (!question.id.is_empty()).then(|| Glob::new(&question.id)),
            ids: std::mem::take(&mut question.ids).into_iter().collect(),
            hashes: std::mem::take(&mut question.hashes).into_iter().collect(),
            question,
            opened_until: SystemTime::now().checked_sub(SILENT_AFTER),
            bytes_max,
            ..Self::default()
        }
    }

    /// Returns the hash of the ID if the page includes the node.
    fn select(&self, id: &str) -> Option<u64> {
        let is_asked = id > self.question.after.as_str()
            && (self.ids.is_empty() || self.ids.contains(id))
            && self.glob.as_ref().is_none_or(|glob| glob.matches(id));
        let hash = is_asked.then(|| hash_of(id, self.question.seed))?;
        let is_here = hash >= self.question.from
            && self.end.is_none_or(|end| hash < end)
            && (self.hashes.is_empty() || self.hashes.contains(&hash));
        is_here.then_some(hash)
    }

    /// Adds a stream to its node. Omits the last nodes if the page is full.
    fn see(&mut self, stream: &LiveStream<'_>) {
        let id = &stream.node.id;
        let Some(hash) = self.select(id) else { return };
        let user_agent = &stream.node.user_agent;
        let profile = ClientProfile::of_known_user_agent(user_agent);
        let revision = Revision(self.question.revision);
        let is_old = self.opened_until.is_some_and(|until| stream.since <= until);
        let client = if is_envoy(user_agent) {
            Client::Connection(stream.peer)
        } else {
            Client::Host(stream.peer.ip())
        };
        let seen = Facts {
            id: String::new(),
            state: stream_state(stream),
            is_behind: is_old
                && revision > Revision(0)
                && stream.assignment.is_some()
                && stream.is_behind(revision),
            has_unknown_version: profile.is_none_or(|known| known.version.is_none()),
            profile,
            first: (stream.type_url.cloned(), client),
            further: Vec::new(),
            n_bytes: NODE_BYTES,
        };
        self.add(hash, id, seen);
    }

    fn add(&mut self, hash: u64, id: &str, seen: Facts) {
        let mut n_bytes = seen.n_bytes;
        let facts = match self.nodes.entry(hash) {
            Entry::Vacant(place) => place.insert(seen),
            Entry::Occupied(found) => {
                let facts = found.into_mut();
                n_bytes = facts.merge(seen);
                facts
            }
        };
        let is_named = !self.hashes.is_empty() || !facts.is_ordinary();
        if is_named && facts.id.is_empty() {
            id.clone_into(&mut facts.id);
            facts.n_bytes += id.len();
            n_bytes += id.len();
        }
        self.n_bytes += n_bytes;
        if self.n_bytes > self.bytes_max && self.nodes.len() > 1 {
            self.omit_half();
        }
    }

    /// Omits the upper half of the nodes by hash.
    fn omit_half(&mut self) {
        let mut hashes: Vec<u64> = self.nodes.keys().copied().collect();
        let (_, end, _) = hashes.select_nth_unstable(self.nodes.len() / 2);
        let end = *end;
        self.nodes.retain(|hash, _| *hash < end);
        self.n_bytes = self.nodes.values().map(|facts| facts.n_bytes).sum();
        self.end = Some(end);
    }

    fn into_answer(self) -> NodeSurveyAnswer {
        let mut groups: BTreeMap<GroupKey, Group> = BTreeMap::new();
        let mut others = Vec::new();
        for (hash, facts) in self.nodes {
            if self.hashes.is_empty() && facts.further.is_empty() {
                let of = (facts.state, facts.is_behind, facts.has_unknown_version, facts.profile);
                let group = groups.entry(of).or_default();
                group.hashes.push(hash);
                if !facts.id.is_empty() {
                    add_first(&mut group.first, &facts.id);
                }
            } else {
                others.push(facts.show());
            }
        }
        let groups =
            groups.into_iter().map(|((state, behind, unknown_version, profile), group)| {
                SurveyedNodes {
                    state: state.word().to_owned(),
                    behind,
                    unknown_version,
                    hashes: group.hashes,
                    first: group.first.into_iter().collect(),
                    client: client_text(profile),
                }
            });
        NodeSurveyAnswer { groups: groups.collect(), others, next: self.end.unwrap_or_default() }
    }
}

/// The facts by which nodes are grouped: their state, whether they are behind or have an unknown version, and the client.
type GroupKey = (NodeState, bool, bool, Option<ClientProfile>);

fn client_text(profile: Option<ClientProfile>) -> String {
    profile.map(|profile| profile.to_string()).unwrap_or_default()
}

/// The nodes of one client with equal facts.
#[derive(Debug, Default)]
struct Group {
    hashes: Vec<u64>,
    first: BTreeSet<String>,
}

/// Adds an ID if it is among the first [`NAMED_MAX`].
pub(crate) fn add_first(first: &mut BTreeSet<String>, id: &str) {
    if first.len() < NAMED_MAX || first.last().is_some_and(|last| id < last.as_str()) {
        first.insert(id.to_owned());
    }
    if first.len() > NAMED_MAX {
        first.pop_last();
    }
}

impl Facts {
    /// Returns whether the node is ordinary: its hash alone suffices to count it.
    fn is_ordinary(&self) -> bool {
        self.state == NodeState::Synced
            && !self.is_behind
            && !self.has_unknown_version
            && self.further.is_empty()
    }

    /// Adds a further stream of the node. Returns the number of bytes that the stream adds.
    fn merge(&mut self, seen: Self) -> usize {
        self.state = self.state.max(seen.state);
        self.is_behind |= seen.is_behind;
        self.has_unknown_version |= seen.has_unknown_version;
        self.profile = self.profile.max(seen.profile);
        if seen.first == self.first || self.further.last() == Some(&seen.first) {
            return 0;
        }
        let type_len = seen.first.0.as_ref().map_or(0, |type_url| type_url.as_str().len());
        let n_bytes = STREAM_BYTES + type_len;
        self.further.push(seen.first);
        self.n_bytes += n_bytes;
        n_bytes
    }

    fn show(mut self) -> NodeFacts {
        self.further.push(self.first);
        self.further.sort_unstable();
        self.further.dedup();
        let mut clients: Vec<ClientsOfType> = Vec::new();
        for (type_url, client) in self.further {
            let type_url = type_url.map(|type_url| type_url.to_string()).unwrap_or_default();
            if clients.last().is_none_or(|last| last.type_url != type_url) {
                clients.push(ClientsOfType { type_url, ..ClientsOfType::default() });
            }
            match (clients.last_mut(), client) {
                (Some(last), Client::Connection(_)) => last.connections += 1,
                (Some(last), Client::Host(host)) => last.hosts.push(host.to_string()),
                (None, _) => {}
            }
        }
        NodeFacts {
            id: self.id,
            state: self.state.word().to_owned(),
            behind: self.is_behind,
            unknown_version: self.has_unknown_version,
            clients,
            client: client_text(self.profile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(state: NodeState, port: u16) -> Facts {
        Facts {
            id: String::new(),
            state,
            is_behind: false,
            has_unknown_version: false,
            profile: None,
            first: (None, Client::Connection(([10, 0, 0, 1], port).into())),
            further: Vec::new(),
            n_bytes: NODE_BYTES,
        }
    }

    /// Returns the answer about these nodes, each with the states and ports of its streams.
    fn answer(question: NodeSurveyQuestion, nodes: &[(String, Vec<Facts>)]) -> NodeSurveyAnswer {
        let mut page = FactsPage::new(question, 1000);
        for (id, streams) in nodes {
            for stream in streams {
                let Some(hash) = page.select(id) else { continue };
                page.add(hash, id, stream.clone());
            }
        }
        page.into_answer()
    }

    /// Each node is on one page, nodes with one client only as a hash.
    #[test]
    fn pages_have_each_node_once() {
        let (synced, silent) = (NodeState::Synced, NodeState::Silent);
        let streams = |n: u16| match n % 10 {
            0 => vec![facts(synced, 1), facts(silent, 1)],
            1 => vec![facts(synced, 1), facts(synced, 2)],
            _ => vec![facts(synced, 1), facts(synced, 1)],
        };
        let nodes: Vec<_> = (0..200).map(|n| (format!("node-{n}"), streams(n))).collect();
        let mut question = NodeSurveyQuestion { seed: 7, ..NodeSurveyQuestion::default() };
        let (mut by_state, mut firsts) = (BTreeMap::<_, Vec<u64>>::new(), Vec::new());
        let (mut others, mut n_pages) = (Vec::new(), 0);
        loop {
            let page = answer(question.clone(), &nodes);
            for group in page.groups {
                firsts.extend(group.first);
                by_state.entry(group.state).or_default().extend(group.hashes);
            }
            others.extend(page.others);
            n_pages += 1;
            if page.next == 0 {
                break;
            }
            assert!(page.next > question.from);
            question.from = page.next;
        }
        assert!(n_pages > 4, "{n_pages} pages");
        let numbers: Vec<(&str, usize)> =
            by_state.iter().map(|(state, hashes)| (state.as_str(), hashes.len())).collect();
        assert_eq!((numbers, others.len()), (vec![("silent", 20), ("synced", 160)], 20));
        // Only nodes with a problem are named.
        firsts.sort();
        assert_eq!((firsts.len(), firsts[0].as_str()), (20, "node-0"));
        let duplicate = others.iter().find(|node| node.id == "node-1").unwrap();
        assert_eq!(duplicate.clients[0].connections, 2);
        // A question for hashes gets facts about ordinary nodes, too.
        let hashes = vec![hash_of("node-2", 7), hash_of("node-3", 7)];
        let asked = answer(NodeSurveyQuestion { from: 0, hashes, ..question }, &nodes);
        let mut ids: Vec<String> = asked.others.into_iter().map(|node| node.id).collect();
        ids.sort();
        assert_eq!((asked.groups.len(), ids), (0, vec!["node-2".into(), "node-3".into()]));
    }
}
