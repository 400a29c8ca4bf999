//! One test for each rule of a sink.

use chancery_mcp::{Failure, Guard, Resources, Step};

use crate::world::{GATEWAYS, SERVICES, World, difference, full, resource};

/// MCP-17, MCP-55: one request per collection, without a nonce. A sink that holds nothing lists nothing.
#[test]
fn stream_starts_with_one_request_per_collection() {
    let requests = World::new().open();
    assert_eq!(requests.keys().collect::<Vec<_>>(), [GATEWAYS, SERVICES]);
    for request in requests.values() {
        assert!(request.incremental && request.response_nonce.is_empty());
        assert!(request.initial_resource_versions.is_empty() && request.error_detail.is_none());
        assert_eq!(request.sink_node.as_ref().unwrap().id, "chancery");
    }
}

/// MCP-21, MCP-57: after a restart, the first request lists the versions of the source that the sink holds.
#[test]
fn restarted_sink_lists_the_stored_versions() {
    let mut world = World::new();
    let mut message = full("1", &[("ns/b", "x")]);
    message.resources.push(resource("ns/a", "v7", "y").into());
    world.accept(&message);
    let requests = world.restart();
    let versions = &requests[SERVICES].initial_resource_versions;
    let versions: Vec<_> = versions.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(versions, [("ns/a", "v7"), ("ns/b", "x")]);
    assert!(requests[GATEWAYS].initial_resource_versions.is_empty());
}

/// MCP-57: without differences, the versions have no effect, so the sink does not list them.
#[test]
fn sink_of_full_states_lists_no_versions() {
    let mut world = World::with(false, Guard::default());
    let answer = world.accept(&full("1", &[("ns/a", "x")]));
    assert!(!answer.incremental);
    let request = &world.restart()[SERVICES];
    assert!(!request.incremental && request.initial_resource_versions.is_empty());
}

/// MCP-32: a full state replaces everything, and its removed names have no effect.
#[test]
fn full_state_replaces_the_collection() {
    let mut world = World::new();
    world.accept(&full("1", &[("ns/a", "1"), ("ns/b", "1")]));
    let removed_resources = vec!["ns/b".to_owned(), String::new()];
    let message = Resources { removed_resources, ..full("2", &[("ns/b", "2"), ("/c", "1")]) };
    world.accept(&message);
    assert_eq!(world.stored(), "/c=1 ns/b=2");
}

/// MCP-33, MCP-58: a difference changes only what it names, and ignores the removal of unknown names.
#[test]
fn difference_changes_only_what_it_names() {
    let mut world = World::new();
    world.accept(&full("1", &[("ns/a", "1"), ("ns/b", "1"), ("ns/c", "1")]));
    let answer =
        world.accept(&difference("2", &[("ns/b", "2")], &["ns/a", "ns/unknown", "not\na name"]));
    assert!(answer.incremental);
    assert_eq!(world.stored(), "ns/b=2 ns/c=1");
}

/// MCP-10: a message changes only its own collection.
#[test]
fn collections_are_independent() {
    let mut world = World::new();
    world.accept(&full("1", &[("ns/a", "1")]));
    world.accept(&Resources { collection: GATEWAYS.to_owned(), ..full("2", &[("ns/a", "2")]) });
    assert_eq!(world.stored(), "ns/a=1");
    assert_eq!(world.stored_in(GATEWAYS).len(), 1);
}

/// MCP-14, MCP-15: the sink keeps the bytes of a resource, and the version of the source.
#[test]
fn resource_is_stored_byte_for_byte() {
    let mut world = World::new();
    // Two parts of `metadata`, and a field that no version of MCP has.
    let mut body = resource("ns/a", "v1", "x");
    body.extend([0x0a, 4, 0x1a, 2, b'v', b'2', 0x7a, 1, b'!']);
    let message = Resources { resources: vec![body.clone().into()], ..full("1", &[]) };
    world.accept(&message);
    let stored = world.state.collection(&crate::world::scope(), &crate::world::type_url(SERVICES));
    assert_eq!(stored.unwrap().resources.values().next().unwrap().body().unwrap(), body);
    assert_eq!(world.restart()[SERVICES].initial_resource_versions["ns/a"], "v2");
}

