//! The network between three replicas, which a test can cut.
//!
//! Each replica is advertised at the address of a relay, which receives all that others send to it. A relay finds the
//! sender of a connection in the kernel: the process that has the other end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};

const PIECE_BYTES: usize = 64 << 10;

/// The fault of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nothing arrives, in either direction. What was sent meanwhile arrives later, as with TCP.
    Silent,
    /// Connections are closed, and new ones, too.
    Reset,
}

/// The relays of all replicas. They run until the test process ends.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    addresses: [SocketAddr; 3],
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The replica that is cut off from the others.
    cut: Option<(usize, Cut)>,
    /// The process and the replication address of each replica.
    replicas: [Option<(u32, SocketAddr)>; 3],
    /// Both ends of each open connection, with the replicas that it connects.
    open: BTreeMap<u64, (BTreeSet<usize>, [TcpStream; 2])>,
    n_opened: u64,
}

impl Network {
    pub(crate) fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let addresses = [0, 1, 2].map(|to| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    // A connection that fails is closed, and its sender tries again.
                    thread::spawn(move || drop(shared.relay(stream, to)));
                }
            });
            address
        });
        Self { addresses, shared }
    }

    /// Returns the address at which the others reach a replica.
    pub(crate) fn address(&self, at: usize) -> String {
        self.addresses[at].to_string()
    }

    /// Sets the process of a replica, and the address on which it listens.
    pub(crate) fn place(&self, at: usize, pid: u32, raft: &str) {
        self.shared.lock().replicas[at] = Some((pid, raft.parse().unwrap()));
    }

    /// Cuts a replica off from the two others.
    pub(crate) fn cut(&self, at: usize, cut: Cut) {
        let mut state = self.shared.lock();
        state.cut = Some((at, cut));
        let is_closed = |ends: &BTreeSet<usize>| cut == Cut::Reset && ends.contains(&at);
        for (_, streams) in state.open.values().filter(|(ends, _)| is_closed(ends)) {
            streams.iter().for_each(close);
        }
    }

    /// Ends the cut.
    pub(crate) fn heal(&self) {
        self.shared.lock().cut = None;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits until nothing is cut between two replicas. Fails if the cut closes connections.
    fn reach(&self, ends: &BTreeSet<usize>) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        loop {
            match state.cut {
                Some((at, Cut::Silent)) if ends.contains(&at) => {
                    state = self.changed.wait(state).unwrap();
                }
                Some((at, Cut::Reset)) if ends.contains(&at) => {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                _ => return Ok(state),
            }
        }
    }

    fn relay(self: &Arc<Self>, stream: TcpStream, to: usize) -> io::Result<()> {
        let replicas = self.lock().replicas;
        let inode = inode_of(stream.peer_addr()?, stream.local_addr()?);
        let inode = inode.ok_or(io::ErrorKind::NotFound)?;
        let is_sender = |at: &usize| replicas[*at].is_some_and(|(pid, _)| has_socket(pid, inode));
        let (_, raft) = replicas[to].ok_or(io::ErrorKind::NotFound)?;
        // A replica always reaches itself.
        let ends = match (0..3).find(is_sender) {
            Some(from) if from == to => BTreeSet::new(),
            Some(from) => BTreeSet::from([from, to]),
            None => BTreeSet::from([to]),
        };
        drop(self.reach(&ends)?);
        let target = TcpStream::connect(raft)?;
        stream.set_nodelay(true)?;
        target.set_nodelay(true)?;
        let mut state = self.reach(&ends)?;
        state.n_opened += 1;
        let number = state.n_opened;
        state.open.insert(number, (ends.clone(), [stream.try_clone()?, target.try_clone()?]));
        drop(state);
        let back = (target.try_clone()?, stream.try_clone()?);
        let (shared, ends_back) = (Arc::clone(self), ends.clone());
        thread::spawn(move || shared.carry(back, &ends_back));
        self.carry((stream, target), &ends);
        self.lock().open.remove(&number);
        Ok(())
    }

    /// Forwards bytes in one direction until one side ends, and then closes the connection.
    fn carry(&self, (mut from, mut to): (TcpStream, TcpStream), ends: &BTreeSet<usize>) {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let is_sent = self.reach(ends).map(drop).and_then(|()| to.write_all(&piece[..n]));
            if is_sent.is_err() {
                break;
            }
        }
        // The other side learns of the end only when the connection is not cut.
        drop(self.reach(ends));
        [from, to].iter().for_each(close);
    }
}

/// Ends a connection, if its peer has not ended it.
fn close(stream: &TcpStream) {
    drop(stream.shutdown(Shutdown::Both));
}

/// Returns the inode of the socket that is connected from an address to another one. Several sockets may have the same
/// port at their own end.
fn inode_of(own: SocketAddr, other: SocketAddr) -> Option<u64> {
    let [own, other] = [own, other].map(|address| format!(":{:04X}", address.port()));
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Only established and connecting sockets. A closed one may have had the same port.
        let is_open = matches!(*fields.get(3)?, "01" | "02" | "03");
        let is_it = is_open && fields.get(1)?.ends_with(&own) && fields.get(2)?.ends_with(&other);
        is_it.then(|| fields.get(9)?.parse().ok()).flatten().filter(|inode| *inode > 0)
    })
}

fn has_socket(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.to_str() == Some(wanted.as_str()))
}
