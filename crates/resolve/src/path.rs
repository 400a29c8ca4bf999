//! The changes of paths before routing, and the condition of a route on the path.

use crate::{
    headers::Seen, message::Msg, strings::check_regex, uri_template::check_uri_template,
    verdict::Verdict,
};

/// Removes the segments `.` and `..` of a path with a query.
pub(crate) fn without_dot_segments(path: &str) -> String {
    let (bare, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut kept: Vec<&str> = Vec::new();
    let segments: Vec<&str> = bare.split('/').skip(1).collect();
    for (at, segment) in segments.iter().enumerate() {
        let is_last = at + 1 == segments.len();
        match *segment {
            "." | ".." => {
                if *segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

/// Replaces runs of slashes in a path with a query by one slash.
pub(crate) fn with_merged_slashes(path: &str) -> String {
    let (bare, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut out = String::with_capacity(path.len());
    for c in bare.chars() {
        if c != '/' || !out.ends_with('/') {
            out.push(c);
        }
    }
    out + query
}

/// Returns whether the path satisfies a `RouteMatch`, and the part of the path that a prefix rewrite replaces.
pub(crate) fn check_path(
    matcher: Msg<'_>,
    seen: &Seen<'_>,
    ignores_parameters: bool,
) -> (Verdict, String) {
    let Some(form) = matcher.member("path_specifier") else {
        return (Verdict::unknown("", "the route has no condition on the path"), String::new());
    };
    if form == "connect_matcher" {
        let holds = seen.request.method == "CONNECT"
            || seen
                .request
                .header("upgrade")
                .is_some_and(|it| it.eq_ignore_ascii_case("connect-udp"));
        let verdict =
            Verdict::of(holds, || format!("the method {} is not CONNECT", seen.request.method));
        return (verdict, String::new());
    }
    if seen.path.is_empty() {
        let verdict = Verdict::No("CONNECT has no path, and this is no connect_matcher".to_owned());
        return (verdict, String::new());
    }
    let mut path = seen.bare_path();
    if ignores_parameters {
        path = path.split(';').next().unwrap_or_default();
    }
    let wanted = matcher.text(&form);
    let ignores_case = matcher.wrapped_flag("case_sensitive") == Some(false);
    let starts = || match path.get(..wanted.len()) {
        Some(start) if ignores_case => start.eq_ignore_ascii_case(wanted),
        Some(start) => start == wanted,
        None => false,
    };
    let holds = match form.as_str() {
        "prefix" => starts(),
        "path" => starts() && path.len() == wanted.len(),
        "path_separated_prefix" => {
            starts() && matches!(path.as_bytes().get(wanted.len()), None | Some(b'/'))
        }
        "safe_regex" => {
            return (
                check_regex(matcher.sub(&form), path).within(&form),
                seen.bare_path().to_owned(),
            );
        }
        "path_match_policy" => {
            let verdict = check_uri_template(matcher.extension(&form), seen.bare_path());
            return (verdict.within(&form), String::new());
        }
        other => {
            return (
                Verdict::unknown(other, "the condition on the path is unknown"),
                String::new(),
            );
        }
    };
    let case = if ignores_case { " (without case)" } else { "" };
    let verdict = Verdict::of(holds, || format!("{path:?} does not match {form} {wanted:?}{case}"));
    (verdict, wanted.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_normalized_before_its_query() {
        for (path, expected) in [
            ("/a/./b/../c?d/../e", "/a/c?d/../e"),
            ("/a/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/../a//b", "/a//b"),
            ("/", "/"),
        ] {
            assert_eq!(without_dot_segments(path), expected);
        }
        assert_eq!(with_merged_slashes("//a///b?c=//d"), "/a/b?c=//d");
    }
}
