//! Decisions: whether a client may have a stream, and whether a caller may use an operation.
//!
//! Rights of several rules add up. What a rule denies is denied, whatever other rules allow. What no rule
//! allows is denied. The order of rules has no meaning.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::{
    pattern::{Captures, Template},
    principal::{Identity, Principal, Token, TokenDigest},
    rule::{AccessRule, Grant, IdentityQuota, NodeBinding, Verb},
};
use crate::{Node, ResourceName, Revision, ScopeName, TypeUrl};

/// The access rules and tokens of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The last revision that changed a rule or a token.
    pub changed: Revision,
    /// The rules, by name.
    pub rules: Vec<AccessRule>,
    /// The tokens, by name and digest.
    pub tokens: Vec<Token>,
}

/// The reason why a stream is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamRefusal {
    /// The token of the identity was deleted.
    Token,
    /// A rule refuses the identity.
    Refused {
        /// The name of the rule.
        rule: Arc<str>,
    },
    /// No rule names the identity.
    NoRule,
    /// The node does not have the values that the rules require.
    Node {
        /// The name of the first rule of the identity.
        rule: Arc<str>,
        /// The difference.
        mismatch: String,
    },
    /// A scope of the assignment needs a variable that the node lacks.
    Variable {
        /// The template of the scope.
        template: String,
    },
    /// No rule lets the identity receive a scope of the assignment.
    Scope {
        /// The scope that no rule of the identity contains.
        scope: ScopeName,
    },
}

impl StreamRefusal {
    /// All labels of [`Self::reason`].
    pub const REASONS: [&str; 6] = ["token", "refused", "no_rule", "node", "variable", "scope"];

    /// Returns the reason as a metric names it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Refused { .. } => "refused",
            Self::NoRule => "no_rule",
            Self::Node { .. } => "node",
            Self::Variable { .. } => "variable",
            Self::Scope { .. } => "scope",
        }
    }
}

/// The details, for operators. Clients get the same text for every refusal.
impl fmt::Display for StreamRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("the token was deleted"),
            Self::Refused { rule } => write!(f, "the access rule {rule:?} refuses the identity"),
            Self::NoRule => f.write_str("no access rule names the identity"),
            Self::Node { rule, mismatch } => write!(f, "access rule {rule:?}: {mismatch}"),
            Self::Variable { template } => {
                write!(f, "the node lacks a variable of the scope {template:?} of its assignment")
            }
            Self::Scope { scope } => {
                write!(f, "no access rule lets the identity receive the scope {scope:?}")
            }
        }
    }
}

/// The secrets that a client may receive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretsRight {
    /// For each permitted scope, the texts of the permitted names.
    scopes: Vec<(ScopeName, Vec<NamePattern>)>,
}

/// A pattern of names without variables.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NamePattern {
    All,
    /// The template, with the values of its variables.
    Template(Template, Vec<(String, String)>),
}

impl SecretsRight {
    /// Returns whether the client may receive a secret of a scope.
    #[must_use]
    pub fn permits(&self, scope: &ScopeName, name: &ResourceName) -> bool {
        self.scopes.iter().filter(|(permitted, _)| permitted == scope).any(|(_, names)| {
            names.iter().any(|pattern| match pattern {
                NamePattern::All => true,
                NamePattern::Template(template, values) => {
                    let captures =
                        values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
                    template.matches(name.as_str(), &captures.collect())
                }
            })
        })
    }
}

/// The rights of a stream that is permitted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamRights {
    /// The secrets that the client may receive.
    pub secrets: Arc<SecretsRight>,
    /// The limits of the identity on a replica.
    pub quota: IdentityQuota,
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
    /// The resource of a type with a name in a scope.
    Resource(&'a ScopeName, &'a TypeUrl, &'a ResourceName),
}

/// The rights of a caller of the admin API: the rules that name it.
#[derive(Debug)]
pub struct CallerRights<'a> {
    /// None if a rule refuses the caller, or its token was deleted.
    matches: Vec<Match<'a>>,
}

