//! The members of an etcd cluster on this machine, and the one API call that the test needs.
//!
//! The messages follow the public description of etcd's v3 API (`etcdserverpb.KV`).

use std::{
    fs::File,
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use chancery_testing::reserve_address;
use http::uri::PathAndQuery;
use tokio::process::{Child, Command};
use tonic::{
    Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::process::Process;

const PUT: &str = "/etcdserverpb.KV/Put";
const START: Duration = Duration::from_secs(60);
const REQUEST: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// The used fields of `etcdserverpb.PutRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// `etcdserverpb.PutResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
}

/// The used field of `etcdserverpb.ResponseHeader`.
#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(int64, tag = "3")]
    revision: i64,
}

/// Running members. Dropping this value kills them.
#[derive(Debug)]
pub(super) struct Etcd {
    members: Vec<Child>,
    pub(super) clients: Vec<SocketAddr>,
}

/// A connection to a member. Clones share the connection.
#[derive(Debug, Clone)]
pub(super) struct Kv(Grpc<Channel>);

impl Etcd {
    /// Starts a new cluster with its data in `dir`, and waits until all members accept writes.
    pub(super) async fn start(binary: &Path, dir: &Path, members: usize) -> Result<Self> {
        let ports: Vec<SocketAddr> = (0..2 * members).map(|_| reserve_address()).collect();
        let (clients, peers) = ports.split_at(members);
        let named = peers.iter().enumerate().map(|(n, peer)| format!("m{n}=http://{peer}"));
        let all = named.collect::<Vec<_>>().join(",");
        let mut etcd = Self { members: Vec::new(), clients: clients.to_vec() };
        for (n, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let dir = dir.join(format!("member-{n}"));
            std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
            let log = File::create(dir.join("etcd.log")).context("create the log of etcd")?;
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
            command.args(["--name", &format!("m{n}"), "--initial-cluster", &all]);
            command.arg("--data-dir").arg(dir.join("data"));
            for (flag, address) in [
                ("--listen-client-urls", client),
                ("--advertise-client-urls", client),
                ("--listen-peer-urls", peer),
                ("--initial-advertise-peer-urls", peer),
            ] {
                command.args([flag, &format!("http://{address}")]);
            }
            let out = log.try_clone().context("share the log of etcd")?;
            command.stdin(Stdio::null()).stdout(out).stderr(log).kill_on_drop(true);
            let member = command.spawn().with_context(|| format!("start {}", binary.display()))?;
            etcd.members.push(member);
        }
        etcd.ready().await?;
        Ok(etcd)
    }

    async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + START;
        for client in &self.clients {
            loop {
                let put = async {
                    let mut kv = Kv::connect(*client).await?;
                    kv.put("ready", Bytes::new()).await.map_err(anyhow::Error::from)
                };
                match tokio::time::timeout(REQUEST, put).await {
                    Ok(Ok(_)) => break,
                    other if Instant::now() > deadline => {
                        bail!("etcd at {client} accepted no write for {START:?}: {other:?}");
                    }
                    _ => tokio::time::sleep(POLL).await,
                }
            }
        }
        Ok(())
    }

    /// Returns the processes of the members.
    pub(super) fn processes(&self) -> Vec<Process> {
        self.members.iter().filter_map(|member| member.id()).map(Process::new).collect()
    }
}

impl Kv {
    pub(super) async fn connect(client: SocketAddr) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{client}"))?
            .connect_timeout(Duration::from_secs(10))
            .timeout(REQUEST)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.with_context(|| format!("connect to {client}"))?;
        Ok(Self(Grpc::new(channel)))
    }

    /// Writes a key. Returns the revision.
    pub(super) async fn put(&mut self, key: &str, value: Bytes) -> Result<u64, Status> {
        let unready = |error: tonic::transport::Error| Status::unavailable(error.to_string());
        self.0.ready().await.map_err(unready)?;
        let request = PutRequest { key: Bytes::copy_from_slice(key.as_bytes()), value };
        let path = PathAndQuery::from_static(PUT);
        let codec = ProstCodec::<PutRequest, PutResponse>::default();
        let response = self.0.unary(Request::new(request), path, codec).await?.into_inner();
        let revision = response.header.unwrap_or_default().revision;
        u64::try_from(revision).map_err(|_| Status::internal("the revision is negative"))
    }
}
