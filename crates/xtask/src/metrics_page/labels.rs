//! The labels of the metrics, from the macros `counter!`, `gauge!`, `histogram!` and `sample!` in the code.
//!
//! A macro names its metric in the first argument, or takes it from the parameter of a closure such as
//! `let of = |name| counter!(name, "type" => label);`. Then the calls `of("chancery_…")` name the metrics.

use std::collections::{BTreeMap, BTreeSet};

use super::queries::is_name;

const MACROS: [&str; 4] = ["counter!(", "gauge!(", "histogram!(", "sample!("];

/// Adds the labels of the metrics that a file records to `labels`.
pub(super) fn collect(text: &str, labels: &mut BTreeMap<String, BTreeSet<String>>) {
    for start in MACROS.iter().flat_map(|name| text.match_indices(name)).filter_map(|(at, name)| {
        let is_other = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        (!is_other).then_some(at + name.len())
    }) {
        let arguments = arguments(&text[start..]);
        let Some((metric, rest)) = arguments.split_first() else { continue };
        let found: BTreeSet<String> = rest
            .iter()
            .filter_map(|argument| literal(argument.split_once("=>")?.0))
            .map(str::to_owned)
            .collect();
        let metrics = match literal(metric) {
            Some(metric) => vec![metric],
            None => closure(&text[..start]).map_or_else(Vec::new, |name| calls(text, name)),
        };
        for metric in metrics.into_iter().filter(|metric| is_name(metric)) {
            labels.entry(metric.to_owned()).or_default().extend(found.iter().cloned());
        }
    }
}

/// Splits the arguments of a call whose opening parenthesis precedes `text`.
fn arguments(text: &str) -> Vec<&str> {
    let mut arguments = Vec::new();
    let (mut depth, mut start, mut is_literal) = (0_usize, 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => is_literal = !is_literal,
            _ if is_literal => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth > 0 => depth -= 1,
            ',' | ')' if depth == 0 => {
                arguments.push(text[start..at].trim());
                start = at + 1;
                if c == ')' {
                    break;
                }
            }
            _ => {}
        }
    }
    arguments.retain(|argument| !argument.is_empty());
    arguments
}

/// Returns the content of a string literal.
fn literal(text: &str) -> Option<&str> {
    text.trim().strip_prefix('"')?.strip_suffix('"')
}

/// Returns the name of the closure whose body begins at the end of `text`: `let NAME = |…|`.
fn closure(text: &str) -> Option<&str> {
    let (_, last) = text.rsplit_once("let ")?;
    let (name, rest) = last.split_once('=')?;
    (rest.trim_start().starts_with('|') && rest.matches(';').count() == 0).then(|| name.trim())
}

/// Returns the metrics that the calls of a closure name in their first argument.
fn calls<'a>(text: &'a str, closure: &str) -> Vec<&'a str> {
    let call = format!("{closure}(");
    text.match_indices(&call)
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        .filter_map(|(at, call)| {
            let literal = text[at + call.len()..].trim_start().strip_prefix('"')?;
            literal.split('"').next().filter(|name| is_name(name))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> BTreeMap<String, BTreeSet<String>> {
        let mut labels = BTreeMap::new();
        collect(text, &mut labels);
        labels
    }

    #[test]
    fn labels_are_read_from_macros_and_closures() {
        let labels = of("
            gauge!(\"chancery_a_plain\").set(\"x => y\".len());
            let result = |result| counter!(\"chancery_a_b_total\", \"port\" => port.label(\"(\"), \"result\" => result);
            let of = |name: &'static str| {
                counter!(name, \"type\" => label)
            };
            (of(\"chancery_a_c_total\"), of(
                \"chancery_a_d_total\"), proof(\"chancery_a_e_total\"));
            sample!(\"process_x\", \"of\" => y, 1.0);
            describe_counter!(\"chancery_a_f_total\", \"help\" => x);
            counter!(\"chancery_a_b_total\", &labels);");
        let shown: Vec<String> = labels
            .iter()
            .map(|(metric, labels)| {
                format!("{metric} {}", labels.iter().cloned().collect::<Vec<_>>().join(","))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "chancery_a_b_total port,result",
                "chancery_a_c_total type",
                "chancery_a_d_total type",
                "chancery_a_plain ",
                "process_x of",
            ]
        );
    }
}
