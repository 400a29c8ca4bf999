//! Tests of a replica that is killed while it joins a cluster. Its process may end before any
//! change of its data directory, and a power cut may discard unsynced data. The replica must start
//! again in each case.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use chancery_model::{
    ResourceDraft, ResourceKey, ResourceName, ScopeName, Transaction, TypeUrl, Upsert,
};
use parking_lot::Mutex;

use crate::{
    Config, OpenProgress, Replica,
    disk::parts::{Bootstrap, Opened, Parts},
    failpoint::{self, Step},
    format::{identity::Identity, raft::Vote},
};

const DEADLINE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The size of a resource in bytes. Two resources exceed one batch of a snapshot that is installed.
const BODY_BYTES: usize = 3 << 20;
const COPY_ATTEMPTS_MAX: usize = 100;

fn put(name: &str, len: usize) -> Transaction {
    let type_url = TypeUrl::from_static("type.googleapis.com/a.B");
    let key = ResourceKey { type_url, name: ResourceName::new(name).unwrap() };
    let draft = ResourceDraft::new(key, Bytes::from(vec![7; len]));
    let upserts = vec![Upsert { scope: ScopeName::new("default").unwrap(), draft }];
    Transaction { upserts, ..Transaction::default() }
}

fn config(dir: &Path, replica_id: u64, join: Vec<String>) -> Config {
    Config {
        data_dir: dir.join(replica_id.to_string()),
        replica_id,
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        learner: !join.is_empty(),
        join,
        free_bytes_min: 0,
        ..Config::default()
    }
}

/// How a joining replica receives the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Log,
    Snapshot,
}

/// Starts a leader that sends its state in the given way.
async fn leader(dir: &Path, way: Way) -> Replica {
    let mut config = config(dir, 1, Vec::new());
    if way == Way::Snapshot {
        (config.snapshot_log_entries, config.log_entries_keep) = (1, 0);
    }
    let leader = Replica::open(config).await.unwrap();
    for n in 0..3 {
        leader.transact(put(&format!("n{n}"), BODY_BYTES)).await.unwrap();
    }
    if way == Way::Snapshot {
        wait_until("the log is purged", || leader.status().purged > Some(3)).await;
    }
    leader
}

async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn wait_until_current(replica: &Replica, leader: &Replica) {
    let is_current = || replica.state().revision == leader.state().revision;
    wait_until("the replica has caught up", is_current).await;
}

/// Copies of a data directory, made before each of its changes.
pub(super) struct Copies {
    from: PathBuf,
    to: PathBuf,
    /// The lengths of the write-ahead logs when they were last synced.
    synced: Mutex<Vec<(PathBuf, u64)>>,
    /// The number of copies. Held while a copy is made.
    n_copies: Mutex<usize>,
}

impl Copies {
    pub(super) fn watch(from: &Path, to: &Path) -> (Arc<Self>, failpoint::Watched) {
        let (synced, n_copies) = (Mutex::default(), Mutex::default());
        let (from, to) = (from.to_owned(), to.to_owned());
        let copies = Arc::new(Self { from: from.clone(), to, synced, n_copies });
        let watcher = Arc::clone(&copies);
        let watched = failpoint::watch(&from, move |step| {
            match step {
                Step::Change => watcher.copy(),
                Step::Synced => *watcher.synced.lock() = wal_lengths(&watcher.from),
            }
            Ok(())
        });
        (copies, watched)
    }

    /// Makes two copies: one of all data, as a killed process leaves it, and one of the synced
    /// data, as a power cut leaves it. RocksDB syncs a write-ahead log that it has closed by itself, so only
    /// the newest one is cut.
    fn copy(&self) {
        let mut n_copies = self.n_copies.lock();
        let [killed, cut] = self.nth(*n_copies);
        copy_live(&self.from, &killed);
        // The mark is copied before the length is read, so it never exceeds the synced data.
        copy_live(&self.from, &cut);
        let synced = self.synced.lock().clone();
        if let Some((path, len)) = wal_lengths(&cut).into_iter().max() {
            let name = path.file_name().unwrap();
            let synced = synced.iter().find(|(path, _)| path.file_name() == Some(name));
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(len.min(synced.map_or(0, |(_, len)| *len))).unwrap();
        }
        *n_copies += 1;
    }

