//! Tests of the content of earlier revisions: what the history keeps, on each replica and through everything that
//! replaces a database.

use std::{collections::BTreeMap, fs, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_model::{
    AccessOp, AccessRule, Assignment, AssignmentOp, IdentityQuota, NodeBinding, Resource,
    ResourceKey, Revision, ScopeName, SecretsGrant, State, Token, TokenDigest, Transaction,
    TransactionMeta, default_assignment,
};
use chancery_store::{
    Backup, Config, Differing, Part, PartChange, Past, PastError, Replica, RestoreOptions,
    Retention, Selection, restore,
};

use crate::{
    cluster::{DEADLINE, equal, eventually, member_config, open_member, voters},
    support::{Random, commit, key, memory_dir, open, put, scope, upsert},
};

type Content = BTreeMap<(ScopeName, ResourceKey), Vec<String>>;

/// Renders all that the history keeps of a resource.
fn rendered(resource: &Resource) -> Vec<String> {
    let labels: Vec<_> = resource.labels().collect();
    vec![format!("{:?} {labels:?} {:?}", resource.delta_field(), resource.children())]
}

fn content(state: &State) -> Content {
    let mut content = Content::new();
    for (name, scope) in &state.scopes {
        for (type_url, collection) in &scope.types {
            for resource in collection.resources.values() {
                let (type_url, of) = (type_url.clone(), resource.name().clone());
                let key = (name.clone(), ResourceKey { type_url, name: of });
                content.insert(key, rendered(resource));
            }
        }
    }
    content
}

/// Returns the content at a revision: that of `newest`, changed by what later revisions replaced.
fn content_at(newest: &State, differing: &Differing) -> Content {
    let mut content = content(newest);
    for (key, before) in &differing.resources {
        match before {
            Some(before) => content.insert(key.clone(), rendered(before)),
            None => content.remove(key),
        };
    }
    content
}

fn differing(past: &Past, revision: u64) -> Result<Differing, PastError> {
    past.differing(Revision(revision), &Selection::default(), usize::MAX)
}

fn assignment(name: &str, priority: u8) -> Assignment {
    Assignment { name: name.into(), priority: priority.into(), ..default_assignment() }
}

/// Returns a transaction with a few random changes.
fn random_transaction(random: &mut Random, n: u64) -> Transaction {
    let mut transaction = Transaction {
        meta: TransactionMeta { time_ms: 1000 * n, ..TransactionMeta::default() },
        ..Transaction::default()
    };
    for _ in 0..=random.below(4) {
        let name = format!("c{}", random.below(12));
        let scope = scope(["default", "edge", "edge/eu"][random.below(3)]);
        match random.below(6) {
            0 => transaction.deletes.push((scope, key(&name))),
            // The same body with another label is another record, but the same version.
            1 => {
                let mut upsert = upsert(&name, b"body");
                upsert.scope = scope;
                upsert.draft.labels.insert("n".to_owned(), random.below(3).to_string());
                transaction.upserts.push(upsert);
            }
            2 => {
                let name = format!("a{}", random.below(3));
                let priority = random.byte();
                transaction.assignments.push(AssignmentOp::Put(assignment(&name, priority)));
            }
            _ => {
                let mut upsert = upsert(&name, b"");
                upsert.scope = scope;
                upsert.draft.body = Bytes::from(format!("{n} {}", random.below(3)));
                transaction.upserts.push(upsert);
            }
        }
    }
    if random.below(20) == 0 {
        transaction.prune.push(scope("edge"));
    }
    transaction.upserts.sort_by(|a, b| (&a.scope, &a.draft.key).cmp(&(&b.scope, &b.draft.key)));
    transaction.upserts.dedup_by(|a, b| a.scope == b.scope && a.draft.key == b.draft.key);
    let is_upserted = |scope: &ScopeName, key: &ResourceKey| {
        transaction.upserts.iter().any(|one| one.scope == *scope && one.draft.key == *key)
    };
    let deletes = transaction.deletes.iter().filter(|(scope, key)| !is_upserted(scope, key));
    transaction.deletes = deletes.cloned().collect();
    transaction
}

/// Checks that a replica has the content of all revisions from `oldest` on, and nothing else.
async fn check(replica: &Replica, states: &BTreeMap<u64, Arc<State>>, oldest: u64) {
    let past = replica.past().await;
    assert_eq!(past.oldest(), Revision(oldest));
    for (&revision, state) in states {
        match differing(&past, revision) {
            Ok(found) => {
                assert!(revision >= oldest, "revision {revision} should be forgotten");
                let what = format!("replica {}, revision {revision}", replica.status().replica_id);
                assert_eq!(content_at(past.state(), &found), content(state), "{what}");
                let rules = found.assignments.as_ref().unwrap_or(&past.state().assignments.rules);
                assert_eq!(*rules, state.assignments.rules, "{what}");
            }
            Err(PastError::Forgotten { oldest: found, .. }) => {
                assert!(revision < oldest, "revision {revision} is forgotten");
                assert_eq!(found, Revision(oldest));
            }
            Err(error) => panic!("revision {revision}: {error}"),
        }
    }
}

/// Each state is found again from a later one, also by the name of a resource, and after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn content_of_each_revision_is_found_again() {
    let dir = memory_dir();
    let mut random = Random(7);
    let mut replica = open(dir.path()).await;
    let mut states = BTreeMap::from([(0, replica.state())]);
    for n in 0..60 {
        commit(&replica, random_transaction(&mut random, n)).await;
        states.insert(replica.state().revision.0, replica.state());
        if n % 20 == 19 {
            check(&replica, &states, 0).await;
            replica.shutdown().await.unwrap();
            replica = open(dir.path()).await;
            check(&replica, &states, 0).await;
        }
    }
    let past = replica.past().await;
    for (&revision, state) in &states {
        let selection = Selection { scope: Some(scope("edge")), ..Selection::default() };
        let found = past.differing(Revision(revision), &selection, usize::MAX).unwrap();
        let of_scope = |mut content: Content| {
            content.retain(|(name, _), _| *name == scope("edge"));
            content
        };
        assert_eq!(of_scope(content_at(past.state(), &found)), of_scope(content(state)));
        assert!(found.resources.keys().all(|(name, _)| *name == scope("edge")));
        for n in 0..12 {
            let (scope, key) = (scope("default"), key(&format!("c{n}")));
            let at = past.resource_at(Revision(revision), &scope, &key).unwrap();
            let expected = state.get(&scope, &key).map(|one| rendered(one));
            assert_eq!(at.map(|one| rendered(&one)), expected, "{key} at {revision}");
            let changes = past.changes_to(&scope, &key, 1000).unwrap();
            let next = changes.iter().find(|change| change.revision.0 > revision);
            if let Some(next) = next {
                assert_eq!(next.before.as_deref().map(rendered), expected, "{key} at {revision}");
            }
        }
    }
}

