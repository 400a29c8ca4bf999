//! Child processes: every error names the command, and no child outlives this process.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    net::{Ipv4Addr, TcpListener},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

/// Returns the command as a shell-like line.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs the command with inherited input and output.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("start {}", shown(command)))
}

/// Runs the command with inherited input and output. An unsuccessful exit is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs the command and returns its standard output. An unsuccessful exit is an error with the
/// standard error output.
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
        .with_context(|| format!("the output of {} is not UTF-8", shown(command)))
}

/// The result of a command with a time limit.
#[derive(Debug)]
pub(crate) enum Ran {
    /// The command succeeded.
    Succeeded,
    /// The command failed with this output.
    Failed(String),
    /// The command exceeded the time limit and was killed.
    TooLong,
}

/// Runs the command for at most `max`, and captures standard output and standard error together.
pub(crate) fn bounded(command: &mut Command, max: Duration) -> Result<Ran> {
    let mut captured = tempfile()?;
    let output = captured.try_clone().context("duplicate the output file")?;
    let errors = captured.try_clone().context("duplicate the output file")?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let mut child = command.spawn().with_context(|| format!("start {}", shown(command)))?;
    let end = Instant::now() + max;
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| shown(command))? {
            break status;
        }
        if Instant::now() > end {
            // A test is a child of cargo, so the whole process group is killed.
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
    captured
        .seek(SeekFrom::Start(0))
        .and_then(|_| captured.read_to_end(&mut text))
        .context("read output")?;
    Ok(Ran::Failed(String::from_utf8_lossy(&text).into_owned()))
}

/// Creates an unlinked file, which the kernel removes when it is closed.
fn tempfile() -> Result<File> {
    let path = std::env::temp_dir().join(format!("xtask-output-{}", std::process::id()));
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
    let file = file.with_context(|| format!("create {}", path.display()))?;
    std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    Ok(file)
}

/// Returns a command that the kernel kills when this process dies. `setpriv` replaces itself with the
/// program, so the process id stays the same.
pub(crate) fn leashed(program: &Path) -> Command {
    if !succeeds(Command::new("setpriv").args(["--pdeathsig", "KILL", "--", "true"])) {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Returns whether the command starts and succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A child process that is killed when this value is dropped. A child that was started with
/// [`leashed`] also ends if this process is killed.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    name: String,
}

impl Guard {
    /// Starts `command`. Messages refer to the child as `name`.
    pub(crate) fn spawn(name: &str, command: &mut Command) -> Result<Self> {
        // With a separate process group, Ctrl-C reaches only this process, which then stops its
        // children in order.
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", shown(command)))?;
        Ok(Self { child, name: name.to_owned() })
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the child has ended.
    pub(crate) fn expect_running(&mut self) -> Result<()> {
        match self.child.try_wait().with_context(|| format!("wait for {}", self.name))? {
            None => Ok(()),
            Some(status) => bail!("{} ended unexpectedly: {status}", self.name),
        }
    }

    /// Waits until the child ends, for at most `max`.
    pub(crate) fn wait_for(&mut self, max: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + max;
        loop {
            let ended = self.child.try_wait();
            if let Some(status) = ended.with_context(|| format!("wait for {}", self.name))? {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!("{} did not end within {} s", self.name, max.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Writes a line to the child's standard input, which is a pipe.
    pub(crate) fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.child.stdin.as_mut();
        let input = input.with_context(|| format!("{} has no input pipe", self.name))?;
        writeln!(input, "{line}").with_context(|| format!("write to {}", self.name))
    }

    /// Returns the child's standard output, if it is a pipe.
    pub(crate) fn stdout(&mut self) -> Result<std::process::ChildStdout> {
        self.child.stdout.take().with_context(|| format!("{} has no output pipe", self.name))
    }

    /// Returns the child's standard error, if it is a pipe.
    pub(crate) fn stderr(&mut self) -> Result<std::process::ChildStderr> {
        self.child.stderr.take().with_context(|| format!("{} has no error pipe", self.name))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both calls fail only if the child has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Repeats a step until it has a result, for at most `max`.
pub(crate) fn eventually<T>(
    max: Duration,
    failure: &str,
    mut step: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + max;
    loop {
        if let Some(result) = step()? {
            return Ok(result);
        }
        ensure!(Instant::now() < end, "{failure} after {} s", max.as_secs());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns free addresses of the loopback interface. All are reserved until all are known.
pub(crate) fn free_addresses<const N: usize>() -> Result<[String; N]> {
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?);
    }
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses = addresses.collect::<Result<Vec<_>>>()?;
    addresses.try_into().map_err(|_| anyhow!("the number of addresses differs"))
}
