//! Each guard: tripped, below its threshold, and without the nodes or references that it protects.

use std::sync::Arc;

use chancery_admission::{Manifest, Options, Prune, admit};
use chancery_model::{Incarnation, Locality, Outcome};

use super::*;
use crate::node_groups::{Client, connected_nodes};

mod combined;

const EDGE: &str = "assignments: [{name: edge, priority: 1, match: {id: 'e*'}, scopes: [edge]}]";

/// A state, and the nodes that are connected.
struct World {
    state: State,
    clients: Vec<Client>,
    settings: GuardSettings,
    n_unknown_replicas: usize,
}

impl World {
    /// Creates a state in which nodes with an ID of `e…` have the scope `edge`.
    fn new(content: &str) -> Self {
        let mut world = Self {
            state: State::new(Incarnation(1)),
            clients: Vec::new(),
            settings: GuardSettings::default(),
            n_unknown_replicas: 0,
        };
        world.commit(EDGE);
        world.commit(content);
        world
    }

    fn connect(self, id: &str, sotw_types: &[&'static str]) -> Self {
        self.connect_as(id, sotw_types, "envoy/1.40.0")
    }

    fn connect_as(mut self, id: &str, sotw_types: &[&'static str], user_agent: &str) -> Self {
        let (id, user_agent) = (id.to_owned(), user_agent.to_owned());
        let node = Arc::new(Node { id, user_agent, ..Node::default() });
        let sotw_types = sotw_types.iter().map(|url| TypeUrl::from_static(url)).collect();
        self.clients.push(Client { node, sotw_types, identity: None });
        self
    }

    fn commit(&mut self, content: &str) {
        self.state = self.apply(content, Prune::Keep).state;
    }

    fn apply(&self, content: &str, prune: Prune) -> chancery_model::Applied {
        let manifest = Manifest { file: "a.yaml".to_owned(), content: content.to_owned() };
        let options = Options { prune, ..Options::new(ScopeName::new("edge").unwrap()) };
        let transaction = admit(&[manifest], &options).unwrap();
        let applied = self.state.apply(&transaction);
        assert!(matches!(applied.outcome, Outcome::Committed(_)), "{:?}", applied.outcome);
        applied
    }

    fn trips(&self, applied: &chancery_model::Applied) -> Vec<(&'static str, Vec<String>)> {
        let references = ReferenceIndex::of(&applied.state);
        let suspects = Suspects::of(&self.state, applied, Some(&references), &self.settings);
        let tried = Tried {
            before: &self.state,
            after: &applied.state,
            suspects: &suspects,
            references: Some(&references),
            settings: &self.settings,
            n_unknown_replicas: self.n_unknown_replicas,
        };
        let (before, after) = (&self.state, &applied.state);
        let connected = connected_nodes(&self.clients, before, after, &suspects.scopes());
        let found = findings(&tried, &connected);
        found.into_iter().map(|finding| (finding.guard.name(), finding.effects)).collect()
    }

    /// Returns the guards that a manifest trips, with their effects.
    fn adds(&self, content: &str) -> Vec<(&'static str, Vec<String>)> {
        self.trips(&self.apply(content, Prune::Keep))
    }

    /// Returns the guards that a manifest trips if it replaces the scope `edge`.
    fn replaces(&self, content: &str) -> Vec<(&'static str, Vec<String>)> {
        self.trips(&self.apply(content, Prune::Prune))
    }
}

fn resources(all: &[String]) -> String {
    format!("scope: edge\nresources: [{}]", all.join(", "))
}

fn cluster(name: &str) -> String {
    let url = types::CLUSTER;
    let eds = "eds_cluster_config: {eds_config: {ads: {}}}";
    format!("{{'@type': {url}, name: {name}, connect_timeout: 1s, type: EDS, {eds}}}")
}

fn clusters(n: usize) -> String {
    resources(&(0..n).map(|n| cluster(&format!("c{n}"))).collect::<Vec<_>>())
}

fn endpoints(name: &str, n: usize) -> String {
    let one = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 80}}}}";
    let (url, all) = (types::ENDPOINT, vec![one; n].join(", "));
    format!("{{'@type': {url}, cluster_name: {name}, endpoints: [{{lb_endpoints: [{all}]}}]}}")
}

fn route(name: &str, cluster: &str) -> String {
    let url = types::ROUTE;
    let routes = format!("[{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]");
    format!(
        "{{'@type': {url}, name: {name}, virtual_hosts: [{{name: all, domains: ['*'], routes: {routes}}}]}}"
    )
}

