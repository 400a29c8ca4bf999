//! The clients: a mirror as a process, a poller, and a client that receives heartbeats.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use chancery_fleet_load::stream::{self, DELTA, Windows};
use chancery_model::types::CLUSTER;
use chancery_proto::{
    discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse},
    node::Node,
};
use h2::client::SendRequest;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    process::Process,
    stats::{count, float},
};

/// The maximum time for the first files, in a debug build on a busy machine.
const FIRST: Duration = Duration::from_secs(600);
const CHANGE: Duration = Duration::from_secs(60);
/// The time in which an idle mirror uses less than a hundredth of a CPU.
const IDLE_CHECK: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);
/// The maximum number of responses that are kept until they are counted. Further responses are not counted.
const QUEUE: usize = 4096;
/// The length of the prefix of a message.
const PREFIX_BYTES: usize = 5;

/// A running mirror.
pub(super) struct Mirror {
    process: Process,
    files: PathBuf,
    _child: Child,
}

impl Mirror {
    /// Starts a mirror, and waits until it has written all files.
    pub(super) async fn start(
        binary: &Path,
        dir: &Path,
        xds: SocketAddr,
        resources: usize,
    ) -> Result<Self> {
        let files = dir.join("files");
        let mut command = Command::new(binary);
        command.args(["mirror", "--node", "mirror", "--pause", "1ms", "--xds", &xds.to_string()]);
        command.arg("--dir").arg(&files).stdout(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().context("start the mirror")?;
        let process = Process::new(child.id().context("the mirror has ended already")?);
        let mirror = Self { process, files, _child: child };
        let deadline = Instant::now() + FIRST;
        // The last step of the first run is the listing. After it, the mirror only waits.
        let mut before = process.run_and_wait()?.0;
        loop {
            sleep(IDLE_CHECK).await;
            let now = process.run_and_wait()?.0;
            let is_idle = now - before < IDLE_CHECK / 100;
            if is_idle && mirror.files.join("lds.json").exists() {
                break;
            }
            ensure!(Instant::now() < deadline, "the mirror has not written its files");
            before = now;
        }
        let n = mirror.files()?.len();
        ensure!(n == resources, "the mirror has written {n} files of endpoints, not {resources}");
        Ok(mirror)
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }

    /// Returns the names of the files of endpoints, with their inodes. A rename changes the inode.
    pub(super) fn files(&self) -> Result<BTreeSet<(u64, PathBuf)>> {
        let dir = self.files.join("eds");
        let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
        entries
            .map(|entry| entry.and_then(|it| Ok((it.metadata()?.ino(), it.path()))))
            .collect::<std::io::Result<_>>()
            .context("list the files")
    }

    /// Waits until a file contains a text.
    pub(super) async fn wait_for(&self, path: &str, text: &str) -> Result<()> {
        let path = self.files.join(path);
        let deadline = Instant::now() + CHANGE;
        let mut seen = None;
        loop {
            // A large file is read only after a change.
            let inode = fs::metadata(&path).with_context(|| path.display().to_string())?.ino();
            if seen != Some(inode) {
                if fs::read_to_string(&path)?.contains(text) {
                    return Ok(());
                }
                seen = Some(inode);
            }
            ensure!(Instant::now() < deadline, "{} has not changed", path.display());
            sleep(LOOK).await;
        }
    }
}

/// A client that polls on one connection.
pub(super) struct Poller {
    xds: SocketAddr,
    sender: SendRequest<Bytes>,
    path: String,
    names: Vec<String>,
    version: String,
    _connection: JoinSet<()>,
}

impl Poller {
    /// Connects, and polls for one name, or for everything.
    pub(super) async fn follow(xds: SocketAddr, path: &str, name: Option<&str>) -> Result<Self> {
        let (sender, connection) = stream::connect(xds, Windows::ENVOY).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        let mut poller = Self {
            xds,
            sender,
            path: format!("/v3/discovery:{path}"),
            names: name.map(str::to_owned).into_iter().collect(),
            version: String::new(),
            _connection: tasks,
        };
        let (status, body) = poller.poll().await?;
        ensure!(status == 200, "a first poll received {status}");
        let response: Value = serde_json::from_slice(&body).context("parse a response")?;
        let version = response["version_info"].as_str();
        version.context("a response has no version")?.clone_into(&mut poller.version);
        Ok(poller)
    }

