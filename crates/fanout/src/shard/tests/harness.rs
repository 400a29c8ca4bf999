//! A shard without a runtime, and its clients: events in, messages out.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, atomic::AtomicUsize},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{
    AccessOp, AccessRule, Assignment, AssignmentOp, Identity, IdentityPattern, IdentityQuota,
    Incarnation, Node, NodeBinding, NodeMatcher, ResourceDraft, ResourceKey, ResourceName,
    ScopeName, ScopeTemplate, SecretsGrant, State, Template, Transaction, TypeUrl, Upsert,
    Variables,
};
use chancery_proto::discovery::DeltaDiscoveryResponse;
use chancery_protocol::{DeltaRequest, ErrorDetail, Protocol, Request, StreamKind};
use chancery_view::Differ;
use prost::Message as _;
use tokio::{sync::oneshot, time::Instant};

use super::super::{Flow, Now, Service, Shard};
use crate::{
    Change, Config, Delivery, End, ResponseSource, StreamInfo, StreamStatus,
    log_limit::RefusalLog,
    messages::{
        change::{Concerned, QueryPosition},
        event::{Event, Events, Sent},
        page::Page,
        session::{Key, Lane},
        status::Unacknowledged as Lagging,
    },
    metrics::ShardMetrics,
    offload::{Offload, large::LargeWork},
    placement::{Placement, access::IdentityStreams, client_groups::ClientGroups},
    queries::report::{At, status_page},
    replica::{contact::Contact, recent_states::RecentStates},
    sessions::{Sessions, parts::Parts},
    stream::{
        memory::SubscriptionMemory,
        slot::{ReadyList, StreamSlot},
    },
    turn::cost::cost_of_event,
};

/// A shard with its inputs.
pub(super) struct ShardHarness {
    pub(super) shard: Shard,
    pub(super) ready_list: Arc<ReadyList>,
    pub(super) state: Arc<State>,
    /// The shard's inboxes.
    pub(super) events: Events,
    pub(super) client_groups: ClientGroups,
    /// The recent states of the replica. `None` for a replica without them.
    pub(super) recent_states: Option<Arc<RecentStates>>,
    start: Instant,
    pub(super) ms: u64,
}

/// The client's end of a stream.
pub(super) struct Client {
    pub(super) slot: Arc<StreamSlot>,
    responses: ResponseSource,
}

impl ShardHarness {
    pub(super) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(super) fn with(config: Config) -> Self {
        let state = Arc::new(State::new(Incarnation(1)));
        let differ = Arc::new(Differ::new());
        let config = Arc::new(config);
        let refusal_log = Arc::new(RefusalLog::new());
        let recent_states = Arc::new(RecentStates::default());
        let client_groups = ClientGroups::default();
        let placement = Placement::new(
            Arc::clone(&config),
            Arc::clone(&state),
            Arc::clone(&refusal_log),
            IdentityStreams::default(),
            client_groups.clone(),
            Arc::default(),
            Arc::clone(&recent_states),
        );
        let offload = Offload::new(LargeWork::default(), Arc::clone(&differ));
        let parts = Parts {
            protocol: Arc::new(config.session.clone()),
            memory: SubscriptionMemory::new(config.subscriptions_bytes_max),
            contact: Arc::new(Contact::new(config.renewals_stop_after)),
            metrics: ShardMetrics::new(0),
            config,
            differ,
            client_log: Arc::default(),
            refusal_log,
        };
        let shard = Shard::new(Service::new(parts, placement, offload), Arc::default());
        let (events, start) = (Events::default(), Instant::now());
        let recent_states = Some(recent_states);
        let (ready_list, ms) = (Arc::default(), 10_000);
        let harness =
            Self { shard, ready_list, state, events, client_groups, recent_states, start, ms };
        harness.note_state();
        harness
    }

    fn note_state(&self) {
        if let Some(recent_states) = &self.recent_states {
            recent_states.note(&self.state, self.now().instant);
        }
    }

    pub(super) fn now(&self) -> Now {
        Now::since(self.start, self.start + Duration::from_millis(self.ms))
    }

    pub(super) fn parts(&self) -> &Parts {
        self.shard.service.parts()
    }

    pub(super) fn sessions(&self) -> &Sessions {
        self.shard.service.sessions()
    }

    pub(super) fn sessions_mut(&mut self) -> &mut Sessions {
        self.shard.service.sessions_mut()
    }

    pub(super) fn set_config(&mut self, config: Config) {
        self.shard.service.parts_mut().config = Arc::new(config);
    }

    /// Passes an event to the shard.
    pub(super) fn handle(&mut self, event: Event) {
        let now = self.now();
        self.shard.service.handle(event, now);
    }

    /// Returns whether sessions remain to be placed again.
    pub(super) fn is_placing(&self) -> bool {
        self.shard.service.placement().next_of_pass().is_some()
    }

