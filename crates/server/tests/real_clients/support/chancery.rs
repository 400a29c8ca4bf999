//! The server under test: the `chancery` binary and its command line.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_testing::reserve_port;
use serde_json::Value;

use super::{STEP, http, process::Process, wait_for};
use crate::network::Network;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_chancery");
/// The maximum duration of a start, in a debug build on a busy machine.
const START: Duration = Duration::from_secs(60);
const COMMAND: Duration = Duration::from_secs(60);

/// The ports of a replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) xds: u16,
    pub(crate) admin: u16,
    pub(crate) raft: u16,
}

impl Addresses {
    pub(crate) fn free() -> Result<Self> {
        Ok(Self { xds: reserve_port(), admin: reserve_port(), raft: reserve_port() })
    }
}

/// A replica, running or not. Its data and its addresses do not change.
#[derive(Debug)]
pub(crate) struct Chancery {
    dir: PathBuf,
    pub(crate) at: Addresses,
    settings: Vec<(String, String)>,
    /// Further arguments of each start.
    arguments: Vec<String>,
    process: Option<Process>,
    /// The network in which the process must be registered, and the index of the replica in the network.
    place: Option<(Network, usize)>,
}

impl Chancery {
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, &[])
    }

    /// Starts a replica with configuration keys from environment variables (`CHANCERY_XDS_...`), and from the file
    /// `chancery.toml` of the directory, if there is one.
    pub(crate) fn start_with(dir: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let mut chancery = Self::new(dir, settings)?;
        chancery.start_again()?;
        Ok(chancery)
    }

    fn new(dir: &Path, settings: &[(&str, &str)]) -> Result<Self> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Ok(Self {
            dir: dir.to_owned(),
            at: Addresses::free()?,
            settings: settings.iter().map(own).collect(),
            arguments: Vec::new(),
            process: None,
            place: None,
        })
    }

    /// Starts three replicas in directories of their own. The first forms a cluster, and the others join it.
    pub(crate) fn start_three(dir: &Path, settings: &[(&str, &str)]) -> Result<[Self; 3]> {
        Self::start_three_behind(dir, settings, None)
    }

    /// Starts three replicas, which reach each other through a network that a test can cut.
    pub(crate) fn start_three_behind(
        dir: &Path,
        settings: &[(&str, &str)],
        network: Option<&Network>,
    ) -> Result<[Self; 3]> {
        let [one, two, three] = [1, 2, 3].map(|id| {
            let own = dir.join(format!("replica-{id}"));
            fs::create_dir(&own)?;
            let mut replica = Self::new(&own, settings)?;
            replica.arguments = vec!["--replica-id".to_owned(), id.to_string()];
            Ok::<_, anyhow::Error>(replica)
        });
        let mut replicas = [one?, two?, three?];
        let own = format!("127.0.0.1:{}", replicas[0].at.raft);
        let first = network.map_or(own, |network| network.address(0));
        for (at, replica) in replicas.iter_mut().enumerate() {
            if let Some(network) = network {
                let advertised = ("CHANCERY_RAFT_ADVERTISE".to_owned(), network.address(at));
                replica.settings.push(advertised);
                replica.place = Some((network.clone(), at));
            }
            let as_member = replica.arguments.clone();
            if at > 0 {
                replica.arguments.extend(["--join".to_owned(), first.clone()]);
            }
            replica.start_again()?;
            replica.arguments = as_member;
        }
        replicas[2].wait_for_voters(3)?;
        Ok(replicas)
    }

    /// Waits until the replica knows the leader, and `n` voters answer it.
    pub(crate) fn wait_for_voters(&self, n: u64) -> Result<()> {
        wait_for(&format!("{n} voters"), STEP, || {
            let status = self.cli(&["cluster", "status"], "")?;
            if status["voters_up"] == n && status["leader"].is_u64() {
                return Ok(Some(()));
            }
            bail!("it is {status}")
        })
    }

    /// Starts the replica with its existing data on the same ports.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        let loopback = |port| format!("127.0.0.1:{port}");
        let mut serve = Command::new(BINARY);
        serve.arg("serve");
        let config = self.dir.join("chancery.toml");
        if config.is_file() {
            serve.arg("--config").arg(config);
        }
        serve.arg("--data-dir").arg(self.dir.join("data")).args([
            "--xds",
            &loopback(self.at.xds),
            "--admin",
            &loopback(self.at.admin),
            "--raft",
            &loopback(self.at.raft),
        ]);
        serve.args(&self.arguments);
        // Most tests take away what their clients use. Tests of guards override the key.
        serve.env("CHANCERY_GUARDS_OFF", "all");
        serve.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let process = self.process.insert(Process::spawn("chancery", &self.dir, &serve)?);
        if let Some((network, at)) = &self.place {
            network.place(*at, process.child().id(), &loopback(self.at.raft));
        }
        let admin = self.at.admin;
        // This loop does not use `wait_for`, because a server that has ended will not become ready.
        let deadline = Instant::now() + START;
        while http::get(admin, "/readyz").is_err() {
            process.expect_running()?;
            if Instant::now() > deadline {
                bail!("the server was not ready after {START:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.take().context("the server does not run")?.kill()
    }

    /// Ends the server with SIGTERM. It must drain and exit with 0.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the server does not run")?;
        let status = process.terminate(STEP)?;
        if !status.success() {
            bail!("the server ended with {status} after SIGTERM");
        }
        Ok(())
    }

    /// Sends SIGSTOP. The replica keeps its connections and does nothing.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.as_ref().context("the server does not run")?.signal("STOP")
    }

    /// Sends SIGCONT.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.as_ref().context("the server does not run")?.signal("CONT")
    }

    /// Runs a command of the command line and returns its JSON. `input` is its standard input.
    pub(crate) fn cli(&self, args: &[&str], input: &str) -> Result<Value> {
        let Done { status, json, errors } = self.ask(args, input)?;
        if !status.success() {
            bail!("chancery {} failed: {status}: {errors}", args.join(" "));
        }
        Ok(json)
    }

    /// Runs a command whatever its exit status is.
    pub(crate) fn ask(&self, args: &[&str], input: &str) -> Result<Done> {
        let shown = format!("chancery {}", args.join(" "));
        let output = self.dir.join("cli.out");
        let errors = self.dir.join("cli.err");
        let mut child = Command::new(BINARY)
            .args(["--server", &format!("127.0.0.1:{}", self.at.admin)])
            .args(args)
            .args(["-o", "json"])
            .stdin(Stdio::piped())
            .stdout(fs::File::create(&output)?)
            .stderr(fs::File::create(&errors)?)
            .spawn()
            .with_context(|| format!("start {shown}"))?;
        // The inputs fit into a pipe's buffer, so that the write cannot block.
        let mut stdin = child.stdin.take().context("no pipe")?;
        let written = stdin.write_all(input.as_bytes());
        drop(stdin);
        let deadline = Instant::now() + COMMAND;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                bail!("{shown} did not end in {COMMAND:?}");
            }
            thread::sleep(Duration::from_millis(5));
        };
        let errors = fs::read_to_string(&errors)?.trim_end().to_owned();
        let output = fs::read_to_string(&output)?;
        // A command that fails may print no answer, and may not read its input.
        let json = match serde_json::from_str(&output) {
            Err(_) if !status.success() => Value::Null,
            json => json.with_context(|| format!("{shown} printed {output:?}"))?,
        };
        if status.success() {
            written.with_context(|| format!("write to {shown}"))?;
        }
        Ok(Done { status, json, errors })
    }

    /// Publishes one transaction, after which the scope `default` contains exactly these resources.
    pub(crate) fn publish(&self, resources: &[Value]) -> Result<Value> {
        let manifest = serde_json::json!({"scope": "default", "resources": resources});
        self.cli(&["apply", "-f", "-", "--prune"], &manifest.to_string())
    }

    /// Publishes like [`Self::publish`], and waits until every concerned client has acknowledged.
    pub(crate) fn publish_and_wait(&self, resources: &[Value]) -> Result<()> {
        let manifest = serde_json::json!({"scope": "default", "resources": resources});
        let done = self.cli(&["apply", "-f", "-", "--prune", "--wait"], &manifest.to_string())?;
        if done["wait"]["settled"] != true {
            bail!("the write did not settle: {done}");
        }
        Ok(())
    }

    /// Publishes like [`Self::publish`], and waits until the node reports that it rejects the type. Returns its text.
    pub(crate) fn publish_rejected(
        &self,
        id: &str,
        type_url: &str,
        resources: &[Value],
    ) -> Result<String> {
        let manifest = serde_json::json!({"scope": "default", "resources": resources});
        // Validation would refuse most of them.
        self.cli(&["apply", "-f", "-", "--prune", "--validation=off"], &manifest.to_string())?;
        wait_for(&format!("a rejection of {type_url}"), STEP, || {
            let all = self.subscriptions(id)?;
            let is_rejected = |it: &&Value| it["type_url"] == type_url && it["state"] == "nacked";
            let rejected =
                all.iter().find(is_rejected).with_context(|| format!("it is {all:?}"))?;
            Ok(Some(rejected["nack_message"].as_str().unwrap_or_default().to_owned()))
        })
    }

    /// Returns the output of `chancery node ID`.
    pub(crate) fn node(&self, id: &str) -> Result<Value> {
        self.cli(&["node", id], "")
    }

    /// Returns all subscriptions of a node, over all its streams.
    pub(crate) fn subscriptions(&self, id: &str) -> Result<Vec<Value>> {
        let node = self.node(id)?;
        let streams = node["streams"].as_array().with_context(|| format!("no streams: {node}"))?;
        Ok(streams
            .iter()
            .filter_map(|stream| stream["subscriptions"].as_array())
            .flatten()
            .cloned()
            .collect())
    }

    /// Returns the clients of this replica with the status of each resource (CSDS).
    pub(crate) fn client_status(&self) -> Result<Vec<Value>> {
        let request = http::Request::post("/v3/discovery:client_status");
        let answer = http::ask(self.at.admin, &request)?;
        let json: Value = serde_json::from_str(&answer.body).context(answer.body)?;
        let configs = json["config"].as_array().cloned();
        configs.with_context(|| format!("no clients: {json}"))
    }

    /// Returns the number of open streams of a node.
    pub(crate) fn n_streams(&self, id: &str) -> Result<usize> {
        let nodes = self.cli(&["nodes"], "")?;
        let nodes = nodes["nodes"].as_array().with_context(|| format!("no nodes: {nodes}"))?;
        let Some(node) = nodes.iter().find(|node| node["id"] == id) else { return Ok(0) };
        let streams = node["streams"].as_array().map(Vec::len);
        streams.with_context(|| format!("no streams: {node}"))
    }

    /// Waits until the node is in this state and subscribes to these types.
    pub(crate) fn wait_for_node(&self, id: &str, state: &str, types: &[&str]) -> Result<()> {
        wait_for(&format!("node {id} to be {state}"), 2 * STEP, || {
            let subscriptions = self.subscriptions(id)?;
            let has_all = types.iter().all(|wanted| {
                subscriptions.iter().any(|subscription| subscription["type_url"] == *wanted)
            });
            let node = self.node(id)?;
            if has_all && node["state"] == state {
                return Ok(Some(()));
            }
            bail!("it is {node}")
        })
    }

    /// Returns a metric without labels, or 0 if it does not exist.
    pub(crate) fn total(&self, name: &str) -> Result<f64> {
        let page = http::get(self.at.admin, "/metrics")?;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(Ok(0.0), |value| value.parse().with_context(|| format!("{name} is {value:?}")))
    }

    /// Returns the sum of a metric over the series with this label (`name="value"`), or 0 without
    /// such a series.
    pub(crate) fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let page = http::get(self.at.admin, "/metrics")?;
        sum_of_metric(&page, name, label)
    }
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    /// The answer, or null without an answer.
    pub(crate) json: Value,
    pub(crate) errors: String,
}

fn sum_of_metric(page: &str, name: &str, label: &str) -> Result<f64> {
    let mut sum = 0.0;
    for line in page.lines() {
        let Some((labels, value)) =
            line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')?.split_once("} "))
        else {
            continue;
        };
        if labels.split(',').any(|it| it == label) {
            sum += value.parse::<f64>().with_context(|| format!("the metric {line:?}"))?;
        }
    }
    Ok(sum)
}
