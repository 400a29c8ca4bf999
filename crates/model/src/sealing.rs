//! Whether the keys permit a transaction. Part of [`crate::State::apply`].

use crate::{DATA_KEYS_MAX, DataKeyId, KeyOp, Keys, KeysRefusal, Refusal, Transaction};

/// Returns why the keys do not permit a transaction. `n_sealed_by` counts the resources that a data key encrypts.
pub(crate) fn keys_refusal(
    keys: &Keys,
    transaction: &Transaction,
    n_sealed_by: impl Fn(DataKeyId) -> u64,
) -> Option<Refusal> {
    let uses = || {
        let upserts = transaction.upserts.iter();
        let drafts = upserts.filter_map(|upsert| upsert.draft.sealed.as_ref());
        drafts.chain(transaction.reseals.iter().map(|reseal| &reseal.sealed))
    };
    let unknown = uses().find(|sealed| keys.data_key(sealed.key).is_none());
    let unknown = unknown.map(|sealed| KeysRefusal::Unknown(sealed.key));
    let of_op = |op| {
        key_op_refusal(keys, op, &n_sealed_by).or_else(|| match *op {
            KeyOp::Retire(key) => match uses().filter(|sealed| sealed.key == key).count() {
                0 => None,
                resources => Some(KeysRefusal::InUse { key, resources: resources as u64 }),
            },
            KeyOp::Create { .. } | KeyOp::Add(_) | KeyOp::Rewrap { .. } => None,
        })
    };
    unknown.or_else(|| transaction.keys.iter().find_map(of_op)).map(Refusal::Keys)
}

fn key_op_refusal(
    keys: &Keys,
    op: &KeyOp,
    n_sealed_by: impl Fn(DataKeyId) -> u64,
) -> Option<KeysRefusal> {
    match op {
        KeyOp::Create { .. } | KeyOp::Rewrap { .. } => None,
        KeyOp::Add(key) if key.id.0 != keys.next || !keys.exist() => {
            Some(KeysRefusal::NotNext(key.id))
        }
        KeyOp::Add(_) => (keys.data.len() >= DATA_KEYS_MAX).then_some(KeysRefusal::TooMany),
        KeyOp::Retire(id) if keys.data_key(*id).is_none() => Some(KeysRefusal::Unknown(*id)),
        KeyOp::Retire(id) if keys.newest().is_some_and(|newest| newest.id == *id) => {
            Some(KeysRefusal::Newest(*id))
        }
        KeyOp::Retire(id) => {
            let resources = n_sealed_by(*id);
            (resources > 0).then_some(KeysRefusal::InUse { key: *id, resources })
        }
    }
}
