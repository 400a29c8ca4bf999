//! Facts about the connected nodes of this replica, for the counts of nodes and the findings about them.
//!
//! An answer has the nodes with the first IDs, and a bounded size. The shards build no status of a stream for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use chancery_admission::ClientProfile;
use chancery_fanout::LiveStream;
use chancery_model::{Glob, Revision, TypeUrl, Verb};
use chancery_raft_proto::v1::{ClientsOfType, NodeFacts, NodeFactsAnswer, NodeFactsQuestion};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::FleetRequest,
    node_state::{NodeState, SILENT_AFTER, is_envoy, stream_state},
    nodes::check_answered,
};

/// The size in bytes at which an answer ends, as estimated while it is collected.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// The estimated size of a node and of a stream, without names.
const NODE_BYTES: usize = 32;
const STREAM_BYTES: usize = 24;

impl Needs for NodeFactsQuestion {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for NodeFactsQuestion {
    const NAME: &'static str = "chancery.raft.v1.NodeFactsQuestion";
    type Reply = NodeFactsAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<NodeFactsAnswer, AdminError> {
        facts_here(ctx, &self, PAGE_BYTES_MAX).await
    }
}

/// Returns the facts about the first nodes of this replica, in about `bytes_max` bytes.
async fn facts_here(
    ctx: &Ctx,
    question: &NodeFactsQuestion,
    bytes_max: usize,
) -> Result<NodeFactsAnswer, AdminError> {
    let page: Arc<Mutex<FactsPage>> = Arc::new(Mutex::new(FactsPage::new(question, bytes_max)));
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

/// A client that uses the ID of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    /// An Envoy has one connection.
    Connection(SocketAddr),
    /// A process with gRPC may have one connection for each of its channels.
    Host(IpAddr),
}

/// The facts about one node.
#[derive(Debug, Default)]
struct Facts {
    state: NodeState,
    is_behind: bool,
    has_unknown_version: bool,
    clients: Vec<(Option<TypeUrl>, Client)>,
    n_bytes: usize,
}

/// The first nodes after a given ID, in the order of their IDs.
#[derive(Debug, Default)]
struct FactsPage {
    glob: Option<Glob>,
    /// Only these nodes, if there are any.
    ids: BTreeSet<String>,
    after: String,
    /// The revision that nodes have to acknowledge.
    revision: Revision,
    /// Streams that opened later may still have to acknowledge their first responses.
    opened_until: Option<SystemTime>,
    nodes: BTreeMap<String, Facts>,
    n_bytes: usize,
    bytes_max: usize,
    /// The first ID that the page omits; `None` while there is space for any.
    end: Option<String>,
}

impl FactsPage {
    fn new(question: &NodeFactsQuestion, bytes_max: usize) -> Self {
        let NodeFactsQuestion { after, id, ids, revision } = question;
        Self {
            glob: (!id.is_empty()).then(|| Glob::new(id)),
            ids: ids.iter().cloned().collect(),
            after: after.clone(),
            revision: Revision(*revision),
            opened_until: SystemTime::now().checked_sub(SILENT_AFTER),
            bytes_max,
            ..Self::default()
        }
    }

    fn selects(&self, id: &str) -> bool {
        id > self.after.as_str()
            && self.end.as_deref().is_none_or(|end| id < end)
            && (self.ids.is_empty() || self.ids.contains(id))
            && self.glob.as_ref().is_none_or(|glob| glob.matches(id))
    }

    /// Adds a stream to its node. Omits the last nodes if the page is full.
    fn see(&mut self, stream: &LiveStream<'_>) {
        let id = &stream.node.id;
        if !self.selects(id) {
            return;
        }
        let user_agent = &stream.node.user_agent;
        let profile = ClientProfile::of_known_user_agent(user_agent);
        let is_old = self.opened_until.is_some_and(|until| stream.since <= until);
        let is_behind = is_old
            && self.revision > Revision(0)
            && stream.assignment.is_some()
            && stream.is_behind(self.revision);
        let client = if is_envoy(user_agent) {
            Client::Connection(stream.peer)
        } else {
            Client::Host(stream.peer.ip())
        };
        let type_len = stream.type_url.map_or(0, |type_url| type_url.as_str().len());
        let mut n_bytes = STREAM_BYTES + type_len;
        if !self.nodes.contains_key(id) {
            n_bytes += NODE_BYTES + id.len();
            self.nodes
                .insert(id.clone(), Facts { clients: Vec::with_capacity(1), ..Facts::default() });
        }
        if let Some(facts) = self.nodes.get_mut(id) {
            facts.state = facts.state.max(stream_state(stream));
            facts.is_behind |= is_behind;
            facts.has_unknown_version |= profile.is_none_or(|known| known.version.is_none());
            facts.clients.push((stream.type_url.cloned(), client));
            facts.n_bytes += n_bytes;
        }
        self.n_bytes += n_bytes;
        while self.n_bytes > self.bytes_max && self.nodes.len() > 1 {
            let Some((id, facts)) = self.nodes.pop_last() else { break };
            self.n_bytes -= facts.n_bytes;
            self.end = Some(id);
        }
    }

    fn into_answer(self) -> NodeFactsAnswer {
        let last = self.nodes.last_key_value().filter(|_| self.end.is_some());
        let next = last.map(|(id, _)| id.clone()).unwrap_or_default();
        let nodes = self.nodes.into_iter().map(|(id, facts)| facts.show(id)).collect();
        NodeFactsAnswer { nodes, next }
    }
}

impl Facts {
    fn show(mut self, id: String) -> NodeFacts {
        self.clients.sort_unstable();
        self.clients.dedup();
        let mut clients: Vec<ClientsOfType> = Vec::new();
        for (type_url, client) in self.clients {
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
            id,
            state: self.state.word().to_owned(),
            behind: self.is_behind,
            unknown_version: self.has_unknown_version,
            clients,
        }
    }
}
