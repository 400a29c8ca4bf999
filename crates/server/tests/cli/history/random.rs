//! A random history over three replicas: writes, faults and ways back, each compared with a model.
//!
//! Each history has a cluster of its own. A replica is killed and stays down until the others have purged the entries that
//! it lacks, so that it receives a snapshot. The number of kept revisions, or their size, is small. Some histories
//! continue from a backup.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    time::{Duration, Instant},
};

use fastrand::Rng;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    client::Client,
    model::{Content, Item, Key, Model, Part, Undone, Write},
};
use crate::{
    cluster::{Replica, eventually, joined_with},
    leaderless::metric,
    support::{Done, chancery, http_get, http_post, run},
};

/// The size of a write that fills the log, in bytes.
const LARGE_BYTES: usize = 24 << 10;
/// The number of such writes while a replica is down.
const N_LARGE: u64 = 8;
/// The size of the log above which a replica takes a snapshot and purges the log, in bytes.
const LOG_BYTES: u32 = 64 << 10;
/// The maximum number of conflicts in an error.
const CONFLICTS_MAX: usize = 20;
/// A purged log stays small for longer than the interval at which its size is measured.
const PURGED: Duration = Duration::from_millis(450);

/// The limits of the history, in the settings of the replicas.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// The number of revisions, on all replicas.
    Revisions(usize),
    /// The number of revisions, on each replica. That of the leader counts.
    RevisionsOfLeader([usize; 3]),
    /// The size in KiB.
    Kibibytes(usize),
}

impl Kept {
    fn random(seed: u64, random: &mut Rng) -> Self {
        match seed % 3 {
            0 => Self::Revisions(random.usize(6..16)),
            1 => Self::RevisionsOfLeader([(); 3].map(|()| random.usize(4..20))),
            _ => Self::Kibibytes(random.usize(30..120)),
        }
    }

    fn environment(self, at: usize) -> Vec<(&'static str, String)> {
        let kept = match self {
            Self::Revisions(n) => ("CHANCERY_STORE_HISTORY_REVISIONS", n.to_string()),
            Self::RevisionsOfLeader(all) => {
                ("CHANCERY_STORE_HISTORY_REVISIONS", all[at].to_string())
            }
            Self::Kibibytes(n) => ("CHANCERY_STORE_HISTORY_BYTES", format!("{n}KiB")),
        };
        let log = ("CHANCERY_STORE_SNAPSHOT_LOG_BYTES", LOG_BYTES.to_string());
        vec![kept, log, ("CHANCERY_STORE_HISTORY_AGE", "0s".to_owned())]
    }
}

/// How often a history has shown something.
#[derive(Debug, Default)]
pub(super) struct Tally {
    snapshots: usize,
    forgotten: usize,
    rollbacks: usize,
    undone: usize,
    conflicts: usize,
    restores: usize,
    streams: usize,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.snapshots += other.snapshots;
        self.forgotten += other.forgotten;
        self.rollbacks += other.rollbacks;
        self.undone += other.undone;
        self.conflicts += other.conflicts;
        self.restores += other.restores;
        self.streams += other.streams;
    }
}

impl Tally {
    /// Returns whether everything has happened.
    pub(super) fn has_all(&self) -> bool {
        let Self { snapshots, forgotten, rollbacks, undone, conflicts, restores, streams } = *self;
        [snapshots, forgotten, rollbacks, undone, conflicts, restores, streams]
            .iter()
            .all(|n| *n > 0)
    }
}

struct History {
    what: String,
    random: Rng,
    root: TempDir,
    replicas: [Replica; 3],
    down: Option<usize>,
    kept: Kept,
    model: Model,
    client: Client,
    /// The content of each version of a resource.
    versions: BTreeMap<(Key, String), (Value, u64)>,
    tally: Tally,
}

