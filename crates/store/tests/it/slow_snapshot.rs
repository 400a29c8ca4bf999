//! A snapshot over a slow network.

use std::time::{Duration, Instant};

use chancery_store::{CaughtUp, Config, Replica};
use chancery_testing::reserve_address;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    cluster::{DEADLINE, equal, eventually, member_config},
    support::{commit, memory_dir, put},
};

/// The maximum time without progress of a transfer.
const STALL: Duration = Duration::from_secs(1);
/// The size of a piece that the slow connection forwards, and the pause after each piece: 1.3 MB/s.
const PIECE_BYTES: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(50);
/// The snapshot takes several times as long as `STALL`.
const SNAPSHOT_BYTES: usize = 5 << 20;

/// Forwards connections to `to`, slowly in that direction.
async fn forward_slowly(listener: TcpListener, to: String) {
    while let Ok((stream, _)) = listener.accept().await {
        let to = to.clone();
        tokio::spawn(async move {
            // Nothing listens there yet; the caller retries.
            let Ok(there) = TcpStream::connect(&to).await else { return };
            let (mut from_here, mut to_here) = stream.into_split();
            let (mut from_there, mut to_there) = there.into_split();
            let back = tokio::spawn(async move {
                drop(tokio::io::copy(&mut from_there, &mut to_here).await);
            });
            let mut piece = vec![0; PIECE_BYTES];
            while let Ok(len @ 1..) = from_here.read(&mut piece).await {
                if to_there.write_all(&piece[..len]).await.is_err() {
                    break;
                }
                if len > PIECE_BYTES / 4 {
                    tokio::time::sleep(PAUSE).await;
                }
            }
            back.abort();
        });
    }
}

/// The transfer of a snapshot that takes longer than the stall timeout is not restarted while it
/// progresses.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_over_a_slow_network_arrives() {
    let dir = memory_dir();
    let few = |config: Config| Config {
        snapshot_log_entries: 50,
        log_entries_keep: 10,
        snapshot_stall_timeout: STALL,
        ..config
    };
    let first = Replica::open(few(member_config(dir.path(), 1, &[]))).await.unwrap();
    let body: Vec<u8> =
        (0..50_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for n in 0..SNAPSHOT_BYTES / body.len() {
        commit(&first, put(&format!("r{n}"), &body)).await;
    }
    eventually("the log is purged", async || first.status().purged.is_some()).await;

    let way = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (advertise, listen) = (way.local_addr().unwrap(), reserve_address());
    let way = tokio::spawn(forward_slowly(way, listen.to_string()));
    let start = Instant::now();
    let second = Replica::open(Config {
        listen: Some(listen),
        advertise: advertise.to_string(),
        ..few(member_config(dir.path(), 2, &[first.raft_address()]))
    });
    let second = second.await.unwrap();
    assert_eq!(second.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    assert!(start.elapsed() > 2 * STALL, "the way is too fast: {:?}", start.elapsed());
    equal(&[&first, &second]).await;
    for replica in [&second, &first] {
        replica.shutdown().await.unwrap();
    }
    way.abort();
}
