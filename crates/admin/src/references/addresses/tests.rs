use std::sync::Arc;

use chancery_admission::{ConnectedClient, Manifest, Options, Profiles, Prune, admit};
use chancery_model::{Incarnation, Outcome};

use super::*;
use crate::node_groups::{Client, connected_nodes, groups};

/// Nodes with an ID of `e…` have the scopes `base` and `edge`. The scope `base` shadows `edge`. All other nodes
/// have the scope of their name.
const RULES: &str = "assignments: [{name: edge, priority: 1, match: {id: 'e*'}, scopes: [base, edge]}, \
     {name: own, priority: 2, scopes: ['{node.id}']}]";

struct World {
    state: State,
    clients: Vec<Client>,
    validation: Validation,
}

impl World {
    fn new() -> Self {
        let state = State::new(Incarnation(1));
        let validation = Validation::of(ValidationMode::Enforce);
        let mut world = Self { state, clients: Vec::new(), validation };
        world.commit("base", RULES);
        world
    }

    fn with(scope: &str, all: &[String]) -> Self {
        let mut world = Self::new();
        world.commit(scope, &resources(all));
        world
    }

    fn apply(&self, scope: &str, content: &str, prune: Prune) -> (Transaction, Applied) {
        let manifest = Manifest { file: "a.yaml".to_owned(), content: content.to_owned() };
        let options = Options { prune, ..Options::new(ScopeName::new(scope).unwrap()) };
        let transaction = admit(&[manifest], &options).unwrap();
        let applied = self.state.apply(&transaction);
        assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
        (transaction, applied)
    }

    fn commit(&mut self, scope: &str, content: &str) {
        self.state = self.apply(scope, content, Prune::Keep).1.state;
    }

    fn check(&self, (transaction, applied): &(Transaction, Applied)) -> Findings {
        let index = ReferenceIndex::of(&self.state).advanced(&applied.state);
        let shared =
            SharedAddresses::of(&self.state, transaction, applied, &index, &self.validation);
        let (before, after, scopes) = (&self.state, &applied.state, shared.scopes());
        let connected = connected_nodes(&self.clients, before, after, &scopes);
        let groups = groups(&connected, after, &scopes);
        shared.findings(&applied.state, &groups, &index, &self.validation)
    }

    /// Returns the findings that refuse listeners of a scope.
    fn adds(&self, scope: &str, all: &[String]) -> Vec<String> {
        let findings = self.check(&self.apply(scope, &resources(all), Prune::Keep));
        assert!(findings.warnings.is_empty(), "{findings:?}");
        findings.refusing.iter().map(|finding| finding.problem.to_string()).collect()
    }
}

fn resources(all: &[String]) -> String {
    format!("resources: [{}]", all.join(", "))
}

fn listener(name: &str, port: u16) -> String {
    listener_with(name, &socket(port), "")
}

fn socket(port: u16) -> String {
    format!("{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}")
}

fn listener_with(name: &str, address: &str, more: &str) -> String {
    format!("{{'@type': {}, name: {name}, address: {address} {more}}}", types::LISTENER)
}

const NONE: [&str; 0] = [];
const FIX: &str = "give each listener its own address";

#[test]
fn address_of_a_stored_listener_is_refused_and_the_listener_is_named() {
    let world = World::with("edge", &[listener("a", 80)]);
    let expected = format!(
        "Listener \"b\": address: 127.0.0.1:80 is also an address of Listener \"a\" in scope \"edge\", in 1 view: \
         base+edge (no known node); {FIX} [listener.shared_address]"
    );
    assert_eq!(world.adds("edge", &[listener("b", 80)]), [expected]);
    assert_eq!(world.adds("edge", &[listener("b", 81)]), NONE);
    // A changed listener keeps its own address, and a repeated one changes nothing.
    assert_eq!(world.adds("edge", &[listener_with("a", &socket(80), ", stat_prefix: x")]), NONE);
    assert_eq!(world.adds("edge", &[listener("a", 80)]), NONE);
}

