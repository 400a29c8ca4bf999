//! Unit tests of internal equivalences: images, records and snapshots represent the same state.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chancery_model::{
    AccessOp, AssignmentOp, DataKeyId, Incarnation, Outcome, Precondition, ResourceDraft,
    ResourceKey, ResourceName, Revision, ScopeName, Sealed, Token, TokenDigest, Transaction,
    TransactionMeta, TypeUrl, Upsert,
};
use chancery_raft_proto::v1 as pb;
use proptest::{prelude::*, strategy::ValueTree as _};
use prost::Message;

use crate::{
    disk::{
        effect::Place,
        image::{Image, RestoredIdentity},
        loader::{LoadError, Loader},
        records::Record,
        snapshot::{Contents, Decoder, SnapshotData, SnapshotError},
    },
    format::{
        codec::{
            Command, Request, command_from_proto, command_to_proto, decode_command, digest,
            transaction_to_proto,
        },
        history::HISTORY_MAX,
        history_chain::HistoryHash,
        raft::{Membership, Peer, Response, StoredMembership, log_id},
        record::Family,
        request_id::RequestId,
    },
};

mod inputs;

use inputs::{access_rules, keys_created, preconditions, transactions};

type Records = BTreeMap<(Family, Vec<u8>), Vec<u8>>;

const FORM: Command = Command::Form { cluster_id: [9; 16], incarnation: Incarnation(77) };

fn formed() -> (Image, Records) {
    let (mut image, mut records) = (Image::new(), Records::new());
    apply(&mut image, &mut records, FORM);
    (image, records)
}

fn apply(image: &mut Image, records: &mut Records, ask: Command) -> Response {
    let mut edits = Vec::new();
    let response = image.apply(ask, &mut edits);
    for edit in edits.into_iter().filter(|edit| edit.place == Place::State) {
        match edit.record {
            Some(record) => drop(records.insert((edit.family, edit.key), record)),
            None => {
                let old = records.remove(&(edit.family, edit.key));
                assert!(old.is_some(), "a deleted record must exist");
            }
        }
    }
    response
}

fn ask(transaction: Transaction) -> Command {
    Command::Transact {
        transaction: Box::new(transaction),
        request: None,
        retention: crate::Retention::default(),
    }
}

fn all_records(image: &Image) -> Records {
    image.records().map(|Record { family, key, record }| ((family, key), record)).collect()
}

fn load(image: &Image, records: &Records) -> Image {
    try_load(records, image.applied_to_proto(0)).unwrap()
}

