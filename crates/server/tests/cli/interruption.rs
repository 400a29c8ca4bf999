//! SIGINT: what a command says about a write, and the progress before it.

use std::{
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    process::{ChildStdout, Stdio},
    sync::{Arc, Mutex},
    time::Instant,
};

use chancery_model::types::CLUSTER;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    scripted::{Client, Manner},
    support::{DEADLINE, Done, KillOnDrop, Server, chancery, clusters, eventually, signal},
};

/// A command that runs.
struct Running {
    child: KillOnDrop,
    out: ChildStdout,
    err: BufReader<std::process::ChildStderr>,
    /// The lines of standard error that were read.
    lines: String,
}

impl Running {
    fn start(server: &str, args: &[&str], input: Option<&str>) -> Self {
        let mut command = chancery();
        command.args(args).env("CHANCERY_SERVER", server);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().unwrap());
        if let Some(input) = input {
            use std::io::Write;
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        }
        let out = child.stdout.take().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Self { child, out, err, lines: String::new() }
    }

    /// Waits for a line of progress.
    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        while !self.lines.contains(text) {
            assert!(start.elapsed() < DEADLINE, "no {text:?}: {}", self.lines);
            let n = self.err.read_line(&mut self.lines).unwrap();
            assert_ne!(n, 0, "the command has ended: {}", self.lines);
        }
    }

    fn interrupt(mut self) -> Done {
        signal(&self.child, Signal::INT);
        let status = eventually("the command ends", || self.child.try_wait().unwrap());
        let (mut out, mut err) = (String::new(), self.lines);
        self.out.read_to_string(&mut out).unwrap();
        self.err.read_to_string(&mut err).unwrap();
        Done { code: status.code().unwrap(), out, err }
    }
}

/// Returns the request ID in a message.
fn request_id(done: &Done) -> &str {
    let (_, rest) = done.err.split_once("--request-id ").unwrap();
    &rest[..32]
}

#[test]
fn interrupted_apply_says_what_is_known_about_the_write() {
    // Standard input has no end: nothing was sent.
    let mut reading = Running::start("127.0.0.1:1", &["apply", "-f", "-"], None);
    reading.wait_for("reading the input, ");
    let done = reading.interrupt();
    assert_eq!((done.code, done.out.as_str()), (130, ""), "{done:?}");
    assert!(done.err.ends_with("error: interrupted: not written\n"), "{done:?}");

    // A server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let manifest = clusters(&["web"], "1s");
    let mut sent = Running::start(&address, &["apply", "-f", "-"], Some(&manifest));
    sent.wait_for("waiting for the answer of the server, ");
    let done = sent.interrupt();
    assert_eq!(done.code, 130, "{done:?}");
    assert!(done.err.contains("error: interrupted: the outcome is unknown"), "{done:?}");
    // The advice works: the same request takes effect once, and the history finds it.
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    let id = request_id(&done).to_owned();
    let args = ["apply", "-f", "-", "--request-id", &id];
    let first = server.json(&args, &manifest);
    let again = server.json(&args, &manifest);
    assert_eq!((&again["repeated"], &again["revision"]), (&Value::Bool(true), &first["revision"]));
    server.json(&["apply", "-f", "-"], &clusters(&["other"], "1s"));
    let history = server.json(&["history", "--request-id", &id], "");
    assert_eq!(history["entries"].as_array().unwrap().len(), 1, "{history}");
    assert_eq!(history["entries"][0]["revision"], first["revision"]);
    assert_eq!(history["request_id"], id.as_str());
    let none = server.run(&["history", "--request-id", &"0".repeat(32)]);
    assert_eq!(none.out, "no revisions\n");
}

/// A session that never answers, so that a wait lasts.
fn silent_client(server: &Server, runtime: &tokio::runtime::Runtime) -> Client {
    let addresses = Arc::new(Mutex::new([1, 2, 3].map(|_| server.xds.clone())));
    let mut client = Client::new("edge-1");
    client.connect(runtime.handle(), &addresses, 0);
    eventually("the client has the first version", || {
        client.record().accepted_here.contains(CLUSTER).then_some(())
    });
    client.answer(Manner::Silent);
    client
}

#[test]
fn interrupted_wait_prints_the_revision_of_the_write_first() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["web"], "1s"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _client = silent_client(&server, &runtime);
    let manifest = clusters(&["web"], "2s");
    for (format, expected) in [("text", "written as revision 2\n"), ("json", "")] {
        let manifest = manifest.replace("2s", if format == "json" { "3s" } else { "2s" });
        let args = ["apply", "-f", "-", "--wait=5m", "-o", format];
        let mut waiting = Running::start(&server.admin, &args, Some(&manifest));
        waiting.wait_for("waiting for the answer of the server, ");
        let done = waiting.interrupt();
        assert_eq!(done.code, 130, "{done:?}");
        if format == "json" {
            let shown: Value = serde_json::from_str(&done.out).unwrap();
            assert_eq!(shown, serde_json::json!({"revision": 3, "interrupted": true}));
        } else {
            assert_eq!(done.out, expected);
        }
        assert!(done.err.contains("error: interrupted: written as revision "), "{done:?}");
    }
    // `wait` counts the sessions.
    let mut waiting = Running::start(&server.admin, &["wait", "3", "--timeout", "5m"], Some(""));
    waiting.wait_for("waiting for the sessions 0 of 1 sessions");
    let done = waiting.interrupt();
    assert_eq!((done.code, done.out.as_str()), (130, ""), "{done:?}");
    let end = "error: interrupted: not all sessions are known to have acknowledged revision 3\n";
    assert!(done.err.ends_with(end), "{done:?}");
    // A dry run writes nothing, and neither does a rollback that is not confirmed: both can be interrupted at once.
    let mut rollback =
        Running::start(&server.admin, &["rollback", "default", "--to", "1", "--wait=5m"], Some(""));
    rollback.wait_for("waiting for the answer of the server, ");
    let done = rollback.interrupt();
    assert_eq!((done.code, done.out.as_str()), (130, "written as revision 4\n"), "{done:?}");
}

#[test]
fn interrupted_export_changes_no_file() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().to_str().unwrap();
    std::fs::write(root.path().join("mine.yaml"), "mine").unwrap();
    let mut reading = Running::start(&address, &["export", directory], Some(""));
    reading.wait_for("reading, ");
    let done = reading.interrupt();
    assert_eq!((done.code, done.out.as_str()), (130, ""), "{done:?}");
    assert!(done.err.contains("error: interrupted: no file was changed"), "{done:?}");
    let files: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "{files:?}");
}
