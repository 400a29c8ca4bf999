//! The log entries that followers acknowledged to this replica while it was the leader.
//!
//! A replica that acknowledged an entry has it on its disk. If it later denies the entry, either an older
//! copy replaced its data directory, or a copy of that directory answers at its address. Raft
//! assumes that this never happens. Without this module, the openraft leader would panic, or
//! repeat the call without a pause.
//!
//! Invariants:
//! - This module records the acknowledgment in an answer before Raft sees the answer.
//! - Raft never sees an answer that denies an entry which was acknowledged before the call was sent. The
//!   order of the answers does not matter.
//! - Within the term of a leader, every acknowledged entry counts, because a leader never truncates its own log. In a
//!   later term only committed entries count, because another leader may have truncated the others.
//! - A member that joins again without its data has another instance, of which nothing is recorded.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::format::raft::{LogId, StoredMembership};

/// A follower, and the term of this replica's leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Follower {
    pub(crate) replica_id: u64,
    /// The instance of the callee; 0 if unknown.
    pub(crate) instance: u64,
    pub(crate) term: u64,
}

/// The indexes of the last entries that a replica acknowledged.
#[derive(Debug, Clone, Copy)]
struct Known {
    follower: Follower,
    /// The last entry acknowledged in the term of `follower`.
    last: Option<u64>,
    /// The last committed entry acknowledged in any term.
    committed: Option<u64>,
    /// An acknowledged entry that the replica denied later.
    denied: Option<u64>,
}

/// The indexes of the last entries that a replica must have, because it acknowledged them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Required {
    /// The last required entry while this replica leads in the same term.
    pub(crate) last: Option<u64>,
    /// The last committed entry that it acknowledged; it is required in every term.
    pub(crate) committed: Option<u64>,
}

/// The acknowledged entries of all other replicas.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged(Mutex<BTreeMap<u64, Known>>);

impl Acknowledged {
    /// Returns the entries that a replica must have.
    pub(crate) fn required(&self, follower: Follower) -> Required {
        let all = self.0.lock();
        let known = all.get(&follower.replica_id);
        let Some(known) = known.filter(|it| it.follower.instance == follower.instance) else {
            return Required::default();
        };
        let last = known.last.filter(|_| known.follower.term == follower.term);
        Required { last: last.max(known.committed), committed: known.committed }
    }

    /// Returns the last committed entry that a replica must have.
    pub(crate) fn committed(&self, replica_id: u64, instance: u64) -> Option<u64> {
        self.required(Follower { replica_id, instance, term: 0 }).committed
    }

    /// Records that a replica has the log up to `last`. `committed` is the last entry known to be committed.
    pub(crate) fn add(&self, follower: Follower, last: Option<LogId>, committed: Option<LogId>) {
        let (last, committed) = (last.map(|id| id.index), committed.map(|id| id.index));
        let Some(last) = last else { return };
        let mut all = self.0.lock();
        let none = Known { follower, last: None, committed: None, denied: None };
        let known = all.entry(follower.replica_id).or_insert(none);
        if known.follower.instance != follower.instance {
            *known = none;
        }
        if known.follower.term > follower.term {
            // A late answer to a call of an earlier term.
            return;
        }
        if known.follower.term < follower.term {
            known.follower.term = follower.term;
            known.last = None;
        }
        known.last = known.last.max(Some(last));
        known.committed = known.committed.max(committed.map(|committed| committed.min(last)));
        known.denied = known.denied.filter(|denied| *denied > last);
    }

    /// Records that a replica denied an entry that it had acknowledged.
    pub(crate) fn deny(&self, follower: Follower, index: u64) {
        let mut all = self.0.lock();
        let known = all.get_mut(&follower.replica_id);
        if let Some(known) = known.filter(|it| it.follower.instance == follower.instance) {
            known.denied = Some(index);
        }
    }

    /// Removes the records of replicas that are no longer members or were replaced.
    pub(crate) fn retain(&self, membership: &StoredMembership) {
        self.0.lock().retain(|id, known| {
            let peer = membership.get_node(id);
            peer.is_some_and(|peer| [0, known.follower.instance].contains(&peer.instance))
        });
    }