    pub(super) fn status_page(&self, from: Key) -> Page<StreamStatus, Key> {
        let max = self.parts().config.turn_work_max;
        let reached = self.shard.service.reached_revision();
        let at = At { clock_ms: self.now().ms, reached };
        status_page(self.sessions(), &|_| true, from, max, at)
    }

    /// Takes turns until the shard has nothing to do at this time.
    pub(super) fn settle(&mut self) {
        loop {
            if let Flow::Wait(_) = self.turn() {
                return;
            }
        }
    }

    /// Puts an event into its inbox.
    pub(super) fn post(&mut self, event: Event) {
        let lane =
            event.slot().map_or(Lane::Updates, |slot| slot.add_waiting(cost_of_event(&event, 1)));
        match lane {
            Lane::Updates => self.events.updates.push_back(Sent::now(event)),
            Lane::Bulk => self.events.bulk.push_back(Sent::now(event)),
        }
    }

    /// Returns the number of waiting events.
    pub(super) fn n_events(&self) -> usize {
        self.events.updates.len() + self.events.bulk.len()
    }

    /// Takes one turn like the shard's own loop.
    pub(super) fn turn(&mut self) -> Flow {
        let now = self.now();
        self.shard.on_state(&self.state, now);
        self.shard.on_events(&mut self.events, now);
        self.shard.on_calls(&self.ready_list, now);
        self.shard.service.on_back(&self.ready_list, now);
        match self.shard.turn(now) {
            Flow::Wait(_) if !self.events.is_empty() => Flow::Again,
            flow => flow,
        }
    }

    pub(super) fn apply(&mut self, transaction: &Transaction) {
        self.state = Arc::new(self.state.apply(transaction).state);
        self.note_state();
        self.shard.on_state(&self.state, self.now());
    }

    pub(super) fn put(&mut self, in_scope: &str, type_url: &str, resources: &[(&str, &str)]) {
        let upserts = resources.iter().map(|(name, body)| Upsert {
            scope: scope(in_scope),
            draft: ResourceDraft::new(
                key_of(type_url, name),
                Bytes::copy_from_slice(body.as_bytes()),
            ),
        });
        self.apply(&Transaction { upserts: upserts.collect(), ..Transaction::default() });
    }

    pub(super) fn assign(&mut self, name: &str, node: &str, scopes: &[&str]) {
        let scopes = scopes.iter().map(|scope| ScopeTemplate::parse(scope).unwrap()).collect();
        let matcher =
            NodeMatcher { id: Some(chancery_model::Glob::new(node)), ..NodeMatcher::default() };
        let assignment = Assignment { name: name.into(), priority: 1, matcher, scopes };
        self.apply(&Transaction {
            assignments: vec![AssignmentOp::Put(assignment)],
            ..Transaction::default()
        });
    }

    pub(super) fn open(&mut self) -> Client {
        self.open_as(None)
    }

    /// Opens a stream of a client with this identity.
    pub(super) fn open_as(&mut self, identity: Option<Arc<Identity>>) -> Client {
        self.open_stream(StreamKind { protocol: Protocol::Delta, type_url: None }, identity)
    }

    pub(super) fn open_stream(
        &mut self,
        kind: StreamKind,
        identity: Option<Arc<Identity>>,
    ) -> Client {
        self.ready_list.load.store(0, std::sync::atomic::Ordering::Relaxed);
        let info = StreamInfo { kind, peer: ([127, 0, 0, 1], 1).into(), identity };
        let slot = StreamSlot::new(info, Arc::clone(&self.ready_list));
        let responses = ResponseSource::new(Arc::clone(&slot), Arc::new(AtomicUsize::new(1)));
        Client { slot, responses }
    }

    pub(super) fn request(client: &Client, node: Option<&str>, request: DeltaRequest) -> Event {
        let node = node.map(|id| Arc::new(Node { id: id.into(), ..Node::default() }));
        let slot = Arc::clone(&client.slot);
        Event::Request { slot, request: Request::Delta(request), node, permit: None }
    }

    pub(super) fn send(&mut self, client: &Client, node: Option<&str>, request: DeltaRequest) {
        self.handle(Self::request(client, node, request));
    }

    /// Opens a stream that subscribes to `names` of a type, or to all names if `names` is empty.
    pub(super) fn subscribe(&mut self, node: &str, type_url: &str, names: &[&str]) -> Client {
        let client = self.open();
        let subscribe = names.iter().map(|name| (*name).to_owned()).collect();
        let type_url = type_url.to_owned();
        self.send(
            &client,
            Some(node),
            DeltaRequest { type_url, subscribe, ..DeltaRequest::default() },
        );
        client
    }

    pub(super) fn ack(&mut self, client: &Client, response: &DeltaDiscoveryResponse) {
        self.send(client, None, answer(response, None));
    }

    pub(super) fn nack(
        &mut self,
        client: &Client,
        response: &DeltaDiscoveryResponse,
        message: &str,
    ) {
        let error = ErrorDetail { code: 13, message: message.to_owned() };
        self.send(client, None, answer(response, Some(error)));
    }