    fn nth(&self, n: usize) -> [PathBuf; 2] {
        ["killed", "cut"].map(|kind| self.to.join(format!("{n:03}-{kind}")))
    }

    pub(super) fn all(&self) -> Vec<PathBuf> {
        (0..*self.n_copies.lock()).flat_map(|n| self.nth(n)).collect()
    }
}

/// The write-ahead logs of a replica with their lengths. Their names have the same number of digits, so the
/// newest log is the last in the order of names.
fn wal_lengths(data_dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = lengths(&data_dir.join("db"));
    files.retain(|(path, _)| path.extension().is_some_and(|end| end == "log"));
    files
}

/// All files below a directory with their lengths, ordered by path. A file or directory that is removed
/// meanwhile is omitted.
fn lengths(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for path in fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(lengths(&path))
        } else {
            found.extend(fs::metadata(&path).ok().map(|file| (path, file.len())))
        }
    }
    found.sort();
    found
}

/// Copies the directory of a running replica. RocksDB changes files in the background: the copy is repeated
/// until no file has changed meanwhile, so that a manifest and the logs in it are of the same time.
fn copy_live(from: &Path, to: &Path) {
    for _ in 0..COPY_ATTEMPTS_MAX {
        let before = lengths(from);
        if copy_once(from, to).is_ok() && lengths(from) == before {
            return;
        }
        fs::remove_dir_all(to).unwrap();
    }
    panic!("{} changed during each of {COPY_ATTEMPTS_MAX} copies", from.display());
}

/// Copies files before directories: the high-water mark before the database that it refers to. A directory
/// that was renamed or removed meanwhile is empty in the copy.
fn copy_once(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    let (files, directories): (Vec<PathBuf>, Vec<PathBuf>) =
        entries.map(|entry| entry.unwrap().path()).partition(|path| path.is_file());
    for file in files {
        fs::copy(&file, to.join(file.file_name().unwrap()))?;
    }
    directories.iter().try_for_each(|dir| copy_once(dir, &to.join(dir.file_name().unwrap())))
}

