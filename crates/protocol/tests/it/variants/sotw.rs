//! SotW subscriptions to variants.

use super::*;

const PROD: &[(&str, &str)] = &[("env", "prod")];
const TEST: &[(&str, &str)] = &[("env", "test")];

/// DYN-03, DYN-04: a client with locators receives variants in a wrapper with their constraints.
#[test]
fn locator_receives_the_matching_variant_in_a_wrapper() {
    for type_url in [types::CLUSTER, types::ENDPOINT] {
        let mut world = World::new(Protocol::Sotw, type_url);
        world.write(
            &[
                ("web", &env("prod"), "p"),
                ("web", &env("test"), "t"),
                ("x", &Constraints::Always, "x"),
            ],
            &[],
        );
        world.sotw(list(&["x"], &[("web", PROD), ("web", TEST)]), "");
        let (said, nonce) = world.next_sotw().unwrap();
        assert_eq!(said, ["=x", "web[env=\"prod\"]=p", "web[env=\"test\"]=t"], "{type_url}");
        world.sotw(list(&["x"], &[("web", PROD)]), &nonce);
        if let Some((said, nonce)) = world.next_sotw() {
            assert_eq!(said, ["=x", "web[env=\"prod\"]=p"], "{type_url}");
            world.sotw(list(&["x"], &[("web", PROD)]), &nonce);
        }
        world.write(&[("web", &env("test"), "t2")], &[]);
        assert_eq!(world.next_sotw(), None, "{type_url}");
    }
}

/// DYN-09: a client that uses no locators receives the variant for its parameters without a wrapper.
#[test]
fn plain_name_receives_the_variant_for_no_parameters_bare() {
    for (type_url, names) in [(types::CLUSTER, &[][..]), (types::ENDPOINT, &["web"])] {
        let mut world = World::new(Protocol::Sotw, type_url);
        world.write(&[("web", &env("prod"), "p"), ("web", &without("env"), "d")], &[]);
        world.sotw(list(names, &[]), "");
        let (said, nonce) = world.next_sotw().unwrap();
        assert_eq!(said, ["=d"], "{type_url}");
        world.sotw(list(names, &[]), &nonce);
        world.write(&[("web", &env("prod"), "p2")], &[]);
        let again = world.next_sotw().map(|(said, _)| said);
        assert!(again.is_none_or(|said| said == ["=d"]), "{type_url}");
    }
}

/// DYN-07: a full state has the new variant in place of the old one, also if the old one was waiting
/// for its removal.
#[test]
fn full_state_has_the_new_variant_in_place_of_the_old_one() {
    let mut world = World::new(Protocol::Sotw, types::CLUSTER);
    world.write(&[("web", &env("prod"), "p"), ("a", &Constraints::Always, "a")], &[]);
    world.sotw(list(&[], &[("*", PROD)]), "");
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, ["=a", "web[env=\"prod\"]=p"]);
    world.sotw(list(&[], &[("*", PROD)]), &nonce);
    let either = Constraints::Or(vec![env("prod"), env("test")]);
    world.write(&[("web", &either, "e")], &[("web", &env("prod"))]);
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, ["=a", "web[env=\"prod\" or env=\"test\"]=e"]);
    world.sotw(list(&[], &[("*", PROD)]), &nonce);
    world.write(&[], &[("web", &either)]);
    while world.next_sotw().is_some() {}
    world.write(&[("web", &env("prod"), "p3")], &[]);
    world.now += 100_000;
    let (said, _) = world.next_sotw().unwrap();
    assert_eq!(said, ["=a", "web[env=\"prod\"]=p3"]);
}

/// DYN-11: a change of the node's parameters sends the other variant.
#[test]
fn changed_node_parameters_send_the_other_variant() {
    let node = |world: &mut World, pairs: &[(&str, &str)]| {
        let all = BTreeMap::from([(types::CLUSTER.to_owned(), parameters(pairs))]);
        world.session.set_dynamic_parameters(&all);
    };
    let mut world = World::new(Protocol::Sotw, types::CLUSTER);
    world.write(&[("web", &env("prod"), "p"), ("web", &env("test"), "t")], &[]);
    node(&mut world, PROD);
    world.sotw(list(&[], &[]), "");
    let (said, nonce) = world.next_sotw().unwrap();
    assert_eq!(said, ["=p"]);
    node(&mut world, TEST);
    world.sotw(list(&[], &[]), &nonce);
    assert_eq!(world.next_sotw().unwrap().0, ["=t"]);
}