    /// Returns all responses that the client receives at this time.
    pub(super) fn read(&mut self, client: &mut Client) -> Vec<DeltaDiscoveryResponse> {
        let mut all = Vec::new();
        loop {
            self.settle();
            match client.poll() {
                Poll::Ready(Delivery::Message(message)) => all.push(decode(message)),
                Poll::Ready(Delivery::End(end)) => panic!("the stream has ended: {end:?}"),
                Poll::Pending if self.ready_list_is_empty() => return all,
                Poll::Pending => {}
            }
        }
    }

    pub(super) fn ready_list_is_empty(&self) -> bool {
        let mut calls = VecDeque::new();
        self.ready_list.swap(&mut calls);
        let empty = calls.is_empty();
        for slot in calls {
            self.ready_list.push(slot);
        }
        empty
    }

    pub(super) fn unsettled(&mut self) -> Vec<Lagging> {
        let (pages, _) = self.concerned(&Change::anything(self.state.revision));
        let behind: Vec<_> = pages.iter().filter_map(|page| page.behind).collect();
        let sessions = pages.into_iter().flat_map(|page| page.items);
        sessions
            .flat_map(|one| one.unsettled)
            .chain(behind.into_iter().map(Lagging::behind))
            .collect()
    }

    /// Returns the answers about the sessions that a change concerns, page by page, and their nodes.
    pub(super) fn concerned(
        &mut self,
        change: &Change,
    ) -> (Vec<Page<Concerned, QueryPosition>>, BTreeSet<String>) {
        let change = Arc::new(change.clone());
        let (mut pages, mut next) = (Vec::new(), Some(QueryPosition::default()));
        while let Some(from) = next {
            let (reply, mut answer) = oneshot::channel();
            let change = Arc::clone(&change);
            self.handle(Event::Concerned { change, from, reply });
            let page = answer.try_recv().unwrap();
            next = page.next;
            pages.push(page);
        }
        let nodes = pages.iter().flat_map(|page| &page.items).map(|one| one.node.id.clone());
        let nodes = nodes.collect();
        (pages, nodes)
    }
}

impl Client {
    pub(super) fn poll(&mut self) -> Poll<Delivery> {
        self.responses.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns the waiting response, if there is one.
    pub(super) fn take(&mut self) -> Option<DeltaDiscoveryResponse> {
        match self.poll() {
            Poll::Ready(Delivery::Message(message)) => Some(decode(message)),
            Poll::Ready(Delivery::End(end)) => panic!("the stream has ended: {end:?}"),
            Poll::Pending => None,
        }
    }

    pub(super) fn end(&mut self) -> End {
        loop {
            match self.poll() {
                Poll::Ready(Delivery::Message(_)) => {}
                Poll::Ready(Delivery::End(end)) => return end,
                Poll::Pending => panic!("the stream has not ended"),
            }
        }
    }
}

pub(super) fn decode(message: chancery_protocol::Message) -> DeltaDiscoveryResponse {
    let bytes: Vec<u8> = message.flat_map(|chunk| chunk.to_vec()).collect();
    DeltaDiscoveryResponse::decode(&bytes[..]).unwrap()
}

pub(super) fn answer(
    response: &DeltaDiscoveryResponse,
    error_detail: Option<ErrorDetail>,
) -> DeltaRequest {
    DeltaRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        error_detail,
        ..DeltaRequest::default()
    }
}

/// Returns a rule that lets an identity receive a scope.
pub(super) fn access_rule(name: &str, identity: &str, scope: &str) -> AccessRule {
    let identities = vec![IdentityPattern::parse(identity).unwrap()];
    let variables = Variables { identities: &identities, node: false };
    let read = vec![Template::parse(scope, variables).unwrap()];
    AccessRule {
        name: name.into(),
        identities,
        refuse: false,
        node: NodeBinding::default(),
        read,
        secrets: SecretsGrant::default(),
        allow: Vec::new(),
        deny: Vec::new(),
        quota: IdentityQuota::default(),
    }
}

pub(super) fn access_change(ops: Vec<AccessOp>) -> Transaction {
    Transaction { access: ops, ..Transaction::default() }
}

pub(super) fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

pub(super) fn key_of(type_url: &str, name: &str) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::new(type_url).unwrap(),
        name: ResourceName::new(name).unwrap(),
    }
}

/// Formats the resources of all responses as `a=1 b=2`, sorted. Removed resources have a `-`.
pub(super) fn text(responses: &[DeltaDiscoveryResponse]) -> String {
    let all = responses.iter().flat_map(|response| &response.resources).map(|resource| {
        let body = resource.resource.as_ref().map(|any| any.value.clone()).unwrap_or_default();
        format!("{}={}", resource.name, String::from_utf8_lossy(&body))
    });
    let mut all: Vec<String> = all.collect();
    all.extend(responses.iter().flat_map(|r| &r.removed_resources).map(|name| format!("-{name}")));
    all.sort();
    all.join(" ")
}
