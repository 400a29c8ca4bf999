//! A SotW client whose earlier stream was on another replica: it reports a version that this replica has never sent.

use super::{
    world::{Stream, World, node},
    *,
};
use crate::replica::recent_states::KEEP;

/// The versions of clusters and routes before a swap.
struct Before {
    clusters: String,
    routes: String,
}

/// Publishes a cluster and a route in the scope `one`, and replaces the cluster by another one.
fn swap(world: &mut World) -> Before {
    world.put("one", CLUSTER, "old");
    world.put("one", ROUTE, "r");
    let before = Before {
        clusters: world.version(CLUSTER, &["one"]),
        routes: world.version(ROUTE, &["one"]),
    };
    world.put("one", CLUSTER, "new");
    world.put("one", ROUTE, "r");
    world.delete("one", CLUSTER, "old");
    before
}

fn open(world: &mut World, identity: &str, before: &Before) -> Stream {
    let stream = world.open(Protocol::Sotw, identity, "n");
    world.request(&stream, CLUSTER, &[], &before.clusters);
    world.request(&stream, ROUTE, &["r"], &before.routes);
    stream
}

/// Returns what the first response has.
fn first(world: &mut World, identity: &str, before: &Before) -> Vec<String> {
    let mut stream = open(world, identity, before);
    world.take(&mut stream)
}

fn accept(world: &mut World, stream: &mut Stream, expected_type: &str) {
    let (type_url, version, nonce) = stream.unanswered.pop().unwrap();
    assert_eq!((type_url.as_str(), stream.unanswered.len()), (expected_type, 0));
    world.answer(stream, &type_url, &version, &nonce, None);
}

/// ADS-08, ADS-09: the removed cluster stays in the response to a client of another replica until the client has
/// acknowledged the routes.
#[test]
fn client_of_another_replica_keeps_removed_cluster_until_routes_are_acknowledged() {
    let mut world = World::new(AccessControl::Off);
    world.assign("all", "*", &["one"]);
    let before = swap(&mut world);
    let mut stream = open(&mut world, "anonymous", &before);
    assert_eq!(world.take(&mut stream), ["one/new", "one/old"]);
    accept(&mut world, &mut stream, CLUSTER);
    assert_eq!(world.take(&mut stream), ["one/r"]);
    world.harness.ms += 2_000;
    assert_eq!(world.take(&mut stream), [""; 0], "the routes are not acknowledged");
    accept(&mut world, &mut stream, ROUTE);
    assert_eq!(world.take(&mut stream), ["one/new"]);
}

/// ADS-08: a client that loses its stream while the swap is pending reports a version that has the removed cluster. After
/// a further change, another replica knows the state of this version, and what was removed since.
#[test]
fn client_with_removed_resources_keeps_what_is_removed_later() {
    let mut world = World::new(AccessControl::Off);
    world.assign("all", "*", &["one"]);
    world.put("one", CLUSTER, "second");
    let before = swap(&mut world);
    let mut stream = open(&mut world, "anonymous", &before);
    assert_eq!(world.take(&mut stream), ["one/new", "one/second", "one/old"]);
    let held = stream.versions[CLUSTER].clone();
    assert!(held.contains("-held-"), "{held}");
    // The stream is still open here, as on the other replica: there is no record of it.
    let before = Before { clusters: held, ..before };
    // The new routes go first. The clusters follow when the removal may be sent.
    assert_eq!(first(&mut world, "anonymous", &before), ["one/r"]);
    world.delete("one", CLUSTER, "second");
    assert_eq!(first(&mut world, "anonymous", &before), ["one/new", "one/second"]);
}