/// Runs the history of a seed.
pub(super) fn run_history(seed: u64) -> Tally {
    let mut random = Rng::with_seed(seed);
    let kept = Kept::random(seed, &mut random);
    let root = tempfile::tempdir().unwrap();
    let replicas = joined_with(root.path(), |replica| {
        replica.environment = kept.environment(usize::try_from(replica.id - 1).unwrap());
    });
    let model = Model { states: BTreeMap::from([(0, Content::default())]) };
    let mut history = History {
        what: format!("seed {seed}, {kept:?}"),
        client: Client::new(random.bool()),
        random,
        root,
        replicas,
        down: None,
        kept,
        model,
        versions: BTreeMap::new(),
        tally: Tally::default(),
    };
    history.write(&Write::first());
    history.steps(6);
    // A replica returns when the others have purged their logs, and receives a snapshot.
    history.kill();
    history.steps(3);
    history.fill_logs();
    history.steps(2);
    history.start_again(true);
    history.check();
    history.steps(4);
    if seed % 4 == 1 {
        history.restore();
        history.steps(4);
    }
    history.move_leadership();
    history.steps(3);
    // A replica that was down briefly receives the entries that it lacks.
    history.kill();
    history.steps(3);
    history.start_again(false);
    history.steps(2);
    history.check();
    history.tally.streams = history.client.n_streams;
    history.tally
}

impl History {
    /// Returns a random replica that is not down.
    fn any(&mut self) -> usize {
        loop {
            let at = self.random.usize(0..3);
            if self.down != Some(at) {
                return at;
            }
        }
    }

    fn live(&self) -> impl Iterator<Item = &Replica> {
        let down = self.down.map(|at| self.replicas[at].id);
        self.replicas.iter().filter(move |replica| Some(replica.id) != down)
    }

    fn steps(&mut self, n: usize) {
        for _ in 0..n {
            match self.random.usize(0..7) {
                0..=3 => {
                    let write = Write::random(&mut self.random);
                    self.write(&write);
                }
                4 => self.roll_back(),
                5 => self.roll_back_too_far(),
                _ => self.undo(),
            }
        }
        self.roll_back();
        self.undo();
    }

    /// Writes through a random replica, until the write has been committed. Its revision must be the next one, or none if
    /// nothing changes.
    fn write(&mut self, write: &Write) {
        let next = write.applied_to(self.model.newest().1);
        let at = self.any();
        let id = self.random.u128(..);
        let (scope, prune) = (write.scope, write.prunes);
        let uri = format!("/v1/apply?scope={scope}&prune={prune}&confirm=all&request_id={id:032x}");
        let (admin, manifest) = (&self.replicas[at].admin, write.manifest());
        let answer = eventually("the write is committed", || {
            let (status, answer) = http_post(admin, &uri, &manifest);
            // There may be no leader.
            assert!(status == 200 || status >= 500, "{}: {status} {answer}", self.what);
            (status == 200).then_some(answer)
        });
        let answer: Value = serde_json::from_str(&answer).unwrap();
        self.committed(&answer, next);
    }

    /// Notes the answer to a write that leads to `next`.
    fn committed(&mut self, answer: &Value, next: Content) {
        let (newest, before) = self.model.newest();
        let is_same = before.equals(&next);
        let revision = answer["revision"].as_u64().unwrap();
        let expected = if is_same { newest } else { newest + 1 };
        assert_eq!(revision, expected, "{}: {answer}", self.what);
        if !is_same {
            self.model.push(revision, next);
        }
    }

    /// Runs a command that writes, through a random replica, as soon as there is a leader.
    fn command(&mut self, args: &[String]) -> Done {
        let at = self.any();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let args = [&args[..], &["--confirm", "all", "-o", "json"]].concat();
        eventually("the command is answered", || {
            let done = self.replicas[at].run(&args, "");
            (!done.err.contains("the server could not answer")).then_some(done)
        })
    }

    /// Returns the oldest revision that the replicas can read.
    fn content_from(&self) -> u64 {
        let first = self.live().next().unwrap();
        self.history_of(first).1
    }