const NONE: Vec<(&str, Vec<String>)> = Vec::new();

fn only(guard: &'static str, effect: &str) -> Vec<(&'static str, Vec<String>)> {
    vec![(guard, vec![effect.to_owned()])]
}

#[test]
fn deletion_of_more_than_the_share_trips_mass_deletion() {
    let world = World::new(&clusters(30)).connect("e1", &[]).connect("e2", &[]).connect("x", &[]);
    assert_eq!(world.replaces(&clusters(21)), NONE, "30 % is allowed");
    let effect = "view edge (2 nodes): 30 → 20 resources of type Cluster, more than 30 % deleted";
    assert_eq!(world.replaces(&clusters(20)), only("mass-deletion", effect));
}

#[test]
fn small_or_unused_views_do_not_trip_mass_deletion() {
    let small = World::new(&clusters(19)).connect("e1", &[]);
    assert_eq!(small.replaces(&clusters(1)), NONE);
    let unused = World::new(&clusters(30)).connect("x", &[]);
    assert_eq!(unused.replaces(&clusters(1)), NONE);
    // The nodes of two replicas are unknown.
    let replicated = World { n_unknown_replicas: 2, ..unused };
    let effect =
        "view edge (no connected node): 30 → 1 resources of type Cluster, more than 30 % deleted";
    assert_eq!(replicated.replaces(&clusters(1)), only("mass-deletion", effect));
}

/// A resource of another scope that takes the place of a removed one is not lost.
#[test]
fn replaced_resources_do_not_count_as_deleted() {
    let mut world = World::new(&clusters(30)).connect("e1", &[]);
    world.commit(&clusters(30).replace("scope: edge", "scope: base"));
    world.commit(&EDGE.replace("[edge]", "[edge, base]"));
    assert_eq!(world.replaces(&clusters(1)), NONE);
}

#[test]
fn disabled_guard_is_never_tripped() {
    let mut world = World::new(&clusters(30)).connect("e1", &[]);
    world.settings.off = vec!["mass-deletion".to_owned()];
    assert_eq!(world.replaces(&clusters(1)), NONE);
}

#[test]
fn endpoints_that_become_empty_trip_empty_endpoints() {
    let full = resources(&[cluster("web"), endpoints("web", 3)]);
    let world = World::new(&full).connect("e1", &[]);
    let effect = "view edge (1 node): 3 → 0 endpoints of \"web\"";
    assert_eq!(world.adds(&resources(&[endpoints("web", 0)])), only("empty-endpoints", effect));
    assert_eq!(world.adds(&resources(&[endpoints("web", 1)])), NONE);
    // A removal leaves the cluster without endpoints, unless the cluster goes, too.
    assert_eq!(world.replaces(&resources(&[cluster("web")])), only("empty-endpoints", effect));
    assert_eq!(world.replaces(&resources(&[cluster("other")])), NONE);
    let unused = World::new(&full);
    let effect = "view edge (no connected node): 3 → 0 endpoints of \"web\"";
    assert_eq!(unused.adds(&resources(&[endpoints("web", 0)])), only("empty-endpoints", effect));
}

/// Envoy uses endpoints without health if it has no others. gRPC clients do not, and Java keeps those that it had.
#[test]
fn endpoints_that_grpc_clients_cannot_use_trip_empty_endpoints() {
    let of = |state: &str| {
        let url = types::ENDPOINT;
        let endpoint = format!(
            "{{health_status: {state}, endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 80}}}}}}}}"
        );
        let locality = format!(
            "{{locality: {{zone: a}}, load_balancing_weight: 1, lb_endpoints: [{endpoint}]}}"
        );
        resources(&[
            cluster("web"),
            format!("{{'@type': {url}, cluster_name: web, endpoints: [{locality}]}}"),
        ])
    };
    let envoy = World::new(&of("HEALTHY")).connect("e1", &[]);
    let go = World::new(&of("HEALTHY")).connect_as("e1", &[], "gRPC Go/1.85.0");
    let effect = "view edge (1 node): 1 → 0 endpoints of \"web\" that gRPC clients use (grpc-java keeps sending to the \
                  old ones)";
    for state in ["UNHEALTHY", "DRAINING"] {
        assert_eq!(envoy.adds(&of(state)), NONE, "{state}");
        assert_eq!(go.adds(&of(state)), only("empty-endpoints", effect), "{state}");
    }
    assert_eq!(go.adds(&of("UNKNOWN")), NONE);
}

