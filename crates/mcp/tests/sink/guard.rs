//! Held deletions and their confirmation.

use chancery_mcp::{ConfirmError, Guard, Resources};

use crate::world::{SERVICES, World, difference, full, type_url};

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("ns/{n:03}")).collect()
}

fn state_of(nonce: &str, range: std::ops::Range<usize>) -> Resources {
    let names = names(range);
    let contents: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    full(nonce, &contents)
}

fn removal(nonce: &str, range: std::ops::Range<usize>) -> Resources {
    Resources { removed_resources: names(range), ..difference(nonce, &[], &[]) }
}

/// A sink that holds this number of resources.
fn holding(n: usize) -> World {
    let mut world = World::new();
    world.accept(&state_of("1", 0..n));
    world
}

fn token(world: &World) -> String {
    world.sink.held(&type_url(SERVICES)).unwrap().token.clone()
}

/// MCP-56: a message that deletes more than the allowed share is held: a NACK with FAILED_PRECONDITION names the guard
/// and the confirmation, and nothing changes. A difference counts like a full state.
#[test]
fn mass_deletion_is_held() {
    for message in [state_of("2", 0..9), removal("2", 0..11)] {
        let mut world = holding(20);
        let (code, text) = world.reject(&message);
        assert_eq!(code, 9);
        let token = token(&world);
        let expected = format!(
            "guard `mass-deletion` holds the message: it deletes 11 of 20 resources of the collection {SERVICES} in the \
             scope mesh; nothing was changed; to allow it, run `chancery mcp confirm pilot {SERVICES} {token}`"
        );
        assert_eq!(text, expected);
        assert_eq!(world.stored_in(SERVICES).len(), 20);
    }
    for message in [state_of("2", 0..10), removal("2", 0..10)] {
        holding(20).accept(&message);
    }
}

/// MCP-56: in a small collection, a message may delete any share.
#[test]
fn small_collection_trips_no_guard() {
    let mut world = holding(19);
    world.accept(&state_of("2", 0..1));
    world.accept(&full("3", &[]));
    let mut world = World::with(true, Guard { deletion_percent: 100, deletion_resources_min: 1 });
    world.accept(&state_of("1", 0..30));
    world.accept(&full("2", &[]));
}

/// MCP-56: a source that is empty when a stream starts does not empty even a small collection.
#[test]
fn empty_first_state_of_a_stream_is_held() {
    for message in [full("1", &[]), removal("1", 0..3)] {
        let mut world = holding(3);
        world.open();
        assert_eq!(world.reject(&message).0, 9);
        let mut world = holding(3);
        world.restart();
        assert_eq!(world.reject(&message).0, 9);
        world.accept(&state_of("2", 0..4));
        assert!(world.sink.held(&type_url(SERVICES)).is_none());
        world.accept(&full("3", &[]));
    }
    let mut world = holding(0);
    world.open();
    world.accept(&full("1", &[]));
}

/// MCP-20, MCP-45, MCP-57: after a confirmation, a new request lists what the sink holds. The next message may delete the
/// confirmed resources.
#[test]
fn confirmation_lets_the_deletion_through() {
    let mut world = holding(30);
    assert_eq!(world.reject(&full("2", &[])).0, 9);
    let request = world.sink.confirm(SERVICES, &token(&world), &world.state).unwrap();
    assert!(request.response_nonce.is_empty() && request.error_detail.is_none());
    assert!(request.incremental && request.initial_resource_versions.len() == 30);
    assert!(world.sink.held(&type_url(SERVICES)).is_none());
    world.accept(&removal("3", 0..30));
    assert_eq!(world.stored(), "");
}

/// A confirmation allows the deletion that the operator saw, and parts of it. Another deletion is held again.
#[test]
fn confirmation_does_not_allow_another_deletion() {
    let mut world = holding(40);
    world.reject(&state_of("2", 0..10));
    world.sink.confirm(SERVICES, &token(&world), &world.state).unwrap();
    assert_eq!(world.reject(&state_of("3", 0..9)).0, 9, "larger");
    let mut world = holding(40);
    world.reject(&state_of("2", 0..10));
    world.sink.confirm(SERVICES, &token(&world), &world.state).unwrap();
    assert_eq!(world.reject(&state_of("3", 30..40)).0, 9, "as large, with other names");
    let mut world = holding(40);
    world.reject(&state_of("2", 0..10));
    world.sink.confirm(SERVICES, &token(&world), &world.state).unwrap();
    world.accept(&state_of("3", 0..11));
    assert_eq!(world.stored_in(SERVICES).len(), 11);
}

/// MCP-56: a source that starts with other resources only has lost its data, too.
#[test]
fn first_state_that_replaces_all_resources_is_held() {
    let mut world = holding(3);
    world.open();
    assert_eq!(world.reject(&full("1", &[("ns/new", "1")])).0, 9);
    world.accept(&full("2", &[("ns/000", "1"), ("ns/new", "1")]));
    assert_eq!(world.stored_in(SERVICES).len(), 2);
}

/// A confirmation that is withdrawn allows nothing.
#[test]
fn withdrawn_confirmation_allows_nothing() {
    let mut world = holding(40);
    world.reject(&full("2", &[]));
    world.sink.confirm(SERVICES, &token(&world), &world.state).unwrap();
    world.sink.withdraw_confirmation(SERVICES);
    assert_eq!(world.reject(&full("3", &[])).0, 9);
}

/// A message that deletes little ends the hold of an earlier one.
#[test]
fn hold_ends_with_an_accepted_message() {
    let mut world = holding(40);
    world.reject(&full("2", &[]));
    world.accept(&state_of("3", 0..39));
    assert!(world.sink.held(&type_url(SERVICES)).is_none());
}

/// A confirmation is used up by the next accepted message, and survives a stream that breaks before.
#[test]
fn confirmation_covers_one_accepted_message() {
    let mut world = holding(40);
    world.reject(&full("2", &[]));
    world.sink.confirm(SERVICES, &token(&world), &world.state).unwrap();
    world.open();
    assert_eq!(world.reject(&full("1", &[("", "1")])).0, 3);
    world.accept(&state_of("2", 0..40));
    assert_eq!(world.reject(&full("3", &[])).0, 9);
}

/// The token identifies the deletion: it is the same after a restart, and a wrong one confirms nothing.
#[test]
fn only_the_token_of_the_held_deletion_confirms() {
    let mut world = holding(30);
    let confirm = |world: &mut World, collection: &str, token: &str| {
        world.sink.confirm(collection, token, &world.state).unwrap_err()
    };
    let error = confirm(&mut world, "x/y/z", "t");
    assert_eq!(error, ConfirmError::UnknownCollection("x/y/z".to_owned()));
    let error = confirm(&mut world, SERVICES, "t");
    assert_eq!(error, ConfirmError::NothingHeld(SERVICES.to_owned()));
    world.reject(&full("2", &[]));
    let first = token(&world);
    assert!(matches!(confirm(&mut world, SERVICES, "t"), ConfirmError::OtherHeld { n: 30, .. }));
    world.restart();
    world.reject(&full("1", &[]));
    assert_eq!(token(&world), first);
    world.reject(&state_of("2", 0..1));
    assert_ne!(token(&world), first);
    confirm(&mut world, SERVICES, &first);
}
