//! Trees of conditions: `xds.type.matcher.v3.Matcher`.

use crate::{
    message::{Content, Msg},
    strings::check_string,
    verdict::Verdict,
};

/// The maximum number of nested matchers and predicates.
const LEVELS_MAX: usize = 32;

/// The value of an input.
pub(crate) enum Input {
    /// The value; `None` if the input has none.
    Known(Option<String>),
    /// The value is not known, for this reason.
    Unknown(String),
}

/// The result of a matcher.
pub(crate) enum Outcome {
    /// The matcher selects an action.
    Action(Content),
    /// The matcher selects nothing.
    None,
    /// The matcher is not decided.
    Unknown { field: String, reason: String },
}

impl Outcome {
    fn unknown(field: &str, reason: impl Into<String>) -> Self {
        Self::Unknown { field: field.to_owned(), reason: reason.into() }
    }

    fn within(self, outer: &str) -> Self {
        match self {
            Self::Unknown { field, reason } => {
                Self::Unknown { field: format!("{outer}.{field}"), reason }
            }
            known => known,
        }
    }
}

/// Returns the value of an input by its type.
type Inputs<'a> = &'a dyn Fn(&Content) -> Input;

/// Evaluates a matcher.
pub(crate) fn evaluate(matcher: Msg<'_>, inputs: Inputs<'_>) -> Outcome {
    evaluate_at(matcher, inputs, 0)
}

fn evaluate_at(matcher: Msg<'_>, inputs: Inputs<'_>, level: usize) -> Outcome {
    if level >= LEVELS_MAX {
        return Outcome::unknown("matcher", "the matcher is nested too deeply");
    }
    let selected = match (matcher.sub("matcher_list"), matcher.sub("matcher_tree")) {
        (Some(list), _) => evaluate_list(list, inputs, level).within("matcher_list"),
        (_, Some(tree)) => evaluate_tree(tree, inputs, level).within("matcher_tree"),
        _ => Outcome::None,
    };
    match (selected, matcher.sub("on_no_match")) {
        (Outcome::None, Some(action)) => act(action, inputs, level).within("on_no_match"),
        (selected, _) => selected,
    }
}

fn evaluate_list(list: Msg<'_>, inputs: Inputs<'_>, level: usize) -> Outcome {
    for (index, one) in list.list("matchers").enumerate() {
        let field = format!("matchers[{index}]");
        let Some(predicate) = one.sub("predicate") else { continue };
        match check_predicate(predicate, inputs, level + 1) {
            Verdict::Yes => {
                let Some(action) = one.sub("on_match") else { continue };
                return act(action, inputs, level).within(&field);
            }
            Verdict::No(_) => {}
            Verdict::Unknown { field: inner, reason } => {
                return Outcome::unknown(&format!("{field}.predicate.{inner}"), reason);
            }
        }
    }
    Outcome::None
}

fn evaluate_tree(tree: Msg<'_>, inputs: Inputs<'_>, level: usize) -> Outcome {
    let value = match read(tree, inputs) {
        Ok(Some(value)) => value,
        Ok(None) => return Outcome::None,
        Err(reason) => return Outcome::unknown("input", reason),
    };
    let Some(form) = tree.member("tree_type") else { return Outcome::None };
    let entries = tree.sub(&form).map(|map| map.entries("map")).unwrap_or_default();
    let matches = |key: &str| match form.as_str() {
        "exact_match_map" => value == key,
        _ => value.starts_with(key),
    };
    if form == "custom_match" {
        return Outcome::unknown(&form, "an extension decides");
    }
    let longest =
        entries.into_iter().filter(|(key, _)| matches(key)).max_by_key(|(key, _)| key.len());
    match longest {
        Some((key, action)) => act(action, inputs, level).within(&format!("{form}[{key:?}]")),
        None => Outcome::None,
    }
}

/// Returns the result of an `OnMatch`.
fn act(action: Msg<'_>, inputs: Inputs<'_>, level: usize) -> Outcome {
    if action.flag("keep_matching") {
        return Outcome::unknown("keep_matching", "matchers that continue are not evaluated");
    }
    if let Some(inner) = action.sub("matcher") {
        return match evaluate_at(inner, inputs, level + 1) {
            Outcome::None => Outcome::unknown(
                "matcher",
                "a nested matcher selects nothing; versions of Envoy differ",
            ),
            outcome => outcome.within("matcher"),
        };
    }
    action.extension("action").map_or(Outcome::None, Outcome::Action)
}

fn read(message: Msg<'_>, inputs: Inputs<'_>) -> Result<Option<String>, String> {
    let Some(input) = message.extension("input") else {
        return Err("the input is missing".to_owned());
    };
    match inputs(&input) {
        Input::Known(value) => Ok(value),
        Input::Unknown(reason) => Err(reason),
    }
}

fn check_predicate(predicate: Msg<'_>, inputs: Inputs<'_>, level: usize) -> Verdict {
    if level >= LEVELS_MAX {
        return Verdict::unknown("", "the predicate is nested too deeply");
    }
    let Some(form) = predicate.member("match_type") else {
        return Verdict::unknown("", "the predicate is empty");
    };
    let Some(inner) = predicate.sub(&form) else { return Verdict::unknown(&form, "it is empty") };
    let parts = inner.list("predicate").map(|part| check_predicate(part, inputs, level + 1));
    let verdict = match form.as_str() {
        "and_matcher" => Verdict::all(parts),
        "or_matcher" => Verdict::any(parts),
        "not_matcher" => check_predicate(inner, inputs, level + 1)
            .inverted(|| "the inverted predicate holds".to_owned()),
        _ => check_single(inner, inputs),
    };
    verdict.within(&form)
}

fn check_single(predicate: Msg<'_>, inputs: Inputs<'_>) -> Verdict {
    let value = match read(predicate, inputs) {
        Ok(value) => value,
        Err(reason) => return Verdict::unknown("input", reason),
    };
    match (predicate.sub("value_match"), value) {
        (Some(matcher), Some(value)) => check_string(matcher, &value).within("value_match"),
        (Some(_), None) => Verdict::No("the input has no value".to_owned()),
        (None, _) => Verdict::unknown("custom_match", "an extension decides"),
    }
}
