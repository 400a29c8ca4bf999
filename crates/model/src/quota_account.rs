//! Accounts a transaction to the quotas, and finds the first one that it exceeds.

use std::sync::Arc;

use crate::{
    AccessLimit, AccessOp, Change, QUOTAS_MAX, Quota, QuotaExceeded, QuotaKey, QuotaUse, Quotas,
    Refusal, ResourceKey, ScopeName,
};

/// A state, as far as quotas depend on it.
pub(crate) trait Counted {
    /// Returns the use by one scope, in O(types).
    fn use_of_scope(&self, scope: &ScopeName) -> QuotaUse;

    /// Counts the use of a quota, in O(scopes).
    fn use_of_quota(&self, quota: &Quota) -> QuotaUse;

    /// Returns the length of the body of a resource.
    fn body_len(&self, scope: &ScopeName, key: &ResourceKey) -> Option<u64>;
}

/// Returns the quotas after a transaction that made `changes`, from `before` to `after`, and the number of
/// changed quotas. A quota without changed patterns costs nothing but the scopes that changed.
///
/// # Errors
/// Returns the first limit that the transaction exceeds, or the maximum number of quotas.
pub(crate) fn account(
    quotas: &Quotas,
    before: &impl Counted,
    after: &impl Counted,
    ops: &[AccessOp],
    changes: &[Change],
) -> Result<(Quotas, u64), Refusal> {
    let (old, count) = changed(quotas, before, ops);
    if old.rules.len() > QUOTAS_MAX.max(quotas.rules.len()) {
        return Err(Refusal::AccessTooMany(AccessLimit::Quotas));
    }
    if old.rules.is_empty() {
        return Ok((old, count));
    }
    let mut new = old.clone();
    // The changes are sorted by scope.
    for changes in changes.chunk_by(|a, b| a.scope == b.scope) {
        let Some(Change { scope, .. }) = changes.first() else { continue };
        let (gone, come) = (before.use_of_scope(scope), after.use_of_scope(scope));
        for (at, quota) in old.rules.iter().enumerate().filter(|(_, one)| one.includes(scope)) {
            new.used[at].remove(gone);
            new.used[at].add(come);
            if let Some(exceeded) = body_exceeds(quota, before, changes) {
                return Err(Refusal::Quota(exceeded));
            }
        }
    }
    match exceeded(&old, &new) {
        Some(exceeded) => Err(Refusal::Quota(exceeded)),
        None => Ok((new, count)),
    }
}

/// Returns the quotas after the operations, with their use in `state`, and the number of changes.
fn changed(quotas: &Quotas, state: &impl Counted, ops: &[AccessOp]) -> (Quotas, u64) {
    let is_quota = |op: &AccessOp| matches!(op, AccessOp::PutQuota(_) | AccessOp::DeleteQuota(_));
    if !ops.iter().any(is_quota) {
        return (quotas.clone(), 0);
    }
    let mut entries: Vec<(Quota, Option<QuotaUse>)> =
        quotas.iter().map(|(quota, used)| (quota.clone(), Some(*used))).collect();
    let count = ops.iter().filter(|op| change(&mut entries, op)).count() as u64;
    if count == 0 {
        return (quotas.clone(), 0);
    }
    let used = entries
        .iter()
        .map(|(quota, known)| known.unwrap_or_else(|| state.use_of_quota(quota)))
        .collect();
    let rules = entries.into_iter().map(|(quota, _)| quota).collect();
    (Quotas { rules: Arc::new(rules), used }, count)
}

/// Applies an operation. The use of a quota with other patterns becomes unknown.
fn change(entries: &mut Vec<(Quota, Option<QuotaUse>)>, op: &AccessOp) -> bool {
    let find = |entries: &[(Quota, _)], name: &Arc<str>| {
        entries.binary_search_by(|(quota, _)| quota.name.cmp(name))
    };
    match op {
        AccessOp::PutQuota(new) => match find(entries, &new.name) {
            Ok(at) if entries[at].0 == **new => return false,
            Ok(at) => {
                let used = entries[at].1.filter(|_| entries[at].0.scopes == new.scopes);
                entries[at] = ((**new).clone(), used);
            }
            Err(at) => entries.insert(at, ((**new).clone(), None)),
        },
        AccessOp::DeleteQuota(name) => match find(entries, name) {
            Ok(at) => drop(entries.remove(at)),
            Err(_) => return false,
        },
        AccessOp::PutRule(_)
        | AccessOp::DeleteRule(_)
        | AccessOp::AddToken(_)
        | AccessOp::DeleteToken(_)
        | AccessOp::Freeze { .. }
        | AccessOp::Thaw { .. }
        | AccessOp::OverrideFreezes => return false,
    }
    true
}

/// Returns the first limit that is exceeded and has grown.
fn exceeded(old: &Quotas, new: &Quotas) -> Option<QuotaExceeded> {
    new.rules.iter().zip(old.used.iter().zip(&new.used)).find_map(|(quota, (old, new))| {
        QuotaKey::ALL.into_iter().find_map(|key| {
            let (max, value) = (quota.limit(key)?, new.value(key)?);
            (value > max && Some(value) > old.value(key)).then(|| QuotaExceeded {
                quota: Arc::clone(&quota.name),
                key,
                value,
                max,
                resource: None,
            })
        })
    })
}

/// Returns the first body that exceeds the limit and has grown.
fn body_exceeds(quota: &Quota, before: &impl Counted, changes: &[Change]) -> Option<QuotaExceeded> {
    let max = quota.max_body_bytes?;
    changes.iter().find_map(|change| {
        let value = change.resource.as_ref()?.body_len() as u64;
        let old = before.body_len(&change.scope, &change.key);
        (value > max && old.is_none_or(|old| value > old)).then(|| QuotaExceeded {
            quota: Arc::clone(&quota.name),
            key: QuotaKey::BodyBytes,
            value,
            max,
            resource: Some((change.scope.clone(), change.key.clone())),
        })
    })
}
