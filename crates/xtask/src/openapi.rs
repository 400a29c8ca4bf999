//! `cargo xtask openapi`: requests that schemathesis generates from `/v1/openapi.json`, to a real replica.
//!
//! schemathesis fails if an answer is not as the description says, if the replica fails at an input, or if it accepts
//! what the description forbids.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{
    demo::{log, log_tail, logged, without_settings},
    paths::Paths,
    proc::{self, Guard},
    say::say,
    setup,
};

/// The settings of schemathesis, such as the checks that it leaves out.
const SETTINGS: &str = "crates/xtask/src/openapi/schemathesis.toml";
/// The number of generated requests for each operation.
const EXAMPLES: u32 = 50;
const NAME: &str = "chancery";
/// The first words of the line that `serve` prints when it is ready.
const READY: &str = "chancery ready ";
const START_MAX: Duration = Duration::from_secs(60);

/// Runs schemathesis against a new replica.
pub(crate) fn run(paths: &Paths, program: &Path) -> Result<()> {
    let schemathesis = setup::schemathesis(paths)?;
    let program = program.canonicalize().context("find the program")?;
    let dir = paths.target.join(format!("openapi-{}", std::process::id()));
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let [xds, admin, raft] = proc::free_addresses()?;
    let mut serve = proc::leashed(&program);
    without_settings(&mut serve);
    serve.current_dir(&dir).args(["serve", "--data-dir", "data", "--xds", &xds]);
    serve.args(["--admin", &admin, "--raft", &raft]).stdin(Stdio::null());
    let mut replica = Guard::spawn(NAME, logged(&mut serve, &dir, NAME)?)?;
    proc::eventually(START_MAX, "chancery is not ready", || {
        replica.expect_running().with_context(|| log_tail(&dir, NAME))?;
        Ok(log(&dir, NAME).contains(READY).then_some(()))
    })?;
    let mut check = Command::new(schemathesis);
    check.current_dir(&dir).arg("--config-file").arg(paths.root.join(SETTINGS)).arg("run");
    check.args(["--max-examples", &EXAMPLES.to_string()]);
    let status = proc::status(check.arg(format!("http://{admin}/v1/openapi.json")))?;
    replica.expect_running().with_context(|| log_tail(&dir, NAME))?;
    ensure!(
        status.success(),
        "answers differ from /v1/openapi.json; the log of the replica is in {}",
        dir.display()
    );
    drop(replica);
    say!("all answers are as /v1/openapi.json says");
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
}
