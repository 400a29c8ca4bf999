//! Access rules: which identities may receive which scopes, and which operations they may use.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::pattern::{Captures, IdentityPattern, Template};
use crate::{Node, QUOTAS_MAX, ResourceName, ScopeName, TypeUrl};

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
    /// Freezes a scope, and ends its freeze.
    Freeze = "freeze", true;
    /// Freezes all scopes, and ends that freeze.
    FreezeAll = "freeze.all", false;
    /// Writes to clients of a frozen scope.
    FreezeOverride = "freeze.override", true;
    /// Reads the connected clients, their states and rejections.
    Nodes = "nodes", false;
    /// Ends the streams of a node.
    NodesDisconnect = "nodes.disconnect", false;
    /// Drains a replica, or ends its drain.
    ReplicasDrain = "replicas.drain", false;
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

/// The target of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// The whole cluster.
    Cluster,
    /// A scope, with all its types and names.
    Scope(&'a ScopeName),
    /// All resources of a type in a scope.
    Type(&'a ScopeName, &'a TypeUrl),
    /// A resource.
    Resource(&'a ScopeName, &'a TypeUrl, &'a ResourceName),
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

impl Grant {
    /// Returns whether the grant contains the whole target.
    pub(super) fn includes(&self, verb: Verb, target: Target<'_>, captures: &Captures<'_>) -> bool {
        self.verbs.contains(&verb)
            && match target {
                Target::Cluster => !verb.is_scoped(),
                Target::Scope(scope) => {
                    self.has_scope(scope, captures)
                        && self.types.is_empty()
                        && self.names.is_empty()
                }
                Target::Type(scope, type_url) => {
                    self.has_scope(scope, captures)
                        && (self.types.is_empty() || self.types.contains(type_url))
                        && self.names.is_empty()
                }
                Target::Resource(scope, type_url, name) => {
                    self.has_scope(scope, captures) && self.has(type_url, name, captures)
                }
            }
    }

    /// Returns whether the grant contains a part of the target.
    pub(super) fn touches(&self, verb: Verb, target: Target<'_>, captures: &Captures<'_>) -> bool {
        self.verbs.contains(&verb)
            && match target {
                Target::Cluster => !verb.is_scoped(),
                Target::Scope(scope) => self.has_scope(scope, captures),
                Target::Type(scope, type_url) => {
                    self.has_scope(scope, captures)
                        && (self.types.is_empty() || self.types.contains(type_url))
                }
                Target::Resource(scope, type_url, name) => {
                    self.has_scope(scope, captures) && self.has(type_url, name, captures)
                }
            }
    }

    fn has_scope(&self, scope: &ScopeName, captures: &Captures<'_>) -> bool {
        self.scopes.iter().any(|template| template.matches_scope(scope, captures, None))
    }

    fn has(&self, type_url: &TypeUrl, name: &ResourceName, captures: &Captures<'_>) -> bool {
        let base = name.base();
        (self.types.is_empty() || self.types.contains(type_url))
            && (self.names.is_empty()
                || self.names.iter().any(|template| template.matches(base, captures)))
    }

    /// Returns whether this grant of the author covers a scope of another grant.
    pub(super) fn covers(
        &self,
        verb: Verb,
        scope: &Template,
        other: &Self,
        captures: &Captures<'_>,
    ) -> bool {
        let names_of =
            |template: &Template| self.names.iter().any(|own| own.covers(template, captures));
        self.verbs.contains(&verb)
            && self.scopes.iter().any(|own| own.covers(scope, captures))
            && (self.types.is_empty()
                || (!other.types.is_empty()
                    && other.types.iter().all(|one| self.types.contains(one))))
            && (self.names.is_empty()
                || (!other.names.is_empty() && other.names.iter().all(names_of)))
    }
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

impl NodeBinding {
    /// Describes the first value of the node that does not match.
    pub(super) fn mismatch(&self, node: &Node, captures: &Captures<'_>) -> Option<String> {
        let fixed = [("id", &self.id, &node.id), ("cluster", &self.cluster, &node.cluster)];
        for (what, template, value) in fixed {
            if let Some(template) = template
                && !template.matches(value, captures)
            {
                let template = template.as_str();
                return Some(format!("{what} {value:?} does not match {template:?}"));
            }
        }
        self.metadata.iter().find_map(|(path, template)| {
            let pattern = template.as_str();
            match node.metadata.get(path) {
                None => {
                    Some(format!("the node has no metadata {path:?}, which must match {pattern:?}"))
                }
                Some(value) if template.matches(value, captures) => None,
                Some(value) => Some(format!(
                    "metadata {path:?} is {value:?}, which does not match {pattern:?}"
                )),
            }
        })
    }
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

impl AccessRule {
    /// Returns whether the rule lets clients receive something.
    #[must_use]
    pub fn is_for_clients(&self) -> bool {
        !self.read.is_empty()
    }

    pub(super) fn concerns_clients(&self) -> bool {
        self.is_for_clients()
            || !self.secrets.scopes.is_empty()
            || self.node != NodeBinding::default()
            || self.quota != IdentityQuota::default()
    }

    pub(super) fn gives_rights(&self) -> bool {
        !self.allow.is_empty() || !self.read.is_empty()
    }
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
