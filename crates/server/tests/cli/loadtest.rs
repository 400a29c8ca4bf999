//! `chancery loadtest` against three replicas.

use serde_json::Value;

use crate::{
    cluster::{Replica, joined},
    support::{Done, clusters},
};

/// Runs a short test with clients on all replicas.
fn loadtest(replicas: &[Replica; 3], args: &[&str]) -> Done {
    let xds = replicas.each_ref().map(Replica::xds);
    let xds = xds.join(",");
    let fleet =
        ["loadtest", "--xds", &xds, "--clients", "12", "--resources", "20", "--seconds", "2"];
    replicas[1].run(&[&fleet[..], args].concat(), "")
}

fn report(done: &Done) -> Value {
    serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// Whether the machine was too busy says nothing about the clients, so only their results count.
fn check(report: &Value) {
    let found = &report["correctness"];
    for (key, expected) in
        [("different", 0), ("not_connected", 0), ("repeats", 0), ("older", 0), ("undelivered", 0)]
    {
        assert_eq!(found[key], expected, "{key}: {report}");
    }
    assert_eq!(found["different_servers"], Value::Array(Vec::new()), "{report}");
    assert_eq!(report["left"], Value::Null, "{report}");
    for phase in report["phases"].as_array().unwrap() {
        assert_eq!(phase["failed_writes"], 0, "{report}");
    }
}

fn is_untouched(replica: &Replica) {
    let resources = replica.json(&["get"]);
    let names = resources["resources"].as_array().unwrap().iter().map(|one| &one["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["mine"], "{resources}");
    let assignments = replica.run(&["assignments", "list"], "");
    assert!(!assignments.out.contains("loadtest"), "{assignments:?}");
}

#[test]
fn fleet_of_three_replicas_is_measured_and_left_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    replicas[0].apply("mine");
    for protocol in ["delta", "sotw"] {
        let args = ["--protocol", protocol, "--rate", "10", "--reconnects", "3", "-o", "json"];
        let done = loadtest(&replicas, &args);
        let report = report(&done);
        check(&report);
        let phase = &report["phases"][0];
        assert_eq!((&phase["writes"], &report["correctness"]["equal"]), (&20.into(), &12.into()));
        let n_deliveries = phase["delivery_ms"]["n"].as_u64().unwrap();
        // A client that reconnects when a write starts does not count.
        assert!((12 * 20 - 20..=12 * 20).contains(&n_deliveries), "{report}");
        assert_eq!(phase["last_client_each_ms"].as_array().unwrap().len(), 20, "{report}");
        assert_eq!(report["correctness"]["resources"], 20, "no client sees the default scope");
        is_untouched(&replicas[2]);
    }
    // Other habits, several streams on a connection, and an HTML report.
    let page = root.path().join("report.html");
    let habits =
        ["--slow", "0.2", "--late", "0.1", "--rejecting", "0.3", "--streams-per-connection", "4"];
    let rest = ["--rate", "5", "--changes", "3", "--report", page.to_str().unwrap(), "-o", "json"];
    let report = report(&loadtest(&replicas, &[&habits[..], &rest].concat()));
    check(&report);
    assert_eq!(report["correctness"]["rejecting"], 3, "{report}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("to the last client"), "{page}");
    is_untouched(&replicas[0]);
}

/// Without writes of its own, a test measures from the first client on. Here, a command writes.
#[test]
fn writes_of_others_are_measured_from_the_first_client() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    replicas[0].apply("mine");
    let files = ["1s", "2s", "3s"].map(|time| {
        let file = root.path().join(format!("{time}.yaml"));
        std::fs::write(&file, clusters(&["mine"], time)).unwrap();
        file
    });
    let program = env!("CARGO_BIN_EXE_chancery");
    let server = &replicas[0].admin;
    let phase = |name: &str, file: &std::path::Path| {
        let command = format!("{program} apply -f {} --server {server}", file.display());
        format!(
            "[[phases]]\nname = {name:?}\nseconds = 1\nwrites_per_second = 0\ncommand = {command:?}\n"
        )
    };
    let plan = format!("clients = 6\n{}{}", phase("one", &files[1]), phase("two", &files[2]));
    let scenario = root.path().join("plan.toml");
    std::fs::write(&scenario, plan).unwrap();
    let xds = replicas.each_ref().map(Replica::xds).join(",");
    let scenario = scenario.to_str().unwrap();
    let args = ["loadtest", "--xds", &xds, "--scenario", scenario, "-o", "json"];
    let report = report(&replicas[2].run(&args, ""));
    check(&report);
    for phase in report["phases"].as_array().unwrap() {
        assert_eq!(phase["spread_ms"]["n"], 5, "one of six clients is the first: {report}");
    }
}

#[test]
fn wrong_use_is_refused_before_anything_is_written() {
    let root = tempfile::tempdir().unwrap();
    let replicas = joined(root.path());
    replicas[0].apply("mine");
    let scenario = root.path().join("wrong.toml");
    std::fs::write(&scenario, "clients = 3\n[[phases]]\nrate = 7\n").unwrap();
    let scenario = scenario.to_str().unwrap();
    for (args, text) in [
        (&["--scenario", "stroom"][..], "\"stroom\" is neither a scenario (steady, "),
        (&["--scenario", scenario], "unknown field `rate`"),
        (&["--slow", "2"], "slow is 2; it must be from 0 to 1"),
        (&["--changes", "50"], "changes is 50, but the test has 20 resources"),
        (&["--types", "cdx"], "cdx"),
        (&["--until", "fast"], "write one such as p99=100ms"),
        (&["--write-command", "echo no quota >&2; exit 1"], "cannot write the first state: "),
    ] {
        let done = loadtest(&replicas, args);
        assert!(done.code != 0 && done.err.contains(text), "{args:?}: {done:?}");
        is_untouched(&replicas[1]);
    }
    let nobody = replicas[0].run(&["loadtest", "compare", scenario, scenario], "");
    assert!(nobody.code == 1 && nobody.err.contains("no report of a load test"), "{nobody:?}");
    let scenarios = replicas[0].run(&["loadtest", "scenarios"], "");
    assert_eq!(scenarios.out.lines().count(), 6, "{scenarios:?}");
}
