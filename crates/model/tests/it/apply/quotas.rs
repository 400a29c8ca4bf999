//! Quotas: exact counts, and the refusal of growth.

use std::sync::Arc;

use bytes::Bytes;
use chancery_model::{
    AccessLimit, AccessOp, QUOTAS_MAX, Quota, QuotaKey, QuotaUse, Refusal, ResourceDraft,
    ResourceKey, ResourceName, State, Transaction, TypeUrl, Upsert, types,
};
use proptest::prelude::*;

use super::{key, new, put, refusal, scope, summary, upsert};

fn quota(name: &str, scopes: &[&str]) -> Quota {
    Quota {
        name: name.into(),
        scopes: scopes.iter().map(|source| Quota::pattern(source).unwrap()).collect(),
        max_resources: None,
        max_bytes: None,
        max_scopes: None,
        max_body_bytes: None,
    }
}

fn set(quotas: Vec<Quota>) -> Transaction {
    let ops = quotas.into_iter().map(|quota| AccessOp::PutQuota(Box::new(quota)));
    Transaction { access: ops.collect(), ..Transaction::default() }
}

fn delete(name: &str) -> Transaction {
    Transaction { deletes: vec![(scope("t/a"), key(name))], ..Transaction::default() }
}

fn used(state: &State) -> Vec<QuotaUse> {
    state.quotas.used.clone()
}

fn text(state: &State, transaction: &Transaction) -> String {
    let before = used(state);
    let applied = state.apply(transaction);
    assert_eq!(used(&applied.state), before, "a refused write changes nothing");
    assert_eq!(applied.state.revision, state.revision);
    refusal(applied).to_string()
}

/// Attack 57: a write up to the limit commits, and one more is refused with key, value and limit.
#[test]
fn write_beyond_a_limit_is_refused_with_key_value_and_limit() {
    let limits = Quota {
        max_resources: Some(2),
        max_bytes: Some(8),
        max_scopes: Some(2),
        max_body_bytes: Some(5),
        ..quota("pay", &["t/**"])
    };
    let state = new().apply(&set(vec![limits])).state;
    let state = state.apply(&put(vec![upsert("t/a", "x", "1234"), upsert("t/b", "y", "12")])).state;
    assert_eq!(used(&state), [QuotaUse { resources: 2, bytes: 6, scopes: 2 }]);
    assert_eq!(
        text(&state, &put(vec![upsert("t/a", "z", "")])),
        "the quota \"pay\" is exceeded: max_resources is 2, and the write needs 3; delete resources or raise \
         the limit"
    );
    assert_eq!(
        text(&state, &put(vec![upsert("t/a", "x", "12345"), upsert("t/b", "y", "1234")])),
        "the quota \"pay\" is exceeded: max_bytes is 8, and the write needs 9; delete resources or raise the limit"
    );
    assert_eq!(
        text(&state, &put(vec![upsert("t/a", "x", "123456")])),
        "the quota \"pay\" is exceeded: max_body_bytes is 5, and envoy.config.cluster.v3.Cluster \"x\" in scope \"t/a\" has 6 bytes; make \
         it smaller or raise the limit"
    );
    let moved = Transaction {
        deletes: vec![(scope("t/a"), key("x"))],
        upserts: vec![upsert("t/c", "x", "1")],
        ..Transaction::default()
    };
    summary(&state.apply(&moved));
    let spread = Transaction { upserts: vec![upsert("t/c", "x", "1")], ..delete("none") };
    assert!(text(&state, &spread).contains("max_resources is 2"));
    summary(&state.apply(&put(vec![upsert("t/a", "x", "12345")])));
    summary(&state.apply(&put(vec![upsert("u", "x", "other scopes do not count")])));
}

#[test]
fn number_of_scopes_is_limited() {
    let limits = Quota { max_scopes: Some(1), ..quota("pay", &["t/*"]) };
    let state = new().apply(&set(vec![limits])).state;
    let state = state.apply(&put(vec![upsert("t/a", "x", "1")])).state;
    assert_eq!(
        text(&state, &put(vec![upsert("t/b", "x", "1")])),
        "the quota \"pay\" is exceeded: max_scopes is 1, and the write needs 2; delete resources or raise the limit"
    );
    let emptied = state.apply(&delete("x")).state;
    assert_eq!(used(&emptied), [QuotaUse::default()], "a scope without resources does not count");
    summary(&emptied.apply(&put(vec![upsert("t/b", "x", "1")])));
}

