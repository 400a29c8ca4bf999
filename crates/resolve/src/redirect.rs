//! The response of a redirect.

use crate::{headers::Seen, message::Msg, regexes::replace_all, request::split_port};

/// Returns the status code of a `RedirectAction`.
pub(crate) fn status(redirect: Msg<'_>) -> u16 {
    match redirect.number("response_code") {
        1 => 302,
        2 => 303,
        3 => 307,
        4 => 308,
        _ => 301,
    }
}

/// Returns the header `location`. `matched` is the part of the path that a prefix rewrite replaces.
pub(crate) fn location(
    redirect: Msg<'_>,
    seen: &Seen<'_>,
    matched: &str,
) -> Result<String, String> {
    let scheme = match redirect.member("scheme_rewrite_specifier").as_deref() {
        Some("scheme_redirect") if !redirect.text("scheme_redirect").is_empty() => {
            redirect.text("scheme_redirect")
        }
        Some("https_redirect") if redirect.flag("https_redirect") => "https",
        _ => &seen.scheme,
    };
    let port = match redirect.number("port_redirect") {
        0 => String::new(),
        port => format!(":{port}"),
    };
    let host = match redirect.text("host_redirect") {
        "" => host(seen, scheme, !port.is_empty()),
        host => host,
    };
    let given = redirect.text("path_redirect");
    let mut path = rewritten_path(redirect, seen, matched)?;
    if !path.starts_with('/') {
        path.insert(0, '/');
    }
    if redirect.flag("strip_query") && !given.contains('?') {
        path.truncate(path.find('?').unwrap_or(path.len()));
    }
    Ok(format!("{scheme}://{host}{port}{path}"))
}

/// Returns the host of the request, without a port that does not fit the new URL.
fn host<'a>(seen: &'a Seen<'_>, scheme: &str, has_new_port: bool) -> &'a str {
    let (host, port) = split_port(&seen.authority);
    let is_default = matches!(
        (seen.forwarded_proto.as_str(), port),
        ("https", Some("443")) | ("http", Some("80"))
    );
    let is_removed = has_new_port || scheme != seen.forwarded_proto && is_default;
    if port.is_some() && is_removed { host } else { &seen.authority }
}

fn rewritten_path(redirect: Msg<'_>, seen: &Seen<'_>, matched: &str) -> Result<String, String> {
    let (bare, query) = seen.path.split_at(seen.bare_path().len());
    let path = match redirect.member("path_rewrite_specifier").as_deref() {
        Some("path_redirect") => {
            let given = redirect.text("path_redirect");
            let query = if given.contains('?') { "" } else { query };
            if given.is_empty() { seen.path.clone() } else { format!("{given}{query}") }
        }
        Some("prefix_rewrite") if !redirect.text("prefix_rewrite").is_empty() => {
            let rest = seen.path.get(matched.len()..).unwrap_or_default();
            format!("{}{rest}", redirect.text("prefix_rewrite"))
        }
        Some("regex_rewrite") => {
            let rewrite = redirect.sub("regex_rewrite");
            let pattern = rewrite.and_then(|it| it.sub("pattern")).map(|it| it.text("regex"));
            let substitution = rewrite.map(|it| it.text("substitution")).unwrap_or_default();
            let rewritten = replace_all(pattern.unwrap_or_default(), bare, substitution)?;
            // Envoy keeps the path if the result is empty.
            let rewritten = if rewritten.is_empty() { bare } else { &rewritten };
            format!("{rewritten}{query}")
        }
        Some("path_rewrite") => return Err("the rewritten path is not evaluated".to_owned()),
        _ => seen.path.clone(),
    };
    Ok(path)
}
