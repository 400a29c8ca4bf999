//! The failure of a command: lines for standard error, and an exit code.

use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use super::{exit::Exit, text::plain};

/// The failure of a command. Each line is printed after `error: ` or `warning: `. Without lines,
/// the reader of standard output has closed the pipe, and nothing is printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) lines: Vec<String>,
    /// Lines that are printed after `warning: `, before the other lines.
    pub(crate) warnings: Vec<String>,
    /// Lines that are printed after `note: `, after the other lines.
    pub(crate) notes: Vec<String>,
    /// The text of a failure of a server, without `the server` at its start. [`Failure::at`] adds
    /// the address of the server, which is not known where the failure is created.
    of_server: Option<String>,
    pub(crate) exit: Exit,
}

impl Failure {
    /// Creates a failure of one line.
    pub(crate) fn new(line: impl fmt::Display) -> Self {
        Self::lines([line])
    }

    /// Creates a failure of several lines.
    pub(crate) fn lines(lines: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        let lines = lines.into_iter().map(|line| plain(&line.to_string().replace('\n', "; ")));
        let (warnings, notes) = (Vec::new(), Vec::new());
        Self { lines: lines.collect(), warnings, notes, of_server: None, exit: Exit::Failed }
    }

    /// Adds notes.
    pub(crate) fn with_notes(self, notes: impl IntoIterator<Item = String>) -> Self {
        let notes = notes.into_iter().map(|note| plain(&note)).collect();
        Self { notes, ..self }
    }

    /// Adds warnings.
    pub(crate) fn with_warnings(self, warnings: impl IntoIterator<Item = String>) -> Self {
        let warnings = warnings.into_iter().map(|warning| plain(&warning)).collect();
        Self { warnings, ..self }
    }

    /// Creates the failure of a command whose work is done, but whose result needs attention.
    pub(crate) fn with_exit(exit: Exit, line: impl fmt::Display) -> Self {
        Self { exit, ..Self::new(line) }
    }

    /// Prints the failure on standard error. Returns the exit code of the command.
    pub(crate) fn report(&self) -> ExitCode {
        let mut stderr = io::stderr().lock();
        let is_error = matches!(self.exit, Exit::Failed | Exit::Usage | Exit::Findings);
        let label = if is_error { "error" } else { "warning" };
        for warning in &self.warnings {
            drop(writeln!(stderr, "warning: {warning}"));
        }
        for line in &self.lines {
            // A failure to write to standard error cannot be reported anywhere.
            drop(writeln!(stderr, "{label}: {line}"));
        }
        for note in &self.notes {
            drop(writeln!(stderr, "note: {note}"));
        }
        // Without lines, the reader of standard output has closed the pipe, which is not a failure.
        if self.lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(self.exit.code()) }
    }

    /// Creates a failure of a server, whose address [`Failure::at`] adds. `did` is the predicate of
    /// the sentence.
    pub(crate) fn of_server(did: impl fmt::Display) -> Self {
        let failure = Self::new(format_args!("the server {did}"));
        let did = failure.lines[0].strip_prefix("the server ").map(str::to_owned);
        Self { of_server: did, ..failure }
    }

    /// Returns whether this is a failure of a server without its address.
    pub(crate) fn is_of_server(&self) -> bool {
        self.of_server.is_some()
    }

    /// Adds the address of the server to a failure of a server.
    pub(crate) fn at(self, address: &str) -> Self {
        match self.of_server {
            Some(did) => Self::new(format_args!("the server at {address} {did}")),
            None => self,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::lines(Vec::<String>::new());
        }
        Self::new(format_args!("cannot write the output: {error}"))
    }
}
