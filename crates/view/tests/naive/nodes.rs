//! Views of wildcards with names of several nodes, against a naive model: the scopes without the names of other nodes.

use std::sync::Arc;

use chancery_model::{Node, Resource};

use super::*;

/// The names of each node, and names of all nodes. The index in a list is that of the node.
const NAMES: [(&str, &[usize]); 5] = [
    ("plain", &[0, 1, 2]),
    ("xdstp://a/t.T/p/one", &[0, 1, 2]),
    ("xdstp://a/t.T/p/one?xds.node.id=n0", &[0]),
    ("xdstp://a/t.T/p/two?xds.node.id=n1", &[1]),
    ("xdstp://a/t.T/p/one?xds.node.cluster=edge", &[0, 1]),
];

fn node(at: usize) -> Arc<Node> {
    let cluster = if at < 2 { "edge" } else { "core" };
    Arc::new(Node { id: format!("n{at}"), cluster: cluster.to_owned(), ..Node::default() })
}

/// Puts or deletes a cluster.
fn write(state: &State, changes: &[(usize, usize, Option<u8>)]) -> State {
    let mut state = state.clone();
    for (at, name, body) in changes {
        let name = ResourceName::new(NAMES[*name].0).unwrap();
        let key = ResourceKey { type_url: cluster(), name };
        let mut transaction = Transaction::default();
        match body {
            Some(body) => {
                let draft = ResourceDraft::new(key, Bytes::copy_from_slice(&[*body]));
                transaction.upserts.push(Upsert { scope: scope(*at), draft });
            }
            None => transaction.deletes.push((scope(*at), key)),
        }
        state = state.apply(&transaction).state;
    }
    state
}

fn changes(n_max: usize) -> impl Strategy<Value = Vec<(usize, usize, Option<u8>)>> {
    let change = (0..2_usize, 0..NAMES.len(), proptest::option::weighted(0.7, 0..2_u8));
    proptest::collection::vec(change, 0..n_max)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// XDSTP-08: a view of a wildcard has no names of other nodes, and neither has its difference to another view,
    /// also if the node changes. Without the filter, a view has all names.
    #[test]
    fn wildcard_has_the_names_of_its_node(
        first in changes(20),
        second in changes(6),
        nodes in (0..3_usize, 0..3_usize),
    ) {
        let scopes = [scope(0), scope(1)];
        let naive_of = |state: &State, at: usize| {
            let mut all = naive(state, &scopes);
            all.retain(|name, _| {
                NAMES.iter().any(|(known, nodes)| known == name && nodes.contains(&at))
            });
            all
        };
        let all = |state: &State| View::resolve(state, &scopes).of_type(&cluster());
        let view = |state: &State, at: usize| all(state).hiding_other_nodes(|| Some(node(at)));
        let before = write(&State::new(Incarnation(1)), &first);
        let after = write(&before, &second);
        prop_assert_eq!(shown(&all(&after)), naive(&after, &scopes));

        let (from, to) = (view(&before, nodes.0), view(&after, nodes.1));
        prop_assert_eq!(shown(&from), naive_of(&before, nodes.0));
        let expected = naive_of(&after, nodes.1);
        prop_assert_eq!(shown(&to), expected.clone());
        prop_assert_eq!(patched(&Differ::new(), &from, &to), expected.clone());
        let mut listed: Vec<&Arc<Resource>> = Vec::new();
        while let Some(next) = to.next_after(listed.last().map(|one| one.name())) {
            listed.push(next);
        }
        prop_assert_eq!(listed.len(), expected.len());
        for (name, _) in NAMES {
            let found = to.get(name).map(|one| one.version().to_string());
            prop_assert_eq!(found, expected.get(name).cloned());
        }
    }
}