    /// Returns the text of the alarm; `None` if no replica denied an entry that it had acknowledged.
    pub(crate) fn alarm(&self) -> Option<String> {
        let all = self.0.lock();
        let denied = all.iter().filter_map(|(id, known)| Some((id, known.denied?)));
        let replicas: Vec<String> =
            denied.map(|(id, index)| format!("replica {id} (log entry {index})")).collect();
        (!replicas.is_empty()).then(|| {
            format!(
                "{} lost log entries that it had acknowledged: an older copy replaced its data directory, or \
                 a copy of the directory answers at its address; see docs/cluster.md, A data directory that \
                 went back",
                replicas.join(" and ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::format::raft::{Membership, Peer, log_id};

    fn follower(instance: u64, term: u64) -> Follower {
        Follower { replica_id: 2, instance, term }
    }

    fn with(last: u64, committed: u64) -> Acknowledged {
        let acknowledged = Acknowledged::default();
        acknowledged.add(follower(7, 3), Some(log_id(3, last)), Some(log_id(3, committed)));
        acknowledged
    }

    fn required(acknowledged: &Acknowledged, instance: u64, term: u64) -> Option<u64> {
        acknowledged.required(follower(instance, term)).last
    }

    /// Another leader may truncate uncommitted entries, and never committed ones.
    #[test]
    fn later_term_requires_committed_entries() {
        let acknowledged = with(20, 15);
        assert_eq!(required(&acknowledged, 7, 3), Some(20));
        assert_eq!(required(&acknowledged, 7, 4), Some(15));
        acknowledged.add(follower(7, 4), Some(log_id(3, 12)), Some(log_id(3, 15)));
        assert_eq!(required(&acknowledged, 7, 4), Some(15), "the replica may be behind");
        acknowledged.add(follower(7, 4), Some(log_id(4, 17)), Some(log_id(3, 15)));
        assert_eq!(required(&acknowledged, 7, 4), Some(17));
        acknowledged.add(follower(7, 3), Some(log_id(3, 30)), None);
        assert_eq!(required(&acknowledged, 7, 4), Some(17), "a late answer");
        assert_eq!(acknowledged.committed(2, 7), Some(15));
    }

    #[test]
    fn committed_entries_that_were_not_acknowledged_are_not_required() {
        assert_eq!(required(&with(20, 99), 7, 4), Some(20));
        let acknowledged = Acknowledged::default();
        acknowledged.add(follower(7, 3), None, Some(log_id(3, 9)));
        assert_eq!(required(&acknowledged, 7, 3), None);
    }

    /// A replica that joins again without its data acknowledged nothing.
    #[test]
    fn new_instance_requires_no_entries() {
        let acknowledged = with(20, 15);
        assert_eq!(required(&acknowledged, 8, 3), None);
        acknowledged.add(follower(8, 3), Some(log_id(3, 4)), None);
        assert_eq!(required(&acknowledged, 8, 3), Some(4));
        assert_eq!(required(&acknowledged, 7, 3), None);
        assert_eq!(acknowledged.committed(2, 7), None);
    }

    #[test]
    fn alarm_ends_when_entry_arrives_or_replica_is_replaced() {
        let membership = |instance| {
            let peers = BTreeMap::from([(2, Peer { instance, ..Peer::default() })]);
            let membership = Membership::new(vec![BTreeSet::from([2])], peers).unwrap();
            StoredMembership::new(Some(log_id(3, 1)), membership)
        };
        let acknowledged = with(20, 15);
        assert_eq!(acknowledged.alarm(), None);
        acknowledged.deny(follower(7, 3), 20);
        let alarm = acknowledged.alarm().unwrap();
        assert!(alarm.starts_with("replica 2 (log entry 20) lost"), "{alarm}");
        acknowledged.add(follower(7, 3), Some(log_id(3, 19)), None);
        acknowledged.retain(&membership(7));
        assert!(acknowledged.alarm().is_some());
        acknowledged.add(follower(7, 3), Some(log_id(3, 20)), None);
        assert_eq!(acknowledged.alarm(), None);
        acknowledged.deny(follower(7, 3), 20);
        acknowledged.retain(&membership(8));
        assert_eq!((acknowledged.alarm(), required(&acknowledged, 7, 3)), (None, None));
    }
}
