//! The attempts of a write that did not succeed: what they say about its outcome, and where a retry may succeed.

use chancery_admin::{is_surely_not_written, problem_line};
use chancery_admin_proto::v1 as pb;
use tonic::{Code, Status};

use super::{checked_clients::clients_lines, client::refusal};
use crate::failure::Failure;

/// An attempt that did not succeed.
pub(super) struct Refused {
    pub(super) failure: Failure,
    pub(super) written: Written,
    pub(super) again: Again,
}

/// Whether a failed attempt may have been written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The request did not reach the server, or the server says that it wrote nothing.
    No,
    /// The request was sent, and its outcome is unknown.
    Unknown,
}

/// The servers at which a retry may succeed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Any server, because the connection broke or could not be opened.
    Anywhere,
    /// Another server, because this one cannot write.
    Elsewhere,
    /// No server, because the write was rejected.
    Nowhere,
}

impl Refused {
    /// Returns the refusal of an input.
    pub(super) fn input(response: &pb::WriteResponse) -> Self {
        let problems = pb::Problems {
            problems: response.problems.clone(),
            checked_clients: response.checked_clients.clone(),
            ..pb::Problems::default()
        };
        let failure = Failure::lines(problem_lines(&response.problems))
            .with_notes(clients_lines(response))
            .with_problems("INVALID_ARGUMENT", problems);
        Self { failure, written: Written::No, again: Again::Nowhere }
    }
}

impl From<&Status> for Refused {
    fn from(status: &Status) -> Self {
        // A status from the connection has a source; a status from the server has none.
        let said = std::error::Error::source(status).is_none();
        let (written, again) = match status.code() {
            Code::Unavailable if said && is_surely_not_written(status) => {
                (Written::No, Again::Elsewhere)
            }
            // The request ID makes it safe to send the write again, even to the same server.
            Code::Unavailable if said => (Written::Unknown, Again::Anywhere),
            Code::Unavailable | Code::Unknown | Code::Cancelled if !said => {
                (Written::Unknown, Again::Anywhere)
            }
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
                if said =>
            {
                (Written::No, Again::Nowhere)
            }
            _ => (Written::Unknown, Again::Nowhere),
        };
        Self { failure: refusal(status), written, again }
    }
}

/// The number of problems that are printed.
const PROBLEMS_SHOWN_MAX: usize = 20;

/// Returns a line for each of the first problems, and the number of the others.
pub(super) fn problem_lines(problems: &[pb::Problem]) -> Vec<String> {
    let mut lines: Vec<String> =
        problems.iter().take(PROBLEMS_SHOWN_MAX).map(problem_line).collect();
    match problems.len().saturating_sub(PROBLEMS_SHOWN_MAX) {
        0 => {}
        n => lines.push(format!("and {n} more")),
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The note says why a rule of gRPC clients applies.
    #[test]
    fn refused_input_names_the_clients_for_which_it_was_checked() {
        let refused = Refused::input(&pb::WriteResponse {
            problems: vec![pb::Problem { message: "a rule".into(), ..Default::default() }],
            checked_clients: vec![pb::CheckedClients {
                scope: "mesh".into(),
                profiles: vec!["grpc-go@1.85".into()],
                source: "connected".into(),
                replicas_not_asked: 2,
            }],
            ..Default::default()
        });
        assert_eq!(refused.failure.lines, ["a rule"]);
        let json = refused.failure.to_json();
        assert_eq!(json["error"]["checked_clients"][0]["scope"], "mesh", "{json}");
        assert_eq!(
            refused.failure.notes,
            [
                "scope \"mesh\" was checked for the connected clients grpc-go@1.85; the clients of 2 \
                 other replicas are not known"
            ]
        );
    }
}
