//! The sessions that a change concerns.

use std::collections::{BTreeMap, BTreeSet};

use chancery_model::{
    Revision, Transaction,
    types::{CLUSTER, LISTENER},
};

use super::desk::{Client, ShardHarness, key_of, scope};
use crate::{Change, Config, UnacknowledgedState};

/// Creates a change of resources of one scope and type at the newest revision.
fn change(desk: &ShardHarness, in_scope: &str, type_url: &str, names: &[&str]) -> Change {
    let keys: Vec<_> = names.iter().map(|name| key_of(type_url, name)).collect();
    let place = (scope(in_scope), keys[0].type_url.clone());
    let names = keys.into_iter().map(|key| key.name).collect();
    Change::new(desk.state.revision, BTreeMap::from([(place, names)]), false)
}

fn nodes(desk: &mut ShardHarness, change: &Change) -> BTreeSet<String> {
    desk.concerned(change).1
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Reads and acknowledges all responses for the client.
fn take(desk: &mut ShardHarness, client: &mut Client) {
    for response in desk.read(client) {
        desk.ack(client, &response);
    }
    desk.settle();
}

#[test]
fn change_concerns_sessions_that_subscribe_to_it_and_see_it() {
    let mut desk = ShardHarness::new();
    desk.assign("over", "over*", &["blue", "default"]);
    desk.assign("only", "only*", &["blue"]);
    desk.put("blue", CLUSTER, &[("a", "blue")]);
    let _all = [
        desk.subscribe("wildcard", CLUSTER, &[]),
        desk.subscribe("named", CLUSTER, &["a", "x"]),
        desk.subscribe("absent", CLUSTER, &["x"]),
        desk.subscribe("listeners", LISTENER, &[]),
        desk.subscribe("over-wildcard", CLUSTER, &[]),
        desk.subscribe("over-named", CLUSTER, &["a", "b"]),
        desk.subscribe("only", CLUSTER, &[]),
    ];
    desk.settle();
    desk.put("default", CLUSTER, &[("a", "1")]);
    desk.settle();
    let a = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut desk, &a), set(&["wildcard", "named"]));
    let a_and_b = change(&desk, "default", CLUSTER, &["a", "b"]);
    let expected = set(&["wildcard", "named", "over-wildcard", "over-named"]);
    assert_eq!(nodes(&mut desk, &a_and_b), expected, "no upper scope has `b`");
    let blue = change(&desk, "blue", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut desk, &blue), set(&["over-wildcard", "over-named", "only"]));
    // A removed resource was visible before.
    let deletes = vec![(scope("default"), key_of(CLUSTER, "a"))];
    desk.apply(&Transaction { deletes, ..Transaction::default() });
    desk.settle();
    let gone = change(&desk, "default", CLUSTER, &["a"]);
    assert_eq!(nodes(&mut desk, &gone), set(&["wildcard", "named"]));
}

#[test]
fn unanswered_response_of_another_type_does_not_matter() {
    let mut desk = ShardHarness::new();
    desk.put("default", CLUSTER, &[("a", "1")]);
    let mut client = desk.subscribe("n1", CLUSTER, &[]);
    take(&mut desk, &mut client);
    desk.put("default", LISTENER, &[("l", "1")]);
    let request = chancery_protocol::DeltaRequest {
        type_url: LISTENER.to_owned(),
        ..chancery_protocol::DeltaRequest::default()
    };
    desk.send(&client, None, request);
    assert_eq!(desk.read(&mut client).len(), 1, "the listener, which stays unacknowledged");
    desk.put("default", CLUSTER, &[("a", "2")]);
    let clusters = desk.read(&mut client);
    let changed = change(&desk, "default", CLUSTER, &["a"]);
    let unsettled = |desk: &mut ShardHarness| {
        let (pages, _) = desk.concerned(&changed);
        pages
            .into_iter()
            .flat_map(|page| page.items)
            .flat_map(|one| one.unsettled)
            .collect::<Vec<_>>()
    };
    let open = unsettled(&mut desk);
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!(open[0].state, UnacknowledgedState::Pending);
    assert_eq!(open[0].type_url.as_ref().unwrap().as_str(), CLUSTER);
    desk.ack(&client, &clusters[0]);
    desk.settle();
    assert_eq!(unsettled(&mut desk), []);
    assert_eq!(nodes(&mut desk, &changed), set(&["n1"]));
}

#[test]
fn changed_assignments_concern_the_sessions_that_they_move() {
    let mut desk = ShardHarness::new();
    let mut clients = [desk.subscribe("n1", CLUSTER, &[]), desk.subscribe("n2", CLUSTER, &[])];
    clients.iter_mut().for_each(|client| take(&mut desk, client));
    desk.assign("blue", "n1", &["blue"]);
    let moved = |desk: &ShardHarness| Change::new(desk.state.revision, BTreeMap::new(), true);
    let first = moved(&desk);
    assert_eq!(nodes(&mut desk, &first), set(&["n1"]));
    desk.assign("green", "n2", &["green"]);
    let second = moved(&desk);
    assert_eq!(nodes(&mut desk, &second), set(&["n2"]));
    // The index has the moved sessions under their new scopes.
    desk.put("blue", CLUSTER, &[("a", "1")]);
    let put = change(&desk, "blue", CLUSTER, &["a"]);
    assert_eq!(put.revision, Revision(3));
    desk.settle();
    assert_eq!(nodes(&mut desk, &put), set(&["n1"]));
}

/// Design 4.3: a query costs O(change + concerned sessions), in bounded pages.
#[test]
fn only_concerned_sessions_are_visited_page_by_page() {
    let mut desk = ShardHarness::with(Config { turn_work_max: 4, ..Config::default() });
    let other: Vec<_> =
        (0..100).map(|n| desk.subscribe(&format!("o{n}"), CLUSTER, &["o"])).collect();
    desk.put("default", CLUSTER, &[("a", "1"), ("b", "1"), ("o", "1")]);
    desk.settle();
    let b = change(&desk, "default", CLUSTER, &["b"]);
    assert_eq!(desk.concerned(&b).0.len(), 1, "no session is concerned");
    let _wildcards: Vec<_> =
        (0..9).map(|n| desk.subscribe(&format!("w{n}"), CLUSTER, &[])).collect();
    let _named: Vec<_> =
        (0..9).map(|n| desk.subscribe(&format!("n{n}"), CLUSTER, &["a", "b"])).collect();
    desk.settle();
    let both = change(&desk, "default", CLUSTER, &["a", "b"]);
    let (pages, nodes) = desk.concerned(&both);
    assert!(nodes.len() == 18 && !nodes.contains("o0"), "{nodes:?}");
    assert!(pages.iter().all(|page| page.items.len() <= 4));
    assert!(pages.len() <= 12, "{} pages", pages.len());
    drop(other);
}
