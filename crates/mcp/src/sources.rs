//! The handle to the configured sources.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use chancery_store::Replica;
use chancery_tls::PortTls;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    listen::{Gate, SinkService},
    metrics::Metrics,
    remote::{ConfirmRefusal, Confirmation, Direction, Remote},
    status::{CollectionStatus, Connection, SourceStatus},
    task::Task,
};

/// The number of confirmations that wait for the task of a source. Further ones wait.
const CONFIRMATIONS_MAX: usize = 16;

/// The configured sources. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Sources(Arc<[Handle]>);

/// The handle to the task of one source.
#[derive(Debug)]
struct Handle {
    status: Arc<Mutex<SourceStatus>>,
    /// Closed when the task has ended.
    confirmations: mpsc::Sender<Confirmation>,
    /// The address at which the source connects, and the service there.
    listener: Option<(SocketAddr, SinkService)>,
}

impl Sources {
    /// Creates the handle, and a task per source with its name, which the caller runs. A task keeps a stream to its source
    /// while `replica`, which has the ID `replica_id`, leads, with TLS if there are certificates. It ends when `stop` is
    /// cancelled. The caller serves [`Self::listeners`].
    pub fn new(
        remotes: Vec<Remote>,
        replica: &Replica,
        replica_id: u64,
        tls: Option<&PortTls>,
        stop: &CancellationToken,
    ) -> (Self, Vec<(String, impl Future<Output = ()> + Send + use<>)>) {
        let mut tasks = Vec::with_capacity(remotes.len());
        let start = |remote: Remote| {
            let name = remote.sink.source.clone();
            let status = Arc::new(Mutex::new(status(&remote)));
            let (confirmations, receiver) = mpsc::channel(CONFIRMATIONS_MAX);
            let (metrics, gate) = (Metrics::new(&remote.sink.source), Arc::new(Gate::default()));
            let listener = match &remote.direction {
                Direction::Connect(_) => None,
                Direction::Listen(address) => Some((
                    *address,
                    SinkService::new(
                        &remote,
                        Arc::clone(&gate),
                        replica.clone(),
                        metrics.refused.clone(),
                    ),
                )),
            };
            let task = Task {
                metrics,
                gate,
                status: Arc::clone(&status),
                replica: replica.clone(),
                replica_id,
                tls: tls.cloned(),
                confirmations: receiver,
                confirmed_until: BTreeMap::new(),
                remote,
            };
            tasks.push((format!("the task of the MCP source {name:?}"), task.run(stop.clone())));
            Handle { status, confirmations, listener }
        };
        let handles = remotes.into_iter().map(start).collect();
        (Self(handles), tasks)
    }

    /// Returns the addresses at which sources connect, with the service of each.
    pub fn listeners(&self) -> impl Iterator<Item = (SocketAddr, SinkService)> {
        self.0.iter().filter_map(|handle| handle.listener.clone())
    }

    /// Returns the status of all sources.
    #[must_use]
    pub fn status(&self) -> Vec<SourceStatus> {
        self.0.iter().map(|handle| handle.status.lock().clone()).collect()
    }

    /// Allows a held deletion.
    ///
    /// # Errors
    /// See [`ConfirmRefusal`].
    pub async fn confirm(
        &self,
        source: &str,
        collection: &str,
        token: &str,
    ) -> Result<(), ConfirmRefusal> {
        let handle = self.0.iter().find(|handle| handle.status.lock().name == source);
        let Some(handle) = handle else {
            return Err(ConfirmRefusal::UnknownSource(source.to_owned()));
        };
        let (reply, answer) = oneshot::channel();
        let (collection, token) = (collection.to_owned(), token.to_owned());
        let confirmation = Confirmation { collection, token, reply };
        let sent = handle.confirmations.send(confirmation).await;
        sent.map_err(|_| ConfirmRefusal::ShutDown)?;
        answer.await.unwrap_or(Err(ConfirmRefusal::ShutDown))
    }
}

fn status(remote: &Remote) -> SourceStatus {
    let Remote { direction, sink, .. } = remote;
    let (address, listen) = match direction {
        Direction::Connect(address) => (address.clone(), None),
        Direction::Listen(listen) => (String::new(), Some(*listen)),
    };
    let collections = sink.collections.iter().map(|name| CollectionStatus {
        name: name.clone(),
        n_accepted: 0,
        n_rejected: 0,
        held: None,
        last_rejection: None,
    });
    SourceStatus {
        name: sink.source.clone(),
        address,
        listen,
        peer: String::new(),
        scope: sink.scope.clone(),
        connection: Connection::Follower,
        last_error: None,
        collections: collections.collect(),
    }
}
