//! The action of a route.

use crate::{
    answer::End,
    clusters::{choose, weighted},
    headers::{HeaderValue, Seen},
    message::Msg,
    redirect::{location, status},
    regexes::replace_all,
    walk::Walk,
};

/// Returns the action of a route in a few words.
pub(crate) fn summary(route: Msg<'_>) -> String {
    match route.member("action").as_deref() {
        Some("route") => {
            let Some(action) = route.sub("route") else { return "no cluster".to_owned() };
            match action.member("cluster_specifier").as_deref() {
                Some("cluster") => format!("cluster {:?}", action.text("cluster")),
                Some("cluster_header") => {
                    format!("the cluster in the header {:?}", action.text("cluster_header"))
                }
                Some("weighted_clusters") => {
                    let clusters = action.sub("weighted_clusters");
                    let n = clusters.map_or(0, |clusters| clusters.list("clusters").count());
                    format!("one of {n} weighted clusters")
                }
                Some(other) => format!("the cluster that {other} selects"),
                None => "no cluster".to_owned(),
            }
        }
        Some("redirect") => "redirect".to_owned(),
        Some("direct_response") => {
            let status = route.sub("direct_response").map_or(0, |it| it.number("status"));
            format!("direct response {status}")
        }
        Some("non_forwarding_action") => "no forwarding".to_owned(),
        Some(other) => other.to_owned(),
        None => "no action".to_owned(),
    }
}

/// Returns the end of a request that a route matches. `matched` is the part of the path that a prefix rewrite replaces.
pub(crate) fn follow_route(
    walk: &mut Walk<'_>,
    route: Msg<'_>,
    place: &str,
    matched: &str,
    seen: &Seen<'_>,
) -> End {
    match route.member("action").as_deref() {
        Some("route") => match route.sub("route") {
            Some(action) => forward(walk, action, &format!("{place}.route"), matched, seen),
            None => End::Undecided { reason: "the route has no action".to_owned() },
        },
        Some("redirect") => {
            match route.sub("redirect").map(|it| (status(it), location(it, seen, matched))) {
                Some((status, Ok(location))) => End::Redirect { status, location },
                Some((status, Err(reason))) => {
                    walk.doubt(&format!("{place}.redirect"), &reason, "another location");
                    End::Redirect { status, location: String::new() }
                }
                None => End::Undecided { reason: "the route has no action".to_owned() },
            }
        }
        Some("direct_response") => {
            let status = route.sub("direct_response").map_or(0, |it| it.number("status"));
            End::DirectResponse { status: u16::try_from(status).unwrap_or_default() }
        }
        Some("non_forwarding_action") => End::NonForwarding,
        other => End::Undecided {
            reason: format!(
                "the route has the action {:?}, which is not evaluated",
                other.unwrap_or("none")
            ),
        },
    }
}

fn forward(
    walk: &mut Walk<'_>,
    action: Msg<'_>,
    place: &str,
    matched: &str,
    seen: &Seen<'_>,
) -> End {
    let names = match action.member("cluster_specifier").as_deref() {
        Some("cluster") => vec![(action.text("cluster").to_owned(), 0)],
        Some("weighted_clusters") => action
            .sub("weighted_clusters")
            .map(|it| weighted(walk, it, Some(seen)))
            .unwrap_or_default(),
        Some("cluster_header") => {
            let header = action.text("cluster_header");
            match seen.header(header) {
                HeaderValue::Known(Some(name)) => {
                    // Envoy uses the first value.
                    let first = seen
                        .request
                        .headers
                        .iter()
                        .find(|(known, _)| *known == header.to_ascii_lowercase());
                    vec![(first.map_or(name, |(_, value)| value.clone()), 0)]
                }
                HeaderValue::Known(None) | HeaderValue::Unknown => {
                    let reason =
                        format!("the request has no header {header:?}, which names the cluster");
                    walk.doubt(&format!("{place}.cluster_header"), &reason, "a filter may add it");
                    return End::Undecided {
                        reason: format!("{reason}; the node answers with 503"),
                    };
                }
            }
        }
        other => {
            let plugin = other.unwrap_or("nothing");
            walk.doubt(&format!("{place}.{plugin}"), "an extension selects the cluster", "");
            return End::Undecided { reason: format!("{plugin} selects the cluster") };
        }
    };
    let path = rewritten_path(walk, action, place, matched, seen);
    let host = rewritten_host(walk, action, place, seen);
    End::Clusters { clusters: choose(walk, names), path, host }
}

fn rewritten_path(
    walk: &mut Walk<'_>,
    action: Msg<'_>,
    place: &str,
    matched: &str,
    seen: &Seen<'_>,
) -> Option<String> {
    let prefix = action.text("prefix_rewrite");
    if !prefix.is_empty() {
        return Some(format!("{prefix}{}", seen.path.get(matched.len()..).unwrap_or_default()));
    }
    if let Some(rewrite) = action.sub("regex_rewrite") {
        let rest = &seen.path[seen.bare_path().len()..];
        return match substitute(rewrite, seen.bare_path()) {
            Ok(path) => Some(format!("{path}{rest}")),
            Err(reason) => {
                walk.doubt(&format!("{place}.regex_rewrite"), &reason, "another path");
                None
            }
        };
    }
    for field in ["path_rewrite_policy", "path_rewrite"] {
        if action.has(field) {
            let reason = "the rewritten path is not evaluated";
            walk.doubt(&format!("{place}.{field}"), reason, "another path");
        }
    }
    None
}

fn rewritten_host(
    walk: &mut Walk<'_>,
    action: Msg<'_>,
    place: &str,
    seen: &Seen<'_>,
) -> Option<String> {
    let form = action.member("host_rewrite_specifier")?;
    match form.as_str() {
        "host_rewrite_literal" => Some(action.text(&form).to_owned()),
        "auto_host_rewrite" => action
            .wrapped_flag(&form)
            .filter(|is_set| *is_set)
            .map(|_| "the hostname of the endpoint".to_owned()),
        "host_rewrite_header" => match seen.header(action.text(&form)) {
            HeaderValue::Known(value) => value,
            HeaderValue::Unknown => None,
        },
        "host_rewrite_path_regex" => {
            let rewritten = action.sub(&form).map(|it| substitute(it, seen.bare_path()));
            rewritten.and_then(Result::ok)
        }
        other => {
            walk.doubt(
                &format!("{place}.{other}"),
                "the rewritten host is not evaluated",
                "another host",
            );
            None
        }
    }
}

/// Applies a `RegexMatchAndSubstitute`.
fn substitute(rewrite: Msg<'_>, text: &str) -> Result<String, String> {
    let pattern = rewrite.sub("pattern").map(|pattern| pattern.text("regex")).unwrap_or_default();
    replace_all(pattern, text, rewrite.text("substitution"))
}
