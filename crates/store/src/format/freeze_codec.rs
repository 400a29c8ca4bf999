//! Conversion of freezes between the model and `chancery.raft.v1`, and the keys of their records:
//!
//! ```text
//! f │ freeze                                      → FreezeRecord
//! h │ freeze │ 0 │ scope │ 0 │ type URL │ 0 │ name → HeldRecord
//! m │ freeze │ 0 │ scope │ 0 │ type URL           → StampRecord
//! ```
//!
//! `freeze` is the scope that is frozen; empty for all.

use std::sync::Arc;

use chancery_model::{
    Assignments, CollectionKey, Freeze, FreezeMeta, FreezeParts, FreezeTarget, FrozenResource,
    FrozenVersion, ResourceKey, ResourceName, Revision, ScopeName, TypeUrl,
};
use chancery_raft_proto::v1 as pb;
use imbl::OrdMap;

use crate::format::{
    access_codec::{target_from_proto, target_to_proto},
    assignment_codec::{assignment_from_proto, assignment_to_proto},
    codec::{resource_from_proto, resource_to_proto},
    record::RecordError,
};

/// Ends a scope and a type URL in a key; neither can contain it.
const SEPARATOR: u8 = 0;

fn content(error: impl std::fmt::Display) -> RecordError {
    RecordError::Content(error.to_string())
}

/// Encodes a freeze without held resources and stamps.
pub(crate) fn freeze_record(freeze: &Freeze) -> pb::FreezeRecord {
    let FreezeParts { target, meta, assignments, .. } = freeze.parts();
    let assignments = assignments.as_ref().map(|of| pb::AssignmentsRecord {
        changed: of.changed.0,
        rules: of.rules.iter().map(assignment_to_proto).collect(),
    });
    pb::FreezeRecord {
        scope: target_to_proto(target),
        revision: meta.revision.0,
        time_ms: meta.time_ms,
        until_ms: meta.until_ms,
        author: meta.author.clone(),
        reason: meta.reason.clone(),
        assignments,
    }
}

/// Decodes a freeze, without held resources and stamps.
pub(crate) fn freeze_parts(record: pb::FreezeRecord) -> Result<FreezeParts, RecordError> {
    let pb::FreezeRecord { scope, revision, time_ms, until_ms, author, reason, assignments } =
        record;
    let revision = Revision(revision);
    let assignments = assignments.map(|record| {
        let rules = record.rules.into_iter().map(assignment_from_proto);
        let rules = rules.collect::<Result<_, _>>()?;
        Ok::<_, RecordError>(Arc::new(Assignments { changed: Revision(record.changed), rules }))
    });
    Ok(FreezeParts {
        target: target_from_proto(&scope)?,
        meta: FreezeMeta { revision, time_ms, until_ms, author, reason },
        assignments: assignments.transpose()?,
        held: OrdMap::new(),
        stamps: OrdMap::new(),
    })
}

/// Encodes a held resource.
pub(crate) fn held_to_proto(held: &FrozenResource) -> pb::HeldRecord {
    pb::HeldRecord { resource: held.0.as_ref().map(|resource| resource_to_proto(resource)) }
}

/// Decodes a held resource.
pub(crate) fn held_from_proto(
    of: &ResourceKey,
    record: pb::HeldRecord,
) -> Result<FrozenResource, RecordError> {
    let resource = record.resource.map(|record| resource_from_proto(of.clone(), record));
    Ok(FrozenResource(resource.transpose()?.map(Arc::new)))
}

/// Encodes the stamp of a collection.
pub(crate) fn stamp_to_proto(stamp: Option<&FrozenVersion>) -> pb::StampRecord {
    let Some(FrozenVersion { changed, label, aliases }) = stamp else {
        return pb::StampRecord::default();
    };
    let label = label.as_deref().map(str::to_owned);
    let collection = Some(pb::CollectionRecord { changed: changed.0, label });
    let aliases = aliases.iter().map(|(alias, name)| pb::FrozenAlias {
        alias: alias.as_str().to_owned(),
        name: name.as_str().to_owned(),
    });
    pb::StampRecord { collection, aliases: aliases.collect() }
}

