//! The list of connected nodes, page by page in the order of their IDs.
//!
//! A page takes its first nodes from every replica. Only the nodes of one page are in memory, whatever the size of the
//! fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::{Change, LiveStream, SelectStream, StreamStatus};
use chancery_model::{Glob, Revision};
use chancery_raft_proto::v1::NodeSurveyQuestion;
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use prost::{Message, encoding::encoded_len_varint};
use tokio::time::Instant;

use crate::{
    AdminError,
    ctx::Ctx,
    deps::READ_TIMEOUT,
    fleet::{self, Elsewhere, FleetRequest},
    held_changes::{held_up_to, hide_held},
    node_counts,
    node_state::{DISCONNECTED, NODE_STATES, NodeState},
    node_survey::survey,
    nodes::{check_answered, merged, selected_streams, show_node},
};

/// The maximum number of nodes in one page.
const PAGE_NODES_MAX: usize = 1000;
/// The maximum number of nodes in one piece of the list.
const PIECE_NODES_MAX: usize = 200;
/// The maximum number of nodes that a request may ask for.
const LIMIT_MAX: usize = 10_000;
/// The size in bytes at which the page of one replica ends, below the maximum size of an answer to another replica.
const PAGE_BYTES_MAX: usize = 12 << 20;

/// Connected nodes, in pieces. The last piece says how complete the list is.
pub(crate) struct NodePages(pub(crate) Pieces);

type Pieces = Pin<Box<dyn Stream<Item = Result<pb::ListNodesResponse, AdminError>> + Send>>;

/// The nodes of a list.
#[derive(Debug, Clone)]
struct Selection {
    glob: Glob,
    /// Only these nodes, if there are any.
    ids: BTreeSet<String>,
    /// Only nodes with a greater ID.
    after: String,
    state: Option<StateFilter>,
    behind: Option<Revision>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StateFilter {
    Connected(NodeState),
    Disconnected,
}

impl Selection {
    fn parse(request: &pb::ListNodesRequest) -> Result<Self, AdminError> {
        let state = match request.state.as_str() {
            "" => None,
            DISCONNECTED => Some(StateFilter::Disconnected),
            word => match NodeState::parse(word) {
                Some(state) => Some(StateFilter::Connected(state)),
                None => {
                    return Err(AdminError::Parameter(format!(
                        "{word:?} is not a state of a node; the states are {}",
                        NODE_STATES.join(", ")
                    )));
                }
            },
        };
        let glob = Glob::new(if request.id.is_empty() { "*" } else { &request.id });
        let ids = request.ids.iter().cloned().collect();
        let behind = request.behind.map(Revision);
        Ok(Self { glob, ids, after: request.cursor.clone(), state, behind })
    }

