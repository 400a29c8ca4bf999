//! How a command ends badly: lines for the standard error, and an exit code.

use std::fmt;

/// A command that did not do what it was asked. Each line is printed after `error: `; without
/// lines, the reader of the output has gone, and there is nobody to tell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) lines: Vec<String>,
}

impl Failure {
    /// A failure of one line.
    pub(crate) fn new(line: impl fmt::Display) -> Self {
        Self { lines: vec![line.to_string().replace('\n', "; ")] }
    }

    /// A failure of several lines.
    pub(crate) fn lines(lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        Self { lines: lines.into_iter().map(|line| line.to_string().replace('\n', "; ")).collect() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self { lines: Vec::new() };
        }
        Self::new(format_args!("cannot write the output: {error}"))
    }
}
