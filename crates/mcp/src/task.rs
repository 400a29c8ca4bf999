//! The task of one source: keeps a stream to it while this replica leads (MCP-70), and answers its messages.

use std::{collections::BTreeMap, convert::Infallible, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_net::Backoff;
use chancery_proto::istio::mcp::v1alpha1::RequestResources;
use chancery_store::Replica;
use chancery_tls::PortTls;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use crate::{
    dial::{self, shown},
    ingest::{Answer, ingest, off_runtime, with_sink},
    listen::{Gate, Incoming},
    message::{Resources, decode},
    metrics::Metrics,
    remote::{ConfirmRefusal, Confirmation, Direction, Remote},
    requests::Requests,
    sink::{HELD, Sink, is_trigger},
    status::{Connection, HeldDeletion, SourceStatus},
};

/// The interval between checks of who leads.
const LEADER_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum time until the leader has applied everything that is committed.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for which a confirmation applies.
const CONFIRMATION_LASTS: Duration = Duration::from_secs(60);
/// The maximum time for the source to receive the last answer of a stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The task of one source.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) remote: Remote,
    pub(crate) replica: Replica,
    pub(crate) replica_id: u64,
    pub(crate) status: Arc<Mutex<SourceStatus>>,
    pub(crate) metrics: Metrics,
    /// The certificates for the connections that Chancery opens.
    pub(crate) tls: Option<PortTls>,
    /// Admits streams of the source, if the source opens them.
    pub(crate) gate: Arc<Gate>,
    /// Closed when all handles are gone. The task continues.
    pub(crate) confirmations: mpsc::Receiver<Confirmation>,
    /// The times at which confirmations expire, by collection.
    pub(crate) confirmed_until: BTreeMap<String, Instant>,
}

