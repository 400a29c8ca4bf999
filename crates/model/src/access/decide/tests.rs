use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    AccessLimit, AccessOp, IdentityPattern, IdentityQuota, NodeBinding, RULES_MAX, Refusal,
    Revision, SecretsGrant, TOKENS_MAX, Token, TokenDigest, TypeUrl, Variables, access::refusal,
};

mod reference;

fn scope(name: &str) -> ScopeName {
    ScopeName::new(name).unwrap()
}

fn identity(text: &str) -> Identity {
    Identity { principal: Principal::new(text).unwrap(), token: None }
}

fn node(id: &str) -> Node {
    Node { id: id.into(), ..Node::default() }
}

fn rule(name: &str, identity: &str) -> AccessRule {
    AccessRule {
        name: name.into(),
        identities: vec![IdentityPattern::parse(identity).unwrap()],
        refuse: false,
        node: NodeBinding::default(),
        read: Vec::new(),
        secrets: SecretsGrant::default(),
        allow: Vec::new(),
        deny: Vec::new(),
        quota: IdentityQuota::default(),
    }
}

fn token(name: &str, n: usize) -> Token {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&n.to_be_bytes());
    let digest = TokenDigest(digest);
    Token { name: name.into(), digest, created_ms: 0, expires_ms: 0, revision: Revision(0) }
}

fn templates(rule: &AccessRule, sources: &[&str], node: bool) -> Vec<Template> {
    let variables = Variables { identities: &rule.identities, node };
    sources.iter().map(|source| Template::parse(source, variables).unwrap()).collect()
}

fn grant(rule: &AccessRule, verbs: &[Verb], scopes: &[&str]) -> Grant {
    let scopes = templates(rule, scopes, false);
    Grant { verbs: verbs.to_vec(), scopes, types: Vec::new(), names: Vec::new() }
}

fn access(rules: impl IntoIterator<Item = AccessRule>) -> Access {
    Access { rules: rules.into_iter().collect(), ..Access::default() }
}

fn sidecars() -> AccessRule {
    let mut rule = rule("sidecars", "spiffe://prod/ns/{ns}/sa/{sa}");
    let one = |source: &str| templates(&rule, &[source], false).remove(0);
    rule.node = NodeBinding {
        id: Some(one("{ns}/{sa}/*")),
        cluster: Some(one("{sa}")),
        metadata: BTreeMap::from([("NAMESPACE".to_owned(), one("{ns}"))]),
    };
    rule.read = templates(&rule, &["mesh", "ns/{ns}", "node/{node.id}"], true);
    rule.secrets = SecretsGrant {
        scopes: templates(&rule, &["ns/{ns}"], true),
        names: templates(&rule, &["ns/{ns}/*"], false),
    };
    rule
}

fn cart() -> Node {
    Node {
        id: "shop/cart/1".into(),
        cluster: "cart".into(),
        metadata: BTreeMap::from([("NAMESPACE".to_owned(), "shop".to_owned())]),
        ..Node::default()
    }
}

/// Attacks 14, 15 and 17, on the decision: a node must have all bound values, and a scope that is not permitted or
/// cannot be resolved refuses the stream.
#[test]
fn stream_needs_bound_values_and_all_scopes() {
    let access = access([sidecars()]);
    let who = identity("spiffe://prod/ns/shop/sa/cart");
    let scopes = [scope("node/shop%2Fcart%2F1"), scope("ns/shop"), scope("mesh")];
    let decide = |node: &Node, scopes: &[ScopeName], unresolved: Option<&str>| {
        access.decide_stream(&who, node, scopes, unresolved)
    };
    let rights = decide(&cart(), &scopes, None).unwrap();
    let name = |name: &str| ResourceName::new(name).unwrap();
    assert!(rights.secrets.permits(&scope("ns/shop"), &name("ns/shop/key")));
    assert!(!rights.secrets.permits(&scope("ns/shop"), &name("ns/other/key")));
    assert!(!rights.secrets.permits(&scope("mesh"), &name("ns/shop/key")));

    let reason = |result: Result<StreamRights, StreamRefusal>| result.unwrap_err().reason();
    for change in [
        |node: &mut Node| node.id.clear(),
        |node: &mut Node| node.id = "shop/other/1".into(),
        |node: &mut Node| node.id = "shop/cart/1/2".into(),
        |node: &mut Node| node.cluster.clear(),
        |node: &mut Node| node.metadata.clear(),
        |node: &mut Node| drop(node.metadata.insert("NAMESPACE".into(), String::new())),
        |node: &mut Node| drop(node.metadata.insert("NAMESPACE".into(), "other".into())),
    ] {
        let mut node = cart();
        change(&mut node);
        assert_eq!(reason(decide(&node, &scopes, None)), "node", "{node:?}");
    }
    assert_eq!(reason(decide(&cart(), &[scope("mesh"), scope("ns/other")], None)), "scope");
    assert_eq!(reason(decide(&cart(), &[scope("node/other")], None)), "scope");
    assert_eq!(reason(decide(&cart(), &scopes, Some("zone/{locality.zone}"))), "variable");
    let other = identity("spiffe://other/ns/shop/sa/cart");
    let refused = access.decide_stream(&other, &cart(), &scopes, None);
    assert_eq!(reason(refused), "no_rule");
}

