//! A child process that can be killed or run out of a resource: this test binary, started again.
//!
//! [`child_process_replica_writes_until_it_fails`] is an ordinary test. Without a parent, it briefly does the
//! work of a child.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use chancery_model::{Outcome, Version};
use chancery_store::{Replica, TransactError};
use tokio::task::JoinSet;

use crate::support::{config, key, open, put, render, scope};

const DIRECTORY: &str = "CHANCERY_TEST_CHILD_DIRECTORY";
const ROUND: &str = "CHANCERY_TEST_CHILD_ROUND";
const WRITERS: u64 = 8;

/// A write that a child reports as acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) version: Version,
    pub(crate) body: String,
}

impl Ack {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("ack ")?.strip_suffix(" .")?.split(' ');
        let ack = Self {
            name: words.next()?.to_owned(),
            revision: words.next()?.parse().ok()?,
            version: Version::parse(words.next()?)?,
            body: words.next()?.to_owned(),
        };
        Some(ack)
    }

    /// Checks that a replica has the write, with the same version and bytes.
    pub(crate) fn check(&self, replica: &Replica) {
        let state = replica.state();
        let found = state.get(&scope("default"), &key(&self.name));
        let found = found.unwrap_or_else(|| panic!("{self:?} is lost"));
        assert!(state.revision.0 >= self.revision, "{self:?} is ahead of {}", state.revision);
        assert_eq!(found.version(), self.version, "{self:?}");
        assert_eq!(found.body().unwrap(), self.body, "{self:?}");
    }
}

/// Starts a child that writes to a replica in `dir` until it is killed or a write fails.
pub(crate) fn spawn(
    dir: &Path,
    round: u64,
    prefix: &[&str],
) -> (Child, impl Iterator<Item = String>) {
    let mut words: Vec<String> = prefix.iter().map(|word| (*word).to_owned()).collect();
    words.push(std::env::current_exe().unwrap().display().to_string());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .args(["--exact", "child::child_process_replica_writes_until_it_fails", "--nocapture"])
        .env(DIRECTORY, dir)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines)
}

/// Returns the acknowledgements among the lines of a child. The last line may be torn.
pub(crate) fn acks(lines: impl Iterator<Item = String>) -> impl Iterator<Item = Ack> {
    lines.filter_map(|line| Ack::parse(&line))
}

async fn write_until_it_fails(replica: &Replica, round: u64, limit: u64) -> Vec<TransactError> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let replica = replica.clone();
        writers.spawn(async move {
            for n in 0..limit {
                let name = format!("r{round}-w{writer}-n{n}");
                let body = format!("{name}-{}", "x".repeat(usize::try_from(n % 700).unwrap()));
                let summary = match replica.transact(put(&name, body.as_bytes())).await {
                    Ok(Outcome::Committed(summary)) => summary,
                    Ok(Outcome::Refused(refusal)) => panic!("{refusal}"),
                    Err(error) => return Some(error),
                };
                let state = replica.state();
                let resource = state.get(&scope("default"), &key(&name)).unwrap();
                let (revision, version) = (summary.revision, resource.version());
                let mut out = std::io::stdout().lock();
                writeln!(out, "ack {name} {revision} {version} {body} .").unwrap();
                out.flush().unwrap();
            }
            None
        });
    }
    writers.join_all().await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn child_process_replica_writes_until_it_fails() {
    let Some(dir) = std::env::var_os(DIRECTORY) else {
        let dir = tempfile::tempdir().unwrap();
        let replica = open(dir.path()).await;
        assert_eq!(write_until_it_fails(&replica, 0, 10).await, []);
        assert_eq!(replica.state().len(), 80);
        return replica.shutdown().await.unwrap();
    };
    let round = std::env::var(ROUND).unwrap().parse().unwrap();
    let replica = Replica::open(config(Path::new(&dir))).await.unwrap();
    let errors = write_until_it_fails(&replica, round, u64::MAX).await;
    // Only a failed disk gets here. Reads still work.
    assert!(!errors.is_empty());
    let failure = replica.status().failure.unwrap();
    let before = render(&replica.state());
    let again = replica.transact(put("late", b"x")).await.unwrap_err();
    assert!(matches!(&again, TransactError::NotSent(reason) if *reason == failure), "{again}");
    assert_eq!(render(&replica.state()), before);
    let mut out = std::io::stdout().lock();
    writeln!(out, "failed {failure}").unwrap();
    drop(out);
    tokio::time::timeout(Duration::from_secs(20), replica.shutdown()).await.unwrap().ok();
}
