//! A TCP proxy whose target changes, so that a client moves from one replica to another.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::Result;

const CONNECT: Duration = Duration::from_secs(5);

/// A proxy between a client and one of several replicas. It runs until the test process ends.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The port of the replica; `None` while connections wait.
    target: Option<u16>,
    /// Both sides of each connection since the last cut.
    open: Vec<TcpStream>,
}

impl Switch {
    /// Starts a proxy for the replica at `xds`.
    pub(crate) fn start(xds: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::<Shared>::default();
        let switch = Self { port, shared: Arc::clone(&shared) };
        switch.connect(xds);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // If no replica listens, the client's connection is closed.
                thread::spawn(move || drop(shared.forward(&client)));
            }
        });
        Ok(switch)
    }

    /// Closes all connections. New ones wait until [`Self::connect`].
    pub(crate) fn cut(&self) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.target = None;
        for stream in state.open.drain(..) {
            // The peer may have closed it.
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    /// Connects waiting and new connections to the replica at `xds`. Open ones stay as they are.
    pub(crate) fn connect(&self, xds: u16) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.target = Some(xds);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn forward(&self, client: &TcpStream) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let target = loop {
            match state.target {
                Some(port) => break SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        let server = TcpStream::connect_timeout(&target, CONNECT)?;
        state.open.extend([client.try_clone()?, server.try_clone()?]);
        drop(state);
        for (from, to) in [(client, &server), (&server, client)] {
            from.set_nodelay(true)?;
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || {
                drop(io::copy(&mut from, &mut to));
                drop(to.shutdown(Shutdown::Write));
            });
        }
        Ok(())
    }
}
