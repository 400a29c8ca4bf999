//! Changes of access rules and tokens by a transaction.

use super::{
    decide::Access,
    rule::{AccessLimit, RULES_MAX, TOKENS_MAX, TOKENS_PER_NAME_MAX},
};
use crate::{AccessOp, Refusal, Revision, Token};

impl Access {
    /// Returns the limit that the changes would exceed. A limit that a release has lowered does not forbid
    /// deletions.
    pub(crate) fn refusal(&self, ops: &[AccessOp]) -> Option<Refusal> {
        let after = self.with(Revision(0), ops).0?;
        let n_of = |name: &str| after.tokens.iter().filter(|token| &*token.name == name).count();
        let is_over = |op: &AccessOp| match op {
            AccessOp::AddToken(token) => n_of(&token.name) > TOKENS_PER_NAME_MAX,
            AccessOp::PutRule(_)
            | AccessOp::DeleteRule(_)
            | AccessOp::DeleteToken(_)
            | AccessOp::PutQuota(_)
            | AccessOp::DeleteQuota(_) => false,
        };
        let limit = if after.rules.len() > RULES_MAX.max(self.rules.len()) {
            AccessLimit::Rules
        } else if after.tokens.len() > TOKENS_MAX.max(self.tokens.len()) {
            AccessLimit::Tokens
        } else if ops.iter().any(is_over) {
            AccessLimit::TokensPerName
        } else {
            return None;
        };
        Some(Refusal::AccessTooMany(limit))
    }

    /// Returns the access rules after the changes, and the number of changes; `None` if nothing changed.
    pub(crate) fn with(&self, revision: Revision, ops: &[AccessOp]) -> (Option<Self>, u64) {
        if ops.is_empty() {
            return (None, 0);
        }
        let mut after = self.clone();
        let mut count = 0;
        for op in ops {
            count += u64::from(after.change(revision, op));
        }
        after.changed = revision;
        ((count > 0).then_some(after), count)
    }

    /// Sorts rules and tokens that were loaded in another order.
    pub fn sort(&mut self) {
        self.rules.sort_by(|a, b| a.name.cmp(&b.name));
        self.tokens.sort_by(|a, b| (&a.name, a.digest).cmp(&(&b.name, b.digest)));
    }

    fn change(&mut self, revision: Revision, op: &AccessOp) -> bool {
        match op {
            AccessOp::PutRule(rule) => {
                match self.rules.binary_search_by(|other| other.name.cmp(&rule.name)) {
                    Ok(at) if self.rules[at] == **rule => return false,
                    Ok(at) => self.rules[at] = (**rule).clone(),
                    Err(at) => self.rules.insert(at, (**rule).clone()),
                }
            }
            AccessOp::DeleteRule(name) => {
                match self.rules.binary_search_by(|other| other.name.cmp(name)) {
                    Ok(at) => drop(self.rules.remove(at)),
                    Err(_) => return false,
                }
            }
            AccessOp::AddToken(token) => {
                if self.token(&token.digest).is_some() {
                    return false;
                }
                let token = Token { revision, ..token.clone() };
                let key = |token: &Token| (token.name.clone(), token.digest);
                let at = self.tokens.partition_point(|other| key(other) < key(&token));
                self.tokens.insert(at, token);
            }
            // Quotas are not a part of the access rules, so that a changed one decides about no stream again.
            AccessOp::PutQuota(_) | AccessOp::DeleteQuota(_) => return false,
            AccessOp::DeleteToken(digest) => {
                match self.tokens.iter().position(|token| token.digest == *digest) {
                    Some(at) => drop(self.tokens.remove(at)),
                    None => return false,
                }
            }
        }
        true
    }
}
