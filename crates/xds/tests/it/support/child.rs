//! Tests in a separate process, where they may change process-wide state.

use std::process::{Command, Output};

/// The environment variable that contains the name of the test in its own process.
const CHILD: &str = "CHANCERY_TEST_CHILD";

/// Returns whether this is the separate process of a test.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test in a separate process, after the shell command `prepare`. Returns its output.
pub(crate) fn in_child(test: &str, wrapper: &[&str], prepare: &str) -> String {
    let script = format!("{prepare} && exec \"$0\" \"$@\"");
    let words = wrapper.iter().copied().chain(["sh", "-c", script.as_str()]);
    let words: Vec<&str> = words.collect();
    let Output { status, stdout, stderr } = Command::new(words[0])
        .args(&words[1..])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success() && text.contains("1 passed"), "{text}\n{errors}");
    text
}

/// Creates a runtime with one thread: nothing is accepted while the test does not wait.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
