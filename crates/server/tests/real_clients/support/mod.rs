//! The building blocks of the tests: processes, load, manifests, and waiting for a state.

use std::{
    fs,
    io::Write as _,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

pub(crate) mod chancery;
pub(crate) mod envoy;
pub(crate) mod grpc;
pub(crate) mod held;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod manifests;
pub(crate) mod process;
pub(crate) mod switch;
pub(crate) mod tap;
pub(crate) mod tls;
pub(crate) mod upstream;

/// The maximum duration of a step that takes well under a second on a quiet machine.
pub(crate) const STEP: Duration = Duration::from_secs(60);

/// Calls `ask` every few milliseconds until it returns an answer. An error of `ask` counts as "not
/// yet", and the last one becomes part of the message.
pub(crate) fn wait_for<T>(
    what: &str,
    timeout: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let answer = ask();
        match answer {
            Ok(Some(answer)) => return Ok(answer),
            _ if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            Ok(None) => bail!("waited {timeout:?} for {what}"),
            Err(error) => {
                return Err(error).with_context(|| format!("waited {timeout:?} for {what}"));
            }
        }
    }
}

/// Runs a test in its own directory. If the test fails, shows the end of every log in the
/// directory.
pub(crate) fn in_directory(test: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("chancery-e2e-").tempdir()?;
    let result = test(dir.path());
    if result.is_err() {
        let entries = |dir: &Path| Ok::<_, std::io::Error>(fs::read_dir(dir)?.flatten());
        let mut logs: Vec<_> = entries(dir.path())?.map(|entry| entry.path()).collect();
        // Each of several replicas has a directory of its own.
        for dir in logs.clone().iter().filter(|path| path.is_dir()) {
            logs.extend(entries(dir)?.map(|entry| entry.path()));
        }
        logs.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        for log in logs {
            let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
            let cut = |line: &str| line.chars().take(400).collect::<String>();
            let lines: Vec<String> = text.lines().map(cut).collect();
            report(&format!("---- end of {} ----", log.display()));
            report(&lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
    result
}

/// Writes a line to the output of the test.
pub(crate) fn report(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}
