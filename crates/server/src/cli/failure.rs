//! The failure of a command: lines for standard error, and an exit code.

use std::fmt;

/// The failure of a command. Each line is printed after `error: ` or `warning: `. Without lines,
/// the reader of standard output has closed the pipe, and nothing is printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) lines: Vec<String>,
    /// Lines that are printed after `warning: `, before the other lines.
    pub(crate) warnings: Vec<String>,
    /// The text of a failure of a server, without `the server` at its start. [`Failure::at`] adds
    /// the address of the server, which is not known where the failure is created.
    of_server: Option<String>,
    /// The exit code of the command.
    pub(crate) code: u8,
}

/// The exit code of a command that was rejected or failed.
const FAILED: u8 = 1;
/// The exit code of a write that concerns no session of the replica.
pub(crate) const NOBODY_ASKED: u8 = 3;
/// The exit code of a write of which it is unknown whether all sessions have it. Either sessions
/// ended before they answered, or the cluster has other replicas, whose sessions were not asked.
pub(crate) const NOT_ALL_ASKED: u8 = 4;

impl Failure {
    /// Creates a failure of one line.
    pub(crate) fn new(line: impl fmt::Display) -> Self {
        Self::lines([line])
    }

    /// Creates a failure of several lines.
    pub(crate) fn lines(lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let lines =
            lines.into_iter().map(|line| super::plain(&line.to_string().replace('\n', "; ")));
        Self { lines: lines.collect(), warnings: Vec::new(), of_server: None, code: FAILED }
    }

    /// Adds warnings.
    pub(crate) fn with_warnings(self, warnings: impl IntoIterator<Item = String>) -> Self {
        let warnings = warnings.into_iter().map(|warning| super::plain(&warning)).collect();
        Self { warnings, ..self }
    }

    /// Creates the failure of a command whose work is done, but whose result needs attention.
    pub(crate) fn with_code(code: u8, line: impl fmt::Display) -> Self {
        Self { code, ..Self::new(line) }
    }

    /// The word before each line.
    pub(crate) fn label(&self) -> &'static str {
        if self.code == FAILED { "error" } else { "warning" }
    }

    /// Creates a failure of a server, whose address [`Failure::at`] adds. `did` is the predicate of
    /// the sentence.
    pub(crate) fn of_server(did: impl fmt::Display) -> Self {
        let failure = Self::new(format_args!("the server {did}"));
        let did = failure.lines[0].strip_prefix("the server ").map(str::to_owned);
        Self { of_server: did, ..failure }
    }

    /// Adds the address of the server to a failure of a server.
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
