//! Helpers: transactions, replicas, files, and comparison of states.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use chancery_model::{
    Outcome, ResourceDraft, ResourceKey, ResourceName, Revision, ScopeName, State, Summary,
    Transaction, TypeUrl, Upsert, types,
};
use chancery_store::{Config, Replica};
use tempfile::TempDir;

/// Returns a directory in memory if possible: tests that copy and open hundreds of directories need
/// no real disk.
pub(crate) fn memory_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns a configuration that does not depend on the free space of the machine's disk.
pub(crate) fn config(data_dir: &Path) -> Config {
    Config { data_dir: data_dir.to_owned(), free_bytes_min: 0, ..Config::default() }
}

pub(crate) async fn open(data_dir: &Path) -> Replica {
    Replica::open(config(data_dir)).await.unwrap()
}

pub(crate) fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

pub(crate) fn key(name: &str) -> ResourceKey {
    ResourceKey {
        type_url: TypeUrl::from_static(types::CLUSTER),
        name: ResourceName::new(name).unwrap(),
    }
}

pub(crate) fn upsert(name: &str, body: &[u8]) -> Upsert {
    let draft = ResourceDraft::new(key(name), Bytes::copy_from_slice(body));
    Upsert { scope: scope("default"), draft }
}

/// Returns a transaction that publishes one resource.
pub(crate) fn put(name: &str, body: &[u8]) -> Transaction {
    Transaction { upserts: vec![upsert(name, body)], ..Transaction::default() }
}

pub(crate) async fn commit(replica: &Replica, transaction: Transaction) -> Summary {
    match replica.transact(transaction).await.unwrap() {
        Outcome::Committed(summary) => summary,
        Outcome::Refused(refusal) => panic!("refused: {refusal}"),
    }
}

/// Renders everything in a state that a client or an author can see.
pub(crate) fn render(state: &State) -> Vec<String> {
    let mut lines = vec![
        format!("revision {} incarnation {}", state.revision, state.incarnation.0),
        format!("assignments {:?}", state.assignments),
    ];
    for (name, scope) in &state.scopes {
        lines.push(format!("scope {name} {}", scope.changed));
        for (type_url, collection) in &scope.types {
            let (changed, label) = (collection.changed, &collection.label);
            lines.push(format!("{type_url} {changed} {label:?} {:?}", collection.aliases));
            for resource in collection.resources.values() {
                let labels: Vec<_> = resource.labels().collect();
                lines.push(format!(
                    "{:?} {:?} {:?} {labels:?} {:?} {:?}",
                    resource.name(),
                    resource.delta_field(),
                    resource.ttl(),
                    resource.aliases(),
                    resource.children(),
                ));
            }
        }
    }
    lines
}

pub(crate) fn revision(replica: &Replica) -> Revision {
    replica.state().revision
}

/// Returns all files under a directory by relative path.
pub(crate) fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(root: &Path, dir: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, files);
            } else {
                let name = path.strip_prefix(root).unwrap().to_owned();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    found
}

/// Returns all files except lock files and RocksDB's text log, which contain no state.
pub(crate) fn state_files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files(root);
    files.retain(|path, _| {
        let name = path.file_name().unwrap().to_string_lossy();
        !name.starts_with("LOG") && name != "LOCK"
    });
    files
}

/// Writes files into a directory.
pub(crate) fn restore(root: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

/// A small pseudorandom number generator. Equal seeds give equal runs.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
}
