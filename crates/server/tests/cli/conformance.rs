//! The conformance kit against a replica.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    support::{Done, Server, chancery, clusters, eventually, run, signal},
    tls_ports::{Certs, on},
};

/// Runs the kit, and returns its exit code and its report.
fn kit(server: &Server, args: &[&str]) -> (i32, Value) {
    let mut command = chancery();
    command.args(["conformance", "-o", "json", "--xds", &server.xds, "--server", &server.admin]);
    command.args(args);
    let done = run(command, "");
    let report = serde_json::from_str(&done.out).unwrap_or_else(|_| panic!("{done:?}"));
    (done.code, report)
}

/// All cases pass, none is skipped, and nothing is left behind. Ten rounds with `CHANCERY_TEST_LONG`.
#[test]
fn replica_passes_all_cases_of_the_conformance_kit() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let manifest = "assignments: [{name: own, scopes: [default]}]\n---\n".to_owned();
    let applied =
        server.run_with_input(&["apply", "-f", "-"], &(manifest + &clusters(&["a"], "1s")));
    assert_eq!(applied.code, 0, "{applied:?}");
    let resources = || server.json(&["get"], "")["resources"].take();
    let assignments = || server.json(&["assignments", "list"], "")["assignments"].take();
    let before = (resources(), assignments());
    let rounds = if std::env::var_os("CHANCERY_TEST_LONG").is_some() { 10 } else { 1 };
    for round in 1..=rounds {
        let (code, report) = kit(&server, &[]);
        let cases = report["cases"].as_array().unwrap();
        let bad: Vec<&Value> = cases.iter().filter(|case| case["result"] != "passed").collect();
        assert!(bad.is_empty() && code == 0, "round {round}: {bad:#?}");
        assert!(cases.len() >= 300, "round {round}: {} cases", cases.len());
        assert_eq!((resources(), assignments()), before, "round {round} left something behind");
    }
}

/// A server that is not there is an error of the command, and no failed cases.
#[test]
fn conformance_kit_reports_an_unreachable_server() {
    let mut command = chancery();
    command.args(["conformance", "--server", "127.0.0.1:1"]);
    let done = run(command, "");
    assert_eq!((done.code, done.out.as_str()), (1, ""), "{done:?}");
    assert!(done.err.contains("cannot reach the server at 127.0.0.1:1"), "{done:?}");
}

#[test]
fn conformance_kit_rejects_a_selection_without_cases() {
    let mut command = chancery();
    command.args(["conformance", "--case", "no-such-case"]);
    let done = run(command, "");
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.err.contains("no case is selected"), "{done:?}");
}

/// Runs the kit against a replica with TLS.
fn tls_kit(server: &Server, certs: &Certs, xds: &str, args: &[&str]) -> Done {
    let admin = format!("https://{}", server.admin);
    let args = [&["conformance", "--xds", xds, "--case", "services/sotw/ads/c"], args].concat();
    on(&admin, &certs.flags("operator"), &args, "")
}

/// Returns the revision, the resources and the assignments of a replica with TLS.
fn content(server: &Server, certs: &Certs) -> (Value, Value, Value) {
    let admin = format!("https://{}", server.admin);
    let json = |args: &[&str]| {
        let args = [args, ["-o", "json"].as_slice()].concat();
        let done = on(&admin, &certs.flags("operator"), &args, "");
        serde_json::from_str::<Value>(&done.out).unwrap_or_else(|_| panic!("{done:?}"))
    };
    let (mut resources, mut assignments) = (json(&["get"]), json(&["assignments", "list"]));
    (resources["revision"].take(), resources["resources"].take(), assignments["assignments"].take())
}

