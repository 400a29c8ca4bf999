//! Running other programs: named in every error, and never left behind.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
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

/// How a bounded command ended.
#[derive(Debug)]
pub(crate) enum Ran {
    /// Well.
    Succeeded,
    /// With a failure, and this output.
    Failed(String),
    /// Not in time; it was ended.
    TooLong,
}

/// Runs it for at most so long; what it prints is kept, standard output and errors in one.
pub(crate) fn bounded(command: &mut Command, max: Duration) -> Result<Ran> {
    let mut kept = tempfile()?;
    let output = kept.try_clone().context("share a file for output")?;
    let errors = kept.try_clone().context("share a file for output")?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let mut child = command.spawn().with_context(|| format!("start {}", shown(command)))?;
    let end = Instant::now() + max;
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| shown(command))? {
            break status;
        }
        if Instant::now() > end {
            // The whole group: a test is a child of cargo.
            let group = format!("-{}", child.id());
            succeeds(Command::new("kill").args(["-KILL", "--", &group]));
            child.wait().with_context(|| shown(command))?;
            return Ok(Ran::TooLong);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.success() {
        return Ok(Ran::Succeeded);
    }
    let mut text = Vec::new();
    kept.seek(SeekFrom::Start(0))
        .and_then(|_| kept.read_to_end(&mut text))
        .context("read output")?;
    Ok(Ran::Failed(String::from_utf8_lossy(&text).into_owned()))
}

/// A file that is gone when it is closed.
fn tempfile() -> Result<File> {
    let path = std::env::temp_dir().join(format!("xtask-output-{}", std::process::id()));
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
    let file = file.with_context(|| format!("make {}", path.display()))?;
    std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    Ok(file)
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