/// A lowered limit takes nothing away, and refuses only growth.
#[test]
fn lowered_limit_refuses_only_growth() {
    let state = new().apply(&put((0..4).map(|n| upsert("t/a", &format!("r{n}"), "12")).collect()));
    let limits = Quota {
        max_resources: Some(1),
        max_bytes: Some(1),
        max_body_bytes: Some(1),
        ..quota("pay", &["t/a"])
    };
    let state = state.state.apply(&set(vec![limits])).state;
    assert_eq!(used(&state), [QuotaUse { resources: 4, bytes: 8, scopes: 1 }]);
    let state = state.apply(&delete("r0")).state;
    let state = state.apply(&put(vec![upsert("t/a", "r1", "34")])).state;
    let state = state.apply(&put(vec![upsert("t/a", "r1", "3")])).state;
    assert_eq!(used(&state), [QuotaUse { resources: 3, bytes: 5, scopes: 1 }]);
    for body in ["34", "345"] {
        let written = text(&state, &put(vec![upsert("t/a", "r1", body)]));
        assert!(written.contains("max_body_bytes is 1"), "{written}");
    }
    assert!(text(&state, &put(vec![upsert("t/a", "r9", "")])).contains("max_resources is 1"));
}

/// All quotas of a scope must hold, and a transaction may raise a limit that it needs.
#[test]
fn overlapping_quotas_must_all_hold() {
    let of = |name, pattern, max| Quota { max_resources: Some(max), ..quota(name, &[pattern]) };
    let state = new().apply(&set(vec![of("all", "**", 3), of("pay", "t/**", 2)])).state;
    let state = state.apply(&put(vec![upsert("t/a", "x", "1"), upsert("u", "x", "1")])).state;
    let more = vec![upsert("t/a", "y", "1"), upsert("u", "y", "1")];
    assert!(
        text(&state, &put(more.clone()))
            .contains("the quota \"all\" is exceeded: max_resources is 3")
    );
    let pay = vec![upsert("t/a", "y", "1"), upsert("t/b", "y", "1")];
    assert!(text(&state, &put(pay)).contains("the quota \"all\""));
    let raised = Transaction { upserts: more, ..set(vec![of("all", "**", 4)]) };
    let applied = state.apply(&raised);
    assert_eq!(summary(&applied).access, 1);
    assert!(text(&applied.state, &put(vec![upsert("t/a", "z", "1")])).contains("\"all\""));
    let deleted = Transaction {
        access: vec![AccessOp::DeleteQuota("all".into()), AccessOp::DeleteQuota("none".into())],
        ..Transaction::default()
    };
    let applied = applied.state.apply(&deleted);
    assert_eq!((summary(&applied).access, used(&applied.state).len()), (1, 1));
    assert!(text(&applied.state, &put(vec![upsert("t/a", "z", "1")])).contains("\"pay\""));
    summary(&applied.state.apply(&put(vec![upsert("u", "z", "1")])));
}

#[test]
fn identical_quota_changes_nothing_and_their_number_is_limited() {
    let one = Quota { max_scopes: Some(1), ..quota("pay", &["t/*"]) };
    let state = new().apply(&set(vec![one.clone()])).state;
    let again = state.apply(&set(vec![one.clone()]));
    assert_eq!((summary(&again).access, again.state.revision), (0, state.revision));
    let named = |n: usize| Quota { name: format!("q{n}").into(), ..one.clone() };
    let full = state.apply(&set((1..QUOTAS_MAX).map(named).collect())).state;
    assert_eq!(full.quotas.rules.len(), QUOTAS_MAX);
    let refused = refusal(full.apply(&set(vec![named(QUOTAS_MAX)])));
    assert_eq!(refused, Refusal::AccessTooMany(AccessLimit::Quotas));
}

