//! Decisions with variables, types, names and nodes, against a naive reference that replaces the variables in the
//! texts of the patterns, and compares segments.

use super::*;
use crate::types;

/// The patterns of identities, and the variable `team` for each of [`CALLERS`] that matches.
const IDENTITIES: [(&str, [Option<&str>; 4]); 4] = [
    ("jwt:corp/{team}", [Some("a"), Some("b"), None, None]),
    ("jwt:corp/a", [Some(""), None, None, None]),
    ("jwt:*/a", [Some(""), None, Some(""), None]),
    ("spiffe://t/ns/{team}", [None, None, None, Some("a")]),
];
const CALLERS: [&str; 4] = ["jwt:corp/a", "jwt:corp/b", "jwt:other/a", "spiffe://t/ns/a"];
const SCOPE_PATTERNS: [&str; 6] =
    ["team/{team}/**", "team/{team}", "team/*", "**", "mesh", "team/{team}/x*"];
const NAME_PATTERNS: [&str; 4] = ["{team}/*", "a/x", "**", "a/**"];
const TARGET_SCOPES: [&str; 7] =
    ["team/a", "team/b", "team/a/x", "team/a/xy", "team/a/x/y", "team/ab/x", "mesh"];
const NAMES: [&str; 5] = ["a/x", "b/x", "a/x/y", "ab/x", "z"];
const TYPES: [&str; 3] = [types::CLUSTER, types::ROUTE, types::SECRET];
/// Patterns of values of the node, as texts in which `N` is the encoded ID and `Z` the zone in the metadata.
const READS: [(&str, &str); 4] = [
    ("team/{team}", "team/{team}"),
    ("node/{node.id}", "node/N"),
    ("zone/{metadata.zone}/**", "zone/Z/**"),
    ("mesh", "mesh"),
];
const NODE_IDS: [&str; 4] = ["a/1", "b/1", "a/1/2", "ab/1"];
const ZONES: [Option<&str>; 4] = [None, Some(""), Some("a"), Some("b")];
const VIEWS: [&str; 6] = ["team/a", "team/b", "node/a%2F1", "mesh", "zone/a/1", "zone/b/1"];

/// Returns whether a text matches a pattern without variables.
fn matches(pattern: &str, text: &str) -> bool {
    if pattern == "**" {
        return !text.is_empty();
    }
    if let Some(parent) = pattern.strip_suffix("/**") {
        let (own, parents): (Vec<&str>, Vec<&str>) =
            (text.split('/').collect(), parent.split('/').collect());
        return own.len() > parents.len() && own[..parents.len()] == parents[..];
    }
    let (own, parts): (Vec<&str>, Vec<&str>) =
        (text.split('/').collect(), pattern.split('/').collect());
    own.len() == parts.len()
        && std::iter::zip(own, parts).all(|(own, part)| match part.strip_suffix('*') {
            Some(start) => own.len() > start.len() && own.starts_with(start),
            None => own == part,
        })
}

/// A rule as places in the lists above.
#[derive(Debug, Clone)]
struct Plan {
    identity: usize,
    scopes: Vec<usize>,
    types: Vec<usize>,
    names: Vec<usize>,
    denies: bool,
}

impl Plan {
    fn has_variable(&self) -> bool {
        IDENTITIES[self.identity].0.contains('{')
    }

    /// Returns a pattern that the rule may have: without a variable of the identity, its value `a`.
    fn source(&self, pattern: &str) -> String {
        if self.has_variable() { pattern.to_owned() } else { pattern.replace("{team}", "a") }
    }

    /// Returns the patterns for a caller with the value of the variable.
    fn expanded(&self, pattern: &str, team: &str) -> String {
        self.source(pattern).replace("{team}", team)
    }

    fn templates(
        &self,
        rule: &AccessRule,
        places: &[usize],
        all: &[&str],
        node: bool,
    ) -> Vec<Template> {
        let sources: Vec<String> = places.iter().map(|at| self.source(all[*at])).collect();
        templates(rule, &sources.iter().map(String::as_str).collect::<Vec<_>>(), node)
    }
}

fn places(n: usize, least: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..n, least..3)
}

