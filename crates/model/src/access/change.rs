//! Changes of access rules and tokens by a transaction.

use super::{
    decide::Access,
    rule::{AccessLimit, RULES_MAX, TOKENS_MAX, TOKENS_PER_NAME_MAX},
};
use crate::{AccessOp, Refusal, Revision, Token};

/// Returns the limit that the changes would exceed. A limit that a release has lowered does not forbid
/// deletions.
pub(crate) fn refusal(access: &Access, ops: &[AccessOp]) -> Option<Refusal> {
    let after = with(access, Revision(0), ops).0?;
    let n_of = |name: &str| after.tokens.iter().filter(|token| &*token.name == name).count();
    let is_over = |op: &AccessOp| match op {
        AccessOp::AddToken(token) => n_of(&token.name) > TOKENS_PER_NAME_MAX,
        AccessOp::PutRule(_)
        | AccessOp::DeleteRule(_)
        | AccessOp::DeleteToken(_)
        | AccessOp::PutQuota(_)
        | AccessOp::DeleteQuota(_)
        | AccessOp::Freeze { .. }
        | AccessOp::Thaw { .. }
        | AccessOp::OverrideFreezes => false,
    };
    let limit = if after.rules.len() > RULES_MAX.max(access.rules.len()) {
        AccessLimit::Rules
    } else if after.tokens.len() > TOKENS_MAX.max(access.tokens.len()) {
        AccessLimit::Tokens
    } else if ops.iter().any(is_over) {
        AccessLimit::TokensPerName
    } else {
        return None;
    };
    Some(Refusal::AccessTooMany(limit))
}

/// Returns the access rules after the changes, and the number of changes; `None` if nothing changed.
pub(crate) fn with(access: &Access, revision: Revision, ops: &[AccessOp]) -> (Option<Access>, u64) {
    if ops.is_empty() {
        return (None, 0);
    }
    let mut after = access.clone();
    let mut count = 0;
    for op in ops {
        count += u64::from(change(&mut after, revision, op));
    }
    after.changed = revision;
    ((count > 0).then_some(after), count)
}

fn change(access: &mut Access, revision: Revision, op: &AccessOp) -> bool {
    match op {
        AccessOp::PutRule(rule) => {
            match access.rules.binary_search_by(|other| other.name.cmp(&rule.name)) {
                Ok(at) if access.rules[at] == **rule => return false,
                Ok(at) => access.rules[at] = (**rule).clone(),
                Err(at) => access.rules.insert(at, (**rule).clone()),
            }
        }
        AccessOp::DeleteRule(name) => {
            match access.rules.binary_search_by(|other| other.name.cmp(name)) {
                Ok(at) => drop(access.rules.remove(at)),
                Err(_) => return false,
            }
        }
        AccessOp::AddToken(token) => {
            if access.token(&token.digest).is_some() {
                return false;
            }
            let token = Token { revision, ..token.clone() };
            let key = |token: &Token| (token.name.clone(), token.digest);
            let at = access.tokens.partition_point(|other| key(other) < key(&token));
            access.tokens.insert(at, token);
        }
        // Quotas and freezes are not a part of the access rules, so that a changed one decides about no stream again.
        AccessOp::PutQuota(_)
        | AccessOp::DeleteQuota(_)
        | AccessOp::Freeze { .. }
        | AccessOp::Thaw { .. }
        | AccessOp::OverrideFreezes => return false,
        AccessOp::DeleteToken(digest) => {
            match access.tokens.iter().position(|token| token.digest == *digest) {
                Some(at) => drop(access.tokens.remove(at)),
                None => return false,
            }
        }
    }
    true
}
