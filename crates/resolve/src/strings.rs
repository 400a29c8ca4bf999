//! Conditions on texts: `StringMatcher` of Envoy and of xDS, and `RegexMatcher`.

use crate::{message::Msg, regexes::is_full_match, verdict::Verdict};

/// Returns whether a text satisfies a `StringMatcher`.
pub(crate) fn check_string(matcher: Msg<'_>, text: &str) -> Verdict {
    let ignores_case = matcher.flag("ignore_case");
    let Some(form) = matcher.member("match_pattern") else {
        return Verdict::unknown("", "the condition on the text is empty");
    };
    match form.as_str() {
        "safe_regex" => check_regex(matcher.sub(&form), text).within(&form),
        "exact" | "prefix" | "suffix" | "contains" => {
            let wanted = matcher.text(&form);
            let holds = if ignores_case {
                compare(&form, &text.to_ascii_lowercase(), &wanted.to_ascii_lowercase())
            } else {
                compare(&form, text, wanted)
            };
            let case = if ignores_case { " (without case)" } else { "" };
            Verdict::of(holds, || format!("{text:?} does not match {form} {wanted:?}{case}"))
        }
        other => Verdict::unknown(other, "an extension decides about the text"),
    }
}

/// Returns whether a text satisfies a comparison.
pub(crate) fn compare(form: &str, text: &str, wanted: &str) -> bool {
    match form {
        "prefix" => text.starts_with(wanted),
        "suffix" => text.ends_with(wanted),
        "contains" => text.contains(wanted),
        _ => text == wanted,
    }
}

/// Returns whether a `RegexMatcher` matches the whole text.
pub(crate) fn check_regex(matcher: Option<Msg<'_>>, text: &str) -> Verdict {
    let pattern = matcher.map(|matcher| matcher.text("regex")).unwrap_or_default();
    match is_full_match(pattern, text) {
        Ok(holds) => Verdict::of(holds, || {
            format!("{text:?} does not match the regular expression {pattern:?}")
        }),
        Err(reason) => Verdict::Unknown { field: String::new(), reason },
    }
}
