//! Polls (REST-JSON) for variants.

use chancery_model::Node;
use chancery_protocol::{PollNames, PollResponse};

use super::*;

const PROD: &[(&str, &str)] = &[("env", "prod")];
const TEST: &[(&str, &str)] = &[("env", "test")];

/// Returns the version and the names in the response to a poll, or `None` without a change.
fn poll(world: &World, names: NameList, version: &str) -> Option<(String, Said)> {
    let type_url = TypeUrl::from_static(world.type_url);
    let names = PollNames::new(&type_url, &Config::default(), names).unwrap();
    let view = names.selected(world.view().of_type(&type_url), &Node::default(), &type_url);
    let properties = types::properties(&type_url);
    match PollResponse::decide(&view, properties, &names.names, version, false) {
        PollResponse::Unchanged => None,
        PollResponse::Changed { version, content } => {
            let (mut said, mut previous) = (Vec::new(), None);
            while let Some(next) = content.next_after(previous.as_ref(), said.len()) {
                said.push(next.name().to_string());
                previous = Some(next.name().clone());
            }
            Some((version, said))
        }
    }
}

/// DYN-01, DYN-03: a poll for everything has the variants that the client also names.
#[test]
fn poll_for_all_has_named_variants() {
    let mut world = World::new(Protocol::Sotw, types::CLUSTER);
    world.write(
        &[
            ("a", &Constraints::Always, "a"),
            ("cv", &env("prod"), "p"),
            ("cv", &env("test"), "t"),
            ("cv", &without("env"), "d"),
            ("z", &Constraints::Always, "z"),
        ],
        &[],
    );
    let [prod, test, default] =
        ["cv [env=\"prod\"]", "cv [env=\"test\"]", "cv [not env exists]"].map(str::to_owned);
    let (all, said) = poll(&world, list(&["*"], &[]), "").unwrap();
    assert_eq!(said, ["a", &default, "z"]);
    let names = || list(&["*"], &[("cv", PROD), ("cv", TEST), ("a", PROD)]);
    let (version, said) = poll(&world, names(), &all).unwrap();
    assert_eq!(said, [&prod, &test, "a", &default, "z"]);
    assert_eq!(poll(&world, names(), &version), None);
    let (_, said) = poll(&world, list(&[], &[("*", TEST), ("cv", PROD)]), &version).unwrap();
    assert_eq!(said, [&prod, "a", &test, "z"]);
    world.write(&[("cv", &env("prod"), "p2")], &[]);
    assert_eq!(poll(&world, names(), &version).unwrap().1.len(), 5);
}
