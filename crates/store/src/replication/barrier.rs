//! Linearizable reads: a replica waits until it has applied everything that was committed before the read.
//!
//! The leader confirms that it still leads, and returns its commit index (Raft's ReadIndex). This replica
//! then waits until it has applied that entry. One call serves all readers that arrived during the previous
//! call.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use chancery_proto::raft::v1 as pb;
use openraft::ReadPolicy;
use tokio::sync::{mpsc, oneshot};

use super::client::Lane;
use crate::{
    ReadError,
    replication::core::{Core, Leader},
};

/// The maximum number of readers that wait for the next call. Further ones wait for room.
const WAITING_MAX: usize = 4096;
/// The maximum duration of a round. After it, all its readers fail.
const ROUND_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two attempts of a round.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

type Answer = Result<(), ReadError>;

/// The queue of waiting readers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Barrier(mpsc::Sender<oneshot::Sender<Answer>>);

impl Barrier {
    /// Spawns the task that asks the leader. It ends when the last barrier is dropped.
    pub(crate) fn spawn(core: &Arc<Core>) -> Self {
        let (sender, mut waiting) = mpsc::channel(WAITING_MAX);
        let shared = Arc::downgrade(core);
        core.runtime.spawn(async move {
            let mut batch: Vec<oneshot::Sender<Answer>> = Vec::new();
            while waiting.recv_many(&mut batch, WAITING_MAX).await > 0 {
                let Some(core) = shared.upgrade() else { return };
                let answer = core.catch_up_with_leader(ROUND_TIMEOUT).await;
                drop(core);
                for waiter in batch.drain(..) {
                    drop(waiter.send(answer.clone()));
                }
            }
        });
        Self(sender)
    }

    /// Waits until this replica has applied everything that was committed before the call.
    pub(crate) async fn pass(&self, timeout: Duration) -> Answer {
        let (answer, answered) = oneshot::channel();
        let pass = async {
            if self.0.send(answer).await.is_err() {
                return Err(ReadError::NoLeader);
            }
            answered.await.unwrap_or(Err(ReadError::NoLeader))
        };
        tokio::time::timeout(timeout, pass).await.unwrap_or(Err(ReadError::Behind(timeout)))
    }
}

impl Core {
    async fn catch_up_with_leader(&self, timeout: Duration) -> Answer {
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let index = loop {
            let leader = self.leader();
            let found = match &leader {
                Some(Leader::Here) => self.read_index(left()).await,
                // A former leader may never answer.
                Some(there @ Leader::There { id, address }) => tokio::select! {
                    found = self.ask(*id, address, left()) => found,
                    () = self.leader_changes(Some(there)) => None,
                },
                None => None,
            };
            match found {
                Some(index) => break index,
                None if left() <= RETRY_INTERVAL => return Err(ReadError::NoLeader),
                None => {
                    let wait = if leader.is_none() { left() } else { RETRY_INTERVAL };
                    drop(tokio::time::timeout(wait, self.leader_changes(leader.as_ref())).await);
                }
            }
        };
        match self.applied(index, left()).await {
            true => Ok(()),
            false => Err(ReadError::Behind(timeout)),
        }
    }

    /// Returns the commit index of this replica as the leader; `None` if it does not lead.
    async fn read_index(&self, timeout: Duration) -> Option<u64> {
        if self.raft_ended.load(Ordering::Relaxed) {
            return None;
        }
        // No other replica can take over from a sole voter, so its lease suffices.
        let policy = match self.is_sole_voter() {
            true => ReadPolicy::LeaseRead,
            false => ReadPolicy::ReadIndex,
        };
        let read = self.raft.get_read_linearizer(policy);
        let linearizer = tokio::time::timeout(timeout, read).await.ok()?.ok()?;
        Some(linearizer.read_log_id().index())
    }

    async fn ask(&self, id: u64, address: &str, timeout: Duration) -> Option<u64> {
        let header = Some(self.peers.header(self.identity, id));
        let mut client = self.peers.client(address, Lane::Control).ok()?;
        let call = client.read_index(pb::ReadIndexRequest { header });
        let answer = tokio::time::timeout(timeout, call).await.ok()?.ok()?.into_inner();
        match answer.result? {
            pb::read_index_response::Result::Index(index) => Some(index),
            pb::read_index_response::Result::NotLeader(_) => None,
        }
    }

    /// Answers a ReadIndex call of another replica.
    pub(crate) async fn take_read_index(&self) -> pb::ReadIndexResponse {
        use pb::read_index_response::Result;
        let result = match self.read_index(ROUND_TIMEOUT).await {
            Some(index) => Result::Index(index),
            None => Result::NotLeader(pb::NotLeader { leader: 0 }),
        };
        pb::ReadIndexResponse { result: Some(result) }
    }
}
