//! The log of a replica: its fields, and its filter.

use std::{fs, path::Path, process::Stdio, time::Instant};

use serde_json::Value;

use crate::{
    cluster::eventually,
    support::{DEADLINE, Server, chancery, clusters, log_lines, logged},
};

/// Waits until the log has `n` lines with a message, and returns all of them.
fn lines(log: &Path, message: &str, n: usize) -> Vec<Value> {
    eventually(&format!("{n} lines with {message:?}"), || {
        let text = log_lines(log);
        let lines = text.lines().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line:?} is not JSON"))
        });
        let found: Vec<Value> = lines.filter(|line| line["message"] == message).collect();
        (found.len() >= n).then_some(found)
    })
}

#[test]
fn operations_are_logged_with_caller_outcome_and_revision() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("data.log");
    let server = Server::start_with(&dir.path().join("data"), &[("CHANCERY_LOG_FORMAT", "json")]);
    server.json(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    server.json(&["apply", "-f", "-", "--dry-run", "--exit-zero"], &clusters(&["c"], "1s"));
    assert_eq!(server.run(&["delete", "cluster", "none"]).code, 1);
    assert_eq!(server.run(&["cluster", "remove", "7"]).code, 1);

    let found = lines(&log, "operation", 3);
    let [apply, delete, remove] = found.as_slice() else { panic!("{found:#?}") };
    let mut fields: Vec<&str> = apply.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "author",
        "changed",
        "level",
        "message",
        "operation",
        "outcome",
        "principal",
        "removed",
        "request_id",
        "revision",
        "scope",
        "source",
        "target",
        "timestamp",
    ];
    assert_eq!(fields, expected, "{apply}");
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    assert_eq!(text(apply, "operation") + &text(apply, "outcome"), "applyallowed");
    assert_eq!((&apply["changed"], &apply["level"]), (&2.into(), &"INFO".into()));
    assert_eq!(apply["revision"], server.json(&["history"], "")["entries"][0]["revision"]);
    let time = text(apply, "timestamp");
    assert!(time.len() == "2026-11-26T11:14:51.123456Z".len() && time.ends_with('Z'), "{time}");
    assert_eq!(text(delete, "outcome") + &text(delete, "reason"), "refusednot_found");
    assert_eq!(text(delete, "name"), "none");
    assert_eq!(text(remove, "operation") + &text(remove, "outcome"), "member.removerefused");
    // Libraries are quiet at info.
    let text = log_lines(&log);
    let mut quiet = text.lines().filter(|line| line.contains("\"level\":\"INFO\""));
    assert!(quiet.all(|line| line.contains("\"target\":\"chancery")), "{text}");
    assert_eq!(server.terminate().0, Some(0));
    let text = fs::read_to_string(&log).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["message"], "stopped", "{text}");
}

#[test]
fn log_level_changes_while_the_replica_runs() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("data.log");
    let server = Server::start(&dir.path().join("data"));
    let level = |args: &[&str]| server.run(&[["log", "level"].as_slice(), args].concat());
    assert_eq!(level(&[]).out, "replica 1 logs with the configured filter \"info\"\n");
    let dry_run =
        || server.json(&["apply", "-f", "-", "--dry-run", "--exit-zero"], &clusters(&["a"], "1s"));
    dry_run();
    let done = level(&["info,chancery_admin=debug"]);
    assert_eq!(
        done.out,
        "replica 1 logs with the filter \"info,chancery_admin=debug\" until it restarts; the configured filter is \
         \"info\"\n"
    );
    dry_run();
    let detail = "DEBUG chancery_admin::operation_log";
    let text = eventually("the second dry run is logged", || {
        let text = log_lines(&log);
        let (_, after) = text.split_once("the log filter changes")?;
        after.contains(detail).then(|| text.clone())
    });
    assert_eq!(text.matches(detail).count(), 1, "{text}");
    let done = level(&["debg"]);
    assert_eq!(done.code, 1);
    assert!(
        done.err.contains(
            "the log filter is not valid: \"debg\" is neither a level (error, warn, info, debug, trace, off) nor one \
             for a module (chancery_xds=debug)"
        ),
        "{}",
        done.err
    );
    let done = level(&["off", "--for", "25h"]);
    assert!(done.code == 2 && done.err.contains("must be from 1s to 24h"), "{done:?}");
    let done = level(&["warn", "--for", "1s"]);
    assert_eq!(
        done.out,
        "replica 1 logs with the filter \"warn\" for 1s, and then with the configured filter \"info\"\n"
    );
    let configured = "replica 1 logs with the configured filter \"info\"\n";
    eventually("the filter returns", || (level(&[]).out == configured).then_some(()));
    assert!(level(&["off"]).out.contains("logs with the filter \"off\" until"));
    assert_eq!(level(&[""]).out, configured);
    let text = logged(&log, "the log filter changes filter=\"off\" previous=\"info\"");
    assert!(!text.contains('\u{1b}'), "a file has no colors");
}

/// A replica does not wait for the reader of its log.
#[test]
fn replica_whose_log_nobody_reads_answers_writes_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = chancery();
    command
        .args(["serve", "--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--raft", "127.0.0.1:0"])
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .envs([("CHANCERY_LOG_LEVEL", "debug"), ("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB")])
        .stderr(Stdio::piped());
    let mut server = Server::spawn(command);
    let stderr = server.child.stderr.take().unwrap();
    let start = Instant::now();
    let (mut last, mut n_unchanged) = (0, 0);
    // Each command writes lines, so the pipe is full when its size does not change.
    for turn in 0_u64.. {
        server.json(&["apply", "-f", "-"], &clusters(&["a"], &format!("{}s", turn + 1)));
        let size = rustix::io::ioctl_fionread(&stderr).unwrap();
        n_unchanged = if size == last { n_unchanged + 1 } else { 0 };
        last = size;
        if n_unchanged == 3 {
            break;
        }
        assert!(start.elapsed() < DEADLINE, "the pipe is not full: {size} bytes");
    }
    assert!(last > 32 << 10, "{last} bytes");
    assert_eq!(server.terminate().0, Some(0));
}
