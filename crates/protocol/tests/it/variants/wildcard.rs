//! Wildcards with parameters, and names with parameters beside a wildcard.

use super::*;

const PROD: &[(&str, &str)] = &[("env", "prod")];
const TEST: &[(&str, &str)] = &[("env", "test")];

/// Publishes a variant for each of two environments and for clients without parameters.
fn world(protocol: Protocol) -> World {
    let mut world = World::new(protocol, types::CLUSTER);
    publish(&mut world, "1");
    world
}

fn publish(world: &mut World, version: &str) {
    let all = [env("prod"), env("test"), without("env")];
    let all: Vec<_> = all.iter().map(|one| ("cv", one, version)).collect();
    world.write(&all, &[]);
}

/// DYN-12: only a locator with the same parameters ends a wildcard.
#[test]
fn unsubscription_with_other_parameters_keeps_the_wildcard() {
    let all: [(NameList, Locator<'_>, &str); 3] = [
        (list(&[], &[("*", TEST)]), ("*", PROD), "cv[env=\"test\"]"),
        (list(&[], &[("*", TEST)]), ("*", &[]), "cv[env=\"test\"]"),
        (list(&["*"], &[]), ("*", PROD), "cv[not env exists]"),
    ];
    for (subscribed, other, name) in all {
        let mut world = world(Protocol::Delta);
        world.delta(subscribed.clone(), none());
        // A plain wildcard has no constraints until the client uses locators.
        assert_eq!(world.next_delta().unwrap().len(), 1, "{name}");
        world.delta(none(), list(&[], &[other]));
        while world.next_delta().is_some() {}
        publish(&mut world, "2");
        assert_eq!(world.next_delta().unwrap(), [format!("{name}=2")], "not {other:?}");
        world.delta(none(), subscribed);
        publish(&mut world, "3");
        assert_eq!(world.next_delta(), None, "the same parameters");
    }
}

/// DYN-12, DELTA-20: one request replaces a plain wildcard by one with parameters.
#[test]
fn plain_wildcard_is_replaced_by_one_with_parameters() {
    let mut world = world(Protocol::Delta);
    world.delta(list(&["*"], &[]), none());
    assert_eq!(world.next_delta().unwrap(), ["cv=1"]);
    world.delta(list(&[], &[("*", TEST)]), list(&["*"], &[]));
    assert_eq!(world.next_delta().unwrap(), ["cv[env=\"test\"]=1"]);
    // Of two wildcards, the last one counts.
    world.delta(list(&[], &[("*", PROD)]), none());
    assert_eq!(world.next_delta().unwrap(), ["-cv[env=\"test\"]", "cv[env=\"prod\"]=1"]);
    world.delta(list(&[], &[("*", TEST)]), list(&[], &[("*", TEST)]));
    publish(&mut world, "2");
    assert_eq!(world.next_delta().unwrap(), ["cv[env=\"prod\"]=2"], "unsubscribe wins");
}

/// DYN-03, DYN-10: a delta client receives a named variant beside a wildcard, and its changes.
#[test]
fn named_variant_beside_a_delta_wildcard_is_updated_and_removed() {
    let mut world = world(Protocol::Delta);
    world.delta(list(&["*"], &[("cv", PROD)]), none());
    let mut first = world.next_delta().unwrap();
    first.extend(world.next_delta().into_iter().flatten());
    assert_eq!(first, ["cv[env=\"prod\"]=1", "cv[not env exists]=1"]);
    world.write(&[("cv", &env("prod"), "2"), ("cv", &env("test"), "2")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["cv[env=\"prod\"]=2"]);
    world.write(&[("cv", &without("env"), "3")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["cv[not env exists]=3"]);
    world.now += 100_000;
    world.write(&[], &[("cv", &env("prod"))]);
    assert_eq!(world.next_delta().unwrap(), ["-cv[env=\"prod\"]"]);
    world.write(&[("cv", &env("prod"), "4")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["cv[env=\"prod\"]=4"]);
    // The end of the wildcard leaves the name.
    world.delta(none(), list(&["*"], &[]));
    publish(&mut world, "5");
    assert_eq!(world.next_delta().unwrap(), ["cv[env=\"prod\"]=5"]);
}

/// DYN-10: the wildcard and a name select one variant. It stays until none of them selects it.
#[test]
fn variant_of_a_wildcard_and_a_name_stays_for_either() {
    let mut world = world(Protocol::Delta);
    world.delta(list(&[], &[("*", PROD), ("cv", PROD), ("cv", TEST)]), none());
    let mut first = world.next_delta().unwrap();
    first.extend(world.next_delta().into_iter().flatten());
    assert_eq!(first, ["cv[env=\"prod\"]=1", "cv[env=\"test\"]=1"]);
    // The wildcard selects another variant, which the client has.
    world.delta(list(&[], &[("*", TEST)]), none());
    while let Some(said) = world.next_delta() {
        assert!(!said.iter().any(|one| one.starts_with('-')), "{said:?}");
    }
    publish(&mut world, "2");
    assert_eq!(world.next_delta().unwrap(), ["cv[env=\"prod\"]=2", "cv[env=\"test\"]=2"]);
}

/// DYN-01, DYN-03, SOTW-67: a full state has the named variants beside those of the wildcard.
#[test]
fn full_state_has_named_variants_beside_a_wildcard() {
    let mut world = world(Protocol::Sotw);
    let names = || list(&["*"], &[("cv", PROD), ("cv", TEST)]);
    world.sotw(names(), "");
    let expect = |version: &str| {
        ["env=\"prod\"", "env=\"test\"", "not env exists"].map(|one| format!("cv[{one}]={version}"))
    };
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, expect("1"));
    world.sotw(names(), &nonce);
    world.write(&[("cv", &env("prod"), "2")], &[]);
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, ["cv[env=\"prod\"]=2", &expect("1")[1], &expect("1")[2]]);
    world.sotw(names(), &nonce);
    publish(&mut world, "3");
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, expect("3"));
    world.sotw(names(), &nonce);
    world.now += 100_000;
    world.write(&[], &[("cv", &env("prod"))]);
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, expect("3")[1..]);
    let names = || list(&["*"], &[("cv", TEST)]);
    world.sotw(names(), &nonce);
    world.write(&[("cv", &env("prod"), "4"), ("cv", &env("test"), "4")], &[]);
    let (said, _) = world.next_sotw().unwrap();
    assert_eq!(said, ["cv[env=\"test\"]=4", "cv[not env exists]=3"], "unsubscribed");
}
