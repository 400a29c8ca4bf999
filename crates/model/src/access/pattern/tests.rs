use proptest::prelude::*;

use super::*;

fn identity(source: &str) -> IdentityPattern {
    IdentityPattern::parse(source).unwrap()
}

fn captures(pattern: &str, principal: &str) -> Option<Vec<(String, String)>> {
    let (pattern, principal) = (identity(pattern), Principal::new(principal).unwrap());
    let captures = pattern.captures(&principal)?;
    Some(captures.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
}

/// Attack 18: a variable stands for exactly one segment.
#[test]
fn variable_stands_for_one_segment() {
    const PATTERN: &str = "spiffe://prod/ns/{ns}/sa/{sa}";
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    let found = captures(PATTERN, "spiffe://prod/ns/shop/sa/cart");
    assert_eq!(found, Some(vec![pair("ns", "shop"), pair("sa", "cart")]));
    for principal in [
        "spiffe://prod/ns/a/sa/b/sa/x",
        "spiffe://prod/ns/a/b/sa/x",
        "spiffe://prod/ns/a/sa",
        "spiffe://prod2/ns/a/sa/b",
        "spiffe://prod/ns/a%2Fb/sa/x",
        "spiffe://prod/ns/a~b/sa/x",
        "jwt:prod/ns/a/sa/b",
    ] {
        assert_eq!(captures(PATTERN, principal), None, "{principal}");
    }
    assert_eq!(captures("jwt:{a}/{a}", "jwt:x/y"), None);
    assert_eq!(captures("jwt:{a}/{a}", "jwt:x/x"), Some(vec![pair("a", "x")]));
    assert_eq!(captures("jwt:corp/*", "jwt:corp/auth0|1~"), Some(vec![]));
    assert_eq!(captures("jwt:corp/*", "jwt:corp/a/b"), None);
    assert_eq!(captures("anonymous", "anonymous"), Some(vec![]));
    assert_eq!(captures("token:ci", "token:ci2"), None);
}

/// Attack 64: a pattern beyond a limit is refused, and one at the limit is not.
#[test]
fn invalid_patterns_are_refused() {
    for source in [
        "",
        "*",
        "{scheme}:x",
        "jwt:",
        "jwt:a//b",
        "jwt:a/x{y}",
        "jwt:a/{}",
        "jwt:a/{Y}",
        "jwt:a/{y",
        "jwt:a/y}",
        "jwt:a/x*",
        "jwt:a/**",
        "anonymous/x",
        "http://x",
        "jwt:a b",
    ] {
        assert!(IdentityPattern::parse(source).is_err(), "{source:?}");
    }
    let many = format!("jwt:{}", vec!["{x}"; CAPTURES_MAX + 1].join("/"));
    assert!(matches!(IdentityPattern::parse(&many), Err(PatternError::Captures(_))));
    assert!(IdentityPattern::parse(&many[..many.len() - 4]).is_ok());
    let long = format!("jwt:a/{}", "x".repeat(PATTERN_BYTES_MAX - 5));
    assert!(matches!(IdentityPattern::parse(&long), Err(PatternError::TooLong(1025))));
    assert!(IdentityPattern::parse(&long[..PATTERN_BYTES_MAX]).is_ok());
    let nested = format!("jwt:{}x", "{".repeat(PATTERN_BYTES_MAX - 5));
    assert!(IdentityPattern::parse(&nested).is_err());
    let identities = [identity("jwt:a/{ns}")];
    let variables = Variables { identities: &identities, node: false };
    for source in
        ["", "a*b", "*a", "**/a", "{ns}*", "{sa}", "{node.id}", "{ns", "ns}", "a\nb", "***"]
    {
        assert!(Template::parse(source, variables).is_err(), "{source:?}");
    }
    // A variable must be in each identity of the rule.
    let two = [identity("jwt:a/{ns}"), identity("jwt:a/{sa}")];
    let variables = Variables { identities: &two, node: false };
    assert!(Template::parse("{ns}", variables).is_err());
}

#[test]
fn template_compares_by_segment() {
    let identities = [identity("jwt:a/{ns}")];
    let variables = Variables { identities: &identities, node: false };
    let captures = Captures::from([("ns", "a")]);
    for (source, value, expected) in [
        ("ns/{ns}", "ns/a", true),
        ("ns/{ns}", "ns/ab", false),
        ("ns/{ns}", "ns/", false),
        ("ns/{ns}/*", "ns/a/b", true),
        ("ns/{ns}/*", "ns/a/", false),
        ("ns/{ns}/*", "ns/a/b/c", false),
        ("ns/{ns}/**", "ns/a/b/c", true),
        ("ns/{ns}/**", "ns/ab/c", false),
        ("ns/{ns}/**", "ns/a/", false),
        ("edge-*", "edge-1", true),
        ("edge-*", "edge-", false),
        ("edge-*", "edge-1/2", false),
        ("*", "x", true),
        ("*", "x/y", false),
        ("**", "x/y", true),
        ("**", "", false),
    ] {
        let template = Template::parse(source, variables).unwrap();
        assert_eq!(template.matches(value, &captures), expected, "{source} {value}");
    }
}

/// Attack 19: values of the node are compared in their encoded form.
#[test]
fn scope_of_node_is_compared_encoded() {
    let variables = Variables { identities: &[], node: true };
    let template = Template::parse("node/{node.id}", variables).unwrap();
    let matches = |id: &str, scope: &str| {
        let node = Node { id: id.into(), ..Node::default() };
        template.matches_scope(&ScopeName::new(scope).unwrap(), &Captures::new(), Some(&node))
    };
    assert!(matches("r7", "node/r7"));
    assert!(matches("a/b", "node/a%2Fb"));
    assert!(!matches("a/b", "node/a/b"));
    assert!(!matches("r7", "node/r70"));
    assert!(!matches("", "node/"));
}

const TEMPLATES: [&str; 14] = [
    "a", "a/b", "a/*", "a/**", "*", "**", "a*", "{x}", "{x}/b", "{x}/*", "a/{x}", "a/{x}/**", "b",
    "ab",
];

proptest! {
    /// The escalation guard relies on this: if a template covers another one, it matches all its values.
    #[test]
    fn covering_template_matches_all_values_of_the_other(
        own in 0..TEMPLATES.len(),
        other in 0..TEMPLATES.len(),
        x in "[ab]{1,2}",
        other_x in "[ab]{1,2}",
        value in "[ab/]{1,5}",
    ) {
        let identities = [identity("jwt:i/{x}")];
        let variables = Variables { identities: &identities, node: false };
        let parse = |at: usize| Template::parse(TEMPLATES[at], variables).unwrap();
        let (own, other) = (parse(own), parse(other));
        let captures = Captures::from([("x", x.as_str())]);
        let other_captures = Captures::from([("x", other_x.as_str())]);
        if own.covers(&other, &captures) && other.matches(&value, &other_captures) {
            prop_assert!(own.matches(&value, &captures), "{own:?} {other:?} {value}");
        }
    }
}

/// The guard would be useless if it covered nothing.
#[test]
fn obvious_cases_are_covered() {
    let identities = [identity("jwt:i/{x}")];
    let variables = Variables { identities: &identities, node: false };
    let captures = Captures::from([("x", "a")]);
    for (own, other) in [
        ("**", "a"),
        ("**", "{x}/b"),
        ("**", "**"),
        ("a/**", "a/b"),
        ("a/**", "a/{x}/**"),
        ("a/**", "a/*"),
        ("{x}/**", "a/b"),
        ("a/*", "a/*"),
        ("a/*", "a/b"),
        ("a", "a"),
        ("{x}/b", "a/b"),
        ("*", "a"),
    ] {
        let parse = |source| Template::parse(source, variables).unwrap();
        assert!(parse(own).covers(&parse(other), &captures), "{own} {other}");
    }
}
