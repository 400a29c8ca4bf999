//! Conversion of quotas between the model and `chancery.raft.v1`.

use chancery_model::{Quota, QuotaExceeded, QuotaKey, ResourceKey, ScopeName};
use chancery_raft_proto::v1::{self as pb, refusal::quota_exceeded::Key};

use crate::format::record::RecordError;

/// Encodes a quota.
pub(crate) fn quota_to_proto(quota: &Quota) -> pb::Quota {
    pb::Quota {
        name: quota.name.to_string(),
        scopes: quota.scopes.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
        max_resources: quota.max_resources,
        max_bytes: quota.max_bytes,
        max_scopes: quota.max_scopes,
        max_body_bytes: quota.max_body_bytes,
    }
}

/// Decodes a quota.
pub(crate) fn quota_from_proto(message: pb::Quota) -> Result<Quota, RecordError> {
    let scopes = message.scopes.iter().map(|source| Quota::pattern(source));
    let scopes: Vec<_> = scopes
        .collect::<Result<_, _>>()
        .map_err(|error| RecordError::Content(format!("the quota {:?}: {error}", message.name)))?;
    Ok(Quota {
        name: message.name.into(),
        scopes,
        max_resources: message.max_resources,
        max_bytes: message.max_bytes,
        max_scopes: message.max_scopes,
        max_body_bytes: message.max_body_bytes,
    })
}

/// Encodes the limit that a transaction exceeds. `reference` encodes a resource.
pub(crate) fn exceeded_to_proto(
    exceeded: &QuotaExceeded,
    reference: impl Fn(&ScopeName, &ResourceKey) -> pb::ResourceRef,
) -> pb::refusal::QuotaExceeded {
    let key = match exceeded.key {
        QuotaKey::Resources => Key::Resources,
        QuotaKey::Bytes => Key::Bytes,
        QuotaKey::Scopes => Key::Scopes,
        QuotaKey::BodyBytes => Key::BodyBytes,
    };
    pb::refusal::QuotaExceeded {
        quota: exceeded.quota.to_string(),
        key: key.into(),
        value: exceeded.value,
        max: exceeded.max,
        resource: exceeded.resource.as_ref().map(|(scope, key)| reference(scope, key)),
    }
}

/// Decodes the limit that a transaction exceeds. `reference` decodes a resource.
pub(crate) fn exceeded_from_proto(
    message: pb::refusal::QuotaExceeded,
    reference: impl Fn(pb::ResourceRef) -> Result<(ScopeName, ResourceKey), RecordError>,
) -> Result<QuotaExceeded, RecordError> {
    let key = match message.key() {
        Key::Resources => QuotaKey::Resources,
        Key::Bytes => QuotaKey::Bytes,
        Key::Scopes => QuotaKey::Scopes,
        Key::BodyBytes => QuotaKey::BodyBytes,
        Key::Unspecified => {
            let text = "the limit of a quota is missing; a newer release may have written it";
            return Err(RecordError::Content(text.to_owned()));
        }
    };
    Ok(QuotaExceeded {
        quota: message.quota.into(),
        key,
        value: message.value,
        max: message.max,
        resource: message.resource.map(reference).transpose()?,
    })
}
