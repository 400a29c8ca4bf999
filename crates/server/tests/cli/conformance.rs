//! The conformance kit against a replica.

use serde_json::Value;

use crate::support::{Server, chancery, clusters, run};

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
