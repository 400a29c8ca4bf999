//! Messages with arbitrary bytes.

use bytes::Bytes;
use chancery_mcp::{Resources, Step};
use proptest::{collection::vec, prelude::*};
use prost::Message as _;

use crate::world::{SERVICES, World, full, resource};

/// Returns the bytes of a resource, of which some are replaced or missing.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let valid = "[ -~]{0,12}".prop_map(|name| resource(&name, "v", "text"));
    (valid, vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), any::<prop::sample::Index>())
        .prop_map(|(mut bytes, changes, end)| {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let end = end.index(bytes.len() * 4);
            bytes.truncate(end.max(1));
            bytes
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// MCP-55, OPS-20: every message that can be decoded has one answer with its nonce. A rejected message changes nothing.
    #[test]
    fn message_with_arbitrary_bytes_is_answered(
        bodies in vec(prop_oneof![damaged(), vec(any::<u8>(), 0..40)], 0..4),
        removed_resources in vec(".{0,8}", 0..3),
        incremental in any::<bool>(),
    ) {
        let mut world = World::new();
        world.accept(&full("0", &[("ns/a", "1")]));
        let message = Resources {
            collection: SERVICES.to_owned(),
            nonce: "1".to_owned(),
            resources: bodies.into_iter().map(Bytes::from).collect(),
            removed_resources,
            incremental,
            ..Resources::default()
        };
        let message = Resources::decode(message.encode_to_vec().as_slice()).unwrap();
        let before = world.state.revision;
        let answer = world.receive(&message);
        prop_assert_eq!(&answer.response_nonce, "1");
        prop_assert!(answer.error_detail.is_none() || world.state.revision == before);
        // The stored bytes remain readable for the next stream.
        let stored = world.state.collection(&crate::world::scope(), &crate::world::type_url(SERVICES));
        let n_stored = stored.map_or(0, |stored| stored.resources.len());
        prop_assert_eq!(world.restart()[SERVICES].initial_resource_versions.len(), n_stored);
    }

    /// OPS-20: arbitrary bytes are a message or an error.
    #[test]
    fn arbitrary_message_does_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut world = World::new();
        if let Ok(message) = Resources::decode(bytes.as_slice()) {
            let step = world.sink.on_message(&message, &world.state);
            prop_assert!(!matches!(step, Step::Commit(_)), "the collection is known: {message:?}");
        }
    }
}