/// A rule that matches an identity, with the values of its variables.
#[derive(Debug)]
struct Match<'a> {
    rule: &'a AccessRule,
    captures: Captures<'a>,
}

/// A grant of a rule that names an identity.
#[derive(Debug, Clone)]
pub struct IdentityGrant<'a> {
    /// The name of the rule.
    pub rule: &'a str,
    /// The grant, with variables.
    pub grant: &'a Grant,
    /// Whether the rule denies the operations.
    pub denies: bool,
    /// The values of the variables for the identity.
    pub variables: BTreeMap<&'a str, &'a str>,
}

/// A rule that names an identity, and has rights of clients or limits.
#[derive(Debug, Clone)]
pub struct ClientGrant<'a> {
    /// The rule, with variables.
    pub rule: &'a AccessRule,
    /// The values of the variables for the identity.
    pub variables: BTreeMap<&'a str, &'a str>,
}

impl Access {
    /// Returns the token with a digest.
    #[must_use]
    pub fn token(&self, digest: &TokenDigest) -> Option<&Token> {
        self.tokens.iter().find(|token| token.digest == *digest)
    }

    /// Returns whether the token of an identity exists, or the identity has none.
    #[must_use]
    pub fn has_token_of(&self, identity: &Identity) -> bool {
        identity.token.is_none_or(|digest| self.token(&digest).is_some())
    }

