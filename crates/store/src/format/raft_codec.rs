//! Conversion of Raft's records between openraft's types and `chancery.raft.v1`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chancery_raft_proto::v1 as pb;
use openraft::EntryPayload;

use crate::format::{
    packed::unpack,
    raft::{
        EncodedCommand, Entry, LogId, Membership, Peer, StoredMembership, Vote, log_id, term_of,
    },
    record::{self, Family, RecordError},
};

/// Returns the key of a log entry. Keys sort like indexes.
pub(crate) fn log_key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

/// Encodes a log ID.
pub(crate) fn log_id_to_proto(id: &LogId) -> pb::LogId {
    pb::LogId { term: term_of(id), index: id.index }
}

/// Decodes a log ID.
pub(crate) fn log_id_from_proto(message: &pb::LogId) -> LogId {
    log_id(message.term, message.index)
}

/// Encodes a vote.
pub(crate) fn vote_to_proto(vote: &Vote) -> pb::Vote {
    let leader = vote.leader_id();
    pb::Vote { term: leader.term, replica_id: leader.voted_for, committed: vote.is_committed() }
}

/// Decodes a vote.
pub(crate) fn vote_from_proto(message: &pb::Vote) -> Vote {
    if message.committed {
        Vote::new_committed(message.term, message.replica_id)
    } else {
        Vote::new(message.term, message.replica_id)
    }
}

/// Returns the record of an entry that the log stores under the key of its index.
pub(crate) fn entry_to_stored(entry: &Entry) -> Vec<u8> {
    record::seal(Family::Log, &log_key(entry.log_id.index), &stored_to_proto(entry))
}

fn stored_to_proto(entry: &Entry) -> pb::LogEntry {
    match &entry.payload {
        EntryPayload::Normal(EncodedCommand { packed: Some(packed), .. }) => pb::LogEntry {
            id: Some(log_id_to_proto(&entry.log_id)),
            payload: Some(pb::log_entry::Payload::Packed(pb::PackedCommand::clone(packed))),
        },
        _ => entry_to_proto(entry),
    }
}

/// Returns the record of an entry that is sent to another replica.
pub(crate) fn entry_to_record(entry: &Entry) -> Vec<u8> {
    record::seal(Family::Log, &log_key(entry.log_id.index), &entry_to_proto(entry))
}

/// Returns the length of the record of an entry that is sent, without copying the entry.
pub(crate) fn entry_record_len(entry: &Entry) -> usize {
    record::sealed_len(&entry_to_proto(entry))
}

fn entry_to_proto(entry: &Entry) -> pb::LogEntry {
    let payload = match &entry.payload {
        EntryPayload::Blank => pb::log_entry::Payload::Blank(pb::Blank {}),
        EntryPayload::Normal(command) => pb::log_entry::Payload::Command(command.bytes.clone()),
        EntryPayload::Membership(membership) => {
            pb::log_entry::Payload::Membership(membership_to_proto(membership))
        }
    };
    pb::LogEntry { id: Some(log_id_to_proto(&entry.log_id)), payload: Some(payload) }
}

/// Decodes the entry that is stored under `index`.
pub(crate) fn entry_from_stored(index: u64, bytes: Bytes) -> Result<Entry, RecordError> {
    let mut message: pb::LogEntry = record::open(Family::Log, &log_key(index), bytes)?;
    if let Some(pb::log_entry::Payload::Packed(packed)) = &message.payload {
        message.payload = Some(pb::log_entry::Payload::Command(unpack(packed)?));
    }
    entry_from_proto(index, message)
}

/// Decodes an entry that another replica sent. Replicas send no compressed commands.
pub(crate) fn entry_from_record(index: u64, bytes: Bytes) -> Result<Entry, RecordError> {
    entry_from_proto(index, record::open(Family::Log, &log_key(index), bytes)?)
}

fn entry_from_proto(index: u64, message: pb::LogEntry) -> Result<Entry, RecordError> {
    let id = log_id_from_proto(&message.id.unwrap_or_default());
    if id.index != index {
        return Err(RecordError::Content(format!("its index is {}", id.index)));
    }
    let payload = match message.payload {
        Some(pb::log_entry::Payload::Blank(_)) => EntryPayload::Blank,
        Some(pb::log_entry::Payload::Command(command)) => {
            EntryPayload::Normal(EncodedCommand::new(command))
        }
        Some(pb::log_entry::Payload::Packed(_)) => {
            return Err(RecordError::Content("its command is compressed".into()));
        }
        Some(pb::log_entry::Payload::Membership(membership)) => {
            EntryPayload::Membership(membership_from_proto(membership)?)
        }
        None => return Err(RecordError::Content("it has a payload of an unknown kind".into())),
    };
    Ok(Entry { log_id: id, payload })
}

/// Encodes a member.
pub(crate) fn peer_to_proto(replica_id: u64, peer: &Peer) -> pb::Peer {
    let Peer { address, learner, instance } = peer.clone();
    pb::Peer { replica_id, address, learner, instance }
}

/// Decodes a member.
fn peer_from_proto(message: pb::Peer) -> (u64, Peer) {
    let pb::Peer { replica_id, address, learner, instance } = message;
    (replica_id, Peer { address, learner, instance })
}

