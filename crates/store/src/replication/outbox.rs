//! Sends forwarded writes to the leader in batches.
//!
//! Invariants:
//! - A write without a waiting caller is not sent. A write that was sent counts as in flight
//!   until it is answered.
//! - Either a call claims a write and sends it, or its caller claims it when it stops waiting. A write without a claim
//!   of a call was surely not sent.
//! - A call ends when its callee is no longer the leader.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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
    to: Leader,
    command: pb::Command,
    /// Receives the leader's answer. Dropped without one.
    answer: oneshot::Sender<pb::write_result::Result>,
    permit: Option<InFlight>,
    /// Set by the call that sends the write, or by the caller that stops waiting.
    claimed: Arc<AtomicBool>,
}

/// The answer that the caller of a write awaits.
pub(crate) struct AwaitedAnswer {
    answer: oneshot::Receiver<pb::write_result::Result>,
    claimed: Arc<AtomicBool>,
}

/// The result of waiting for an answer.
#[derive(Debug)]
pub(crate) enum Answered {
    Result(pb::write_result::Result),
    /// No call has sent the write, and none will.
    NotSent,
    /// A call may have sent the write, but there is no answer.
    Unknown,
}

/// The queue of writes to send. Cheap to clone.
pub(crate) type Outbox = mpsc::Sender<ForwardedWrite>;

/// Creates an outbox and its receiver.
pub(crate) fn channel() -> (Outbox, mpsc::Receiver<ForwardedWrite>) {
    mpsc::channel(WAITING_MAX)
}

// === impl ForwardedWrite ===

impl ForwardedWrite {
    /// Creates a write for `to`, and the end of its caller.
    pub(crate) fn new(
        to: Leader,
        command: pb::Command,
        permit: Option<InFlight>,
    ) -> (Self, AwaitedAnswer) {
        let (answer, answered) = oneshot::channel();
        let claimed = Arc::new(AtomicBool::new(false));
        let awaited = AwaitedAnswer { answer: answered, claimed: Arc::clone(&claimed) };
        (Self { to, command, answer, permit, claimed }, awaited)
    }
}

// === impl AwaitedAnswer ===

impl AwaitedAnswer {
    /// Waits for the answer until `deadline`. Afterwards, no call sends the write.
    pub(crate) async fn until(self, deadline: Instant) -> Answered {
        let Self { answer, claimed } = self;
        match tokio::time::timeout_at(deadline.into(), answer).await {
            Ok(Ok(result)) => Answered::Result(result),
            Ok(Err(_)) | Err(_) if claim(&claimed) => Answered::NotSent,
            Ok(Err(_)) | Err(_) => Answered::Unknown,
        }
    }
}

/// Claims a write. Returns whether the other side has not claimed it before.
fn claim(claimed: &AtomicBool) -> bool {
    !claimed.swap(true, Ordering::AcqRel)
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
        // Without a client, the callers learn that nothing was sent.
        let Ok(mut client) = self.calls.client(address, Lane::Data) else { return };
        let (mut commands, mut waiting) = (Vec::new(), Vec::new());
        for ForwardedWrite { command, answer, permit, claimed, .. } in batch {
            if claim(&claimed) {
                commands.push(command);
                waiting.push((answer, permit));
            }
        }
        if commands.is_empty() {
            return;
        }
        let header = Some(self.calls.header(*id));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Replica};

    fn write() -> (ForwardedWrite, AwaitedAnswer) {
        // No connection can have this address.
        let leader = Leader::There { id: 9, address: "not an address".into() };
        ForwardedWrite::new(leader, pb::Command::default(), None)
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[tokio::test]
    async fn write_in_the_queue_at_its_deadline_is_never_sent() {
        let (queued, awaited) = write();
        let answered = awaited.until(Instant::now()).await;
        assert!(matches!(answered, Answered::NotSent), "{answered:?}");
        assert!(!claim(&queued.claimed), "no call sends it");
    }

    #[tokio::test]
    async fn outcome_is_unknown_only_after_a_call_has_claimed_the_write() {
        let (dropped, awaited) = write();
        drop(dropped);
        let answered = awaited.until(far()).await;
        assert!(matches!(answered, Answered::NotSent), "{answered:?}");
        let (sent, awaited) = write();
        assert!(claim(&sent.claimed));
        drop(sent);
        let answered = awaited.until(far()).await;
        assert!(matches!(answered, Answered::Unknown), "{answered:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn write_for_an_address_without_a_client_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().to_owned();
        let config = Config { data_dir, free_bytes_min: 0, ..Config::default() };
        let replica = Replica::open(config).await.unwrap();
        let core = replica.core();
        let sender = Sender {
            node: Arc::clone(&core.node),
            calls: core.calls.clone(),
            forwarded_writes: Counter::noop(),
            transact_timeout: Duration::from_secs(3600),
        };
        let (write, awaited) = write();
        core.calls.runtime.spawn(async move { sender.send(vec![write]).await }).await.unwrap();
        let answered = awaited.until(far()).await;
        assert!(matches!(answered, Answered::NotSent), "{answered:?}");
        replica.shutdown().await.unwrap();
    }
}
