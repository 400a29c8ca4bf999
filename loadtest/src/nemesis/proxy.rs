//! The network between replicas: proxies that can cut and delay each direction between any two.
//!
//! Every replica is advertised at the address of its own proxy, which receives all that others send
//! to it. The proxy determines the sender of a connection from the kernel: it finds the process
//! that has the other end. So replicas need no support for this, and the proxies need no
//! privileges.
//!
//! Invariants:
//! - While a direction is cut, none of its bytes arrive, on old and on new connections. Bytes in
//!   transit arrive when the direction is healed, as with TCP. Bytes are never reordered, changed
//!   or invented.
//! - The proxy stops reading from a side whose data it cannot deliver (beyond [`CHUNKS`] pieces).
//!   The sender then has backpressure.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};

/// The maximum number of undelivered pieces in one direction of a connection. Beyond it, the proxy
/// does not read.
const CHUNKS: usize = 64;
const CHUNK_BYTES: usize = 64 << 10;

/// The number of a replica.
pub(crate) type Id = u64;

/// The faults of the network. A direction is from one replica to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rules {
    cut: HashSet<(Id, Id)>,
    delay: HashMap<(Id, Id), Duration>,
}

/// The proxies of all replicas.
#[derive(Debug)]
pub(crate) struct Network {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    addresses: HashMap<Id, SocketAddr>,
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    replicas: Mutex<HashMap<Id, Place>>,
}

/// The process and the replication address of a replica.
#[derive(Debug, Clone, Copy)]
struct Place {
    pid: u32,
    raft: SocketAddr,
}

impl Rules {
    /// Cuts the direction from the first replica to the second.
    pub(crate) fn cut(mut self, from: Id, to: Id) -> Self {
        self.cut.insert((from, to));
        self
    }

    /// Cuts both directions between two groups of replicas.
    pub(crate) fn part(mut self, left: &[Id], right: &[Id]) -> Self {
        for a in left {
            for b in right {
                self.cut.extend([(*a, *b), (*b, *a)]);
            }
        }
        self
    }

    /// Delays all data from the first replica to the second.
    pub(crate) fn delay(mut self, from: Id, to: Id, by: Duration) -> Self {
        self.delay.insert((from, to), by);
        self
    }

    fn is_cut(&self, direction: (Id, Id)) -> bool {
        self.cut.contains(&direction)
    }
}

impl Network {
    /// Starts a proxy for each replica, without faults.
    pub(crate) async fn new(replicas: impl Iterator<Item = Id>) -> Result<Self> {
        let rules = watch::Sender::new(Rules::default());
        let shared = Arc::new(Shared { rules, replicas: Mutex::default() });
        let (mut tasks, mut addresses) = (JoinSet::new(), HashMap::new());
        for id in replicas {
            let listener = TcpListener::bind("127.0.0.1:0").await.context("listen as a proxy")?;
            addresses.insert(id, listener.local_addr()?);
            tasks.spawn(serve(Arc::clone(&shared), id, listener));
        }
        Ok(Self { shared, tasks, addresses })
    }

    /// Returns the address of a replica's proxy.
    pub(crate) fn address(&self, id: Id) -> Result<SocketAddr> {
        self.addresses.get(&id).copied().with_context(|| format!("replica {id} has no proxy"))
    }

    /// Sets the process that serves a replica from now on.
    pub(crate) fn place(&self, id: Id, pid: u32, raft: SocketAddr) {
        self.shared.replicas.lock().insert(id, Place { pid, raft });
    }

    /// Replaces the faults.
    pub(crate) fn set(&self, rules: Rules) {
        self.shared.rules.send_replace(rules);
    }

    /// Returns whether all proxies are running.
    pub(crate) fn is_whole(&self) -> bool {
        self.tasks.len() == self.addresses.len()
    }
}

impl Shared {
    /// Returns the replica that has a connection whose own end is at this address.
    fn owner(&self, of: SocketAddr) -> Option<Id> {
        let inode = inode_of(of)?;
        let replicas = self.replicas.lock().clone();
        let owns = |place: &Place| has_socket(place.pid, inode);
        replicas.into_iter().find(|(_, place)| owns(place)).map(|(id, _)| id)
    }
}

