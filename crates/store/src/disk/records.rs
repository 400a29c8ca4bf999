//! The records of a state: their keys and their content.

use bytes::Bytes;
use chancery_model::{
    Access, Assignments, Collection, CollectionKey, Freeze, FreezeParts, FreezeTarget,
    FrozenResource, FrozenVersion, Keys, Quotas, Resource, ResourceKey, ResourceName, Revision,
    Scope, ScopeName, TypeUrl,
};
use chancery_raft_proto::v1 as pb;

use crate::format::{
    access_codec::{rule_to_proto, token_to_proto},
    assignment_codec::assignment_to_proto,
    codec::{resource_from_proto, resource_to_proto},
    freeze_codec::{freeze_key, freeze_record, held_key, held_to_proto, stamp_key, stamp_to_proto},
    history::{HistoryEntry, history_key},
    keys_codec::keys_to_proto,
    quota_codec::quota_to_proto,
    record::{self, Family, RecordError},
};

/// A record with its family and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) family: Family,
    pub(crate) key: Vec<u8>,
    pub(crate) record: Vec<u8>,
}

pub(crate) const ASSIGNMENTS_KEY: &[u8] = b"a";
pub(crate) const ACCESS_KEY: &[u8] = b"x";
pub(crate) const KEYS_KEY: &[u8] = b"k";
pub(crate) const RULE_PREFIX: u8 = b'r';
pub(crate) const TOKEN_PREFIX: u8 = b't';
pub(crate) const QUOTA_PREFIX: u8 = b'q';
pub(crate) const FREEZE_PREFIX: u8 = b'f';
pub(crate) const HELD_PREFIX: u8 = b'h';
pub(crate) const STAMP_PREFIX: u8 = b'm';
pub(crate) const COLLECTION_PREFIX: u8 = b'c';
pub(crate) const SCOPE_PREFIX: u8 = b's';
pub(crate) const ALIAS_PREFIX: u8 = b'l';
/// Ends a scope and a type URL in a key; neither can contain it.
pub(crate) const SEPARATOR: u8 = 0;

fn seal(family: Family, key: Vec<u8>, message: &impl prost::Message) -> Record {
    let record = record::seal(family, &key, message);
    Record { family, key, record }
}

pub(crate) fn resource_record(
    scope: &ScopeName,
    type_url: &TypeUrl,
    resource: &Resource,
) -> Record {
    let (mut key, mut record) = (Vec::new(), Vec::new());
    seal_resource(&mut key, &mut record, scope, type_url, resource);
    Record { family: Family::Resources, key, record }
}

/// Encodes the record of a resource and its key in place of the content of the buffers.
pub(crate) fn seal_resource(
    key: &mut Vec<u8>,
    record: &mut Vec<u8>,
    scope: &ScopeName,
    type_url: &TypeUrl,
    resource: &Resource,
) {
    key.clear();
    put_resource_key(key, scope, type_url, resource.name());
    record::seal_into(record, Family::Resources, key, &resource_to_proto(resource));
}

/// Returns the beginning of the keys of resources in a scope, of one type or of all.
pub(crate) fn resources_prefix(scope: &ScopeName, type_url: Option<&TypeUrl>) -> Vec<u8> {
    let mut prefix = Vec::new();
    for part in [Some(scope.as_str()), type_url.map(TypeUrl::as_str)].into_iter().flatten() {
        prefix.extend_from_slice(part.as_bytes());
        prefix.push(SEPARATOR);
    }
    prefix
}

/// Decodes the record of a resource at its stored key.
pub(crate) fn resource_of_record(
    of: ResourceKey,
    key: &[u8],
    record: Bytes,
) -> Result<Resource, RecordError> {
    resource_from_proto(of, record::open(Family::Resources, key, record)?)
}

fn put_resource_key(key: &mut Vec<u8>, scope: &ScopeName, type_url: &TypeUrl, name: &ResourceName) {
    for part in [scope.as_str(), type_url.as_str()] {
        key.extend_from_slice(part.as_bytes());
        key.push(SEPARATOR);
    }
    key.extend_from_slice(name.as_str().as_bytes());
}

pub(crate) fn collection_record(collection: &Collection) -> Record {
    let (scope, type_url) = (collection.scope.as_str(), collection.type_url.as_str());
    let prefix = &[COLLECTION_PREFIX][..];
    let key = [prefix, scope.as_bytes(), &[SEPARATOR][..], type_url.as_bytes()].concat();
    let message = pb::CollectionRecord {
        changed: collection.changed.0,
        label: collection.label.as_deref().map(str::to_owned),
    };
    seal(Family::Index, key, &message)
}

