use std::sync::Arc;

use chancery_admission::{Manifest, Options, Problem, Prune, Validation, admit};
use chancery_model::{Incarnation, Node, Outcome, types};

use super::*;
use crate::{
    node_groups::{Client, connected_nodes, groups},
    references::report::{Finding, Findings, findings, shorten},
};

/// Nodes with an ID of `e…` have the scopes `base` and `edge`. The scope `base` shadows `edge`.
const RULES: &str =
    "assignments: [{name: edge, priority: 1, match: {id: 'e*'}, scopes: [base, edge]}]";

struct World {
    state: State,
    clients: Vec<Client>,
    settings: ReferenceSettings,
    unknown_replicas: Vec<u64>,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            state: State::new(Incarnation(1)),
            clients: Vec::new(),
            settings: ReferenceSettings::default(),
            unknown_replicas: Vec::new(),
        };
        world.state = world.apply("edge", RULES, Prune::Keep).state;
        world
    }

    /// Returns a world with resources and the node `e1`.
    fn with(scope: &str, all: &[String]) -> Self {
        let mut world = Self::new();
        world.commit(scope, all);
        let node = Arc::new(Node { id: "e1".to_owned(), ..Node::default() });
        world.clients.push(Client { node, sotw_types: Vec::new(), identity: None });
        world
    }

    fn apply(&self, scope: &str, content: &str, prune: Prune) -> Applied {
        let manifest = Manifest { file: "a.yaml".to_owned(), content: content.to_owned() };
        let options = Options { prune, ..Options::new(ScopeName::new(scope).unwrap()) };
        let transaction = admit(&[manifest], &options).unwrap();
        let applied = self.state.apply(&transaction);
        assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
        applied
    }

    fn commit(&mut self, scope: &str, all: &[String]) {
        self.state = self.apply(scope, &resources(all), Prune::Keep).state;
    }

    fn check(&self, applied: &Applied) -> Findings {
        let index = ReferenceIndex::of(&applied.state);
        let suspects = Suspects::of(&self.state, applied, Some(&index), &self.settings);
        let (before, after, scopes) = (&self.state, &applied.state, suspects.scopes());
        let connected = connected_nodes(&self.clients, before, after, &scopes);
        let groups = groups(&connected, after, &scopes);
        let has_unknown = !self.unknown_replicas.is_empty();
        let checked = suspects.in_views(&self.state, &applied.state, &groups, has_unknown);
        findings(checked, &self.unknown_replicas)
    }

    /// Returns the warnings about resources that are added to a scope.
    fn adds(&self, scope: &str, all: &[String]) -> Vec<String> {
        let findings = self.check(&self.apply(scope, &resources(all), Prune::Keep));
        assert!(findings.refusing.is_empty());
        lines(&findings.warnings)
    }

    /// Returns the warnings about resources that replace those of a scope.
    fn replaces(&self, scope: &str, all: &[String]) -> Vec<String> {
        let findings = self.check(&self.apply(scope, &resources(all), Prune::Prune));
        lines(&findings.warnings)
    }
}

fn lines(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| finding.problem.to_string()).collect()
}

fn resources(all: &[String]) -> String {
    format!("resources: [{}]", all.join(", "))
}

fn cluster(name: &str) -> String {
    format!("{{'@type': {}, name: {name}, connect_timeout: 1s}}", types::CLUSTER)
}

fn route(name: &str, cluster: &str) -> String {
    format!(
        "{{'@type': {}, name: {name}, virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, \
         route: {{cluster: {cluster}}}}}]}}]}}",
        types::ROUTE
    )
}

const NONE: [&str; 0] = [];
const FIELD: &str = "virtual_hosts[0].routes[0].route.cluster";

#[test]
fn missing_cluster_of_a_route_is_reported_with_field_and_view() {
    let world = World::with("edge", &[cluster("web")]);
    assert_eq!(world.adds("edge", &[route("main", "web")]), NONE);
    let expected = format!(
        "RouteConfiguration \"main\": {FIELD}: refers to Cluster \"none\", which is missing in 1 view: base+edge (1 \
         node); publish it, unless the bootstrap of the nodes defines it [reference.missing]"
    );
    assert_eq!(world.adds("edge", &[route("main", "none")]), [expected]);
    assert_eq!(world.adds("edge", &[route("main", "none"), cluster("none")]), NONE);
}