/// MCP-56: a message that equals the stored collection has nothing to commit.
#[test]
fn repeated_state_changes_nothing() {
    let mut world = World::new();
    world.accept(&full("1", &[("ns/a", "1")]));
    let message = full("2", &[("ns/a", "1")]);
    let Step::Commit(change) = world.sink.on_message(&message, &world.state) else { panic!() };
    assert!(change.is_empty(), "{change:?}");
}

/// MCP-56: a failed commit becomes a NACK with its code and its reason. The message after it may be a full state only.
#[test]
fn failed_commit_is_rejected_with_its_reason() {
    let mut world = World::new();
    let message = full("1", &[("ns/a", "1")]);
    let Step::Commit(_) = world.sink.on_message(&message, &world.state) else { panic!() };
    let failure = Failure { code: 14, text: "no leader".to_owned() };
    let answer = world.sink.on_outcome(&message, Err(failure));
    let status = answer.error_detail.unwrap();
    assert_eq!((status.code, status.message.as_str()), (14, "no leader"));
    assert_eq!((answer.response_nonce.as_str(), answer.incremental), ("1", false));
}

/// MCP-56: invalid content is rejected with all its problems, and the old state stays.
#[test]
fn invalid_resource_rejects_the_whole_message() {
    let mut world = World::new();
    world.accept(&full("1", &[("ns/a", "1")]));
    let message = full("2", &[("ns/a", "2"), ("", "1"), ("ns//b", "1")]);
    let (code, text) = world.reject(&message);
    assert_eq!(code, 3);
    assert!(text.contains("resources[1]") && text.contains("resources[2]"), "{text}");
    let message = Resources { resources: vec![vec![0xff, 1].into()], ..full("3", &[]) };
    assert_eq!(world.reject(&message).0, 3);
    assert_eq!(world.stored(), "ns/a=1");
    world.accept(&full("4", &[("ns/a", "3")]));
    assert_eq!(world.stored(), "ns/a=3");
}

/// MCP-56: the text of a NACK is bounded, however many problems there are.
#[test]
fn reason_of_a_rejection_is_bounded() {
    let mut world = World::new();
    let long = "ä".repeat(900);
    let names: Vec<String> = (0..100).map(|n| format!("{long}//{n}")).collect();
    let contents: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let (code, text) = world.reject(&full("1", &contents));
    assert_eq!(code, 3);
    assert!(text.len() <= 1024, "{}", text.len());
    let (_, text) = world.reject(&full("2", &[("", "1"); 100]));
    assert!(text.ends_with("and 95 more problems"), "{text}");
}

/// MCP-41: a name occurs once per message, and not in both lists.
#[test]
fn repeated_name_is_rejected() {
    let mut world = World::new();
    let (code, text) = world.reject(&full("1", &[("ns/a", "1"), ("ns/a", "1")]));
    assert_eq!((code, text.as_str()), (3, "two resources have the name \"ns/a\""));
    let (code, text) = world.reject(&full("2", &[("ns/a", "1"), ("ns/a", "2")]));
    assert!(code == 3 && text.contains("ns/a"), "{text}");
    world.accept(&full("3", &[]));
    let (code, text) = world.reject(&difference("4", &[("ns/a", "1")], &["ns/a"]));
    assert_eq!((code, text.as_str()), (3, "\"ns/a\" is in resources and in removed_resources"));
    world.accept(&full("5", &[]));
    let (code, text) = world.reject(&difference("6", &[], &["ns/a", "ns/a"]));
    assert_eq!((code, text.as_str()), (3, "\"ns/a\" is in removed_resources twice"));
    world.accept(&full("7", &[]));
    let (code, text) = world.reject(&difference("8", &[], &[""]));
    assert_eq!((code, text.as_str()), (3, "removed_resources[0]: the name is empty"));
}

