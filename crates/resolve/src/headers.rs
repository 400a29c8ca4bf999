//! The request as the router sees it, and the conditions on headers, query parameters and cookies.

use crate::{
    message::Msg,
    request::Request,
    strings::{check_regex, check_string, compare},
    verdict::Verdict,
};

/// Headers that Envoy sets from facts which the request does not contain.
const SET_BY_NODE: &[&str] = &[
    "x-request-id",
    "x-forwarded-for",
    "x-forwarded-client-cert",
    "x-envoy-internal",
    "x-envoy-external-address",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
];

/// The request after the connection manager has processed it.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) request: &'a Request,
    /// The pseudo header `:authority`.
    pub(crate) authority: String,
    /// The pseudo header `:path`; empty for CONNECT.
    pub(crate) path: String,
    /// The pseudo header `:scheme`.
    pub(crate) scheme: String,
    /// The header `x-forwarded-proto`.
    pub(crate) forwarded_proto: String,
    /// Whether the node removes headers that only it may set (`use_remote_address`).
    pub(crate) is_edge: bool,
}

/// The value of a header.
pub(crate) enum HeaderValue {
    /// The value; `None` if the request does not have the header.
    Known(Option<String>),
    /// The node sets the header from facts which are not known.
    Unknown,
}

impl Seen<'_> {
    /// Returns the value of a header, with several values joined by commas.
    pub(crate) fn header(&self, name: &str) -> HeaderValue {
        let name = name.to_ascii_lowercase();
        let known = match name.as_str() {
            ":authority" | "host" => Some(self.authority.clone()),
            ":path" => Some(self.path.clone()).filter(|path| !path.is_empty()),
            ":method" => Some(self.request.method.clone()),
            ":scheme" => Some(self.scheme.clone()),
            "x-forwarded-proto" => Some(self.forwarded_proto.clone()),
            name => {
                let is_set_by_node = SET_BY_NODE.contains(&name);
                if self.is_edge && (is_set_by_node || name.starts_with("x-envoy-")) {
                    return HeaderValue::Unknown;
                }
                let given = self.request.header(name);
                if is_set_by_node && given.is_none() {
                    return HeaderValue::Unknown;
                }
                given
            }
        };
        HeaderValue::Known(known)
    }

    /// Returns the path without the query.
    pub(crate) fn bare_path(&self) -> &str {
        self.path.split(['?', '#']).next().unwrap_or_default()
    }

    /// Returns the value of a cookie.
    fn cookie(&self, name: &str) -> Option<String> {
        let cookies = self.request.headers.iter().filter(|(known, _)| known == "cookie");
        let pairs = cookies.flat_map(|(_, value)| value.split(';'));
        let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
        let value = pairs.find(|(known, _)| *known == name)?.1.trim();
        let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        Some(unquoted.unwrap_or(value).to_owned())
    }
}

/// Returns the first value of a query parameter. Envoy decodes neither names nor values.
pub(crate) fn query_parameter<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = path.split_once('?')?;
    let parameters = query.split('&').map(|one| one.split_once('=').unwrap_or((one, "")));
    parameters.filter(|(known, _)| *known == name).map(|(_, value)| value).next()
}

