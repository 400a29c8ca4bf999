//! Commands that accept, reject, fail, do not end, and take too much.

use bytes::Bytes;
use chancery_admission::{Manifest, Options, admit};
use chancery_model::{ScopeName, TypeUrl, types};
use rustix::process::test_kill_process;

use super::*;
use crate::external::{settings::ExternalInput, stderr_tail::SHOWN_BYTES_MAX};

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

fn run_with(settings: &ExternalValidator) -> Result<Option<String>, String> {
    run(settings, &resources(), &CancellationToken::new())
}

fn judge(script: &str) -> Result<Option<String>, String> {
    run_with(&settings(script))
}

#[test]
fn command_gets_the_input_as_file_and_as_standard_input() {
    assert_eq!(judge(r#"grep -q ',{"name":"a"}\],"listeners"'"#), Ok(None));
    assert_eq!(judge(r#"grep -q ',{"name":"a"}\],"listeners"' {file}"#), Ok(None));
    assert_eq!(judge("test $(stat -c %a {file}) = 600"), Ok(None), "others cannot read the file");
    let rejected = judge("test -e {file} && echo {file} >&2; exit 1").unwrap().unwrap();
    let path = rejected.rsplit(' ').next().unwrap();
    assert!(path.starts_with('/') && !std::path::Path::new(path).exists(), "{rejected}");
}

#[test]
fn rejection_has_the_end_of_what_the_command_says() {
    let said = judge("echo first >&2; echo 'the  reason' >&2; exit 3").unwrap().unwrap();
    assert_eq!(said, "first; the  reason");
    let long = judge("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1");
    let long = long.unwrap().unwrap();
    assert!(long.ends_with("xxend") && long.len() <= SHOWN_BYTES_MAX, "{}", long.len());
    let silent = judge("exit 1").unwrap().unwrap();
    assert_eq!(silent, "(exit status: 1)");
}

#[test]
fn command_that_cannot_judge_is_neither_acceptance_nor_rejection() {
    let missing = ExternalValidator { command: vec!["/nowhere/x".into()], ..settings("") };
    assert!(run_with(&missing).unwrap_err().contains("cannot start"));
    let empty = ExternalValidator { command: Vec::new(), ..settings("") };
    assert_eq!(run_with(&empty).unwrap_err(), "the command is empty");
    assert!(judge("kill -9 $$").unwrap_err().contains("signal: 9"));
}

#[test]
fn deadline_kills_the_whole_process_group() {
    let directory = tempfile::tempdir().unwrap();
    let noted = directory.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}; wait", noted.display());
    // The command must start its child before the timeout. A slow machine needs a longer one.
    let start = Instant::now();
    let timeouts = [500, 2_000, 20_000].map(Duration::from_millis);
    let has_started = timeouts.into_iter().any(|timeout| {
        let short = ExternalValidator { timeout, ..settings(&script) };
        let text = format!("did not end within {timeout:?}");
        assert!(run_with(&short).unwrap_err().contains(&text));
        read_pid(&noted).is_some()
    });
    assert!(has_started, "the command did not start its child");
    assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
    assert_ends(&noted);
}

/// Asserts that the process whose ID the file contains ends.
fn assert_ends(noted: &Path) {
    let pid = read_pid(noted).unwrap();
    // The process that inherits an orphan removes it some time after its end.
    let is_running = || {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        test_kill_process(pid).is_ok() && !status.is_ok_and(|stat| stat.contains(") Z "))
    };
    assert!(within(|| !is_running()), "process {pid:?} still runs");
}

fn read_pid(noted: &Path) -> Option<Pid> {
    std::fs::read_to_string(noted).ok()?.trim().parse().ok().and_then(Pid::from_raw)
}

/// Waits until a condition is met, and returns whether it is.
fn within(mut is_met: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_met() && Instant::now() < deadline {
        thread::sleep(LOOK);
    }
    is_met()
}

#[test]
fn run_that_is_stopped_leaves_no_process_and_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let (noted, input) = (directory.path().join("pid"), directory.path().join("input"));
    let settings = settings(&format!(
        "echo {{file}} > {}; echo $$ > {}; exec sleep 600",
        input.display(),
        noted.display()
    ));
    let stop = CancellationToken::new();
    let stopped = thread::scope(|scope| {
        let run = scope.spawn(|| run(&settings, &resources(), &stop));
        assert!(within(|| read_pid(&noted).is_some()));
        stop.cancel();
        run.join().unwrap()
    });
    assert_eq!(stopped.unwrap_err(), "the replica is shutting down");
    assert_ends(&noted);
    let input = std::fs::read_to_string(&input).unwrap();
    assert!(input.contains("/chancery-validate-") && !Path::new(input.trim()).exists(), "{input}");
}

/// The role of a server in [`server_that_is_killed_leaves_no_process_and_no_file`].
#[test]
#[ignore = "another test starts this one as a process of its own"]
fn hanging_run() {
    let Some(directory) = std::env::var_os("HANGING_RUN") else { return };
    let directory = Path::new(&directory).display();
    let script =
        format!("sleep 600 & echo $! > {directory}/child; echo $$ > {directory}/pid; wait");
    drop(judge(&script));
}

#[test]
fn server_that_is_killed_leaves_no_process_and_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let inputs = tempfile::tempdir().unwrap();
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "external::run::tests::hanging_run", "--ignored"])
        .env("HANGING_RUN", directory.path())
        .env("TMPDIR", inputs.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (noted, child) = (directory.path().join("pid"), directory.path().join("child"));
    let is_running = within(|| read_pid(&noted).is_some());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(is_running);
    assert_ends(&noted);
    assert_ends(&child);
    let is_empty = || std::fs::read_dir(inputs.path()).unwrap().next().is_none();
    assert!(within(is_empty), "the input still exists");
}