    /// Returns the newest revision of a replica, and the oldest whose content it has.
    fn history_of(&self, replica: &Replica) -> (u64, u64) {
        let shown = self.get(replica, "/v1/history?limit=1");
        let newest = shown["entries"][0]["revision"].as_u64().unwrap();
        (newest, shown["content_from"].as_u64().unwrap())
    }

    /// Returns the answer to a read, as soon as there is a leader.
    fn get(&self, replica: &Replica, uri: &str) -> Value {
        let answer = eventually("the read is answered", || {
            let (status, answer) = http_get(&replica.admin, uri);
            assert!(status == 200 || status >= 500, "{}: {uri}: {status} {answer}", self.what);
            (status == 200).then_some(answer)
        });
        serde_json::from_str(&answer).unwrap()
    }

    /// Returns a random revision whose content is kept.
    fn retained(&mut self, from: u64) -> u64 {
        let all: Vec<u64> = self.model.states.range(from.max(1)..).map(|(key, _)| *key).collect();
        all[self.random.usize(0..all.len())]
    }

    fn roll_back(&mut self) {
        let from = self.content_from();
        let to = self.retained(from);
        let now = self.model.newest().1.clone();
        let then = &self.model.states[&to];
        let part = Part::random(&mut self.random, then);
        let next = now.rolled_back(&part, then);
        let flag = ["--to".to_owned(), to.to_string()];
        let args = [&["rollback".to_owned()][..], &part.args(), &flag].concat();
        let done = self.command(&args);
        let what = format!("{}: {args:?}: {done:?}", self.what);
        let is_unknown = done.err.contains("at revision") && done.err.contains("check the names");
        if is_unknown {
            assert!(done.code == 1 && now.equals(&next), "{what}");
            return;
        }
        assert_eq!(done.code, 0, "{what}");
        self.committed(&serde_json::from_str(&done.out).unwrap(), next);
        self.tally.rollbacks += 1;
        self.check_content(&what);
    }

    /// The content before the oldest revision is gone, and the error names that revision.
    fn roll_back_too_far(&mut self) {
        let from = self.content_from();
        if from == 0 {
            return;
        }
        let args = ["rollback", "--all", "--to", &(from - 1).to_string()].map(str::to_owned);
        let done = self.command(&args);
        let what = format!("{}: {done:?}", self.what);
        assert_eq!(done.code, 1, "{what}");
        let is_skipped = !self.model.states.contains_key(&(from - 1));
        let text = format!("the oldest revision that can be read is {from}");
        assert!(done.err.contains(&text) || is_skipped, "{what}");
        self.tally.forgotten += 1;
    }

    fn undo(&mut self) {
        let from = self.content_from();
        if self.model.newest().0 < 2 {
            return;
        }
        let revision = self.retained((from + 1).max(2));
        if self.model.states[&revision].equals(self.model.before(revision)) {
            // The restore from a backup changed nothing.
            return;
        }
        let done = self.command(&["undo".to_owned(), revision.to_string()]);
        let what = format!("{}: undo {revision}: {done:?}", self.what);
        match self.model.undone(revision) {
            Undone::To(next) => {
                assert_eq!(done.code, 0, "{what}");
                self.committed(&serde_json::from_str(&done.out).unwrap(), *next);
                self.tally.undone += 1;
                self.check_content(&what);
            }
            Undone::Conflicts(resources, assignments) => {
                assert_eq!(done.code, 1, "{what}");
                let texts = resources.iter().map(|((scope, _, name), later)| {
                    format!("\"{name}\" in scope \"{scope}\" (revision {later})")
                });
                let texts: Vec<String> = texts
                    .chain(assignments.iter().map(|name| format!("the assignment \"{name}\"")))
                    .collect();
                let n_listed = texts.iter().filter(|text| done.err.contains(*text)).count();
                let n_shown = done.err.matches("\" in scope \"").count();
                if texts.len() <= CONFLICTS_MAX {
                    assert_eq!(n_listed, texts.len(), "{what}: {texts:?}");
                    assert_eq!(n_shown, resources.len(), "{what}: {texts:?}");
                } else {
                    assert!(
                        done.err.contains(&format!("and {} more", texts.len() - CONFLICTS_MAX))
                    );
                }
                self.tally.conflicts += 1;
            }
        }
    }