    fn matches<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = Match<'a>> {
        self.rules.iter().flat_map(move |rule| {
            let captures =
                rule.identities.iter().filter_map(move |pattern| pattern.captures(principal));
            captures.map(move |captures| Match { rule, captures })
        })
    }

    /// Returns the rules that name a principal.
    pub fn rules_of<'a>(
        &'a self,
        principal: &'a Principal,
    ) -> impl Iterator<Item = &'a AccessRule> {
        self.rules.iter().filter(|rule| rule.identities.iter().any(|one| one.matches(principal)))
    }

    /// Returns the limits of a principal, in O(rules). If several rules have a limit, the smallest one counts.
    #[must_use]
    pub fn quota_of(&self, principal: &Principal) -> IdentityQuota {
        let quotas = self.rules_of(principal).map(|rule| rule.quota);
        quotas.fold(IdentityQuota::default(), IdentityQuota::and)
    }

    fn invalid(&self, identity: &Identity) -> Option<StreamRefusal> {
        if !self.has_token_of(identity) {
            return Some(StreamRefusal::Token);
        }
        let refusing = self.matches(&identity.principal).find(|one| one.rule.refuse)?;
        Some(StreamRefusal::Refused { rule: Arc::clone(&refusing.rule.name) })
    }

    /// Decides whether a client may have a stream, in O(rules).
    ///
    /// `scopes` are those that the assignment gives to the node, and `unresolved` is a scope of the
    /// assignment for which the node lacks a variable. All scopes must be permitted, because a view
    /// without one of its scopes would remove resources from the client.
    ///
    /// # Errors
    /// Returns the reason of a refusal.
    pub fn decide_stream(
        &self,
        identity: &Identity,
        node: &Node,
        scopes: &[ScopeName],
        unresolved: Option<&str>,
    ) -> Result<StreamRights, StreamRefusal> {
        if let Some(refusal) = self.invalid(identity) {
            return Err(refusal);
        }
        let mut mismatch = None;
        let mut matches: Vec<Match<'_>> = Vec::new();
        for one in self.matches(&identity.principal) {
            if !one.rule.is_for_clients() {
                continue;
            }
            match one.rule.node.mismatch(node, &one.captures) {
                None => matches.push(one),
                Some(text) => {
                    let rule = Arc::clone(&one.rule.name);
                    mismatch.get_or_insert(StreamRefusal::Node { rule, mismatch: text });
                }
            }
        }
        if matches.is_empty() {
            return Err(mismatch.unwrap_or(StreamRefusal::NoRule));
        }
        if let Some(template) = unresolved {
            return Err(StreamRefusal::Variable { template: template.to_owned() });
        }
        let may_read = |scope: &&ScopeName| {
            matches.iter().any(|Match { rule, captures }| {
                rule.read.iter().any(|read| read.matches_scope(scope, captures, Some(node)))
            })
        };
        if let Some(scope) = scopes.iter().find(|scope| !may_read(scope)) {
            return Err(StreamRefusal::Scope { scope: scope.clone() });
        }
        let secrets = scopes.iter().map(|scope| {
            let names = matches.iter().flat_map(|one| one.secret_names(scope, node)).collect();
            (scope.clone(), names)
        });
        let secrets = SecretsRight {
            scopes: secrets.filter(|(_, names): &(_, Vec<_>)| !names.is_empty()).collect(),
        };
        // A stream counts against the rules that give it something, and a request against all rules.
        let streams = matches.iter().filter_map(|one| one.rule.quota.streams).min();
        let quota = IdentityQuota { streams, ..self.quota_of(&identity.principal) };
        Ok(StreamRights { secrets: Arc::new(secrets), quota })
    }

    /// Returns the rights of a caller, for any number of checks. Costs O(rules).
    #[must_use]
    pub fn rights_of<'a>(&'a self, identity: &'a Identity) -> CallerRights<'a> {
        match self.invalid(identity) {
            Some(_) => CallerRights { matches: Vec::new() },
            None => CallerRights { matches: self.matches(&identity.principal).collect() },
        }
    }

    /// Returns whether a principal may use an operation, in O(rules).
    #[must_use]
    pub fn permits(&self, identity: &Identity, verb: Verb, target: Target<'_>) -> bool {
        self.rights_of(identity).permits(verb, target)
    }

    /// Returns whether a principal may use an operation on any target.
    #[must_use]
    pub fn permits_somewhere(&self, identity: &Identity, verb: Verb) -> bool {
        self.rights_of(identity).permits_somewhere(verb)
    }

    /// Returns the first right of a rule that its author does not have (escalation guard), as text.
    #[must_use]
    pub fn escalation(&self, author: &Identity, rule: &AccessRule) -> Option<String> {
        let own: Vec<Match<'_>> = self.matches(&author.principal).collect();
        if own.iter().any(|one| !one.rule.deny.is_empty()) && rule.gives_rights() {
            return Some(
                "a rule that gives rights, because a rule denies rights to you".to_owned(),
            );
        }
        let covered = |verb: Verb, grant: &Grant| {
            let missing = |scope: &&Template| {
                !own.iter().any(|one| {
                    let Match { rule, captures } = one;
                    rule.allow.iter().any(|held| held.covers(verb, scope, grant, captures))
                })
            };
            if !verb.is_scoped() {
                let holds =
                    |one: &Match<'_>| one.rule.allow.iter().any(|held| held.verbs.contains(&verb));
                return (!own.iter().any(holds)).then(|| format!("{verb}"));
            }
            grant.scopes.iter().find(missing).map(|scope| format!("{verb} in {:?}", scope.as_str()))
        };
        let client = |verb, scopes: &[Template], names: &[Template]| Grant {
            verbs: vec![verb],
            scopes: scopes.to_vec(),
            types: Vec::new(),
            names: names.to_vec(),
        };
        let grants = rule.allow.iter().cloned().chain([
            client(Verb::Get, &rule.read, &[]),
            client(Verb::Secrets, &rule.secrets.scopes, &rule.secrets.names),
        ]);
        let rights: Vec<Grant> = grants.collect();
        rights.iter().find_map(|grant| grant.verbs.iter().find_map(|verb| covered(*verb, grant)))
    }

    /// Returns the grants of the rules that name a principal, with the values of their variables.
    #[must_use]
    pub fn grants_of<'a>(&'a self, identity: &'a Identity) -> Vec<IdentityGrant<'a>> {
        let rights = self.rights_of(identity);
        let grants = rights.matches.into_iter().flat_map(|one| {
            let Match { rule, captures } = one;
            let allow = rule.allow.iter().map(|grant| (grant, false));
            let deny = rule.deny.iter().map(|grant| (grant, true));
            let all = allow.chain(deny).map(move |(grant, denies)| IdentityGrant {
                rule: &rule.name,
                grant,
                denies,
                variables: captures.clone(),
            });
            all.collect::<Vec<_>>()
        });
        grants.collect()
    }

    /// Returns the rules that name a principal and have rights of clients or limits, with the values of their
    /// variables.
    #[must_use]
    pub fn client_grants_of<'a>(&'a self, identity: &'a Identity) -> Vec<ClientGrant<'a>> {
        let matches = self.rights_of(identity).matches.into_iter();
        let grants = matches.map(|one| ClientGrant { rule: one.rule, variables: one.captures });
        grants.filter(|one| one.rule.concerns_clients()).collect()
    }

    /// Returns the verbs that a principal may use on some target.
    #[must_use]
    pub fn verbs_of(&self, identity: &Identity) -> BTreeSet<Verb> {
        let rights = self.rights_of(identity);
        Verb::ALL.iter().copied().filter(|verb| rights.permits_somewhere(*verb)).collect()
    }
}