fn plan() -> impl Strategy<Value = Plan> {
    let parts = (
        0..IDENTITIES.len(),
        places(SCOPE_PATTERNS.len(), 1),
        places(TYPES.len(), 0),
        places(NAME_PATTERNS.len(), 0),
        prop::bool::weighted(0.3),
    );
    parts.prop_map(|(identity, scopes, types, names, denies)| Plan {
        identity,
        scopes,
        types,
        names,
        denies,
    })
}

/// A rule for clients as places in the lists above.
#[derive(Debug, Clone)]
struct ClientPlan {
    identity: usize,
    reads: Vec<usize>,
    secrets: Vec<usize>,
    names: Vec<usize>,
    /// Whether the ID of the node must match `{team}/*`.
    id: bool,
    /// Whether the metadata of the node must have `zone: {team}`.
    zone: bool,
}

fn client_plan() -> impl Strategy<Value = ClientPlan> {
    let parts = (
        0..IDENTITIES.len(),
        places(READS.len(), 1),
        places(READS.len(), 0),
        places(NAME_PATTERNS.len(), 0),
        any::<bool>(),
        prop::bool::weighted(0.3),
    );
    parts.prop_map(|(identity, reads, secrets, names, id, zone)| ClientPlan {
        identity,
        reads,
        secrets,
        names,
        id,
        zone,
    })
}