impl Task {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (replica, id) = (self.replica.clone(), self.replica_id);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.follow() => {}
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = leadership(&replica, id, false) => {}
                never = self.lead() => match never {},
            }
            self.gate.close();
            self.disconnected(Connection::Follower);
            for collection in &mut self.status.lock().collections {
                (collection.held, collection.last_rejection) = (None, None);
            }
            self.metrics.held_deletions.set(0.0);
            info!(
                source = self.name(),
                "this replica no longer leads, so it has no stream to the MCP source"
            );
        }
        self.gate.shut_down();
    }

    fn name(&self) -> &str {
        &self.remote.sink.source
    }

    /// Waits until this replica leads.
    async fn follow(&mut self) {
        let (replica, id) = (self.replica.clone(), self.replica_id);
        let mut leads = pin!(leadership(&replica, id, true));
        loop {
            tokio::select! {
                () = &mut leads => return,
                Some(Confirmation { reply, .. }) = self.confirmations.recv() => {
                    drop(reply.send(Err(ConfirmRefusal::NotLeader(replica.leader()))));
                }
            }
        }
    }

    /// Keeps a stream, whoever opens it (MCP-03).
    async fn lead(&mut self) -> Infallible {
        let mut sink = Sink::new(self.remote.sink.clone());
        match self.remote.direction.clone() {
            Direction::Connect(address) => self.dial(&mut sink, &address).await,
            Direction::Listen(_) => self.admit(&mut sink).await,
        }
    }

    /// Opens one stream after the other (MCP-66).
    async fn dial(&mut self, sink: &mut Sink, address: &str) -> Infallible {
        let mut backoff = Backoff::default();
        loop {
            self.status.lock().connection = Connection::Connecting;
            let start = Instant::now();
            let ended = self.dial_once(sink, address).await;
            let delay = backoff.after(start.elapsed());
            self.ended(ended, Connection::Connecting, Some(delay));
            let mut pause = pin!(sleep(delay));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    // The first request of the next stream asks for the state.
                    Some(confirmation) = self.confirmations.recv() => {
                        let _ = self.confirm(sink, confirmation).await;
                    }
                }
            }
        }
    }

    async fn dial_once(&mut self, sink: &mut Sink, address: &str) -> Result<(), String> {
        self.catch_up().await?;
        let channel = dial::connect(address, self.tls.clone()).await?;
        let (requests, sent) = Requests::new(self.remote.sink.collections.len(), None);
        info!(source = self.name(), address, "a connection to the MCP source is open");
        let opening = dial::open(channel, sent, self.remote.message_bytes_max);
        self.exchange(sink, requests, opening).await
    }

    /// Serves one stream after the other that the source opens (MCP-04).
    async fn admit(&mut self, sink: &mut Sink) -> Infallible {
        loop {
            self.status.lock().connection = Connection::Waiting;
            let mut stream = self.gate.open();
            let incoming = loop {
                tokio::select! {
                    incoming = &mut stream => break incoming,
                    // The first request of the next stream asks for the state.
                    Some(confirmation) = self.confirmations.recv() => {
                        let _ = self.confirm(sink, confirmation).await;
                    }
                }
            };
            // The gate drops the sender only when the next call of `open` replaces it.
            let Ok(Incoming { peer, mut requests, messages }) = incoming else { continue };
            let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
            info!(source = self.name(), peer, "the MCP source has opened a stream");
            self.status.lock().peer = peer;
            let ended = match self.catch_up().await {
                Ok(()) => self.exchange(sink, requests, std::future::ready(Ok(messages))).await,
                Err(error) => {
                    requests.end = Some(Status::unavailable(error.as_str()));
                    Err(error)
                }
            };
            self.status.lock().peer.clear();
            self.ended(ended, Connection::Waiting, None);
        }
    }

    /// Waits until this replica has applied all committed entries, so that the sink lists current versions.
    async fn catch_up(&self) -> Result<(), String> {
        let barrier = self.replica.read_barrier(BARRIER_TIMEOUT).await;
        barrier.map_err(|error| error.to_string())
    }

    /// Records the end of a stream.
    fn ended(&self, ended: Result<(), String>, connection: Connection, delay: Option<Duration>) {
        let error = ended.err().unwrap_or_else(|| "the source ended the stream".to_owned());
        self.disconnected(connection);
        self.metrics.errors.increment(1);
        warn!(source = self.name(), error, ?delay, "no stream to the MCP source");
        self.status.lock().last_error = Some(error);
    }

    fn disconnected(&self, connection: Connection) {
        let mut status = self.status.lock();
        (status.connection, status.peer) = (connection, String::new());
        self.metrics.connected.set(0.0);
    }

    /// Requests the collections, and answers each message until the stream ends.
    async fn exchange(
        &mut self,
        sink: &mut Sink,
        mut requests: Requests,
        opening: impl Future<Output = Result<Streaming<Bytes>, String>>,
    ) -> Result<(), String> {
        let ended = self.answer(sink, &requests, opening).await;
        match &ended {
            Ok(Ended::BySource) => requests.end = None,
            Ok(Ended::Here { reason, .. }) | Err(reason) => {
                requests.end = Some(Status::aborted(reason.as_str()));
            }
        }
        match ended? {
            Ended::BySource => Ok(()),
            Ended::Here { reason, messages } => {
                close(requests, messages).await;
                Err(reason)
            }
        }
    }

    async fn answer(
        &mut self,
        sink: &mut Sink,
        requests: &Requests,
        opening: impl Future<Output = Result<Streaming<Bytes>, String>>,
    ) -> Result<Ended, String> {
        let state = self.replica.state();
        for request in with_sink(sink, move |sink| sink.open(&state)).await? {
            requests.send(request)?;
        }
        // Some sources answer the call only with their first message.
        self.status.lock().connection = Connection::Connected;
        self.metrics.connected.set(1.0);
        let mut opening = pin!(opening);
        let mut messages = loop {
            tokio::select! {
                messages = &mut opening => break messages?,
                Some(confirmation) = self.confirmations.recv() => {
                    self.confirm(sink, confirmation).await.map_or(Ok(()), |request| requests.send(request))?;
                }
            }
        };
        loop {
            tokio::select! {
                message = messages.message() => {
                    let Some(bytes) = message.map_err(|status| shown(&status))? else {
                        return Ok(Ended::BySource);
                    };
                    let message = Arc::new(off_runtime(move || decode(bytes)).await??);
                    let until = self.confirmed_until.get(&message.collection);
                    if until.is_some_and(|until| *until < Instant::now()) {
                        sink.withdraw_confirmation(&message.collection);
                    }
                    let Answer { request, ends_stream } = ingest(sink, &self.replica, &message).await?;
                    if !is_trigger(&message.collection) {
                        self.note(sink, &message, &request);
                    }
                    let error = request.error_detail.as_ref().map(|error| error.message.clone());
                    // Freeing many resources takes long, too.
                    off_runtime(move || drop(message)).await?;
                    requests.send(request)?;
                    if ends_stream {
                        let (reason, messages) = (error.unwrap_or_default(), Box::new(messages));
                        return Ok(Ended::Here { reason, messages });
                    }
                }
                Some(confirmation) = self.confirmations.recv() => {
                    self.confirm(sink, confirmation).await.map_or(Ok(()), |request| requests.send(request))?;
                }
            }
        }
    }

    /// Confirms a held deletion. Returns the request after which the source sends its state again.
    async fn confirm(
        &mut self,
        sink: &mut Sink,
        confirmation: Confirmation,
    ) -> Option<RequestResources> {
        let Confirmation { collection, token, reply } = confirmation;
        let (state, wanted) = (self.replica.state(), (collection.clone(), token.clone()));
        let confirm = move |sink: &mut Sink| sink.confirm(&wanted.0, &wanted.1, &state);
        // The dropped sender reports the failure.
        let confirmed = with_sink(sink, confirm).await.ok()?;
        match confirmed {
            Ok(request) => {
                info!(source = self.name(), collection, token, "the deletion is confirmed");
                let until = Instant::now() + CONFIRMATION_LASTS;
                self.confirmed_until.insert(collection.clone(), until);
                self.show_held(sink);
                let mut status = self.status.lock();
                let shown = status.collections.iter_mut();
                for shown in shown.filter(|shown| shown.name.as_str() == collection) {
                    shown.last_rejection = None;
                }
                drop(status);
                drop(reply.send(Ok(())));
                Some(request)
            }
            Err(error) => {
                drop(reply.send(Err(error.into())));
                None
            }
        }
    }

    /// Records the answer to a message.
    fn note(&self, sink: &Sink, message: &Resources, answer: &RequestResources) {
        self.show_held(sink);
        let is_held = answer.error_detail.as_ref().is_some_and(|error| error.code == HELD);
        let mut status = self.status.lock();
        let name = message.collection.as_str();
        let collection = status.collections.iter_mut().find(|one| one.name.as_str() == name);
        let rejection = answer.error_detail.as_ref().map(|error| error.message.clone());
        match &rejection {
            None => self.metrics.accepted.increment(1),
            Some(_) if is_held => self.metrics.held.increment(1),
            Some(_) => self.metrics.rejected.increment(1),
        }
        if let Some(reason) = &rejection {
            warn!(
                source = self.name(),
                collection = name,
                reason,
                "rejected a message of the MCP source"
            );
        } else {
            debug!(source = self.name(), collection = name, "accepted a message of the MCP source");
        }
        let Some(collection) = collection else { return };
        collection.n_accepted += u64::from(rejection.is_none());
        collection.n_rejected += u64::from(rejection.is_some() && !is_held);
        collection.last_rejection = rejection;
    }

    /// Shows the held deletions.
    fn show_held(&self, sink: &Sink) {
        let mut status = self.status.lock();
        let mut n_deletions = 0_u32;
        for collection in &mut status.collections {
            let held = sink.held(&collection.name).map(|deletion| HeldDeletion {
                n_deletions: deletion.names.len(),
                n_stored: deletion.n_stored,
                token: deletion.token.clone(),
            });
            if let Some(held) = &held {
                let n = u32::try_from(held.n_deletions).unwrap_or(u32::MAX);
                n_deletions = n_deletions.saturating_add(n);
            }
            collection.held = held;
        }
        self.metrics.held_deletions.set(n_deletions);
    }
}

/// Waits until the replica leads, or no longer leads.
async fn leadership(replica: &Replica, id: u64, wanted: bool) {
    while (replica.leader() == Some(id)) != wanted {
        sleep(LEADER_INTERVAL).await;
    }
}

/// How a stream ended.
enum Ended {
    BySource,
    /// The sink ends the stream after its last answer.
    Here {
        reason: String,
        messages: Box<Streaming<Bytes>>,
    },
}

/// Ends a stream after its last answer.
async fn close(requests: Requests, mut messages: Box<Streaming<Bytes>>) {
    drop(requests);
    let end = async { while let Ok(Some(_)) = messages.message().await {} };
    drop(timeout(CLOSE_TIMEOUT, end).await);
}
