//! How a command ends badly: lines for the standard error, and an exit code.

use std::fmt;

/// A command that did not do what it was asked. Each line is printed after `error: `; without
/// lines, the reader of the output has gone, and there is nobody to tell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) lines: Vec<String>,
    /// Lines that are printed after `warning: `, before the others.
    pub(crate) warnings: Vec<String>,
    /// The one line, without `the server` before it: what a server did whose address is not known where it
    /// was seen.
    of_server: Option<String>,
    /// The exit code of the command.
    pub(crate) code: u8,
}

/// The command was refused or failed.
const FAILED: u8 = 1;
/// The write was done, but it concerns no session of the replica.
pub(crate) const NOBODY_ASKED: u8 = 3;
/// The write was done, but it is not known whether all sessions have it: sessions left before they answered, or
/// there are other replicas, whose sessions were not asked.
pub(crate) const NOT_ALL_ASKED: u8 = 4;

impl Failure {
    /// A failure of one line.
    pub(crate) fn new(line: impl fmt::Display) -> Self {
        Self::lines([line])
    }

    /// A failure of several lines.
    pub(crate) fn lines(lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let lines =
            lines.into_iter().map(|line| super::plain(&line.to_string().replace('\n', "; ")));
        Self { lines: lines.collect(), warnings: Vec::new(), of_server: None, code: FAILED }
    }

    /// The same, with what else is odd.
    pub(crate) fn with_warnings(self, warnings: impl IntoIterator<Item = String>) -> Self {
        let warnings = warnings.into_iter().map(|warning| super::plain(&warning)).collect();
        Self { warnings, ..self }
    }

    /// A command that has done what it was asked, and has something to say about it.
    pub(crate) fn with_code(code: u8, line: impl fmt::Display) -> Self {
        Self { code, ..Self::new(line) }
    }

    /// The word before each line.
    pub(crate) fn label(&self) -> &'static str {
        if self.code == FAILED { "error" } else { "warning" }
    }

    /// What a server did, to be told with its address.
    pub(crate) fn of_server(did: impl fmt::Display) -> Self {
        let failure = Self::new(format_args!("the server {did}"));
        let did = failure.lines[0].strip_prefix("the server ").map(str::to_owned);
        Self { of_server: did, ..failure }
    }

    /// The same, of the server at `address`, if it is of one.
    pub(crate) fn at(self, address: &str) -> Self {
        match self.of_server {
            Some(did) => Self::new(format_args!("the server at {address} {did}")),
            None => self,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::lines(Vec::<String>::new());
        }
        Self::new(format_args!("cannot write the output: {error}"))
    }
}
