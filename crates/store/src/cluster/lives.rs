//! Which of the replicas that have had a number is meant.
//!
//! A replica whose disk is gone is replaced by another one with its number, and its old disk may turn up again.
//! What it had acknowledged and voted for the cluster no longer counts on; what it says must not be taken for
//! the other one's, which may have acknowledged and voted for something else. So a directory has an *instance*,
//! the membership says of which instance a member is, and a call says from which to which it goes.
//!
//! Invariants:
//! - No call reaches an instance for which it was not meant.
//! - A call of an instance is refused once another one with its number is a member; whoever knows an older
//!   membership than the caller can not tell, and takes the call: the caller may be the other one. A replica that was
//!   replaced knows no newer one than those that it was replaced in.
//! - A replica is not taken for another one as long as one of both has no instance: it is of an earlier release, or
//!   its membership was made by one. A directory without an instance is of before there were any, so that it is
//!   another one than a member that has one.

use std::fmt;

use chancery_proto::raft::v1 as pb;

use super::members::SILENCE;
use crate::{
    core::Core,
    identity::Identity,
    raft::{Peer, StoredMembership, term_of},
};

/// Why a replica must end, to follow "this replica".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Somebody has removed it.
    Removed,
    /// Another one has its number.
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
                "was replaced by another one with the same number; empty its data directory, and to use it again \
                 start it with a number that nobody has"
            }
            Self::Copied => {
                "has a copy of the data directory of another process, which runs at the address that the members know; \
                 empty this data directory, and to use it again start it with a number that nobody has"
            }
        })
    }
}

/// Whether the entry of this replica's number in a newer membership is for one that has still to join, elsewhere: this
/// replica was removed, and then its number was added again. Nobody else forgets the instance of a member, but a
/// leader of an earlier release; that one does not move it.
fn is_added_anew(own: Identity, address: &str, listed: Option<&Peer>, entry: &pb::Peer) -> bool {
    let elsewhere = |known: &str| !known.is_empty() && known != entry.address;
    let was_here = |listed: &Peer| listed.instance == own.instance && elsewhere(&listed.address);
    own.instance > 0 && entry.instance == 0 && elsewhere(address) && listed.is_none_or(was_here)
}

/// What a replica is told that was replaced.
pub(crate) fn replaced(id: u64) -> String {
    format!("replica {id} {}", Removal::Replaced)
}

/// Whether somebody of the number of a member is another replica than that. `None` is an earlier release.
pub(crate) fn is_another(known: &Peer, instance: Option<u64>) -> bool {
    known.instance > 0 && instance.is_some_and(|instance| instance != known.instance)
}

/// Whether a membership of somebody else is newer than ours, by the entries that brought them.
pub(crate) fn is_newer(theirs: Option<&pb::LogId>, ours: &StoredMembership) -> bool {
    let theirs = theirs.map(|id| (id.term, id.index));
    theirs > ours.log_id().as_ref().map(|id| (term_of(id), id.index))
}

/// Whether a call is for this very replica.
pub(crate) fn check_callee(own: Identity, header: &pb::Header) -> Result<(), String> {
    if header.to_instance == 0 || header.to_instance == own.instance {
        return Ok(());
    }
    Err(format!(
        "the call of replica {} is for another replica {} than this one: one of them has replaced the other",
        header.from, own.replica_id
    ))
}

/// Whether a call is of a replica that is a member still.
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

impl Core {
    /// When no leader is heard, or knows where this replica is: whether that is because it is no member any more.
    /// Nobody tells it, for nobody sends it anything; the others know a later membership, without it.
    pub(super) async fn look_for_removal(&self) {
        let membership = self.membership();
        if membership.log_id().is_none() || self.removed.borrow().is_some() {
            return;
        }
        let answers = self.ask_members().await;
        let mut told = answers.iter().filter_map(|hello| self.removal_in(hello, &membership));
        let Some(first) = told.next() else { return };
        let removal = match first == Removal::Replaced || told.any(|it| it == Removal::Replaced) {
            true => Removal::Replaced,
            false => Removal::Removed,
        };
        self.end_for(removal);
    }

    /// Makes this replica end.
    fn end_for(&self, removal: Removal) {
        // First: whoever is told that it was removed finds that it takes no writes.
        self.failure.set(format!("it {removal}"));
        self.removed.send_replace(Some(removal));
    }

    /// Ends this replica if another process with a copy of its data directory answers at an address: the other one
    /// would lose its place in the membership, and take it back.
    pub(super) async fn look_for_copy(&self, address: &str) {
        let Some(hello) = self.ask_at(address, SILENCE).await else { return };
        if hello.cluster_id[..] == self.identity.cluster_id
            && (hello.replica_id, hello.instance) == (self.id(), self.identity.instance)
            && hello.process > 0
            && hello.process != self.process
        {
            tracing::error!(
                address,
                "another process has a copy of the data directory of this replica"
            );
            self.end_for(Removal::Copied);
        }
    }