/// The other replicas are not asked about a write that no guard can concern.
#[test]
fn small_deletion_and_unused_cluster_are_not_suspect() {
    let suspects = |world: &World, rest: &str| {
        let applied = world.apply(rest, Prune::Prune);
        let references = ReferenceIndex::of(&applied.state);
        Suspects::of(&world.state, &applied, Some(&references), &world.settings)
    };
    let small = World::new(&clusters(19));
    assert!(suspects(&small, &clusters(1)).is_empty());
    let used = World::new(&resources(&[cluster("web"), cluster("old"), route("main", "web")]));
    let rest = [cluster("web"), route("main", "web")];
    assert!(suspects(&used, &resources(&rest)).is_empty(), "nothing refers to the cluster");
    assert!(!suspects(&used, &resources(&rest[1..])).is_empty());
    // A view may have the resources of several scopes.
    let mut layered = World::new(&clusters(19));
    layered.commit(&clusters(1).replace("scope: edge", "scope: node/e1").replace("c0", "own"));
    assert!(suspects(&layered, &clusters(1)).is_empty(), "no view has both scopes");
    layered.commit(&EDGE.replace("[edge]", "[edge, 'node/{node.id}']"));
    assert!(!suspects(&layered, &clusters(1)).is_empty());
}

#[test]
fn list_that_was_empty_does_not_trip_empty_endpoints() {
    let world = World::new(&resources(&[endpoints("web", 0)])).connect("e1", &[]);
    let locality = endpoints("web", 0).replace("lb_endpoints", "priority: 1, lb_endpoints");
    assert_eq!(world.adds(&resources(&[locality])), NONE);
}

#[test]
fn removal_of_a_cluster_that_a_route_uses_trips_cluster_in_use() {
    let both = resources(&[cluster("web"), cluster("old"), route("main", "web")]);
    let world = World::new(&both).connect("e1", &[]);
    let removed = |rest: &[String]| world.replaces(&resources(rest));
    let effect = "view edge (1 node): RouteConfiguration \"main\" still uses the cluster \"web\"";
    assert_eq!(removed(&[cluster("old"), route("main", "web")]), only("cluster-in-use", effect));
    assert_eq!(removed(&[cluster("web"), route("main", "web")]), NONE);
    assert_eq!(removed(&[cluster("old"), route("main", "old")]), NONE, "the route moves, too");
    assert_eq!(removed(&[cluster("old")]), NONE, "the route goes, too");
}

/// More removed clusters than are searched by name.
#[test]
fn removal_of_many_clusters_finds_the_used_one() {
    let mut all: Vec<String> = (0..10).map(|n| cluster(&format!("c{n}"))).collect();
    all.push(route("main", "c7"));
    let world = World::new(&resources(&all)).connect("e1", &[]);
    let effect = "view edge (1 node): RouteConfiguration \"main\" still uses the cluster \"c7\"";
    let rest = resources(&[route("main", "c7")]);
    assert_eq!(world.replaces(&rest), only("cluster-in-use", effect));
}

#[test]
fn cluster_of_another_scope_keeps_routes_working() {
    let mut world = World::new(&resources(&[cluster("web"), route("main", "web")]));
    world.commit(&resources(&[cluster("web")]).replace("scope: edge", "scope: base"));
    world.commit(&EDGE.replace("[edge]", "[edge, base]"));
    assert_eq!(world.replaces(&resources(&[route("main", "web")])), NONE);
}

#[test]
fn assignment_that_empties_a_view_trips_view_change() {
    let world = World::new(&clusters(9)).connect("e1", &[]);
    let effect = "1 node: edge → nothing, 9 → 0 resources";
    let none = EDGE.replace("[edge]", "['{metadata.unknown}']");
    assert_eq!(world.adds(&none), only("view-change", effect));
    let moved = EDGE.replace("[edge]", "[blue]");
    let effect = "1 node: edge → blue, 9 → 0 resources";
    assert_eq!(world.adds(&moved), only("view-change", effect));
    let capturing = EDGE.replace("name: edge, priority: 1", "name: first, priority: 2");
    assert_eq!(world.adds(&capturing.replace("[edge]", "[blue]")), only("view-change", effect));
}

