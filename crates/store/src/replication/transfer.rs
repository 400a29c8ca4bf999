//! Sends snapshots to other replicas.
//!
//! Invariants:
//! - A snapshot is never in memory as a whole. The sender encodes its pieces while it sends them.
//! - A transfer has no time limit while it progresses: the connection takes pieces, or the receiver reports
//!   that it writes. Without progress for some time, the sender gives up, and Raft starts the transfer again.
//!   It gives up earlier if the receiver does not answer.
//! - Snapshots have a separate connection, so that no other call waits behind them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use chancery_raft_proto::v1 as pb;
use futures::StreamExt;
use openraft::errors::Unreachable;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::{
    disk::{
        progress::Progress,
        snapshot::{self, Contents, SnapshotData},
    },
    format::{
        raft::{Types, Vote},
        raft_codec::{vote_from_proto, vote_to_proto},
    },
    replication::{codec, peers::Lane, protocol, target::Target},
};

/// The length of a piece in bytes.
const PIECE_BYTES: usize = 256 << 10;
/// The maximum number of encoded pieces that wait for the network. Encoding pauses at this number.
const PIECES_WAITING: usize = 4;
/// The minimum number of checks within the stall timeout, if the receiver answers Hello calls at once.
const CHECKS: u32 = 10;
/// The maximum time for the answer to a Hello call, which asks the receiver for its progress.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// The time without a Hello answer after which the sender gives up. The sender makes at least two calls in this time.
const SILENCE: Duration = Duration::from_secs(5);

/// Sends a snapshot, and returns the receiver's vote after the receiver has installed it. Gives up
/// without progress for `stall`.
pub(super) async fn send(
    target: &Target,
    header: pb::Header,
    vote: &Vote,
    snapshot: SnapshotData,
    stall: Duration,
) -> Result<Vote, Unreachable<Types>> {
    let Some(hello) = ask(target).await else {
        return Err(target.unreachable("it does not answer before a snapshot"));
    };
    let contents = match hello.protocol {
        Some(protocol) if protocol::accepts_content(&protocol) => Contents::Include,
        _ => Contents::Omit,
    };
    let taken = Progress::default();
    let mut first = Some((header, vote_to_proto(vote)));
    let counted = taken.clone();
    let requests = pieces_of(snapshot, contents).map(move |data| {
        counted.add(data.len());
        let (header, vote) = first.take().unzip();
        pb::InstallRequest { header, vote, data }
    });
    let client = target.client(Lane::Bulk);
    let mut client = client.map_err(|status| target.unreachable(status.message()))?;
    let answer = tokio::select! {
        answer = client.install(Request::new(requests)) => answer,
        () = stalls(target, &taken, stall) => {
            let text = format!(
                "it took or wrote nothing of the snapshot for {stall:?}, or does not answer, after {} \
                 bytes were sent",
                taken.bytes()
            );
            tracing::warn!(replica = target.id(), "starting a snapshot again: {text}");
            return Err(target.unreachable(text));
        }
    };
    let answer = answer.map_err(|status| target.unreachable(status.message()))?.into_inner();
    let vote = answer.vote.as_ref().map(vote_from_proto);
    vote.ok_or_else(|| target.unreachable("its answer to the snapshot has no vote"))
}

/// Waits until the transfer stalls for `limit`: the connection took no piece, and the receiver
/// neither read nor wrote anything. Returns earlier if the receiver does not answer for [`SILENCE`].
async fn stalls(target: &Target, taken: &Progress, limit: Duration) {
    let interval = (limit / CHECKS).min(SILENCE / 3).max(Duration::from_millis(1));
    let mut checks = tokio::time::interval(interval);
    checks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = (taken.bytes(), 0);
    let mut since = Instant::now();
    let mut answered = since;
    loop {
        checks.tick().await;
        let sent = taken.bytes();
        // While the connection takes pieces, the receiver need not be asked.
        let received = if sent == last.0 {
            ask(target).await.map(|hello| hello.snapshot_progress)
        } else {
            Some(last.1)
        };
        if received.is_some() {
            answered = Instant::now();
        }
        let now = (sent, received.unwrap_or(last.1));
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= limit || answered.elapsed() >= SILENCE {
            return;
        }
    }
}

async fn ask(target: &Target) -> Option<pb::HelloResponse> {
    let mut client = target.client(Lane::Control).ok()?;
    let call = client.hello(codec::hello(target.identity()));
    Some(tokio::time::timeout(HELLO_TIMEOUT, call).await.ok()?.ok()?.into_inner())
}

/// Returns the pieces of a snapshot, encoded while they are sent. Encoding begins when the connection requests the first
/// piece, so attempts to reach a replica that is down encode nothing.
fn pieces_of(
    snapshot: SnapshotData,
    contents: Contents,
) -> impl futures::Stream<Item = Bytes> + Send + 'static {
    let pieces = async move {
        let (sender, receiver) = mpsc::channel(PIECES_WAITING);
        tokio::task::spawn_blocking(move || {
            for piece in snapshot::pieces(snapshot.encode(contents), PIECE_BYTES) {
                if sender.blocking_send(piece).is_err() {
                    // The sender has given up.
                    return;
                }
            }
        });
        ReceiverStream::new(receiver)
    };
    futures::stream::once(pieces).flatten()
}

#[cfg(test)]
mod tests;
