//! The words of the project, and the replicated state they make up.
//!
//! Pure: no async, clock, randomness, I/O or protobuf runtime. [`State::apply`] is the whole of
//! what a committed transaction does; replicas that apply the same transactions in the same order
//! hold the same state, down to the bytes of each resource.
//!
//! Invariants:
//! - A [`Resource`] is immutable and its bytes exist once: views, responses and streams share them.
//! - A [`State`] is an immutable value; applying a transaction makes a new one that shares all that
//!   did not change, in O(changes · log size).
//! - Versions and revisions come from committed data alone.

mod assignment;
mod hash;
mod name;
mod node;
mod resource;
mod state;
mod text;
mod transaction;
pub mod types;
mod version;
pub mod wire;

pub use assignment::{
    Assignment, Glob, NodeMatcher, ScopeTemplate, TemplateError, default_assignment,
};
pub use name::{
    NameError, RESOURCE_NAME_BYTES_MAX, ResourceName, SCOPE_NAME_BYTES_MAX, ScopeName, TypeUrl,
};
pub use node::{Locality, Node};
pub use resource::{Resource, ResourceDraft, ResourceKey};
pub use state::{Applied, Assignments, Collection, Scope, State};
pub use text::{Printable, is_unprintable};
pub use transaction::{
    AssignmentOp, Change, ChangeKind, Expectation, Outcome, Precondition, Refusal, Summary,
    Transaction, TransactionMeta, Upsert,
};
pub use version::{Incarnation, Revision, TypeVersion, Version};