/// A process outside of the group keeps the standard error open.
#[test]
fn text_is_shown_although_a_process_keeps_the_standard_error_open() {
    let directory = tempfile::tempdir().unwrap();
    let noted = directory.path().join("pid");
    let script = format!(
        "setsid sh -c 'echo $$ > {0}; exec sleep 20' & while ! test -s {0}; do sleep 0.01; done; echo bad >&2; exit 1",
        noted.display()
    );
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let readers = || {
        let names = threads().map(|it| std::fs::read_to_string(it.path().join("comm")));
        names.filter(|name| name.as_deref().is_ok_and(|name| name.trim() == "external")).count()
    };
    let start = Instant::now();
    assert_eq!(judge(&script).unwrap().as_deref(), Some("bad"));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(readers(), 0);
    rustix::process::kill_process(read_pid(&noted).unwrap(), Signal::KILL).unwrap();
}

/// Neither the values of the input nor a key whose header has been cut off are shown.
#[test]
fn secrets_of_the_input_are_not_shown() {
    let json = r#"{"resources": [{
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "name": "oauth",
        "generic_secret": {"secret": {"inline_string": "q9Zx-7Jv!mW2"}}
    }]}"#;
    let manifest = Manifest { file: "a.json".to_owned(), content: json.to_owned() };
    let transaction =
        admit(&[manifest], &Options::new(ScopeName::new("default").unwrap())).unwrap();
    let draft = transaction.upserts.into_iter().next().unwrap().draft;
    let resources = [(draft.key.type_url, draft.body)];
    let shown = |script: &str| {
        run(&settings(script), &resources, &CancellationToken::new()).unwrap().unwrap()
    };
    let said = shown("cat {file} >&2; echo ': wrong timeout' >&2; exit 1");
    assert!(!said.contains("q9Zx") && said.contains(r#"oauth"#), "{said}");
    assert!(said.contains("[redacted]") && said.ends_with(": wrong timeout"), "{said}");
    let line = "aB3/".repeat(16);
    let key = format!(
        "echo '-----BEGIN PRIVATE KEY-----' >&2; for i in $(seq 60); do echo {line} >&2; done; echo wrong >&2; exit 1"
    );
    let said = shown(&key);
    assert!(!said.contains("aB3/") && said.contains("[redacted]"), "{said}");
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
    // The memory limit takes effect shortly after the command starts, so the script waits for it.
    let script = "while test $(ulimit -d) = unlimited; do sleep 0.01; done; \
                  head -c 200000000 /dev/zero | tail -c 200000000 > /dev/null";
    let small = ExternalValidator { memory_max: 32 << 20, ..settings(script) };
    assert_ne!(run_with(&small), Ok(None));
    assert_eq!(judge(script), Ok(None));
}

#[test]
fn command_does_not_see_the_environment_of_the_server() {
    assert_eq!(judge("test -z \"$CARGO_MANIFEST_DIR\" && test -n \"$PATH\""), Ok(None));
}
