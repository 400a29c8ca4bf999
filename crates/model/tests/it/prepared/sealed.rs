//! Sealed resources that were built before their turn: they are compared by the digests of their bodies, and opened
//! later.

use std::sync::Arc;

use bytes::Bytes;
use chancery_model::{
    DataKey, DataKeyId, Incarnation, KeyOp, PreparedTransaction, Resource, ResourceDraft,
    ResourceKey, Revision, Sealed, SealingId, State, Transaction, TypeUrl, Upsert, WrappedKey,
    types,
};
use proptest::prelude::*;

use super::{resource_key, resources, scope};

fn type_url() -> TypeUrl {
    TypeUrl::from_static(types::CLUSTER)
}

/// Returns a state with the data keys 1 and 2.
fn with_keys() -> State {
    let wrapped = || WrappedKey { kek: "kek".into(), bytes: Bytes::from_static(b"w") };
    let data = |id| DataKey { id: DataKeyId(id), wrapped: wrapped(), created_ms: 0 };
    let create = KeyOp::Create { sealing_id: SealingId([1; 16]), mac: wrapped(), data: data(1) };
    let ops = [create, KeyOp::Add(data(2))].map(|op| vec![op]);
    ops.into_iter().fold(State::new(Incarnation(1)), |state, keys| {
        state.apply(&Transaction { keys, ..Transaction::default() }).state
    })
}

/// A resource as it comes from the log: without the plain body if it is sealed.
#[derive(Debug, Clone)]
struct Put {
    name: u16,
    body: u8,
    key: Option<u32>,
    /// Differs between two sealed forms of one body.
    salt: u8,
    is_labeled: bool,
}

fn puts() -> impl Strategy<Value = Put> {
    let parts = (0..200_u16, 0..3_u8, prop::option::weighted(0.8, 1..3_u32));
    (parts, any::<u8>(), any::<bool>()).prop_map(|((name, body, key), salt, is_labeled)| Put {
        name,
        body,
        key,
        salt,
        is_labeled,
    })
}

impl Put {
    fn upsert(&self) -> Upsert {
        let key = resource_key((0, 0, self.name));
        let mut draft = match self.key {
            None => ResourceDraft::new(key, vec![self.body].into()),
            Some(id) => {
                let bytes = vec![self.salt, self.body].into();
                let sealed =
                    Sealed { key: DataKeyId(id), mac: [self.body; 32], body_len: 1, bytes };
                ResourceDraft { sealed: Some(sealed), ..ResourceDraft::new(key, Bytes::new()) }
            }
        };
        if self.is_labeled {
            draft.labels.insert("l".into(), "v".into());
        }
        Upsert { scope: scope(0), draft }
    }
}

fn all(state: &State) -> Vec<Arc<Resource>> {
    let collection = state.collection(&scope(0), &type_url());
    collection.into_iter().flat_map(|of| of.resources.values().cloned()).collect()
}

fn opened(mut state: State) -> State {
    for resource in all(&state) {
        let Some(sealed) = resource.sealed().filter(|_| !resource.is_opened()) else { continue };
        let key = ResourceKey { type_url: type_url(), name: resource.name().clone() };
        let form = resource.opened(&type_url(), sealed.bytes.slice(1..));
        state.replace_form(&scope(0), &key, form);
    }
    state
}

fn check_counts(state: &State) {
    let count = |wanted: &dyn Fn(&Resource) -> bool| {
        all(state).iter().filter(|resource| wanted(resource)).count() as u64
    };
    for id in [1, 2].map(DataKeyId) {
        let of_key = |one: &Resource| one.sealed().is_some_and(|sealed| sealed.key == id);
        assert_eq!(state.n_sealed_by(id), count(&of_key));
    }
    let sealed = count(&|one| one.sealed().is_some());
    assert_eq!(state.n_sealed(), (sealed, count(&|one| !one.is_opened())));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    /// Large transactions replace the map of a collection, and small ones change it.
    #[test]
    fn prepared_sealed_resources_equal_direct_ones_before_and_after_they_are_opened(
        steps in prop::collection::vec(
            (prop::collection::vec(puts(), 0..300), 0..80_u64, any::<bool>()),
            1..6,
        ),
    ) {
        let mut state = with_keys();
        for (puts, guess, opens) in steps {
            let upserts = puts.iter().map(Put::upsert).collect();
            let transaction = Transaction { upserts, ..Transaction::default() };
            let direct = state.apply(&transaction);
            let mut prepared = PreparedTransaction::new(transaction, Revision(guess));
            let prepared = state.apply_prepared(&mut prepared);
            super::check_outcome(&direct, &prepared);
            check_counts(&prepared.state);
            let (from_direct, from_prepared) = (opened(direct.state.clone()), opened(prepared.state));
            check_counts(&from_prepared);
            prop_assert_eq!(resources(&from_direct), resources(&from_prepared));
            for resource in all(&from_prepared) {
                let key = ResourceKey { type_url: type_url(), name: resource.name().clone() };
                let draft = ResourceDraft::new(key, resource.body().unwrap());
                let fresh = Resource::with_version(&draft, resource.version());
                prop_assert_eq!(resource.delta_field(), fresh.delta_field());
            }
            state = if opens { from_prepared } else { direct.state };
        }
    }
}