    /// Compares the newest content on all replicas and at the client with the model.
    fn check_content(&mut self, what: &str) {
        let expected = self.model.newest().1.clone();
        let live: Vec<usize> = (0..3).filter(|at| self.down != Some(*at)).collect();
        for at in live {
            let listed = self.get(&self.replicas[at], "/v1/resources");
            self.check_list(&listed, &expected, what);
        }
        if self.random.usize(0..4) == 0 {
            self.client.disconnect();
        }
        let at = self.any();
        let address = self.replicas[at].xds();
        self.client.converge(&address, &expected.clusters(), what);
    }

    fn check_list(&mut self, listed: &Value, expected: &Content, what: &str) {
        let mut items = BTreeMap::new();
        for one in listed["resources"].as_array().unwrap() {
            let (key, item) = Item::read(one);
            let version = (key.clone(), one["version"].as_str().unwrap().to_owned());
            let sent = (item.body.clone(), item.ttl_ms);
            let first = self.versions.entry(version).or_insert_with(|| sent.clone());
            assert_eq!(*first, sent, "{what}: a version has other content: {one}");
            items.insert(key, item);
        }
        let keys: Vec<&Key> = items.keys().collect();
        assert_eq!(keys, expected.items.keys().collect::<Vec<_>>(), "{what}");
        for (key, item) in &items {
            let expected = &expected.items[key];
            assert!(
                item.equals(expected) && item.set_at == expected.set_at,
                "{what}: {key:?} is {item:?}, not {expected:?}"
            );
        }
    }

    /// Checks that all replicas keep the same revisions, and have the content of each of some of them.
    fn check(&mut self) {
        let what = self.what.clone();
        let all: Vec<(u64, u64)> = self.live().map(|replica| self.history_of(replica)).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{what}: {all:?}");
        let (newest, from) = all[0];
        assert_eq!(newest, self.model.newest().0, "{what}");
        match self.kept {
            Kept::Revisions(n) => assert_eq!(from, self.model.oldest_of(n), "{what}"),
            Kept::RevisionsOfLeader(of) => {
                // A leader that keeps few has dropped more than one that keeps many would.
                let most = self.model.oldest_of(*of.iter().max().unwrap());
                assert!(from >= most && from < newest, "{what}: {from} of {newest}");
            }
            Kept::Kibibytes(_) => assert!(from > 0 && from < newest, "{what}: {from} of {newest}"),
        }
        let mut revisions = vec![from, newest];
        revisions.extend((0..2).map(|_| self.retained(from)));
        for revision in revisions {
            let expected = self.model.states[&revision].clone();
            let live: Vec<usize> = (0..3).filter(|at| self.down != Some(*at)).collect();
            for at in live {
                let uri = format!("/v1/resources?revision={revision}");
                let listed = self.get(&self.replicas[at], &uri);
                let what = format!("{what}: revision {revision} on replica {}", at + 1);
                self.check_list(&listed, &expected, &what);
            }
        }
    }

    /// Kills a replica, which stays down. It may be the leader.
    fn kill(&mut self) {
        let leading = self.leader();
        let at = if self.random.bool() { leading } else { self.random.usize(0..3) };
        self.replicas[at].kill();
        self.down = Some(at);
    }

    /// Returns the index of the leader.
    fn leader(&mut self) -> usize {
        let at = self.any();
        let shown = eventually("there is a leader", || {
            let (_, shown) = http_get(&self.replicas[at].admin, "/v1/cluster");
            let shown: Value = serde_json::from_str(&shown).unwrap();
            shown["leader"].as_u64()
        });
        usize::try_from(shown - 1).unwrap()
    }

