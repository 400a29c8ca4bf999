//! Writes on their way to the leader. Those that come while others are on their way go together.
//!
//! Invariants:
//! - A write that nobody waits for any more is not sent; one that was sent keeps its place among those in
//!   flight until it is answered.
//! - No call outlives the leader that it was made to.

use std::sync::{Arc, Weak};

use chancery_proto::raft::v1 as pb;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::client::Lane;
use crate::core::{Core, Leader};

/// Writes that wait to be sent; whoever writes waits when there are more.
const WAITING_MAX: usize = 4096;
/// Calls at a time.
const CALLS_MAX: usize = 4;
/// Writes in one call.
const BATCH_MAX: usize = 512;
/// Bytes of writes after which no other is added to a call.
const BATCH_BYTES: usize = 1 << 20;

/// The place of a write among those in flight.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// A write for the leader on another replica.
pub(crate) struct Parcel {
    /// The leader.
    pub(crate) to: Leader,
    pub(crate) command: pb::Command,
    /// Gets the leader's answer, and is dropped if there is none.
    pub(crate) answer: oneshot::Sender<pb::write_result::Result>,
    pub(crate) place: Option<Place>,
}

/// Where to put a write. Cheap to clone.
pub(crate) type Outbox = mpsc::Sender<Parcel>;

/// An outbox, and what is put into it.
pub(crate) fn channel() -> (Outbox, mpsc::Receiver<Parcel>) {
    mpsc::channel(WAITING_MAX)
}

/// Sends what is put into the outbox until the replica is gone. To be run on the runtime of the store.
pub(crate) async fn run(core: Weak<Core>, mut parcels: mpsc::Receiver<Parcel>) {
    let calls = Arc::new(Semaphore::new(CALLS_MAX));
    let mut left = None;
    // While all calls are under way the next batch gathers.
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

/// All that waits for the same leader, as far as it fits into one call. One for another leader is `left`.
fn gather(
    first: Parcel,
    parcels: &mut mpsc::Receiver<Parcel>,
    left: &mut Option<Parcel>,
) -> Vec<Parcel> {
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
    /// Takes writes to their leader and brings back the answers. Gives up when another one leads: the old one
    /// may never answer.
    async fn carry(&self, batch: Vec<Parcel>) {
        let Some(leader) = batch.first().map(|parcel| parcel.to.clone()) else { return };
        let Leader::There { id, address } = &leader else { return };
        let (mut commands, mut waiting) = (Vec::new(), Vec::new());
        for Parcel { command, answer, place, .. } in batch {
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
            // Unavailable is what the way there says, of a call that may have been half way.
            Err(status) => {
                tracing::debug!(leader = id, error = status.message(), "forwarded writes");
                return;
            }
        };
        for ((answer, _place), result) in waiting.into_iter().zip(results) {
            if let Some(result) = result.result {
                // Whoever wrote may have given up.
                drop(answer.send(result));
            }
        }
    }
}
