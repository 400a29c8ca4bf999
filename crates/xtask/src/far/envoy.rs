//! A real Envoy, and requests through it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{lab::Lab, scenario::NOTHING};
use crate::{
    demo::{ENVOY, log_tail},
    http,
    proc::{self, Guard, leashed},
};

/// Starts an Envoy with a bootstrap.
pub(super) fn start(lab: &Lab<'_>, bootstrap: &Path) -> Result<Guard> {
    let mut envoy = leashed(&lab.paths.clients.join("bin/python"));
    envoy.args(["-c", ENVOY, "--disable-hot-restart", "--concurrency", "1", "-c"]);
    lab.spawn("envoy", envoy.arg(bootstrap))
}

/// Returns the path of the program itself, for istio-agent.
pub(super) fn binary(lab: &Lab<'_>) -> Result<PathBuf> {
    let find = "import envoy, os; print(os.path.join(list(envoy.__path__)[0], '_bin', 'envoy'))";
    let python = lab.paths.clients.join("bin/python");
    Ok(PathBuf::from(proc::output(Command::new(python).args(["-c", find]))?.trim()))
}

/// Returns the answer to a request for `host` through an Envoy that listens on `port`, while `process` runs.
pub(super) fn ask(
    lab: &Lab<'_>,
    (name, process): (&str, &mut Guard),
    port: &str,
    host: &str,
) -> Result<String> {
    process.expect_running().with_context(|| log_tail(&lab.dir, name))?;
    let answer = http::get_from(&format!("127.0.0.1:{port}"), host, "/");
    let answer = answer.ok().filter(|answer| answer.status == 200);
    Ok(answer.map_or_else(|| NOTHING.to_owned(), |answer| answer.body))
}