impl CallerRights<'_> {
    /// Returns whether the caller may use an operation, in O(rules that name the caller).
    #[must_use]
    pub fn permits(&self, verb: Verb, target: Target<'_>) -> bool {
        let denies = |one: &Match<'_>| {
            one.rule.deny.iter().any(|grant| grant.touches(verb, target, &one.captures))
        };
        let allows = |one: &Match<'_>| {
            one.rule.allow.iter().any(|grant| grant.includes(verb, target, &one.captures))
        };
        self.matches.iter().any(allows) && !self.matches.iter().any(denies)
    }

    /// Returns whether the caller may use an operation on any target.
    #[must_use]
    pub fn permits_somewhere(&self, verb: Verb) -> bool {
        let gives =
            |one: &Match<'_>| one.rule.allow.iter().any(|grant| grant.verbs.contains(&verb));
        self.matches.iter().any(gives)
    }
}

impl AccessRule {
    /// Returns whether the rule lets clients receive something.
    #[must_use]
    pub fn is_for_clients(&self) -> bool {
        !self.read.is_empty()
    }

    fn concerns_clients(&self) -> bool {
        self.is_for_clients()
            || !self.secrets.scopes.is_empty()
            || self.node != NodeBinding::default()
            || self.quota != IdentityQuota::default()
    }

    fn gives_rights(&self) -> bool {
        !self.allow.is_empty() || !self.read.is_empty()
    }
}

impl Match<'_> {
    fn secret_names(&self, scope: &ScopeName, node: &Node) -> Vec<NamePattern> {
        let secrets = &self.rule.secrets;
        let matches =
            |template: &Template| template.matches_scope(scope, &self.captures, Some(node));
        if !secrets.scopes.iter().any(matches) {
            return Vec::new();
        }
        if secrets.names.is_empty() {
            return vec![NamePattern::All];
        }
        let values: Vec<(String, String)> = (self.captures.iter())
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let pattern = |name: &Template| NamePattern::Template(name.clone(), values.clone());
        secrets.names.iter().map(pattern).collect()
    }
}

impl NodeBinding {
    /// Describes the first value of the node that does not match.
    fn mismatch(&self, node: &Node, captures: &Captures<'_>) -> Option<String> {
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

impl Grant {
    /// Returns whether the grant contains the whole target.
    fn includes(&self, verb: Verb, target: Target<'_>, captures: &Captures<'_>) -> bool {
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
    fn touches(&self, verb: Verb, target: Target<'_>, captures: &Captures<'_>) -> bool {
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
    fn covers(&self, verb: Verb, scope: &Template, other: &Self, captures: &Captures<'_>) -> bool {
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

#[cfg(test)]
mod tests;
