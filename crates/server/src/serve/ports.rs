//! The sockets of ports.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

use crate::cli::Failure;

/// The number of connections that the kernel queues before they are accepted.
const BACKLOG: u32 = 4096;

/// Binds a port without listening on it. Clients that connect are refused, and try another replica. `key` is the
/// configuration key of the address.
///
/// # Errors
/// If the port is in use.
pub(super) fn take_port(
    key: &str,
    address: SocketAddr,
) -> Result<(TcpSocket, SocketAddr), Failure> {
    let taken = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // Allows a port that was in use a moment ago.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let bound = socket.local_addr()?;
        Ok((socket, bound))
    };
    taken().map_err(|error| cannot_listen(key, address, &error))
}

/// Listens on a bound port.
///
/// # Errors
/// If another socket has started to listen on the port.
pub(super) fn listen_on(
    key: &str,
    socket: TcpSocket,
    address: SocketAddr,
) -> Result<TcpListener, Failure> {
    socket.listen(BACKLOG).map_err(|error| cannot_listen(key, address, &error))
}

fn cannot_listen(key: &str, address: SocketAddr, error: &io::Error) -> Failure {
    Failure::new(format_args!("cannot listen on {address} ({key}): {error}"))
}