    /// Whether an answer says for certain that this replica is no member any more.
    fn removal_in(
        &self,
        hello: &pb::HelloResponse,
        membership: &StoredMembership,
    ) -> Option<Removal> {
        // One that has joined reads the old entries first, of a time in which it was no member, or another one
        // was: only who leads knows for certain what came since. One without an instance has not joined since
        // there are any.
        let own = self.identity.instance;
        let is_certain = match membership.get_node(&self.id()).map(|listed| listed.instance) {
            _ if own == 0 => true,
            Some(instance) if instance == own => true,
            Some(instance) if instance > 0 => false,
            Some(_) | None => hello.leader == hello.replica_id,
        };
        if !is_certain || !self.is_disowned_by(hello, membership) {
            return None;
        }
        Some(match hello.replaced_caller {
            true => Removal::Replaced,
            false => Removal::Removed,
        })
    }

    /// Whether an answer is of a newer membership, of which this replica is not.
    pub(super) fn is_disowned_by(
        &self,
        hello: &pb::HelloResponse,
        membership: &StoredMembership,
    ) -> bool {
        let listed = membership.get_node(&self.id());
        let is_another = |entry| is_added_anew(self.identity, &self.address, listed, entry);
        is_newer(hello.membership_id.as_ref(), membership)
            && (!hello.knows_caller || hello.caller.as_ref().is_some_and(is_another))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use chancery_model::Incarnation;

    use super::*;
    use crate::{
        cluster::codec,
        raft::{Membership, log_id},
        raft_codec::peer_to_proto,
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
    fn a_call_is_for_one_of_the_replicas_that_have_had_a_number() {
        let to = |to_instance| pb::Header { to_instance, ..of(20) };
        assert_eq!(check_callee(OWN, &to(10)), Ok(()));
        assert_eq!(check_callee(OWN, &to(0)), Ok(()), "the caller does not know");
        let error = check_callee(OWN, &to(11)).unwrap_err();
        assert!(
            error.starts_with("the call of replica 2 is for another replica 1 than"),
            "{error}"
        );
        assert!(
            check_callee(Identity { instance: 0, ..OWN }, &to(10)).is_err(),
            "an old directory"
        );
    }

    #[test]
    fn a_call_of_a_replica_that_was_replaced_is_refused() {
        assert_eq!(check_caller(&membership(20), &of(20)), Ok(()));
        let error = check_caller(&membership(20), &of(21)).unwrap_err();
        assert!(
            error.starts_with("replica 2 was replaced by another one with the same"),
            "{error}"
        );
        assert!(check_caller(&membership(20), &of(0)).is_err(), "an old directory");
        let old_release = pb::Header { from_instance: None, ..of(0) };
        assert_eq!(check_caller(&membership(20), &old_release), Ok(()));
        assert_eq!(check_caller(&membership(0), &of(20)), Ok(()), "a membership of an old release");
    }

    /// Whoever moves, or has a leader of an earlier release, which knows of no instances, stays who it is.
    #[test]
    fn a_number_that_was_added_again_elsewhere_is_for_another_replica() {
        let at = |address: &str, instance| Peer {
            address: address.to_owned(),
            instance,
            ..Peer::default()
        };
        let anew = |address, listed: Option<Peer>, entry: &Peer| {
            is_added_anew(OWN, address, listed.as_ref(), &peer_to_proto(1, entry))
        };
        assert!(anew("a:1", Some(at("a:1", 10)), &at("b:1", 0)));
        assert!(anew("a:1", None, &at("b:1", 0)), "it knows that it was removed");
        assert!(!anew("a:1", Some(at("a:1", 10)), &at("b:1", 10)), "it has moved before");
        assert!(!anew("a:1", Some(at("a:1", 10)), &at("a:1", 0)), "an earlier release leads");
        assert!(!anew("b:1", Some(at("a:1", 10)), &at("b:1", 0)), "which has moved it");
        assert!(!anew("b:1", Some(at("a:1", 10)), &at("a:1", 0)), "it is about to move");
        assert!(!anew("b:1", Some(at("a:1", 0)), &at("c:1", 0)), "nobody knows its instance");
        let old = Identity { instance: 0, ..OWN };
        let entry = peer_to_proto(1, &at("b:1", 0));
        assert!(!is_added_anew(old, "a:1", Some(&at("a:1", 0)), &entry), "an old directory");
    }

    /// One that was away hears of those that have been replaced from nobody but themselves.
    #[test]
    fn who_knows_an_older_membership_does_not_refuse_the_newer_replica() {
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
