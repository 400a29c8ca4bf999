//! Tests with the data of earlier releases: it opens with its state, and accepts writes.
//!
//! `tests/golden/format1` contains a data directory and a backup as the first release made them,
//! and a description of the content of both. A release with another format adds a separate
//! directory, and keeps these. To create one: `UPDATE_GOLDEN=1 cargo test -p chancery-store --test
//! it golden`.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use chancery_model::{
    Assignment, AssignmentOp, Glob, NodeMatcher, ResourceName, ScopeTemplate, State, Transaction,
    TransactionMeta,
};
use chancery_store::{CaughtUp, Config, MemberChange, Replica};

use crate::{
    cluster::{DEADLINE, equal, eventually, member_config},
    support::{commit, config, files, key, memory_dir, put, restore, scope, upsert},
};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format1").join(name)
}

/// Returns the description of the content of the directory and of the backup.
pub(crate) fn content() -> String {
    fs::read_to_string(golden("content.txt")).unwrap()
}

/// Renders a state as text that does not depend on the model's types.
pub(crate) fn describe(state: &State) -> String {
    let mut lines = Vec::new();
    for rule in &state.assignments.rules {
        let id = rule.matcher.id.as_ref().map_or("*", Glob::as_str);
        let scopes: Vec<&str> = rule.scopes.iter().map(ScopeTemplate::as_str).collect();
        lines.push(format!("assignment {} {} {id} {scopes:?}", rule.name, rule.priority));
    }
    for (name, scope) in &state.scopes {
        lines.push(format!("scope {name} {}", scope.changed));
        for (type_url, collection) in &scope.types {
            let (changed, label) = (collection.changed, collection.label.as_deref());
            lines.push(format!("  type {} {changed} {label:?}", type_url.as_str()));
            for (alias, of) in &collection.aliases {
                lines.push(format!("    alias {} {}", alias.as_str(), of.as_str()));
            }
            for resource in collection.resources.values() {
                let (name, version) = (resource.name().as_str(), resource.version());
                let children: Vec<&str> =
                    resource.children().iter().map(|c| c.name.as_str()).collect();
                let aliases: Vec<&str> = resource.aliases().iter().map(|a| a.as_str()).collect();
                let (body, ttl) = (&resource.body().unwrap()[..], resource.ttl());
                let labels: BTreeMap<&str, &str> = resource.labels().collect();
                lines.push(format!(
                    "    {name} {version} {body:?} {ttl:?} {labels:?} {aliases:?} {children:?}"
                ));
            }
        }
    }
    lines.join("\n") + "\n"
}

fn few_entries(data_dir: &Path) -> Config {
    Config { snapshot_log_entries: 4, log_entries_keep: 2, ..config(data_dir) }
}

/// Writes every kind of content: several scopes, all fields of a resource, removals, assignments,
/// labels. With `few_entries`, the result has a purged log, tables and a write-ahead log.
async fn write_some_of_everything(replica: &Replica) {
    let mut full = upsert("full", b"body");
    full.scope = scope("edge/eu");
    full.draft.ttl = Some(std::time::Duration::from_millis(1500));
    full.draft.aliases = vec![ResourceName::new("alias").unwrap()];
    full.draft.labels = [("team".to_owned(), "shop".to_owned())].into();
    full.draft.children = vec![key("child")];
    let meta = TransactionMeta {
        label: Some("v1".into()),
        author: "ada".into(),
        reason: "golden".into(),
        time_ms: 1_700_000_000_000,
        ..TransactionMeta::default()
    };
    let rule = Assignment {
        name: "edge".into(),
        priority: 10,
        matcher: NodeMatcher { id: Some(Glob::new("edge-*")), ..NodeMatcher::default() },
        scopes: vec![ScopeTemplate::parse("node/{node.id}").unwrap()],
    };
    let transaction = Transaction {
        upserts: vec![full, upsert("plain", b"1"), upsert("gone", b"2")],
        assignments: vec![AssignmentOp::Put(rule)],
        meta,
        ..Transaction::default()
    };
    commit(replica, transaction).await;
    let deletes = vec![(scope("default"), key("gone"))];
    commit(replica, Transaction { deletes, ..Transaction::default() }).await;
    for n in 0..10_u8 {
        commit(replica, put("plain", &[n])).await;
    }
}

