//! Reserved ports, which a test can configure before a server listens on them.
//!
//! A test that binds a port, releases it and binds it again may lose the port to an outgoing
//! connection or to another test. A reserved port cannot be lost in these ways. It is below the
//! range from which Linux takes the ports of outgoing connections. An abstract Unix socket, named
//! after the port, reserves it for all test processes in one network namespace. The kernel removes
//! the socket when the process ends, even after a crash.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    ops::Range,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixListener},
    },
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

/// The ports that can be reserved, below Linux's range for outgoing connections
/// (`ip_local_port_range`).
const RANGE: Range<u16> = 12_000..32_000;
/// The default ports of a replica, on which a test may listen without a reservation.
const DEFAULTS: Range<u16> = 18_000..18_003;

static NEXT: AtomicU16 = AtomicU16::new(0);
/// The reservations, kept until the process ends.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Returns an unused port on `127.0.0.1`, reserved for this process and its children.
///
/// # Panics
/// Panics if all ports of the range are taken.
#[must_use]
pub fn reserve_port() -> u16 {
    // Concurrent processes start at different offsets.
    let offset = (std::process::id() % 199) * 100;
    let len = u32::from(RANGE.end - RANGE.start);
    for _ in 0..len {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let index = u16::try_from((offset + step) % len).expect("the range has 20,000 ports");
        let port = RANGE.start + index;
        if DEFAULTS.contains(&port) {
            continue;
        }
        if let Some(reservation) = reserve(port) {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
            return port;
        }
    }
    panic!("cannot reserve a port: all ports of {RANGE:?} are taken");
}

/// Returns the address `127.0.0.1` with a reserved port.
///
/// # Panics
/// Panics if all ports are taken, like [`reserve_port`].
#[must_use]
pub fn reserve_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, reserve_port()))
}

/// Reserves one port, unless another test process reserved it or a socket listens on it.
fn reserve(port: u16) -> Option<UnixListener> {
    let name = UnixAddr::from_abstract_name(format!("chancery-test-port-{port}")).ok()?;
    let reservation = UnixListener::bind_addr(&name).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok().then_some(reservation)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn reserved_ports_are_distinct_and_below_ephemeral_range() {
        let ports: BTreeSet<_> = (0..50).map(|_| reserve_port()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| RANGE.contains(port)));
    }

    #[test]
    fn reserved_port_cannot_be_reserved_again() {
        let port = reserve_port();
        assert!(reserve(port).is_none());
    }

    #[test]
    fn listening_port_cannot_be_reserved() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind any port");
        let port = listener.local_addr().expect("a bound address").port();
        assert!(reserve(port).is_none());
    }
}
