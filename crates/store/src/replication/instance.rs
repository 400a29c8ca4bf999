//! Replica instances, which distinguish successive replicas with the same ID.
//!
//! A replica that loses its disk is replaced by another one with the same ID, and the old disk may return
//! later. The cluster no longer counts on the acknowledgments and votes of the old replica. The new one
//! may have acknowledged and voted differently, so the cluster must not mistake one for the other. Each
//! data directory therefore has a random *instance*. The membership records the instance of each member,
//! and each call names the instances of caller and callee.
//!
//! Invariants:
//! - A replica refuses calls for another instance of its ID.
//! - A replica refuses the calls of an instance that was replaced in the membership. It accepts the call if
//!   the caller knows a newer membership, because the caller may be the replacement. A replaced replica knows
//!   no membership that is newer than its replacement.
//! - If an instance is unknown, the two replicas are not distinguished: a replica or its membership is
//!   from an earlier release. A directory without an instance, however, differs from a member with one,
//!   because it is from the time before instances.

use std::fmt;

use chancery_raft_proto::v1 as pb;

use crate::format::{
    identity::Identity,
    raft::{Peer, StoredMembership, term_of},
};

/// The reason why a replica must stop, as a phrase that follows "this replica".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It was removed from the membership.
    Removed,
    /// Another replica has its ID.
    Replaced,
    /// Another process runs with a copy of its data directory.
    Copied,
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => {
                "was removed from its cluster; to use it again, start it with an empty data directory"
            }
            Self::Replaced => {
                "was replaced by another replica with the same ID; empty its data directory, and start it with \
                 an unused ID to use it again"
            }
            Self::Copied => {
                "has a copy of the data directory of another process, which runs at the address that the \
                 members know; empty this data directory, and start it with an unused ID to use it again"
            }
        })
    }
}

/// Returns whether this replica was removed and its ID was then added again at another address.
///
/// `entry` is the entry for this replica's ID in a newer membership. It has no instance, because the added
/// replica has not joined yet. Only a leader of an earlier release also drops instances, and it does not
/// change addresses.
pub(crate) fn is_added_again(
    own: Identity,
    address: &str,
    listed: Option<&Peer>,
    entry: &pb::Peer,
) -> bool {
    let elsewhere = |known: &str| !known.is_empty() && known != entry.address;
    let was_here = |listed: &Peer| listed.instance == own.instance && elsewhere(&listed.address);
    own.instance > 0 && entry.instance == 0 && elsewhere(address) && listed.is_none_or(was_here)
}

/// Returns the refusal for a replica that was replaced.
pub(crate) fn replaced(id: u64) -> String {
    format!("replica {id} {}", Removal::Replaced)
}

/// Returns whether a replica with the ID of a member is another instance. `None` means an earlier release.
pub(crate) fn is_another(known: &Peer, instance: Option<u64>) -> bool {
    known.instance > 0 && instance.is_some_and(|instance| instance != known.instance)
}

/// Returns whether the membership of another replica is newer than this one's, by the entries that
/// established them.
pub(crate) fn is_newer(theirs: Option<&pb::LogId>, ours: &StoredMembership) -> bool {
    let theirs = theirs.map(|id| (id.term, id.index));
    theirs > ours.log_id().as_ref().map(|id| (term_of(id), id.index))
}

/// Checks that a call is for this instance.
pub(crate) fn check_callee(own: Identity, header: &pb::Header) -> Result<(), String> {
    if header.to_instance == 0 || header.to_instance == own.instance {
        return Ok(());
    }
    Err(format!(
        "the call of replica {} is for another instance of replica {}: one of the two replaced the other",
        header.from, own.replica_id
    ))
}

