//! Real proxyless gRPC clients, and the servers that they call.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{ChildStdin, Command},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    STEP,
    process::{Process, expect_installed, installed, python, script},
    report, wait_for,
};

/// How long a script may take for one answer; the start of Python with grpc is the slowest of them.
const ANSWER: Duration = Duration::from_secs(20);

/// A script that answers each line of input with one line.
#[derive(Debug)]
struct Script {
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
    // Last: the script ends after its pipes are closed.
    process: Process,
}

impl Script {
    fn start(name: &str, dir: &Path, command: &Command) -> Result<Self> {
        let mut process = Process::spawn_piped(name, dir, command)?;
        let stdin = process.child().stdin.take().context("no pipe to the script")?;
        let stdout = process.child().stdout.take().context("no pipe from the script")?;
        // Holds 16 lines; the script waits when it is full. It never writes more than one unasked.
        let (sender, lines) = mpsc::sync_channel(16);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { stdin, lines, process })
    }

    fn answer(&mut self) -> Result<Value> {
        let line = self.lines.recv_timeout(ANSWER).context("the script does not answer")?;
        serde_json::from_str(&line).with_context(|| format!("the script said {line:?}"))
    }

    fn ask(&mut self, what: &str) -> Result<Value> {
        self.process.expect_running()?;
        writeln!(self.stdin, "{what}").context("write to the script")?;
        self.answer()
    }
}

/// A gRPC server that answers with its name.
#[derive(Debug)]
pub(crate) struct GrpcServer {
    pub(crate) port: u16,
    _script: Script,
}

impl GrpcServer {
    pub(crate) fn start(dir: &Path, name: &str) -> Result<Self> {
        let mut command = Command::new(python()?);
        command.arg(script("grpc_server.py")).args(["--name", name]);
        let mut script = Script::start(&format!("grpc-server-{name}"), dir, &command)?;
        let ready = script.answer()?;
        let port = ready["port"].as_u64().with_context(|| format!("no port in {ready}"))?;
        Ok(Self { port: u16::try_from(port)?, _script: script })
    }

    /// One that serves on `port` as the server at `xds` tells it to.
    pub(crate) fn start_by_xds(dir: &Path, name: &str, port: u16, xds: u16) -> Result<Self> {
        let node = format!("grpc-server-{name}");
        let mut command = Command::new(python()?);
        command
            .arg(script("grpc_server.py"))
            .args(["--name", name, "--xds-port", &port.to_string()])
            .env("GRPC_XDS_BOOTSTRAP", bootstrap(dir, &node, xds)?);
        let mut script = Script::start(&node, dir, &command)?;
        script.answer()?;
        Ok(Self { port, _script: script })
    }
}

/// The bootstrap of a node that finds the server at `xds`, in a file.
fn bootstrap(dir: &Path, node: &str, xds: u16) -> Result<PathBuf> {
    let path = dir.join(format!("{node}.json"));
    let bootstrap = json!({
        "xds_servers": [{
            "server_uri": format!("127.0.0.1:{xds}"),
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }],
        "node": {"id": node, "cluster": "e2e", "locality": {"region": "r", "zone": "z"}},
        "server_listener_resource_name_template":
            "grpc/server?xds.resource.listening_address=%s",
    });
    fs::write(&path, bootstrap.to_string())?;
    Ok(path)
}

/// An implementation of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// C-core, by grpcio.
    Python,
    /// grpc-js.
    Node,
    /// grpc-go.
    Go,
}

impl Kind {
    /// Why it can not be run on this machine, if `cargo xtask setup` has found it so.
    pub(crate) fn absence(self) -> Result<Option<String>> {
        let absent = installed()?.join("go/absent");
        match self {
            Self::Go if absent.is_file() => Ok(Some(fs::read_to_string(absent)?)),
            _ => Ok(None),
        }
    }

    /// Whether a call failed by a fault of the client's own that no server can avoid.
    fn is_own_fault(self, reason: &str) -> bool {
        // grpc-go takes a new route into use an instant before the picker that knows its cluster
        // (`clientconn.go`: the config selector is swapped before the balancer is told).
        self == Self::Go && reason.contains("unknown cluster selected for RPC")
    }

    /// A client that calls what its targets name.
    fn command(self, targets: &[String]) -> Result<Command> {
        let mut command;
        match self {
            Self::Python => {
                command = Command::new(python()?);
                command.arg(script("grpc_client.py"));
                command.args(targets.iter().flat_map(|target| ["--target", target]));
            }
            Self::Node => {
                let dir = installed()?.join("js");
                expect_installed(&dir)?;
                command = Command::new("node");
                command.arg(script("grpc_client.js")).args(targets);
                command.env("NODE_PATH", dir.join("node_modules"));
            }
            Self::Go => {
                let dir = installed()?.join("go");
                expect_installed(&dir)?;
                command = Command::new(dir.join("grpc-client"));
                command.args(targets);
            }
        }
        Ok(command)
    }
}

