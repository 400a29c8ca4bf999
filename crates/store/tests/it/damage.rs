//! Tests of damaged files: each is refused, or makes no difference. No start shows a wrong or an
//! older state.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use chancery_model::{
    AssignmentOp, Outcome, ResourceName, Transaction, TransactionMeta, default_assignment,
};
use chancery_store::{Config, HistoryEntry, OpenError, Replica, TransactError};

use crate::support::{
    Random, commit, config, key, memory_dir, put, render, restore, scope, state_files, upsert,
};

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A directory with every kind of content: tables, two logs, a purged Raft log, history, aliases.
struct Template {
    files: Files,
    state: Vec<String>,
    history: Vec<Arc<HistoryEntry>>,
}

fn small(path: &Path) -> Config {
    Config { snapshot_log_entries: 40, log_entries_keep: 10, ..config(path) }
}

impl Template {
    async fn build() -> Self {
        let dir = memory_dir();
        let mut random = Random(7);
        // Each start writes the content of the WAL to tables.
        for round in 0..3 {
            let replica = Replica::open(small(dir.path())).await.unwrap();
            for n in 0..50 {
                let body: Vec<u8> = (0..random.below(1500)).map(|_| random.byte()).collect();
                let mut transaction = put(&format!("c{}", random.below(40)), &body);
                let mut other = upsert(&format!("other{n}"), b"x");
                other.scope = scope("edge/eu");
                other.draft.aliases.push(ResourceName::new(&format!("alias{}", n % 9)).unwrap());
                other.draft.body = Bytes::from(format!("{round}"));
                transaction.upserts.push(other);
                transaction.deletes.push((scope("default"), key(&format!("c{}", n % 40))));
                transaction.meta = TransactionMeta {
                    label: Some("label".into()),
                    author: format!("author {n}"),
                    ..TransactionMeta::default()
                };
                commit(&replica, transaction).await;
            }
            let mut assignment = default_assignment();
            assignment.name = format!("assignment {round}").into();
            let assignments = vec![AssignmentOp::Put(assignment)];
            commit(&replica, Transaction { assignments, ..Transaction::default() }).await;
            replica.shutdown().await.unwrap();
        }
        let replica = Replica::open(small(dir.path())).await.unwrap();
        commit(&replica, put("last", b"word")).await;
        let (state, history) = (render(&replica.state()), replica.history(1000));
        replica.shutdown().await.unwrap();
        Self { files: state_files(dir.path()), state, history }
    }

    fn named(&self, end: &str) -> Vec<PathBuf> {
        let names = self.files.keys().filter(|path| path.to_string_lossy().ends_with(end));
        names.cloned().collect()
    }

