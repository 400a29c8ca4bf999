//! One replica: a directory, and the process that serves it, if it is running.
//!
//! The replica never outlives the load test. Dropping it kills the process. The kernel also kills
//! the process when the main thread ends (`setpriv --pdeathsig`).

use std::{
    net::{SocketAddr, TcpListener},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::{
    disk::Disk,
    proxy::{Id, Network},
    ready_replicas::{Ports, ReadyReplicas},
};
use crate::{server::address, stats::count};

/// The range of replication ports, below the ports that the kernel assigns to connections.
const RAFT_PORTS: std::ops::Range<u16> = 20_000..32_000;
/// The maximum time from SIGTERM to the end of the process.
const END: Duration = Duration::from_secs(40);

/// The ways in which a replica's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The test killed it with SIGKILL.
    Killed,
    /// The process ended on its own.
    Alone(ExitStatus),
}

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) id: Id,
    pub(crate) disk: Disk,
    binary: PathBuf,
    dir: PathBuf,
    child: Option<Child>,
    ready: Arc<ReadyReplicas>,
    next_port: u16,
}

/// The parameters of a start.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// The addresses of the members to join; empty for the replica that forms the cluster.
    pub(crate) join: Vec<SocketAddr>,
    pub(crate) learner: bool,
    pub(crate) config: String,
}

impl Replica {
    /// Creates a replica without a process.
    pub(crate) fn new(
        id: Id,
        binary: &Path,
        dir: &Path,
        ready: &Arc<ReadyReplicas>,
    ) -> Result<Self> {
        let dir = dir.join(format!("replica-{id}"));
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let disk = Disk::new(dir.join("disk"))?;
        let (binary, ready) = (binary.to_owned(), Arc::clone(ready));
        // Other test processes on this machine may look for ports too.
        let spread = u16::try_from(std::process::id() % 1000).unwrap_or(0) * 10;
        let next_port = RAFT_PORTS.start + spread + u16::try_from(id)?;
        Ok(Self { id, disk, binary, dir, child: None, ready, next_port })
    }

    /// Returns the ID of the process, if there is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("chancery.log")
    }

    /// Starts the process without waiting for it.
    pub(crate) fn spawn(&mut self, network: &Network, start: &Start) -> Result<()> {
        let raft = self.free_port()?;
        let config = self.dir.join("chancery.toml");
        std::fs::write(&config, &start.config).context("write the configuration")?;
        let stderr = std::fs::File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.binary);
        command.arg("serve").arg("--config").arg(&config);
        command.arg("--data-dir").arg(self.disk.data());
        command.args(["--xds", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.args(["--raft", &raft.to_string(), "--replica-id", &self.id.to_string()]);
        command.args(["--advertise", &network.address(self.id)?.to_string()]);
        if !start.join.is_empty() {
            let join: Vec<String> = start.join.iter().map(ToString::to_string).collect();
            command.args(["--join", &join.join(",")]);
        }
        if start.learner {
            command.arg("--learner");
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        let stdout = child.stdout.take().context("the server has no output pipe")?;
        let pid = child.id().context("the server has ended already")?;
        network.place(self.id, pid, raft);
        tokio::spawn(listen(Arc::clone(&self.ready), self.id, pid, stdout));
        self.child = Some(child);
        Ok(())
    }

    fn free_port(&mut self) -> Result<SocketAddr> {
        for _ in 0..1000 {
            self.next_port = match self.next_port + 7 {
                port if RAFT_PORTS.contains(&port) => port,
                _ => RAFT_PORTS.start + u16::try_from(self.id)?,
            };
            let address = SocketAddr::from(([127, 0, 0, 1], self.next_port));
            if TcpListener::bind(address).is_ok() {
                return Ok(address);
            }
        }
        bail!("no port is free in {RAFT_PORTS:?}")
    }

    /// Sends SIGSTOP, SIGCONT, or another signal that the process may survive.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw)
        else {
            return Ok(());
        };
        kill_process(pid, signal).with_context(|| format!("signal replica {}", self.id))
    }

    /// Sends SIGKILL, and waits until the process has ended. Returns how it ended, or `None` if
    /// there was no process.
    pub(crate) async fn kill(&mut self) -> Result<Option<End>> {
        let Some(mut child) = self.child.take() else { return Ok(None) };
        if let Some(pid) = child.id() {
            self.ready.ended(self.id, pid);
        }
        let early = child.try_wait()?;
        if let Some(status) = early {
            return Ok(Some(End::Alone(status)));
        }
        child.kill().await.context("kill the server")?;
        Ok(Some(End::Killed))
    }

    /// Sends SIGTERM, and waits until the process has ended. Fails if it does not end with success
    /// in time.
    pub(crate) async fn end(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = child.id();
        let ended = timeout(END, child.wait()).await;
        if let Some(pid) = pid {
            self.ready.ended(self.id, pid);
        }
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => bail!("replica {} ended with {status} after SIGTERM", self.id),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => bail!("replica {} did not end within {END:?} after SIGTERM", self.id),
        }
    }

    /// Returns how the process ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<End>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        Ok(child.try_wait()?.map(End::Alone))
    }

    /// Removes all data. There must be no process.
    pub(crate) fn wipe(&self) -> Result<()> {
        let data = self.disk.data();
        match std::fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", data.display()))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of panics in the log.
    pub(crate) fn panics(&self) -> Result<u64> {
        let log = std::fs::read(self.log())?;
        let log = String::from_utf8_lossy(&log);
        Ok(count(log.lines().filter(|line| line.contains("panicked at")).count()))
    }

    /// Returns the end of the log.
    pub(crate) fn last_words(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(1500)..).unwrap_or_default();
        String::from_utf8_lossy(tail).trim_end().to_owned()
    }
}

impl End {
    /// Returns whether the process ended without a SIGKILL.
    pub(crate) fn is_unasked(self) -> bool {
        matches!(self, Self::Alone(status) if status.signal() != Some(9))
    }
}

/// Updates the ready replicas when the process is ready and when it has ended.
async fn listen(ready: Arc<ReadyReplicas>, id: Id, pid: u32, stdout: ChildStdout) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let (Some(xds), Some(admin)) = (address(&line, "xds"), address(&line, "admin")) {
            ready.ready(id, pid, Ports { xds, admin });
        }
    }
    ready.ended(id, pid);
}
