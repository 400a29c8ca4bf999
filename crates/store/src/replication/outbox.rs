//! Sends forwarded writes to the leader in batches.
//!
//! Invariants:
//! - A write without a waiting caller is not sent. A write that was sent keeps its place among those in
//!   flight until it is answered.
//! - A call ends when its callee is no longer the leader.

use std::sync::{Arc, Weak};

use chancery_proto::raft::v1 as pb;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::client::Lane;
use crate::replication::core::{Core, Leader};

/// The maximum number of writes that wait to be sent. Further callers wait for room.
const WAITING_MAX: usize = 4096;
/// The maximum number of concurrent calls.
const CALLS_MAX: usize = 4;
/// The maximum number of writes in one call.
const BATCH_MAX: usize = 512;
/// The number of bytes at which a call takes no further write.
const BATCH_BYTES: usize = 1 << 20;

/// The place of a write among those in flight.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// A write for the leader on another replica.
pub(crate) struct ForwardedWrite {
    /// The leader to send to.
    pub(crate) to: Leader,
    pub(crate) command: pb::Command,
    /// Receives the leader's answer. Dropped without one.
    pub(crate) answer: oneshot::Sender<pb::write_result::Result>,
    pub(crate) place: Option<Place>,
}

/// The queue of writes to send. Cheap to clone.
pub(crate) type Outbox = mpsc::Sender<ForwardedWrite>;

/// Creates an outbox and its receiver.
pub(crate) fn channel() -> (Outbox, mpsc::Receiver<ForwardedWrite>) {
    mpsc::channel(WAITING_MAX)
}

/// Sends the writes of an outbox until the replica is dropped. The caller spawns this on the runtime of the
/// store.
pub(crate) async fn run(core: Weak<Core>, mut parcels: mpsc::Receiver<ForwardedWrite>) {
    let calls = Arc::new(Semaphore::new(CALLS_MAX));
    let mut left = None;
    // While all calls are in progress, the next batch accumulates.
    while let Ok(call) = Arc::clone(&calls).acquire_owned().await {
        let first = match left.take() {
            Some(first) => Some(first),
            None => parcels.recv().await,
        };
        let Some(first) = first else { return };
        let batch = gather(first, &mut parcels, &mut left);
        let Some(core) = core.upgrade() else { return };
        tokio::spawn(async move {
            core.carry(batch).await;
            drop(call);
        });
    }
}

/// Takes waiting writes for the same leader that fit into one call. A write for another leader goes to
/// `left`.
fn gather(
    first: ForwardedWrite,
    parcels: &mut mpsc::Receiver<ForwardedWrite>,
    left: &mut Option<ForwardedWrite>,
) -> Vec<ForwardedWrite> {
    let mut bytes = first.command.encoded_len();
    let mut batch = vec![first];
    while bytes < BATCH_BYTES && batch.len() < BATCH_MAX {
        match parcels.try_recv() {
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
    batch.retain(|parcel| !parcel.answer.is_closed());
    batch
}

impl Core {
    /// Sends writes to their leader and returns the answers. Gives up when the leader changes, because
    /// the old one may never answer.
    async fn carry(&self, batch: Vec<ForwardedWrite>) {
        let Some(leader) = batch.first().map(|parcel| parcel.to.clone()) else { return };
        let Leader::There { id, address } = &leader else { return };
        let (mut commands, mut waiting) = (Vec::new(), Vec::new());
        for ForwardedWrite { command, answer, place, .. } in batch {
            commands.push(command);
            waiting.push((answer, place));
        }
        let header = Some(self.peers.header(self.identity, *id));
        let Ok(mut client) = self.peers.client(address, Lane::Data) else { return };
        self.metrics.forwarded_writes.increment(commands.len() as u64);
        let response = tokio::select! {
            response = client.write(pb::WriteRequest { header, commands }) => response,
            () = self.leader_changes(Some(&leader)) => return,
            () = tokio::time::sleep(self.config.transact_timeout) => return,
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
        for ((answer, _place), result) in waiting.into_iter().zip(results) {
            if let Some(result) = result.result {
                // Fails if the caller has given up.
                drop(answer.send(result));
            }
        }
    }
}
