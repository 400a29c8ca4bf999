//! A shard without a runtime: events in, messages out.

use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use chancery_model::{
    Assignment, AssignmentOp, Incarnation, NodeMatcher, ResourceDraft, ResourceKey, ResourceName,
    ScopeName, ScopeTemplate, Transaction, TypeUrl, Upsert,
    types::{CLUSTER, ENDPOINT},
};
use chancery_proto::discovery::DeltaDiscoveryResponse;
use chancery_protocol::{DeltaRequest, ErrorDetail, Protocol, StreamKind};
use prost::Message as _;

use super::*;
use crate::{
    Delivery, End, EndCode, Outlet, StreamInfo, UnsettledState, status::Unsettled as Lagging,
};

/// A shard with its surroundings.
struct Desk {
    shard: Shard,
    mailbox: Arc<Mailbox>,
    state: Arc<State>,
    start: Instant,
    ms: u64,
}

/// A client's end of a stream.
struct Client {
    line: Arc<Line>,
    outlet: Outlet,
}

impl Desk {
    fn new() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let state = Arc::new(State::new(Incarnation(1)));
        let differ = Arc::new(Differ::new());
        let shard = Shard::new(Arc::new(config), Arc::clone(&state), differ, 0);
        Self { shard, mailbox: Arc::default(), state, start: Instant::now(), ms: 10_000 }
    }

    fn now(&self) -> Now {
        Now::since(self.start, self.start + Duration::from_millis(self.ms))
    }

    /// Lets the shard do all that it can do at this time.
    fn settle(&mut self) {
        loop {
            self.shard.on_calls(&self.mailbox);
            if let Flow::Wait(_) = self.shard.turn(self.now()) {
                return;
            }
        }
    }

    fn apply(&mut self, transaction: &Transaction) {
        self.state = Arc::new(self.state.apply(transaction).state);
        self.shard.on_state(Arc::clone(&self.state), self.now());
    }

    fn put(&mut self, in_scope: &str, type_url: &str, resources: &[(&str, &str)]) {
        let upserts = resources.iter().map(|(name, body)| Upsert {
            scope: scope(in_scope),
            draft: ResourceDraft::new(
                key_of(type_url, name),
                Bytes::copy_from_slice(body.as_bytes()),
            ),
        });
        self.apply(&Transaction { upserts: upserts.collect(), ..Transaction::default() });
    }

    fn assign(&mut self, name: &str, node: &str, scopes: &[&str]) {
        let scopes = scopes.iter().map(|scope| ScopeTemplate::parse(scope).unwrap()).collect();
        let matcher =
            NodeMatcher { id: Some(chancery_model::Glob::new(node)), ..NodeMatcher::default() };
        let assignment = Assignment { name: name.into(), priority: 1, matcher, scopes };
        self.apply(&Transaction {
            assignments: vec![AssignmentOp::Put(assignment)],
            ..Transaction::default()
        });
    }

    fn open(&mut self) -> Client {
        self.mailbox.load.store(0, std::sync::atomic::Ordering::Relaxed);
        let kind = StreamKind { protocol: Protocol::Delta, type_url: None };
        let info = StreamInfo { kind, peer: ([127, 0, 0, 1], 1).into() };
        let line = Line::new(info, Arc::clone(&self.mailbox));
        let outlet = Outlet::new(Arc::clone(&line), Arc::new(AtomicUsize::new(1)));
        Client { line, outlet }
    }

    fn send(&mut self, client: &Client, node: Option<&str>, request: DeltaRequest) {
        let node = node.map(|id| Arc::new(Node { id: id.into(), ..Node::default() }));
        let line = Arc::clone(&client.line);
        let event = Event::Request { line, request: Request::Delta(request), node, room: None };
        self.shard.handle(event, self.now());
    }

    /// Opens a stream that asks for `names` of a type, or for all of it.
    fn subscribe(&mut self, node: &str, type_url: &str, names: &[&str]) -> Client {
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

    fn ack(&mut self, client: &Client, response: &DeltaDiscoveryResponse) {
        self.send(client, None, answer(response, None));
    }

    fn nack(&mut self, client: &Client, response: &DeltaDiscoveryResponse, message: &str) {
        let error = ErrorDetail { code: 13, message: message.to_owned() };
        self.send(client, None, answer(response, Some(error)));
    }

    /// What the client gets at this time, until it is owed nothing.
    fn read(&mut self, client: &mut Client) -> Vec<DeltaDiscoveryResponse> {
        let mut all = Vec::new();
        loop {
            self.settle();
            match client.poll() {
                Poll::Ready(Delivery::Message(message)) => all.push(decode(message)),
                Poll::Ready(Delivery::End(end)) => panic!("the stream has ended: {end:?}"),
                Poll::Pending if self.mailbox_is_empty() => return all,
                Poll::Pending => {}
            }
        }
    }

    fn mailbox_is_empty(&self) -> bool {
        let mut calls = Vec::new();
        self.mailbox.take(&mut calls);
        let empty = calls.is_empty();
        for line in calls {
            self.mailbox.push(line);
        }
        empty
    }

    fn unsettled(&mut self) -> Vec<Lagging> {
        let (reply, mut answer) = oneshot::channel();
        let revision = self.state.revision;
        self.shard.handle(Event::Unsettled { revision, from: 0, reply }, self.now());
        answer.try_recv().unwrap().items
    }
}

