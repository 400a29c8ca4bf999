//! The handle to the shards.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use chancery_model::{Access, Identity, Node, ResourceName, Revision, State, TypeUrl};
use chancery_view::Differ;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    AccessControl, Change, ClientGroup, ConcernedSession, Config, DrainOrders, End, EndCode,
    Progress, RequestSink, ResponseSource, SelectStream, StalledShard, StreamContents, StreamInfo,
    StreamRef, StreamStatus, Unacknowledged,
    log_limit::RefusalLog,
    messages::{
        change::Concerned,
        client_events::ClientEvent,
        client_log::{ClientLog, LoggedEvents},
        event::{Event, SelectStreams, Sent},
        page::Page,
    },
    metrics::{self, ShardMetrics, limit_hit},
    offload::{Offload, large::LargeWork},
    placement::{
        Placement,
        access::{IdentityStreams, PollAccess},
        client_groups::ClientGroups,
        resume_cache::ResumeCache,
    },
    poll::{
        HeldPolls, Poll,
        rejections::{PollRejection, PollRejections},
    },
    replica::{
        arrivals::Arrivals,
        contact::Contact,
        critical::CriticalTasks,
        freshness::{AlwaysFresh, Fresh, ReadFreshness},
        recent_states::RecentStates,
    },
    sessions::{parts::Parts, service::Service},
    shard::{Inputs, Shard, ShardEnd, Streams},
    stream::{
        handles::Inboxes,
        memory::SubscriptionMemory,
        slot::{ReadyList, StreamSlot},
    },
    turn::turns::Turns,
};

/// The shards that serve all streams of a replica. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fanout {
    shared: Arc<Shared>,
    contact: Arc<Contact>,
    tasks: CriticalTasks,
    cancel: CancellationToken,
    /// The time at which the protocol's clock is 0.
    start: Instant,
    freshness: ReadFreshness,
    drain_orders: DrainOrders,
}

#[derive(Debug)]
struct Shared {
    shards: Vec<ShardHandle>,
    streams: Streams,
    streams_max: usize,
    held_polls: Arc<HeldPolls>,
    poll_rejections: PollRejections,
    client_log: Arc<ClientLog>,
    client_groups: ClientGroups,
    control_plane: String,
    protocol: Arc<chancery_protocol::Config>,
    access: Arc<PollAccess>,
}

#[derive(Debug)]
struct ShardHandle {
    inboxes: Inboxes,
    ready_list: Arc<ReadyList>,
}

/// The reason why a stream was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The replica already serves the maximum number of streams (OPS-11).
    #[error("this replica already serves {max} streams, the maximum (streams_max)")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// All shards have ended because of a defect. Only a restart of the replica brings them back.
    #[error(
        "this replica cannot serve streams: its {n_shards} shards have ended because of a defect; connect to another \
         replica, and restart this one"
    )]
    NoShard {
        /// The number of shards.
        n_shards: usize,
    },
}

