//! Ports that a test may name before somebody listens on them.
//!
//! A port that was bound, released and bound again may be lost in between: to an outgoing connection, or to
//! another test. A reserved port cannot. It is below the range from which Linux takes the ports of outgoing
//! connections, and an abstract Unix socket named after it tells every other test process on the same network
//! that the port is taken. The kernel removes that socket when the process ends, however it ends.

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

/// Ends where Linux begins to take ports for outgoing connections (`ip_local_port_range`).
const RANGE: Range<u16> = 12_000..32_000;

static NEXT: AtomicU16 = AtomicU16::new(0);
/// Held until the process ends.
static RESERVED: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Returns a port on `127.0.0.1` that nobody listens on, reserved for this process and its children.
///
/// # Panics
/// If all 20,000 ports of the range are taken.
#[must_use]
pub fn reserve_port() -> u16 {
    // Processes that run at the same time begin at different places.
    let offset = (std::process::id() % 199) * 100;
    let len = u32::from(RANGE.end - RANGE.start);
    for _ in 0..len {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let place = u16::try_from((offset + step) % len).expect("a remainder of a u16");
        let port = RANGE.start + place;
        if let Some(reservation) = reserve(port) {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
            return port;
        }
    }
    panic!("every port of {RANGE:?} is taken");
}

/// Returns `127.0.0.1` with a reserved port.
///
/// # Panics
/// As [`reserve_port`].
#[must_use]
pub fn reserve_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, reserve_port()))
}

/// Reserves one port, unless another test process has it or somebody listens on it.
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
    fn reserved_ports_differ_and_lie_below_those_of_outgoing_connections() {
        let ports: BTreeSet<_> = (0..50).map(|_| reserve_port()).collect();
        assert_eq!(ports.len(), 50);
        assert!(ports.iter().all(|port| RANGE.contains(port)));
    }

    #[test]
    fn reserved_port_is_refused_to_a_second_reservation() {
        let port = reserve_port();
        assert!(reserve(port).is_none());
    }

    #[test]
    fn port_that_somebody_listens_on_is_not_reserved() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind any port");
        let port = listener.local_addr().expect("a bound address").port();
        assert!(reserve(port).is_none());
    }
}