impl Client {
    fn poll(&mut self) -> Poll<Delivery> {
        self.outlet.poll_next(&mut Context::from_waker(Waker::noop()))
    }

    fn end(&mut self) -> End {
        loop {
            match self.poll() {
                Poll::Ready(Delivery::Message(_)) => {}
                Poll::Ready(Delivery::End(end)) => return end,
                Poll::Pending => panic!("the stream goes on"),
            }
        }
    }
}

fn decode(message: chancery_protocol::Message) -> DeltaDiscoveryResponse {
    let bytes: Vec<u8> = message.flat_map(|chunk| chunk.to_vec()).collect();
    DeltaDiscoveryResponse::decode(&bytes[5..]).unwrap()
}

fn answer(response: &DeltaDiscoveryResponse, error_detail: Option<ErrorDetail>) -> DeltaRequest {
    DeltaRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        error_detail,
        ..DeltaRequest::default()
    }
}

fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

fn key_of(type_url: &str, name: &str) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::new(type_url).unwrap(),
        name: ResourceName::new(name).unwrap(),
    }
}

/// `a=1 b=2`, sorted, of all responses together.
fn text(responses: &[DeltaDiscoveryResponse]) -> String {
    let all = responses.iter().flat_map(|response| &response.resources).map(|resource| {
        let body = resource.resource.as_ref().map(|any| any.value.clone()).unwrap_or_default();
        format!("{}={}", resource.name, String::from_utf8_lossy(&body))
    });
    let mut all: Vec<String> = all.collect();
    all.extend(responses.iter().flat_map(|r| &r.removed_resources).map(|name| format!("-{name}")));
    all.sort();
    all.join(" ")
}

/// SOTW-90, SOTW-91: those who care are told, and nobody else is looked at.
#[test]
fn a_change_reaches_those_who_care_and_no_other() {
    let mut desk = Desk::new();
    desk.put("default", ENDPOINT, &[("x", "1"), ("y", "1")]);
    let mut x = desk.subscribe("n1", ENDPOINT, &["x"]);
    let mut y = desk.subscribe("n2", ENDPOINT, &["y"]);
    for client in [&mut x, &mut y] {
        let first = desk.read(client);
        assert_eq!(first.len(), 1);
        desk.ack(client, &first[0]);
    }
    desk.settle();
    desk.put("default", ENDPOINT, &[("x", "2")]);
    assert_eq!(desk.shard.queue.len(), 1, "only one session cares");
    assert_eq!(text(&desk.read(&mut x)), "x=2");
    assert_eq!(text(&desk.read(&mut y)), "");
}

/// SOTW-112, OPS-10: commits to a stream that can not take anything fold into one response, which is
/// built when it can.
#[test]
fn commits_fold_while_the_client_does_not_read() {
    let mut desk = Desk::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.settle();
    // It waits in the slot; the client has not read it.
    for version in 2..50 {
        desk.put("default", CLUSTER, &[("b", &version.to_string()), ("a", &version.to_string())]);
        desk.ms += 6_000;
        desk.settle();
    }
    let Poll::Ready(Delivery::Message(message)) = client.poll() else {
        panic!("no first response")
    };
    assert_eq!(text(&[decode(message)]), "a=1");
    let rest = desk.read(&mut client);
    assert_eq!((rest.len(), text(&rest).as_str()), (1, "a=49 b=49"));
}