/// Encodes a membership.
pub(crate) fn membership_to_proto(membership: &Membership) -> pb::Membership {
    let voters = |ids: &BTreeSet<u64>| pb::Voters { replica_ids: ids.iter().copied().collect() };
    let peer = |(id, peer): (&u64, &Peer)| peer_to_proto(*id, peer);
    pb::Membership {
        configs: membership.get_joint_config().iter().map(voters).collect(),
        peers: membership.nodes().map(peer).collect(),
    }
}

/// Decodes a membership.
pub(crate) fn membership_from_proto(message: pb::Membership) -> Result<Membership, RecordError> {
    let configs: Vec<BTreeSet<u64>> = message
        .configs
        .into_iter()
        .map(|voters| voters.replica_ids.into_iter().collect())
        .collect();
    let peers: BTreeMap<u64, Peer> = message.peers.into_iter().map(peer_from_proto).collect();
    if configs.is_empty() && peers.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, peers)
        .map_err(|error| RecordError::Content(format!("it is not a valid membership: {error}")))
}

/// Encodes a membership with the ID of its entry.
pub(crate) fn stored_membership_to_proto(stored: &StoredMembership) -> pb::StoredMembership {
    pb::StoredMembership {
        id: stored.log_id().as_ref().map(log_id_to_proto),
        membership: Some(membership_to_proto(stored.membership())),
    }
}

/// Decodes a membership with the ID of its entry.
pub(crate) fn stored_membership_from_proto(
    message: pb::StoredMembership,
) -> Result<StoredMembership, RecordError> {
    let id = message.id.as_ref().map(log_id_from_proto);
    Ok(StoredMembership::new(id, membership_from_proto(message.membership.unwrap_or_default())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(payload: EntryPayload<EncodedCommand, u64, Peer>) -> String {
        let entry = Entry { log_id: log_id(3, 300), payload };
        let record = entry_to_record(&entry);
        let read = entry_from_record(300, record.clone().into()).unwrap();
        assert_eq!((read.log_id, &read.payload), (entry.log_id, &entry.payload));
        assert!(entry_from_record(301, record.clone().into()).is_err(), "under another index");
        hex::encode(record)
    }

    /// The format of the first release is readable forever.
    #[test]
    fn log_entry_format_of_first_release_is_unchanged() {
        assert_eq!(round_trip(EntryPayload::Blank), "012bbbefcb56c7e0c20a05080310ac021200");
        let command = EncodedCommand::new(Bytes::from_static(b"command"));
        assert_eq!(
            round_trip(EntryPayload::Normal(command)),
            "0168f58c719b902def0a05080310ac021a07636f6d6d616e64"
        );
        let peer = |address: &str| Peer { address: address.to_owned(), ..Peer::default() };
        let peers = BTreeMap::from([(1, peer("a:1")), (2, peer("b:2")), (3, peer(""))]);
        let configs = vec![BTreeSet::from([1, 2]), BTreeSet::from([2])];
        let membership = Membership::new(configs, peers).unwrap();
        assert_eq!(
            round_trip(EntryPayload::Membership(membership)),
            "015a20663f1e4dbd640a05080310ac0222210a040a0201020a030a0102120708011203613a31120708021203623a3212020803"
        );
    }

    /// The format since members have instances.
    #[test]
    fn membership_entry_preserves_member_instance() {
        let peer =
            Peer { address: "a:1".to_owned(), learner: true, instance: 0x0102_0304_0506_0708 };
        let membership =
            Membership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, peer)])).unwrap();
        let record = round_trip(EntryPayload::Membership(membership));
        let bytes = "12120801".to_owned() + "1203613a31" + "1801" + "210807060504030201";
        assert!(record.ends_with(&bytes), "{record}");
    }

    /// The format since the log compresses large commands. Other replicas receive the command itself.
    #[test]
    fn packed_command_is_stored_but_not_sent() {
        // 4 literals, and a match of 12 bytes at distance 4; 5 literals.
        let lz4 = Bytes::from_static(b"\x48abcd\x04\x00\x50vwxyz");
        let bytes = Bytes::from_static(b"abcdabcdabcdabcdvwxyz");
        let packed = pb::PackedCommand { len: bytes.len() as u64, lz4 };
        let command = EncodedCommand::new(bytes.clone()).packed_as(Some(packed));
        let entry = Entry { log_id: log_id(3, 300), payload: EntryPayload::Normal(command) };
        let (stored, sent) = (entry_to_stored(&entry), entry_to_record(&entry));
        assert_eq!(sent.len(), entry_record_len(&entry));
        let plain = EntryPayload::Normal(EncodedCommand::new(bytes));
        let plain = Entry { log_id: log_id(3, 300), payload: plain };
        assert_eq!(sent, entry_to_record(&plain));
        assert_eq!(
            hex::encode(&stored[9..]),
            "0a05080310ac022a110815120d4861626364040050767778797a"
        );
        let refused = entry_from_record(300, stored.clone().into()).unwrap_err().to_string();
        assert!(refused.contains("its command is compressed"), "{refused}");
        let read = entry_from_stored(300, stored.into()).unwrap();
        assert_eq!((read.log_id, &read.payload), (plain.log_id, &plain.payload));
    }

    #[test]
    fn membership_with_unknown_voter_is_rejected() {
        let configs = vec![pb::Voters { replica_ids: vec![1] }];
        let message = pb::Membership { configs, peers: vec![] };
        assert!(membership_from_proto(message).is_err());
    }
}