    fn has(&self, id: &str) -> bool {
        id > self.after.as_str()
            && (self.ids.is_empty() || self.ids.contains(id))
            && self.glob.matches(id)
    }
}

/// Returns the nodes of all replicas in pieces.
pub(crate) async fn list_nodes(
    ctx: &Ctx,
    request: pb::ListNodesRequest,
) -> Result<NodePages, AdminError> {
    Selection::parse(&request)?;
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
    if limit > LIMIT_MAX {
        let text = format!("the limit is {limit}; at most {LIMIT_MAX} nodes are listed at a time");
        return Err(AdminError::Parameter(text));
    }
    if request.count && (!request.state.is_empty() || request.behind.is_some()) {
        let text = "`count` counts the nodes of each state; leave out `state` and `behind`";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    if request.count {
        let counts = count(ctx, request).await?;
        return Ok(NodePages(stream::iter([Ok(counts)]).boxed()));
    }
    if let Some(revision) = request.behind {
        ctx.deps.check_exists(Revision(revision), READ_TIMEOUT).await?;
    }
    let mut first = page(ctx, &request, if limit == 0 { PAGE_NODES_MAX } else { limit }).await?;
    let state = ctx.deps.replica.state();
    first.held = held_up_to(&state, Revision(request.behind.unwrap_or(u64::MAX)), None);
    hide_held(ctx, &state, &mut first.held);
    if limit > 0 {
        return Ok(NodePages(stream::iter(pieces(first).map(Ok)).boxed()));
    }
    let rest = Rest { ctx: ctx.clone(), request, page: Some(first), not_asked: Vec::new() };
    let pages = stream::unfold(Some(rest), |rest| async { rest?.next().await });
    let pieces = pages.flat_map(|page| match page {
        Ok(page) => stream::iter(pieces(page).map(Ok).collect::<Vec<_>>()),
        Err(error) => stream::iter(vec![Err(error)]),
    });
    Ok(NodePages(pieces.boxed()))
}

/// Counts the nodes of all replicas by state and by problem.
async fn count(
    ctx: &Ctx,
    request: pb::ListNodesRequest,
) -> Result<pb::ListNodesResponse, AdminError> {
    let pb::ListNodesRequest { id, ids, cursor, local, .. } = request;
    let question = NodeSurveyQuestion { after: cursor, id, ids, ..NodeSurveyQuestion::default() };
    Ok(survey(ctx, question, local).await?.into_response())
}

/// The pages of a list without a limit.
struct Rest {
    ctx: Ctx,
    request: pb::ListNodesRequest,
    /// The page that was read last.
    page: Option<pb::ListNodesResponse>,
    /// The replicas that did not answer for an earlier page.
    not_asked: Vec<pb::ReplicaNotAsked>,
}

impl Rest {
    async fn next(mut self) -> Option<(Result<pb::ListNodesResponse, AdminError>, Option<Self>)> {
        let mut page = match self.page.take() {
            Some(page) => page,
            None => match page(&self.ctx, &self.request, PAGE_NODES_MAX).await {
                Ok(page) => page,
                Err(error) => return Some((Err(error), None)),
            },
        };
        for replica in std::mem::take(&mut page.not_asked) {
            if self.not_asked.iter().all(|known| known.replica_id != replica.replica_id) {
                self.not_asked.push(replica);
            }
        }
        page.not_asked.clone_from(&self.not_asked);
        page.replicas_not_asked = page.replicas_not_asked.max(self.not_asked.len() as u64);
        self.request.cursor = std::mem::take(&mut page.next);
        let rest = (!self.request.cursor.is_empty()).then_some(self);
        Some((Ok(page), rest))
    }
}

/// Splits a page. Every piece has what the page says about its completeness.
fn pieces(mut page: pb::ListNodesResponse) -> impl Iterator<Item = pb::ListNodesResponse> {
    let nodes = std::mem::take(&mut page.nodes);
    let mut disconnected = std::mem::take(&mut page.disconnected);
    let mut held = std::mem::take(&mut page.held);
    let head = page;
    let mut nodes = nodes.into_iter().peekable();
    let mut is_first = true;
    std::iter::from_fn(move || {
        if !is_first && nodes.peek().is_none() {
            return None;
        }
        is_first = false;
        let piece = nodes.by_ref().take(PIECE_NODES_MAX).collect();
        let disconnected = std::mem::take(&mut disconnected);
        let held = std::mem::take(&mut held);
        Some(pb::ListNodesResponse { nodes: piece, disconnected, held, ..head.clone() })
    })
}

/// Returns the first nodes of all replicas.
async fn page(
    ctx: &Ctx,
    request: &pb::ListNodesRequest,
    limit: usize,
) -> Result<pb::ListNodesResponse, AdminError> {
    let forwarded = pb::ListNodesRequest {
        local: true,
        limit: u32::try_from(limit).unwrap_or(u32::MAX),
        ..request.clone()
    };
    let selection = Selection::parse(request)?;
    let here = page_here(ctx, &selection, limit);
    let (here, there) = tokio::join!(here, fleet::ask_unless(request.local, ctx, &forwarded));
    let merged = merge(here?, there, limit);
    let is_filtered = selection.state.is_some() || selection.behind.is_some();
    let is_empty = merged.nodes.is_empty() && merged.disconnected.is_empty();
    if !is_filtered || request.local || is_empty || merged.replicas < 2 {
        return Ok(merged);
    }
    // A replica selects by its own streams. The node may have streams in another state to other replicas.
    let ids = merged.nodes.iter().map(|node| &node.id);
    let ids: Vec<String> =
        ids.chain(merged.disconnected.iter().map(|node| &node.id)).cloned().collect();
    let last = ids.iter().max().cloned().unwrap_or_default();
    let whole = pb::ListNodesRequest { limit: forwarded.limit, ids, ..Default::default() };
    let selection_of_ids = Selection::parse(&whole)?;
    let here = page_here(ctx, &selection_of_ids, limit);
    let local = pb::ListNodesRequest { local: true, ..whole };
    let (here, there) = tokio::join!(here, fleet::ask(ctx, &local));
    let whole = merge(here?, there, limit);
    let mut not_asked = merged.not_asked.clone();
    let is_new = |one: &&pb::ReplicaNotAsked| {
        merged.not_asked.iter().all(|known| known.replica_id != one.replica_id)
    };
    not_asked.extend(whole.not_asked.iter().filter(is_new).cloned());
    let replicas_not_asked = merged.replicas_not_asked.max(not_asked.len() as u64);
    // The status of the nodes on all replicas may be larger than a page. The others follow in the next one.
    let is_cut = !whole.next.is_empty() && whole.next < last;
    let next = if is_cut { whole.next } else { merged.next.clone() };
    let is_selected = |node: &pb::NodeStatus| match selection.state {
        Some(StateFilter::Connected(state)) => {
            let condition = node.condition.as_ref();
            condition.and_then(|one| NodeState::parse(&one.state)) == Some(state)
        }
        Some(StateFilter::Disconnected) => false,
        None => true,
    };
    let nodes = whole.nodes.into_iter().filter(is_selected).collect();
    let disconnected = match selection.state {
        Some(StateFilter::Disconnected) => whole.disconnected,
        _ => Vec::new(),
    };
    Ok(pb::ListNodesResponse { nodes, disconnected, next, not_asked, replicas_not_asked, ..merged })
}

/// Returns the first nodes of all replicas that a request selects.
pub(crate) async fn page_of_all(
    ctx: &Ctx,
    request: &pb::ListNodesRequest,
) -> Result<Vec<pb::NodeStatus>, AdminError> {
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX).clamp(1, LIMIT_MAX);
    Ok(page(ctx, request, limit).await?.nodes)
}

/// Returns the first nodes of this replica, at most `limit`.
async fn page_here(
    ctx: &Ctx,
    selection: &Selection,
    limit: usize,
) -> Result<pb::ListNodesResponse, AdminError> {
    let by_id = match (selection.state, selection.behind) {
        (Some(StateFilter::Disconnected), _) => BTreeMap::new(),
        (None, None) => first_nodes(ctx, selection, limit).await?,
        _ => filtered_nodes(ctx, selection, limit).await?,
    };
    let replica_id = ctx.deps.replica.id();
    let recent = &ctx.deps.recent_nodes;
    let disconnected = match (selection.state, selection.behind) {
        (Some(StateFilter::Disconnected), _) => {
            recent.update(&ctx.deps.fanout).await;
            recent.disconnected(replica_id, limit, |id| selection.has(id))
        }
        // All connected nodes up to the last ID are in the page, so the others have no stream.
        (None, None) => {
            recent.take_events(&ctx.deps.fanout);
            recent.note(by_id.values().flatten().map(|stream| &*stream.node));
            let end = by_id.keys().nth(limit - 1).map(String::as_str);
            let is_absent = |id: &str| selection.has(id) && !by_id.contains_key(id);
            recent.absent(replica_id, limit, (&selection.after, end), is_absent)
        }
        _ => Vec::new(),
    };
    let last = by_id.keys().nth(limit - 1).into_iter();
    let next = last.chain(disconnected.get(limit - 1).map(|node| &node.id)).min();
    let next = next.cloned().unwrap_or_default();
    let nodes = by_id.into_values().map(|streams| {
        let streams: Vec<&StreamStatus> = streams.iter().collect();
        show_node(replica_id, &streams)
    });
    Ok(bounded(nodes, disconnected, next, PAGE_BYTES_MAX))
}

/// Returns the page with the first of these nodes, in about `bytes_max` bytes, but with at least one. The others follow in
/// the next page. `next` ends the page if all of them fit.
fn bounded(
    nodes: impl Iterator<Item = pb::NodeStatus>,
    disconnected: Vec<pb::DisconnectedNode>,
    next: String,
    bytes_max: usize,
) -> pb::ListNodesResponse {
    let mut page = pb::ListNodesResponse { next, replicas: 1, ..Default::default() };
    let mut space = Space { n_bytes: bytes_max, last: String::new() };
    let (mut nodes, mut lost) = (nodes, disconnected.into_iter().peekable());
    let is_whole = nodes.all(|node| {
        while let Some(one) = lost.next_if(|one| one.id < node.id) {
            if !space.holds(&one.id, &one) {
                return false;
            }
            page.disconnected.push(one);
        }
        let holds = space.holds(&node.id, &node);
        page.nodes.extend(holds.then_some(node));
        holds
    });
    let is_whole = is_whole
        && lost.all(|one| {
            let holds = space.holds(&one.id, &one);
            page.disconnected.extend(holds.then_some(one));
            holds
        });
    if !is_whole {
        page.next = space.last;
    }
    page
}

/// The remaining space of a page, and its last ID.
struct Space {
    n_bytes: usize,
    last: String,
}

impl Space {
    /// Returns whether a node fits. The first one always does.
    fn holds(&mut self, id: &str, node: &impl Message) -> bool {
        let len = node.encoded_len();
        let left = self.n_bytes.checked_sub(1 + encoded_len_varint(len as u64) + len);
        if left.is_none() && !self.last.is_empty() {
            return false;
        }
        self.n_bytes = left.unwrap_or_default();
        id.clone_into(&mut self.last);
        true
    }
}

/// The streams of nodes by the ID of the node.
type ById = BTreeMap<String, Vec<StreamStatus>>;

/// Returns the streams of the selected nodes with the first IDs. The shards build the status of few others.
async fn first_nodes(ctx: &Ctx, selection: &Selection, limit: usize) -> Result<ById, AdminError> {
    // The greatest ID that still belongs to the first ones; `None` while there is space for any.
    let bound: Arc<Mutex<Option<String>>> = Arc::default();
    let (selected, shared) = (selection.clone(), Arc::clone(&bound));
    let select: SelectStream = Arc::new(move |stream: &LiveStream<'_>| {
        let id = &stream.node.id;
        selected.has(id) && shared.lock().as_ref().is_none_or(|bound| *id <= *bound)
    });
    let mut by_id = ById::new();
    let since = Instant::now();
    let take = |stream: StreamStatus| {
        by_id.entry(stream.node.id.clone()).or_default().push(stream);
        if by_id.len() > limit {
            by_id.pop_last();
        }
        if by_id.len() == limit {
            *bound.lock() = by_id.last_key_value().map(|(id, _)| id.clone());
        }
    };
    ctx.deps.fanout.for_each_stream_of(select, take).await;
    check_answered(ctx, since)?;
    Ok(by_id)
}

