//! The report of a replica about its machine: disk space, clock and ports.

use std::{
    sync::atomic::Ordering,
    time::{SystemTime, UNIX_EPOCH},
};

use chancery_raft_proto::v1 as pb;
use chancery_tls::PortTls;

use crate::replication::core::Core;

/// Returns the time of this machine, in milliseconds since 1970.
pub(crate) fn time_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn port(name: &str, address: String, tls: Option<&PortTls>) -> pb::Port {
    let validity = tls.map(PortTls::validity);
    let certificate = validity.map(|validity| pb::Validity {
        not_before: validity.not_before,
        not_after: validity.not_after,
    });
    pb::Port { name: name.to_owned(), address, certificate }
}

/// Returns the report of this replica.
pub(crate) fn report(core: &Core) -> pb::Machine {
    let space = &core.storage.space;
    let own = core.ports.get().into_iter().flatten();
    let own = own.map(|own| port(own.name, own.address.to_string(), own.tls.as_ref()));
    let tls = core.calls.peers.tls().map(|tls| tls.certificates());
    let raft = (!core.address.is_empty()).then(|| port("raft", core.address.clone(), tls));
    pb::Machine {
        free_bytes: space.free(),
        free_bytes_min: core.config.free_bytes_min,
        disk_full: space.full().map(|full| full.to_string()).unwrap_or_default(),
        time_ms: time_ms(),
        ports: raft.into_iter().chain(own).collect(),
        drained: core.is_drained.load(Ordering::Relaxed),
    }
}