#[test]
fn cluster_of_another_scope_of_the_view_satisfies_a_reference() {
    let world = World::with("base", &[cluster("web")]);
    assert_eq!(world.adds("edge", &[route("main", "web")]), NONE);
    let world = World::with("elsewhere", &[cluster("web")]);
    assert_eq!(world.adds("edge", &[route("main", "web")]).len(), 1);
}

#[test]
fn views_without_connected_nodes_are_reported_only_if_other_replicas_exist() {
    let mut world = World::with("edge", &[]);
    world.clients.clear();
    assert_eq!(world.adds("edge", &[route("main", "none")]), NONE);
    world.unknown_replicas = vec![2, 3];
    let found = world.adds("edge", &[route("main", "none")]);
    let expected = "in 1 view: base+edge (no known node); the nodes of replicas 2 and 3 were not asked; publish";
    assert!(found[0].contains(expected), "{found:?}");
}

#[test]
fn removal_of_a_cluster_names_the_routes_that_refer_to_it() {
    let routes = ["a", "b", "c", "d"].map(|name| route(name, "web"));
    let mut world = World::with("edge", &[cluster("web"), cluster("spare")]);
    world.commit("edge", &routes);
    let expected = "Cluster \"web\": its removal leaves 4 dangling references from RouteConfiguration \"a\", \
         RouteConfiguration \"b\", RouteConfiguration \"c\", and 1 more, in 1 view: base+edge (1 node); remove the \
         references first [reference.removed]";
    let rest = [&routes[..], &[cluster("spare")]].concat();
    assert_eq!(world.replaces("edge", &rest), [expected]);
    assert_eq!(world.replaces("edge", &[route("a", "spare"), cluster("spare")]), NONE);
}

/// Each node has its own route in its own view. The finding is about both.
#[test]
fn removal_of_a_cluster_counts_the_views_of_all_routes() {
    let mut world = World::with("edge", &[cluster("web")]);
    let rule =
        "assignments: [{name: own, priority: 2, match: {id: 'n*'}, scopes: ['n/{node.id}', edge]}]";
    world.state = world.apply("edge", rule, Prune::Keep).state;
    world.clients.clear();
    for id in ["n1", "n2"] {
        world.commit(&format!("n/{id}"), &[route(&format!("of-{id}"), "web")]);
        let node = Arc::new(Node { id: id.to_owned(), ..Node::default() });
        world.clients.push(Client { node, sotw_types: Vec::new(), identity: None });
    }
    let found = world.replaces("edge", &[]);
    let expected = "leaves 2 dangling references from RouteConfiguration \"of-n1\", RouteConfiguration \"of-n2\", in 2 \
                    views: n/n1+edge (1 node), n/n2+edge (1 node); remove";
    assert!(found[0].contains(expected), "{found:?}");
}

#[test]
fn removal_of_a_cluster_that_another_scope_has_leaves_no_reference() {
    let mut world = World::with("base", &[cluster("web")]);
    world.commit("edge", &[cluster("web"), route("main", "web")]);
    assert_eq!(world.replaces("edge", &[route("main", "web")]), NONE);
    assert_eq!(world.replaces("base", &[]), NONE);
}

#[test]
fn shadowed_referrer_leaves_no_reference() {
    let mut world = World::with("base", &[route("main", "web"), cluster("web")]);
    world.commit("edge", &[cluster("old")]);
    assert_eq!(world.adds("edge", &[route("main", "none")]), NONE);
}

/// A route that is published and a cluster that is removed in one transaction are one finding.
#[test]
fn published_referrer_of_a_removed_cluster_is_reported_once() {
    let world = World::with("edge", &[cluster("web"), route("main", "web")]);
    let other = route("main", "web").replace("prefix: /", "prefix: /other");
    let found = world.replaces("edge", &[other]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("[reference.missing]"), "{found:?}");
}