fn try_load(records: &Records, applied: pb::AppliedRecord) -> Result<Image, LoadError> {
    let mut loader = Loader::default();
    for family in [Family::Index, Family::Resources, Family::History] {
        for ((_, key), record) in records.iter().filter(|((f, _), _)| *f == family) {
            loader.add(family, key, Bytes::from(record.clone())).unwrap();
        }
    }
    loader.finish(applied)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn command_encoding_round_trips(
        transaction in transactions(),
        preconditions in prop::collection::vec(preconditions(), 0..3),
    ) {
        let ask = ask(Transaction { preconditions, ..transaction });
        let bytes = Bytes::from(command_to_proto(&ask).encode_to_vec());
        let read = command_from_proto(pb::Command::decode(bytes.clone()).unwrap()).unwrap();
        prop_assert_eq!(&read, &ask);
        prop_assert_eq!(decode_command(&bytes).unwrap(), ask);
    }

    /// The records written step by step, the content of a snapshot, and the loaded image are one
    /// state, down to the bytes.
    #[test]
    fn written_loaded_and_sent_states_are_equal(
        transactions in prop::collection::vec(transactions(), 1..12),
    ) {
        let (mut image, mut records) = formed();
        for command in keys_created() {
            apply(&mut image, &mut records, command);
        }
        for (index, transaction) in (1..).zip(transactions) {
            apply(&mut image, &mut records, ask(transaction));
            image.applied = Some(log_id(1, index));
        }
        prop_assert_eq!(&all_records(&image), &records);
        let loaded = load(&image, &records);
        prop_assert_eq!(&all_records(&loaded), &records);
        let mut decoder = Decoder::default();
        for frame in SnapshotData::without_content(image.clone()).encode(Contents::Omit) {
            decoder.push(&frame).unwrap();
        }
        let received = decoder.finish().unwrap().image;
        prop_assert_eq!(&all_records(&received), &records);
        for other in [&loaded, &*received] {
            prop_assert_eq!(other.state.revision, image.state.revision);
            prop_assert_eq!(other.state.incarnation, image.state.incarnation);
            prop_assert_eq!(other.n_resources, image.state.len() as u64);
            prop_assert_eq!(&other.history, &image.history);
            prop_assert_eq!(other.n_sealed, image.state.n_sealed().0);
            prop_assert_eq!(image.n_sealed, image.state.n_sealed().0);
            prop_assert_eq!((other.applied, other.cluster_id), (image.applied, image.cluster_id));
            // The indexes of names, aliases, lifetimes and variants are parts of the state.
            prop_assert_eq!(format!("{:?}", other.state), format!("{:?}", image.state));
        }
    }

    /// A replica continues the same way whether it applied the whole log itself, was restarted, or
    /// received a snapshot. Revisions and versions depend on the log alone.
    #[test]
    fn replica_continues_equally_from_log_restart_or_snapshot(
        before in prop::collection::vec(transactions(), 0..5),
        after in prop::collection::vec(transactions(), 1..5),
    ) {
        let (mut image, mut records) = formed();
        for command in keys_created() {
            apply(&mut image, &mut records, command);
        }
        for transaction in before {
            apply(&mut image, &mut records, ask(transaction));
        }
        let mut decoder = Decoder::default();
        for frame in SnapshotData::without_content(image.clone()).encode(Contents::Omit) {
            decoder.push(&frame).unwrap();
        }
        let mut others = [load(&image, &records), Image::clone(&decoder.finish().unwrap().image)];
        for transaction in after {
            let command = ask(transaction);
            let outcome = apply(&mut image, &mut records, command.clone());
            for other in &mut others {
                prop_assert_eq!(&other.apply(command.clone(), &mut Vec::new()), &outcome);
                prop_assert_eq!(&all_records(other), &records);
                prop_assert_eq!(&other.history, &image.history, "hashes are equal, too");
            }
        }
    }

    /// Decoding upsert by upsert accepts and rejects the same commands as decoding as one message.
    #[test]
    fn damaged_commands_are_decoded_equally_in_parts_and_as_one_message(
        transaction in transactions(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = command_to_proto(&ask(transaction)).encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bytes = Bytes::from(bytes);
        let whole = pb::Command::decode(bytes.clone()).ok();
        let whole = whole.and_then(|command| command_from_proto(command).ok());
        prop_assert_eq!(decode_command(&bytes).ok(), whole);
    }

    /// Every committed entry is applied, or refused with a reason; none causes a panic.
    #[test]
    fn decoding_arbitrary_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(command) = pb::Command::decode(Bytes::from(bytes.clone()))
            && let Ok(ask) = command_from_proto(command)
        {
            Image::new().apply(ask, &mut Vec::new());
        }
        let mut decoder = Decoder::default();
        let magic = b"CHYSNAP1".to_vec();
        if decoder.push(&[magic, bytes].concat()).is_ok() {
            prop_assert!(decoder.finish().is_err());
        }
    }
}

fn small_image() -> Image {
    let (mut image, mut records) = formed();
    let key = ResourceKey {
        type_url: TypeUrl::from_static("type.googleapis.com/a.B"),
        name: ResourceName::new("n").unwrap(),
    };
    let draft = ResourceDraft::new(key, Bytes::from_static(b"body"));
    let upsert = Upsert { scope: ScopeName::new("default").unwrap(), draft };
    let transaction = Transaction { upserts: vec![upsert], ..Transaction::default() };
    apply(&mut image, &mut records, ask(transaction));
    image.applied = Some(log_id(2, 3));
    let peers = BTreeMap::from([(1, Peer { address: "[::1]:18002".into(), ..Peer::default() })]);
    image.membership = StoredMembership::new(Some(log_id(0, 0)), Membership::from(peers));
    image
}

fn commit(image: &mut Image, records: &mut Records, n: u64) {
    let name = format!("r{n}");
    let key = ResourceKey {
        type_url: TypeUrl::from_static("type.googleapis.com/a.B"),
        name: ResourceName::new(&name).unwrap(),
    };
    let draft = ResourceDraft::new(key, Bytes::new());
    let upsert = Upsert { scope: ScopeName::new("default").unwrap(), draft };
    let meta = TransactionMeta { author: name, ..TransactionMeta::default() };
    apply(
        image,
        records,
        ask(Transaction { upserts: vec![upsert], meta, ..Transaction::default() }),
    );
}