/// Returns whether the request satisfies a `HeaderMatcher`.
pub(crate) fn check_header(matcher: Msg<'_>, seen: &Seen<'_>) -> Verdict {
    let name = matcher.text("name");
    let value = match seen.header(name) {
        HeaderValue::Known(value) => value,
        HeaderValue::Unknown => {
            let reason = format!("the node sets the header {name:?} itself");
            return Verdict::unknown("", reason);
        }
    };
    let form = matcher.member("header_match_specifier");
    let form = form.as_deref().unwrap_or("present_match");
    let is_inverted = matcher.flag("invert_match");
    let wants_present = !matcher.has("present_match") || matcher.flag("present_match");
    let value = value.or_else(|| matcher.flag("treat_missing_header_as_empty").then(String::new));
    let Some(value) = value else {
        let holds = form == "present_match" && wants_present == is_inverted;
        return Verdict::of(holds, || format!("the request has no header {name:?}"));
    };
    // Envoy 1.40 compares each value of a header alone.
    let values = seen.request.values(name);
    let verdict = match values.as_slice() {
        [_, _, ..] => {
            let each = values.iter().map(|value| check_value(matcher, form, name, value));
            match Verdict::any(each) {
                Verdict::No(_) => Verdict::No(format!("none of the values {values:?} matches")),
                other => other,
            }
        }
        _ => check_value(matcher, form, name, &value),
    };
    let verdict = verdict.within(form);
    let verdict = if is_inverted {
        verdict.inverted(|| format!("{value:?} matches, and the match is inverted"))
    } else {
        verdict
    };
    match verdict {
        Verdict::No(reason) if form != "present_match" => {
            Verdict::No(format!("header {name:?}: {reason}"))
        }
        other => other,
    }
}

/// Returns whether one value of a header matches.
fn check_value(matcher: Msg<'_>, form: &str, name: &str, value: &str) -> Verdict {
    match form {
        "present_match" => {
            let is_wanted = !matcher.has("present_match") || matcher.flag("present_match");
            Verdict::of(is_wanted, || format!("the request has the header {name:?}"))
        }
        "string_match" => match matcher.sub(form) {
            Some(string) => check_string(string, value),
            None => Verdict::Yes,
        },
        "safe_regex_match" => check_regex(matcher.sub(form), value),
        "range_match" => check_range(matcher.sub(form), value),
        _ => {
            let wanted = matcher.text(form);
            let comparison = form.trim_end_matches("_match");
            // Envoy's `exact_match` of an empty text accepts all values.
            let holds =
                form == "exact_match" && wanted.is_empty() || compare(comparison, value, wanted);
            Verdict::of(holds, || format!("{value:?} does not match {comparison} {wanted:?}"))
        }
    }
}

fn check_range(range: Option<Msg<'_>>, value: &str) -> Verdict {
    let (start, end) = range.map_or((0, 0), |range| (range.number("start"), range.number("end")));
    let number = value.trim().parse::<i64>().ok();
    let holds = number.is_some_and(|number| (start..end).contains(&number));
    Verdict::of(holds, || format!("{value:?} is not a number from {start} to below {end}"))
}

/// Returns whether the request satisfies a `QueryParameterMatcher`.
pub(crate) fn check_query_parameter(matcher: Msg<'_>, seen: &Seen<'_>) -> Verdict {
    let name = matcher.text("name");
    let value = query_parameter(&seen.path, name);
    let missing = || format!("the request has no query parameter {name:?}");
    match (matcher.sub("string_match"), value) {
        (Some(string), Some(value)) => match check_string(string, value).within("string_match") {
            Verdict::No(reason) => Verdict::No(format!("query parameter {name:?}: {reason}")),
            other => other,
        },
        (None, Some(_)) if matcher.has("present_match") && !matcher.flag("present_match") => {
            Verdict::No(format!("the request has the query parameter {name:?}"))
        }
        (None, Some(_)) => Verdict::Yes,
        (None, None) if matcher.has("present_match") && !matcher.flag("present_match") => {
            Verdict::Yes
        }
        (_, None) => Verdict::No(missing()),
    }
}

/// Returns whether the request satisfies a `CookieMatcher`.
pub(crate) fn check_cookie(matcher: Msg<'_>, seen: &Seen<'_>) -> Verdict {
    let name = matcher.text("name");
    let verdict = match (seen.cookie(name), matcher.sub("string_match")) {
        (None, _) => Verdict::No(format!("the request has no cookie {name:?}")),
        (Some(value), Some(string)) => check_string(string, &value).within("string_match"),
        (Some(_), None) => Verdict::Yes,
    };
    if matcher.flag("invert_match") {
        verdict.inverted(|| format!("the cookie {name:?} matches, and the match is inverted"))
    } else {
        verdict
    }
}
