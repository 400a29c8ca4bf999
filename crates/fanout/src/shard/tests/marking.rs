//! Marking of the sessions after a commit in steps, interleaved with other events.

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::{
    Incarnation, ResourceDraft, ResourceName, State, Transaction, TypeUrl, Upsert,
    types::{CLUSTER, ENDPOINT},
};
use chancery_proto::discovery::DeltaDiscoveryResponse;
use chancery_protocol::DeltaRequest;
use chancery_view::View;

use super::harness::{Client, ShardHarness, key_of, scope, text};
use crate::{
    Config, UnacknowledgedState, messages::event::Event, sessions::marking::MARKS_PER_STEP,
    shard::Flow,
};

fn small() -> ShardHarness {
    ShardHarness::with(Config { turn_work_max: 1, ..Config::default() })
}

/// Marking many sessions after one commit takes many short turns. Other work proceeds in between.
#[test]
fn commit_marks_many_sessions_in_steps() {
    let mut harness = small();
    harness.put("default", ENDPOINT, &[("x", "1")]);
    let mut many: Vec<Client> = (0..100)
        .map(|n| {
            let mut client = harness.subscribe(&format!("n{n}"), CLUSTER, &[]);
            let first = harness.read(&mut client);
            harness.ack(&client, &first[0]);
            client
        })
        .collect();
    harness.settle();
    harness.put("default", CLUSTER, &[("a", "1")]);
    assert!(harness.sessions().n_queued() <= MARKS_PER_STEP, "{}", harness.sessions().n_queued());
    assert!(harness.shard.service.is_marking());
    // A new client is answered before all sessions are marked. It takes turns with the marked ones.
    let mut other = harness.open();
    let request = DeltaRequest {
        type_url: ENDPOINT.to_owned(),
        subscribe: vec!["x".to_owned()].into(),
        ..DeltaRequest::default()
    };
    harness.send(&other, Some("other"), request);
    let mut turns = 0;
    let answered = loop {
        assert_eq!(harness.turn(), Flow::Again);
        turns += 1;
        if let Some(response) = other.take() {
            break response;
        }
        assert!(turns < 5, "not answered in {turns} turns");
    };
    assert!(harness.shard.service.is_marking(), "the others are still being marked");
    assert_eq!(text(&[answered]), "x=1");
    for client in &mut many {
        assert_eq!(text(&harness.read(client)), "a=1");
    }
}

/// A shard does not report a revision as settled before all sessions are marked.
#[test]
fn revision_is_not_settled_before_all_sessions_are_marked() {
    let mut harness = small();
    let mut clients: Vec<Client> =
        (0..40).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    for client in &mut clients {
        let first = harness.read(client);
        harness.ack(client, &first[0]);
    }
    harness.settle();
    assert_eq!(harness.unsettled(), []);
    let before = harness.state.revision;
    harness.put("default", CLUSTER, &[("a", "1")]);
    assert!(harness.shard.service.is_marking());
    assert_eq!(harness.unsettled()[0].state, UnacknowledgedState::Behind(before));
    while harness.shard.service.is_marking() {
        harness.turn();
    }
    assert!(
        harness.unsettled().iter().all(|lagging| lagging.state == UnacknowledgedState::Pending)
    );
}

/// A state of another history marks all sessions, in steps too.
#[test]
fn new_incarnation_marks_sessions_in_steps() {
    let mut harness = small();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut clients: Vec<Client> =
        (0..40).map(|n| harness.subscribe(&format!("n{n}"), CLUSTER, &[])).collect();
    for client in &mut clients {
        let first = harness.read(client);
        harness.ack(client, &first[0]);
    }
    harness.settle();
    harness.state = Arc::new(State::new(Incarnation(2)));
    harness.put("default", CLUSTER, &[("b", "2")]);
    assert!(harness.shard.service.is_marking() && harness.sessions().n_queued() <= MARKS_PER_STEP);
    harness.ms += 10_000;
    for client in &mut clients {
        assert_eq!(text(&harness.read(client)), "-a b=2");
    }
}

