//! Access rules: which identities may receive which scopes, and which operations they may use.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::pattern::{IdentityPattern, Template};
use crate::{QUOTAS_MAX, TypeUrl};

/// The maximum number of access rules.
pub const RULES_MAX: usize = 10_000;
/// The maximum number of tokens.
pub const TOKENS_MAX: usize = 10_000;
/// The maximum number of tokens with one name, so that one can replace the other.
pub const TOKENS_PER_NAME_MAX: usize = 2;
/// The maximum number of patterns in one list of a rule.
pub const PATTERNS_MAX: usize = 256;

macro_rules! verbs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $scoped:literal;)*) => {
        /// An operation of the admin API that a rule may allow.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Verb {
            $($(#[$doc])* $variant,)*
        }

        impl Verb {
            /// All verbs.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name in rules.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns whether the verb concerns a scope. Other verbs concern the whole cluster.
            #[must_use]
            pub fn is_scoped(self) -> bool {
                match self {
                    $(Self::$variant => $scoped,)*
                }
            }
        }
    };
}

verbs! {
    /// Reads resources, without secret values.
    Get = "get", true;
    /// Publishes resources.
    Apply = "apply", true;
    /// Deletes resources.
    Delete = "delete", true;
    /// Deletes all resources of a scope that a write does not contain.
    Prune = "prune", true;
    /// Confirms guards, and chooses a weaker validation.
    Force = "force", true;
    /// Lets clients receive secrets: a rule with `secrets` needs it from its author.
    Secrets = "secrets", true;
    /// Changes assignments.
    Assign = "assign", false;
    /// Reads assignments.
    Assignments = "assignments", false;
    /// Reads the connected clients, their states and rejections.
    Nodes = "nodes", false;
    /// Reads the status of the cluster.
    Cluster = "cluster", false;
    /// Changes the members of the cluster and its leader, and takes snapshots.
    Members = "members", false;
    /// Reads a backup.
    Backup = "backup", false;
    /// Reads the history of writes.
    History = "history", false;
    /// Reads load reports.
    LoadRead = "load.read", false;
    /// Changes which load clients report.
    LoadWrite = "load.write", false;
    /// Reads the state of MCP sources.
    McpRead = "mcp.read", false;
    /// Confirms deletions of MCP sources.
    McpWrite = "mcp.write", false;
    /// Reads access rules.
    AccessRead = "access.read", false;
    /// Changes access rules.
    AccessWrite = "access.write", false;
    /// Creates, lists and deletes tokens.
    Tokens = "tokens", false;
    /// Reads which keys seal secrets.
    KeysRead = "keys.read", false;
    /// Changes the keys that seal secrets.
    KeysWrite = "keys.write", false;
    /// Names another author of a write.
    Impersonate = "impersonate", false;
    /// Changes the filter of the log.
    LogWrite = "log.write", false;
    /// Reads metrics.
    Metrics = "metrics", false;
}

impl Verb {
    /// Returns the verb with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|verb| verb.name() == name)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A part of the rights of authors and operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The operations, in alphabetical order.
    pub verbs: Vec<Verb>,
    /// The scopes of verbs that concern a scope.
    pub scopes: Vec<Template>,
    /// The types of resources; empty for all.
    pub types: Vec<TypeUrl>,
    /// The names of resources; empty for all.
    pub names: Vec<Template>,
}

/// The values that a node of an identity must have. A field that is absent is not compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeBinding {
    /// `Node.id`.
    pub id: Option<Template>,
    /// `Node.cluster`.
    pub cluster: Option<Template>,
    /// Scalars of `Node.metadata`, by path.
    pub metadata: BTreeMap<String, Template>,
}

/// The secrets that clients may receive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretsGrant {
    /// The scopes that contain the secrets.
    pub scopes: Vec<Template>,
    /// The names of the secrets; empty for all.
    pub names: Vec<Template>,
}

/// Limits for each identity of a rule, on each replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdentityQuota {
    /// The maximum number of streams.
    pub streams: Option<u64>,
    /// The maximum number of requests per second: messages of streams, polls, and calls of the admin API.
    pub requests_per_second: Option<u32>,
    /// The maximum number of writes per second.
    pub writes_per_second: Option<u32>,
}

impl IdentityQuota {
    /// Returns the smaller limit of each kind.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        fn smaller<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            a.into_iter().chain(b).min()
        }
        Self {
            streams: smaller(self.streams, other.streams),
            requests_per_second: smaller(self.requests_per_second, other.requests_per_second),
            writes_per_second: smaller(self.writes_per_second, other.writes_per_second),
        }
    }
}

/// A rule that gives rights to identities, or takes them away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessRule {
    /// The name, unique in the cluster.
    pub name: Arc<str>,
    /// The identities of the rule.
    pub identities: Vec<IdentityPattern>,
    /// Whether the rule takes all rights from its identities, whatever other rules give.
    pub refuse: bool,
    /// The values that the node of a client must have.
    pub node: NodeBinding,
    /// The scopes that clients may receive.
    pub read: Vec<Template>,
    /// The secrets that clients may receive.
    pub secrets: SecretsGrant,
    /// The operations that authors and operators may use.
    pub allow: Vec<Grant>,
    /// The operations that they may not use, whatever is allowed.
    pub deny: Vec<Grant>,
    /// Limits for each identity.
    pub quota: IdentityQuota,
}

/// A limit for the number of access rules, tokens or quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLimit {
    /// [`RULES_MAX`].
    Rules,
    /// [`TOKENS_MAX`].
    Tokens,
    /// [`TOKENS_PER_NAME_MAX`].
    TokensPerName,
    /// [`QUOTAS_MAX`].
    Quotas,
}

impl AccessLimit {
    /// Returns the maximum.
    #[must_use]
    pub fn max(self) -> usize {
        match self {
            Self::Rules => RULES_MAX,
            Self::Tokens => TOKENS_MAX,
            Self::TokensPerName => TOKENS_PER_NAME_MAX,
            Self::Quotas => QUOTAS_MAX,
        }
    }

    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Rules => "access rules",
            Self::Tokens => "tokens",
            Self::TokensPerName => "tokens with one name",
            Self::Quotas => "quotas",
        }
    }
}
