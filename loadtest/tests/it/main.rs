//! Short forms of the load tests, against the real binary.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod server;

use std::process::Command;

use serde_json::Value;

/// Runs a command of the load test; its exit code and its report.
fn loadtest(args: &[&str]) -> (Option<i32>, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .arg("--chancery")
        .arg(server::binary())
        .args(args)
        .args(["--output", "json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args:?} gave no report: {error}\n{errors}"));
    (output.status.code(), report)
}

fn broken(report: &Value) -> Vec<&str> {
    let gates = report["gates"].as_array().unwrap().iter();
    gates.filter(|gate| gate["holds"] == false).map(|gate| gate["what"].as_str().unwrap()).collect()
}

/// Ten kills under write load. The long form is `loadtest crash --kills 200`.
#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let (code, report) = loadtest(&["crash", "--kills", "10", "--writers", "8", "--kept", "50"]);
    assert_eq!((code, broken(&report)), (Some(0), vec![]), "{report:#}");
    let findings = &report["findings"];
    assert_eq!((&findings["lost"], &findings["wrong"]), (&0.into(), &0.into()));
    assert!(findings["kills"].as_u64().unwrap() >= 10, "{report:#}");
    assert!(findings["planted_faults"].as_u64().unwrap() >= 40, "{report:#}");
}

/// One resource on the wire per stream and change, whatever the size of the view; and a gate that can
/// not hold is reported, and makes the exit code 1.
#[test]
fn one_change_is_one_resource_on_the_wire_of_each_stream() {
    let (code, report) = loadtest(&[
        "fanout",
        "--resources=5,500",
        "--streams=6",
        "--streams-per-connection=3",
        "--updates=5",
        "--rounds=1",
        "--ratio-max=0",
        "--no-pin",
    ]);
    let ratio = "CPU per delivery, to that of the smallest view, median of the rounds";
    assert_eq!((code, broken(&report)), (Some(1), vec![ratio]), "{report:#}");
    let sizes = report["findings"]["sizes"].as_array().unwrap();
    let of = |key: &str| sizes.iter().map(|size| size[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("resources_per_delivery"), [1.0, 1.0]);
    assert_eq!(of("deliveries"), [60, 30]);
    assert_eq!(of("wrong"), [0, 0]);
}