/// ADS-08: the same for a client that names its clusters, as gRPC clients do. It has already dropped the removed one.
#[test]
fn client_of_named_clusters_keeps_what_is_removed_later() {
    let mut world = World::new(AccessControl::Off);
    world.assign("all", "*", &["one"]);
    let before = swap(&mut world);
    let open = |world: &mut World, names: &[&str], before: &Before| {
        let stream = world.open(Protocol::Sotw, "anonymous", "n");
        world.request(&stream, CLUSTER, names, &before.clusters);
        world.request(&stream, ROUTE, &["r"], &before.routes);
        stream
    };
    let mut stream = open(&mut world, &["new", "old"], &before);
    assert_eq!(world.take(&mut stream), ["one/new", "one/old"]);
    let clusters = stream.versions[CLUSTER].clone();
    assert!(clusters.ends_with("-part"), "{clusters}");
    let before = Before { clusters, routes: world.version(ROUTE, &["one"]) };
    world.put("one", CLUSTER, "next");
    world.put("one", ROUTE, "r");
    world.delete("one", CLUSTER, "new");
    let mut stream = open(&mut world, &["new"], &before);
    assert_eq!(world.take(&mut stream), ["one/new"]);
}

/// The first response has the present state only if the client reports a version that its node had in no recent state.
#[test]
fn client_with_an_unknown_version_gets_the_present_state_alone() {
    let mut world = World::new(AccessControl::Off);
    world.assign("all", "*", &["one"]);
    let before = swap(&mut world);
    let resumed = ["one/new", "one/old"];
    assert_eq!(first(&mut world, "anonymous", &before), resumed);

    let (revision, _) = before.clusters.split_once('-').unwrap();
    let present = world.version(CLUSTER, &["one"]);
    for other in
        ["", "1", "zz-1", "0-1", &format!("{revision}-2"), &format!("{revision}-1-x"), &present]
    {
        let other = Before { clusters: other.to_owned(), routes: String::new() };
        let found = first(&mut world, "anonymous", &other);
        assert!(!found.contains(&"one/old".to_owned()), "{}: {found:?}", other.clusters);
        assert!(found.contains(&"one/new".to_owned()), "{}: {found:?}", other.clusters);
    }

    // Another node, with other scopes.
    world.put("two", CLUSTER, "own");
    world.assign("a-blue", "blue", &["two"]);
    let blue = Node { cluster: "blue".to_owned(), ..node("n") };
    let mut stream = world.open_with(Protocol::Sotw, None, "anonymous", blue);
    world.request(&stream, CLUSTER, &[], &before.clusters);
    assert_eq!(world.take(&mut stream), ["two/own"]);

    let almost = u64::try_from(KEEP.as_millis()).unwrap() - 1;
    world.harness.ms += almost;
    assert_eq!(first(&mut world, "anonymous", &before), resumed);
    world.harness.ms += 1;
    assert_eq!(first(&mut world, "anonymous", &before), ["one/new"], "the state has expired");
}

/// T3: a client gets a removed resource only if its identity could read it in the old state, and may read its scope now.
#[test]
fn client_of_another_replica_needs_the_rights_of_then_and_now() {
    let mut world = World::new(AccessControl::Enforced);
    world.permit("token:a", &["one", "two"]);
    world.permit("token:b", &["two"]);
    world.permit("anonymous", &["one", "two"]);
    world.assign("all", "*", &["one"]);
    let before = swap(&mut world);
    let resumed = ["one/new", "one/old"];
    world.permit("token:b", &["one", "two"]);
    assert_eq!(first(&mut world, "token:a", &before), resumed);
    assert_eq!(first(&mut world, "anonymous", &before), resumed);
    let of_b = first(&mut world, "token:b", &before);
    assert_eq!(of_b, ["one/new"], "it got the right after the removal");

    world.assign("all", "*", &["two"]);
    assert_eq!(first(&mut world, "token:a", &before), ["one/old"], "it keeps the right");
    let unproven = first(&mut world, "anonymous", &before);
    assert_eq!(unproven, [""; 0], "its node is only a claim");
    world.permit("token:a", &["two"]);
    assert_eq!(first(&mut world, "token:a", &before), [""; 0], "it lost the right");
}