    /// Writes until the other replicas have purged the entries that the replica lacks.
    fn fill_logs(&mut self) {
        for _ in 0..N_LARGE {
            let number = self.random.u64(..);
            self.write(&Write::large(number, LARGE_BYTES));
        }
        for replica in self.live() {
            let mut since = Instant::now();
            eventually("the log is purged", || {
                if metric(replica, "chancery_store_log_bytes") > f64::from(LOG_BYTES) {
                    since = Instant::now();
                }
                (since.elapsed() > PURGED).then_some(())
            });
        }
    }

    fn start_again(&mut self, has_purged: bool) {
        let at = self.down.take().unwrap();
        self.replicas[at].start_and_wait(&[]);
        self.replicas[at].wait_voters(3);
        if has_purged {
            let replica = &self.replicas[at];
            eventually("the replica has received a snapshot", || {
                let n = metric(replica, "chancery_store_snapshots_installed_total");
                (n > 0.0).then_some(())
            });
            self.tally.snapshots += 1;
        }
    }

    fn move_leadership(&mut self) {
        let (from, by) = (self.leader(), self.any());
        let to = ((from + self.random.usize(1..3)) % 3 + 1).to_string();
        // The replica is a leader only when it has all entries.
        eventually("the leadership moves", || {
            let done = self.replicas[by].run(&["cluster", "transfer-leader", &to], "");
            (done.code == 0).then_some(())
        });
    }

    /// Replaces the cluster by one from a backup. The content of earlier revisions is in the backup.
    fn restore(&mut self) {
        let file = self.root.path().join("backup").display().to_string();
        let at = self.any();
        eventually("there is a backup", || {
            let done = self.replicas[at].run(&["backup", &file, "--force"], "");
            (done.code == 0).then_some(())
        });
        let before = self.history_of(&self.replicas[at]);
        assert_eq!(before.0, self.model.newest().0, "{}", self.what);
        self.replicas.iter_mut().for_each(Replica::terminate);
        for replica in &mut self.replicas {
            let name = format!("restored-{}", replica.id);
            replica.directory = self.root.path().join(name);
        }
        let mut restore = chancery();
        restore
            .args(["restore", &file, "-o", "json", "--data-dir"])
            .arg(&self.replicas[0].directory);
        let done = run(restore, "");
        assert_eq!(done.code, 0, "{done:?}");
        let restored: Value = serde_json::from_str(&done.out).unwrap();
        let content = self.model.newest().1.clone();
        self.model.push(restored["revision"].as_u64().unwrap(), content);
        let first = self.replicas[0].raft.clone();
        self.replicas[0].start_and_wait(&[]);
        for replica in &mut self.replicas[1..] {
            replica.start(&["--join", &first]);
        }
        for replica in &mut self.replicas[1..] {
            replica.wait_ready();
        }
        self.replicas[2].wait_voters(3);
        self.tally.restores += 1;
        let (newest, from) = self.history_of(&self.replicas[2]);
        assert_eq!(newest, self.model.newest().0, "{}", self.what);
        let oldest = *self.model.states.keys().find(|revision| **revision > before.1).unwrap();
        assert!(from <= oldest, "{}: {from}, and {before:?} before", self.what);
        self.check_earlier(before.1.max(from));
        // The limits apply again from the next write on.
        self.write(&Write::large(0, 10));
        self.check();
    }

    fn check_earlier(&mut self, from: u64) {
        let revisions: Vec<u64> = self.model.states.range(from..).map(|(key, _)| *key).collect();
        for revision in revisions {
            let expected = self.model.states[&revision].clone();
            let uri = format!("/v1/resources?revision={revision}");
            let listed = self.get(&self.replicas[2], &uri);
            let what = format!("{}: revision {revision} after the restore", self.what);
            self.check_list(&listed, &expected, &what);
        }
    }
}
