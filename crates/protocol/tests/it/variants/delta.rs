//! Delta subscriptions to variants.

use super::*;

fn world() -> World {
    World::new(Protocol::Delta, types::ROUTE)
}

const PROD: &[(&str, &str)] = &[("env", "prod"), ("unused", "x")];
const TEST: &[(&str, &str)] = &[("env", "test")];

/// DYN-03, DYN-04: a locator selects the variant that its parameters match, which is sent with its
/// constraints. Keys that the constraints do not mention do not matter.
#[test]
fn locator_receives_the_matching_variant_with_its_constraints() {
    let mut world = world();
    world.write(
        &[("web", &env("prod"), "p"), ("web", &env("test"), "t"), ("x", &Constraints::Always, "x")],
        &[],
    );
    world.delta(list(&["x"], &[("web", PROD)]), none());
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p", "x=x"]);
    world.write(&[("web", &env("test"), "t2")], &[]);
    assert_eq!(world.next_delta(), None, "another variant changed");
    world.write(&[("web", &env("prod"), "p2")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p2"]);
}

/// DYN-09: a plain name, also in a locator without parameters, selects the variant for clients
/// without parameters. A client that uses no locators receives it under its name.
#[test]
fn plain_name_receives_the_variant_for_no_parameters() {
    let mut world = world();
    world.write(&[("web", &env("prod"), "p"), ("web", &without("env"), "d")], &[]);
    world.delta(list(&["web"], &[]), none());
    assert_eq!(world.next_delta().unwrap(), ["web=d"]);
    world.now += 100_000;
    world.write(&[], &[("web", &without("env"))]);
    assert_eq!(world.next_delta().unwrap(), ["-web"]);
    let mut world = self::world();
    world.write(&[("web", &env("prod"), "p"), ("web", &without("env"), "d")], &[]);
    world.delta(list(&[], &[("web", &[])]), none());
    assert_eq!(world.next_delta().unwrap(), ["web[not env exists]=d"]);
}

/// DYN-09: a client that begins to use locators receives the variants that it has again, with their
/// constraints.
#[test]
fn first_locator_repeats_variants_with_their_constraints() {
    let mut world = world();
    world.write(&[("web", &without("env"), "d"), ("x", &env("prod"), "p")], &[]);
    world.delta(list(&["web"], &[]), none());
    assert_eq!(world.next_delta().unwrap(), ["web=d"]);
    world.delta(list(&[], &[("x", PROD)]), none());
    assert_eq!(world.next_delta().unwrap(), ["web[not env exists]=d", "x[env=\"prod\"]=p"]);
}

/// DYN-08, DELTA-73: the removal of a variant has its constraints. A name without a variant is absent
/// as any other name.
#[test]
fn removal_of_a_variant_has_its_constraints() {
    let mut world = world();
    world.write(&[("web", &env("prod"), "p")], &[]);
    world.delta(list(&[], &[("web", PROD), ("web", TEST)]), none());
    assert_eq!(world.next_delta().unwrap(), ["-web", "web[env=\"prod\"]=p"]);
    world.now += 100_000;
    world.write(&[], &[("web", &env("prod"))]);
    assert_eq!(world.next_delta().unwrap(), ["-web[env=\"prod\"]"]);
}

/// DYN-07: the removal of the old variant and the new ones are in one response, even if it is split.
#[test]
fn replaced_variant_is_removed_in_the_response_with_the_new_ones() {
    let config = Config { response_bytes_target: 1, ..Config::default() };
    let mut world = World::with(Protocol::Delta, types::ROUTE, config);
    let both = |version: &str| Constraints::And(vec![env("prod"), value("version", version)]);
    let v1: &[_] = &[("env", "prod"), ("version", "1")];
    let v2: &[_] = &[("env", "prod"), ("version", "2")];
    world.write(&[("web", &env("prod"), "p"), ("a", &Constraints::Always, "1")], &[]);
    world.delta(list(&["a"], &[("web", v1), ("web", v2)]), none());
    let mut first = world.next_delta().unwrap();
    first.extend(world.next_delta().unwrap());
    assert_eq!(first, ["a=1", "web[env=\"prod\"]=p"]);
    world.write(
        &[("web", &both("1"), "1"), ("web", &both("2"), "2"), ("a", &Constraints::Always, "2")],
        &[("web", &env("prod"))],
    );
    assert_eq!(world.next_delta().unwrap(), ["a=2"]);
    let replaced = world.next_delta().unwrap();
    let expected = [
        "-web[env=\"prod\"]",
        "web[env=\"prod\" and version=\"1\"]=1",
        "web[env=\"prod\" and version=\"2\"]=2",
    ];
    assert_eq!(replaced, expected);
    assert_eq!(world.next_delta(), None);
}

/// DYN-07: the resource without constraints and variants replace each other, too.
#[test]
fn variants_and_plain_resource_replace_each_other() {
    let mut world = world();
    world.write(&[("web", &Constraints::Always, "0")], &[]);
    world.delta(list(&[], &[("web", PROD)]), none());
    assert_eq!(world.next_delta().unwrap(), ["web=0"]);
    world.write(&[("web", &env("prod"), "p")], &[("web", &Constraints::Always)]);
    assert_eq!(world.next_delta().unwrap(), ["-web", "web[env=\"prod\"]=p"]);
    world.write(&[("web", &Constraints::Always, "1")], &[("web", &env("prod"))]);
    assert_eq!(world.next_delta().unwrap(), ["-web[env=\"prod\"]", "web=1"]);
}

/// DYN-10, DYN-12: a cache subscribes to one name with several sets of parameters. Each of them ends
/// only with the same name and parameters. A variant that another set still selects stays.
#[test]
fn subscriptions_with_different_parameters_are_independent() {
    let mut world = world();
    let either = Constraints::Or(vec![env("prod"), env("test")]);
    world.write(&[("web", &env("prod"), "p"), ("web", &env("test"), "t")], &[]);
    world.delta(list(&[], &[("web", PROD), ("web", TEST)]), none());
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p", "web[env=\"test\"]=t"]);
    world.delta(none(), list(&["web"], &[("web", &[("env", "prod")])]));
    world.write(&[("web", &env("prod"), "p2"), ("web", &env("test"), "t2")], &[]);
    assert_eq!(
        world.next_delta().unwrap(),
        ["web[env=\"prod\"]=p2", "web[env=\"test\"]=t2"],
        "neither the plain name nor other parameters end a subscription"
    );
    world.write(&[("web", &either, "e")], &[("web", &env("prod")), ("web", &env("test"))]);
    let replaced = world.next_delta().unwrap();
    let either = "web[env=\"prod\" or env=\"test\"]";
    assert_eq!(replaced, ["-web[env=\"prod\"]", "-web[env=\"test\"]", &format!("{either}=e")]);
    world.write(
        &[("web", &env("prod"), "p3"), ("web", &env("test"), "t3")],
        &[("web", &Constraints::Or(vec![env("prod"), env("test")]))],
    );
    let _ = world.next_delta().unwrap();
    world.delta(none(), list(&[], &[("web", PROD)]));
    world.write(&[("web", &env("prod"), "p4"), ("web", &env("test"), "t4")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"test\"]=t4"]);
}

/// DYN-11: the parameters of the node select the variants of plain names and of the wildcard. A
/// change of them replaces the variants.
#[test]
fn node_parameters_select_variants_and_may_change() {
    let node = |world: &mut World, pairs: &[(&str, &str)]| {
        let all = BTreeMap::from([(types::CLUSTER.to_owned(), parameters(pairs))]);
        world.session.set_dynamic_parameters(&all);
    };
    for names in [&["a", "web"][..], &[]] {
        let mut world = World::new(Protocol::Delta, types::CLUSTER);
        world.write(
            &[
                ("web", &env("prod"), "p"),
                ("web", &env("test"), "t"),
                ("a", &Constraints::Always, "a"),
            ],
            &[],
        );
        node(&mut world, PROD);
        world.delta(list(names, &[]), none());
        assert_eq!(world.next_delta().unwrap(), ["a=a", "web=p"], "{names:?}");
        node(&mut world, TEST);
        assert_eq!(world.next_delta().unwrap(), ["web=t"], "{names:?}");
        node(&mut world, TEST);
        assert_eq!(world.next_delta(), None);
        world.now += 100_000;
        node(&mut world, &[]);
        assert_eq!(world.next_delta().unwrap(), ["-web"], "{names:?}");
    }
}

/// DYN-03: a locator of the wildcard gives its parameters to the wildcard.
#[test]
fn wildcard_locator_selects_variants() {
    let mut world = World::new(Protocol::Delta, types::CLUSTER);
    world.write(
        &[("web", &env("prod"), "p"), ("web", &env("test"), "t"), ("a", &Constraints::Always, "a")],
        &[],
    );
    world.delta(list(&[], &[("*", PROD)]), none());
    assert_eq!(world.next_delta().unwrap(), ["a=a", "web[env=\"prod\"]=p"]);
    world.write(&[("web", &env("prod"), "p2"), ("web", &env("test"), "t2")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p2"]);
    let either = Constraints::Or(vec![env("prod"), env("test")]);
    world.write(&[("web", &either, "e")], &[("web", &env("prod")), ("web", &env("test"))]);
    let expected = ["-web[env=\"prod\"]", "web[env=\"prod\" or env=\"test\"]=e"];
    assert_eq!(world.next_delta().unwrap(), expected);
    world.now += 100_000;
    world.write(&[], &[("web", &either)]);
    assert_eq!(world.next_delta().unwrap(), ["-web[env=\"prod\" or env=\"test\"]"]);
}

/// DYN-02: no client can request a variant by the internal name.
#[test]
fn internal_name_of_a_variant_cannot_be_requested() {
    let mut world = world();
    world.write(&[("web", &env("prod"), "p")], &[]);
    let internal = world.key("web", &env("prod")).name;
    world.delta(list(&[internal.as_str(), "web\u{2}env=prod"], &[]), none());
    let said = world.next_delta().unwrap();
    assert_eq!(said, [format!("-{}", internal.as_str()), "-web\u{2}env=prod".to_owned()]);
}

/// DYN-04: a rejected variant is not sent again until it changes, and other variants are not affected.
#[test]
fn rejected_variant_is_not_sent_again() {
    let mut world = world();
    world.write(&[("web", &env("prod"), "p"), ("web", &env("test"), "t")], &[]);
    world.delta(list(&[], &[("web", PROD), ("web", TEST)]), none());
    let first = DeltaDiscoveryResponse::decode(world.poll().unwrap()).unwrap();
    world.request(Request::Delta(DeltaRequest {
        type_url: types::ROUTE.to_owned(),
        response_nonce: first.nonce,
        error_detail: Some(ErrorDetail { code: 3, message: "no".to_owned() }),
        ..DeltaRequest::default()
    }));
    assert_eq!(world.next_delta(), None);
    assert!(world.session.is_rejecting());
    world.write(&[("web", &env("prod"), "p2")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p2"]);
    assert!(world.session.is_rejecting(), "the other variant is still rejected");
    world.write(&[("web", &env("test"), "t2")], &[]);
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"test\"]=t2"]);
    assert!(!world.session.is_rejecting());
}

/// DYN-02: a client that reconnects reports its versions by name. It receives each variant again.
#[test]
fn reconnecting_client_receives_its_variants() {
    let mut world = world();
    world.write(&[("web", &env("prod"), "p")], &[]);
    let versions = vec![("web".to_owned(), "1-0".to_owned())];
    world.request(Request::Delta(DeltaRequest {
        type_url: types::ROUTE.to_owned(),
        subscribe: list(&[], &[("web", PROD)]),
        initial_resource_versions: versions.into(),
        ..DeltaRequest::default()
    }));
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p"]);
    assert_eq!(world.next_delta(), None);
}

/// DYN-10: two sets of parameters select one variant. When only one of them selects another variant,
/// the shared one stays. It is removed when the last subscription to it selects another one.
#[test]
fn shared_variant_is_removed_with_its_last_subscription() {
    let mut world = world();
    let either = Constraints::Or(vec![env("prod"), env("test")]);
    world.write(&[("web", &either, "e")], &[]);
    world.delta(list(&[], &[("web", PROD), ("web", TEST)]), none());
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\" or env=\"test\"]=e"]);
    // An earlier scope has a variant for one of the two.
    let upper = ScopeName::new("upper").unwrap();
    let key = world.key("web", &env("prod"));
    let draft = ResourceDraft::new(key, Bytes::from_static(b"p"));
    let upserts = vec![Upsert { scope: upper.clone(), draft }];
    world.state = world.state.apply(&Transaction { upserts, ..Transaction::default() }).state;
    world.scopes.insert(0, upper);
    world.session.handle_new_view();
    assert_eq!(world.next_delta().unwrap(), ["web[env=\"prod\"]=p"]);
    world.write(&[("web", &env("test"), "t")], &[("web", &either)]);
    let expected = ["-web[env=\"prod\" or env=\"test\"]", "web[env=\"test\"]=t"];
    assert_eq!(world.next_delta().unwrap(), expected);
}

/// DYN-07: each replacement is in one response, also if other resources follow the new variant.
#[test]
fn replacement_before_other_resources_is_in_one_response() {
    let config = Config { response_bytes_target: 250, ..Config::default() };
    let mut world = World::with(Protocol::Delta, types::CLUSTER, config);
    let others = ["b", "c", "d", "e"];
    let put =
        |world: &mut World, variants: &[(&str, &Constraints, &str)], body: &str, delete: &[_]| {
            let plain = others.iter().map(|name| (*name, &Constraints::Always, body));
            let all: Vec<_> = variants.iter().copied().chain(plain).collect();
            world.write(&all, delete);
        };
    let (prod, test) = (env("prod"), env("test"));
    let either = Constraints::Or(vec![env("prod"), env("test")]);
    for names in [list(&others, &[("aa", PROD), ("aa", TEST)]), list(&[], &[("*", PROD)])] {
        put(&mut world, &[("aa", &prod, "1"), ("aa", &test, "1")], "1", &[]);
        world.delta(names, none());
        while world.next_delta().is_some() {}
        put(&mut world, &[("aa", &either, "2")], "2", &[("aa", &prod), ("aa", &test)]);
        let mut all = Vec::new();
        while let Some(said) = world.next_delta() {
            let added = said.iter().any(|one| one.starts_with("aa["));
            let removed = said.iter().any(|one| one.starts_with("-aa["));
            assert_eq!(added, removed, "{said:?}");
            all.push(said.len());
        }
        assert!(all.len() > 1, "the response is split: {all:?}");
        world.write(&[], &[("aa", &either)]);
        world.delta(none(), list(&others, &[("aa", PROD), ("aa", TEST)]));
        while world.next_delta().is_some() {}
    }
}

/// DYN-08: an alias takes the place of a variant. The variant is removed by its constraints.
#[test]
fn variant_is_removed_when_an_alias_takes_its_name() {
    let mut world = World::new(Protocol::Delta, types::CLUSTER);
    world.write(&[("al1", &without("env"), "v")], &[]);
    let key = world.key("ax", &Constraints::Always);
    let mut draft = ResourceDraft::new(key, Bytes::from_static(b"x"));
    draft.aliases = vec![ResourceName::new("al1").unwrap()];
    let upserts = vec![Upsert { scope: scope(), draft }];
    world.state = world.state.apply(&Transaction { upserts, ..Transaction::default() }).state;
    world.delta(list(&[], &[("al1", &[])]), none());
    assert_eq!(world.next_delta().unwrap(), ["al1[not env exists]=v"]);
    world.now += 100_000;
    world.write(&[], &[("al1", &without("env"))]);
    assert_eq!(world.next_delta().unwrap(), ["-al1[not env exists]", "ax=x"]);
    assert_eq!(world.next_delta(), None);
}
