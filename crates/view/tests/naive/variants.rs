//! Views of names with variants, against a naive model.

use std::sync::Arc;

use chancery_model::{Constraints, DynamicParameters, located_name};

use super::*;

const NAMES: [&str; 3] = ["n", "n1", "m"];
const VALUES: [&str; 3] = ["a", "b", "c"];

/// Returns the constraints of one of four variants that exclude each other, or none.
fn constraints(kind: usize) -> Constraints {
    let key: Box<str> = "env".into();
    match kind {
        0 => Constraints::Always,
        1 => Constraints::Not(Box::new(Constraints::Exists { key })),
        kind => Constraints::Value { key, value: VALUES[kind - 2].into() },
    }
}

fn parameters(kind: usize) -> DynamicParameters {
    let value = kind.checked_sub(1).map(|at| ("env".to_owned(), VALUES[at].to_owned()));
    value.into_iter().chain([("other".to_owned(), "x".to_owned())]).collect()
}

fn name(at: usize, kind: usize) -> ResourceKey {
    let name = ResourceName::new(NAMES[at]).unwrap().variant(&constraints(kind));
    ResourceKey { type_url: cluster(), name }
}

/// Puts or deletes one variant of a name in a scope.
fn change() -> impl Strategy<Value = (usize, usize, usize, Option<u8>)> {
    (0..3_usize, 0..3_usize, 0..5_usize, proptest::option::weighted(0.7, 0..2_u8))
}

fn write(state: &State, changes: &[(usize, usize, usize, Option<u8>)]) -> State {
    let mut state = state.clone();
    for (at, base, kind, body) in changes {
        let (key, mut transaction) = (name(*base, *kind), Transaction::default());
        match body {
            Some(body) => transaction.upserts.push(Upsert {
                scope: scope(*at),
                draft: ResourceDraft::new(key, Bytes::copy_from_slice(&[*body])),
            }),
            None => transaction.deletes.push((scope(*at), key)),
        }
        // A refused write, of a resource without constraints beside variants, changes nothing.
        state = state.apply(&transaction).state;
    }
    state
}

/// The resource of each name that a node with these parameters sees: in the first scope with one
/// that matches.
fn naive(state: &State, scopes: &[ScopeName], parameters: &DynamicParameters) -> Shown {
    let mut out = Shown::new();
    for base in NAMES {
        let found = scopes.iter().find_map(|scope| {
            let collection = state.collection(scope, &cluster())?;
            collection
                .resources
                .values()
                .find(|one| one.name().base() == base && one.matches(parameters))
        });
        if let Some(found) = found {
            out.insert(found.name().to_string(), found.version().to_string());
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// DYN-03, DYN-09: a view shows the matching variant of each name, whoever asks and however it
    /// asks. The difference of two views is what their variants differ in.
    #[test]
    fn view_shows_the_matching_variant_of_each_name(
        first in proptest::collection::vec(change(), 0..12),
        second in proptest::collection::vec(change(), 0..4),
        orders in (0..6_usize, 0..6_usize),
        kinds in (0..4_usize, 0..4_usize),
    ) {
        let order = |at: usize| {
            let all = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
            all[at].map(scope)
        };
        let view = |state: &State, order_at: usize, kind: usize| {
            let view = View::resolve(state, &order(order_at)).of_type(&cluster());
            view.with_parameters(Some(Arc::new(parameters(kind))))
        };
        let before = write(&State::new(Incarnation(1)), &first);
        let after = write(&before, &second);
        let (from, to) = (view(&before, orders.0, kinds.0), view(&after, orders.1, kinds.1));
        prop_assert_eq!(shown(&from), naive(&before, &order(orders.0), &parameters(kinds.0)));
        let expected = naive(&after, &order(orders.1), &parameters(kinds.1));
        prop_assert_eq!(shown(&to), expected.clone());
        prop_assert_eq!(patched(&Differ::new(), &from, &to), expected.clone());
        let mut listed = Shown::new();
        let mut next = to.next_after(None);
        while let Some(resource) = next {
            listed.insert(resource.name().to_string(), resource.version().to_string());
            next = to.next_after(Some(resource.name()));
        }
        prop_assert_eq!(listed, expected.clone());
        let bare = View::resolve(&after, &order(orders.1)).of_type(&cluster());
        for base in NAMES {
            let located = located_name(base, &parameters(kinds.1));
            let found = [to.get(base), to.get(&located), bare.get(&located)]
                .map(|found| found.map(|one| one.name().to_string()));
            let expected = expected.keys().find(|name| name.split(' ').next() == Some(base));
            prop_assert_eq!(found, [expected.cloned(), expected.cloned(), expected.cloned()]);
        }
    }
}
