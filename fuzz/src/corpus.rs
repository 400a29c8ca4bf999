//! The corpora: one file per target, with one input per line.
//!
//! A byte that is not printable ASCII is escaped as in a Rust string: `\n`, `\xff`. Lines that begin with `#`
//! are comments.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

/// Returns the path of a target's corpus.
fn path(target: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus")).join(format!("{target}.txt"))
}

/// Reads the corpus of a target.
///
/// # Errors
/// If the file cannot be read, or a line has an invalid escape.
pub fn corpus(target: &str) -> Result<Vec<Vec<u8>>> {
    let path = path(target);
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#'));
    let inputs = lines.map(|(n, line)| {
        unescaped(line).with_context(|| format!("{}: line {n}: invalid escape", path.display()))
    });
    inputs.collect()
}

/// Writes the corpus of a target. The comments of the old file stay, each with the input after it.
///
/// # Errors
/// If the file cannot be written.
pub fn write_corpus(target: &str, inputs: &[Vec<u8>]) -> Result<()> {
    let path = path(target);
    let old = fs::read_to_string(&path).unwrap_or_default();
    let mut kept = String::new();
    let mut is_kept = false;
    for line in old.lines() {
        let is_comment = line.starts_with('#');
        if is_comment || is_kept {
            kept.push_str(line);
            kept.push('\n');
        }
        is_kept = is_comment;
    }
    let mut lines: Vec<String> = inputs.iter().map(|input| escaped(input)).collect();
    lines.retain(|line| !kept.lines().any(|kept| kept == line));
    lines.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, kept + &text).with_context(|| format!("write {}", path.display()))
}

/// Returns an input as a line.
#[must_use]
pub fn escaped(input: &[u8]) -> String {
    // A line that begins with `#` would be a comment.
    match input.split_first() {
        Some((b'#', rest)) => format!("\\x23{}", rest.escape_ascii()),
        _ => input.escape_ascii().to_string(),
    }
}

/// Returns the input of a line; `None` if an escape is invalid.
#[must_use]
pub fn unescaped(line: &str) -> Option<Vec<u8>> {
    let mut bytes = line.bytes();
    let mut input = Vec::with_capacity(line.len());
    while let Some(byte) = bytes.next() {
        input.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte @ (b'\\' | b'\'' | b'"') => byte,
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(input)
}
