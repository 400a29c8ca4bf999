//! Views of clients that may not receive all secrets, against a naive model: the scopes without the forbidden secrets.

use std::sync::Arc;

use chancery_model::{
    Access, AccessRule, Identity, IdentityPattern, IdentityQuota, Node, NodeBinding, Principal,
    Resource, SecretsGrant, SecretsRight, StructuredName, Template, Variables,
};

use super::*;

/// The names of the secrets: plain ones, and the members of a glob collection.
const NAMES: [&str; 5] = ["ca", "cert", "own", "xdstp://a/t.T/p/one", "xdstp://a/t.T/p/two"];

fn secret() -> TypeUrl {
    TypeUrl::from_static(types::SECRET)
}

/// For each scope, the permitted names.
type Permits = Vec<BTreeSet<usize>>;

fn permits() -> impl Strategy<Value = Permits> {
    proptest::collection::vec(proptest::collection::btree_set(0..NAMES.len(), 0..=NAMES.len()), 3)
}

/// Returns the right of a client with one rule for the names of each scope.
fn right(permits: &Permits) -> Arc<SecretsRight> {
    let identities = vec![IdentityPattern::parse("token:client").unwrap()];
    let template = |source: &str| {
        let variables = Variables { identities: &identities, node: false };
        Template::parse(source, variables).unwrap()
    };
    let rules = permits.iter().enumerate().map(|(at, names)| AccessRule {
        name: SCOPES[at].into(),
        identities: identities.clone(),
        refuse: false,
        node: NodeBinding::default(),
        read: vec![template(SCOPES[at])],
        secrets: if names.is_empty() {
            SecretsGrant::default()
        } else {
            SecretsGrant {
                scopes: vec![template(SCOPES[at])],
                names: names.iter().map(|name| template(NAMES[*name])).collect(),
            }
        },
        allow: Vec::new(),
        deny: Vec::new(),
        quota: IdentityQuota::default(),
    });
    let access = Access { rules: rules.collect(), ..Access::default() };
    let token = Principal::token("client").unwrap();
    let client = Identity { principal: token, token: None };
    let scopes: Vec<ScopeName> = (0..permits.len()).map(scope).collect();
    access.decide_stream(&client, &Node::default(), &scopes, None).unwrap().secrets
}

/// Puts or deletes a secret, with an alias that its name determines.
fn write(state: &State, changes: &[(usize, usize, Option<u8>)]) -> State {
    let mut state = state.clone();
    for (at, name, body) in changes {
        let key =
            ResourceKey { type_url: secret(), name: ResourceName::new(NAMES[*name]).unwrap() };
        let mut transaction = Transaction::default();
        match body {
            Some(body) => {
                let mut draft = ResourceDraft::new(key, Bytes::copy_from_slice(&[*body]));
                draft.aliases = vec![alias(*name)];
                transaction.upserts.push(Upsert { scope: scope(*at), draft });
            }
            None => transaction.deletes.push((scope(*at), key)),
        }
        state = state.apply(&transaction).state;
    }
    state
}

fn alias(name: usize) -> ResourceName {
    ResourceName::new(&format!("alias/{name}")).unwrap()
}

/// Merges the permitted secrets of the scopes, in their order.
fn naive(state: &State, order: &[usize], permits: &Permits) -> Shown {
    let mut out = Shown::new();
    for at in order {
        for name in &permits[*at] {
            let found = state
                .collection(&scope(*at), &secret())
                .and_then(|collection| collection.resources.get(NAMES[*name]));
            if let Some(found) = found {
                let version = found.version().to_string();
                out.entry(NAMES[*name].to_owned()).or_insert(version);
            }
        }
    }
    out
}

fn of<'a>(found: impl IntoIterator<Item = &'a Arc<Resource>>) -> Shown {
    found.into_iter().map(|one| (one.name().to_string(), one.version().to_string())).collect()
}

fn change() -> impl Strategy<Value = (usize, usize, Option<u8>)> {
    (0..3_usize, 0..NAMES.len(), proptest::option::weighted(0.7, 0..2_u8))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Attack 67: every lookup shows the first permitted secret of each name. The difference of two views is what
    /// their permitted secrets differ in: a forbidden secret neither hides nor removes another one.
    #[test]
    fn forbidden_secret_does_not_shadow(
        first in proptest::collection::vec(change(), 0..20),
        second in proptest::collection::vec(change(), 0..5),
        permits in permits(),
        lists in (
            prop::sample::subsequence(vec![0, 1, 2], 1..=3).prop_shuffle(),
            prop::sample::subsequence(vec![0, 1, 2], 1..=3).prop_shuffle(),
            any::<bool>(),
        ),
    ) {
        let (old_list, other_list, moves) = lists;
        let new_list = if moves { other_list } else { old_list.clone() };
        let right = right(&permits);
        let view = |state: &State, list: &[usize]| {
            let scopes: Vec<ScopeName> = list.iter().map(|at| scope(*at)).collect();
            let view = View::resolve(state, &scopes).with_secrets(Some(Arc::clone(&right)));
            view.of_type(&secret())
        };
        let before = write(&State::new(Incarnation(1)), &first);
        let after = write(&before, &second);
        let (from, to) = (view(&before, &old_list), view(&after, &new_list));
        prop_assert_eq!(shown(&from), naive(&before, &old_list, &permits));
        let expected = naive(&after, &new_list, &permits);
        prop_assert_eq!(shown(&to), expected.clone());
        prop_assert_eq!(patched(&Differ::new(), &from, &to), expected.clone());

        let mut listed: Vec<&Arc<Resource>> = Vec::new();
        while let Some(next) = to.next_after(listed.last().map(|one| one.name())) {
            listed.push(next);
        }
        prop_assert_eq!(of(listed), expected.clone());
        let glob = StructuredName::parse("xdstp://a/t.T/p/*").unwrap();
        let mut members = expected.clone();
        members.retain(|name, _| name.starts_with("xdstp:"));
        prop_assert_eq!(of(to.members(&glob)), members);
        for (at, name) in NAMES.into_iter().enumerate() {
            for text in [name, alias(at).as_str()] {
                let found = to.get(text).map(|one| one.version().to_string());
                prop_assert_eq!(found, expected.get(name).cloned());
            }
        }
    }
}
