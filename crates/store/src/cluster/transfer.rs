//! A snapshot on its way to another replica.
//!
//! Invariants:
//! - It is never there as a whole: its pieces are made as they are sent.
//! - It may take as long as it takes, however large it is and however slow the network and the other
//!   replica's disk, as long as something goes on: pieces are taken, or the other one says that it writes.
//!   When nothing has gone on for some time it is given up, and begun anew; sooner if the other one does not
//!   answer any more.
//! - It has a connection of its own, on which nothing waits behind it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_proto::raft::v1 as pb;
use futures::StreamExt;
use openraft::errors::Unreachable;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use super::{
    client::{Connection, Lane},
    codec,
};
use crate::{
    raft::{Types, Vote},
    raft_codec::{vote_from_proto, vote_to_proto},
    snapshot::{self, SnapshotData},
};

/// Pieces in which a snapshot travels.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of a snapshot that wait for the network; making them waits when there are so many.
const PIECES_WAITING: usize = 4;
/// In the time in which something has to go on it is looked so often whether it does.
const LOOKS: u32 = 10;
/// The other replica is not waited for longer than this when it is asked how far it is,
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// and is given up if it does not answer for so long.
const SILENCE: Duration = Duration::from_secs(5);

/// How far something has come, in bytes that were moved; only ever grows. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// So many more bytes were moved.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// All of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connection {
    /// Sends a snapshot, and returns when it has been taken over: with the other replica's vote. Gives up when
    /// nothing has gone on for `stall`.
    pub(super) async fn send_snapshot(
        &self,
        header: pb::Header,
        vote: &Vote,
        snapshot: SnapshotData,
        stall: Duration,
    ) -> Result<Vote, Unreachable<Types>> {
        let taken = Progress::default();
        let mut first = Some((header, vote_to_proto(vote)));
        let counted = taken.clone();
        let requests = pieces_of(snapshot).map(move |data| {
            counted.add(data.len());
            let (header, vote) = first.take().unzip();
            pb::InstallRequest { header, vote, data }
        });
        let client = self.client(Lane::Bulk);
        let mut client = client.map_err(|status| self.unreachable(status.message()))?;
        let answer = tokio::select! {
            answer = client.install(Request::new(requests)) => answer,
            () = self.stalls(&taken, stall) => {
                let text = format!(
                    "nothing of the snapshot was taken or written for {stall:?}, or it does not answer, after {} \
                     bytes were sent",
                    taken.bytes()
                );
                tracing::warn!(replica = self.target(), "a snapshot is begun anew: {text}");
                return Err(self.unreachable(text));
            }
        };
        let answer = answer.map_err(|status| self.unreachable(status.message()))?.into_inner();
        let vote = answer.vote.as_ref().map(vote_from_proto);
        vote.ok_or_else(|| self.unreachable("its answer to the snapshot has no vote"))
    }

    /// Returns when nothing has gone on for so long: no piece was taken, and the other replica has neither read
    /// nor written anything, or does not answer.
    async fn stalls(&self, taken: &Progress, limit: Duration) {
        let mut looks = tokio::time::interval((limit / LOOKS).max(Duration::from_millis(1)));
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last = (taken.bytes(), 0);
        let mut since = Instant::now();
        let mut answered = since;
        loop {
            looks.tick().await;
            let sent = taken.bytes();
            // As long as it takes pieces there is nothing to ask.
            let there = match sent == last.0 {
                true => self.ask_progress().await,
                false => Some(last.1),
            };
            if there.is_some() {
                answered = Instant::now();
            }
            let now = (sent, there.unwrap_or(last.1));
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= limit || answered.elapsed() >= SILENCE {
                return;
            }
        }
    }

    async fn ask_progress(&self) -> Option<u64> {
        let mut client = self.client(Lane::Control).ok()?;
        let call = client.hello(codec::hello(self.identity()));
        let hello = tokio::time::timeout(HELLO_TIMEOUT, call).await.ok()?.ok()?.into_inner();
        Some(hello.snapshot_progress)
    }
}

/// The bytes of a snapshot, made as they are sent.
fn pieces_of(snapshot: SnapshotData) -> impl futures::Stream<Item = Bytes> + Send + 'static {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING);
    tokio::task::spawn_blocking(move || {
        for piece in snapshot::pieces(snapshot.encode(), PIECE_BYTES) {
            if sender.blocking_send(piece).is_err() {
                // Whoever reads has given up.
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

#[cfg(test)]
mod tests;
