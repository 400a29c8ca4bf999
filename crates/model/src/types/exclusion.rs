//! The content by which resources exclude each other at a client.
//!
//! A client rejects a resource with a content key that another of its resources has, such as a second scope
//! with the same key. A resource that gets another name therefore excludes itself until the old name is removed.

/// The content of a type that only one resource of a client may have.
///
/// Filter chains exclude each other, too. They are parts of one listener, so that they always change together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion {
    /// Resources of the type do not exclude each other.
    None,
    /// Listeners: each address. Envoy applies the removals of a response and its valid listeners, even if it
    /// rejects others.
    Address,
    /// Scoped routes: the key. Envoy rejects a response as a whole.
    ScopeKey,
    /// Virtual hosts: each domain, within a route configuration. Envoy rejects a response as a whole.
    Domain,
}

impl Exclusion {
    /// Returns whether clients apply nothing of a response that they reject, not even its removals.
    #[must_use]
    pub fn rejects_whole(self) -> bool {
        matches!(self, Self::ScopeKey | Self::Domain)
    }
}
