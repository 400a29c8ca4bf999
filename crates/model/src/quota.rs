//! Quotas of tenants: limits for the scopes that match a pattern.
//!
//! The use of each quota is a part of the state. A transaction changes it by the differences of the
//! scopes that it changes, so that a write never counts other scopes. A quota refuses only growth: a
//! scope that is over a lowered limit may shrink.
//!
//! Invariant: [`Quotas::used`] equals what counting all resources of the same state finds.

use std::{fmt, sync::Arc};

use crate::{PatternError, ResourceKey, ScopeName, Template, Variables};

/// The maximum number of quotas.
pub const QUOTAS_MAX: usize = 1_000;
/// The maximum number of scope patterns of a quota.
pub const QUOTA_PATTERNS_MAX: usize = 16;

/// A limit of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaKey {
    /// The number of resources.
    Resources,
    /// The sum of the lengths of the bodies.
    Bytes,
    /// The number of scopes with resources.
    Scopes,
    /// The length of the body of a resource.
    BodyBytes,
}

impl QuotaKey {
    /// All limits.
    pub const ALL: [Self; 4] = [Self::Resources, Self::Bytes, Self::Scopes, Self::BodyBytes];

    /// Returns the key in a manifest.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resources => "max_resources",
            Self::Bytes => "max_bytes",
            Self::Scopes => "max_scopes",
            Self::BodyBytes => "max_body_bytes",
        }
    }
}

/// Limits for the scopes of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// The name, unique in the cluster.
    pub name: Arc<str>,
    /// The patterns of the scopes.
    pub scopes: Vec<Template>,
    /// The maximum number of resources.
    pub max_resources: Option<u64>,
    /// The maximum sum of the lengths of the bodies.
    pub max_bytes: Option<u64>,
    /// The maximum number of scopes with resources.
    pub max_scopes: Option<u64>,
    /// The maximum length of a body.
    pub max_body_bytes: Option<u64>,
}

impl Quota {
    /// Parses a pattern of scopes, which has no variables.
    ///
    /// # Errors
    /// Fails if the pattern is invalid.
    pub fn pattern(source: &str) -> Result<Template, PatternError> {
        Template::parse(source, Variables { identities: &[], node: false })
    }

    /// Returns whether the quota counts the resources of a scope.
    #[must_use]
    pub fn includes(&self, scope: &ScopeName) -> bool {
        self.scopes.iter().any(|pattern| pattern.includes(scope))
    }

    /// Returns a limit, if the quota has it.
    #[must_use]
    pub fn limit(&self, key: QuotaKey) -> Option<u64> {
        match key {
            QuotaKey::Resources => self.max_resources,
            QuotaKey::Bytes => self.max_bytes,
            QuotaKey::Scopes => self.max_scopes,
            QuotaKey::BodyBytes => self.max_body_bytes,
        }
    }
}

/// The use of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUse {
    /// The number of resources.
    pub resources: u64,
    /// The sum of the lengths of the bodies.
    pub bytes: u64,
    /// The number of scopes with resources.
    pub scopes: u64,
}

impl QuotaUse {
    /// Returns the counted value of a limit; `None` for one that is not counted.
    #[must_use]
    pub fn value(&self, key: QuotaKey) -> Option<u64> {
        match key {
            QuotaKey::Resources => Some(self.resources),
            QuotaKey::Bytes => Some(self.bytes),
            QuotaKey::Scopes => Some(self.scopes),
            QuotaKey::BodyBytes => None,
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.resources = self.resources.saturating_add(other.resources);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.scopes = self.scopes.saturating_add(other.scopes);
    }

    pub(crate) fn remove(&mut self, other: Self) {
        self.resources = self.resources.saturating_sub(other.resources);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.scopes = self.scopes.saturating_sub(other.scopes);
    }
}

/// The limit that a transaction would exceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// The name of the quota.
    pub quota: Arc<str>,
    /// The limit.
    pub key: QuotaKey,
    /// The value after the transaction.
    pub value: u64,
    /// The limit that the quota sets.
    pub max: u64,
    /// The resource whose body is too large, for [`QuotaKey::BodyBytes`].
    pub resource: Option<(ScopeName, ResourceKey)>,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, key, value, max, resource } = self;
        let key = key.name();
        match resource {
            Some((scope, resource)) => write!(
                f,
                "the quota {quota:?} is exceeded: {key} is {max}, and {resource} in scope {scope:?} has \
                 {value} bytes; make it smaller or raise the limit"
            ),
            None => write!(
                f,
                "the quota {quota:?} is exceeded: {key} is {max}, and the write needs {value}; delete \
                 resources or raise the limit"
            ),
        }
    }
}

/// The quotas of a cluster, and their use.
#[derive(Debug, Clone, Default)]
pub struct Quotas {
    /// The quotas, by name.
    pub rules: Arc<Vec<Quota>>,
    /// The use of each quota.
    pub used: Vec<QuotaUse>,
}

impl Quotas {
    /// Returns the quotas with their use, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Quota, &QuotaUse)> {
        self.rules.iter().zip(&self.used)
    }
}