    /// Opens the directory with one file changed. Returns `Some` if the damage was found.
    async fn open_with(&self, path: &Path, content: Vec<u8>, what: &str) -> Option<Found> {
        let dir = memory_dir();
        let mut files = self.files.clone();
        files.insert(path.to_owned(), content);
        restore(dir.path(), &files);
        let opened = Replica::open(small(dir.path())).await;
        let what = format!("{}: {what}", path.display());
        match opened {
            Ok(replica) => {
                assert!(render(&replica.state()) == self.state, "{what}: another state");
                assert!(replica.history(1000) == self.history, "{what}: another history");
                // The replica works, and its later writes can be read after a restart.
                match replica.transact(put("after", b"damage")).await {
                    Ok(outcome) => assert!(matches!(outcome, Outcome::Committed(_)), "{what}"),
                    Err(TransactError::Failed(text) | TransactError::NotSent(text))
                        if text.contains("Corruption") =>
                    {
                        assert!(
                            render(&replica.state()) == self.state,
                            "{what}: a write that failed"
                        );
                        drop(replica.shutdown().await);
                        return Some(Found::WhenTidied);
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
                let state = render(&replica.state());
                replica.shutdown().await.unwrap();
                let replica = Replica::open(small(dir.path())).await.unwrap_or_else(|error| {
                    panic!("{what}: was accepted, but then refused: {error}")
                });
                assert!(render(&replica.state()) == state, "{what}: another state, later");
                replica.shutdown().await.unwrap();
                None
            }
            Err(error) => {
                assert!(
                    state_files(dir.path()) == files,
                    "{what}: a refusal changed files: {error}"
                );
                Some(Found::AtOpen(error))
            }
        }
    }
}

/// The time at which damage is found.
#[derive(Debug)]
enum Found {
    AtOpen(OpenError),
    /// The damage is in data that no entry and no record needs. It stops the replica
    /// when RocksDB rewrites it.
    WhenTidied,
}

/// Runs checks in four tasks; each check gets its number.
async fn in_parallel<F>(n: usize, check: impl Fn(usize) -> F + Send + Sync + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (check, next) = (Arc::new(check), Arc::new(Mutex::new(0)));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (check, next) = (Arc::clone(&check), Arc::clone(&next));
        workers.spawn(async move {
            loop {
                let number = {
                    let mut next = next.lock().unwrap();
                    *next += 1;
                    *next - 1
                };
                if number >= n {
                    return;
                }
                check(number).await;
            }
        });
    }
    workers.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flipped_bits_are_detected_or_harmless() {
    const ROUNDS: usize = 160;
    let template = Arc::new(Template::build().await);
    let refused: Arc<Mutex<BTreeMap<String, (usize, usize)>>> = Arc::default();
    let counts = Arc::clone(&refused);
    let names: Vec<PathBuf> = template.files.keys().cloned().collect();
    in_parallel(ROUNDS, move |round| {
        let (template, counts, names) = (Arc::clone(&template), Arc::clone(&counts), names.clone());
        async move {
            let mut random = Random(round as u64);
            let path = &names[round % names.len()];
            let mut content = template.files[path].clone();
            if content.is_empty() {
                return;
            }
            let at = random.below(content.len());
            let len = [1, 1, 16, 512][random.below(4)].min(content.len() - at);
            for byte in &mut content[at..at + len] {
                *byte ^= if len == 1 { 1 << random.below(8) } else { random.byte() | 1 };
            }
            let what = format!("{len} bytes from {at} changed");
            let error = template.open_with(path, content, &what).await;
            let kind = path.extension().unwrap_or(path.as_os_str()).to_string_lossy();
            let kind = kind.split('-').next().unwrap().to_owned();
            let mut counts = counts.lock().unwrap();
            let (n_refused, n) = counts.entry(kind).or_default();
            *n += 1;
            *n_refused += usize::from(error.is_some());
        }
    })
    .await;
    let counts = refused.lock().unwrap();
    for kind in ["sst", "log", "IDENTITY", "db/MANIFEST"] {
        let (n_refused, n) = counts[kind];
        assert!(n_refused > 0, "{kind}: none of {n} was refused: {counts:?}");
    }
    let (n_refused, n) = counts["IDENTITY"];
    assert_eq!(n_refused, n, "a changed IDENTITY is always detected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn truncated_and_missing_files_are_detected_or_harmless() {
    const ROUNDS: usize = 100;
    let template = Arc::new(Template::build().await);
    let names: Vec<PathBuf> = template.files.keys().cloned().collect();
    let refused = Arc::new(Mutex::new(0));
    let count = Arc::clone(&refused);
    in_parallel(ROUNDS, move |round| {
        let (template, count, names) = (Arc::clone(&template), Arc::clone(&count), names.clone());
        async move {
            let mut random = Random(1000 + round as u64);
            let path = &names[round % names.len()];
            let content = &template.files[path];
            let len = match random.below(3) {
                0 => 0,
                1 => random.below(content.len().max(1)),
                _ => content.len().saturating_sub(1 + random.below(64)),
            };
            let what = format!("cut from {} to {len} bytes", content.len());
            let error = template.open_with(path, content[..len].to_vec(), &what).await;
            *count.lock().unwrap() += usize::from(error.is_some());
        }
    })
    .await;
    assert!(*refused.lock().unwrap() > ROUNDS / 4);
}

/// A torn tail that was never synced is normal after a power cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_torn_tail_that_was_never_acknowledged_is_accepted() {
    let template = Arc::new(Template::build().await);
    let newest = template.named(".log").pop().unwrap();
    in_parallel(24, move |round| {
        let (template, newest) = (Arc::clone(&template), newest.clone());
        async move {
            let mut random = Random(2000 + round as u64);
            let mut content = template.files[&newest].clone();
            let len = 1 + random.below(5000);
            match round % 3 {
                0 => {
                    // The first part of one more record, as if a power cut had interrupted its
                    // write.
                    let mut half = content[..len.min(content.len())].to_vec();
                    half[4..7].copy_from_slice(&[0xff, 0x7f, 1]);
                    content.extend(half);
                }
                1 => content.extend(vec![0; len]),
                _ => {
                    // A lost page before one that was not lost.
                    let mut rest = template.files[&newest].clone();
                    content.extend(vec![0; len]);
                    content.append(&mut rest);
                }
            }
            let error = template.open_with(&newest, content, "a torn tail").await;
            assert!(error.is_none(), "round {round}: {error:?}");
        }
    })
    .await;
}

/// A start is refused when the newest WAL lost an acknowledged entry, in whatever way its end was
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lost_tail_that_was_acknowledged_is_refused() {
    let template = Arc::new(Template::build().await);
    let newest = template.named(".log").pop().unwrap();
    let content = template.files[&newest].clone();
    let at = content.windows(4).rposition(|window| window == b"word").unwrap();
    // The last occurrence of the body is in the state's record; the first is in the log's.
    let first = content.windows(4).position(|window| window == b"word").unwrap();
    assert!(first < at, "the log comes before the state");
    for (len, lost) in [(first, true), (first + 3, true), (at, false)] {
        let cut = content[..len].to_vec();
        let error = template.open_with(&newest, cut, "a cut").await;
        assert_eq!(error.is_some(), lost, "cut to {len}: {error:?}");
        if let Some(found) = error {
            let Found::AtOpen(error) = found else { panic!("cut to {len}: {found:?}") };
            let text = error.to_string();
            assert!(text.contains("acknowledged") && text.contains("rejoin"), "{text}");
            assert!(matches!(error, OpenError::Damaged { .. }), "{text}");
        }
    }
}