#[derive(Debug, Clone)]
enum Step {
    Put(&'static str, u8, u8),
    Delete(&'static str, u8),
    Prune(&'static str),
    Quota(u8, &'static str, u64),
    DeleteQuota(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let scopes = || prop_oneof![Just("t/a"), Just("t/b"), Just("t"), Just("u/a")];
    let patterns = prop_oneof![Just("**"), Just("t/**"), Just("t/*"), Just("t"), Just("u*")];
    let step = prop_oneof![
        6 => (scopes(), 0..4_u8, 0..9_u8).prop_map(|(scope, name, len)| Step::Put(scope, name, len)),
        2 => (scopes(), 0..4_u8).prop_map(|(scope, name)| Step::Delete(scope, name)),
        1 => scopes().prop_map(Step::Prune),
        2 => (0..3_u8, patterns, 0..20_u64).prop_map(|(name, scopes, max)| Step::Quota(name, scopes, max)),
        1 => (0..3_u8).prop_map(Step::DeleteQuota),
    ];
    prop::collection::vec(step, 1..8)
}

fn transaction(steps: &[Step]) -> Transaction {
    let mut transaction = Transaction::default();
    for (index, step) in steps.iter().enumerate() {
        let type_url = [types::CLUSTER, types::LISTENER][index % 2];
        let key = |name: u8| ResourceKey {
            type_url: TypeUrl::from_static(type_url),
            name: ResourceName::new(&name.to_string()).unwrap(),
        };
        match step {
            Step::Put(name, resource, len) => {
                let body = Bytes::from(vec![b'x'; usize::from(*len)]);
                let draft = ResourceDraft::new(key(*resource), body);
                transaction.upserts.push(Upsert { scope: scope(name), draft });
            }
            Step::Delete(name, resource) => {
                transaction.deletes.push((scope(name), key(*resource)));
            }
            Step::Prune(name) => transaction.prune.push(scope(name)),
            Step::Quota(name, pattern, max) => {
                let limits = Quota {
                    max_resources: Some(*max / 2),
                    max_bytes: Some(*max * 2),
                    max_scopes: (*max > 10).then_some(*max % 4),
                    max_body_bytes: (*max > 15).then_some(4),
                    ..quota(&name.to_string(), &[pattern])
                };
                transaction.access.push(AccessOp::PutQuota(Box::new(limits)));
            }
            Step::DeleteQuota(name) => {
                transaction.access.push(AccessOp::DeleteQuota(name.to_string().into()));
            }
        }
    }
    transaction
}

/// Counts all resources of a state again, without its indexes.
fn recount(state: &State, quota: &Quota) -> QuotaUse {
    let mut used = QuotaUse::default();
    for (_, scope) in state.scopes.iter().filter(|(name, _)| quota.includes(name)) {
        let bodies: Vec<u64> = (scope.types.values())
            .flat_map(|collection| collection.resources.values())
            .map(|resource| resource.body_len() as u64)
            .collect();
        used.resources += bodies.len() as u64;
        used.bytes += bodies.iter().sum::<u64>();
        used.scopes += u64::from(!bodies.is_empty());
    }
    used
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    /// Counts are exact after every transaction, no committed transaction exceeds a limit by growth, and two replicas
    /// decide equally, also if one of them has counted its quotas again.
    #[test]
    fn counts_equal_a_recount_and_limits_hold(transactions in prop::collection::vec(steps(), 1..12)) {
        let mut state = new();
        for steps in transactions {
            let transaction = transaction(&steps);
            let applied = state.apply(&transaction);
            let mut reloaded = state.clone();
            reloaded.load_quotas(state.quotas.rules.to_vec());
            let elsewhere = reloaded.apply(&transaction);
            prop_assert_eq!(&applied.outcome, &elsewhere.outcome);
            prop_assert_eq!(format!("{:?}", applied.state), format!("{:?}", elsewhere.state));
            for (quota, used) in applied.state.quotas.iter() {
                prop_assert_eq!(*used, recount(&applied.state, quota));
                let before = recount(&state, quota);
                for key in QuotaKey::ALL {
                    let (Some(max), Some(value)) = (quota.limit(key), used.value(key)) else { continue };
                    prop_assert!(value <= max.max(before.value(key).unwrap()), "{quota:?} {used:?}");
                }
            }
            let names: Vec<Arc<str>> = applied.state.quotas.rules.iter().map(|one| one.name.clone()).collect();
            prop_assert!(names.is_sorted());
            state = applied.state;
        }
    }
}