/// Checks that the caller was not replaced by another instance.
pub(crate) fn check_caller(known: &StoredMembership, header: &pb::Header) -> Result<(), String> {
    match known.get_node(&header.from) {
        Some(peer)
            if is_another(peer, header.from_instance)
                && !is_newer(header.membership_id.as_ref(), known) =>
        {
            Err(replaced(header.from))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use chancery_model::Incarnation;

    use super::*;
    use crate::{
        format::{
            raft::{Membership, log_id},
            raft_codec::peer_to_proto,
        },
        replication::codec,
    };

    const OWN: Identity =
        Identity { cluster_id: [7; 16], replica_id: 1, incarnation: Incarnation(5), instance: 10 };

    fn membership(instance: u64) -> StoredMembership {
        let peer = |instance| Peer { instance, ..Peer::default() };
        let peers = BTreeMap::from([(1, peer(10)), (2, peer(instance))]);
        let membership = Membership::new(vec![BTreeSet::from([1, 2])], peers).unwrap();
        StoredMembership::new(Some(log_id(3, 30)), membership)
    }

    fn of(instance: u64) -> pb::Header {
        codec::header(Identity { replica_id: 2, instance, ..OWN }, 1)
    }

    #[test]
    fn call_for_another_instance_of_the_replica_is_rejected() {
        let to = |to_instance| pb::Header { to_instance, ..of(20) };
        assert_eq!(check_callee(OWN, &to(10)), Ok(()));
        assert_eq!(check_callee(OWN, &to(0)), Ok(()), "the caller does not know the instance");
        let error = check_callee(OWN, &to(11)).unwrap_err();
        assert!(
            error.starts_with("the call of replica 2 is for another instance of replica 1"),
            "{error}"
        );
        assert!(
            check_callee(Identity { instance: 0, ..OWN }, &to(10)).is_err(),
            "an old directory"
        );
    }

    #[test]
    fn call_of_replaced_replica_is_rejected() {
        assert_eq!(check_caller(&membership(20), &of(20)), Ok(()));
        let error = check_caller(&membership(20), &of(21)).unwrap_err();
        assert!(
            error.starts_with("replica 2 was replaced by another replica with the same ID"),
            "{error}"
        );
        assert!(check_caller(&membership(20), &of(0)).is_err(), "an old directory");
        let old_release = pb::Header { from_instance: None, ..of(0) };
        assert_eq!(check_caller(&membership(20), &old_release), Ok(()));
        assert_eq!(check_caller(&membership(0), &of(20)), Ok(()), "a membership of an old release");
    }

    /// A replica that moves is not replaced, nor is one with a leader of an earlier release, which has no
    /// instances.
    #[test]
    fn replica_id_added_at_another_address_means_another_replica() {
        let at = |address: &str, instance| Peer {
            address: address.to_owned(),
            instance,
            ..Peer::default()
        };
        let is_another = |address, listed: Option<Peer>, entry: &Peer| {
            is_added_again(OWN, address, listed.as_ref(), &peer_to_proto(1, entry))
        };
        assert!(is_another("a:1", Some(at("a:1", 10)), &at("b:1", 0)));
        assert!(is_another("a:1", None, &at("b:1", 0)), "it knows that it was removed");
        assert!(!is_another("a:1", Some(at("a:1", 10)), &at("b:1", 10)), "it moved before");
        assert!(!is_another("a:1", Some(at("a:1", 10)), &at("a:1", 0)), "an earlier release leads");
        assert!(
            !is_another("b:1", Some(at("a:1", 10)), &at("b:1", 0)),
            "it moved, and such a release leads"
        );
        assert!(!is_another("b:1", Some(at("a:1", 10)), &at("a:1", 0)), "it is about to move");
        assert!(!is_another("b:1", Some(at("a:1", 0)), &at("c:1", 0)), "its instance is unknown");
        let old = Identity { instance: 0, ..OWN };
        let entry = peer_to_proto(1, &at("b:1", 0));
        assert!(!is_added_again(old, "a:1", Some(&at("a:1", 0)), &entry), "an old directory");
    }

    /// A replica that was offline first learns of a replacement from the new replica itself.
    #[test]
    fn stale_membership_does_not_reject_newer_instance() {
        let with = |term, index| {
            let membership_id = Some(pb::LogId { term, index });
            check_caller(&membership(20), &pb::Header { membership_id, ..of(21) })
        };
        assert_eq!(with(3, 31), Ok(()));
        assert_eq!(with(4, 29), Ok(()));
        assert!(with(3, 30).is_err());
        assert!(with(2, 99).is_err(), "entries that were never committed");
    }
}
