//! Quotas and the hashes of the history on several replicas.

use chancery_model::{AccessOp, Outcome, Quota, QuotaKey, Refusal, Transaction};
use chancery_store::Replica;
use futures::future::join_all;

use crate::{
    cluster::{equal, three},
    support::{commit, put},
};

/// Attack 57: writers at all replicas at once stay within the quota, and each refusal says key, value and limit. All
/// replicas have the same use, and the same hashes of the history.
#[tokio::test(flavor = "multi_thread")]
async fn writers_at_all_replicas_stay_within_a_quota() {
    const MAX: u64 = 7;
    let (_dir, replicas) = three().await;
    let quota = Quota {
        name: "all".into(),
        scopes: vec![Quota::pattern("**").unwrap()],
        max_resources: Some(MAX),
        max_bytes: None,
        max_scopes: None,
        max_body_bytes: None,
    };
    let access = vec![AccessOp::PutQuota(Box::new(quota))];
    commit(&replicas[0], Transaction { access, ..Transaction::default() }).await;
    let writes = (0..30).map(|n| {
        let replica = &replicas[n % replicas.len()];
        async move { replica.transact(put(&format!("r{n}"), b"1")).await.unwrap() }
    });
    let outcomes = join_all(writes).await;
    let n_committed = outcomes.iter().filter(|one| matches!(one, Outcome::Committed(_))).count();
    assert_eq!(n_committed as u64, MAX);
    for outcome in &outcomes {
        let Outcome::Refused(refusal) = outcome else { continue };
        let Refusal::Quota(exceeded) = refusal else { panic!("{refusal}") };
        let found = (&*exceeded.quota, exceeded.key, exceeded.value, exceeded.max);
        assert_eq!(found, ("all", QuotaKey::Resources, MAX + 1, MAX), "also through a follower");
    }
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    let hashes = |replica: &Replica| -> Vec<String> {
        let history = replica.history(100);
        history.iter().map(|entry| entry.hash.unwrap().to_string()).collect()
    };
    for (at, replica) in replicas.iter().enumerate() {
        let state = replica.state();
        let used: Vec<u64> = state.quotas.iter().map(|(_, used)| used.resources).collect();
        assert_eq!(used, [MAX], "replica {at}");
        assert_eq!(hashes(replica), hashes(&replicas[0]), "replica {at}");
    }
    for replica in &replicas {
        replica.shutdown().await.unwrap();
    }
}