    /// Polls, and expects that nothing has changed.
    pub(super) async fn poll_current(&mut self) -> Result<()> {
        let (status, body) = self.poll().await?;
        ensure!(status == 304 && body.is_empty(), "a current poll received {status}");
        Ok(())
    }

    async fn poll(&mut self) -> Result<(u16, Vec<u8>)> {
        let mut sender = self.sender.clone().ready().await?;
        let request = http::Request::post(format!("http://{}{}", self.xds, self.path))
            .header("content-type", "application/json")
            .body(())?;
        let poll = json!({"version_info": self.version, "node": {"id": "poller"}, "resource_names": self.names});
        let (response, mut body) = sender.send_request(request, false)?;
        body.send_data(poll.to_string().into(), true)?;
        let (head, mut body) = response.await?.into_parts();
        let mut received = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            received.extend_from_slice(&chunk);
            body.flow_control().release_capacity(chunk.len())?;
        }
        Ok((head.status.as_u16(), received))
    }
}

/// A delta client of one cluster with a lifetime.
pub(super) struct Heartbeats {
    /// The length of each response, and whether it has a body.
    responses: mpsc::Receiver<(usize, bool)>,
    _tasks: JoinSet<()>,
}

/// The heartbeats of some time.
pub(super) struct Counted {
    pub(super) bytes_each: f64,
    pub(super) bodies: u64,
}

impl Heartbeats {
    pub(super) async fn connect(xds: SocketAddr, name: &str) -> Result<Self> {
        let (sender, connection) = stream::connect(xds, Windows::ENVOY).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        let node = Node {
            id: "heartbeats".to_owned(),
            client_features: vec!["xds.config.supports-resource-ttl".to_owned()],
            ..Node::default()
        };
        let first = DeltaDiscoveryRequest {
            node: Some(node.encode_to_vec().into()),
            type_url: CLUSTER.to_owned(),
            resource_names_subscribe: vec![name.to_owned()],
            ..DeltaDiscoveryRequest::default()
        };
        let (_sender, mut requests, stream) =
            stream::open_with(sender, xds, DELTA, &[first]).await?;
        let (found, mut responses) = mpsc::channel(QUEUE);
        tasks.spawn(async move {
            let mut buffer = Vec::new();
            let read = stream.read(|chunk| {
                buffer.extend_from_slice(chunk);
                while let Some((response, len)) = split(&buffer)? {
                    buffer.drain(..len);
                    let bodies = response.resources.iter().any(|it| it.resource.is_some());
                    requests.ack(response.nonce)?;
                    // The receiver may be gone at the end of the test.
                    _ = found.try_send((len, bodies));
                }
                Ok(())
            });
            drop(read.await);
        });
        let first = timeout(CHANGE, responses.recv()).await.context("the first response")?;
        ensure!(first.is_some_and(|(_, has_body)| has_body), "the first response has no body");
        Ok(Self { responses, _tasks: tasks })
    }

    /// Counts the heartbeats of the given time.
    pub(super) async fn count(&mut self, time: Duration) -> Result<Counted> {
        while self.responses.try_recv().is_ok() {}
        sleep(time).await;
        let (mut n, mut bytes, mut bodies) = (0, 0, 0);
        while let Ok((len, has_body)) = self.responses.try_recv() {
            (n, bytes, bodies) = (n + 1, bytes + count(len), bodies + u64::from(has_body));
        }
        ensure!(n > 0, "no heartbeat arrived within {time:?}");
        Ok(Counted { bytes_each: float(bytes) / float(n), bodies })
    }
}

/// Returns the first message of a buffer, and its length with the prefix.
fn split(buffer: &[u8]) -> Result<Option<(DeltaDiscoveryResponse, usize)>> {
    let Some((prefix, rest)) = buffer.split_at_checked(PREFIX_BYTES) else { return Ok(None) };
    let &[_, a, b, c, d] = prefix else { return Ok(None) };
    let len = usize::try_from(u32::from_be_bytes([a, b, c, d]))?;
    let Some(message) = rest.get(..len) else { return Ok(None) };
    Ok(Some((DeltaDiscoveryResponse::decode(message)?, PREFIX_BYTES + len)))
}