/// A record of the history that somebody changed, with a valid checksum, does not load.
#[test]
fn changed_history_record_is_found_at_the_next_start() {
    let (mut image, mut records) = formed();
    (1..=3).for_each(|n| commit(&mut image, &mut records, n));
    let loaded = load(&image, &records);
    assert_eq!(loaded.history, image.history);
    assert!(image.history.iter().all(|entry| entry.hash.is_some()));
    let mut applied = image.applied_to_proto(0);
    let forged = HistoryHash::to_bytes(image.history[1].hash);
    applied.history_head = forged.into();
    let error = try_load(&records, applied).unwrap_err().to_string();
    assert!(error.contains("a record of it was changed"), "{error}");
}

/// The chain goes on after the history has dropped revisions, in a snapshot, and after a restore. A directory of an
/// older release has no hash for what it has dropped.
#[test]
fn chain_survives_truncation_snapshot_restore_and_upgrade() {
    let (mut image, mut records) = formed();
    let n = HISTORY_MAX as u64 + 3;
    (1..=n).for_each(|n| commit(&mut image, &mut records, n));
    image.applied = Some(log_id(1, n));
    let oldest = image.history.front().unwrap();
    assert_eq!((oldest.revision, oldest.previous_hash), (Revision(4), image.history_anchor));
    assert!(image.history_anchor.is_some());
    let loaded = load(&image, &records);
    assert_eq!((&loaded.history, loaded.history_anchor), (&image.history, image.history_anchor));
    let mut decoder = Decoder::default();
    for frame in SnapshotData::without_content(image.clone()).encode(Contents::Omit) {
        decoder.push(&frame).unwrap();
    }
    let mut received = Image::clone(&decoder.finish().unwrap().image);
    assert_eq!(received.history, image.history);
    let newest = image.history.back().unwrap().hash;
    received.restore(
        RestoredIdentity {
            cluster_id: [7; 16],
            incarnation: Incarnation(1),
            revision: Revision(1 << 32),
            applied: log_id(1, 1),
            membership: StoredMembership::default(),
        },
        TransactionMeta::default(),
    );
    let restored = received.history.back().unwrap();
    assert!(restored.previous_hash == newest && restored.hash.is_some(), "{restored:?}");

    let older = pb::AppliedRecord {
        history_anchor: Bytes::new(),
        history_head: Bytes::new(),
        ..image.applied_to_proto(0)
    };
    let upgraded = try_load(&records, older).unwrap();
    let chained = upgraded.history.iter().find(|entry| entry.hash.is_some()).unwrap();
    assert_eq!(
        (chained.revision, chained.previous_hash),
        (Revision(8192), Some(HistoryHash::ZERO))
    );
    assert!(upgraded.history.back().unwrap().hash.is_some());
}

/// The format of the first release is readable forever.
#[test]
fn snapshot_format_of_first_release_is_unchanged() {
    let bytes: Vec<u8> =
        SnapshotData::without_content(small_image()).encode(Contents::Omit).flatten().collect();
    let golden = include_str!("../golden/snapshot.hex");
    let golden: String = golden.split_whitespace().collect();
    assert_eq!(hex::encode(bytes), golden);
}

#[test]
fn a_changed_or_shortened_snapshot_is_refused() {
    let bytes: Vec<u8> =
        SnapshotData::without_content(small_image()).encode(Contents::Omit).flatten().collect();
    let decode = |bytes: &[u8]| -> Result<SnapshotData, SnapshotError> {
        let mut decoder = Decoder::default();
        decoder.push(bytes)?;
        decoder.finish()
    };
    assert!(decode(&bytes).is_ok());
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "length {len}");
    }
    assert!(decode(&[&bytes[..], &[0]].concat()).is_err(), "one byte more");
}

/// The loader detects a lost record and a record of an earlier time, even if each record is intact.
#[test]
fn lost_or_stale_record_is_detected() {
    let image = small_image();
    let records = all_records(&image);
    for lost in records.keys() {
        let mut loader = Loader::default();
        for ((family, key), record) in records.iter().filter(|(key, _)| *key != lost) {
            // A resource whose collection is lost is refused immediately.
            drop(loader.add(*family, key, Bytes::from(record.clone())));
        }
        assert!(loader.finish(image.applied_to_proto(0)).is_err(), "{lost:?}");
    }
    let (_, old) = formed();
    let (key, stale) = old.iter().next().unwrap();
    let mut image = image;
    let assignments = vec![AssignmentOp::Delete("default".into())];
    let transaction = Transaction { assignments, ..Transaction::default() };
    let response = image.apply(ask(transaction), &mut Vec::new());
    assert!(matches!(response, Response::Outcome(Outcome::Committed(_))));
    let mut loader = Loader::default();
    for (place, record) in all_records(&image) {
        let record = if place == *key { stale.clone() } else { record };
        drop(loader.add(place.0, &place.1, Bytes::from(record)));
    }
    assert!(loader.finish(image.applied_to_proto(0)).is_err());
}