#[test]
fn aliases_and_variants_satisfy_references() {
    let aliased = |aliases: &str| {
        format!("{{name: web, aliases: [{aliases}], resource: {}}}", cluster("web"))
    };
    let world = World::with("edge", &[aliased("other")]);
    assert_eq!(world.adds("edge", &[route("main", "other")]), NONE);
    let mut world = World::with("edge", &[aliased("other")]);
    world.commit("edge", &[route("main", "other")]);
    let found = world.adds("edge", &[aliased("third")]);
    assert!(
        found[0].starts_with("Cluster \"other\": its removal leaves 1 dangling reference"),
        "{found:?}"
    );
}

#[test]
fn mode_of_the_scope_decides_between_warning_and_refusal() {
    let mut world = World::with("edge", &[]);
    let scope = |name| ScopeName::new(name).unwrap();
    let modes = [(scope("edge"), ValidationMode::Enforce), (scope("base"), ValidationMode::Off)];
    world.settings.modes =
        Validation { scopes: Arc::new(modes.into()), ..Validation::of(ValidationMode::Warn) };
    let check = |name| {
        let content = resources(&[route("main", "none")]);
        let findings = world.check(&world.apply(name, &content, Prune::Keep));
        (findings.refusing.len(), findings.warnings.len())
    };
    assert_eq!(check("edge"), (1, 0));
    assert_eq!(check("base"), (0, 0));
}

/// A route table with many routes to one cluster has one reference to it.
#[test]
fn many_references_to_one_cluster_do_not_hide_another() {
    let clusters: Vec<&str> = [&["web"; 1500][..], &["lost"]].concat();
    let world = World::with("base", &[cluster("web")]);
    let found = world.adds("edge", &[table("main", &clusters)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("routes[1500].route.cluster: refers to Cluster \"lost\""),
        "{found:?}"
    );
    let world = World::with("edge", &[]);
    let found = world.adds("edge", &[table("main", &clusters)]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].contains("routes[0].route.cluster: refers to Cluster \"web\""), "{found:?}");
}

/// Returns a route table with a route to each cluster.
fn table(name: &str, clusters: &[&str]) -> String {
    let routes: Vec<String> = clusters
        .iter()
        .map(|cluster| format!("{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}"))
        .collect();
    let routes = routes.join(", ");
    format!(
        "{{'@type': {}, name: {name}, virtual_hosts: [{{name: all, domains: ['*'], routes: [{routes}]}}]}}",
        types::ROUTE
    )
}

fn numbered(n: usize) -> Vec<String> {
    (0..n).map(|n| format!("c{n}")).collect()
}

#[test]
fn unchecked_references_are_reported_and_refuse_an_enforced_write() {
    let names = numbered(SUSPECTS_MAX + 1);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clusters: Vec<String> = names.iter().map(|name| cluster(name)).collect();
    let mut world = World::with("base", &clusters);
    assert_eq!(world.adds("edge", &[table("main", &names[1..])]), NONE);
    let expected = "1 reference was not checked, because the transaction has too many; publish the resources in \
         several transactions [reference.unchecked]";
    assert_eq!(world.adds("edge", &[table("main", &names)]), [expected]);
    world.settings.modes = Validation::of(ValidationMode::Enforce);
    let write = world.apply("edge", &resources(&[table("main", &names)]), Prune::Keep);
    let findings = world.check(&write);
    assert_eq!(
        (lines(&findings.refusing), findings.warnings.len()),
        (vec![expected.to_owned()], 0)
    );
    world.clients.clear();
    assert!(world.check(&write).refusing.is_empty(), "no node has the view");
}

#[test]
fn number_of_listed_findings_is_bounded() {
    let finding = |n: usize| Problem { rule: n.to_string(), ..Problem::default() };
    let mut findings: Vec<Problem> = (0..1200).map(finding).collect();
    shorten(&mut findings);
    assert_eq!(findings.len(), 1000);
    assert_eq!(findings[999].rule, "999; 200 further findings were not listed");
}
