//! A proxy that delays bytes, and can cut all its connections.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// The delay of each piece.
const DELAY: Duration = Duration::from_millis(3);
/// The maximum size of a piece in bytes. It cuts frames and messages apart.
const PIECE_BYTES_MAX: usize = 700;

/// A proxy. Its threads end with the connections.
#[derive(Default)]
pub(super) struct FaultyProxy {
    /// Both ends of all connections since the start.
    connections: Arc<Mutex<Vec<[TcpStream; 2]>>>,
}

impl FaultyProxy {
    /// Forwards each connection to the next one of the targets. Returns the address of the proxy.
    pub(super) fn start(&self, targets: &[SocketAddr]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::clone(&self.connections);
        let targets = targets.to_vec();
        thread::spawn(move || {
            let mut targets = targets.iter().cycle();
            for near in listener.incoming().map_while(Result::ok) {
                let Some(target) = targets.next() else { return };
                // The target may not run yet. The connection is then closed.
                let Ok(far) = TcpStream::connect(target) else { continue };
                let pairs = [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
                // Registered before any byte is forwarded, so that `cut` closes every connection that has forwarded bytes.
                connections.lock().unwrap().push([near, far]);
                for (from, to) in pairs {
                    thread::spawn(move || forward(from, to));
                }
            }
        });
        address
    }

    /// Cuts all connections.
    pub(super) fn cut(&self) {
        for end in self.connections.lock().unwrap().iter().flatten() {
            drop(end.shutdown(Shutdown::Both));
        }
    }

    /// Returns the number of connections since the start.
    pub(super) fn n_connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut piece = [0; PIECE_BYTES_MAX];
    while let Ok(n) = from.read(&mut piece) {
        thread::sleep(DELAY);
        if n == 0 || to.write_all(&piece[..n]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        drop(end.shutdown(Shutdown::Both));
    }
}