#[test]
fn refusing_rule_overrides_all_others() {
    let refusing = AccessRule { refuse: true, ..rule("revoked", "spiffe://prod/ns/shop/sa/cart") };
    let access = access([refusing, sidecars()]);
    let refused = |text: &str| access.decide_stream(&identity(text), &cart(), &[], None);
    let refusal = refused("spiffe://prod/ns/shop/sa/cart").unwrap_err();
    assert_eq!(refusal, StreamRefusal::Refused { rule: "revoked".into() });
    assert_eq!(refused("spiffe://prod/ns/shop/sa/cart2").unwrap_err().reason(), "node");
}

#[test]
fn deleted_token_is_no_identity() {
    let mut rule = rule("ci", "token:ci");
    rule.read = templates(&rule, &["**"], true);
    rule.allow = vec![grant(&rule, &[Verb::Get], &["**"])];
    let mut access = access([rule]);
    let digest = TokenDigest([7; 32]);
    let who = Identity { token: Some(digest), ..identity("token:ci") };
    let scope = scope("a");
    assert!(!access.permits(&who, Verb::Get, Target::Scope(&scope)));
    assert_eq!(access.decide_stream(&who, &node("n"), &[], None), Err(StreamRefusal::Token));
    access.tokens.push(Token {
        name: "ci".into(),
        digest,
        created_ms: 1,
        expires_ms: 2,
        revision: Revision(1),
    });
    assert!(access.permits(&who, Verb::Get, Target::Scope(&scope)));
}

#[test]
fn grant_is_limited_to_types_and_names() {
    let cluster = TypeUrl::from_static("type.googleapis.com/envoy.config.cluster.v3.Cluster");
    let route =
        TypeUrl::from_static("type.googleapis.com/envoy.config.route.v3.RouteConfiguration");
    let mut rule = rule("team", "jwt:corp/{team}");
    let names = templates(&rule, &["{team}-*"], false);
    let allow = grant(&rule, &[Verb::Apply, Verb::Prune], &["mesh"]);
    rule.allow = vec![Grant { types: vec![cluster.clone()], names, ..allow }];
    let access = access([rule]);
    let who = identity("jwt:corp/shop");
    let (mesh, other) = (scope("mesh"), scope("mesh2"));
    let permits = |scope: &ScopeName, type_url: &TypeUrl, name: &str| {
        let name = ResourceName::new(name).unwrap();
        access.permits(&who, Verb::Apply, Target::Resource(scope, type_url, &name))
    };
    assert!(permits(&mesh, &cluster, "shop-web"));
    assert!(!permits(&mesh, &cluster, "shopx"));
    assert!(!permits(&mesh, &cluster, "other-web"));
    assert!(!permits(&mesh, &route, "shop-web"));
    assert!(!permits(&other, &cluster, "shop-web"));
    // Attack 42: pruning needs the right for the whole scope.
    assert!(!access.permits(&who, Verb::Prune, Target::Scope(&mesh)));
    assert!(access.permits_somewhere(&who, Verb::Prune));
    assert!(!access.permits(&who, Verb::Nodes, Target::Cluster));
}