/// Performance.md 0, point 8: what the client says is heard while it does not read.
#[test]
fn requests_are_handled_while_nothing_can_be_written() {
    let mut desk = Desk::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    desk.put("default", ENDPOINT, &[("x", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.settle();
    let subscribe = DeltaRequest {
        type_url: ENDPOINT.to_owned(),
        subscribe: vec!["x".to_owned()],
        ..DeltaRequest::default()
    };
    desk.send(&client, None, subscribe);
    desk.settle();
    let statuses = desk.shard.status_page(0).items;
    assert_eq!(statuses[0].subscriptions.len(), 2, "the second type is known");
    assert_eq!(text(&desk.read(&mut client)), "a=1 x=1");
}

/// Design 4.6: a client that never acknowledges is sent the newest state after a while.
#[test]
fn a_silent_client_is_sent_the_newest_state_after_the_timeout() {
    let mut desk = Desk::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    assert_eq!(text(&desk.read(&mut client)), "a=1");
    desk.put("default", CLUSTER, &[("a", "2")]);
    assert_eq!(text(&desk.read(&mut client)), "", "the first one is unacknowledged");
    desk.put("default", CLUSTER, &[("a", "3")]);
    let Flow::Wait(Some(at)) = desk.shard.turn(desk.now()) else { panic!("no timer is set") };
    assert_eq!(at, desk.ms + desk.shard.protocol.ack_timeout_ms);
    desk.ms = at;
    assert_eq!(text(&desk.read(&mut client)), "a=3");
}

/// SOTW-111: whatever is held for a stream goes with it.
#[test]
fn a_closed_stream_leaves_nothing() {
    let mut desk = Desk::new();
    desk.assign("own", "*", &["node/{node.id}", "mesh"]);
    desk.put("mesh", CLUSTER, &[("a", "1")]);
    let wildcard = desk.subscribe("n1", CLUSTER, &[]);
    let named = desk.subscribe("n2", ENDPOINT, &["x", "y"]);
    desk.settle();
    assert_eq!(desk.shard.sessions.len(), 2);
    let line = Arc::clone(&named.line);
    drop((wildcard, named));
    desk.settle();
    assert!(desk.shard.sessions.is_empty() && desk.shard.index.is_empty());
    assert_eq!(desk.shard.views.n_lists(), 0);
    // What was already in the inbox is not for anybody.
    let request = Request::Delta(DeltaRequest::default());
    desk.shard.handle(Event::Request { line, request, node: None, room: None }, desk.now());
    assert!(desk.shard.sessions.is_empty());
}

/// OPS-05: no assignment is not an empty view. The node is answered when one comes to hold.
#[test]
fn a_node_without_assignment_is_told_nothing_until_it_has_one() {
    let mut desk = Desk::new();
    desk.apply(&Transaction {
        assignments: vec![AssignmentOp::Delete("default".into())],
        ..Transaction::default()
    });
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    assert_eq!(desk.read(&mut client).len(), 0);
    assert_eq!(desk.unsettled(), [], "it should have nothing");
    desk.assign("late", "n*", &["empty"]);
    let answer = desk.read(&mut client);
    assert_eq!((answer.len(), text(&answer).as_str()), (1, ""));
    desk.ack(&client, &answer[0]);
    desk.put("empty", CLUSTER, &[("a", "1")]);
    assert_eq!(text(&desk.read(&mut client)), "a=1", "it is registered under its scope");
}

/// Design 2: a changed assignment moves the nodes that it concerns, by the difference of their views;
/// no node is served from its old scopes afterwards.
#[test]
fn changed_assignments_move_nodes_by_the_difference() {
    let mut desk = Desk::with(Config { turn_work_max: 1, ..Config::default() });
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    desk.put("blue", CLUSTER, &[("b", "2"), ("c", "1")]);
    let mut clients: Vec<Client> =
        (0..5).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    for client in &mut clients {
        let first = desk.read(client);
        assert_eq!(text(&first), "a=1 b=1");
        desk.ack(client, &first[0]);
    }
    desk.settle();
    desk.assign("blue", "n3", &["blue", "default"]);
    // A commit right behind it, before the shard has come to all sessions.
    desk.put("blue", CLUSTER, &[("d", "1")]);
    for (n, client) in clients.iter_mut().enumerate() {
        let expected = if n == 3 { "b=2 c=1 d=1" } else { "" };
        assert_eq!(text(&desk.read(client)), expected, "n{n}");
    }
    desk.put("blue", CLUSTER, &[("c", "2")]);
    desk.ms += 10_000;
    assert_eq!(text(&desk.read(&mut clients[3])), "c=2");
}

/// SOTW-03: changed metadata is adopted, and may mean other scopes.
#[test]
fn a_node_that_describes_itself_anew_is_assigned_anew() {
    let mut desk = Desk::new();
    let template = |text| ScopeTemplate::parse(text).unwrap();
    let assignment = Assignment {
        name: "by-mesh".into(),
        priority: 1,
        matcher: NodeMatcher::default(),
        scopes: vec![template("mesh/{metadata.mesh}")],
    };
    desk.apply(&Transaction {
        assignments: vec![AssignmentOp::Put(assignment)],
        ..Transaction::default()
    });
    desk.put("mesh/m2", CLUSTER, &[("a", "2")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    let first = desk.read(&mut client);
    assert_eq!(text(&first), "");
    let mut node = Node { id: "n1".into(), ..Node::default() };
    node.metadata.insert("mesh".into(), "m2".into());
    let request = Request::Delta(answer(&first[0], None));
    let line = Arc::clone(&client.line);
    desk.shard.handle(
        Event::Request { line, request, node: Some(Arc::new(node)), room: None },
        desk.now(),
    );
    assert_eq!(text(&desk.read(&mut client)), "a=2");
}

/// Design 4.9: a turn is a bounded piece of work, however many sessions are marked.
#[test]
fn a_turn_is_bounded() {
    let mut desk = Desk::with(Config { turn_work_max: 2, ..Config::default() });
    let clients: Vec<Client> =
        (0..5).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    desk.settle();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut left = vec![];
    for _ in 0..3 {
        let flow = desk.shard.turn(desk.now());
        left.push((desk.shard.queue.len(), flow == Flow::Again));
    }
    assert_eq!(left, [(3, true), (1, true), (0, false)]);
    drop(clients);
}

/// SOTW-111: OK, after what could be sent.
#[test]
fn a_half_closed_stream_is_served_and_then_ended() {
    let mut desk = Desk::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.shard.handle(Event::HalfClose { line: Arc::clone(&client.line) }, desk.now());
    desk.settle();
    let Poll::Ready(Delivery::Message(message)) = client.poll() else { panic!("no response") };
    assert_eq!(text(&[decode(message)]), "a=1");
    assert!(client.poll().is_pending());
    desk.settle();
    assert_eq!(client.end(), End::ok());
    assert!(desk.shard.sessions.is_empty());
}

/// SVC-09, SOTW-06: a broken rule ends the stream, and frees it.
#[test]
fn a_refused_request_ends_its_stream() {
    let mut desk = Desk::new();
    let mut client = desk.open();
    desk.send(&client, Some("n1"), DeltaRequest::default());
    let end = client.end();
    assert_eq!(end.code, EndCode::InvalidArgument);
    assert!(end.message.contains("type_url is empty"), "{}", end.message);
    assert!(desk.shard.sessions.is_empty());
    let mut client = desk.open();
    desk.send(&client, None, DeltaRequest::default());
    assert!(client.end().message.contains("no node"));
}

/// SOTW-28, design 4.8: who has not got there, and why.
#[test]
fn the_unsettled_are_those_who_have_not_acknowledged() {
    let mut desk = Desk::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut good = desk.subscribe("good", CLUSTER, &[]);
    let mut bad = desk.subscribe("bad", CLUSTER, &[]);
    assert_eq!(desk.unsettled().len(), 2);
    let (to_good, to_bad) = (desk.read(&mut good), desk.read(&mut bad));
    assert_eq!(desk.unsettled().len(), 2);
    desk.ack(&good, &to_good[0]);
    desk.nack(&bad, &to_bad[0], "no such thing");
    desk.settle();
    let lagging = desk.unsettled();
    assert_eq!(lagging.len(), 1, "{lagging:?}");
    assert_eq!(lagging[0].node, "bad");
    assert_eq!(lagging[0].state, UnsettledState::Nacked("no such thing".into()));
    let record = &desk.shard.status_page(0).items[1].nacks[0];
    assert_eq!((record.code, record.message.as_str()), (13, "no such thing"));
    desk.put("default", CLUSTER, &[("a", "2")]);
    let to_bad = desk.read(&mut bad);
    let to_good = desk.read(&mut good);
    desk.ack(&bad, &to_bad[0]);
    desk.ack(&good, &to_good[0]);
    desk.settle();
    assert_eq!(desk.unsettled(), []);
    desk.state = Arc::new(State { revision: Revision(99), ..State::clone(&desk.state) });
    let behind = desk.unsettled();
    assert_eq!(behind[0].state, UnsettledState::Behind(Revision(2)), "{behind:?}");
}

/// Who is moved by a commit is unsettled from that commit on, and not only when the shard has come to
/// it.
#[test]
fn a_node_that_is_to_move_is_unsettled() {
    let mut desk = Desk::new();
    desk.put("blue", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    let first = desk.read(&mut client);
    desk.ack(&client, &first[0]);
    desk.settle();
    assert_eq!(desk.unsettled(), []);
    desk.assign("blue", "*", &["blue"]);
    assert_eq!(desk.unsettled().len(), 1);
    assert_eq!(text(&desk.read(&mut client)), "a=1");
}

/// A state of another history: nothing that was known says what changed.
#[test]
fn another_incarnation_is_compared_anew() {
    let mut desk = Desk::new();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    let first = desk.read(&mut client);
    desk.ack(&client, &first[0]);
    desk.settle();
    desk.state = Arc::new(State::new(Incarnation(2)));
    desk.put("default", CLUSTER, &[("b", "2")]);
    desk.ms += 10_000;
    assert_eq!(text(&desk.read(&mut client)), "-a b=2");
}

/// A shard that ends, for whatever reason, sends its clients away.
#[test]
fn a_shard_that_ends_ends_its_streams() {
    let mut desk = Desk::new();
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    desk.settle();
    drop(desk.shard);
    assert_eq!(client.end().code, EndCode::Unavailable);
}

/// OPS-18: what a shard counts.
#[test]
fn what_happens_is_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let mut desk = Desk::new();
        desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        let first = desk.read(&mut client);
        desk.ack(&client, &first[0]);
        desk.settle();
        desk.ms += 1;
        desk.put("default", CLUSTER, &[("a", "2")]);
        let second = desk.read(&mut client);
        desk.nack(&client, &second[0], "no");
        desk.put("default", CLUSTER, &[("a", "3")]);
        let third = desk.read(&mut client);
        desk.ms += 40;
        desk.ack(&client, &third[0]);
        let mut refused = desk.open();
        desk.send(&refused, Some("n2"), DeltaRequest::default());
        assert_eq!(refused.end().code, EndCode::InvalidArgument);
        drop(refused);
        let gone = desk.subscribe("n3", ENDPOINT, &["x"]);
        desk.settle();
        drop(gone);
        desk.settle();
    });
    let text = recorder.handle().render();
    for line in [
        "chancery_xds_streams{protocol=\"delta\",type=\"aggregated\"} 1",
        "chancery_xds_stream_ends_total{reason=\"refused\"} 1",
        "chancery_xds_stream_ends_total{reason=\"client\"} 1",
        "chancery_xds_requests_total{type=\"cluster\"} 4",
        "chancery_xds_requests_total{type=\"endpoint\"} 1",
        "chancery_xds_pushes_total{type=\"cluster\"} 3",
        "chancery_xds_pushed_resources_total{type=\"cluster\"} 4",
        "chancery_xds_acks_total{type=\"cluster\"} 2",
        "chancery_xds_nacks_total{type=\"cluster\"} 1",
        "chancery_xds_ack_seconds_count 2",
        "chancery_xds_ack_seconds_sum 0.04",
        "chancery_xds_convergence_seconds_count 1",
        "chancery_xds_convergence_seconds_sum 0.04",
        "chancery_xds_pending_sessions{shard=\"0\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
