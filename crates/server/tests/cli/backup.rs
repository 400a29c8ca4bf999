//! The commands `backup` and `restore`.

use std::{
    fs,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
    process::Stdio,
};

use serde_json::Value;

use crate::support::{Done, Server, chancery, clusters, run};

fn offline(args: &[&str]) -> Done {
    let mut command = chancery();
    command.args(args);
    run(command, "")
}

fn json(args: &[&str]) -> Value {
    let done = offline(&[args, &["-o", "json"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    serde_json::from_str(&done.out).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A state is saved while it is in use. It is restored into an empty directory, and served from
/// there with the same versions at a later revision.
#[test]
fn backup_can_be_restored() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    let server = Server::start(&path("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    let saved = server.json(&["backup", &text("file")], "");
    assert_eq!((&saved["revision"], &saved["resources"]), (&1.into(), &2.into()));
    assert_eq!(saved["source"], "current");
    assert_eq!(saved["bytes"], fs::metadata(path("file")).unwrap().len());
    let mode = fs::metadata(path("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the file contains secrets");

    let again = server.run(&["backup", &text("file")]);
    assert_eq!(again.code, 1);
    assert!(again.err.contains("already exists; use --force to replace it"), "{again:?}");
    let before = server.json(&["get"], "");
    let again = server.run(&["backup", &text("file"), "--force"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.out.contains("file: revision 1, 2 resources, "), "{again:?}");
    let stale = server.json(&["backup", &text("stale"), "--stale"], "");
    assert_eq!(stale["source"], "stale");
    let busy = offline(&["backup", &text("busy"), "--data-dir", &text("data")]);
    assert!(busy.code == 1 && busy.err.contains("is in use by process"), "{busy:?}");
    let kept = |number: &str, args: &[&str]| {
        let file = text(&format!("kept-{number}.bak"));
        server.run(&[&["backup", &file, "--keep", "2"], args].concat())
    };
    assert_eq!(kept("8", &[]).code, 0);
    let second: Value = serde_json::from_str(&kept("9", &["-o", "json"]).out).unwrap();
    assert_eq!(second["deleted"], serde_json::json!([]));
    // A file that is no backup stays.
    fs::write(path("kept-7.bak"), "report").unwrap();
    let third = kept("10", &[]);
    let deleted = format!("deleted the older backup {}\n", text("kept-8.bak"));
    assert!(third.code == 0 && third.out.ends_with(&deleted), "{third:?}");
    let unnumbered = server.run(&["backup", &text("kept.bak"), "--keep", "2"]);
    assert!(unnumbered.code == 1 && unnumbered.err.contains("has no number"), "{unnumbered:?}");
    ["kept-7.bak", "kept-9.bak", "kept-10.bak"]
        .iter()
        .for_each(|name| fs::remove_file(path(name)).unwrap());
    let missing = server.run(&["backup", &text("none/file")]);
    assert!(missing.code == 1 && missing.err.contains("cannot create"), "{missing:?}");
    assert_eq!(
        names(directory.path()),
        ["data", "data.log", "file", "stale"],
        "no incomplete file remains"
    );

    assert_eq!(server.terminate().0, Some(0));
    let offline_saved = json(&["backup", &text("offline"), "--data-dir", &text("data")]);
    assert_eq!(
        (&offline_saved["source"], &offline_saved["revision"]),
        (&"directory".into(), &1.into())
    );
    let restored = json(&["restore", &text("offline"), "--data-dir", &text("new")]);
    assert_eq!(restored["revision"], 1_u64 << 32);
    assert_eq!(restored["backup"]["cluster_id"], saved["cluster_id"]);
    assert_ne!(restored["cluster_id"], saved["cluster_id"]);
    let full = offline(&["restore", &text("file"), "--data-dir", &text("new")]);
    assert!(full.code == 1 && full.err.contains("use an empty directory"), "{full:?}");

    let server = Server::start(&path("new"));
    let after = server.json(&["get"], "");
    assert_eq!(after["resources"], before["resources"]);
    assert_eq!(after["revision"], 1_u64 << 32);
    let applied = server.json(&["apply", "-f", "-"], &clusters(&["a"], "2s"));
    assert_eq!(applied["revision"], (1_u64 << 32) + 1);
    let history = server.json(&["history"], "");
    let reason = history["entries"][1]["reason"].as_str().unwrap();
    assert!(reason.starts_with("restored from a backup of cluster "), "{history}");
    assert_eq!(history["entries"][1]["author"], "tester");
    assert_eq!(server.terminate().0, Some(0));
}

/// Other files in the directory stay as they are, whatever their names and types.
#[test]
fn backup_changes_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let text = |name: &str| path(name).display().to_string();
    let server = Server::start(&path("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    fs::write(path("file.tmp"), "of somebody else").unwrap();
    fs::set_permissions(path("file.tmp"), fs::Permissions::from_mode(0o644)).unwrap();
    let saved = server.run(&["backup", &text("file")]);
    assert_eq!(saved.code, 0, "{saved:?}");
    assert_eq!(fs::read_to_string(path("file.tmp")).unwrap(), "of somebody else");
    assert_eq!(fs::metadata(path("file")).unwrap().permissions().mode() & 0o777, 0o600);

    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    std::os::unix::fs::symlink("file", path("link")).unwrap();
    for name in ["socket", "link"] {
        for args in [vec!["backup"], vec!["backup", "--force"]] {
            let refused = server.run(&[args, vec![&text(name)]].concat());
            let said = refused.err.contains("already exists and is not a regular file");
            assert!(refused.code == 1 && said, "{refused:?}");
        }
    }
    let refused = server.run(&["backup", "--force", &text("data")]);
    assert!(refused.code == 1 && refused.err.contains("data is a directory"), "{refused:?}");
    let left = ["data", "data.log", "file", "file.tmp", "link", "socket"];
    assert_eq!(names(directory.path()), left);
    assert!(path("socket").symlink_metadata().unwrap().file_type().is_socket());
    assert!(path("link").is_symlink());
    assert_eq!(server.terminate().0, Some(0));
}

/// A backup can go through a pipe. The summary goes to standard error.
#[test]
fn backup_is_written_to_standard_output() {
    let directory = tempfile::tempdir().unwrap();
    let (data, file) = (directory.path().join("data"), directory.path().join("file"));
    let server = Server::start(&data);
    server.json(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    let backup = |out: Stdio| {
        let mut command = chancery();
        command.args(["backup", "-", "-o", "json"]).env("CHANCERY_SERVER", &server.admin);
        command.stdout(out).stderr(Stdio::piped());
        command.spawn().unwrap().wait_with_output().unwrap()
    };
    let done = backup(Stdio::piped());
    let said: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert!(done.status.success());
    assert_eq!((&said["file"], &said["bytes"]), (&"-".into(), &done.stdout.len().into()));
    let full = backup(fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    let text = String::from_utf8_lossy(&full.stderr);
    assert!(full.status.code() == Some(1), "{text}");
    assert!(text.contains("cannot write the backup to standard output"), "{text}");
    assert_eq!(server.terminate().0, Some(0));
    fs::write(&file, &done.stdout).unwrap();
    let new = directory.path().join("new");
    let (file, new) = (file.display().to_string(), new.display().to_string());
    let restored = json(&["restore", &file, "--data-dir", &new]);
    assert_eq!(restored["backup"]["resources"], 1);
}

#[test]
fn restore_from_invalid_file_fails_and_creates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (file, data) = (directory.path().join("file"), directory.path().join("data"));
    let restore = || {
        offline(&[
            "restore",
            &file.display().to_string(),
            "--data-dir",
            &data.display().to_string(),
        ])
    };
    let missing = restore();
    assert!(missing.code == 1 && missing.err.contains("No such file"), "{missing:?}");
    fs::write(&file, "resources: []").unwrap();
    let foreign = restore();
    let expected =
        format!("error: cannot restore {}: it is not a backup: it does not begin", file.display());
    assert!(foreign.code == 1 && foreign.err.starts_with(&expected), "{foreign:?}");
    assert!(!data.exists());
    assert_eq!(offline(&["restore", "file"]).code, 2, "the directory is required");
}
