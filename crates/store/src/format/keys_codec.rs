//! Conversion of sealed resources and their keys between the model and `chancery.raft.v1`.

use bytes::Bytes;
use chancery_model::{
    DataKey, DataKeyId, KeyOp, KeyTarget, Keys, KeysRefusal, Sealed, SealingId, WrappedKey,
};
use chancery_raft_proto::v1 as pb;

use crate::format::record::RecordError;

fn missing(what: &str) -> RecordError {
    RecordError::Content(format!("{what} is missing; a newer release may have written it"))
}

fn exact<const N: usize>(what: &str, bytes: &Bytes) -> Result<[u8; N], RecordError> {
    bytes[..].try_into().map_err(|_| {
        RecordError::Content(format!("{what} has {N} bytes, this one has {}", bytes.len()))
    })
}

/// Encodes a sealed body, which is shared, not copied.
pub(crate) fn sealed_to_proto(sealed: &Sealed) -> pb::Sealed {
    pb::Sealed {
        key: sealed.key.0,
        mac: sealed.mac.to_vec().into(),
        length: sealed.body_len,
        bytes: sealed.bytes.clone(),
    }
}

/// Decodes a sealed body.
pub(crate) fn sealed_from_proto(message: Option<pb::Sealed>) -> Result<Sealed, RecordError> {
    let message = message.ok_or_else(|| missing("the sealed body of a resource"))?;
    // A body is never longer than its encrypted form. The length decides where resources begin in responses.
    if message.length as usize > message.bytes.len() {
        let (length, sealed) = (message.length, message.bytes.len());
        let text = format!("a body of {length} bytes has a sealed form of only {sealed} bytes");
        return Err(RecordError::Content(text));
    }
    Ok(Sealed {
        key: DataKeyId(message.key),
        mac: exact("the digest of a sealed body", &message.mac)?,
        body_len: message.length,
        bytes: message.bytes,
    })
}

fn wrapped_to_proto(key: &WrappedKey) -> pb::WrappedKey {
    pb::WrappedKey { kek: key.kek.to_string(), bytes: key.bytes.clone() }
}

fn wrapped_from_proto(message: Option<pb::WrappedKey>) -> Result<WrappedKey, RecordError> {
    let message = message.ok_or_else(|| missing("a wrapped key"))?;
    Ok(WrappedKey { kek: message.kek.into(), bytes: message.bytes })
}

fn data_key_to_proto(key: &DataKey) -> pb::DataKey {
    let DataKey { id, wrapped, created_ms } = key;
    pb::DataKey { id: id.0, wrapped: Some(wrapped_to_proto(wrapped)), created_ms: *created_ms }
}

fn data_key_from_proto(message: pb::DataKey) -> Result<DataKey, RecordError> {
    let wrapped = wrapped_from_proto(message.wrapped)?;
    Ok(DataKey { id: DataKeyId(message.id), wrapped, created_ms: message.created_ms })
}

fn sealing_id_from_proto(bytes: &Bytes) -> Result<SealingId, RecordError> {
    exact("the ID of the keys", bytes).map(SealingId)
}

/// Encodes the keys of a cluster.
pub(crate) fn keys_to_proto(keys: &Keys) -> pb::KeysRecord {
    pb::KeysRecord {
        sealing_id: keys.sealing_id.0.to_vec().into(),
        mac: keys.mac.as_ref().map(wrapped_to_proto),
        data: keys.data.iter().map(data_key_to_proto).collect(),
        next: keys.next,
    }
}

/// Decodes the keys of a cluster.
pub(crate) fn keys_from_proto(message: pb::KeysRecord) -> Result<Keys, RecordError> {
    Ok(Keys {
        sealing_id: sealing_id_from_proto(&message.sealing_id)?,
        mac: Some(wrapped_from_proto(message.mac)?),
        data: message.data.into_iter().map(data_key_from_proto).collect::<Result<_, _>>()?,
        next: message.next,
    })
}

/// Encodes a change of the keys.
pub(crate) fn key_op_to_proto(op: &KeyOp) -> pb::KeyOp {
    use pb::key_op::{Create, Op, Rewrap};
    let op = match op {
        KeyOp::Create { sealing_id, mac, data } => Op::Create(Create {
            sealing_id: sealing_id.0.to_vec().into(),
            mac: Some(wrapped_to_proto(mac)),
            data: Some(data_key_to_proto(data)),
        }),
        KeyOp::Add(key) => Op::Add(data_key_to_proto(key)),
        KeyOp::Rewrap { target, from, to } => Op::Rewrap(Rewrap {
            key: match target {
                KeyTarget::Mac => None,
                KeyTarget::Data(id) => Some(id.0),
            },
            from: Some(wrapped_to_proto(from)),
            to: Some(wrapped_to_proto(to)),
        }),
        KeyOp::Retire(id) => Op::Retire(id.0),
    };
    pb::KeyOp { op: Some(op) }
}

/// Decodes a change of the keys.
pub(crate) fn key_op_from_proto(message: pb::KeyOp) -> Result<KeyOp, RecordError> {
    use pb::key_op::{Create, Op, Rewrap};
    match message.op.ok_or_else(|| missing("the operation on the keys"))? {
        Op::Create(Create { sealing_id, mac, data }) => Ok(KeyOp::Create {
            sealing_id: sealing_id_from_proto(&sealing_id)?,
            mac: wrapped_from_proto(mac)?,
            data: data_key_from_proto(data.ok_or_else(|| missing("a data key"))?)?,
        }),
        Op::Add(key) => data_key_from_proto(key).map(KeyOp::Add),
        Op::Rewrap(Rewrap { key, from, to }) => Ok(KeyOp::Rewrap {
            target: key.map_or(KeyTarget::Mac, |id| KeyTarget::Data(DataKeyId(id))),
            from: wrapped_from_proto(from)?,
            to: wrapped_from_proto(to)?,
        }),
        Op::Retire(id) => Ok(KeyOp::Retire(DataKeyId(id))),
    }
}

/// Encodes a refusal.
pub(crate) fn keys_refusal_to_proto(refusal: &KeysRefusal) -> pb::refusal::Keys {
    use pb::refusal::keys::Reason;
    let (reason, key, resources) = match refusal {
        KeysRefusal::Unknown(key) => (Reason::Unknown, key.0, 0),
        KeysRefusal::NotNext(key) => (Reason::NotNext, key.0, 0),
        KeysRefusal::Newest(key) => (Reason::Newest, key.0, 0),
        KeysRefusal::InUse { key, resources } => (Reason::InUse, key.0, *resources),
        KeysRefusal::TooMany => (Reason::TooMany, 0, 0),
    };
    pb::refusal::Keys { reason: reason.into(), key, resources }
}

/// Decodes a refusal.
pub(crate) fn keys_refusal_from_proto(
    message: &pb::refusal::Keys,
) -> Result<KeysRefusal, RecordError> {
    use pb::refusal::keys::Reason;
    let key = DataKeyId(message.key);
    Ok(match message.reason() {
        Reason::Unknown => KeysRefusal::Unknown(key),
        Reason::NotNext => KeysRefusal::NotNext(key),
        Reason::Newest => KeysRefusal::Newest(key),
        Reason::InUse => KeysRefusal::InUse { key, resources: message.resources },
        Reason::TooMany => KeysRefusal::TooMany,
        Reason::Unspecified => return Err(missing("the reason of a refusal")),
    })
}
