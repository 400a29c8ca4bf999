//! The answer to a Hello call: the status of this replica for another one.

use chancery_raft_proto::v1 as pb;
use openraft::async_runtime::WatchReceiver;

use crate::{
    format::raft_codec::{log_id_to_proto, peer_to_proto},
    replication::{core::Core, instance, machine, protocol, raft_node::Leader},
};

/// Returns the status of this replica for another one.
pub(crate) fn answer(core: &Core, caller: &pb::HelloRequest) -> pb::HelloResponse {
    let metrics = core.node.raft.metrics().borrow_watched().clone();
    let image = core.storage.published.newest();
    let leader = core.node.present_leader();
    let leader_address = match core.node.leader() {
        Some(Leader::Here) if leader.is_some() => core.address.clone(),
        Some(Leader::There { address, .. }) if leader.is_some() => address.to_string(),
        _ => String::new(),
    };
    let membership = &metrics.committed_membership_config;
    let known = membership.get_node(&caller.from);
    let replaced_caller =
        known.is_some_and(|known| instance::is_another(known, caller.from_instance));
    pb::HelloResponse {
        replica_id: core.id(),
        cluster_id: core.identity.cluster_id.to_vec().into(),
        incarnation: core.identity.incarnation.0,
        term: metrics.current_term,
        leader: leader.unwrap_or_default(),
        leader_address,
        last_log_index: metrics.last_log_index.unwrap_or_default(),
        committed: metrics.cluster_committed.map_or(0, |id| id.index),
        applied: image.applied.map_or(0, |id| id.index),
        revision: image.state.revision.0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        knows_caller: known.is_some() && !replaced_caller,
        replaced_caller,
        instance: core.identity.instance,
        process: core.process,
        membership_id: membership.log_id().as_ref().map(log_id_to_proto),
        protocol: Some(protocol::own()),
        failure: core.refuses_writes().unwrap_or_default(),
        diverged: core.divergence.reason().as_deref().unwrap_or_default().to_owned(),
        snapshot_progress: core.storage.snapshot_progress.bytes(),
        state_alarm: core.comparison.alarm().unwrap_or_default(),
        caller: known.map(|known| peer_to_proto(caller.from, known)),
        acknowledged_committed: caller
            .from_instance
            .and_then(|instance| core.calls.peers.acknowledged().committed(caller.from, instance)),
        machine: Some(machine::report(core)),
    }
}