/// The iteration over names may pause too: at a resource's own name, its aliases, and its old aliases.
#[test]
fn alias_subscribers_are_marked_after_a_pause() {
    let mut harness = small();
    let put = |harness: &mut ShardHarness, body: &'static str, aliases: &[&str]| {
        let aliases = aliases.iter().map(|alias| ResourceName::new(alias).unwrap()).collect();
        let key = key_of(ENDPOINT, "own");
        let draft = ResourceDraft { aliases, ..ResourceDraft::new(key, body.into()) };
        let upserts = vec![Upsert { scope: scope("default"), draft }];
        harness.apply(&Transaction { upserts, ..Transaction::default() });
    };
    put(&mut harness, "1", &["one", "two"]);
    let mut clients = Vec::new();
    for (n, name) in ["own", "one", "two", "three"].iter().cycle().take(60).enumerate() {
        let mut client = harness.subscribe(&format!("n{n}"), ENDPOINT, &[name]);
        let first = harness.read(&mut client);
        assert_eq!(text(&first), if *name == "three" { "-three" } else { "own=1" });
        harness.ack(&client, &first[0]);
        clients.push(client);
    }
    harness.settle();
    put(&mut harness, "2", &["two", "three"]);
    for (n, client) in clients.iter_mut().enumerate() {
        // The alias "one" no longer exists.
        let expected = if n % 4 == 1 { "-one" } else { "own=2" };
        harness.ms += 2_000;
        assert_eq!(text(&harness.read(client)), expected, "n{n}");
    }
}

// === any interleaving ===

/// The names that every commit changes together, so that clients see them together (SOTW-93).
const PAIR: [&str; 2] = ["p1", "p2"];
const NAMES: [&str; 6] = ["p1", "p2", "q1", "q2", "q3", "q4"];
const SCOPES: [&str; 3] = ["default", "blue", "green"];

/// A client with its resources.
struct ModelClient {
    client: Client,
    node: String,
    names: Vec<&'static str>,
    held: BTreeMap<String, u64>,
    /// The revision in the version of the last response.
    version: Option<u64>,
    /// The responses that the client has not acknowledged.
    unanswered: Vec<DeltaDiscoveryResponse>,
    /// Whether the client has subscribed to both names of the pair, or to everything, from the start.
    sees_pair: bool,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        // The constants are those of Knuth's MMIX. The upper bits have the better quality.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let n = u64::try_from(from.len()).unwrap();
        from[usize::try_from(self.below(n)).unwrap()]
    }
}

impl ModelClient {
    fn start(harness: &mut ShardHarness, node: String, names: Vec<&'static str>) -> Self {
        let client = harness.open();
        let sees_pair = names.len() != 1;
        send(harness, &client, Some(&node), &names, &[]);
        let (held, version, unanswered) = (BTreeMap::new(), None, vec![]);
        Self { client, node, names, held, version, unanswered, sees_pair }
    }

    fn take(&mut self, seed: u64) {
        let Some(response) = self.client.take() else { return };
        for resource in &response.resources {
            let body = &resource.resource.as_ref().unwrap().value;
            let value: u64 = std::str::from_utf8(body).unwrap().parse().unwrap();
            self.held.insert(resource.name.clone(), value);
        }
        let (revision, _) = response.system_version_info.split_once('-').unwrap();
        let version = u64::from_str_radix(revision, 36).unwrap();
        let before = self.version.replace(version);
        assert!(
            before.is_none_or(|before| before <= version),
            "seed {seed}: {} went back",
            self.node
        );
        for name in &response.removed_resources {
            self.held.remove(name);
        }
        if self.sees_pair {
            let pair = PAIR.map(|name| self.held.get(name));
            assert_eq!(pair[0], pair[1], "seed {seed}: {} received half of a commit", self.node);
        }
        self.unanswered.push(response);
    }
}