impl From<OpenError> for End {
    fn from(error: OpenError) -> Self {
        let code = match error {
            OpenError::TooMany { .. } => EndCode::ResourceExhausted,
            OpenError::NoShard { .. } => EndCode::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

/// The places of streams that delayed refusals may take: half of all, so that the other half is left to streams.
#[derive(Debug, Clone)]
pub struct RefusalPlaces {
    streams: Streams,
    max: usize,
}

/// The place of a stream. Dropping it frees the place.
#[derive(Debug)]
pub struct StreamPlace(Streams);

impl RefusalPlaces {
    fn new(streams: Streams, streams_max: usize) -> Self {
        Self { streams, max: streams_max / 2 }
    }

    /// Returns the places of a replica without streams that may have `streams_max`, for tests of a connection.
    #[must_use]
    pub fn without_streams(streams_max: usize) -> Self {
        Self::new(Streams::default(), streams_max)
    }

    /// Returns whether less than half of the places are taken. A refused stream keeps its place only then.
    #[must_use]
    pub fn are_free(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < self.max
    }

    /// Takes the place of a stream for a refusal that its client receives later. Returns `None` if half of the places
    /// are taken.
    #[must_use]
    pub fn take(&self) -> Option<StreamPlace> {
        if !self.are_free() {
            return None;
        }
        self.streams.fetch_add(1, Ordering::Relaxed);
        Some(StreamPlace(Arc::clone(&self.streams)))
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Fanout {
    /// Starts the shards. They follow `state` until `cancel`. `state` must already hold a state that
    /// may be served (OPS-04).
    #[must_use]
    pub fn spawn(
        config: Config,
        state: watch::Receiver<Arc<State>>,
        tracker: &TaskTracker,
        cancel: CancellationToken,
    ) -> Self {
        metrics::register();
        let config = Arc::new(config);
        let differ = Arc::new(Differ::new());
        let protocol = Arc::new(config.session.clone());
        let start = Instant::now();
        let arrivals = Arc::new(Arrivals::default());
        let resume_cache = Arc::new(ResumeCache::default());
        let recent_states = RecentStates::follow(state.clone(), tracker, cancel.clone());
        let large = LargeWork::default();
        let memory = SubscriptionMemory::new(config.subscriptions_bytes_max);
        let contact = Arc::new(Contact::new(config.renewals_stop_after));
        let identity_streams = IdentityStreams::default();
        let client_groups = ClientGroups::default();
        let refusal_log = Arc::new(RefusalLog::new());
        let client_log = Arc::new(ClientLog::default());
        // Nobody watches this task: without it, only the metric of the delay lacks values.
        tracker.spawn(Arc::clone(&arrivals).watch(state.clone(), cancel.clone()));
        let tasks = CriticalTasks::new(tracker.clone());
        let held_polls = HeldPolls::new();
        let follow =
            Arc::clone(&held_polls).follow(state.clone(), Arc::clone(&differ), cancel.clone());
        tasks.spawn("the task that wakes REST polls", follow);
        let shards = (0..config.n_shards()).map(|n| {
            let (handle, inputs) = ShardHandle::open(n, config.inbox_events, state.clone(), start);
            let now = Arc::clone(&state.borrow());
            let placement = Placement::new(
                Arc::clone(&config),
                now,
                Arc::clone(&refusal_log),
                identity_streams.clone(),
                client_groups.clone(),
                Arc::clone(&resume_cache),
                Arc::clone(&recent_states),
            );
            let offload = Offload::new(large.clone(), Arc::clone(&differ));
            let parts = Parts {
                config: Arc::clone(&config),
                protocol: Arc::clone(&protocol),
                differ: Arc::clone(&differ),
                memory: Arc::clone(&memory),
                contact: Arc::clone(&contact),
                metrics: ShardMetrics::new(n),
                refusal_log: Arc::clone(&refusal_log),
                client_log: Arc::clone(&client_log),
            };
            let shard = Shard::new(Service::new(parts, placement, offload), Arc::clone(&arrivals));
            // `ShardEnd` reports a panic.
            tracker.spawn(shard.run(inputs, cancel.clone()));
            handle
        });
        let shards = shards.collect();
        let streams = Streams::default();
        let streams_max = config.streams_max;
        let control_plane = config.control_plane.clone();
        let access = Arc::new(PollAccess::new(config.access, config.observer.clone(), refusal_log));
        let poll_rejections = PollRejections::default();
        let shared = Shared {
            shards,
            streams,
            streams_max,
            held_polls,
            poll_rejections,
            client_log,
            client_groups,
            control_plane,
            protocol,
            access,
        };
        let shared = Arc::new(shared);
        let freshness = ReadFreshness::new(Arc::new(AlwaysFresh), state);
        let drain_orders = DrainOrders::default();
        Self { shared, contact, tasks, cancel, start, freshness, drain_orders }
    }

    /// Returns the same shards with a check for a replicated state. New streams wait until `fresh`
    /// confirms that the local copy is current. Lifetimes are renewed only while it does (TTL-11).
    #[must_use]
    pub fn with_fresh(self, fresh: Arc<dyn Fresh>) -> Self {
        let contact = Arc::clone(&self.contact);
        let watch = contact.watch(Arc::clone(&fresh), self.start, self.cancel.clone());
        self.tasks.spawn("the check of the contact with the cluster", watch);
        Self { freshness: self.freshness.of(fresh), ..self }
    }

    /// Waits until a task panics that the streams or polls need, and that is no shard. Returns its name, with an article.
    /// The replica should end, because it looks healthy.
    pub async fn until_task_failed(&self) -> &'static str {
        self.tasks.until_failed().await
    }

    /// Opens a stream on the shard with the fewest streams, of those that have not stalled. The first request opens
    /// its session.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, info: StreamInfo) -> Result<(RequestSink, ResponseSource), OpenError> {
        let Shared { shards, streams, .. } = &*self.shared;
        // A stalled shard may turn again, an ended one never does.
        let running = shards.iter().filter(|shard| !shard.ready_list.turns.has_ended());
        let shard = running
            .min_by_key(|shard| (shard.ready_list.turns.is_stalled(), shard.n_streams()))
            .ok_or(OpenError::NoShard { n_shards: shards.len() })?;
        self.admit()?;
        let slot = StreamSlot::new(info, Arc::clone(&shard.ready_list));
        let responses = ResponseSource::new(Arc::clone(&slot), Arc::clone(streams));
        let log = Arc::clone(&self.shared.access.log);
        let sink = RequestSink::new(slot, shard.inboxes.clone(), self.freshness.clone(), log);
        Ok((sink, responses))
    }

    /// Opens a poll, which counts as a stream while it runs.
    ///
    /// # Errors
    /// Returns [`OpenError::TooMany`] if the replica already has the maximum number of streams.
    pub fn open_poll(&self, peer: SocketAddr) -> Result<Poll, OpenError> {
        self.admit()?;
        let Shared { streams, held_polls, poll_rejections, protocol, access, .. } = &*self.shared;
        let (freshness, held) = (self.freshness.clone(), Arc::clone(held_polls));
        let rejections = poll_rejections.clone();
        let protocol = Arc::clone(protocol);
        Ok(Poll::new(
            Arc::clone(streams),
            freshness,
            held,
            rejections,
            protocol,
            Arc::clone(access),
            peer,
        ))
    }

    /// Returns the newest rejections that REST clients have reported.
    #[must_use]
    pub fn poll_rejections(&self) -> Vec<PollRejection> {
        self.shared.poll_rejections.list()
    }

    /// Returns whether access rules apply to clients.
    #[must_use]
    pub fn access_control(&self) -> AccessControl {
        self.shared.access.control
    }

    /// Returns the newest access rules.
    #[must_use]
    pub fn access(&self) -> Arc<Access> {
        Arc::clone(&self.freshness.state().borrow().access)
    }

    /// Checks whether the node of an identity may receive its configuration.
    ///
    /// # Errors
    /// Returns the end for a client that the access rules refuse.
    pub fn check_access(
        &self,
        identity: &Identity,
        node: &Node,
        peer: SocketAddr,
    ) -> Result<(), End> {
        let state = Arc::clone(&self.freshness.state().borrow());
        self.shared.access.authorize(&state, identity, node, peer).map(drop)
    }

    /// Passes on an event of a client.
    pub fn observe(&self, event: ClientEvent<'_>) {
        self.shared.access.observer.observe(event);
    }

    /// Logs that a stream or a poll is refused. `node` is empty if it is unknown. A client gets one warning per minute.
    pub fn log_refusal(&self, node: &str, peer: SocketAddr, error: &str) {
        self.shared.access.log.log(node, peer, error);
    }

    /// Returns the places of streams that delayed refusals may take.
    #[must_use]
    pub fn refusal_places(&self) -> RefusalPlaces {
        RefusalPlaces::new(Arc::clone(&self.shared.streams), self.shared.streams_max)
    }

    /// Returns the identifier of this replica in responses.
    #[must_use]
    pub fn control_plane(&self) -> &str {
        &self.shared.control_plane
    }

    /// Returns whether responses report names that do not exist (ERR-14).
    #[must_use]
    pub fn sends_resource_errors(&self) -> bool {
        self.shared.protocol.resource_errors
    }

    /// Counts a further stream, if there may be one.
    fn admit(&self) -> Result<(), OpenError> {
        let Shared { streams, streams_max, .. } = &*self.shared;
        if streams.fetch_add(1, Ordering::Relaxed) >= *streams_max {
            streams.fetch_sub(1, Ordering::Relaxed);
            limit_hit("streams");
            return Err(OpenError::TooMany { max: *streams_max });
        }
        Ok(())
    }

    /// Returns the number of open streams and running polls, including streams without a request.
    #[must_use]
    pub fn n_streams(&self) -> usize {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// Returns the order of an operator to drain this replica.
    #[must_use]
    pub fn drain_orders(&self) -> &DrainOrders {
        &self.drain_orders
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn n_shards(&self) -> usize {
        self.shared.shards.len()
    }

    /// Wakes a shard, and returns when it has ended a turn. Waits forever if the shard has ended. A shard that takes
    /// five seconds has stalled.
    pub async fn turn(&self, shard: usize) {
        let Some(shard) = self.shared.shards.get(shard) else { return };
        shard.ready_list.turns.next(|| shard.ready_list.notify.notify_one()).await;
    }

    /// Returns the shards that have stalled. Queries leave them out.
    #[must_use]
    pub fn stalled(&self) -> Vec<StalledShard> {
        self.find_stalled(Turns::is_stalled)
    }

    /// Returns the shards that have stalled, or were found stalled since an earlier time. Queries since then may have
    /// left them out.
    #[must_use]
    pub fn stalled_since(&self, since: Instant) -> Vec<StalledShard> {
        self.find_stalled(|turns| turns.has_stalled_since(since))
    }

    fn find_stalled(&self, is_stalled: impl Fn(&Turns) -> bool) -> Vec<StalledShard> {
        let shards = self.shared.shards.iter().enumerate();
        let stalled = shards.filter(|(_, shard)| is_stalled(&shard.ready_list.turns));
        stalled.map(|(n, shard)| shard.stalled(n)).collect()
    }

    /// Returns the newest events of clients after a number, at most `max`. Numbers begin with 1 when the replica starts.
    #[must_use]
    pub fn client_events(&self, after: u64, max: usize) -> LoggedEvents {
        self.shared.client_log.after(after, max)
    }

    /// Returns the status of every stream. The shards answer at slightly different times.
    pub async fn nodes(&self) -> Vec<StreamStatus> {
        self.streams_of(SelectStreams::all().0).await
    }

    /// Returns the status of the selected streams. The shards answer at slightly different times.
    pub async fn streams_of(&self, select: SelectStream) -> Vec<StreamStatus> {
        let mut streams = Vec::new();
        self.for_each_stream_of(select, |stream| streams.push(stream)).await;
        streams
    }

    /// Passes the status of every stream to `take`. The shards answer at slightly different times.
    pub async fn for_each_stream(&self, take: impl FnMut(StreamStatus)) {
        self.for_each_stream_of(SelectStreams::all().0, take).await;
    }

    /// Passes the status of each selected stream to `take`. The shards answer at slightly different times.
    pub async fn for_each_stream_of(
        &self,
        select: SelectStream,
        mut take: impl FnMut(StreamStatus),
    ) {
        let select = SelectStreams(select);
        let event = |from, reply| Event::Status { select: select.clone(), from, reply };
        drop(self.ask(event, |page| page.items.into_iter().for_each(&mut take)).await);
    }

    /// Returns a number that changes with the answer of [`Fanout::clients`], and the number of groups, in O(1).
    #[must_use]
    pub fn clients_version(&self) -> (u64, usize) {
        self.shared.client_groups.version()
    }

    /// Returns the groups of the clients of all streams in any order, each with the number of its streams, and their
    /// version. Asks no shard. The version does not change with the numbers.
    #[must_use]
    pub fn clients(&self) -> (u64, Vec<(Arc<ClientGroup>, u64)>) {
        self.shared.client_groups.list()
    }

    /// Returns one page of the resources of one type of a stream, after the name `after`. `None` if
    /// the stream has ended or does not have the type. A page takes a bounded part of a shard's turn.
    pub async fn contents(
        &self,
        stream: &StreamRef,
        type_url: &TypeUrl,
        after: Option<ResourceName>,
    ) -> Option<StreamContents> {
        let slot = &stream.0;
        let is_own = |shard: &&ShardHandle| Arc::ptr_eq(&shard.ready_list, slot.ready_list());
        let shard = self.shared.shards.iter().find(is_own)?;
        let (reply, answer) = oneshot::channel();
        let (slot, type_url) = (Arc::clone(slot), type_url.clone());
        let event = Event::Contents { slot, type_url, after, reply };
        shard.ask(event, answer).await.flatten()
    }

    /// Returns the streams that have not acknowledged `revision`. A shard that has not reached the
    /// revision counts as one.
    pub async fn unsettled(&self, revision: Revision) -> Vec<Unacknowledged> {
        self.settlement(&Arc::new(Change::anything(revision))).await.unsettled
    }

    /// Returns the progress of the sessions that `change` concerns. A shard that has not reached its
    /// revision, or has stalled, counts as unsettled.
    pub async fn settlement(&self, change: &Arc<Change>) -> Progress {
        let mut settlement = Progress::default();
        let mut known = HashSet::new();
        let event = |from, reply| Event::Concerned { change: Arc::clone(change), from, reply };
        let unasked = self.ask(event, |page| {
            settlement.is_behind |= page.behind.is_some();
            settlement.unsettled.extend(page.behind.map(Unacknowledged::behind));
            for Concerned { id, node, unsettled } in page.items {
                let asked = ConcernedSession { node, has_acknowledged: true };
                settlement.asked.entry(id).or_insert(asked).has_acknowledged &=
                    unsettled.is_empty();
                let is_new = |one: &Unacknowledged| known.insert((id, one.type_url.clone()));
                settlement.unsettled.extend(unsettled.into_iter().filter(is_new));
            }
        });
        let unasked = unasked.await;
        for shard in unasked {
            settlement.is_behind = true;
            settlement.unsettled.push(Unacknowledged::stalled(shard));
        }
        settlement
    }

    /// Queries all shards, page by page. Each page takes a bounded part of a turn. Returns the shards that have
    /// stalled, which did not answer or not completely.
    async fn ask<T, C: Copy + Default>(
        &self,
        event: impl Fn(C, oneshot::Sender<Page<T, C>>) -> Event,
        mut take: impl FnMut(Page<T, C>),
    ) -> Vec<StalledShard> {
        let mut stalled = Vec::new();
        for (n, shard) in self.shared.shards.iter().enumerate() {
            let mut from = Some(C::default());
            while let Some(position) = from {
                let (reply, answer) = oneshot::channel();
                match shard.ask(event(position, reply), answer).await {
                    Some(Some(page)) => {
                        from = page.next;
                        take(page);
                    }
                    // A shard that stops meanwhile has no streams.
                    Some(None) => break,
                    None => {
                        stalled.push(shard.stalled(n));
                        break;
                    }
                }
            }
        }
        stalled
    }
}

impl ShardHandle {
    /// Opens the inboxes of shard number `n`. Returns its ends of them, too.
    fn open(
        n: usize,
        inbox_events: usize,
        state: watch::Receiver<Arc<State>>,
        start: Instant,
    ) -> (Self, Inputs) {
        let (updates, inbox) = mpsc::channel(inbox_events);
        let (bulk, bulk_inbox) = mpsc::channel(inbox_events);
        let ready_list = Arc::new(ReadyList::default());
        let inputs = Inputs {
            _end: ShardEnd::new(n, Arc::clone(&ready_list)),
            inbox,
            bulk_inbox,
            ready_list: Arc::clone(&ready_list),
            state,
            start,
        };
        (Self { inboxes: Inboxes { updates, bulk }, ready_list }, inputs)
    }

    fn n_streams(&self) -> usize {
        self.ready_list.load.load(Ordering::Relaxed)
    }

    /// Returns the description of this shard, number `n`, which has stalled.
    fn stalled(&self, n: usize) -> StalledShard {
        let has_ended = self.ready_list.turns.has_ended();
        StalledShard { shard: n, n_streams: self.n_streams(), has_ended }
    }

    /// Sends a query, and waits for its answer. Returns `None` if the shard has stalled, and `Some(None)` if it drops
    /// the query.
    async fn ask<T>(&self, event: Event, answer: oneshot::Receiver<T>) -> Option<Option<T>> {
        let asked = async {
            self.inboxes.updates.send(Sent::now(event)).await.ok()?;
            answer.await.ok()
        };
        self.ready_list.turns.answer(asked).await
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::Incarnation;
    use chancery_protocol::{Protocol, StreamKind};

    use super::*;

    fn open(fanout: &Fanout) -> Result<(RequestSink, ResponseSource), OpenError> {
        let kind = StreamKind { protocol: Protocol::Delta, type_url: None };
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        fanout.open(StreamInfo { kind, peer, identity: None })
    }

    /// OPS-11: an ended shard gets no stream, and a stalled one only if all others have ended. The refused stream takes
    /// no place.
    #[tokio::test]
    async fn stream_is_refused_as_unavailable_when_all_shards_have_ended() {
        for n_shards in [1, 3] {
            let config = Config { shards: n_shards, ..Config::default() };
            let (_states, state) = watch::channel(Arc::new(State::new(Incarnation(1))));
            let cancel = CancellationToken::new();
            let fanout = Fanout::spawn(config, state, &TaskTracker::new(), cancel.clone());
            let shards = &fanout.shared.shards;
            for (n, shard) in shards.iter().enumerate() {
                let (_sink, _responses) = open(&fanout).unwrap();
                assert_eq!(shards[..n].iter().map(ShardHandle::n_streams).sum::<usize>(), 0);
                shard.ready_list.turns.on_task_end();
            }
            let error = open(&fanout).unwrap_err();
            assert_eq!(error, OpenError::NoShard { n_shards });
            assert_eq!(fanout.n_streams(), 0);
            assert_eq!(End::from(error).code, EndCode::Unavailable);
            cancel.cancel();
        }
    }
}