async fn make() {
    let dir = memory_dir();
    let data = dir.path().join("data");
    let replica = Replica::open(few_entries(&data)).await.unwrap();
    write_some_of_everything(&replica).await;
    replica.snapshot(DEADLINE).await.unwrap();
    eventually("a purged log", async || replica.status().purged.is_some()).await;
    // Opening the directory writes tables. Later writes are in the write-ahead log alone.
    replica.shutdown().await.unwrap();
    drop(replica);
    let replica = Replica::open(few_entries(&data)).await.unwrap();
    commit(&replica, put("last", b"3")).await;
    let backup = replica.backup(DEADLINE).await.unwrap();
    let text = describe(&replica.state());
    replica.shutdown().await.unwrap();
    let to = golden("data");
    drop(fs::remove_dir_all(&to));
    let mut kept = files(&data);
    // These files contain no state: locks, RocksDB's text log, and its options, which name the
    // directory.
    kept.retain(|path, _| {
        let name = path.file_name().unwrap().to_string_lossy();
        !["LOCK", "LOG", "OPTIONS"].iter().any(|prefix| name.starts_with(prefix))
    });
    restore(&to, &kept);
    fs::write(golden("backup.chancery"), backup.pieces().flatten().collect::<Vec<u8>>()).unwrap();
    fs::write(golden("content.txt"), text).unwrap();
}

/// A directory of the first release opens with all its content, accepts writes, and opens again.
#[tokio::test(flavor = "multi_thread")]
async fn directory_of_first_release_opens_and_accepts_writes() {
    if env::var_os("UPDATE_GOLDEN").is_some() {
        make().await;
    }
    let dir = memory_dir();
    restore(dir.path(), &files(&golden("data")));
    let replica = Replica::open(few_entries(dir.path())).await.unwrap();
    let text = |replica: &Replica| describe(&replica.state());
    assert_eq!(text(&replica), content());
    let before = replica.state().revision;
    assert_eq!(replica.history(100).len() as u64, before.0);
    let author = replica.history(100).last().unwrap().meta.author.clone();
    assert_eq!(author, "ada");
    commit(&replica, put("new", b"1")).await;
    let after = text(&replica);
    replica.shutdown().await.unwrap();
    drop(replica);
    let replica = Replica::open(few_entries(dir.path())).await.unwrap();
    assert_eq!(text(&replica), after);
    assert_eq!(replica.state().revision.0, before.0 + 1);
    replica.shutdown().await.unwrap();
}

/// A replica without an instance can be in a cluster whose other replicas have one.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_the_first_release_becomes_a_cluster() {
    let dir = memory_dir();
    restore(&dir.path().join("1"), &files(&golden("data")));
    let few = |id, join: &[&str]| {
        let config = member_config(dir.path(), id, join);
        Config { snapshot_log_entries: 4, log_entries_keep: 2, ..config }
    };
    let first = Replica::open(few(1, &[])).await.unwrap();
    let second = Replica::open(few(2, &[first.raft_address()])).await.unwrap();
    eventually("two voters", async || first.status().voters == [1, 2]).await;
    first.change_members(MemberChange::TransferLeader(Some(2))).await.unwrap();
    commit(&first, put("new", b"1")).await;
    equal(&[&first, &second]).await;
    first.shutdown().await.unwrap();
    drop(first);
    let first = Replica::open(few(1, &[])).await.unwrap();
    assert_eq!(first.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    commit(&first, put("again", b"1")).await;
    for replica in [&first, &second] {
        replica.shutdown().await.unwrap();
    }
}
