//! The server under test: the real binary, on free ports, in its own directory.
//!
//! The server never outlives the load test. Dropping it kills the process. The kernel also kills
//! the process when the thread that started it ends (`setpriv --pdeathsig`). Servers must therefore
//! be started on the main thread.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{host::Cpu, metrics::Metrics, process::Process};

/// The maximum duration of a start: 100,000 resources, in a debug build, on a busy machine.
const START: Duration = Duration::from_secs(120);
/// The maximum time from SIGTERM to the end of the process. Its streams drain first.
const END: Duration = Duration::from_secs(60);
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const HTTP: Duration = Duration::from_secs(30);

/// The parameters of a start. The data stay between starts.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    binary: PathBuf,
    dir: PathBuf,
    cpu: Option<Cpu>,
    ports: Ports,
    /// The limit of open files; `None` for that of this process.
    files: Option<u64>,
}

/// The addresses on which a server listens. Port 0 means any free port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) xds: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) raft: SocketAddr,
}

/// A server that may not be ready yet.
#[derive(Debug)]
pub(crate) struct Starting {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    since: Instant,
    log: PathBuf,
}

/// A server that is ready.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Kept open, so that the server can continue to print.
    _lines: Lines<BufReader<ChildStdout>>,
    process: Process,
    pub(crate) xds: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// The time from the start of the process to its ready line.
    pub(crate) started_in: Duration,
}

impl Ports {
    const ANY: Self = Self { xds: ANY_PORT, admin: ANY_PORT, raft: ANY_PORT };
}

impl Launch {
    /// Creates `dir` and writes the configuration. The data and the log are also in `dir`.
    pub(crate) fn new(binary: &Path, dir: &Path, cpu: Option<Cpu>, config: &str) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let (binary, dir, ports) = (binary.to_owned(), dir.to_owned(), Ports::ANY);
        let launch = Self { binary, dir, cpu, ports, files: None };
        let path = launch.config();
        std::fs::write(&path, config).with_context(|| format!("write {}", path.display()))?;
        Ok(launch)
    }

    /// Uses the same ports for each start.
    pub(crate) fn at(self, ports: Ports) -> Self {
        Self { ports, ..self }
    }

    /// Limits the number of open files.
    pub(crate) fn with_files(self, files: Option<u64>) -> Self {
        Self { files, ..self }
    }

    /// Returns the data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn config(&self) -> PathBuf {
        self.dir.join("chancery.toml")
    }

    /// Starts the process without waiting for it.
    pub(crate) fn spawn(&self) -> Result<Starting> {
        let log = self.dir.join("chancery.log");
        let stderr = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        // These programs (util-linux) replace themselves by the next one, so the process ID stays
        // the same.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(cpu) = self.cpu {
            command.args(["taskset", "--cpu-list", &cpu.to_string()]);
        }
        if let Some(files) = self.files {
            command.args(["prlimit", &format!("--nofile={files}:{files}"), "--"]);
        }
        command.arg(&self.binary).args(["serve", "--config"]).arg(self.config());
        command.arg("--data-dir").arg(self.data());
        let Ports { xds, admin, raft } = self.ports;
        for (flag, address) in [("--xds", xds), ("--admin", admin), ("--raft", raft)] {
            command.args([flag, &address.to_string()]);
        }
        let since = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        let stdout = child.stdout.take().context("the server has no output pipe")?;
        Ok(Starting { child, lines: BufReader::new(stdout).lines(), since, log })
    }

    /// Starts the process and waits until it is ready.
    pub(crate) async fn start(&self) -> Result<Server> {
        self.spawn()?.ready().await
    }
}

impl Starting {
    /// Waits for the ready line, which has the addresses.
    pub(crate) async fn ready(mut self) -> Result<Server> {
        match timeout(START, self.addresses()).await {
            Ok(Ok((xds, admin))) => {
                let started_in = self.since.elapsed();
                let pid = self.child.id().context("the server has ended already")?;
                let process = Process::new(pid);
                let Self { child, lines: _lines, .. } = self;
                Ok(Server { child, _lines, process, xds, admin, started_in })
            }
            Ok(Err(error)) => Err(error.context(self.last_words())),
            Err(_) => bail!("the server was not ready after {START:?}; {}", self.last_words()),
        }
    }

    async fn addresses(&mut self) -> Result<(SocketAddr, SocketAddr)> {
        while let Some(line) = self.lines.next_line().await? {
            if let (Some(xds), Some(admin)) = (address(&line, "xds"), address(&line, "admin")) {
                return Ok((xds, admin));
            }
        }
        bail!("the server ended: {}", self.child.wait().await?)
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("kill the server")
    }

    fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let tail = log.get(log.len().saturating_sub(2000)..).unwrap_or_default();
        format!("its log ends with:\n{}", String::from_utf8_lossy(tail).trim_end())
    }
}

impl Server {
    /// Returns the process, as the kernel identifies it.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Sends SIGTERM, and waits until the process has ended with success.
    pub(crate) async fn terminate(mut self) -> Result<()> {
        self.process.terminate()?;
        let Ok(status) = timeout(END, self.child.wait()).await else {
            bail!("the server did not end within {END:?} after SIGTERM");
        };
        let status = status.context("wait for the end of the server")?;
        ensure!(status.success(), "after SIGTERM the server ended with {status}");
        Ok(())
    }

    /// Reads the metrics of the server.
    pub(crate) async fn metrics(&self) -> Result<Metrics> {
        let page = timeout(HTTP, get(self.admin, "/metrics")).await.context("get /metrics")??;
        Ok(Metrics::new(page))
    }

    /// Sends SIGKILL, and waits until the process has ended.
    pub(crate) async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("kill the server")
    }
}

/// Returns the address after `word` in the ready line.
pub(crate) fn address(line: &str, word: &str) -> Option<SocketAddr> {
    let mut words = line.split([' ', '=', ',', ';', '\t']).filter(|it| !it.is_empty());
    words.find(|it| it.trim_end_matches(':') == word)?;
    words.find_map(|it| it.trim_start_matches("http://").parse().ok())
}

/// Returns the body of a page. With HTTP/1.0, the body comes in one piece and the server closes the
/// connection.
pub(crate) async fn get(at: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(at).await.with_context(|| format!("connect to {at}"))?;
    let request = format!("GET {path} HTTP/1.0\r\nhost: {at}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer).with_context(|| format!("{path} is not text"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.lines().next().is_some_and(|line| line.contains(" 200 ")) => {
            Ok(body.to_owned())
        }
        _ => bail!(
            "GET {path} returned {:?} instead of status 200",
            answer.lines().next().unwrap_or_default()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_from_ready_line() {
        let port = |line: &str, word| address(line, word).map(|at| at.port());
        for line in [
            "ready: xds=127.0.0.1:1 admin=127.0.0.1:2 raft=127.0.0.1:3",
            "chancery is ready: xds 127.0.0.1:1, admin http://127.0.0.1:2, raft 127.0.0.1:3",
        ] {
            assert_eq!((port(line, "xds"), port(line, "admin")), (Some(1), Some(2)), "{line}");
        }
        assert_eq!(port("starting, xds follows", "xds"), None);
    }
}
