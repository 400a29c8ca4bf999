//! The accept loop. It survives all errors of `accept`, and ends with `stop`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::slots::{OpenSocket, Slot, SlotLimit, Slots};

/// The pause after a failed accept. The usual cause is a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The address of all clients of a UNIX socket, which has no addresses of its clients.
const UNIX_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A bound socket.
pub trait Listener {
    /// A connection.
    type Stream;

    /// Returns the next connection and the address of its client. Cancelling loses no connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.accept().await?;
        // A failure costs latency only.
        drop(stream.set_nodelay(true));
        Ok((stream, peer))
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        Ok((self.accept().await?.0, UNIX_PEER))
    }
}

/// The handling of a port's connections. No method may wait.
pub trait Port {
    /// A connection.
    type Stream;

    /// Serves a connection. Dropping the slot frees it.
    fn serve(&self, stream: Self::Stream, slot: Slot);

    /// Rejects a connection that got no slot. `socket` must be dropped after the stream.
    fn refuse(&self, stream: Self::Stream, peer: SocketAddr, limit: SlotLimit, socket: OpenSocket);

    /// Records a failed accept. `is_first` is false if the accept before failed, too.
    fn on_error(&self, error: &io::Error, is_first: bool);
}

/// Accepts connections until `stop`, and then closes the listener.
pub async fn accept<L: Listener>(
    listener: L,
    slots: &Arc<Slots>,
    port: &impl Port<Stream = L::Stream>,
    stop: impl Future<Output = ()>,
) {
    tokio::pin!(stop);
    let mut is_first = true;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => return,
            accepted = async {
                slots.room().await;
                listener.accept().await
            } => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                is_first = true;
                match slots.take(peer) {
                    Ok(slot) => port.serve(stream, slot),
                    Err(limit) => port.refuse(stream, peer, limit, slots.open_socket()),
                }
            }
            // The client was gone before accept returned.
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                port.on_error(&error, std::mem::replace(&mut is_first, false));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
