//! Errors of the configuration.

use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
};

use chancery_model::{has_private_key, is_unprintable};
use toml::Value;

use super::{users::without_user, validation::REDACTED};

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The default of the key.
    Default,
    /// A file, and the line of the key in it.
    File(PathBuf, usize),
    /// The variable of this name.
    Environment(String),
    /// The flag of this name.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::File(path, line) => write!(f, "{}:{line}", shown(path)),
            Self::Environment(variable) => write!(f, "{variable}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Returns a path as text, in quotes if its start or end would otherwise be unclear.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let is_clear = |c: char| !c.is_whitespace() && c != '"' && !is_unprintable(c);
    if !text.is_empty() && text.chars().all(is_clear) { text } else { format!("{text:?}") }
}

/// Returns `text`, or a mark if it contains a private key.
pub(crate) fn without_private_key(text: &str) -> Cow<'_, str> {
    if has_private_key(text.as_bytes()) { "[redacted private key]".into() } else { text.into() }
}

/// An error of the configuration, shown on one line.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts of the errors name each value")]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}", shown(path))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}:{line}: {}", shown(path), without_private_key(message))]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("{}:{line}: [{}] is not a section; {hint}", shown(path), without_private_key(section))]
    Section { path: PathBuf, line: usize, section: String, hint: String },
    #[error("{}:{line}: {section}.{} is not a key; {hint}", shown(path), without_private_key(key))]
    Key { path: PathBuf, line: usize, section: String, key: String, hint: String },
    #[error("{key} = {value} (from {from}): {rule}")]
    Value { key: String, value: String, from: Source, rule: String },
}

/// The maximum length of a value in an error. The middle of a longer value is not shown.
const VALUE_CHARS_MAX: usize = 1000;

/// The key of the external validator, whose arguments may be secret.
const COMMAND: &str = "validation.external_command";

/// Returns the value of a configuration key as text of at most [`VALUE_CHARS_MAX`] characters. Redacts private keys,
/// users of addresses, and arguments of commands.
fn shown_value(key: &str, value: &Value) -> String {
    let text = match value {
        Value::Array(words) if key == COMMAND => {
            let words = words.iter().map(|word| match word {
                // The first item may contain arguments by mistake.
                Value::String(text) => text.split_whitespace().next().unwrap_or_default(),
                _ => REDACTED,
            });
            without_arguments(words.map(|word| format!("{word:?}")))
        }
        Value::String(line) if key == COMMAND => {
            without_arguments(line.split_whitespace().map(|word| format!("{word:?}")))
        }
        // A value of another type, or of the whole section, may contain the command.
        _ if COMMAND.starts_with(key) => REDACTED.to_owned(),
        _ => value.to_string(),
    };
    let text = without_user(&without_private_key(&text));
    let half = VALUE_CHARS_MAX / 2;
    let Some((start, _)) = text.char_indices().nth(half) else { return text };
    match text.char_indices().nth_back(half - 1) {
        Some((end, _)) if end > start => format!("{}…{}", &text[..start], &text[end..]),
        _ => text,
    }
}

/// Returns a command with marks instead of its arguments.
fn without_arguments(words: impl Iterator<Item = String>) -> String {
    let shown = words.enumerate().map(|(at, word)| match at {
        0 => word,
        _ => format!("{REDACTED:?}"),
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(", "))
}

impl ConfigError {
    /// Creates the error of a value that breaks a rule.
    pub(crate) fn value(key: &str, value: &Value, from: Source, rule: String) -> Self {
        let rule = without_user(&rule);
        Self::Value { key: key.to_owned(), value: shown_value(key, value), from, rule }
    }

    /// Returns the file and the line of the problem, if it is in a file.
    pub fn place(&self) -> Option<(&Path, Option<usize>)> {
        match self {
            Self::Read { path, .. } => Some((path.as_path(), None)),
            Self::Syntax { path, line, .. }
            | Self::Section { path, line, .. }
            | Self::Key { path, line, .. } => Some((path.as_path(), Some(*line))),
            Self::Value { from: Source::File(path, line), .. } => {
                Some((path.as_path(), Some(*line)))
            }
            Self::Value { .. } => None,
        }
    }

    /// Returns the name of the key, if the problem concerns one.
    pub fn key(&self) -> Option<String> {
        match self {
            Self::Read { .. } | Self::Syntax { .. } => None,
            Self::Section { section, .. } => Some(without_private_key(section).into_owned()),
            Self::Key { section, key, .. } => {
                Some(format!("{section}.{}", without_private_key(key)))
            }
            Self::Value { key, .. } => Some(key.clone()),
        }
    }
}
