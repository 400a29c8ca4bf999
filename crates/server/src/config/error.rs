//! Why a configuration was refused.

use std::{fmt, path::PathBuf};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(variable) => write!(f, "{variable}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}

/// Why a configuration was refused; one line each.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}:{line}: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("{}: [{section}] is no section; sections are {known}", path.display())]
    Section { path: PathBuf, section: String, known: String },
    #[error("{}: {section}.{key} is no key; keys of [{section}] are {known}", path.display())]
    Key { path: PathBuf, section: String, key: String, known: String },
    #[error("{key} = {value} (from {from}): {rule}")]
    Value { key: String, value: String, from: Source, rule: String },
}
