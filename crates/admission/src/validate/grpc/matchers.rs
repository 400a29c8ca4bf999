//! Matchers of paths, headers and text (GRPCV-25 and -27).

use super::rules::{ALL, At, CPP, Clients, GO, JAVA, NODE, Rules};
use crate::validate::{semantic::regex, tree::Message};

/// Checks a regular expression. All clients use RE2 or the same syntax.
///
/// Node compiles the expression between `^` and `$`.
pub(super) fn expression(matcher: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let text = matcher.text("regex");
    let Err(error) = regex::syntax(text) else { return };
    let node = NODE.when(regex::syntax(&format!("^{text}$")).is_err());
    let clients = clients & ((ALL - NODE) | node);
    self::invalid(&error, clients, at, rules);
}

/// Checks a regular expression that no client changes.
pub(super) fn plain_expression(
    matcher: &Message<'_>,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) {
    if let Err(error) = regex::syntax(matcher.text("regex")) {
        invalid(&error, clients, at, rules);
    }
}

fn invalid(error: &str, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    let reason = format!("the regular expression is not valid: {error}");
    rules.refuse(&at.field("regex"), clients, "grpc.regex", reason, "");
}

/// Checks a `StringMatcher`. Go accepts no empty prefix, suffix or part.
pub(super) fn text(matcher: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    if let Some(expression) = matcher.message("safe_regex") {
        if matcher.bits("ignore_case") != 0 {
            let reason = "gRPC does not support ignore_case for a regular expression";
            rules.refuse(&at.field("ignore_case"), clients & CPP, "grpc.regex", reason, "use (?i)");
        }
        return self::expression(expression, clients, &at.field("safe_regex"), rules);
    }
    let forms = ["exact", "prefix", "suffix", "contains"];
    let Some(form) = forms.into_iter().find(|form| matcher.has(form)) else {
        let reason = "the matcher has none of exact, prefix, suffix, contains and safe_regex";
        return rules.refuse(at, clients & (ALL - NODE), "grpc.matcher", reason, "");
    };
    if form != "exact" && matcher.text(form).is_empty() {
        let reason = format!("the {form} is empty");
        rules.refuse(&at.field(form), clients & GO, "grpc.matcher", reason, "");
    }
}

/// The deprecated forms of header matchers, whose text may not be empty for a recent Go.
const FORMS: [&str; 3] = ["prefix_match", "suffix_match", "contains_match"];

pub(super) const REVERSED: &str = "the range ends before it starts";

/// Returns whether a range of integers ends before it starts.
pub(super) fn is_reversed(range: &Message<'_>) -> bool {
    let part = |field| i64::from_le_bytes(range.bits(field).to_le_bytes());
    part("end") < part("start")
}

/// Checks the header matchers of a route.
pub(super) fn headers(matcher: &Message<'_>, clients: Clients, at: &At<'_>, rules: &mut Rules) {
    const ID: &str = "grpc.header_matcher";
    for (index, header) in matcher.messages("headers").enumerate() {
        let list = at.field("headers");
        let at = list.index(index);
        if let Some(own) = header.message("string_match") {
            text(own, clients, &at.field("string_match"), rules);
        } else if let Some(own) = header.message("safe_regex_match") {
            expression(own, clients, &at.field("safe_regex_match"), rules);
        } else if let Some(range) = header.message("range_match") {
            if is_reversed(range) {
                rules.refuse(&at.field("range_match"), clients & CPP, ID, REVERSED, "");
            }
        } else if !["exact_match", "present_match"]
            .iter()
            .chain(&FORMS)
            .any(|form| header.has(form))
        {
            let clients = clients & (CPP | GO | JAVA);
            rules.refuse(
                &at,
                clients,
                ID,
                "the header matcher has no header_match_specifier",
                "give string_match",
            );
        }
        if header.has("contains_match") {
            let at = at.field("contains_match");
            let fix = "use string_match";
            rules.refuse(&at, clients & NODE, ID, "Node does not support contains_match", fix);
        }
        for form in
            FORMS.into_iter().filter(|form| header.has(form) && header.text(form).is_empty())
        {
            let go = clients & GO.since(76);
            rules.refuse(&at.field(form), go, ID, "the text to match is empty", "");
        }
    }
}

/// Checks the path of a route. Returns the clients that read the rest of the route.
pub(super) fn path(
    matcher: &Message<'_>,
    clients: Clients,
    at: &At<'_>,
    rules: &mut Rules,
) -> Clients {
    if matcher.has("prefix") {
        return clients - CPP.when(!is_prefix_of_method(matcher.text("prefix")));
    }
    if matcher.has("path") {
        return clients - CPP.when(!is_method(matcher.text("path")));
    }
    if let Some(expression) = matcher.message("safe_regex") {
        self::expression(expression, clients, &at.field("safe_regex"), rules);
        return clients;
    }
    let reason = "the match has none of prefix, path and safe_regex";
    rules.refuse(at, clients, "grpc.path_matcher", reason, "give prefix, path or safe_regex");
    clients - CPP
}

/// Returns whether a prefix may match `/service/method`. C-core skips a route with another one.
fn is_prefix_of_method(prefix: &str) -> bool {
    let Some(rest) = prefix.strip_prefix('/') else { return prefix.is_empty() };
    let parts: Vec<&str> = rest.splitn(3, '/').collect();
    match parts[..] {
        [_] => true,
        [service, _] => !service.is_empty(),
        _ => false,
    }
}

/// Returns whether a path has the form `/service/method`.
fn is_method(path: &str) -> bool {
    let parts = path.strip_prefix('/').map(|rest| rest.splitn(3, '/').collect::<Vec<&str>>());
    parts.is_some_and(
        |parts| matches!(parts[..], [service, method] if !service.is_empty() && !method.is_empty()),
    )
}