/// Returns whether a start finds a replica. Panics if the start fails.
fn has_replica(data_dir: &Path) -> bool {
    let config = Config { data_dir: data_dir.to_owned(), replica_id: 2, ..Config::default() };
    match Parts::open(&config, &OpenProgress::default()) {
        Ok(Opened::Replica(_)) => true,
        Ok(Opened::Fresh(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

async fn a_copy_before_any_change_starts(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let leader = leader(dir.path(), way).await;
    let config = config(dir.path(), 2, vec![leader.raft_address().to_owned()]);
    let (copies, watched) = Copies::watch(&config.data_dir, &dir.path().join("copies"));
    let learner = Replica::open(config).await.unwrap();
    wait_until_current(&learner, &leader).await;
    leader.transact(put("later", 1)).await.unwrap();
    wait_until_current(&learner, &leader).await;
    assert_eq!(learner.state().len(), 4);
    for replica in [&learner, &leader] {
        replica.shutdown().await.unwrap();
    }
    drop(watched);
    let found: Vec<bool> = copies.all().iter().map(|copy| has_replica(copy)).collect();
    let n_replicas = found.iter().filter(|replica| **replica).count();
    assert!(n_replicas > 10 && n_replicas + 10 < found.len(), "{n_replicas} of {}", found.len());
}

/// A start finds either a replica or none, never damage.
#[tokio::test(flavor = "multi_thread")]
async fn joining_by_log_leaves_a_startable_directory_at_every_write() {
    a_copy_before_any_change_starts(Way::Log).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn joining_by_snapshot_leaves_a_startable_directory_at_every_write() {
    a_copy_before_any_change_starts(Way::Snapshot).await;
}

/// An attempt to join that was killed is followed by another attempt, which may be killed as well.
#[test]
fn second_attempt_to_join_leaves_a_startable_directory_at_every_write() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity {
        cluster_id: [9; 16],
        replica_id: 2,
        incarnation: chancery_model::Incarnation(77),
        instance: 5,
    };
    let begin = |data_dir: &Path| {
        let config = Config { data_dir: data_dir.to_owned(), replica_id: 2, ..Config::default() };
        let Opened::Fresh(directory) = Parts::open(&config, &OpenProgress::default()).unwrap()
        else {
            unreachable!()
        };
        let beginning = Bootstrap::Joined { identity, vote: Vote::new_committed(7, 1) };
        drop(Parts::begin(directory, beginning, 2).unwrap());
    };
    let (first, watched) = Copies::watch(&dir.path().join("data"), &dir.path().join("first"));
    begin(&dir.path().join("data"));
    drop(watched);
    let mut n_left = 0;
    for left in first.all().into_iter().filter(|left| left.exists() && !has_replica(left)) {
        n_left += 1;
        let (second, watched) = Copies::watch(&left, &dir.path().join(format!("again{n_left}")));
        begin(&left);
        drop(watched);
        let n_replicas = second.all().iter().filter(|copy| has_replica(copy)).count();
        assert_eq!(n_replicas, 0, "`IDENTITY` is written by the last change");
        assert!(has_replica(&left));
    }
    assert!(n_left > 5, "{n_left}");
}

/// Kills a replica before the nth change after it was admitted, starts it again, and waits until it
/// has caught up. Returns whether there was an nth change.
async fn is_killed_at(n: usize, leader: &Replica, config: Config) -> bool {
    let identity = config.data_dir.join("IDENTITY");
    let n_changes = AtomicUsize::new(0);
    let killed = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&killed);
    let watched = failpoint::watch(&config.data_dir, move |step| {
        let counts = step == Step::Change && identity.exists();
        if counts && n_changes.fetch_add(1, Ordering::SeqCst) >= n {
            counter.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::other("killed"));
        }
        Ok(())
    });
    let was_killed = || killed.load(Ordering::SeqCst) > 0;
    if let Ok(replica) = Replica::open(config.clone()).await {
        let current = || replica.state().revision == leader.state().revision;
        wait_until("it is killed or has caught up", || was_killed() || current()).await;
        drop(replica.shutdown().await);
    }
    let was_killed = was_killed();
    drop(watched);
    // The leader knows this address.
    let address = leader.core().node.peer(config.replica_id).unwrap().address;
    let config = Config { listen: Some(address.parse().unwrap()), ..config };
    let replica = Replica::open(config).await.unwrap();
    wait_until_current(&replica, leader).await;
    replica.shutdown().await.unwrap();
    was_killed
}

async fn a_killed_replica_catches_up(way: Way) {
    let dir = tempfile::tempdir().unwrap();
    let leader = leader(dir.path(), way).await;
    let mut n_kills = 0;
    for n in 0..40 {
        // Each round uses another ID: the leader waits until the replica of a known ID is silent.
        let config = config(dir.path(), 2 + n, vec![leader.raft_address().to_owned()]);
        if !is_killed_at(usize::try_from(n).unwrap(), &leader, config).await {
            break;
        }
        n_kills += 1;
    }
    assert!(n_kills >= 3, "{n_kills}");
    leader.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_killed_at_any_write_while_joining_by_log_catches_up() {
    a_killed_replica_catches_up(Way::Log).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replica_killed_at_any_write_while_joining_by_snapshot_catches_up() {
    a_killed_replica_catches_up(Way::Snapshot).await;
}
