//! Changes of access rules and tokens by a transaction.

use super::{decide::Access, rule::RULES_MAX};
use crate::{AccessOp, Refusal, Revision, Token};

/// The maximum number of tokens.
pub const TOKENS_MAX: usize = 10_000;
/// The maximum number of tokens with one name, so that one can replace the other.
pub const TOKENS_PER_NAME_MAX: usize = 2;

impl Access {
    /// Returns the reason why the changes would exceed a limit.
    pub(crate) fn refusal(&self, ops: &[AccessOp]) -> Option<Refusal> {
        let (after, _) = self.with(Revision(0), ops);
        let after = after?;
        let too_many = |what, max| Some(Refusal::AccessTooMany { what, max });
        // A limit that was lowered by a release does not forbid deletions.
        if after.rules.len() > RULES_MAX.max(self.rules.len()) {
            return too_many("access rules", RULES_MAX);
        }
        if after.tokens.len() > TOKENS_MAX.max(self.tokens.len()) {
            return too_many("tokens", TOKENS_MAX);
        }
        let n_of = |name: &str| after.tokens.iter().filter(|token| &*token.name == name).count();
        let is_over = |op: &AccessOp| matches!(op, AccessOp::AddToken(token) if n_of(&token.name) > TOKENS_PER_NAME_MAX);
        ops.iter().any(is_over).then_some(Refusal::AccessTooMany {
            what: "tokens of a name",
            max: TOKENS_PER_NAME_MAX,
        })
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
        (count > 0)
            .then(|| Self { changed: revision, ..after })
            .map_or((None, 0), |after| (Some(after), count))
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
