//! Access rules: which identities may receive which scopes, and use which operations.
//!
//! Assignments choose the scopes of a client, and access rules permit them. A scope that is not permitted
//! refuses the whole stream. It never leaves out a part of a view, because the client would remove
//! the resources of that part.

mod change;
mod decide;
mod difference;
mod pattern;
mod principal;
mod rule;

pub(crate) use change::{refusal, with};
pub use decide::{
    Access, CallerRights, ClientGrant, IdentityGrant, SecretsRight, StreamRefusal, StreamRights,
};
pub use difference::AccessDifference;
pub use pattern::{
    CAPTURES_MAX, IdentityPattern, PATTERN_BYTES_MAX, PatternError, Template, Variables,
};
pub use principal::{Identity, PRINCIPAL_BYTES_MAX, Principal, PrincipalError, Token, TokenDigest};
pub use rule::{
    AccessLimit, AccessRule, Grant, IdentityQuota, NodeBinding, PATTERNS_MAX, RULES_MAX,
    SecretsGrant, TOKENS_MAX, TOKENS_PER_NAME_MAX, Target, Verb,
};