#[test]
fn assignment_that_moves_no_node_does_not_trip_view_change() {
    let mut world = World::new(&clusters(9)).connect("x", &[]);
    let moved = EDGE.replace("[edge]", "[blue]");
    assert_eq!(world.adds(&moved), NONE, "no connected node has the assignment");
    world = world.connect("e1", &[]);
    let same = EDGE.replace("[edge]", "[edge, empty]");
    assert_eq!(world.adds(&same), NONE, "an empty scope changes no view");
}

/// The nodes of replicas that were not asked may have an assignment that no known node has.
#[test]
fn changed_assignment_trips_view_change_if_replicas_were_not_asked() {
    let world = World { n_unknown_replicas: 2, ..World::new(&clusters(9)) };
    let moved = EDGE.replace("[edge]", "[blue]");
    let effect = "nodes of 2 other replicas: assignment \"edge\" is changed";
    assert_eq!(world.adds(&moved), only("view-change", effect));
    let empty = World { n_unknown_replicas: 2, ..World::new("resources: []") };
    assert_eq!(empty.adds(&moved), NONE, "the view was empty");
}

#[test]
fn view_that_outgrows_sotw_clients_trips_sotw_size_once() {
    let mut world = World::new(&clusters(10)).connect("e1", &[types::CLUSTER]);
    let size = |world: &World| {
        let scope = ScopeName::new("edge").unwrap();
        let url = TypeUrl::from_static(types::CLUSTER);
        world.state.collection(&scope, &url).unwrap().sotw_bytes
    };
    world.settings.sotw_bytes_max = size(&world) + 10;
    let found = world.adds(&clusters(11));
    assert_eq!(found[0].0, "sotw-size", "{found:?}");
    assert!(
        found[0].1[0]
            .starts_with("view edge (1 node): a SotW response with every Cluster: 0.00 MiB → "),
        "{found:?}"
    );
    let delta = World { clients: Vec::new(), ..World::new(&clusters(10)) }.connect("e1", &[]);
    let delta = World { settings: world.settings.clone(), ..delta };
    assert_eq!(delta.adds(&clusters(11)), NONE, "no SotW client has the view");
    world.commit(&clusters(11));
    assert_eq!(world.adds(&clusters(12)), NONE, "the view was too large before");
}

/// A view may have several scopes that depend on the node. The guard is tripped whichever scope of the view
/// grows: one with variables, or one of all nodes.
#[test]
fn view_of_several_scopes_with_variables_trips_sotw_size() {
    for grown in ["node/e1", "zone/z", "base"] {
        let mut world = World::new("scope: edge\nresources: []");
        world.commit(&EDGE.replace("[edge]", "['node/{node.id}', base, 'zone/{locality.zone}']"));
        for (at, scope) in ["node/e1", "zone/z", "base", "node/e2"].iter().enumerate() {
            let some: Vec<_> = (0..10).map(|n| cluster(&format!("c{at}-{n}"))).collect();
            world.commit(&resources(&some).replace("scope: edge", &format!("scope: {scope}")));
        }
        let locality = Locality { zone: "z".to_owned(), ..Locality::default() };
        let node = Node { id: "e1".to_owned(), locality, ..Node::default() };
        world.clients.push(Client {
            node: Arc::new(node),
            sotw_types: vec![TypeUrl::from_static(types::CLUSTER)],
            identity: None,
        });
        let scopes = ["node/e1", "base", "zone/z"].map(|name| ScopeName::new(name).unwrap());
        let view = View::resolve(&world.state, &scopes);
        world.settings.sotw_bytes_max =
            view.of_type(&TypeUrl::from_static(types::CLUSTER)).sotw_bytes();
        let more = |scope: &str| {
            resources(&[cluster("more")]).replace("scope: edge", &format!("scope: {scope}"))
        };
        let found = world.adds(&more(grown));
        assert_eq!(found.len(), 1, "{grown}: {found:?}");
        assert!(found[0].1[0].starts_with("view node/e1, base, zone/z (1 node): "), "{found:?}");
        assert_eq!(world.adds(&more("node/e2")), NONE, "the node is not connected");
    }
}

/// The size of a collection follows updates and removals.
#[test]
fn size_of_a_collection_is_the_sum_of_its_resources() {
    let mut world = World::new(&resources(&[cluster("a"), cluster("b")]));
    world.state = world.apply(&resources(&[cluster("longer")]), Prune::Prune).state;
    world.commit(&resources(&[cluster("longer").replace("1s", "100s"), cluster("c")]));
    let scope = ScopeName::new("edge").unwrap();
    let all = world.state.collection(&scope, &TypeUrl::from_static(types::CLUSTER)).unwrap();
    let sum: usize = all.resources.values().map(|resource| resource.sotw_len()).sum();
    assert_eq!((all.resources.len(), all.sotw_bytes), (2, sum as u64));
}

