//! Linearizable reads: a replica waits until it has applied everything that was committed before the read.
//!
//! The leader confirms that it still leads, and returns its commit index (Raft's ReadIndex). This replica
//! then waits until it has applied that entry. One call serves all readers that arrived during the previous
//! call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_raft_proto::v1 as pb;
use openraft::ReadPolicy;
use tokio::sync::{mpsc, oneshot};

use crate::{
    ReadError,
    disk::published::Published,
    replication::{
        calls::Calls,
        peers::Lane,
        raft_node::{Leader, RaftNode},
    },
};

/// The maximum number of readers that wait for the next call. Further ones wait.
const WAITING_MAX: usize = 4096;
/// The maximum duration of a round. After it, all its readers fail.
const ROUND_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two attempts of a round.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

type Answer = Result<(), ReadError>;

/// The queue of waiting readers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ReadQueue(mpsc::Sender<oneshot::Sender<Answer>>);

impl ReadQueue {
    /// Waits until this replica has applied everything that was committed before the call.
    pub(crate) async fn wait(&self, timeout: Duration) -> Answer {
        let (answer, answered) = oneshot::channel();
        let wait = async {
            if self.0.send(answer).await.is_err() {
                return Err(ReadError::NoLeader);
            }
            answered.await.unwrap_or(Err(ReadError::NoLeader))
        };
        tokio::time::timeout(timeout, wait).await.unwrap_or(Err(ReadError::Behind(timeout)))
    }
}

/// Determines what is committed, by asking the leader.
pub(crate) struct ReadIndex {
    pub(crate) node: Arc<RaftNode>,
    pub(crate) calls: Calls,
    pub(crate) published: Published,
}

impl ReadIndex {
    /// Spawns the task that asks the leader for the readers of a queue. It ends when the last clone of the
    /// queue is dropped.
    pub(crate) fn spawn(self: Arc<Self>) -> ReadQueue {
        let (sender, mut waiting) = mpsc::channel(WAITING_MAX);
        let runtime = self.calls.runtime.clone();
        runtime.spawn(async move {
            let mut batch: Vec<oneshot::Sender<Answer>> = Vec::new();
            while waiting.recv_many(&mut batch, WAITING_MAX).await > 0 {
                let answer = self.catch_up_with_leader(ROUND_TIMEOUT).await;
                for waiter in batch.drain(..) {
                    drop(waiter.send(answer.clone()));
                }
            }
        });
        ReadQueue(sender)
    }

    async fn catch_up_with_leader(&self, timeout: Duration) -> Answer {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let index = loop {
            let leader = self.node.leader();
            let found = match &leader {
                Some(Leader::Here) => self.read_index(left()).await,
                // A former leader may never answer.
                Some(there @ Leader::There { id, address }) => tokio::select! {
                    found = self.ask_leader(*id, address, left()) => found,
                    () = self.node.leader_changes(Some(there)) => None,
                },
                None => None,
            };
            match found {
                Some(index) => break index,
                None if left() <= RETRY_INTERVAL => return Err(ReadError::NoLeader),
                None => {
                    let wait = if leader.is_none() { left() } else { RETRY_INTERVAL };
                    drop(
                        tokio::time::timeout(wait, self.node.leader_changes(leader.as_ref())).await,
                    );
                }
            }
        };
        if self.published.applied_within(index, left()).await {
            Ok(())
        } else {
            Err(ReadError::Behind(timeout))
        }
    }

    /// Returns the commit index of this replica as the leader; `None` if it does not lead.
    async fn read_index(&self, timeout: Duration) -> Option<u64> {
        if self.node.has_ended() {
            return None;
        }
        // No other replica can take over from a sole voter, so its lease suffices.
        let policy =
            if self.node.is_sole_voter() { ReadPolicy::LeaseRead } else { ReadPolicy::ReadIndex };
        let read = self.node.raft.get_read_linearizer(policy);
        let linearizer = tokio::time::timeout(timeout, read).await.ok()?.ok()?;
        Some(linearizer.read_log_id().index())
    }

    async fn ask_leader(&self, id: u64, address: &str, timeout: Duration) -> Option<u64> {
        let header = Some(self.calls.header(id));
        let mut client = self.calls.client(address, Lane::Control).ok()?;
        let call = client.read_index(pb::ReadIndexRequest { header });
        let answer = tokio::time::timeout(timeout, call).await.ok()?.ok()?.into_inner();
        match answer.result? {
            pb::read_index_response::Result::Index(index) => Some(index),
            pb::read_index_response::Result::NotLeader(_) => None,
        }
    }

    /// Answers a ReadIndex call of another replica.
    pub(crate) async fn answer(&self) -> pb::ReadIndexResponse {
        use pb::read_index_response::Result;
        let result = match self.read_index(ROUND_TIMEOUT).await {
            Some(index) => Result::Index(index),
            None => Result::NotLeader(pb::NotLeader { leader: 0 }),
        };
        pb::ReadIndexResponse { result: Some(result) }
    }
}
