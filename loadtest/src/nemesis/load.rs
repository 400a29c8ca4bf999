//! Writers that write, swap, delete and read registers through the public admin API, each operation
//! at any replica. All operations go into the [`History`].

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use chancery_admin_proto::v1::{
    ApplyRequest, ClusterStatus, DeleteRequest, File, GetClusterRequest, ListResourcesRequest,
    PromoteMemberRequest, RemoveMemberRequest, ResourceRef, TransferLeaderRequest, WriteOptions,
    WriteResponse, admin_client::AdminClient,
};
use chancery_model::{Version, types::CLUSTER};
use prost::Message as _;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::{
    history::{History, OperationId, name, parse_value, scope, value_text},
    linear::Action,
    proxy::Id,
    ready_replicas::{Ports, ReadyReplicas},
};
use crate::{author::is_outcome_unknown, crash::Cluster, random::Random, resource};

/// The timeout of an operation, after which its outcome is unknown.
const OPERATION: Duration = Duration::from_secs(5);
/// The pause before a retry, and while no replica is ready.
const NOBODY: Duration = Duration::from_millis(50);
/// The maximum number of attempts of a write.
const TRIES_MAX: u64 = 4;

/// The consistency of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// The read is linearizable.
    Current,
    /// The read shows the replica's own state.
    Stale,
}

/// A connection to the admin port of a replica. Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Admin(AdminClient<Channel>);

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) keys: usize,
    pub(crate) random: Random,
    pub(crate) history: Arc<History>,
    pub(crate) ready: Arc<ReadyReplicas>,
    /// The mean pause between operations.
    pub(crate) pause: Duration,
    pub(crate) stop: Arc<AtomicBool>,
    /// The connections by replica.
    pub(crate) known: HashMap<Id, (Ports, Admin)>,
}

/// A change of the membership or of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Promote(Id),
    Remove(Id),
    Transfer(Id),
}

/// A write of a register, which may be sent several times.
#[derive(Debug)]
struct Write {
    key: usize,
    /// `None` deletes the register.
    value: Option<String>,
    if_revision: Option<u64>,
    request_id: String,
}

/// A register as a replica shows it, and the revision of the replica's state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) value: Option<(u64, Version)>,
    pub(crate) revision: u64,
}