/// Returns the streams of the nodes in a state, or behind a revision.
async fn filtered_nodes(
    ctx: &Ctx,
    selection: &Selection,
    limit: usize,
) -> Result<ById, AdminError> {
    let since = Instant::now();
    let progress = match selection.behind {
        None => None,
        Some(revision) => {
            Some(ctx.deps.fanout.settlement(&Arc::new(Change::everything(revision))).await)
        }
    };
    let behind: Option<BTreeSet<&str>> = progress
        .as_ref()
        .map(|progress| progress.unsettled.iter().map(|one| one.node.as_str()).collect());
    // No client of a shard that has not reached the revision can have acknowledged it.
    let is_none_known = progress.as_ref().is_some_and(|progress| progress.is_behind);
    let is_behind = |id: &str, state: NodeState| {
        behind.as_ref().is_none_or(|behind| behind.contains(id))
            || is_none_known && state != NodeState::Unassigned
    };
    let selected = selection.clone();
    let states = node_counts::states(&ctx.deps.fanout, move |node| selected.has(&node.id)).await;
    check_answered(ctx, since)?;
    let is_selected = |(id, state): &(String, NodeState)| {
        selection.state.is_none_or(|filter| filter == StateFilter::Connected(*state))
            && is_behind(id, *state)
    };
    let mut ids: BTreeSet<String> =
        states.into_iter().filter(is_selected).map(|(id, _)| id).collect();
    while ids.len() > limit {
        ids.pop_last();
    }
    let mut by_id = ById::new();
    let select = Arc::new(move |stream: &LiveStream<'_>| ids.contains(&stream.node.id));
    for stream in selected_streams(ctx, select).await? {
        by_id.entry(stream.node.id.clone()).or_default().push(stream);
    }
    Ok(by_id)
}

/// Merges the first nodes of all replicas. The list ends where the list of a replica ends that has more.
fn merge(
    here: pb::ListNodesResponse,
    there: Elsewhere<pb::ListNodesResponse>,
    limit: usize,
) -> pb::ListNodesResponse {
    let (replicas, n_not_asked) = (1 + there.n_answered(), there.n_not_asked);
    let missing = there.not_asked.clone();
    let pages: Vec<pb::ListNodesResponse> =
        [here].into_iter().chain(there.into_replies()).collect();
    let ends = pages.iter().map(|page| page.next.as_str()).filter(|next| !next.is_empty());
    let mut end = ends.min().map(str::to_owned);
    let mut by_id: BTreeMap<String, Vec<pb::NodeStatus>> = BTreeMap::new();
    let mut lost: BTreeMap<String, pb::DisconnectedNode> = BTreeMap::new();
    for page in pages {
        for node in page.nodes {
            by_id.entry(node.id.clone()).or_default().push(node);
        }
        for node in page.disconnected {
            let is_newer = |known: &pb::DisconnectedNode| known.since_ms < node.since_ms;
            if lost.get(&node.id).is_none_or(is_newer) {
                lost.insert(node.id.clone(), node);
            }
        }
    }
    lost.retain(|id, _| !by_id.contains_key(id));
    let ids: BTreeSet<&String> = by_id.keys().chain(lost.keys()).collect();
    let of_limit = ids.iter().nth(limit - 1).filter(|_| ids.len() > limit);
    end = end.into_iter().chain(of_limit.map(|id| (*id).clone())).min();
    if let Some(end) = &end {
        by_id.retain(|id, _| id <= end);
        lost.retain(|id, _| id <= end);
    }
    pb::ListNodesResponse {
        nodes: by_id.into_values().filter_map(merged).collect(),
        replicas_not_asked: n_not_asked,
        not_asked: missing,
        next: end.unwrap_or_default(),
        replicas,
        disconnected: lost.into_values().collect(),
        ..pb::ListNodesResponse::default()
    }
}

impl FleetRequest for pb::ListNodesRequest {
    const NAME: &'static str = "chancery.admin.v1.ListNodesRequest";
    type Reply = pb::ListNodesResponse;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::ListNodesResponse, AdminError> {
        let selection = Selection::parse(&self)?;
        if self.count {
            return count(ctx, pb::ListNodesRequest { local: true, ..self }).await;
        }
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX).clamp(1, LIMIT_MAX);
        page_here(ctx, &selection, limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(ids: &[&str], next: &str) -> pb::ListNodesResponse {
        let node = |id: &&str| pb::NodeStatus { id: (*id).to_owned(), ..Default::default() };
        let (nodes, next) = (ids.iter().map(node).collect(), next.to_owned());
        pb::ListNodesResponse { nodes, next, replicas: 1, ..Default::default() }
    }

    fn merge_with(
        here: pb::ListNodesResponse,
        there: pb::ListNodesResponse,
        limit: usize,
    ) -> (Vec<String>, String) {
        let (replies, not_asked) = (vec![(2, there)], Vec::new());
        let there = Elsewhere { replies, answered: vec![2], not_asked, n_not_asked: 0 };
        let merged = merge(here, there, limit);
        (merged.nodes.into_iter().map(|node| node.id).collect(), merged.next)
    }

    /// A replica with more nodes ends the page, because a later node of it may come before nodes of the others.
    #[test]
    fn page_ends_where_a_replica_has_more_nodes() {
        let (ids, next) = merge_with(page(&["a", "c"], "c"), page(&["b", "z"], ""), 10);
        assert_eq!((ids.join(" ").as_str(), next.as_str()), ("a b c", "c"));
        let (ids, next) = merge_with(page(&["a", "c"], ""), page(&["b", "c"], ""), 10);
        assert_eq!((ids.join(" ").as_str(), next.as_str()), ("a b c", ""));
        let (ids, next) = merge_with(page(&["a", "c"], ""), page(&["b", "c"], ""), 2);
        assert_eq!((ids.join(" ").as_str(), next.as_str()), ("a b", "b"));
    }

    #[test]
    fn every_piece_of_a_page_says_how_complete_the_list_is() {
        let ids: Vec<String> = (0..450).map(|n| format!("n{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let all = pb::ListNodesResponse { replicas_not_asked: 2, ..page(&ids, "x") };
        let pieces: Vec<pb::ListNodesResponse> = pieces(all).collect();
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.nodes.len()).collect();
        assert_eq!(sizes, [200, 200, 50]);
        assert!(pieces.iter().all(|piece| piece.replicas_not_asked == 2 && piece.next == "x"));
        assert_eq!(super::pieces(page(&[], "")).count(), 1);
    }

    /// A page of nodes with long IDs was larger than an answer between replicas may be.
    #[test]
    fn page_of_one_replica_ends_at_its_size() {
        let node = |n: usize| pb::NodeStatus { id: format!("{n:0100}"), ..Default::default() };
        let lost =
            |n: usize| pb::DisconnectedNode { id: format!("{n:0100}"), ..Default::default() };
        let page = |bytes_max| {
            let nodes = [0, 1, 4, 5].into_iter().map(node);
            bounded(nodes, [2, 3, 6].map(lost).into(), "end".to_owned(), bytes_max)
        };
        let of = |page: &pb::ListNodesResponse| {
            (
                page.nodes.len(),
                page.disconnected.len(),
                page.next.trim_start_matches('0').to_owned(),
            )
        };
        assert_eq!(of(&page(1 << 20)), (4, 3, "end".to_owned()));
        assert_eq!(of(&page(320)), (2, 1, "2".to_owned()));
        assert_eq!(of(&page(530)), (3, 2, "4".to_owned()));
        assert_eq!(of(&page(650)), (4, 2, "5".to_owned()));
        // A node that is larger than a page is a page.
        let (n_nodes, n_lost, next) = of(&page(1));
        assert_eq!((n_nodes, n_lost, next.as_str()), (1, 0, ""));
    }
}
