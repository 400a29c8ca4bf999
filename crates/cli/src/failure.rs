//! The failure of a command: lines for standard error, and an exit code.

use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use chancery_admin::json::JsonMessage as _;
use chancery_admin_proto::v1 as pb;
use serde_json::Value;

use super::{exit::Exit, text::plain};

/// The outcome of a command that stops early or has another exit code than 0. Each line is printed after `error: ` or `warning: `. There are no lines if
/// the reader of standard output has closed the pipe, which is not a failure, and if a command has shown changes.
#[derive(Debug, PartialEq)]
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
    /// The answer of the server that refused the request.
    refusal: Option<Box<Refusal>>,
}

/// The answer of a server that refused a request.
#[derive(Debug, PartialEq)]
struct Refusal {
    /// The name of the gRPC status code.
    code: &'static str,
    /// The problems of the input, and the clients for which it was checked.
    problems: pb::Problems,
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
        Self {
            lines: lines.collect(),
            warnings,
            notes,
            of_server: None,
            exit: Exit::Failed,
            refusal: None,
        }
    }

    /// Adds the code with which the server refused the request, and the problems of the input.
    pub(crate) fn with_problems(self, code: &'static str, problems: pb::Problems) -> Self {
        Self { refusal: Some(Box::new(Refusal { code, problems })), ..self }
    }

    /// Returns whether the work of the command is done, and only its result needs attention.
    pub(crate) fn is_warning(&self) -> bool {
        let is_done =
            !matches!(self.exit, Exit::Failed | Exit::Usage | Exit::Findings | Exit::Interrupted);
        is_done && self.refusal.is_none()
    }

    /// Returns the failure in the form of an error of the HTTP API.
    pub(crate) fn to_json(&self) -> Value {
        let refusal = self.refusal.as_deref();
        let pb::Problems { problems, checked_clients, not_asked, .. } =
            refusal.map(|refusal| refusal.problems.clone()).unwrap_or_default();
        let code = refusal.map_or("", |refusal| refusal.code).to_owned();
        let message = self.lines.join("; ");
        let error = pb::Error { code, message, problems, checked_clients, not_asked };
        pb::ErrorResponse { error: Some(error) }.to_json()
    }

    /// Replaces the exit code.
    pub(crate) fn exiting_with(self, exit: Exit) -> Self {
        Self { exit, ..self }
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
        Self::lines_with_exit(exit, [line])
    }

    /// Creates a failure with an exit code and several lines.
    pub(crate) fn lines_with_exit(
        exit: Exit,
        lines: impl IntoIterator<Item = impl fmt::Display>,
    ) -> Self {
        Self { exit, ..Self::lines(lines) }
    }

    /// Creates the end of a command that a signal ended.
    pub(crate) fn ended(exit: Exit, lines: impl IntoIterator<Item = String>) -> Self {
        Self { exit, ..Self::lines(lines) }
    }

    /// Creates the end of a command that has shown changes. It prints nothing.
    pub(crate) fn changes() -> Self {
        Self::silent(Exit::Changes)
    }

    fn silent(exit: Exit) -> Self {
        Self { exit, ..Self::lines([] as [&str; 0]) }
    }

    /// Prints the failure on standard error. Returns the exit code of the command.
    pub(crate) fn report(&self) -> ExitCode {
        let mut stderr = io::stderr().lock();
        let label = if self.is_warning() { "warning" } else { "error" };
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
        ExitCode::from(self.exit.code())
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
            return Self::silent(Exit::Success);
        }
        Self::new(format_args!("cannot write the output: {error}"))
    }
}