/// The changes of a revision are listed in pages, and a limit bounds the resources of an answer.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_content_is_listed_in_pages() {
    let dir = memory_dir();
    let replica = open(dir.path()).await;
    let upserts = |body: &'static [u8]| (0..10).map(move |n| upsert(&format!("c{n}"), body));
    commit(&replica, Transaction { upserts: upserts(b"1").collect(), ..put("x", b"x") }).await;
    commit(&replica, Transaction { upserts: upserts(b"2").collect(), ..put("x", b"x") }).await;
    let past = replica.past().await;
    assert_eq!((past.n_replaced(Revision(1)), past.n_replaced(Revision(3))), (Some(10), None));
    for (revision, before) in [(1, None), (2, Some(&b"1"[..]))] {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let (page, last) = past.changes_of(Revision(revision), after.as_deref(), 4).unwrap();
            assert!(page.len() <= 4);
            for PartChange { before: one, after: other } in page {
                let Part::Resource { key, resource, .. } = one else { panic!("{one:?}") };
                assert_eq!(resource.and_then(|one| one.body()).as_deref(), before);
                let Part::Resource { resource, .. } = other else { panic!("{other:?}") };
                let after = resource.and_then(|one| one.body()).unwrap();
                assert_eq!(after[..], *revision.to_string().as_bytes());
                names.push(key.name.as_str().to_owned());
            }
            after = last;
            if after.is_none() {
                break;
            }
        }
        let expected: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
        assert_eq!(names, expected);
    }
    let few = past.differing(Revision(0), &Selection::default(), 9).unwrap_err();
    assert!(matches!(few, PastError::TooMany { max: 9, .. }), "{few}");
    assert!(past.differing(Revision(0), &Selection::default(), 10).is_ok());
    let future = differing(&past, 3).unwrap_err();
    assert_eq!(future.to_string(), "revision 3 does not exist; the newest revision is 2");
}