proptest! {
    /// Rules of authors: an entry allows a resource if its scope, type and name match, and a type or a scope if the
    /// entry contains all of it. An entry denies whatever it has a part of.
    #[test]
    fn authors_may_do_what_the_naive_reference_permits(plans in prop::collection::vec(plan(), 0..6)) {
        let rules = plans.iter().enumerate().map(|(at, plan)| {
            let mut rule = rule(&format!("r{at}"), IDENTITIES[plan.identity].0);
            let grant = Grant {
                verbs: vec![Verb::Apply],
                scopes: plan.templates(&rule, &plan.scopes, &SCOPE_PATTERNS, false),
                types: plan.types.iter().map(|at| TypeUrl::new(TYPES[*at]).unwrap()).collect(),
                names: plan.templates(&rule, &plan.names, &NAME_PATTERNS, false),
            };
            if plan.denies { rule.deny.push(grant) } else { rule.allow.push(grant) }
            rule
        });
        let access = access(rules);
        for (caller, who) in CALLERS.iter().enumerate() {
            let who = identity(who);
            let own = plans.iter().filter_map(|plan| Some((plan, IDENTITIES[plan.identity].1[caller]?)));
            let own: Vec<(&Plan, &str)> = own.collect();
            for of_scope in TARGET_SCOPES {
                let in_scope = own.iter().filter(|(plan, team)| {
                    plan.scopes.iter().any(|at| matches(&plan.expanded(SCOPE_PATTERNS[*at], team), of_scope))
                });
                let in_scope: Vec<_> = in_scope.collect();
                let scope = scope(of_scope);
                let whole = |plan: &Plan| plan.types.is_empty() && plan.names.is_empty();
                let allows = in_scope.iter().any(|(plan, _)| !plan.denies && whole(plan));
                let denies = in_scope.iter().any(|(plan, _)| plan.denies);
                prop_assert_eq!(access.permits(&who, Verb::Apply, Target::Scope(&scope)), allows && !denies);
                for (of_type, url) in TYPES.iter().enumerate() {
                    let has_type = |plan: &Plan| plan.types.is_empty() || plan.types.contains(&of_type);
                    let in_type: Vec<_> = in_scope.iter().filter(|(plan, _)| has_type(plan)).collect();
                    let url = TypeUrl::new(url).unwrap();
                    let allows = in_type.iter().any(|(plan, _)| !plan.denies && plan.names.is_empty());
                    let denies = in_type.iter().any(|(plan, _)| plan.denies);
                    let target = Target::Type(&scope, &url);
                    prop_assert_eq!(access.permits(&who, Verb::Apply, target), allows && !denies);
                    for name in NAMES {
                        let has_name = |plan: &Plan, team: &str| {
                            plan.names.is_empty()
                                || plan.names.iter().any(|at| matches(&plan.expanded(NAME_PATTERNS[*at], team), name))
                        };
                        let mut named = in_type.iter().filter(|(plan, team)| has_name(plan, team)).peekable();
                        let expected = named.peek().is_some() && named.all(|(plan, _)| !plan.denies);
                        let of_name = ResourceName::new(name).unwrap();
                        let target = Target::Resource(&scope, &url, &of_name);
                        prop_assert_eq!(access.permits(&who, Verb::Apply, target), expected);
                        prop_assert!(!access.permits(&who, Verb::Delete, target));
                    }
                }
            }
        }
    }

    /// Rules of clients: the values of the node, the scopes and the secrets.
    #[test]
    fn clients_receive_what_the_naive_reference_permits(
        plans in prop::collection::vec(client_plan(), 0..5),
        caller in 0..CALLERS.len(),
        id in 0..NODE_IDS.len(),
        zone in 0..ZONES.len(),
        views in prop::sample::subsequence(VIEWS.to_vec(), 0..4),
    ) {
        let base = |plan: &ClientPlan| Plan {
            identity: plan.identity,
            scopes: Vec::new(),
            types: Vec::new(),
            names: Vec::new(),
            denies: false,
        };
        let sources = READS.map(|(source, _)| source);
        let rules = plans.iter().enumerate().map(|(at, plan)| {
            let mut rule = rule(&format!("r{at}"), IDENTITIES[plan.identity].0);
            let texts = base(plan);
            let one = |source: &str| templates(&rule, &[&texts.source(source)], false).remove(0);
            let zone = plan.zone.then(|| ("zone".to_owned(), one("{team}")));
            let binding = NodeBinding {
                id: plan.id.then(|| one("{team}/*")),
                cluster: None,
                metadata: zone.into_iter().collect(),
            };
            rule.node = binding;
            rule.read = texts.templates(&rule, &plan.reads, &sources, true);
            rule.secrets = SecretsGrant {
                scopes: texts.templates(&rule, &plan.secrets, &sources, true),
                names: texts.templates(&rule, &plan.names, &NAME_PATTERNS, false),
            };
            rule
        });
        let access = access(rules);
        let (id, zone) = (NODE_IDS[id], ZONES[zone]);
        let mut node = node(id);
        node.metadata.extend(zone.map(|zone| ("zone".to_owned(), zone.to_owned())));
        let scopes: Vec<ScopeName> = views.iter().map(|name| scope(name)).collect();
        let decided = access.decide_stream(&identity(CALLERS[caller]), &node, &scopes, None);

        let own = plans.iter().filter_map(|plan| Some((plan, IDENTITIES[plan.identity].1[caller]?)));
        let own: Vec<(&ClientPlan, &str)> = own
            .filter(|(plan, team)| {
                let of = |pattern: &str| base(plan).expanded(pattern, team);
                let has_zone = || zone.is_some_and(|zone| matches(&of("{team}"), zone));
                (!plan.id || matches(&of("{team}/*"), id)) && (!plan.zone || has_zone())
            })
            .collect();
        let sees = |plan: &ClientPlan, team: &str, places: &[usize], view: &str| {
            places.iter().any(|at| {
                let (source, text) = READS[*at];
                let is_bound = !source.contains("zone") || zone.is_some_and(|zone| !zone.is_empty());
                let text = text.replace('N', &id.replace('/', "%2F")).replace('Z', zone.unwrap_or_default());
                is_bound && matches(&base(plan).expanded(&text, team), view)
            })
        };
        let permitted = !own.is_empty()
            && views.iter().all(|view| own.iter().any(|(plan, team)| sees(plan, team, &plan.reads, view)));
        prop_assert_eq!(decided.is_ok(), permitted, "{:?}", decided);
        let Ok(rights) = decided else { return Ok(()) };
        for view in &views {
            for name in NAMES {
                let expected = own.iter().any(|(plan, team)| {
                    let has_name = plan.names.is_empty()
                        || plan.names.iter().any(|at| matches(&base(plan).expanded(NAME_PATTERNS[*at], team), name));
                    sees(plan, team, &plan.secrets, view) && has_name
                });
                let found = rights.secrets.permits(&scope(view), &ResourceName::new(name).unwrap());
                prop_assert_eq!(found, expected, "{} in {}", name, view);
            }
        }
    }
}
