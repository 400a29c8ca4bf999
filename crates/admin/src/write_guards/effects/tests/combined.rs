//! Writes that change assignments and resources together, and resources of several scopes or variants.

use super::*;

/// Returns an assignment of the nodes with an ID of `e…`.
fn assignment(scopes: &str) -> String {
    EDGE.replace("[edge]", scopes)
}

/// Returns a manifest that replaces the scope `edge` and the assignment.
fn moved(resources: &str, scopes: &str) -> String {
    format!("{resources}\n---\n{}", assignment(scopes))
}

fn in_scope(scope: &str, all: &[String]) -> String {
    resources(all).replace("scope: edge", &format!("scope: {scope}"))
}

/// Returns a state whose nodes have the scopes `edge` and `base`.
fn layered(edge: &[String], base: &[String]) -> World {
    let mut world = World::new(&resources(edge)).connect("e1", &[]);
    world.commit(&in_scope("base", base));
    world.commit(&assignment("[edge, base]"));
    world
}

#[test]
fn change_of_the_assignment_does_not_hide_a_mass_deletion() {
    let world = World::new(&clusters(40)).connect("e1", &[]);
    let effect = "view edge → edge, empty (1 node): 40 → 1 resources of type Cluster, more than 30 % deleted";
    let write = moved(&clusters(1), "[edge, empty]");
    assert_eq!(world.replaces(&write), only("mass-deletion", effect));
    assert_eq!(world.replaces(&moved(&clusters(39), "[edge, empty]")), NONE);
}

#[test]
fn move_to_an_empty_scope_with_the_deletion_of_all_resources_trips_both_guards() {
    let world = World::new(&clusters(40)).connect("e1", &[]);
    let found = world.replaces(&moved(&resources(&[]), "[blue]"));
    let effects: Vec<&str> = found.iter().flat_map(|(_, all)| all).map(String::as_str).collect();
    let expected = [
        "view edge → blue (1 node): 40 → 0 resources of type Cluster, more than 30 % deleted",
        "1 node: edge → blue, 40 → 0 resources",
    ];
    assert_eq!(effects, expected, "{found:?}");
}

#[test]
fn change_of_the_assignment_does_not_hide_a_used_cluster_or_lost_endpoints() {
    let both = [cluster("used"), cluster("web"), endpoints("web", 3), route("main", "used")];
    let mut world = World::new("resources: []").connect("e1", &[]);
    world.commit(&in_scope("v-1", &both));
    world.commit(&assignment("['v-{node.cluster}']"));
    let node = Node { id: "e1".to_owned(), cluster: "1".to_owned(), ..Node::default() };
    world.clients[0].node = Arc::new(node);
    let rest = in_scope("v-1", &[cluster("web"), route("main", "used")]);
    let guards = |write: &str| {
        let found = world.replaces(write);
        found.into_iter().map(|(guard, _)| guard).collect::<Vec<_>>()
    };
    assert_eq!(guards(&rest), ["empty-endpoints", "cluster-in-use"]);
    let write = moved(&rest, "['v-{node.cluster}', empty]");
    assert_eq!(guards(&write), ["empty-endpoints", "cluster-in-use"]);
}

/// The other guards judge the changes of resources, so that a new scope without resources changes no view.
#[test]
fn added_resources_and_an_empty_scope_do_not_trip_view_change() {
    let world = World::new(&clusters(9)).connect("e1", &[]);
    assert_eq!(world.adds(&moved(&resources(&[route("main", "c1")]), "[edge, empty]")), NONE);
    let world = layered(&[cluster("a")], &[]);
    let filled = moved(&in_scope("base", &[cluster("b")]), "[edge]");
    assert_eq!(world.adds(&filled), NONE, "the node never had the cluster");
    let world = World::new(&clusters(9)).connect("e1", &[]);
    let green = clusters(9).replace("scope: edge", "scope: green");
    let effect = "1 node: edge → green, 9 → 9 resources";
    assert_eq!(world.adds(&moved(&green, "[green]")), only("view-change", effect));
}

#[test]
fn empty_list_that_shadows_endpoints_trips_empty_endpoints() {
    let world = layered(&[cluster("web")], &[endpoints("web", 3)]);
    let effect = "view edge, base (1 node): 3 → 0 endpoints of \"web\"";
    assert_eq!(world.adds(&resources(&[endpoints("web", 0)])), only("empty-endpoints", effect));
    let shadowed = in_scope("base", &[endpoints("new", 0)]);
    assert_eq!(world.adds(&shadowed), NONE, "there were no endpoints");
}