/// A client that calls all the time, through one channel.
#[derive(Debug)]
pub(crate) struct GrpcClient {
    kind: Kind,
    script: Script,
    /// Calls that failed by the client's own fault.
    n_own_faults: u64,
}

impl GrpcClient {
    /// Dials `xds:///<service>` as `node`.
    pub(crate) fn start(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        service: &str,
    ) -> Result<Self> {
        Self::start_to(dir, kind, node, xds, &[service])
    }

    /// Dials all of these, each through a channel of its own.
    pub(crate) fn start_to(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        services: &[&str],
    ) -> Result<Self> {
        let targets: Vec<_> = services.iter().map(|service| format!("xds:///{service}")).collect();
        let mut command = kind.command(&targets)?;
        command.env("GRPC_XDS_BOOTSTRAP", bootstrap(dir, node, xds)?);
        Ok(Self { kind, script: Script::start(node, dir, &command)?, n_own_faults: 0 })
    }

    /// What came of the calls since the last question: `answers` by name, `failed` by reason. Faults of
    /// the client's own are counted apart.
    pub(crate) fn take(&mut self) -> Result<GrpcTally> {
        let tally = self.script.ask("take")?;
        let counts = |field: &str| {
            let map = tally[field].as_object().with_context(|| format!("no {field} in {tally}"))?;
            Ok::<Vec<_>, anyhow::Error>(
                map.iter().map(|(name, n)| (name.clone(), n.as_u64().unwrap_or(0))).collect(),
            )
        };
        let (own, failed): (Vec<_>, Vec<_>) =
            counts("failed")?.into_iter().partition(|(reason, _)| self.kind.is_own_fault(reason));
        self.n_own_faults += own.iter().map(|(_, n)| n).sum::<u64>();
        Ok(GrpcTally { answers: counts("answers")?, failed })
    }

    /// An error if more calls than these failed by the client's own fault.
    pub(crate) fn expect_own_faults(&self, n_max: u64) -> Result<()> {
        if self.n_own_faults > 0 {
            report(&format!("{:?}: {} calls failed in the client", self.kind, self.n_own_faults));
        }
        if self.n_own_faults > n_max {
            bail!("{} calls failed in the client, at most {n_max} can", self.n_own_faults);
        }
        Ok(())
    }

    /// Waits until calls are answered by `name` alone. Not one may fail meanwhile.
    pub(crate) fn wait_for_only(&mut self, name: &str) -> Result<()> {
        let mut failed = None;
        wait_for(&format!("only {name:?} from gRPC"), STEP, || {
            thread::sleep(Duration::from_millis(90));
            let tally = self.take()?;
            if !tally.failed.is_empty() {
                failed = Some(tally);
                return Ok(Some(()));
            }
            let is_only = tally.answers.len() == 1 && tally.answers[0].0 == name;
            Ok(is_only.then_some(()))
        })?;
        match failed {
            Some(tally) => bail!("calls failed: {tally:?}"),
            None => Ok(()),
        }
    }

    /// Waits until calls fail, and none is answered any more; returns the reasons.
    pub(crate) fn wait_for_failures(&mut self) -> Result<Vec<(String, u64)>> {
        wait_for("calls to fail", STEP, || {
            thread::sleep(Duration::from_millis(90));
            let tally = self.take()?;
            Ok((tally.answers.is_empty() && !tally.failed.is_empty()).then_some(tally.failed))
        })
    }

    /// Waits until calls are answered again, whatever fails before.
    pub(crate) fn wait_for_recovery(&mut self, name: &str) -> Result<()> {
        wait_for("calls to be answered again", STEP, || {
            thread::sleep(Duration::from_millis(90));
            let tally = self.take()?;
            Ok((tally.failed.is_empty() && tally.answers.iter().any(|(it, _)| it == name))
                .then_some(()))
        })
    }

    /// Waits for `n` more answers; not one call may fail meanwhile.
    pub(crate) fn wait_for_more(&mut self, n: u64) -> Result<()> {
        let mut n_answered = 0;
        let mut failed = Vec::new();
        wait_for(&format!("{n} more answers from gRPC"), STEP, || {
            let tally = self.take()?;
            failed.extend(tally.failed);
            n_answered += tally.answers.iter().map(|(_, n)| n).sum::<u64>();
            Ok((n_answered >= n || !failed.is_empty()).then_some(()))
        })?;
        if !failed.is_empty() {
            bail!("calls failed: {failed:?}");
        }
        Ok(())
    }
}

/// What came of calls.
#[derive(Debug)]
pub(crate) struct GrpcTally {
    pub(crate) answers: Vec<(String, u64)>,
    pub(crate) failed: Vec<(String, u64)>,
}