/// Attack 64: the number of rules and of tokens is exact at its limit. A limit does not forbid to replace or delete.
#[test]
fn number_of_rules_and_tokens_is_limited() {
    let put = |name: String| AccessOp::PutRule(Box::new(rule(&name, "token:{x}")));
    let full = access((0..RULES_MAX).map(|n| rule(&format!("r{n:05}"), "token:{x}")));
    assert_eq!(
        refusal(&full, &[put("new".into())]),
        Some(Refusal::AccessTooMany(AccessLimit::Rules))
    );
    assert_eq!(refusal(&full, &[put("r00000".into())]), None);
    let replaced = [AccessOp::DeleteRule("r00000".into()), put("new".into())];
    assert_eq!(refusal(&full, &replaced), None);
    let two = Access { tokens: vec![token("t", 0), token("t", 1)], ..Access::default() };
    assert_eq!(
        refusal(&two, &[AccessOp::AddToken(token("t", 2))]),
        Some(Refusal::AccessTooMany(AccessLimit::TokensPerName))
    );
    let tokens = (0..TOKENS_MAX).map(|n| token(&format!("t{n:05}"), n)).collect();
    let many = Access { tokens, ..Access::default() };
    assert_eq!(
        refusal(&many, &[AccessOp::AddToken(token("u", TOKENS_MAX))]),
        Some(Refusal::AccessTooMany(AccessLimit::Tokens))
    );
    let deleted = AccessOp::DeleteToken(many.tokens[0].digest);
    assert_eq!(refusal(&many, &[deleted, AccessOp::AddToken(token("u", TOKENS_MAX))]), None);
}

/// Attack 45: nobody gives rights that they do not have.
#[test]
fn author_cannot_give_rights_that_it_lacks() {
    let mut own = rule("team", "jwt:corp/{team}");
    own.allow = vec![
        grant(&own, &[Verb::Apply, Verb::Get], &["team/{team}/**"]),
        grant(&own, &[Verb::AccessWrite], &[]),
    ];
    let access = access([own]);
    let who = identity("jwt:corp/shop");
    let given = |verbs: &[Verb], scopes: &[&str], read: &[&str]| {
        let mut new = rule("new", "token:ci");
        new.allow = vec![grant(&new, verbs, scopes)];
        new.read = templates(&new, read, true);
        access.escalation(&who, &new)
    };
    assert_eq!(given(&[Verb::Apply], &["team/shop/a"], &["team/shop/*"]), None);
    assert_eq!(given(&[Verb::AccessWrite], &[], &[]), None);
    let missing =
        |verbs: &[Verb], scopes: &[&str], read: &[&str]| given(verbs, scopes, read).unwrap();
    assert_eq!(missing(&[Verb::Delete], &["team/shop/a"], &[]), "delete in \"team/shop/a\"");
    assert_eq!(missing(&[Verb::Apply], &["team/shop2/a"], &[]), "apply in \"team/shop2/a\"");
    assert_eq!(missing(&[Verb::Apply], &["**"], &[]), "apply in \"**\"");
    assert_eq!(missing(&[], &[], &["{node.id}"]), "get in \"{node.id}\"");
    assert_eq!(missing(&[Verb::Members], &[], &[]), "members");
}

// === a naive reference ===

/// One grant in the simplest form: a verb, a scope or all, and whether it denies.
#[derive(Debug, Clone)]
struct Simple {
    who: usize,
    verb: usize,
    scope: Option<usize>,
    denies: bool,
}

const WHO: [&str; 3] = ["token:a", "jwt:i/b", "spiffe://t/c"];
const VERBS: [Verb; 3] = [Verb::Get, Verb::Apply, Verb::Delete];
const SCOPES: [&str; 3] = ["x", "x/y", "z"];

fn simple() -> impl Strategy<Value = Simple> {
    (0..3usize, 0..3usize, proptest::option::of(0..3usize), any::<bool>())
        .prop_map(|(who, verb, scope, denies)| Simple { who, verb, scope, denies })
}