impl Admin {
    /// Creates a connection that is opened on first use.
    pub(crate) fn new(ports: Ports) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{}", ports.admin))?
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true);
        let client = AdminClient::new(endpoint.connect_lazy());
        Ok(Self(client.max_decoding_message_size(64 << 20)))
    }

    /// Returns the status of the replica.
    pub(crate) async fn status(&mut self) -> Result<ClusterStatus> {
        let answer = timeout(OPERATION, self.0.get_cluster(GetClusterRequest {})).await;
        Ok(answer.context("no answer in time")??.into_inner())
    }

    /// Changes the membership.
    pub(crate) async fn change(&mut self, change: Change) -> Result<String> {
        let answer = match change {
            Change::Promote(replica_id) => {
                self.0.promote_member(PromoteMemberRequest { replica_id }).await
            }
            Change::Remove(replica_id) => {
                self.0.remove_member(RemoveMemberRequest { replica_id }).await
            }
            Change::Transfer(to) => {
                self.0.transfer_leader(TransferLeaderRequest { replica_id: Some(to) }).await
            }
        };
        Ok(answer?.into_inner().message)
    }

    /// Assigns the scopes of `keys` registers to every node.
    pub(crate) async fn assign(&mut self, keys: usize) -> Result<()> {
        let scopes: Vec<String> = (0..keys).map(scope).collect();
        let rule = json!({"name": "nemesis", "priority": 10, "match": {}, "scopes": scopes});
        let content = json!({"assignments": [rule]}).to_string();
        let files = vec![File { name: "assignment".to_owned(), content }];
        let options = WriteOptions {
            author: "nemesis".to_owned(),
            confirm: vec!["all".to_owned()],
            ..WriteOptions::default()
        };
        let request = ApplyRequest { files, options: Some(options), ..ApplyRequest::default() };
        timeout(OPERATION, self.0.apply(request)).await.context("no answer in time")??;
        Ok(())
    }

    async fn send(&mut self, write: &Write) -> Result<WriteResponse, Status> {
        let scope = scope(write.key);
        let mut options = WriteOptions {
            author: "nemesis".to_owned(),
            request_id: write.request_id.clone(),
            confirm: vec!["all".to_owned()],
            ..WriteOptions::default()
        };
        let Some(value) = &write.value else {
            let (r#type, name) = ("cds".to_owned(), name(write.key));
            let resources = vec![ResourceRef { r#type, name, ..ResourceRef::default() }];
            let request = DeleteRequest { resources, scope, options: Some(options) };
            return Ok(self.0.delete(request).await?.into_inner());
        };
        options.if_revision = write.if_revision;
        let cluster = cluster(&name(write.key), value);
        let content = resource::manifest(&scope, vec![cluster]).to_string();
        let files = vec![File { name: "register".to_owned(), content }];
        let request = ApplyRequest { files, options: Some(options), ..ApplyRequest::default() };
        Ok(self.0.apply(request).await?.into_inner())
    }

    /// Reads one register.
    pub(crate) async fn read(&mut self, key: usize, read: Read) -> Result<Found> {
        let (revision, all) = self.list(scope(key), read).await?;
        Ok(Found { value: all.into_values().next(), revision })
    }

    /// Reads all registers by name, and the revision.
    pub(crate) async fn read_all(&mut self) -> Result<(u64, HashMap<String, (u64, Version)>)> {
        self.list(String::new(), Read::Stale).await
    }

    async fn list(
        &mut self,
        scope: String,
        read: Read,
    ) -> Result<(u64, HashMap<String, (u64, Version)>)> {
        let (r#type, stale) = ("cds".to_owned(), read == Read::Stale);
        let request = ListResourcesRequest { r#type, scope, stale, ..Default::default() };
        let mut pieces = self.0.list_resources(request).await?.into_inner();
        let (mut revision, mut all) = (0, HashMap::new());
        while let Some(piece) = pieces.message().await? {
            revision = piece.revision;
            for resource in piece.resources {
                let body = resource.body.context("a resource has no body")?;
                let cluster = Cluster::decode(&*body.value)?;
                let value = parse_value(&cluster.alt_stat_name);
                let version = Version::parse(&resource.version);
                let found = value.zip(version).with_context(|| {
                    format!(
                        "{} has an invalid value or version: {:?}, {}",
                        resource.name, cluster, resource.version
                    )
                })?;
                all.insert(resource.name, found);
            }
        }
        Ok((revision, all))
    }
}

impl Writer {
    /// Works until `stop` is set.
    pub(crate) async fn run(mut self) -> Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let Some((replica, admin)) = self.somebody(None)? else {
                sleep(NOBODY).await;
                continue;
            };
            let keys = crate::stats::count(self.keys);
            let key = usize::try_from(self.random.below(keys))?;
            if !self.operate(replica, admin, key).await? {
                // A connection may be half open after an error.
                self.known.remove(&replica);
            }
            sleep(self.random.time(self.pause * 2)).await;
        }
        Ok(())
    }

    /// Returns a random replica and a connection to it.
    fn somebody(&mut self, not: Option<Id>) -> Result<Option<(Id, Admin)>> {
        let Some((replica, ports)) = self.ready.any(&mut self.random, not) else {
            return Ok(None);
        };
        let admin = match self.known.get(&replica) {
            Some((same, admin)) if *same == ports => admin.clone(),
            _ => Admin::new(ports)?,
        };
        self.known.insert(replica, (ports, admin.clone()));
        Ok(Some((replica, admin)))
    }

    /// Runs one operation. Returns whether this replica answered it.
    async fn operate(&mut self, replica: Id, mut admin: Admin, key: usize) -> Result<bool> {
        let history = Arc::clone(&self.history);
        let (operation, write) = match self.random.below(20) {
            0..=6 => Write::begin(&history, replica, key, Action::Write, None),
            7..=8 => Write::begin(&history, replica, key, |_| Action::Delete, None),
            kind => {
                let read = if kind % 4 == 0 { Read::Stale } else { Read::Current };
                let invoked = history.now();
                let Ok(Ok(found)) = timeout(OPERATION, admin.read(key, read)).await else {
                    return Ok(false);
                };
                if read == Read::Current {
                    history.read(key, replica, invoked, found.value, found.revision);
                }
                if kind > 15 {
                    return Ok(true);
                }
                // Other writers may write meanwhile.
                let expected = found.value.map(|(value, _)| value);
                let version = found.value.map(|(_, version)| version.revision.0);
                let revision = Some(version.unwrap_or(found.revision));
                let swap = |new| Action::Swap(expected, new);
                Write::begin(&history, replica, key, swap, revision)
            }
        };
        let mut at = (replica, admin);
        let mut tries = self.random.below(TRIES_MAX);
        loop {
            match write.once(&history, operation, &mut at.1).await {
                Ok(()) => return Ok(at.0 == replica),
                Err(why) if tries == 0 => {
                    history.unknown(operation, why);
                    return Ok(false);
                }
                Err(_) => tries -= 1,
            }
            // The same request at another replica takes effect at most once.
            sleep(NOBODY).await;
            match self.somebody(Some(at.0))? {
                Some(other) => at = other,
                None => tries = 0,
            }
        }
    }
}

impl Write {
    /// Records the start of a write in the history.
    fn begin(
        history: &History,
        replica: Id,
        key: usize,
        make: impl FnOnce(u64) -> Action,
        if_revision: Option<u64>,
    ) -> (OperationId, Self) {
        let (operation, action) = history.begin(key, replica, make);
        let value = match action {
            Action::Write(new) | Action::Swap(_, new) => Some(value_text(new)),
            _ => None,
        };
        let request_id = format!("{:016x}{:016x}", history.id(), operation.number());
        (operation, Self { key, value, if_revision, request_id })
    }

    /// Sends the write and records the answer. Returns the reason if there is no answer.
    async fn once(
        &self,
        history: &History,
        operation: OperationId,
        admin: &mut Admin,
    ) -> Result<(), String> {
        match timeout(OPERATION, admin.send(self)).await {
            Ok(Ok(written)) => {
                let change = written.changes.first();
                let version = change.and_then(|change| Version::parse(&change.version));
                history.acked(operation, written.revision, version);
                Ok(())
            }
            Ok(Err(status))
                if matches!(status.code(), Code::FailedPrecondition | Code::NotFound)
                    && !is_outcome_unknown(&status) =>
            {
                history.refused(operation);
                Ok(())
            }
            Ok(Err(status)) => Err(format!("{:?} {}", status.code(), status.message())),
            Err(_) => Err(format!("no answer within {OPERATION:?}")),
        }
    }
}

/// Writes a register once. Returns whether there was an answer.
pub(crate) async fn write(history: &History, replica: Id, admin: &mut Admin, key: usize) -> bool {
    let (operation, write) = Write::begin(history, replica, key, Action::Write, None);
    let written = write.once(history, operation, admin).await;
    written.map_err(|why| history.unknown(operation, why)).is_ok()
}

/// Returns a cluster with a value.
fn cluster(name: &str, value: &str) -> serde_json::Value {
    let endpoint =
        json!({"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}});
    json!({
        "@type": CLUSTER,
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "alt_stat_name": value,
        "load_assignment": {"cluster_name": name, "endpoints": [
            {"lb_endpoints": [{"endpoint": endpoint}]},
        ]},
    })
}

/// Reads a register at a replica, with retries until a timeout.
pub(crate) async fn read_at_last(
    history: &History,
    replica: Id,
    admin: &mut Admin,
    key: usize,
) -> Result<()> {
    let deadline = tokio::time::Instant::now() + 4 * OPERATION;
    loop {
        let invoked = history.now();
        match timeout(OPERATION, admin.read(key, Read::Current)).await {
            Ok(Ok(found)) => {
                history.read(key, replica, invoked, found.value, found.revision);
                return Ok(());
            }
            other if tokio::time::Instant::now() > deadline => {
                return Err(anyhow!("cannot read {}: {other:?}", name(key)));
            }
            _ => sleep(NOBODY).await,
        }
    }
}