/// Runs random events between single turns of a shard with minimal turns: clients connect, leave,
/// subscribe, read and answer, and resources change.
fn play(seed: u64) {
    let mut random = Random(seed);
    let mut harness = small();
    let mut players: Vec<ModelClient> = Vec::new();
    let mut commit = 0;
    for step in 0..600 {
        match random.below(20) {
            0..=1 => {
                commit += 1;
                let body = commit.to_string();
                let other = random.pick(&NAMES[2..]);
                let put: Vec<(&str, &str)> =
                    PAIR.iter().chain([&other]).map(|name| (*name, body.as_str())).collect();
                harness.state = next_state(&harness, random.pick(&SCOPES), &put);
            }
            2..=3 if players.len() < 60 => {
                let names = match random.below(3) {
                    0 => vec![],
                    1 => PAIR.to_vec(),
                    _ => vec![random.pick(&NAMES)],
                };
                players.push(ModelClient::start(&mut harness, format!("n{step}"), names));
            }
            4 if players.len() > 10 => {
                let at = usize::try_from(random.below(players.len() as u64)).unwrap();
                drop(players.swap_remove(at));
            }
            5 if step % 7 == 0 => {
                let node = format!("n{}*", random.below(10));
                let scopes = [random.pick(&SCOPES), "default"];
                harness.assign(&format!("a{}", random.below(3)), &node, &scopes);
            }
            what => {
                for _ in 0..random.below(4) {
                    harness.turn();
                }
                if players.is_empty() {
                    continue;
                }
                let at = usize::try_from(random.below(players.len() as u64)).unwrap();
                let player = &mut players[at];
                match what {
                    6..=13 => player.take(seed),
                    14..=17 if !player.unanswered.is_empty() => {
                        let response = player.unanswered.remove(0);
                        let request = super::answer(&response, None);
                        push(&mut harness, &player.client, None, request);
                    }
                    18 if !player.names.is_empty() => {
                        let name = random.pick(&NAMES);
                        if !player.names.contains(&name) {
                            player.names.push(name);
                            send(&mut harness, &player.client, None, &[name], &[]);
                        }
                    }
                    _ => {}
                }
                harness.ms += random.below(50);
            }
        }
    }
    settle(seed, &mut harness, &mut players);
    for player in &players {
        assert_eq!(player.held, expected(&harness, player), "seed {seed}: {}", player.node);
    }
}

/// Reads and acknowledges all responses until no client receives another one.
fn settle(seed: u64, harness: &mut ShardHarness, players: &mut [ModelClient]) {
    let mut calm = 0;
    for round in 0.. {
        assert!(round < 1000, "seed {seed}: the clients do not become idle");
        harness.settle();
        let mut quiet = true;
        for player in &mut *players {
            player.take(seed);
            quiet &= player.unanswered.is_empty();
            for response in std::mem::take(&mut player.unanswered) {
                push(harness, &player.client, None, super::answer(&response, None));
            }
        }
        calm = if quiet { calm + 1 } else { 0 };
        // This is longer than any delay of a response.
        if calm == 40 {
            break;
        }
        harness.ms += 500;
    }
}

fn next_state(harness: &ShardHarness, in_scope: &str, put: &[(&str, &str)]) -> Arc<State> {
    let upserts = put.iter().map(|(name, body)| Upsert {
        scope: scope(in_scope),
        draft: ResourceDraft::new(
            key_of(CLUSTER, name),
            bytes::Bytes::copy_from_slice(body.as_bytes()),
        ),
    });
    let transaction = Transaction { upserts: upserts.collect(), ..Transaction::default() };
    Arc::new(harness.state.apply(&transaction).state)
}

fn send(
    harness: &mut ShardHarness,
    client: &Client,
    node: Option<&str>,
    names: &[&str],
    gone: &[&str],
) {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let request = DeltaRequest {
        type_url: CLUSTER.to_owned(),
        subscribe: list(names),
        unsubscribe: list(gone),
        ..DeltaRequest::default()
    };
    push(harness, client, node, request);
}

/// Puts a request into the inbox, from which a turn handles it.
fn push(harness: &mut ShardHarness, client: &Client, node: Option<&str>, request: DeltaRequest) {
    let event: Event = ShardHarness::request(client, node, request);
    harness.post(event);
}

/// Returns the resources that the client should have in the end.
fn expected(harness: &ShardHarness, player: &ModelClient) -> BTreeMap<String, u64> {
    let node = chancery_model::Node { id: player.node.as_str().into(), ..Default::default() };
    let assignment = harness.state.assignments.for_node(&node).unwrap();
    let view = View::resolve(&harness.state, &assignment.scopes_for(&node));
    let clusters = view.of_type(&TypeUrl::from_static(CLUSTER));
    let all = clusters.iter().filter(|resource| {
        player.names.is_empty() || player.names.iter().any(|name| *name == resource.name().as_str())
    });
    let body = |name: &ResourceName| {
        let resource = clusters.get(name.as_str()).unwrap();
        std::str::from_utf8(&resource.body().unwrap()).unwrap().parse().unwrap()
    };
    all.map(|resource| (resource.name().to_string(), body(resource.name()))).collect()
}

/// SOTW-92, SOTW-93: every client converges to its view in any interleaving of commits, requests and
/// turns. It never goes back, and never sees half of a commit.
#[test]
fn clients_converge_and_see_whole_commits_in_any_interleaving() {
    let is_long = std::env::var_os("CHANCERY_TEST_LONG").is_some();
    let runs = if is_long { 5_000 } else { 100 };
    (1..=runs).for_each(play);
}