proptest! {
    /// Deny wins, the order of rules does not matter, and nothing is allowed by default.
    #[test]
    fn decision_equals_naive_reference(mut simples in prop::collection::vec(simple(), 0..8), rotate in 0..8usize) {
        let rules_of = |simples: &[Simple]| {
            let rules = simples.iter().enumerate().map(|(at, simple)| {
                let mut rule = rule(&format!("r{at}"), WHO[simple.who]);
                let scopes = [simple.scope.map_or("**", |at| SCOPES[at])];
                let grant = grant(&rule, &[VERBS[simple.verb]], &scopes);
                if simple.denies { rule.deny.push(grant) } else { rule.allow.push(grant) }
                rule
            });
            access(rules)
        };
        let access = rules_of(&simples);
        let by = rotate.min(simples.len());
        simples.rotate_left(by);
        let rotated = rules_of(&simples);
        for (who, name) in WHO.iter().enumerate() {
            for (verb, of_verb) in VERBS.iter().enumerate() {
                for (at, of_scope) in SCOPES.iter().enumerate() {
                    let concerns = |simple: &&Simple| {
                        simple.who == who && simple.verb == verb && simple.scope.is_none_or(|one| one == at)
                    };
                    let concerned: Vec<_> = simples.iter().filter(concerns).collect();
                    let expected = !concerned.is_empty() && concerned.iter().all(|simple| !simple.denies);
                    let scope = scope(of_scope);
                    let target = Target::Scope(&scope);
                    prop_assert_eq!(access.permits(&identity(name), *of_verb, target), expected);
                    prop_assert_eq!(rotated.permits(&identity(name), *of_verb, target), expected);
                }
            }
        }
    }

    /// If the difference of two versions does not concern an identity, both versions give it the same stream.
    #[test]
    fn identity_that_no_difference_concerns_has_equal_rights(
        versions in prop::collection::vec(prop::collection::vec((0..4usize, 0..3usize, 0..3usize, 0..3u8), 0..5), 3),
        tokens in prop::collection::vec(any::<bool>(), 3),
    ) {
        let versions: Vec<Access> = std::iter::zip(&versions, &tokens).map(|(simples, has_token)| {
            let rules: BTreeMap<String, AccessRule> = simples.iter().map(|(name, who, read, kind)| {
                let mut rule = rule(&format!("r{name}"), WHO[*who]);
                rule.read = templates(&rule, &[SCOPES[*read]], true);
                rule.refuse = *kind == 1;
                rule.quota.streams = (*kind == 2).then_some(7);
                (rule.name.to_string(), rule)
            }).collect();
            let mut access = access(rules.into_values());
            access.tokens.extend(has_token.then(|| token("a", 1)));
            access
        }).collect();
        let [first, second, third] = versions.as_slice() else { panic!("{versions:?}") };
        let mut difference = first.difference(second);
        difference.extend(&second.difference(third));
        for who in WHO {
            let mut identity = identity(who);
            identity.token = (who == WHO[0]).then_some(token("a", 1).digest);
            if difference.concerns(&identity) {
                continue;
            }
            for name in SCOPES {
                let decide = |access: &Access| access.decide_stream(&identity, &node("n"), &[scope(name)], None);
                prop_assert_eq!(decide(first), decide(third));
            }
        }
    }

    /// A stream is permitted exactly if some rule permits each of its scopes.
    #[test]
    fn stream_is_permitted_only_with_all_scopes(
        reads in prop::collection::vec((0..3usize, 0..3usize), 0..6),
        scopes in prop::collection::vec(0..3usize, 0..4),
        who in 0..3usize,
    ) {
        let rules = reads.iter().enumerate().map(|(at, (who, read))| {
            let mut rule = rule(&format!("r{at}"), WHO[*who]);
            rule.read = templates(&rule, &[SCOPES[*read]], true);
            rule
        });
        let access = access(rules);
        let names: Vec<ScopeName> = scopes.iter().map(|at| scope(SCOPES[*at])).collect();
        let own: Vec<usize> = reads.iter().filter(|(one, _)| *one == who).map(|(_, read)| *read).collect();
        let expected = !own.is_empty() && scopes.iter().all(|scope| own.contains(scope));
        let decided = access.decide_stream(&identity(WHO[who]), &node("n"), &names, None);
        prop_assert_eq!(decided.is_ok(), expected);
        // Attack 21: nothing gives secrets but a right for secrets.
        for right in decided.iter() {
            prop_assert_eq!(&*right.secrets, &SecretsRight::default());
        }
    }
}
