//! The position of a watch in the events of clients and members, which a caller passes back to resume.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_raft_proto::v1 as pb;
use prost::Message as _;

use crate::{AdminError, watch::members::Members};

/// The position after the last event that was sent.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The last event of each followed replica. The process is 0 until a replica that joined after the watch began has
    /// answered.
    pub(super) clients: BTreeMap<u64, pb::ClientEventsPosition>,
    /// The members that the caller knows.
    pub(super) members: Members,
}

/// A change of the position that an event causes. It takes effect when the event is sent: a stream that is lost
/// earlier resumes before the event.
#[derive(Debug)]
pub(super) enum PositionChange {
    /// The caller knows the events of the clients of a replica up to this one.
    Clients(pb::ClientEventsPosition),
    /// The caller knows that the clients of a replica are no longer followed.
    Unfollowed(u64),
    /// The caller knows the members.
    Members(Members),
}

impl Position {
    pub(super) fn apply(&mut self, change: PositionChange) {
        match change {
            PositionChange::Clients(position) => {
                self.clients.insert(position.replica_id, position);
            }
            PositionChange::Unfollowed(id) => {
                self.clients.remove(&id);
            }
            PositionChange::Members(members) => self.members = members,
        }
    }

    /// Returns the position as callers receive it.
    pub(super) fn encode(&self) -> Bytes {
        let members = self.members.roles.iter();
        let position = pb::WatchPosition {
            clients: self.clients.values().copied().collect(),
            leader: self.members.leader.unwrap_or_default(),
            members: members
                .map(|(id, is_voter)| pb::WatchedMember { replica_id: *id, voter: *is_voter })
                .collect(),
        };
        position.encode_to_vec().into()
    }

    /// Reads the position that a caller has received.
    pub(super) fn decode(bytes: Bytes) -> Result<Self, AdminError> {
        let position = pb::WatchPosition::decode(bytes).map_err(|error| {
            AdminError::Parameter(format!(
                "the position is invalid: {error}; pass the position of an event of a watch"
            ))
        })?;
        let clients = position.clients.into_iter().map(|one| (one.replica_id, one));
        let roles = position.members.into_iter().map(|one| (one.replica_id, one.voter));
        let leader = Some(position.leader).filter(|id| *id != 0);
        let members = Members { leader, roles: roles.collect() };
        Ok(Self { clients: clients.collect(), members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_survives_encoding() {
        let last = pb::ClientEventsPosition { replica_id: 2, process: u64::MAX, last: 7 };
        let mut position = Position::default();
        position.apply(PositionChange::Clients(last));
        position.apply(PositionChange::Clients(pb::ClientEventsPosition { replica_id: 3, ..last }));
        position.apply(PositionChange::Unfollowed(3));
        let members = Members { leader: Some(2), roles: [(1, true), (2, false)].into() };
        position.apply(PositionChange::Members(members.clone()));
        let decoded = Position::decode(position.encode()).unwrap();
        assert_eq!((decoded.clients, decoded.members), ([(2, last)].into(), members));
    }

    #[test]
    fn invalid_position_is_rejected() {
        let empty = Position::decode(Bytes::new()).unwrap();
        assert_eq!((empty.clients.len(), empty.members), (0, Members::default()));
        let error = Position::decode(Bytes::from_static(b"\xff")).unwrap_err().to_string();
        assert!(error.starts_with("the position is invalid: "), "{error}");
    }
}
