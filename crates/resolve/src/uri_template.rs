//! The condition of a route that is a URI template.

use crate::{message::Content, regexes::is_full_match, verdict::Verdict};

const TYPE: &str = "envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig";
/// The characters of a segment of a path, as in a class of a regular expression.
const SEGMENT: &str = r"a-zA-Z0-9._~%!$&'()+,;:@\-";

/// Returns whether a path without its query satisfies an extension.
pub(crate) fn check_uri_template(policy: Option<Content>, path: &str) -> Verdict {
    let Some(policy) = policy else {
        return Verdict::unknown("", "the condition on the path is empty");
    };
    let Some(config) = policy.of_type(TYPE) else {
        return Verdict::unknown("", format!("the extension {} decides", policy.short_name()));
    };
    let template = config.text("path_template");
    let matched = to_regex(template).and_then(|regex| is_full_match(&regex, path));
    match matched {
        Ok(holds) => {
            Verdict::of(holds, || format!("{path:?} does not match the template {template:?}"))
        }
        Err(reason) => Verdict::Unknown { field: String::new(), reason },
    }
}

/// Converts a template to a regular expression: `*` and `{NAME}` are one segment, `**` is any number of segments, and
/// `{NAME=PATTERN}` is the pattern.
fn to_regex(template: &str) -> Result<String, String> {
    let mut regex = String::new();
    let mut rest = template;
    while let Some(c) = rest.chars().next() {
        if c == '{' {
            let (variable, after) = rest[1..]
                .split_once('}')
                .ok_or_else(|| format!("the template {template:?} is not valid"))?;
            let pattern = variable.split_once('=').map_or("*", |(_, pattern)| pattern);
            if pattern.contains('{') {
                return Err(format!("the template {template:?} is not valid"));
            }
            regex.push_str(&to_regex(pattern)?);
            rest = after;
        } else if let Some(after) = rest.strip_prefix("**") {
            regex.push_str(&format!("[{SEGMENT}/]*"));
            rest = after;
        } else if let Some(after) = rest.strip_prefix('*') {
            regex.push_str(&format!("[{SEGMENT}]+"));
            rest = after;
        } else {
            regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
            rest = &rest[c.len_utf8()..];
        }
    }
    Ok(regex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_matches_segments() {
        let matches =
            |template: &str, path: &str| is_full_match(&to_regex(template).unwrap(), path).unwrap();
        for (template, path) in [
            ("/api/{id}/item", "/api/7/item"),
            ("/api/*/**", "/api/a/b/c"),
            ("/{a=v1/*}/x.json", "/v1/b/x.json"),
        ] {
            assert!(matches(template, path), "{template} {path}");
        }
        for (template, path) in [("/api/{id}", "/api/7/8"), ("/x.json", "/xajson")] {
            assert!(!matches(template, path), "{template} {path}");
        }
        assert!(to_regex("/{a").is_err());
    }
}
