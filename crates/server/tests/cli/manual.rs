//! `chancery man` and `chancery config schema`: what the release archives contain.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use crate::support::{chancery, run};

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("share/man");
    let mut command = chancery();
    command.arg("man").arg(&pages);
    let done = run(command, "");
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (0, "", ""));
    let files = fs::read_dir(&pages).unwrap();
    let found: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    // The snapshots of the help cover every command.
    let snapshots = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/snapshots"));
    let helps = snapshots.unwrap().filter_map(|file| {
        let name = file.unwrap().file_name().into_string().unwrap();
        Some(format!("chancery{}.1", name.strip_prefix("help")?.strip_suffix(".snap")?))
    });
    let expected: BTreeSet<String> = helps.chain(["chancery.toml.5".to_owned()]).collect();
    assert_eq!(found, expected);
    let serve = fs::read_to_string(pages.join("chancery-serve.1")).unwrap();
    assert!(serve.contains("\\-\\-data\\-dir") && !serve.contains("\\-\\-server"), "{serve}");
    let file = fs::read_to_string(pages.join("chancery.toml.5")).unwrap();
    assert!(file.contains(".SH [xds]") && file.contains("\\fBconnection_age_max\\fR"), "{file}");
    // The directory of a file that exists is no directory.
    let mut command = chancery();
    command.arg("man").arg(pages.join("chancery.1"));
    let done = run(command, "");
    assert_eq!(done.code, 1);
    assert!(done.err.starts_with("error: cannot create "), "{}", done.err);
}

#[test]
fn problems_of_a_configuration_are_listed_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("chancery.toml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = chancery();
        command.args(["config", "check", "-o", "json", "--config"]).arg(&file);
        let done = run(command, "");
        (done.code, serde_json::from_str::<Value>(&done.out).unwrap(), done.err)
    };
    let (code, report, err) = check("[log]\nlevel = 'info'\n");
    assert_eq!((code, &report["valid"], err.as_str()), (0, &Value::Bool(true), ""));
    let (code, report, err) = check("[xds]\nadress = 'x'\n[shutdown]\ntimeout = '0s'\n");
    assert_eq!((code, err.as_str()), (1, "error: the configuration has 2 problems\n"));
    let path = file.display().to_string();
    let expected = serde_json::json!([
        {"file": path, "line": 2, "key": "xds.adress",
         "message": format!("{path}:2: xds.adress is not a key; did you mean xds.address?")},
        {"file": path, "line": 4, "key": "shutdown.timeout",
         "message": format!("shutdown.timeout = \"0s\" (from {path}:4): must be from 1s to 10m")},
    ]);
    assert_eq!(report["problems"], expected);
    // The schema needs no server and no valid configuration.
    let mut command = chancery();
    command.args(["config", "schema"]);
    let schema: Value = serde_json::from_str(&run(command, "").out).unwrap();
    assert_eq!(schema["properties"]["shutdown"]["properties"]["timeout"]["default"], "10s");
}
