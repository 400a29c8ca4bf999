//! Ports that several processes can be told beforehand, and be started on again.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

use anyhow::{Result, bail};

/// Below the range from which Linux takes the ports of outgoing connections, so that no client takes
/// one away between two starts of a server.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port on the loopback that is free, and that no other test of this process was given.
pub(crate) fn free() -> Result<u16> {
    // Test processes that run at the same time begin at different places.
    let offset = (std::process::id() % 191) * 100;
    for _ in 0..RANGE.len() {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from((offset + step) % u32::try_from(RANGE.len())?)? + RANGE.start;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port in {RANGE:?}")
}
