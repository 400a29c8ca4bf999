//! YAML for people, without characters that could control the terminal.

use chancery_model::is_unprintable;
use serde_json::Value;

use super::failure::Failure;

/// Marks an escaped character while YAML is written: the mark is followed by eight hexadecimal
/// digits. The YAML writer puts a text with this character in double quotes, and writes the
/// character as [`MARK_WRITTEN`].
const MARK: char = '\u{ffff}';
const MARK_WRITTEN: &str = "\\uFFFF";

/// Writes JSON as YAML, with escapes for unprintable characters.
pub(crate) fn yaml(value: &Value) -> Result<String, Failure> {
    let write = |value: &Value| {
        serde_saphyr::to_string(value)
            .map_err(|error| Failure::new(format_args!("cannot write YAML: {error}")))
    };
    let mut text = write(value)?;
    if text.contains(is_odd) {
        text = write(&marked(value))?.replace(MARK_WRITTEN, "\\U");
    }
    Ok(if text.ends_with('\n') { text } else { text + "\n" })
}

/// Returns whether the YAML writer would write the character unescaped although it is unprintable.
fn is_odd(c: char) -> bool {
    is_unprintable(c) && !c.is_control()
}

/// Marks all texts that contain characters to escape, or that could be mistaken for marked texts.
fn marked(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(marked_text(text)),
        Value::Array(items) => Value::Array(items.iter().map(marked).collect()),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| (marked_text(key), marked(value));
            Value::Object(fields.iter().map(field).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn marked_text(text: &str) -> String {
    if !text.contains(|c: char| c == MARK || is_odd(c)) && !text.contains(MARK_WRITTEN) {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        if c == MARK || c == '\\' || is_odd(c) {
            out.push_str(&format!("{MARK}{:08X}", u32::from(c)))
        } else {
            out.push(c)
        }
    }
    out
}