#[test]
fn the_history_keeps_the_newest_revisions() {
    let (mut image, mut records) = formed();
    let n_revisions = HISTORY_MAX + 7;
    for n in 0..n_revisions {
        let mut assignment = chancery_model::default_assignment();
        assignment.priority = i64::try_from(n).unwrap();
        let assignments = vec![AssignmentOp::Put(assignment)];
        let transaction = Transaction { assignments, ..Transaction::default() };
        apply(&mut image, &mut records, ask(transaction));
    }
    assert_eq!(image.history.len(), HISTORY_MAX);
    assert_eq!(image.history.back().unwrap().revision.0, n_revisions as u64);
    let in_records = records.keys().filter(|(family, _)| *family == Family::History).count();
    assert_eq!(in_records, HISTORY_MAX);
    assert_eq!(load(&image, &records).history, image.history);
}

#[test]
fn second_form_command_changes_nothing() {
    let (mut image, mut records) = formed();
    let before = records.clone();
    let other = Command::Form { cluster_id: [1; 16], incarnation: Incarnation(1) };
    assert_eq!(apply(&mut image, &mut records, other), Response::Done);
    assert_eq!((image.cluster_id, image.state.incarnation), (Some([9; 16]), Incarnation(77)));
    assert_eq!(records, before);
}

/// A write that is sent twice takes effect once, also on a replica that has loaded its state. A
/// retry that is too old for the history is not treated as a new write.
#[test]
fn a_repeated_request_takes_effect_once() {
    let (mut image, mut records) = formed();
    let write = |n: i64, id: u8, repeated, since| {
        let mut assignment = chancery_model::default_assignment();
        assignment.priority = n;
        let assignments = vec![AssignmentOp::Put(assignment)];
        let transaction = Transaction { assignments, ..Transaction::default() };
        let (id, since, digest) = (RequestId([id; 16]), Revision(since), 0);
        let request = Request { id, repeated, since, digest };
        Command::Transact {
            transaction: Box::new(transaction),
            request: Some(request),
            retention: crate::Retention::default(),
        }
    };
    let first = apply(&mut image, &mut records, write(1, 1, false, 0));
    apply(&mut image, &mut records, write(2, 2, false, 1));
    let before = records.clone();
    assert_eq!(apply(&mut image, &mut records, write(1, 1, true, 0)), first);
    let mut image = load(&image, &records);
    assert_eq!(apply(&mut image, &mut records, write(1, 1, true, 0)), first);
    assert_eq!(records, before, "nothing has changed");
    // A retry of a write that never took effect does take effect.
    let new = apply(&mut image, &mut records, write(3, 3, true, 0));
    assert!(matches!(new, Response::Outcome(Outcome::Committed(s)) if s.revision == Revision(3)));
    for n in 0..HISTORY_MAX {
        let n = i64::try_from(n).unwrap();
        apply(&mut image, &mut records, ask_put(100 + n));
    }
    assert_eq!(image.requests.len(), 0, "requests are forgotten with the history");
    assert_eq!(apply(&mut image, &mut records, write(1, 1, true, 0)), Response::Forgotten);
    let newest = image.state.revision.0;
    let new = apply(&mut image, &mut records, write(4, 4, true, newest - 5));
    assert!(matches!(new, Response::Outcome(_)), "the history has all revisions since");
}

