//! Child processes that never outlive their test.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_testing::KillOnDrop;

/// A child process. It is killed when it is dropped. Through `setpriv`, the kernel kills it when
/// the test process dies.
#[derive(Debug)]
pub(crate) struct Process {
    child: KillOnDrop,
    name: String,
}

impl Process {
    /// Starts a process with both outputs appended to `<dir>/<name>.log`.
    pub(crate) fn spawn(name: &str, dir: &Path, command: &Command) -> Result<Self> {
        let path = dir.join(format!("{name}.log"));
        let log = fs::OpenOptions::new().create(true).append(true).open(&path)?;
        let mut leashed = leashed(command);
        leashed.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = leashed.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { child: KillOnDrop(child), name: name.to_owned() })
    }

    /// Starts a process with pipes for its input and output. Standard error goes to
    /// `<dir>/<name>.log`.
    pub(crate) fn spawn_piped(name: &str, dir: &Path, command: &Command) -> Result<Self> {
        let log = fs::File::create(dir.join(format!("{name}.log")))?;
        let mut leashed = leashed(command);
        leashed.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let child = leashed.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { child: KillOnDrop(child), name: name.to_owned() })
    }

    /// Returns the child, which has the pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Fails if the process has ended.
    pub(crate) fn expect_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended by itself: {status}", self.name),
        }
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        self.child.wait().with_context(|| format!("wait for {}", self.name))?;
        Ok(())
    }

    /// Sends a signal, which is given by its name without `SIG`.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let pid = self.child.id().to_string();
        let status = Command::new("sh").args(["-c", "kill -\"$1\" \"$0\"", &pid, name]).status()?;
        if !status.success() {
            bail!("cannot send SIG{name} to {}: {status}", self.name);
        }
        Ok(())
    }

    /// Sends SIGTERM and returns the exit status.
    pub(crate) fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal("TERM")?;
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        bail!("{} still runs {timeout:?} after SIGTERM", self.name)
    }
}

/// Returns the same command, started so that the kernel kills it when the thread that started it
/// ends. `setpriv` (util-linux, always present on Debian) executes the command in its own process,
/// so that the process ID stays the same.
fn leashed(command: &Command) -> Command {
    let mut leashed = Command::new("setpriv");
    leashed.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => leashed.env(name, value),
            None => leashed.env_remove(name),
        };
    }
    leashed
}

/// Returns the directory in which `cargo xtask setup` installed the clients.
pub(crate) fn installed() -> Result<PathBuf> {
    let clients = match env::var_os("CHANCERY_CLIENTS") {
        Some(dir) => PathBuf::from(dir),
        None => env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
            .context("neither XDG_CACHE_HOME nor HOME is set")?
            .join("chancery/clients"),
    };
    expect_installed(&clients)?;
    Ok(clients)
}

/// Fails if the installation in this directory is not complete.
pub(crate) fn expect_installed(dir: &Path) -> Result<()> {
    if !dir.join("complete").is_file() {
        bail!("no real clients in {}: run `cargo xtask setup` first", dir.display());
    }
    Ok(())
}

/// Returns the path of the Python with Envoy and grpcio.
pub(crate) fn python() -> Result<PathBuf> {
    Ok(installed()?.join("bin/python"))
}

/// Returns the path of a script of the tests.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}
