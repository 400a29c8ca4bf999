//! Words and names for output.

use std::{
    env,
    io::{self, IsTerminal},
};

use chancery_model::{Printable, TypeUrl, is_unprintable, types};

/// Returns the first alias of a type, its message name, or the whole name of a collection.
pub(crate) fn short_type(type_url: &str) -> String {
    let Ok(url) = TypeUrl::new(type_url) else { return type_url.to_owned() };
    type_alias(type_url).unwrap_or_else(|| url.shown_name()).to_owned()
}

/// Returns the first alias of a type, if it has one.
pub(crate) fn type_alias(type_url: &str) -> Option<&'static str> {
    let type_url = TypeUrl::new(type_url).ok()?;
    types::properties(&type_url).aliases.first().copied()
}

/// Returns the priority of an assignment as text. The initial assignment of a new store has the
/// lowest priority.
pub(crate) fn priority(priority: i64) -> String {
    if priority == i64::MIN { "lowest".to_owned() } else { priority.to_string() }
}

/// Returns a number with a noun: `1 node`, `2 nodes`.
pub(crate) fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Returns whether the output has colors: on a terminal, unless `NO_COLOR` is set (no-color.org).
pub(crate) fn has_colors() -> bool {
    io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns foreign text as one line, with escapes for characters that could control the terminal.
pub(crate) fn plain(text: &str) -> String {
    Printable(text).to_string()
}

/// Escapes unprintable characters in JSON. They occur only in strings.
pub(crate) fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_unprintable(c) {
            out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")))
        } else {
            out.push(c)
        }
    }
    out
}

/// Returns labels as text: `a=1,b=2`.
pub(crate) fn labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let labels: Vec<String> =
        labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(",")
}

/// Returns the advice that names the known word nearest to an unknown one. Returns an empty text if none is near.
pub(crate) fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    // Shorter words allow fewer edits.
    let most = (given.chars().count() / 3).clamp(1, 3);
    let edits = |word: &str| strsim::damerau_levenshtein(&given.to_lowercase(), word);
    let nearest = known.into_iter().map(|word| (edits(word), word)).min();
    match nearest {
        Some((edits, word)) if edits <= most => format!("; did you mean {word:?}?"),
        _ => String::new(),
    }
}
