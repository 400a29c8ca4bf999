//! The sockets of ports.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

use crate::Failure;

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
    let advice = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another process listens on this address: stop that process, or set another address"
        }
        io::ErrorKind::AddrNotAvailable => "; set an address of this host",
        _ => "",
    };
    Failure::new(format_args!("cannot listen on {address} ({key}): {error}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process may take a port between the two steps, although the first one was successful.
    #[tokio::test]
    async fn port_that_is_taken_after_its_bind_is_reported_with_advice() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (first, address) = take_port("a", any).unwrap();
        let (second, _) = take_port("b", address).unwrap();
        let _listener = listen_on("a", first, address).unwrap();
        let error = listen_on("b", second, address).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on {address} (b): ")), "{error}");
        assert!(error.ends_with("stop that process, or set another address"), "{error}");
        let foreign = take_port("c", "192.0.2.1:0".parse().unwrap()).unwrap_err().to_string();
        assert!(foreign.ends_with("; set an address of this host"), "{foreign}");
    }
}