/// Each part of a transaction changes the digest; author, reason and time do not.
#[test]
fn digest_covers_exactly_the_written_content() {
    let scope = ScopeName::new("default").unwrap();
    let key =
        ResourceKey { type_url: TypeUrl::new("t").unwrap(), name: ResourceName::new("n").unwrap() };
    let none = Transaction::default();
    let draft = ResourceDraft::new(key.clone(), Bytes::new());
    let upserts = |body: &'static [u8]| {
        let draft = ResourceDraft { body: Bytes::from_static(body), ..draft.clone() };
        vec![Upsert { scope: scope.clone(), draft }]
    };
    let precondition = Precondition::Revision(Revision(1));
    let all = [
        none.clone(),
        Transaction { preconditions: vec![precondition], ..none.clone() },
        Transaction { deletes: vec![(scope.clone(), key)], ..none.clone() },
        Transaction { prune: vec![scope.clone()], ..none.clone() },
        Transaction { upserts: upserts(b"1"), ..none.clone() },
        Transaction { upserts: upserts(b"2"), ..none.clone() },
        Transaction { assignments: vec![AssignmentOp::Delete("default".into())], ..none.clone() },
    ];
    let of = |transaction: &Transaction| digest(&transaction_to_proto(transaction));
    let digests: BTreeSet<u64> = all.iter().map(of).collect();
    assert_eq!(digests.len(), all.len());
    let by = TransactionMeta { author: "me".to_owned(), time_ms: 7, ..TransactionMeta::default() };
    assert_eq!(of(&Transaction { meta: by, ..none.clone() }), of(&none));
    // A retry seals again. What it writes is the same.
    let sealed = |mac: u8, key, bytes: &'static [u8]| {
        let (mac, bytes) = ([mac; 32], Bytes::from_static(bytes));
        let sealed = Some(Sealed { key: DataKeyId(key), mac, body_len: 1, bytes });
        let upserts =
            vec![Upsert { scope: scope.clone(), draft: ResourceDraft { sealed, ..draft.clone() } }];
        Transaction { upserts, ..none.clone() }
    };
    assert_eq!(of(&sealed(1, 1, b"salt 1")), of(&sealed(1, 2, b"salt 2")));
    assert_ne!(of(&sealed(1, 1, b"salt 1")), of(&sealed(2, 1, b"salt 1")));
    let permitted = vec![Precondition::Access(Revision(3))];
    assert_eq!(of(&Transaction { preconditions: permitted, ..none.clone() }), of(&none));
}

/// A write that reuses the request ID of another write is refused as a reuse, also on a replica
/// that has loaded its state. A request without a digest comes from an earlier release, and is not
/// compared.
#[test]
fn request_id_reused_for_different_write_is_rejected() {
    let (mut image, mut records) = formed();
    let write = |n: i64, digest| {
        let Command::Transact { transaction, .. } = ask_put(n) else { unreachable!() };
        let (id, since) = (RequestId([1; 16]), Revision(0));
        let request = Request { id, repeated: false, since, digest };
        Command::Transact {
            transaction,
            request: Some(request),
            retention: crate::Retention::default(),
        }
    };
    let first = apply(&mut image, &mut records, write(1, 11));
    let before = records.clone();
    for mut image in [load(&image, &records), image] {
        let other = apply(&mut image, &mut records, write(2, 22));
        assert_eq!(other, Response::Reused(Revision(1)));
        assert_eq!(apply(&mut image, &mut records, write(1, 11)), first);
        assert_eq!(apply(&mut image, &mut records, write(2, 0)), first);
        assert_eq!(records, before, "nothing has changed");
    }
}

fn ask_put(priority: i64) -> Command {
    let mut assignment = chancery_model::default_assignment();
    assignment.priority = priority;
    let assignments = vec![AssignmentOp::Put(assignment)];
    ask(Transaction { assignments, ..Transaction::default() })
}

/// Attack 61: a token that was deleted after a backup does not become valid again. Access rules stay.
#[test]
fn restored_state_has_rules_and_no_tokens() {
    let (mut image, mut records) = formed();
    let digest = TokenDigest([7; 32]);
    let token =
        Token { name: "ci".into(), digest, created_ms: 1, expires_ms: 2, revision: Revision(0) };
    let rule = access_rules();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let rule = rule.new_tree(&mut runner).unwrap().current();
    let access = vec![AccessOp::AddToken(token), AccessOp::PutRule(Box::new(rule.clone()))];
    apply(&mut image, &mut records, ask(Transaction { access, ..Transaction::default() }));
    assert!(image.state.access.token(&digest).is_some());
    let identity = RestoredIdentity {
        cluster_id: [1; 16],
        incarnation: Incarnation(9),
        revision: Revision(50),
        applied: log_id(1, 1),
        membership: StoredMembership::default(),
    };
    image.restore(identity, TransactionMeta::default());
    assert_eq!(image.state.access.tokens, []);
    assert_eq!(image.state.access.rules, [rule]);
    assert_eq!(image.state.access.changed, Revision(50));
    // The counts of the records still hold.
    let restored = load(&image, &all_records(&image));
    assert_eq!(restored.state.access.rules.len(), 1);
}