fn of_scope(name: &str, settings: GuardSettings) -> GuardSettings {
    let scopes = BTreeMap::from([(ScopeName::new(name).unwrap(), settings)]);
    GuardSettings { scopes, ..GuardSettings::default() }
}

/// A scope has its own share and number; other scopes keep those of the server.
#[test]
fn thresholds_of_a_scope_replace_those_of_the_server() {
    let mut world = World::new(&clusters(10)).connect("e1", &[]);
    let own = GuardSettings {
        deletion_percent: 10,
        deletion_resources_min: 5,
        ..GuardSettings::default()
    };
    world.settings = of_scope("edge", own.clone());
    let effect = "view edge (1 node): 10 → 8 resources of type Cluster, more than 10 % deleted";
    assert_eq!(world.replaces(&clusters(8)), only("mass-deletion", effect));
    assert_eq!(world.replaces(&clusters(9)), NONE, "10 % is allowed");
    world.settings = of_scope("other", own);
    assert_eq!(world.replaces(&clusters(1)), NONE, "the scope has fewer than 20 clusters");
}

#[test]
fn scope_can_have_a_guard_off() {
    let mut world = World::new(&clusters(30)).connect("e1", &[]);
    let off = vec!["mass-deletion".to_owned()];
    world.settings = of_scope("edge", GuardSettings { off, ..GuardSettings::default() });
    assert_eq!(world.replaces(&clusters(1)), NONE);
}

/// Returns a variant for `env=NAME`, or for clients without `env`.
fn variant(env: Option<&str>, resource: &str) -> String {
    let constraints = match env {
        Some(env) => format!("{{constraint: {{key: env, value: {env}}}}}"),
        None => "{not_constraints: {constraint: {key: env, exists: {}}}}".to_owned(),
    };
    format!("{{dynamic_parameter_constraints: {constraints}, resource: {resource}}}")
}

/// DYN-09: guards look at the variants for clients without parameters, and name their constraints.
#[test]
fn guards_name_the_variant_for_clients_without_parameters() {
    let all = |n_default, n_prod| {
        let cluster = variant(None, &cluster("web"));
        let default = variant(None, &endpoints("web", n_default));
        resources(&[cluster, default, variant(Some("prod"), &endpoints("web", n_prod))])
    };
    let world = World::new(&all(1, 1)).connect("e1", &[]);
    let effect = "view edge (1 node): 1 → 0 endpoints of \"web\" [not env exists]";
    assert_eq!(world.adds(&all(0, 1)), only("empty-endpoints", effect));
    assert_eq!(world.adds(&all(1, 0)), NONE, "another variant");
    let users = [route("r", "web"), variant(Some("prod"), &cluster("web"))];
    let both = resources(&[&users[..], &[variant(None, &cluster("web"))]].concat());
    let world = World::new(&both).connect("e1", &[]);
    let effect = "view edge (1 node): RouteConfiguration \"r\" still uses the cluster \"web\"";
    assert_eq!(world.replaces(&resources(&users)), only("cluster-in-use", effect));
    let default = resources(&[route("r", "web"), variant(None, &cluster("web"))]);
    assert_eq!(world.replaces(&default), NONE, "another variant");
}

/// DYN-09: a client receives one variant of a name, so the others do not count.
#[test]
fn variants_for_other_parameters_do_not_trip_guards() {
    let plain: Vec<String> = (0..30).map(|n| cluster(&format!("c{n}"))).collect();
    let variants = (0..60).map(|n| variant(Some(&format!("e{n}")), &cluster("cm")));
    let all: Vec<String> = plain.iter().cloned().chain(variants).collect();
    let mut world = World::new(&resources(&all)).connect("e1", &[types::CLUSTER]);
    assert_eq!(world.replaces(&resources(&plain)), NONE);
    world = World::new(&resources(&plain)).connect("e1", &[types::CLUSTER]);
    let view = View::resolve(&world.state, &[ScopeName::new("edge").unwrap()]);
    let bytes = view.of_type(&TypeUrl::from_static(types::CLUSTER)).sotw_bytes();
    world.settings.sotw_bytes_max = bytes + 200;
    assert_eq!(world.adds(&resources(&all)), NONE);
}
