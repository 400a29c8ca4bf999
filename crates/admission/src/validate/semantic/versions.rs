//! The versions of Envoy between 1.36 and 1.40: the extensions and the commands of
//! format strings that the older ones do not have.
//!
//! The tables say since which minor version something holds. The verdicts are those of Envoy 1.36.4, 1.37.0, 1.38.3,
//! 1.39.3 and 1.40.0.

use crate::{
    clients::{Clients, ENVOY},
    validate::findings::Findings,
};

/// Returns the versions of Envoy before a minor version.
pub(super) const fn before(minor: u32) -> Clients {
    ENVOY.until(minor)
}

/// The extensions that are newer than 1.36: the minor version, the category or `*`, and the type of the configuration
/// behind `envoy.extensions.`.
const EXTENSIONS: &[(Clients, &str, &str)] = &[
    (before(37), "*", "access_loggers.filters.process_ratelimit.v3.ProcessRateLimitFilter"),
    (before(37), "*", "access_loggers.stats.v3.Config"),
    (before(37), "*", "clusters.composite.v3.ClusterConfig"),
    (before(37), "*", "filters.http.transform.v3.TransformConfig"),
    (before(38), "*", "filters.http.file_server.v3.FileServerConfig"),
    (before(38), "*", "filters.http.oauth2.v3.OAuth2PerRoute"),
    (before(38), "*", "formatter.file_content.v3.FileContent"),
    (before(39), "*", "filters.http.ai_protocol_manager.v3.AiProtocolManager"),
    (before(39), "*", "filters.http.filter_chain.v3.FilterChainConfig"),
    (before(39), "HTTP filter of a cluster", "filters.http.rbac.v3.RBAC"),
    (before(39), "envoy.filters.http.upstream", "filters.http.rbac.v3.RBAC"),
];

/// Records that older versions do not have an extension.
pub(super) fn extension(kind: &str, categories: &[&str], findings: &mut Findings<'_>) {
    let Some(own) = kind.strip_prefix("envoy.extensions.") else { return };
    let is_in = |category: &str| category == "*" || categories == [category];
    let found = EXTENSIONS.iter().find(|(_, category, kind)| *kind == own && is_in(category));
    if let Some((without, ..)) = found {
        let rule = format!("is of the type {kind}, which these versions do not have");
        findings.only(*without, |findings| findings.refuse("extension.version", rule));
    }
}

/// The load balancing policies that are newer than 1.36.
const POLICIES: [(Clients, &str); 2] =
    [(before(37), "wrr_locality"), (before(40), "load_aware_locality")];

/// Records that older versions have no policy of a list. `known` has the short names of those of the newest version.
pub(super) fn policies<'n>(known: impl Iterator<Item = &'n str>, findings: &mut Findings<'_>) {
    let without = |name: &str| POLICIES.iter().find(|(_, newer)| *newer == name).map(|one| one.0);
    let all = known.map(|name| without(name).unwrap_or_default());
    if let Some(without) = all.reduce(|all, one| all & one) {
        let rule = "has only policies that these versions do not have";
        findings.only(without, |findings| findings.refuse("lb_policy.version", rule));
    }
}

/// How a command of a format string is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Any,
    Parameter,
    Length,
    ParameterOrLength,
}

/// The commands of format strings, and uses of them, that older versions do not have.
const COMMANDS: &[(Clients, &str, Use)] = &[
    (before(37), "COALESCE", Use::Any),
    (before(37), "DYNAMIC_METADATA", Use::Length),
    (before(37), "REQUESTED_SERVER_NAME", Use::Parameter),
    (before(37), "REQUEST_HEADER", Use::Any),
    (before(38), "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", Use::ParameterOrLength),
    (before(38), "QUERY_PARAMS", Use::Any),
    (before(39), "DOWNSTREAM_TLS_GROUP", Use::Any),
    (before(40), "LISTENER_NAME", Use::Any),
];

/// Returns the versions that do not have a command of a format string in this use.
pub(super) fn without_command(name: &str, has_parameter: bool, has_len: bool) -> Option<Clients> {
    let is_used = |used| match used {
        Use::Any => true,
        Use::Parameter => has_parameter,
        Use::Length => has_len,
        Use::ParameterOrLength => has_parameter || has_len,
    };
    let found = COMMANDS.iter().find(|(_, known, used)| *known == name && is_used(*used));
    found.map(|(clients, ..)| *clients)
}

/// Returns the rules that depend on the version: the ID, the resources, and the versions that reject them.
#[cfg(test)]
pub(in crate::validate) fn facts() -> Vec<(&'static str, String, Clients)> {
    let short = |kind: &str| kind.rsplit('.').next().unwrap_or_default().to_owned();
    let newer = super::newer::NEWER.iter().map(|(id, names, clients)| {
        let at = if names.is_empty() {
            "everywhere".to_owned()
        } else {
            format!("in {}", names.join(", "))
        };
        (*id, at, *clients)
    });
    let extensions = EXTENSIONS.iter().map(|(clients, category, kind)| {
        let at = if *category == "*" { String::new() } else { format!(", as {category}") };
        // The name of a package may look like that of a metric.
        let kind = if kind.contains("process_") { short(kind) } else { (*kind).to_owned() };
        ("extension.version", format!("the extension {kind}{at}"), *clients)
    });
    let policies = POLICIES
        .iter()
        .map(|(clients, name)| ("lb_policy.version", format!("only the policy {name}"), *clients));
    let commands = COMMANDS.iter().map(|(clients, name, used)| {
        let what = match used {
            Use::Any => String::new(),
            Use::Parameter => " with a parameter".to_owned(),
            Use::Length => " with a length".to_owned(),
            Use::ParameterOrLength => " with a parameter or a length".to_owned(),
        };
        ("format.command", format!("the command {name}{what}"), *clients)
    });
    let required = super::older::REQUIRED.iter().map(|(clients, kind, field)| {
        ("version.required", format!("{} without {field}", short(kind)), *clients)
    });
    let others =
        super::older::FACTS.iter().map(|(id, what, clients)| (*id, (*what).to_owned(), *clients));
    let all = extensions.chain(policies).chain(commands).chain(required).chain(others);
    all.chain(newer).collect()
}
