//! The parts of matchers that fit each other in every place: inputs, custom matches and domains.

use std::collections::HashSet;

use super::registry;
use crate::{
    node::named,
    validate::{findings::Findings, tree::Message},
};

/// The input of expressions, which no other match takes.
pub(super) const CEL_INPUT: &str = "xds.type.matcher.v3.HttpAttributesCelMatchInput";
/// The match by an expression, which takes no other input.
const CEL_MATCHER: &str = "xds.type.matcher.v3.CelMatcher";
const RULE: &str = "matcher.type";

/// Returns the type of an extension that Chancery can decode.
fn kind_in<'m>(owner: &Message<'m>, field: &'static str) -> Option<&'m str> {
    let config = owner.message(field)?.message("typed_config")?;
    config.content.as_ref().map(|_| registry::kind_of(config))
}

/// An expression matches the input of expressions, and nothing else does.
pub(super) fn predicate<'m>(predicate: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(input) = kind_in(predicate, "input") else { return };
    let custom = kind_in(predicate, "custom_match");
    if custom == Some(CEL_MATCHER) && input != CEL_INPUT {
        findings.field("input", |findings| {
            let rule = format!("a CelMatcher does not take the input {}", named(input));
            findings.refuse_with_fix(RULE, rule, "use HttpAttributesCelMatchInput");
        });
    }
    if input == CEL_INPUT && predicate.has("value_match") {
        findings.field("value_match", |findings| {
            let rule = "does not take the input HttpAttributesCelMatchInput";
            findings.refuse_with_fix(RULE, rule, "use custom_match with a CelMatcher");
        });
    }
}

/// A tree compares text.
pub(super) fn tree<'m>(tree: &'m Message<'_>, findings: &mut Findings<'m>) {
    let has_map = tree.has("exact_match_map") || tree.has("prefix_match_map");
    if has_map && kind_in(tree, "input") == Some(CEL_INPUT) {
        findings.field("input", |findings| {
            let rule = "HttpAttributesCelMatchInput is not allowed with a map";
            findings.refuse_with_fix(RULE, rule, "use matcher_list with a CelMatcher");
        });
    }
}

/// A matcher by an expression has a parsed or a checked one. Envoy does not parse text here.
pub(super) fn expression<'m>(matcher: &'m Message<'_>, findings: &mut Findings<'m>) {
    const FORMS: [&str; 4] = ["cel_expr_parsed", "cel_expr_checked", "parsed", "checked"];
    let Some(expression) = matcher.message("expr_match") else { return };
    if !FORMS.iter().any(|form| expression.has(form)) {
        findings.field("expr_match", |findings| {
            let rule = "has neither cel_expr_parsed nor cel_expr_checked";
            findings.refuse_with_fix("matcher.expression", rule, "give one of the two");
        });
    }
}

/// Each domain of a matcher occurs once, and a wildcard is `*` or the first label.
pub(super) fn domains<'m>(matcher: &'m Message<'_>, findings: &mut Findings<'m>) {
    let mut seen = HashSet::new();
    for (index, entry) in matcher.messages("domain_matchers").enumerate() {
        for (at, domain) in entry.texts("domains").enumerate() {
            let (rule, fix) = if domain.is_empty() {
                ("is empty".to_owned(), "write * to match all names")
            } else if !is_pattern(domain) {
                let fix = "write * or *.example.com";
                (format!("{} has a wildcard that is not the first label", named(domain)), fix)
            } else if !seen.insert(domain) {
                (format!("repeats the domain {}", named(domain)), "remove one of the two")
            } else {
                continue;
            };
            findings.item("domain_matchers", index, |findings| {
                findings.item("domains", at, |findings| {
                    findings.refuse_with_fix("matcher.domain", rule, fix);
                });
            });
        }
    }
}

/// Returns whether a domain is `*`, or has at most a first label `*`.
fn is_pattern(domain: &str) -> bool {
    let rest = domain.strip_prefix("*.").unwrap_or(domain);
    domain == "*" || !rest.is_empty() && !rest.contains('*')
}
