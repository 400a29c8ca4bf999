//! Commands that accept, reject, fail, do not end, and take too much.

use bytes::Bytes;
use chancery_model::{TypeUrl, types};
use rustix::process::test_kill_process;

use super::*;
use crate::external::settings::ExternalInput;

/// A cluster with the name `a`.
fn resources() -> Vec<Resource> {
    vec![(TypeUrl::from_static(types::CLUSTER), Bytes::from_static(b"\x0a\x01a"))]
}

fn settings(script: &str) -> ExternalValidator {
    ExternalValidator {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        input: ExternalInput::Bootstrap,
        timeout: Duration::from_secs(20),
        memory_max: 1 << 30,
        required: true,
    }
}

fn judge(script: &str) -> Result<Option<String>, String> {
    run(&settings(script), &resources())
}

#[test]
fn command_gets_the_input_as_file_and_as_standard_input() {
    assert_eq!(judge(r#"grep -q '"clusters":\[{"name":"a"}\]'"#), Ok(None));
    assert_eq!(judge(r#"grep -q '"clusters":\[{"name":"a"}\]' {file}"#), Ok(None));
    assert_eq!(judge("test $(stat -c %a {file}) = 600"), Ok(None), "others cannot read the file");
    let rejected = judge("test -e {file} && echo {file} >&2; exit 1").unwrap().unwrap();
    let path = rejected.rsplit(' ').next().unwrap();
    assert!(path.starts_with('/') && !std::path::Path::new(path).exists(), "{rejected}");
}

#[test]
fn rejection_has_the_end_of_what_the_command_says() {
    let said = judge("echo first >&2; echo 'the  reason' >&2; exit 3").unwrap().unwrap();
    assert_eq!(said, "the external validator rejects the resources: first; the  reason");
    let long = judge("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1");
    let long = long.unwrap().unwrap();
    assert!(long.ends_with("xxend") && long.len() < 2 * SAID_BYTES_MAX, "{}", long.len());
    let silent = judge("exit 1").unwrap().unwrap();
    assert!(silent.ends_with("(exit status: 1)"), "{silent}");
    let key = judge("echo '-----BEGIN PRIVATE KEY-----' >&2; exit 1").unwrap().unwrap();
    assert!(key.contains("shows a private key") && !key.contains("BEGIN"), "{key}");
}

#[test]
fn command_that_cannot_judge_is_neither_acceptance_nor_rejection() {
    let missing = ExternalValidator { command: vec!["/nowhere/x".into()], ..settings("") };
    assert!(run(&missing, &resources()).unwrap_err().contains("cannot start"));
    let empty = ExternalValidator { command: Vec::new(), ..settings("") };
    assert_eq!(run(&empty, &resources()).unwrap_err(), "the command is empty");
    assert!(judge("kill -9 $$").unwrap_err().contains("signal: 9"));
}

#[test]
fn deadline_kills_the_whole_process_group() {
    let directory = tempfile::tempdir().unwrap();
    let noted = directory.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}; wait", noted.display());
    let short = ExternalValidator { timeout: Duration::from_millis(500), ..settings(&script) };
    let start = Instant::now();
    assert!(run(&short, &resources()).unwrap_err().contains("did not end within 500ms"));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let child: i32 = std::fs::read_to_string(&noted).unwrap().trim().parse().unwrap();
    let child = Pid::from_raw(child).unwrap();
    // The process that inherits the child removes it some time after its end.
    let is_running = || {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()));
        test_kill_process(child).is_ok() && !status.is_ok_and(|stat| stat.contains(") Z "))
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_running() && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
    assert!(!is_running(), "the child of the command still runs");
}

/// A child that keeps the standard error open does not hold the run.
#[test]
fn command_ends_with_its_first_process() {
    let start = Instant::now();
    assert_eq!(judge("sleep 600 & exit 0"), Ok(None));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn memory_of_the_command_is_limited() {
    let script = "sleep 0.2; head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null";
    let small = ExternalValidator { memory_max: 32 << 20, ..settings(script) };
    assert_ne!(run(&small, &resources()), Ok(None));
    assert_eq!(judge(script), Ok(None));
}

#[test]
fn command_does_not_see_the_environment_of_the_server() {
    assert_eq!(judge("test -z \"$CARGO_MANIFEST_DIR\" && test -n \"$PATH\""), Ok(None));
}
