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
fn schema_is_printed_without_a_configuration() {
    let mut command = chancery();
    command.args(["config", "schema"]);
    let schema: Value = serde_json::from_str(&run(command, "").out).unwrap();
    assert_eq!(schema["properties"]["shutdown"]["properties"]["timeout"]["default"], "10s");
}
