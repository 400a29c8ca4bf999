//! The data model: resources, scopes, assignments, transactions and the replicated state.
//!
//! The crate is pure: it has no async, clock, randomness, I/O or protobuf runtime.
//! [`State::apply`] is the complete effect of a committed transaction. Replicas that apply the
//! same transactions in the same order hold the same state, down to the bytes of each resource.
//!
//! Invariants:
//! - A [`Resource`] is immutable and its bytes exist once: views, responses and streams share them.
//! - A [`State`] is an immutable value. Applying a transaction creates a new state that shares all
//!   unchanged parts with the old one, in O(changes · log size).
//! - Versions and revisions are computed from committed data alone.

mod access;
mod assignment;
mod assignments;
mod collection;
mod constraints;
mod credentials;
mod exclusive_keys;
mod freeze;
mod freeze_target;
mod hash;
mod internal_name;
mod keys;
mod lifetimes;
mod name;
mod node;
mod node_parameters;
mod prepared;
mod private_key;
mod quota;
mod quota_account;
mod resource;
mod sealed;
mod sealed_counts;
mod sealing;
mod stale_after;
mod state;
mod structured_name;
mod text;
mod transaction;
pub mod types;
mod variant_index;
mod version;
pub mod wire;

pub use access::{
    Access, AccessDifference, AccessLimit, AccessRule, CAPTURES_MAX, CallerRights, ClientGrant,
    Grant, Identity, IdentityGrant, IdentityPattern, IdentityQuota, NodeBinding, PATTERN_BYTES_MAX,
    PATTERNS_MAX, PRINCIPAL_BYTES_MAX, PatternError, Principal, PrincipalError, RULES_MAX,
    SecretsGrant, SecretsRight, StreamRefusal, StreamRights, TOKENS_MAX, TOKENS_PER_NAME_MAX,
    Target, Template, Token, TokenDigest, Variables, Verb,
};
pub use assignment::{
    Assignment, Glob, NodeMatcher, ScopeTemplate, TemplateError, default_assignment,
};
pub use assignments::Assignments;
pub use collection::{Collection, Scope};
pub use constraints::{
    CONSTRAINTS_BYTES_MAX, Conflict, Constraints, ConstraintsError, DynamicParameters,
    VARIANTS_MAX, VariantsBudget, check_variants, example, show_parameters,
};
pub use credentials::without_credentials;
pub use freeze::{
    CollectionKey, Freeze, FreezeMeta, FreezeParts, Freezes, FrozenResource, FrozenVersion,
};
pub use freeze_target::FreezeTarget;
pub use internal_name::{
    base_of, base_of_located, encode_resource_name, escaped_len, has_internal_mark, located_name,
    parameters_of,
};
pub use keys::{
    DATA_KEYS_MAX, DataKey, DataKeyId, KeyOp, KeyTarget, Keys, KeysRefusal, SealingId, WrappedKey,
};
pub use lifetimes::{LifetimeClass, Lifetimes};
pub use name::{NameError, ResourceName, SCOPE_NAME_BYTES_MAX, ScopeName, TypeUrl};
pub use node::{Locality, Node};
pub use node_parameters::{has_node_parameters, is_of_node};
pub use prepared::PreparedTransaction;
pub use private_key::has_private_key;
pub use quota::{QUOTA_PATTERNS_MAX, QUOTAS_MAX, Quota, QuotaExceeded, QuotaKey, QuotaUse, Quotas};
pub use resource::{Resource, ResourceDraft, ResourceKey, mcp_metadata};
pub use sealed::Sealed;
pub use sealed_counts::SealedCounts;
pub use state::{Applied, State};
pub use structured_name::{
    RESOURCE_NAME_BYTES_MAX, StructuredName, StructuredNameError, canonical_name, is_structured,
};
pub use text::{Printable, is_unprintable};
pub use transaction::{
    AccessOp, AssignmentOp, Change, ChangeKind, Expectation, Outcome, Precondition, Refusal,
    Reseal, Summary, Transaction, TransactionMeta, Upsert,
};
pub use variant_index::VariantIndex;
pub use version::{CollectionVersion, Incarnation, Revision, TypeVersion, Version};