/// MCP-56: a collection that the sink did not request is rejected with UNIMPLEMENTED.
#[test]
fn unknown_collection_is_unimplemented() {
    let mut world = World::new();
    let message = Resources { collection: "x/y/z".to_owned(), ..full("1", &[]) };
    let (code, text) = world.reject(&message);
    assert_eq!(code, 12);
    assert!(text.contains("x/y/z"), "{text}");
}

/// MCP-65: the message with which a dialing source opens its stream is answered with UNIMPLEMENTED and no nonce.
#[test]
fn trigger_is_unimplemented_and_changes_nothing() {
    let mut world = World::new();
    for collection in ["$triggerCollection", ""] {
        let message = Resources { collection: collection.to_owned(), ..Resources::default() };
        assert_eq!(world.reject(&message).0, 12);
    }
    world.accept(&full("1", &[]));
    world.accept(&difference("2", &[("ns/a", "1")], &[]));
}

/// MCP-31: a message without a nonce cannot be answered, because a request without a nonce asks for the collection.
#[test]
fn message_without_a_nonce_ends_the_stream() {
    let mut world = World::new();
    let message = full("", &[("ns/a", "1")]);
    let step = world.sink.on_message(&message, &world.state);
    let Step::Close(reason) = step else { panic!("{step:?}") };
    assert!(reason.contains("no nonce"), "{reason}");
}

/// MCP-34, MCP-35, MCP-59: a difference is accepted only if the most recent request takes one. A NACK takes none.
#[test]
fn difference_that_was_not_requested_is_rejected() {
    let mut world = World::with(false, Guard::default());
    assert_eq!(world.reject(&difference("1", &[("ns/a", "1")], &[])).0, 3);
    let mut world = World::new();
    world.accept(&difference("1", &[("ns/a", "1")], &[]));
    assert_eq!(world.reject(&full("2", &[("", "1")])).0, 3);
    let (code, text) = world.reject(&difference("3", &[("ns/b", "1")], &[]));
    assert!(code == 3 && text.contains("incremental"), "{text}");
    world.accept(&full("4", &[("ns/a", "1"), ("ns/b", "1")]));
    world.accept(&difference("5", &[], &["ns/b"]));
    assert_eq!(world.stored(), "ns/a=1");
}

/// MCP-55, MCP-57: a new stream starts from what is stored, also after a NACK on the old stream.
#[test]
fn new_stream_takes_differences_again() {
    let mut world = World::new();
    world.accept(&full("1", &[("ns/a", "1")]));
    assert_eq!(world.reject(&full("2", &[("", "1")])).0, 3);
    assert_eq!(world.open()[SERVICES].initial_resource_versions.len(), 1);
    world.accept(&difference("1", &[], &[]));
    assert_eq!(world.stored(), "ns/a=1");
}

/// A message is bounded in its names and counts, and a NACK never quotes a private key.
#[test]
fn message_over_the_limits_is_rejected_without_its_content() {
    let mut world = World::new();
    for message in [
        Resources { collection: "x".repeat(513), ..full("1", &[]) },
        Resources { nonce: "x".repeat(513), ..full("1", &[]) },
    ] {
        assert!(matches!(world.sink.on_message(&message, &world.state), Step::Close(_)));
    }
    let many = Resources { resources: vec![Vec::new().into(); 1_000_001], ..full("2", &[]) };
    assert!(world.reject(&many).1.contains("more than 1000000 resources"));
    world.open();
    let key = "-----BEGIN PRIVATE KEY-----".to_owned();
    let removed = vec![key.clone(), key.clone()];
    let twice = Resources { removed_resources: removed, ..difference("3", &[], &[]) };
    for (message, code) in [(twice, 3), (Resources { collection: key, ..full("4", &[]) }, 12)] {
        let (found, text) = world.reject(&message);
        assert_eq!(
            (found, text.as_str()),
            (code, "the reason quotes a private key, and is not shown")
        );
    }
}