/// The log decides what is kept: all replicas drop the same revisions, and delete their records.
#[tokio::test(flavor = "multi_thread")]
async fn retention_is_equal_on_all_replicas() {
    let dir = memory_dir();
    let retention = Retention { revisions: 20, bytes: 1 << 30, age: Duration::ZERO };
    let member = |id, join: &[&str]| Config { retention, ..member_config(dir.path(), id, join) };
    let first = Replica::open(member(1, &[])).await.unwrap();
    let address = first.raft_address().to_owned();
    // The followers have other settings, which count only while they lead.
    let second = open_member(dir.path(), 2, &[&address]).await;
    let third = open_member(dir.path(), 3, &[&address]).await;
    eventually("three voters", async || voters(&first).await == [1, 2, 3]).await;
    let replicas = [first, second, third];
    let mut random = Random(3);
    let mut states = BTreeMap::from([(0, replicas[0].state())]);
    for n in 0..50 {
        let replica = &replicas[random.below(3)];
        commit(replica, random_transaction(&mut random, n)).await;
        states.insert(replica.state().revision.0, replica.state());
    }
    equal(&replicas.iter().collect::<Vec<_>>()).await;
    let oldest = replicas[0].state().revision.0 - 20;
    for replica in &replicas {
        check(replica, &states, oldest).await;
    }
}

/// The limits of bytes and of age drop the same revisions on all replicas, also on one that was down and receives a snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn retention_by_bytes_and_age_is_equal_on_all_replicas() {
    for retention in [
        Retention { revisions: 1000, bytes: 3000, age: Duration::ZERO },
        Retention { revisions: 1000, bytes: 1 << 30, age: Duration::from_secs(9) },
    ] {
        let dir = memory_dir();
        let config = |id, join: &[&str]| Config {
            retention,
            snapshot_log_entries: 10,
            log_entries_keep: 0,
            log_bytes_keep: 0,
            ..member_config(dir.path(), id, join)
        };
        let first = Replica::open(config(1, &[])).await.unwrap();
        let address = first.raft_address().to_owned();
        let second = Replica::open(config(2, &[&address])).await.unwrap();
        let third = Replica::open(config(3, &[&address])).await.unwrap();
        eventually("three voters", async || voters(&first).await == [1, 2, 3]).await;
        let mut random = Random(9);
        let mut states = BTreeMap::from([(0, first.state())]);
        let mut third = Some(third);
        for n in 0..80 {
            if n == 10 {
                let third = third.take().unwrap();
                third.shutdown().await.unwrap();
            }
            let replica = if random.below(2) == 0 { &first } else { &second };
            commit(replica, random_transaction(&mut random, n)).await;
            let state = replica.state();
            states.insert(state.revision.0, state);
        }
        eventually("the logs are purged", async || {
            [&first, &second].iter().all(|replica| replica.status().purged > Some(40))
        })
        .await;
        let third = Replica::open(config(3, &[&address])).await.unwrap();
        third.catch_up(DEADLINE).await.unwrap();
        equal(&[&first, &second, &third]).await;
        let newest = first.state().revision.0;
        let oldest = first.past().await.oldest().0;
        assert!(oldest > 10 && oldest + 3 < newest, "{retention:?}: {oldest} of {newest}");
        if !retention.age.is_zero() {
            // A random transaction may change nothing, and then makes no revision.
            let n_revisions = newest - oldest;
            assert!((5..=10).contains(&n_revisions), "{n_revisions}");
        }
        for replica in [&first, &second, &third] {
            check(replica, &states, oldest).await;
        }
        commit(&third, put("after", b"return")).await;
        equal(&[&first, &second, &third]).await;
        let oldest = first.past().await.oldest();
        for replica in [&second, &third] {
            assert_eq!(replica.past().await.oldest(), oldest, "{retention:?}");
        }
    }
}

