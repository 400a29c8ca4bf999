//! A disk with less free space than `store.free_bytes_min`.

use crate::support::{Server, chancery, clusters, run};

/// More space than any disk has.
const TOO_MUCH: (&str, &str) = ("CHANCERY_STORE_FREE_BYTES_MIN", "1000000GiB");

/// The reason for rejected writes was not visible: the status had no warning, and a start that
/// failed reported that no restart was needed.
#[test]
fn full_disk_is_reported_by_the_status_and_by_a_failed_start() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut command = chancery();
    command.args(["serve", "--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--raft", "127.0.0.1:0", "--data-dir"]).arg(&data);
    command.env(TOO_MUCH.0, TOO_MUCH.1).env("CHANCERY_LOG", "error");
    let refused = run(command, "");
    assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{refused:?}");
    for part in [
        "error: cannot start the replica: the disk of ",
        " are needed, including the reserve (store.free_bytes_min); free disk space, then start the replica again\n",
    ] {
        assert!(refused.err.contains(part), "{refused:?}");
    }
    assert!(!refused.err.contains("needs no restart"), "{refused:?}");

    let server = Server::start(&data);
    let status = server.json(&["cluster", "status"], "");
    assert_eq!(
        (&status["members"][0]["failure"], &status["warnings"]),
        (&"".into(), &serde_json::json!([]))
    );
    assert_eq!(server.terminate().0, Some(0));
    let server = Server::start_with(&data, &[TOO_MUCH]);
    let write = server.run_with_input(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    assert!(write.code == 1 && write.err.contains("is nearly full: "), "{write:?}");
    let text = server.run(&["cluster", "status"]).out;
    let warning = "warning: replica 1 takes no writes: the disk is nearly full: ";
    assert!(text.contains(warning) && text.contains("(store.free_bytes_min)"), "{text}");
    let status = server.json(&["cluster", "status"], "");
    let failure = status["members"][0]["failure"].as_str().unwrap();
    assert!(failure.starts_with("the disk is nearly full: "), "{status}");
    assert_eq!(server.terminate().0, Some(0));
}