#[test]
fn address_of_another_scope_is_refused_only_if_a_view_has_both() {
    let world = World::with("base", &[listener("a", 80)]);
    let found = world.adds("edge", &[listener("b", 80)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("Listener \"a\" in scope \"base\", in 1 view: base+edge"),
        "{found:?}"
    );
    assert_eq!(world.adds("other", &[listener("b", 80)]), NONE);
}

/// Templates with variables combine scopes only for nodes that are connected.
#[test]
fn scopes_of_a_template_are_compared_for_connected_nodes() {
    let mut world = World::with("t-1", &[listener("a", 80)]);
    world
        .commit("base", "assignments: [{name: own, priority: 2, scopes: [common, 't-{node.id}']}]");
    let b = [listener("b", 80)];
    assert_eq!(world.adds("common", &b), NONE);
    let node = Arc::new(Node { id: "1".to_owned(), ..Node::default() });
    world.clients.push(Client { node, sotw_types: Vec::new(), identity: None });
    let found = world.adds("common", &b);
    assert!(found.len() == 1 && found[0].contains("common+t-1 (1 node)"), "{found:?}");
}

#[test]
fn listener_that_is_removed_in_the_transaction_frees_its_address() {
    let world = World::with("edge", &[listener("a", 80)]);
    let pruned = world.apply("edge", &resources(&[listener("b", 80)]), Prune::Prune);
    let findings = world.check(&pruned);
    assert!(findings.refusing.is_empty() && findings.warnings.is_empty(), "{findings:?}");
}

/// Envoy applies the listeners of a response one by one, and compares each with those that it has.
#[test]
fn address_that_a_listener_takes_from_another_one_is_a_warning() {
    let world = World::with("edge", &[listener("a", 80), listener("c", 90)]);
    let warnings = |all: &[String]| {
        let findings = world.check(&world.apply("edge", &resources(all), Prune::Keep));
        assert!(findings.refusing.is_empty(), "{findings:?}");
        findings.warnings.iter().map(|finding| finding.problem.to_string()).collect::<Vec<_>>()
    };
    let moved = warnings(&[listener("a", 81), listener("b", 80)]);
    assert_eq!(
        moved,
        [
            "Listener \"b\": address: Listener \"a\" in scope \"edge\" gives up 127.0.0.1:80 in the same write; Envoy \
          rejects this listener while the other one still has the address, in 1 view: base+edge (no known node); move the \
          other listener first, and wait until the nodes have acknowledged it [listener.moved_address]"
        ]
    );
    assert_eq!(warnings(&[listener("a", 90), listener("c", 80)]).len(), 2, "a swap");
    assert_eq!(warnings(&[listener("a", 81), listener("b", 82)]), NONE);
    let base = world.apply("base", &resources(&[listener("b", 82)]), Prune::Keep);
    assert!(world.check(&base).warnings.is_empty());
}

#[test]
fn shadowed_listener_does_not_count() {
    let mut world = World::with("edge", &[listener("a", 80)]);
    world.commit("base", &resources(&[listener("a", 81)]));
    assert_eq!(world.adds("base", &[listener("b", 80)]), NONE);
    let found = world.adds("base", &[listener("b", 81)]);
    assert!(found.len() == 1 && found[0].contains("\"a\" in scope \"base\""), "{found:?}");
    // A published listener that is shadowed does not count either.
    assert_eq!(world.adds("edge", &[listener_with("a", &socket(81), ", stat_prefix: x")]), NONE);
}

#[test]
fn listeners_of_two_scopes_in_one_transaction_are_reported_once() {
    let world = World::new();
    let document =
        |scope: &str, name: &str| format!("scope: {scope}\n{}\n", resources(&[listener(name, 80)]));
    let content = format!("{}---\n{}", document("base", "a"), document("edge", "b"));
    let findings = world.check(&world.apply("edge", &content, Prune::Keep));
    assert_eq!(findings.refusing.len(), 1, "{findings:?}");
    // Two listeners of one scope were compared when the input was read.
    let pair =
        world.apply("edge", &resources(&[listener("a", 80), listener("b", 80)]), Prune::Keep);
    assert!(world.check(&pair).refusing.is_empty());
}

#[test]
fn only_addresses_that_envoy_cannot_share_are_compared() {
    let more = format!(", additional_addresses: [{{address: {}}}]", socket(90));
    let world = World::with("edge", &[listener_with("a", &socket(80), &more), listener("zero", 0)]);
    let found = world.adds("edge", &[listener("b", 90)]);
    assert!(found.len() == 1 && found[0].contains("127.0.0.1:90"), "{found:?}");
    let more = format!(
        ", additional_addresses: [{{address: {}}}, {{address: {}}}]",
        socket(82),
        socket(80)
    );
    let found = world.adds("edge", &[listener_with("b", &socket(81), &more)]);
    assert!(found[0].contains("additional_addresses[1].address"), "{found:?}");
    let udp = "{socket_address: {protocol: UDP, address: 127.0.0.1, port_value: 80}}";
    for free in [listener_with("b", udp, ""), listener("b", 0), listener("x?y", 80)] {
        assert_eq!(world.adds("edge", std::slice::from_ref(&free)), NONE, "{free}");
    }
}

#[test]
fn mode_and_clients_of_the_scope_decide_about_the_finding() {
    let mut world = World::with("edge", &[listener("a", 80)]);
    let applied = world.apply("edge", &resources(&[listener("b", 80)]), Prune::Keep);
    let counts = |world: &World| {
        let findings = world.check(&applied);
        (findings.refusing.len(), findings.warnings.len())
    };
    assert_eq!(counts(&world), (1, 0));
    world.validation = Validation::of(ValidationMode::Warn);
    assert_eq!(counts(&world), (0, 1));
    world.validation = Validation::of(ValidationMode::Off);
    assert_eq!(counts(&world), (0, 0));
    // No Envoy sees the scope, as far as this replica knows.
    let go = [(ConnectedClient::of_user_agent("gRPC Go/1.85.0"), 1)];
    let connected = [(ScopeName::new("edge").unwrap(), go.into())].into();
    let profiles = Profiles { connected: Arc::new(connected), ..Profiles::default() };
    world.validation = Validation { profiles, ..Validation::of(ValidationMode::Enforce) };
    assert_eq!(counts(&world), (0, 1));
}
