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
use prost::Message as _;
use serde_json::{Value, json};

use super::{
    STEP,
    process::{Process, expect_installed, installed, python, script},
    report, wait_for,
};

/// The maximum time for an answer of a script. The slowest answer is the start of Python with grpc.
const ANSWER: Duration = Duration::from_secs(60);

/// A script that answers each line of input with one line.
#[derive(Debug)]
pub(crate) struct Script {
    stdin: ChildStdin,
    lines: mpsc::Receiver<String>,
    // The last field: the script ends after its pipes are closed.
    process: Process,
}

impl Script {
    pub(crate) fn start(name: &str, dir: &Path, command: &Command) -> Result<Self> {
        let mut process = Process::spawn_piped(name, dir, command)?;
        let stdin = process.child().stdin.take().context("no pipe to the script")?;
        let stdout = process.child().stdout.take().context("no pipe from the script")?;
        // The channel holds 16 lines, and the script waits when it is full. The script writes at
        // most one line without a request.
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

    pub(crate) fn answer(&mut self) -> Result<Value> {
        let line = self.lines.recv_timeout(ANSWER).context("the script does not answer")?;
        serde_json::from_str(&line).with_context(|| format!("the script printed {line:?}"))
    }

    pub(crate) fn ask(&mut self, what: &str) -> Result<Value> {
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

    /// Starts a server that serves on `port` with the configuration of the server at `xds`.
    pub(crate) fn start_by_xds(dir: &Path, name: &str, port: u16, xds: u16) -> Result<Self> {
        let node = format!("grpc-server-{name}");
        let mut command = Command::new(python()?);
        command
            .arg(script("grpc_server.py"))
            .args(["--name", name, "--xds-port", &port.to_string()])
            .env("GRPC_XDS_BOOTSTRAP", bootstrap(dir, &node, xds, &json!({}))?);
        let mut script = Script::start(&node, dir, &command)?;
        script.answer()?;
        Ok(Self { port, _script: script })
    }
}

/// A source of MCP by grpcio.
#[derive(Debug)]
pub(crate) struct McpSource {
    pub(crate) port: u16,
    script: Script,
}

impl McpSource {
    /// Starts a source that connects to a sink at this port.
    pub(crate) fn connect(dir: &Path, port: u16) -> Result<Self> {
        let mut command = Command::new(python()?);
        command.arg("-B").arg(script("mcp_source.py")).arg(format!("127.0.0.1:{port}"));
        Ok(Self { port, script: Script::start("mcp-source", dir, &command)? })
    }

    /// Starts a source that listens.
    pub(crate) fn listen(dir: &Path) -> Result<Self> {
        let mut command = Command::new(python()?);
        command.arg("-B").arg(script("mcp_source.py"));
        let mut script = Script::start("mcp-source", dir, &command)?;
        let ready = script.answer()?;
        let port = ready["port"].as_u64().with_context(|| format!("no port in {ready}"))?;
        Ok(Self { port: u16::try_from(port)?, script })
    }

    /// Returns the next request of the sink.
    pub(crate) fn request(&mut self) -> Result<Value> {
        self.script.answer()
    }

    /// Sends a message, and returns the answer of the sink.
    pub(crate) fn send(&mut self, message: &Value) -> Result<Value> {
        self.script.ask(&message.to_string())
    }
}

/// Writes the bootstrap of a node that connects to the server at `xds`, and returns its path. Names of
/// `authorities` come from the same server.
fn bootstrap(dir: &Path, node: &str, xds: u16, authorities: &Value) -> Result<PathBuf> {
    let server = json!({
        "server_uri": format!("127.0.0.1:{xds}"),
        "channel_creds": [{"type": "insecure"}],
        "server_features": ["xds_v3"],
    });
    bootstrap_of(dir, node, &server, authorities)
}

/// Writes the bootstrap of a node that connects to `server`, and returns its path.
fn bootstrap_of(dir: &Path, node: &str, server: &Value, authorities: &Value) -> Result<PathBuf> {
    let path = dir.join(format!("{node}.json"));
    let bootstrap = json!({
        "xds_servers": [server],
        "node": {"id": node, "cluster": "e2e", "locality": {"region": "r", "zone": "z"}},
        "server_listener_resource_name_template":
            "grpc/server?xds.resource.listening_address=%s",
        "authorities": authorities,
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
    /// Returns the reason why this kind cannot run on this machine, as found by `cargo xtask
    /// setup`.
    pub(crate) fn absence(self) -> Result<Option<String>> {
        let absent = installed()?.join("go/absent");
        match self {
            Self::Go if absent.is_file() => Ok(Some(fs::read_to_string(absent)?)),
            _ => Ok(None),
        }
    }

    /// Returns whether a call failed because of a fault of the client that no server can avoid.
    fn is_own_fault(self, reason: &str) -> bool {
        match self {
            Self::Python => false,
            // If an ADS stream ends with an error, grpc-js fails the calls that wait for a new cluster, because
            // `xds-client.js` does not record that the stream has received a response.
            Self::Node => reason.ends_with("Connection dropped"),
            // grpc-go applies a new route shortly before the picker with the cluster of the route
            // (`clientconn.go` replaces the config selector before it updates the balancer).
            Self::Go => reason.contains("unknown cluster selected for RPC"),
        }
    }

    /// Returns the command of a client that calls its targets.
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

/// A client that makes calls continuously, through one channel per target.
#[derive(Debug)]
pub(crate) struct GrpcClient {
    pub(crate) kind: Kind,
    script: Script,
    /// The number of calls that failed because of the client's own faults.
    n_own_faults: u64,
    /// Whether a call was answered.
    is_started: bool,
}

impl GrpcClient {
    /// Starts a client that calls `xds:///<service>` as `node`.
    pub(crate) fn start(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        service: &str,
    ) -> Result<Self> {
        Self::start_to(dir, kind, node, xds, &[service])
    }

    /// Starts a client that calls all these services, each through its own channel.
    pub(crate) fn start_to(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        services: &[&str],
    ) -> Result<Self> {
        Self::start_with(dir, kind, node, xds, services, &[])
    }

    /// Starts a client like [`Self::start_to`], with these environment variables.
    pub(crate) fn start_with(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        services: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let targets: Vec<_> = services.iter().map(|service| format!("xds:///{service}")).collect();
        let bootstrap = bootstrap(dir, node, xds, &json!({}))?;
        Self::launch(dir, kind, node, &targets, &bootstrap, variables)
    }

    /// Starts a client that calls `xds:///<service>` as `node`, and connects to the server with the
    /// certificate `client.pem` and the CA `ca.pem` of its directory.
    pub(crate) fn start_with_tls(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        service: &str,
    ) -> Result<Self> {
        // The script of grpc-js replaces these credentials.
        let credentials = match kind {
            Kind::Node => json!({"type": "insecure"}),
            Kind::Python | Kind::Go => json!({"type": "tls", "config": {
                "ca_certificate_file": dir.join("ca.pem"),
                "certificate_file": dir.join("client.pem"),
                "private_key_file": dir.join("client.key"),
                "refresh_interval": "1s",
            }}),
        };
        let server = json!({
            "server_uri": format!("localhost:{xds}"),
            "channel_creds": [credentials],
            "server_features": ["xds_v3"],
        });
        let bootstrap = bootstrap_of(dir, node, &server, &json!({}))?;
        let targets = [format!("xds:///{service}")];
        let files = dir.display().to_string();
        Self::launch(dir, kind, node, &targets, &bootstrap, &[("XDS_TLS_DIR", &files)])
    }

    /// Starts a client that calls `xds:///<service>` with a bootstrap that the test supplies.
    pub(crate) fn start_from(
        dir: &Path,
        kind: Kind,
        name: &str,
        service: &str,
        bootstrap: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        Self::launch(dir, kind, name, &[format!("xds:///{service}")], bootstrap, variables)
    }

    /// Starts a client that calls `target`, and requests names of `authorities` from the same server.
    pub(crate) fn start_federated(
        dir: &Path,
        kind: Kind,
        node: &str,
        xds: u16,
        target: &str,
        authorities: &Value,
    ) -> Result<Self> {
        let bootstrap = bootstrap(dir, node, xds, authorities)?;
        // grpc-js and older C-core need it for `authorities`.
        let variables = [("GRPC_EXPERIMENTAL_XDS_FEDERATION", "true")];
        Self::launch(dir, kind, node, &[target.to_owned()], &bootstrap, &variables)
    }

    fn launch(
        dir: &Path,
        kind: Kind,
        node: &str,
        targets: &[String],
        bootstrap: &Path,
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = kind.command(targets)?;
        command.env("GRPC_XDS_BOOTSTRAP", bootstrap);
        command.envs(variables.iter().copied());
        let script = Script::start(node, dir, &command)?;
        Ok(Self { kind, script, n_own_faults: 0, is_started: false })
    }

    /// Returns the results of the calls since the last query: `answers` by name, `failed` by
    /// reason. The client's own faults are counted separately.
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
        let answers = counts("answers")?;
        self.is_started |= !answers.is_empty();
        Ok(GrpcTally { answers, failed })
    }

    /// Like [`Self::take`], but ignores calls that exceeded their deadline before the first answer. The time of these
    /// calls includes the start of the client.
    fn take_after_start(&mut self) -> Result<GrpcTally> {
        let was_started = self.is_started;
        let mut tally = self.take()?;
        let is_late = |reason: &str| {
            reason.starts_with("DEADLINE_EXCEEDED") || reason.starts_with("DeadlineExceeded")
        };
        tally.failed.retain(|(reason, _)| was_started || !is_late(reason));
        Ok(tally)
    }

    /// Returns the status of each resource, as the client itself reports it (CSDS). Not for grpc-js.
    pub(crate) fn resource_status(&mut self) -> Result<Vec<ResourceStatus>> {
        let answer = self.script.ask("status")?;
        let text = answer["status"].as_str().with_context(|| format!("no status in {answer}"))?;
        let digits = text.as_bytes().chunks(2).map(std::str::from_utf8);
        let bytes = digits.map(|pair| Ok(u8::from_str_radix(pair?, 16)?));
        let bytes = bytes.collect::<Result<Vec<u8>>>()?;
        let response = ClientStatusResponse::decode(bytes.as_slice())?;
        Ok(response.config.into_iter().flat_map(|client| client.resources).collect())
    }

    /// Fails if more than `n_max` calls failed because of the client's own faults. Their number depends on the calls that are
    /// open when a cluster ends, and thus on the machine: 12 for three changes have been seen.
    pub(crate) fn expect_own_faults(&self, n_max: u64) -> Result<()> {
        if self.n_own_faults > 0 {
            report(&format!("{:?}: {} calls failed in the client", self.kind, self.n_own_faults));
        }
        if self.n_own_faults > n_max {
            bail!("{} calls failed in the client, but at most {n_max} may", self.n_own_faults);
        }
        Ok(())
    }

    /// Waits until only `name` answers calls. No call may fail meanwhile.
    pub(crate) fn wait_for_only(&mut self, name: &str) -> Result<()> {
        let mut failed = None;
        wait_for(&format!("only {name:?} from gRPC"), STEP, || {
            thread::sleep(Duration::from_millis(90));
            let tally = self.take_after_start()?;
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

    /// Waits until calls fail and none is answered. Returns the reasons.
    pub(crate) fn wait_for_failures(&mut self) -> Result<Vec<(String, u64)>> {
        wait_for("calls to fail", STEP, || {
            thread::sleep(Duration::from_millis(90));
            let tally = self.take()?;
            Ok((tally.answers.is_empty() && !tally.failed.is_empty()).then_some(tally.failed))
        })
    }

    /// Waits until calls are answered again. Earlier calls may fail.
    pub(crate) fn wait_for_recovery(&mut self, name: &str) -> Result<()> {
        wait_for("calls to be answered again", STEP, || {
            thread::sleep(Duration::from_millis(90));
            let tally = self.take()?;
            Ok((tally.failed.is_empty() && tally.answers.iter().any(|(it, _)| it == name))
                .then_some(()))
        })
    }

    /// Waits for `n` more answers. No call may fail meanwhile.
    pub(crate) fn wait_for_more(&mut self, n: u64) -> Result<()> {
        let mut n_answered = 0;
        let mut failed = Vec::new();
        wait_for(&format!("{n} more answers from gRPC"), STEP, || {
            let tally = self.take_after_start()?;
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

/// The results of calls.
#[derive(Debug)]
pub(crate) struct GrpcTally {
    pub(crate) answers: Vec<(String, u64)>,
    pub(crate) failed: Vec<(String, u64)>,
}

/// The parts of `envoy.service.status.v3.ClientStatusResponse` that tests of clients read.
#[derive(Clone, PartialEq, prost::Message)]
struct ClientStatusResponse {
    #[prost(message, repeated, tag = "1")]
    config: Vec<ClientConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ClientConfig {
    #[prost(message, repeated, tag = "3")]
    resources: Vec<ResourceStatus>,
}

/// The status of a resource in a client.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ResourceStatus {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) version_info: String,
    /// `ClientResourceStatus`: 3 is ACKED, 4 is NACKED.
    #[prost(int32, tag = "7")]
    client_status: i32,
    #[prost(message, optional, tag = "8")]
    error_state: Option<ErrorState>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ErrorState {
    #[prost(string, tag = "3")]
    details: String,
}

impl ResourceStatus {
    /// Returns whether the client has accepted or rejected the resource.
    pub(crate) fn has_verdict(&self) -> bool {
        [3, 4].contains(&self.client_status)
    }

    /// Returns the message of the client if it has rejected the resource.
    pub(crate) fn rejection(&self) -> Option<&str> {
        let error = self.error_state.as_ref().map(|state| state.details.as_str());
        (self.client_status == 4).then(|| error.unwrap_or_default())
    }
}
