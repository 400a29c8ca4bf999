//! JSON values as YAML.

use serde_json::Value;

/// The maximum length of a value in flow style on a line of its own.
const FLOW_MAX: usize = 90;

/// Returns a value on one line.
pub(crate) fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| format!("{}: {}", string(name), flow(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns whether a value fits on one line, in time that does not depend on its size.
pub(crate) fn is_short(value: &Value) -> bool {
    /// Takes at most the length of the value from what is left.
    fn take(value: &Value, left: &mut usize) -> bool {
        let own = match value {
            Value::String(text) => text.len() + 1,
            Value::Array(_) | Value::Object(_) => 2,
            _ => 1,
        };
        let Some(rest) = left.checked_sub(own) else { return false };
        *left = rest;
        match value {
            Value::Array(items) => items.iter().all(|item| take(item, left)),
            Value::Object(fields) => fields.iter().all(|(name, value)| {
                *left = left.saturating_sub(name.len());
                take(value, left)
            }),
            _ => true,
        }
    }
    take(value, &mut { FLOW_MAX }) && block("", value).len() == 1
}

/// Returns the lines of a value that follows `head`: `name: ` or `- `. The first line starts with the head.
pub(crate) fn block(head: &str, value: &Value) -> Vec<String> {
    block_within(FLOW_MAX, head, value)
}

/// Returns the lines of a value, each with one field.
#[must_use]
pub fn field_lines(value: &Value) -> Vec<String> {
    block_within(0, "", value)
}

/// Returns the lines of a value. Lists and objects of at most `flow_max` bytes are on one line.
fn block_within(flow_max: usize, head: &str, value: &Value) -> Vec<String> {
    let on_one_line = flow(value);
    let fields = match value {
        Value::Object(fields) if !fields.is_empty() => fields,
        Value::Array(items) if !items.is_empty() && head.len() + on_one_line.len() > flow_max => {
            let items = items.iter().flat_map(|item| block_within(flow_max, "- ", item));
            return headed(head, items.collect());
        }
        Value::String(text) if text.trim_end().contains('\n') => {
            let lines = text.trim_end_matches('\n').lines().map(|line| format!("  {line}"));
            let head = format!("{head}{}", literal(text));
            return [head].into_iter().chain(lines).collect();
        }
        _ => return vec![format!("{head}{on_one_line}")],
    };
    if head.len() + on_one_line.len() <= flow_max {
        return vec![format!("{head}{on_one_line}")];
    }
    let lines = fields
        .iter()
        .flat_map(|(name, value)| block_within(flow_max, &format!("{}: ", string(name)), value));
    headed(head, lines.collect())
}

/// Returns the mark of a text in literal style.
pub(crate) fn literal(text: &str) -> &'static str {
    if text.ends_with('\n') { "|" } else { "|-" }
}

/// Puts a head before lines: an item begins on the line of its mark, and a field on the next one.
fn headed(head: &str, lines: Vec<String>) -> Vec<String> {
    if head == "- " {
        let lines = lines.into_iter().enumerate();
        return lines
            .map(|(at, line)| format!("{}{line}", if at == 0 { "- " } else { "  " }))
            .collect();
    }
    let lines =
        lines.into_iter().map(|line| if head.is_empty() { line } else { format!("  {line}") });
    let head = Some(head.trim_end().to_owned()).filter(|head| !head.is_empty());
    head.into_iter().chain(lines).collect()
}

/// Returns a string as a plain scalar, if YAML reads that as the same string, and else in double quotes.
pub(crate) fn string(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./@:".contains(c);
    let starts_as_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || "/_".contains(c));
    let is_reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    let is_word = starts_as_word && !text.ends_with(':') && !is_reserved || is_measure(text);
    if is_word && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

/// Returns whether a text is a duration, or an IPv4 address with or without a port.
fn is_measure(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && (text.strip_suffix('s').is_some_and(|number| number.parse::<f64>().is_ok())
            || text.split('.').count() == 4)
}