/// Decodes the stamp of a collection.
pub(crate) fn stamp_from_proto(
    record: pb::StampRecord,
) -> Result<Option<FrozenVersion>, RecordError> {
    let pb::StampRecord { collection, aliases } = record;
    let Some(pb::CollectionRecord { changed, label }) = collection else { return Ok(None) };
    let name = |name: &str| ResourceName::stored(name).map_err(content);
    let aliases = aliases.iter().map(|one| Ok((name(&one.alias)?, name(&one.name)?)));
    let aliases = aliases.collect::<Result<_, RecordError>>()?;
    Ok(Some(FrozenVersion { changed: Revision(changed), label: label.map(Arc::from), aliases }))
}

/// Returns the key of the record of a freeze.
pub(crate) fn freeze_key(prefix: u8, target: &FreezeTarget) -> Vec<u8> {
    [&[prefix][..], target_to_proto(target).as_bytes()].concat()
}

/// Returns the key of the record of a held resource.
pub(crate) fn held_key(
    prefix: u8,
    target: &FreezeTarget,
    (scope, key): &(ScopeName, ResourceKey),
) -> Vec<u8> {
    let of = (scope.clone(), key.type_url.clone());
    let mut bytes = stamp_key(prefix, target, &of);
    bytes.push(SEPARATOR);
    bytes.extend_from_slice(key.name.as_str().as_bytes());
    bytes
}

/// Returns the key of the record of a stamp.
pub(crate) fn stamp_key(
    prefix: u8,
    target: &FreezeTarget,
    (scope, type_url): &CollectionKey,
) -> Vec<u8> {
    let mut bytes = freeze_key(prefix, target);
    for part in [scope.as_str(), type_url.as_str()] {
        bytes.push(SEPARATOR);
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

/// Splits the key of a held resource, without its prefix.
pub(crate) fn split_held_key(
    key: &[u8],
) -> Result<(FreezeTarget, (ScopeName, ResourceKey)), RecordError> {
    let [freeze, scope, type_url, name] = parts(key)?;
    let (scope, type_url) = collection_key(scope, type_url)?;
    let name = ResourceName::stored(name).map_err(content)?;
    Ok((target_from_proto(freeze)?, (scope, ResourceKey { type_url, name })))
}

/// Splits the key of a stamp, without its prefix.
pub(crate) fn split_stamp_key(key: &[u8]) -> Result<(FreezeTarget, CollectionKey), RecordError> {
    let [freeze, scope, type_url] = parts(key)?;
    Ok((target_from_proto(freeze)?, collection_key(scope, type_url)?))
}

fn collection_key(scope: &str, type_url: &str) -> Result<CollectionKey, RecordError> {
    let scope = ScopeName::new(scope).map_err(content)?;
    Ok((scope, TypeUrl::new(type_url).map_err(content)?))
}

/// Splits a key into its parts, which separators end.
fn parts<const N: usize>(key: &[u8]) -> Result<[&str; N], RecordError> {
    let key = str::from_utf8(key).map_err(|_| content("its key is not text"))?;
    let parts: Vec<&str> = key.splitn(N, char::from(SEPARATOR)).collect();
    parts.try_into().map_err(|_| content("its key is too short"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_held_resources_and_stamps_can_be_split() {
        let scope = ScopeName::new("edge").unwrap();
        let type_url = TypeUrl::new("type.googleapis.com/x.Y").unwrap();
        let name = ResourceName::new("a/b").unwrap();
        let place = (scope.clone(), ResourceKey { type_url: type_url.clone(), name });
        for target in [FreezeTarget::All, FreezeTarget::Scope(scope.clone())] {
            let key = held_key(b'h', &target, &place);
            assert_eq!(split_held_key(&key[1..]).unwrap(), (target.clone(), place.clone()));
            let of = (scope.clone(), type_url.clone());
            let key = stamp_key(b'm', &target, &of);
            assert_eq!(split_stamp_key(&key[1..]).unwrap(), (target, of));
            assert!(split_held_key(&key[1..]).is_err());
        }
    }
}
