//! The number of connections of each peer. The limit prevents one peer from taking all connections.
//!
//! A peer is an IPv4 address, or the /64 of an IPv6 address: a host with one address of a /64 can use
//! all of them. The table has an entry per connected peer, so the number of connections bounds it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;

/// The connections of each peer.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// The registration of a connection with its peer. Dropping it releases the place.
#[derive(Debug)]
pub(crate) struct PeerRegistration {
    peers: Peers,
    peer: IpAddr,
}

impl Peers {
    /// Creates the table. Each peer may have `max` connections.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, open: Arc::default() }
    }

    /// Registers a connection. Returns `None` if the peer already has the maximum number.
    pub(crate) fn admit(&self, address: IpAddr) -> Option<PeerRegistration> {
        let peer = peer_of(address);
        let mut open = self.open.lock();
        let n_open = open.entry(peer).or_default();
        // The maximum is at least 1, so this entry is not new.
        if *n_open >= self.max {
            return None;
        }
        *n_open += 1;
        Some(PeerRegistration { peers: self.clone(), peer })
    }
}

impl Drop for PeerRegistration {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        if let Some(n_open) = open.get_mut(&self.peer) {
            *n_open = n_open.saturating_sub(1);
            if *n_open == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OPS-11, T7: a peer at its limit takes no connections from another peer, and leaves nothing
    /// behind.
    #[test]
    fn a_peer_has_its_places_and_no_others() {
        let peers = Peers::new(2);
        let admit = |address: &str| peers.admit(address.parse().unwrap());
        let first = admit("10.0.0.1").unwrap();
        // The same address, as a dual-stack socket reports it.
        let second = admit("::ffff:10.0.0.1").unwrap();
        assert!(admit("10.0.0.1").is_none());
        assert!(admit("10.0.0.2").is_some());
        drop(first);
        let first = admit("10.0.0.1").unwrap();
        let v6 = [admit("2001:db8::1").unwrap(), admit("2001:db8::ffff:0:0:2").unwrap()];
        assert!(admit("2001:db8::3").is_none(), "a network of 64 bits is one peer");
        assert!(admit("2001:db8:0:1::3").is_some());
        drop((first, second, v6));
        assert!(peers.open.lock().is_empty());
    }
}
