//! Sends forwarded writes to the leader in batches.
//!
//! Invariants:
//! - A write without a waiting caller is not sent. A write that was sent counts as in flight
//!   until it is answered.
//! - A call ends when its callee is no longer the leader.

use std::{sync::Arc, time::Duration};

use chancery_raft_proto::v1 as pb;
use metrics::Counter;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::replication::{
    calls::Calls,
    peers::Lane,
    raft_node::{Leader, RaftNode},
};

/// The maximum number of writes that wait to be sent. Further callers wait.
const WAITING_MAX: usize = 4096;
/// The maximum number of concurrent calls.
const CALLS_MAX: usize = 4;
/// The maximum number of writes in one call.
const BATCH_MAX: usize = 512;
/// The number of bytes at which a call takes no further write.
const BATCH_BYTES: usize = 1 << 20;

/// The permit of a write that is in flight.
pub(crate) type InFlight = Arc<OwnedSemaphorePermit>;

/// A write for the leader on another replica.
pub(crate) struct ForwardedWrite {
    /// The leader to send to.
    pub(crate) to: Leader,
    pub(crate) command: pb::Command,
    /// Receives the leader's answer. Dropped without one.
    pub(crate) answer: oneshot::Sender<pb::write_result::Result>,
    pub(crate) permit: Option<InFlight>,
}

/// The queue of writes to send. Cheap to clone.
pub(crate) type Outbox = mpsc::Sender<ForwardedWrite>;

/// Creates an outbox and its receiver.
pub(crate) fn channel() -> (Outbox, mpsc::Receiver<ForwardedWrite>) {
    mpsc::channel(WAITING_MAX)
}

/// Takes waiting writes for the same leader that fit into one call. A write for another leader goes to
/// `left`.
fn gather(
    first: ForwardedWrite,
    writes: &mut mpsc::Receiver<ForwardedWrite>,
    left: &mut Option<ForwardedWrite>,
) -> Vec<ForwardedWrite> {
    let mut bytes = first.command.encoded_len();
    let mut batch = vec![first];
    while bytes < BATCH_BYTES && batch.len() < BATCH_MAX {
        match writes.try_recv() {
            Ok(next) if next.to == batch[0].to => {
                bytes += next.command.encoded_len();
                batch.push(next);
            }
            Ok(other) => {
                *left = Some(other);
                break;
            }
            Err(_) => break,
        }
    }
    batch.retain(|write| !write.answer.is_closed());
    batch
}

/// The task that sends the writes of an outbox.
pub(crate) struct Sender {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) calls: Calls,
    /// The number of writes that were sent.
    pub(crate) forwarded_writes: Counter,
    pub(crate) transact_timeout: Duration,
}

impl Sender {
    /// Sends writes until the outbox is dropped. Must be spawned on the runtime of the store.
    pub(crate) async fn run(self, mut writes: mpsc::Receiver<ForwardedWrite>) {
        let sender = Arc::new(self);
        let calls = Arc::new(Semaphore::new(CALLS_MAX));
        let mut left = None;
        // While all calls are in progress, the next batch accumulates.
        while let Ok(call) = Arc::clone(&calls).acquire_owned().await {
            let first = match left.take() {
                Some(first) => Some(first),
                None => writes.recv().await,
            };
            let Some(first) = first else { return };
            let batch = gather(first, &mut writes, &mut left);
            let sender = Arc::clone(&sender);
            tokio::spawn(async move {
                sender.send(batch).await;
                drop(call);
            });
        }
    }

    /// Sends writes to their leader and returns the answers. Gives up when the leader changes, because
    /// the old one may never answer.
    async fn send(&self, batch: Vec<ForwardedWrite>) {
        let Some(leader) = batch.first().map(|write| write.to.clone()) else { return };
        let Leader::There { id, address } = &leader else { return };
        let (mut commands, mut waiting) = (Vec::new(), Vec::new());
        for ForwardedWrite { command, answer, permit, .. } in batch {
            commands.push(command);
            waiting.push((answer, permit));
        }
        let header = Some(self.calls.header(*id));
        let Ok(mut client) = self.calls.client(address, Lane::Data) else { return };
        self.forwarded_writes.increment(commands.len() as u64);
        let response = tokio::select! {
            response = client.write(pb::WriteRequest { header, commands }) => response,
            () = self.node.leader_changes(Some(&leader)) => return,
            () = tokio::time::sleep(self.transact_timeout) => return,
        };
        let results = match response {
            Ok(response) => response.into_inner().results,
            // The status says nothing about the outcome: the call may have been half done.
            Err(status) => {
                tracing::debug!(
                    leader = id,
                    error = status.message(),
                    "a call with forwarded writes failed"
                );
                return;
            }
        };
        for ((answer, _permit), result) in waiting.into_iter().zip(results) {
            if let Some(result) = result.result {
                // Fails if the caller has given up.
                drop(answer.send(result));
            }
        }
    }
}