pub(crate) fn alias_record(
    scope: &ScopeName,
    type_url: &TypeUrl,
    alias: &ResourceName,
    name: &ResourceName,
) -> Record {
    let mut key = vec![ALIAS_PREFIX];
    put_resource_key(&mut key, scope, type_url, alias);
    seal(Family::Index, key, &pb::AliasRecord { name: name.as_str().to_owned() })
}

pub(crate) fn scope_record(name: &ScopeName, scope: &Scope) -> Record {
    let key = [&[SCOPE_PREFIX][..], name.as_str().as_bytes()].concat();
    seal(Family::Index, key, &pb::ScopeRecord { changed: scope.changed.0 })
}

pub(crate) fn assignments_record(assignments: &Assignments) -> Record {
    let message = pb::AssignmentsRecord {
        changed: assignments.changed.0,
        rules: assignments.rules.iter().map(assignment_to_proto).collect(),
    };
    seal(Family::Index, ASSIGNMENTS_KEY.to_vec(), &message)
}

/// Returns the record of the keys of sealed resources; `None` if there never were any.
pub(crate) fn keys_record(keys: &Keys) -> Option<Record> {
    keys.exist().then(|| seal(Family::Index, KEYS_KEY.to_vec(), &keys_to_proto(keys)))
}

/// Returns the records of all access rules and tokens; none if there never was one.
pub(crate) fn access_records(access: &Access) -> impl Iterator<Item = Record> {
    let key = |prefix: u8, name: &[u8]| [&[prefix][..], name].concat();
    let changed = pb::AccessRecord { changed: access.changed.0 };
    let changed =
        (access.changed > Revision(0)).then(|| seal(Family::Index, ACCESS_KEY.to_vec(), &changed));
    let rules = access.rules.iter().map(move |rule| {
        seal(Family::Index, key(RULE_PREFIX, rule.name.as_bytes()), &rule_to_proto(rule))
    });
    let tokens = access.tokens.iter().map(move |token| {
        seal(Family::Index, key(TOKEN_PREFIX, &token.digest.0), &token_to_proto(token))
    });
    changed.into_iter().chain(rules).chain(tokens)
}

/// Returns the records of all quotas. Their use is not stored, but counted when the state is loaded.
pub(crate) fn quota_records(quotas: &Quotas) -> impl Iterator<Item = Record> {
    quotas.rules.iter().map(|quota| {
        let key = [&[QUOTA_PREFIX][..], quota.name.as_bytes()].concat();
        seal(Family::Index, key, &quota_to_proto(quota))
    })
}

/// Returns the record of a freeze, without its held resources and stamps.
pub(crate) fn record_of_freeze(freeze: &Freeze) -> Record {
    let key = freeze_key(FREEZE_PREFIX, &freeze.parts().target);
    seal(Family::Index, key, &freeze_record(freeze))
}

/// Returns the record of a held resource.
pub(crate) fn held_record(
    target: &FreezeTarget,
    place: &(ScopeName, ResourceKey),
    held: &FrozenResource,
) -> Record {
    seal(Family::Index, held_key(HELD_PREFIX, target, place), &held_to_proto(held))
}

/// Returns the record of the stamp of a collection.
pub(crate) fn stamp_record(
    target: &FreezeTarget,
    of: &CollectionKey,
    stamp: Option<&FrozenVersion>,
) -> Record {
    seal(Family::Index, stamp_key(STAMP_PREFIX, target, of), &stamp_to_proto(stamp))
}

/// Returns all records of a freeze.
pub(crate) fn freeze_records(freeze: &Freeze) -> impl Iterator<Item = Record> + '_ {
    let FreezeParts { target, held, stamps, .. } = freeze.parts();
    let held = held.iter().map(|(place, held)| held_record(target, place, held));
    let stamps = stamps.iter().map(|(of, stamp)| stamp_record(target, of, stamp.as_ref()));
    std::iter::once(record_of_freeze(freeze)).chain(held).chain(stamps)
}

pub(crate) fn history_record(entry: &HistoryEntry) -> Record {
    let key = history_key(Revision(entry.revision.0));
    seal(Family::History, key.to_vec(), &entry.to_proto())
}