async fn serve(shared: Arc<Shared>, to: Id, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // The peer tries again after a failed accept.
                let Ok((stream, peer)) = accepted else { continue };
                connections.spawn(connect(Arc::clone(&shared), to, stream, peer));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(shared: Arc<Shared>, to: Id, stream: TcpStream, peer: SocketAddr) {
    // The process that connected has already ended.
    let Some(from) = shared.owner(peer) else { return };
    let raft = shared.replicas.lock().get(&to).map(|place| place.raft);
    let Some(raft) = raft else { return };
    reach(&shared, (from, to)).await;
    let Ok(target) = TcpStream::connect(raft).await else { return };
    if stream.set_nodelay(true).is_err() || target.set_nodelay(true).is_err() {
        return;
    }
    let (from_caller, to_caller) = stream.into_split();
    let (from_target, to_target) = target.into_split();
    // The end of one direction ends the connection.
    tokio::select! {
        () = carry(&shared, (from, to), from_caller, to_target) => {}
        () = carry(&shared, (to, from), from_target, to_caller) => {}
    }
}

/// Waits until the direction is not cut.
async fn reach(shared: &Shared, direction: (Id, Id)) {
    let mut rules = shared.rules.subscribe();
    // `shared` owns the sender, so the wait cannot fail.
    drop(rules.wait_for(|rules| !rules.is_cut(direction)).await);
}

/// Forwards bytes in one direction until one side ends.
async fn carry(
    shared: &Shared,
    direction: (Id, Id),
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Bytes)>(CHUNKS);
    let read = async {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            let delay = shared.rules.borrow().delay.get(&direction).copied().unwrap_or_default();
            let piece = Bytes::copy_from_slice(buffer.get(..n).unwrap_or_default());
            if sender.send((Instant::now() + delay, piece)).await.is_err() {
                return;
            }
        }
        drop(sender);
        // The pending pieces are delivered first.
        std::future::pending::<()>().await;
    };
    let write = async {
        while let Some((at, piece)) = receiver.recv().await {
            tokio::time::sleep_until(at).await;
            reach(shared, direction).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        // The other side learns of the end of the connection only when the direction is not cut.
        reach(shared, direction).await;
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}

/// Returns the inode of the socket whose own end is at this address.
fn inode_of(address: SocketAddr) -> Option<u64> {
    let table = BufReader::new(fs::File::open("/proc/net/tcp").ok()?);
    let port = format!(":{:04X}", address.port());
    table.lines().map_while(Result::ok).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Only established and connecting sockets. A closed socket may have the same port.
        let is_alive = matches!(*fields.get(3)?, "01" | "02" | "03");
        let is_it = is_alive && fields.get(1)?.ends_with(&port);
        is_it.then(|| fields.get(9)?.parse().ok()).flatten().filter(|inode| *inode > 0)
    })
}

fn has_socket(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.to_str() == Some(wanted.as_str()))
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(20);

    /// Starts a network in which this process connects as replica 1, and an echo server is replica
    /// 2.
    async fn network() -> (Network, TcpStream) {
        let network = Network::new([1, 2].into_iter()).await.unwrap();
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        network.place(1, std::process::id(), "127.0.0.1:1".parse().unwrap());
        network.place(2, 0, echo.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = echo.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    drop(tokio::io::copy(&mut read, &mut write).await);
                });
            }
        });
        let stream = TcpStream::connect(network.address(2).unwrap()).await.unwrap();
        (network, stream)
    }

    async fn answer(stream: &mut TcpStream, within: Duration) -> Option<u8> {
        timeout(within, stream.read_u8()).await.ok().map(|byte| byte.unwrap())
    }

    #[tokio::test]
    async fn cut_blocks_one_direction_without_loss() {
        let (network, mut stream) = network().await;
        stream.write_u8(1).await.unwrap();
        assert_eq!(answer(&mut stream, LONG).await, Some(1));
        for cut in [(1, 2), (2, 1)] {
            network.set(Rules::default().cut(cut.0, cut.1));
            stream.write_u8(2).await.unwrap();
            assert_eq!(answer(&mut stream, SHORT).await, None);
            network.set(Rules::default());
            assert_eq!(answer(&mut stream, LONG).await, Some(2));
        }
        // Other pairs are not affected.
        network.set(Rules::default().part(&[1, 2], &[3]));
        stream.write_u8(3).await.unwrap();
        assert_eq!(answer(&mut stream, LONG).await, Some(3));
        // A new connection is delayed too.
        network.set(Rules::default().part(&[1], &[2]));
        let mut second = TcpStream::connect(network.address(2).unwrap()).await.unwrap();
        second.write_u8(4).await.unwrap();
        assert_eq!(answer(&mut second, SHORT).await, None);
        network.set(Rules::default());
        assert_eq!(answer(&mut second, LONG).await, Some(4));
        assert!(network.is_whole());
    }

    #[tokio::test]
    async fn delay_has_the_configured_duration() {
        let (network, mut stream) = network().await;
        network.set(Rules::default().delay(1, 2, SHORT).delay(2, 1, SHORT));
        let start = Instant::now();
        stream.write_u8(1).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        stream.write_u8(2).await.unwrap();
        assert_eq!(answer(&mut stream, LONG).await, Some(1));
        assert_eq!(answer(&mut stream, LONG).await, Some(2));
        assert!(start.elapsed() >= 2 * SHORT);
    }
}
