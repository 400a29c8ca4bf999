//! The ports of the replicas that are ready.

use std::{collections::BTreeMap, net::SocketAddr};

use parking_lot::Mutex;

use super::proxy::Id;
use crate::random::Random;

/// The ports of a replica that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) xds: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// Replicas that are ready and whose process has not ended.
#[derive(Debug, Default)]
pub(crate) struct ReadyReplicas(Mutex<BTreeMap<Id, (u32, Ports)>>);

impl ReadyReplicas {
    /// Records that a process is ready.
    pub(crate) fn ready(&self, id: Id, pid: u32, ports: Ports) {
        self.0.lock().insert(id, (pid, ports));
    }

    /// Records that a process has ended.
    pub(crate) fn ended(&self, id: Id, pid: u32) {
        let mut ready = self.0.lock();
        if ready.get(&id).is_some_and(|(known, _)| *known == pid) {
            ready.remove(&id);
        }
    }

    /// Returns the replicas that are ready.
    pub(crate) fn ids(&self) -> Vec<Id> {
        self.0.lock().keys().copied().collect()
    }

    /// Returns the ports of a replica, if it is ready.
    pub(crate) fn ports(&self, id: Id) -> Option<Ports> {
        self.0.lock().get(&id).map(|(_, ports)| *ports)
    }

    /// Returns a random replica, other than `not` if possible.
    pub(crate) fn any(&self, random: &mut Random, not: Option<Id>) -> Option<(Id, Ports)> {
        let ready = self.0.lock();
        let mut all: Vec<(Id, Ports)> =
            ready.iter().map(|(id, (_, ports))| (*id, *ports)).collect();
        if all.iter().any(|(id, _)| Some(*id) != not) {
            all.retain(|(id, _)| Some(*id) != not);
        }
        let at = usize::try_from(random.below(crate::stats::count(all.len()))).ok()?;
        all.get(at).copied()
    }
}