/// The other replicas are not asked about an added resource whose name no scope had: it shadows nothing. A write of a
/// new cluster was refused while one replica was down.
#[test]
fn added_resource_of_a_new_name_without_endpoints_is_not_suspect() {
    let world = layered(&[cluster("web")], &[cluster("db"), endpoints("web", 3)]);
    let is_suspect = |manifest: &str| {
        let applied = world.apply(manifest, Prune::Keep);
        let references = ReferenceIndex::of(&applied.state);
        !Suspects::of(&world.state, &applied, Some(&references), &world.settings).is_empty()
    };
    let many: Vec<String> = (0..9).map(|n| cluster(&format!("n{n}"))).collect();
    for new in [vec![cluster("new")], vec![endpoints("new", 0)], many.clone()] {
        assert!(!is_suspect(&resources(&new)), "{new:?}");
        assert!(!is_suspect(&in_scope("other", &new)), "{new:?}");
    }
    let one_known = [many, vec![cluster("db")]].concat();
    for known in [vec![cluster("db")], vec![endpoints("web", 0)], one_known] {
        assert!(is_suspect(&resources(&known)), "{known:?}");
    }
    assert!(is_suspect(&in_scope("other", &[cluster("web")])));
}

#[test]
fn deleted_endpoints_of_a_cluster_in_another_scope_trip_empty_endpoints() {
    let base = [cluster("other"), endpoints("web", 3)];
    let world = layered(&[cluster("web")], &base);
    let effect = "view edge, base (1 node): 3 → 0 endpoints of \"web\"";
    let rest = in_scope("base", &[cluster("other")]);
    assert_eq!(world.replaces(&rest), only("empty-endpoints", effect));
    let world = layered(&[cluster("unrelated")], &base);
    assert_eq!(world.replaces(&rest), NONE, "no cluster uses the endpoints");
}

#[test]
fn deleted_endpoints_of_a_service_name_trip_empty_endpoints() {
    let named = named("web", "svc");
    let world = World::new(&resources(&[named.clone(), endpoints("svc", 3)])).connect("e1", &[]);
    let effect = "view edge (1 node): 3 → 0 endpoints of \"svc\"";
    assert_eq!(world.replaces(&resources(&[named])), only("empty-endpoints", effect));
}

/// Returns a cluster with a `service_name`.
fn named(name: &str, service: &str) -> String {
    cluster(name)
        .replace("eds_config: {ads", &format!("service_name: {service}, eds_config: {{ads"))
}

#[test]
fn cluster_that_turns_to_missing_endpoints_trips_empty_endpoints() {
    let list = endpoints("web", 2).split_once(", endpoints").unwrap().1.to_owned();
    let inline = format!("load_assignment: {{cluster_name: web, endpoints{list}");
    let fixed = cluster("web")
        .replace("type: EDS, eds_cluster_config: {eds_config: {ads: {}}}", "type: STATIC");
    let fixed = fixed.replace("STATIC", &format!("STATIC, {inline}"));
    let world = World::new(&resources(std::slice::from_ref(&fixed))).connect("e1", &[]);
    let effect = "view edge (1 node): 2 → 0 endpoints of \"web\"";
    assert_eq!(world.adds(&resources(&[cluster("web")])), only("empty-endpoints", effect));
    let both = [cluster("web"), endpoints("web", 1)];
    assert_eq!(world.adds(&resources(&both)), NONE, "the write has the endpoints, too");

    let world = World::new(&resources(&[cluster("web"), endpoints("web", 2)])).connect("e1", &[]);
    assert_eq!(world.adds(&resources(&[named("web", "none")])), only("empty-endpoints", effect));
    let empty = cluster("web")
        .replace("type: EDS, eds_cluster_config: {eds_config: {ads: {}}}", "type: STATIC");
    assert_eq!(world.adds(&resources(&[empty])), only("empty-endpoints", effect));
    // A cluster of an earlier scope takes the place of the full one.
    let world = layered(&[cluster("other")], &[fixed]);
    let effect = "view edge, base (1 node): 2 → 0 endpoints of \"web\"";
    assert_eq!(world.adds(&resources(&[cluster("web")])), only("empty-endpoints", effect));
}

/// DYN-09: the variants of a name count as one resource.
#[test]
fn deletion_of_the_default_variants_trips_mass_deletion() {
    let of = |env: Option<&str>| -> Vec<String> {
        (0..25).map(|n| variant(env, &cluster(&format!("c{n}")))).collect()
    };
    let envs = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let others: Vec<String> = envs.iter().flat_map(|env| of(Some(env))).collect();
    let all = [&others[..], &of(None)].concat();
    let world = World::new(&resources(&all)).connect("e1", &[]);
    let effect = "view edge (1 node): 25 → 0 resources of type Cluster, more than 30 % deleted";
    assert_eq!(world.replaces(&resources(&others)), only("mass-deletion", effect));
    let rest = [&others[..], &of(None)[..20]].concat();
    assert_eq!(world.replaces(&resources(&rest)), NONE, "20 % is allowed");
    // Names without a variant for the node are not in its view.
    let hidden = (0..200).map(|n| variant(Some("a"), &cluster(&format!("h{n}"))));
    let hidden: Vec<String> = hidden.collect();
    let world = World::new(&resources(&[&hidden[..], &of(None)].concat())).connect("e1", &[]);
    assert_eq!(world.replaces(&resources(&hidden)), only("mass-deletion", effect));
}