/// A replica that was built from a snapshot has the content of earlier revisions, too.
#[tokio::test(flavor = "multi_thread")]
async fn snapshot_carries_the_content_of_earlier_revisions() {
    let dir = memory_dir();
    let small_log = |id, join: &[&str]| Config {
        snapshot_log_entries: 10,
        log_entries_keep: 0,
        log_bytes_keep: 0,
        ..member_config(dir.path(), id, join)
    };
    let first = Replica::open(small_log(1, &[])).await.unwrap();
    let mut random = Random(11);
    let mut states = BTreeMap::from([(0, first.state())]);
    for n in 0..60 {
        commit(&first, random_transaction(&mut random, n)).await;
        states.insert(first.state().revision.0, first.state());
    }
    eventually("the log is purged", async || first.status().purged > Some(30)).await;
    let address = first.raft_address().to_owned();
    let second = Replica::open(small_log(2, &[&address])).await.unwrap();
    second.catch_up(DEADLINE).await.unwrap();
    equal(&[&first, &second]).await;
    check(&second, &states, 0).await;
    second.shutdown().await.unwrap();
    let second = Replica::open(small_log(2, &[&address])).await.unwrap();
    check(&second, &states, 0).await;
}

/// A backup of a running replica and one of its directory both carry the content, and a restore keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn restore_keeps_the_content_of_earlier_revisions() {
    let dir = memory_dir();
    let old = open(&dir.path().join("old")).await;
    let mut random = Random(5);
    let mut states = BTreeMap::from([(0, old.state())]);
    for n in 0..30 {
        commit(&old, random_transaction(&mut random, n)).await;
        states.insert(old.state().revision.0, old.state());
    }
    let running: Vec<u8> = old.backup(DEADLINE).await.unwrap().pieces().flatten().collect();
    old.shutdown().await.unwrap();
    let stopped = Backup::of_directory(&dir.path().join("old")).unwrap();
    let stopped: Vec<u8> = stopped.pieces().flatten().collect();
    for (name, bytes) in [("running", running), ("stopped", stopped)] {
        let (file, to) = (dir.path().join(name), dir.path().join(format!("{name}.d")));
        fs::write(&file, &bytes).unwrap();
        let options = RestoreOptions {
            data_dir: to.clone(),
            replica_id: 1,
            after: Revision(0),
            meta: TransactionMeta::default(),
        };
        restore(&file, &options).unwrap();
        let replica = open(&to).await;
        check(&replica, &states, 0).await;
        commit(&replica, put("after", b"restore")).await;
        check(&replica, &states, 0).await;
        let skipped = differing(&replica.past().await, 100).unwrap_err();
        assert!(matches!(skipped, PastError::Skipped { .. }), "{skipped}");
        replica.shutdown().await.unwrap();
        // A backup without its last content is not complete.
        fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
        let error = restore(&file, &RestoreOptions { data_dir: dir.path().join("x"), ..options });
        assert!(error.is_err());
    }
}

/// Tokens that were deleted cannot be found again, but rules can.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_tokens_are_not_kept() {
    let dir = memory_dir();
    let replica = open(dir.path()).await;
    let token = Token {
        name: "secret token".into(),
        digest: TokenDigest([7; 32]),
        created_ms: 1,
        expires_ms: 0,
        revision: Revision(0),
    };
    let rule = AccessRule {
        name: "rule".into(),
        identities: vec![],
        refuse: true,
        node: NodeBinding::default(),
        read: vec![],
        secrets: SecretsGrant::default(),
        allow: vec![],
        deny: vec![],
        quota: IdentityQuota::default(),
    };
    let access = vec![AccessOp::PutRule(Box::new(rule.clone())), AccessOp::AddToken(token)];
    commit(&replica, Transaction { access, ..Transaction::default() }).await;
    let access =
        vec![AccessOp::DeleteRule("rule".into()), AccessOp::DeleteToken(TokenDigest([7; 32]))];
    commit(&replica, Transaction { access, ..Transaction::default() }).await;
    let past = replica.past().await;
    let (changes, _) = past.changes_of(Revision(2), None, 10).unwrap();
    let [PartChange { before, after }] = &changes[..] else { panic!("{changes:?}") };
    assert!(matches!(before, Part::Rule { rule: Some(found), .. } if **found == rule));
    assert!(matches!(after, Part::Rule { rule: None, .. }));
    assert_eq!(differing(&past, 0).unwrap().rules.into_values().collect::<Vec<_>>(), [None]);
}
