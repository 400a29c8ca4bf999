//! Tests of connections to the replication port that do not come from replicas, in any number and
//! with any content.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use chancery_store::{CaughtUp, Config, Replica, TlsConfig};

use crate::{
    cluster::{DEADLINE, equal, eventually, member_config, voters},
    support::{Random, commit, memory_dir, put},
    tls::Ca,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Fewer than the strangers open, and enough for two other replicas with three connections each.
const CONNECTIONS_MAX: usize = 16;
/// The number of connections that count as a flood.
const FLOOD: u64 = 20 * CONNECTIONS_MAX as u64;
/// The number of connections that a stranger holds open at a time.
const HELD: usize = 100;

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Waits until the peer has closed the connection, and returns the bytes received before.
fn closed(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("the connection is still open")
        }
        // A reset closes the connection as well.
        Ok(_) | Err(_) => answer,
    }
}

/// Returns bytes that no replica sends.
fn nonsense(random: &mut Random) -> Vec<u8> {
    let half = PREFACE.len() / 2;
    match random.below(6) {
        0 => b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        1 => b"\x16\x03\x01\x00\x05hello".to_vec(),
        2 => (0..random.below(200)).map(|_| random.byte()).collect(),
        3 => PREFACE[..half].to_vec(),
        4 => PREFACE.to_vec(),
        _ => Vec::new(),
    }
}

/// Connects in a loop, sends nonsense or nothing, and holds up to `HELD` connections open.
fn flood(address: &str, seed: u64, stop: &AtomicBool, connections: &AtomicU64) {
    let mut random = Random(seed);
    let mut held = std::collections::VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        // The peer may have closed the connection already.
        drop(stream.write_all(&nonsense(&mut random)));
        held.push_back(stream);
        connections.fetch_add(1, Ordering::Relaxed);
        if held.len() > HELD {
            held.pop_front();
        }
    }
}

/// Stops the floods when the test ends, even by a panic.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn check_replicas_join_despite_flood(tls: impl Fn(u64) -> Option<TlsConfig>) {
    let dir = memory_dir();
    let config = |id: u64, join: &[&str]| Config {
        connections_max: CONNECTIONS_MAX,
        tls: tls(id),
        ..member_config(dir.path(), id, join)
    };
    let first = Replica::open(config(1, &[])).await.unwrap();
    let address = first.raft_address().to_owned();
    let second = Replica::open(config(2, &[&address])).await.unwrap();
    eventually("two voters", async || voters(&first).await == [1, 2]).await;

    let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let _ends = StopOnDrop(Arc::clone(&stop));
    let floods: Vec<_> = (0..2)
        .map(|seed| {
            let (address, stop) = (address.clone(), Arc::clone(&stop));
            let connections = Arc::clone(&connections);
            thread::spawn(move || flood(&address, seed, &stop, &connections))
        })
        .collect();
    let third = Replica::open(config(3, &[&address])).await.unwrap();
    assert_eq!(third.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
    eventually("three voters", async || voters(&first).await == [1, 2, 3]).await;
    let start = Instant::now();
    let mut n = 0;
    while n < 10 || connections.load(Ordering::Relaxed) < FLOOD {
        n += 1;
        assert!(start.elapsed() < 2 * DEADLINE, "no flood: {connections:?}");
        for replica in [&first, &second, &third] {
            commit(replica, put(&format!("r{n}"), replica.raft_address().as_bytes())).await;
        }
    }
    equal(&[&first, &second, &third]).await;
    stop.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().unwrap();
    }
    for replica in [&third, &second, &first] {
        replica.shutdown().await.unwrap();
    }
}

/// Garbage, silent connections, and a flood of both keep no replica out, even when they always
/// exceed the connection limit.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_connections_do_not_block_replicas() {
    check_replicas_join_despite_flood(|_| None).await;
}

/// The same with TLS, where strangers do not get beyond the handshake.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_connections_do_not_block_replicas_with_tls() {
    let dir = memory_dir();
    let ca = Ca::new(dir.path(), "ca");
    check_replicas_join_despite_flood(|id| Some(ca.sign(&id.to_string(), "127.0.0.1"))).await;
}

/// The port closes a connection without HTTP/2 immediately. It closes a connection that is silent,
/// or sends a part of the preface, after some seconds. It closes one that is silent after the
/// preface when it does not answer a probe.
#[tokio::test(flavor = "multi_thread")]
async fn connections_without_http2_or_activity_are_closed() {
    let dir = memory_dir();
    let replica = Replica::open(member_config(dir.path(), 1, &[])).await.unwrap();
    let address = replica.raft_address().to_owned();
    let say = |words: &[u8]| {
        let mut stream = connect(&address);
        stream.write_all(words).unwrap();
        stream
    };
    let garbage = say(b"GET / HTTP/1.1\r\n\r\n");
    let [silent, half, settled] = [b"".as_slice(), &PREFACE[..10], PREFACE].map(say);
    let closed = async |stream| tokio::task::spawn_blocking(|| closed(stream)).await.unwrap();
    let start = Instant::now();
    assert_eq!(closed(garbage).await, b"");
    assert!(start.elapsed() < Duration::from_secs(4), "at once: {:?}", start.elapsed());
    for stream in [silent, half] {
        assert_eq!(closed(stream).await, b"");
    }
    assert!(!closed(settled).await.is_empty(), "it was answered in HTTP/2");
    commit(&replica, put("a", b"1")).await;
    replica.shutdown().await.unwrap();
}
