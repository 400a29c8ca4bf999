//! Running other programs: named in every error, and never left behind.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, Result, bail};

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs it with our own input and output.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("start {}", shown(command)))
}

/// Runs it with our own input and output; a failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs it and returns what it printed; a failure is an error with what it said.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}\n{}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} printed something else than UTF-8", shown(command)))
}

/// A command that the kernel kills when this process dies. `setpriv` becomes the program: the process
/// id stays.
pub(crate) fn leashed(program: &Path) -> Command {
    if !succeeds(Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "true"])) {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Whether the command can be run and succeeds. Its output is thrown away.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A child that ends, at the latest, when this value does. Started with [`leashed`] it ends with this
/// process, however that ends.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    name: String,
}

impl Guard {
    /// Starts `command`; `name` is what messages call it.
    pub(crate) fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        // A group of its own: Ctrl-C in a terminal reaches us alone, and we end the rest in order.
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", shown(command)))?;
        Ok(Self { child, name: name.to_owned() })
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error if it has ended.
    pub(crate) fn expect_running(&mut self) -> Result<()> {
        match self.child.try_wait().with_context(|| format!("wait for {}", self.name))? {
            None => Ok(()),
            Some(status) => bail!("{} ended by itself: {status}", self.name),
        }
    }

    /// What it prints, when it was started with a pipe.
    pub(crate) fn stdout(&mut self) -> Result<std::process::ChildStdout> {
        self.child.stdout.take().with_context(|| format!("{} has no output pipe", self.name))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only if it has ended already, which is what we want.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