/// The kit wrote 320 revisions to a cluster with TLS before it found out that it could not connect, and said that the
/// server does not conform.
#[test]
fn conformance_kit_checks_the_connection_before_its_first_write() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let before = content(&server, &certs);
    let xds = format!("https://{}", server.xds);
    let [cert, key] = ["client.pem", "client.key"].map(|file| certs.path(file));
    let of_client = ["--xds-cert", cert.as_str(), "--xds-cert-key", key.as_str()];
    let wrong_name = [&of_client[..], &["--xds-server-name", "other.example"]].concat();
    for (address, args, reason) in [
        (server.xds.as_str(), &[][..], "https://"),
        // The certificate of the operator is not one of a client.
        (&xds, &[], "set --xds-cert to a valid certificate"),
        (&xds, &wrong_name, "other.example"),
    ] {
        let done = tls_kit(&server, &certs, address, args);
        let error = format!("error: cannot check the server at {address}: ");
        assert!(done.code == 1 && done.err.starts_with(&error), "{done:?}");
        assert!(done.err.contains(reason) && !done.err.contains("conform"), "{done:?}");
        assert!(done.err.contains("nothing was written"), "{done:?}");
        assert_eq!(content(&server, &certs), before, "{done:?}");
    }
    let usage = tls_kit(&server, &certs, &server.xds, &of_client);
    assert!(usage.code == 2 && usage.err.contains("would not be encrypted"), "{usage:?}");

    let done = tls_kit(&server, &certs, &xds, &of_client);
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
    let (_, resources, assignments) = content(&server, &certs);
    assert_eq!((resources, assignments), (before.1, before.2), "the run left something behind");
    let rest = [&of_client[..], &["--case", "rest/each-type"]].concat();
    let done = tls_kit(&server, &certs, &xds, &rest);
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
}

/// A signal ends the run, and the kit removes what it has published.
#[test]
fn interrupted_conformance_kit_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let content = || {
        let resources = server.json(&["get"], "")["resources"].take();
        (resources, server.json(&["assignments", "list"], "")["assignments"].take())
    };
    let before = content();
    for kind in [Signal::INT, Signal::TERM] {
        let mut command = chancery();
        command.args(["conformance", "--xds", &server.xds, "--server", &server.admin]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        eventually("the kit publishes resources", || {
            (!server.json(&["get"], "")["resources"].as_array()?.is_empty()).then_some(())
        });
        signal(&child, kind);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.contains("was not checked completely") && error.contains("not run"),
            "{error}"
        );
        assert_eq!(content(), before, "{kind:?} left something behind");
    }
}

/// A caller that may not remove what the kit publishes is refused before the first write.
#[test]
fn conformance_kit_without_rights_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("admin.sock").display().to_string();
    let user = format!("unix:{}", rustix::process::getuid().as_raw());
    let environment =
        [("CHANCERY_ADMIN_SOCKET", socket.as_str()), ("CHANCERY_ACCESS_ADMINS", user.as_str())];
    let server = Server::start_with(&root.path().join("data"), &environment);
    let admin = format!("unix:{socket}");
    let as_admin = |args: &[&str], input: &str| {
        let done = server.run_with_input(&[&["--server", &admin], args].concat(), input);
        assert_eq!(done.code, 0, "{done:?}");
        done.out
    };
    let token = root.path().join("token").display().to_string();
    as_admin(&["token", "create", "kit", "--out", &token], "");
    let verbs = "{verbs: [apply, prune], scopes: ['conformance/*']}, {verbs: [assign]}";
    let read = "read: ['conformance/*']";
    let rule = |more: &str| {
        format!("access: [{{name: kit, identity: 'token:kit', {read}, allow: [{verbs}{more}]}}]\n")
    };
    as_admin(&["apply", "-f", "-"], &rule(""));
    let revision = || as_admin(&["get", "-o", "json"], "").split_once(',').unwrap().0.to_owned();
    let before = revision();
    let kit = || {
        let mut command = chancery();
        command.args(["conformance", "--xds", &server.xds, "--server", &server.admin]);
        command.args(["--token-file", &token, "--case", "services/sotw/ads/c"]);
        run(command, "")
    };
    let refused = kit();
    let expected = "token:kit may not use the verb `force` in the scopes of this run";
    assert!(refused.code == 1 && refused.err.contains(expected), "{refused:?}");
    assert_eq!(revision(), before);
    let force = ", {verbs: [force], scopes: ['conformance/*']}";
    as_admin(&["apply", "-f", "-"], &rule(force));
    let done = kit();
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{done:?}");
}
