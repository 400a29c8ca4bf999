//! The error of a rejected request. It becomes a gRPC status or HTTP JSON.

use chancery_admin_proto::v1 as pb;
use chancery_audit::Decision;
use chancery_model::{Expectation, NameError, Refusal};
use prost::Message;
use tonic::{
    Code, Status,
    metadata::{MetadataMap, MetadataValue},
};

/// The maximum number of problems in an HTTP answer.
const PROBLEMS_MAX: usize = 1000;
/// The maximum size of the details of a status, in bytes. Base64 turns them into 5.4 KB. Together
/// with the message, this is below the 8 KB of headers that gRPC implementations accept.
const STATUS_DETAIL_BYTES_MAX: usize = 4 << 10;
/// The maximum size in bytes of each of two parts of the details: the checked clients, and the replicas that did not
/// answer.
const STATUS_PART_BYTES_MAX: usize = 1 << 10;
/// The maximum length of the message of a status, in bytes.
const STATUS_MESSAGE_BYTES_MAX: usize = 1 << 10;

/// The error of a rejected request of the admin API.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdminError {
    /// The manifests are invalid.
    #[error("{}", problems_line(&.0.problems))]
    Input(pb::Problems),
    /// A parameter is invalid.
    #[error("{0}")]
    Parameter(String),
    /// The requested object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// No replica that has answered has the requested object. Others did not answer.
    #[error("{text}")]
    NotFoundYet {
        /// The text for the caller.
        text: String,
        /// The replicas that did not answer.
        not_asked: Vec<pb::ReplicaNotAsked>,
    },
    /// A precondition does not hold.
    #[error("{0}")]
    Precondition(String),
    /// The request or its transaction is larger than allowed.
    #[error("{0}")]
    TooLarge(String),
    /// The path does not support the method.
    #[error("{0}")]
    Method(String),
    /// The request has no credential, or an invalid one.
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller has no right to the operation, or the request comes from a web page of another origin.
    #[error("{0}")]
    Forbidden(String),
    /// The replica cannot answer now. Another replica may, or this one later. Nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// The replica does not know whether the write takes effect. A retry with the same `request_id`
    /// takes effect once.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The disk of the store is full.
    #[error("{0}")]
    Exhausted(String),
    /// The write would exceed a quota. Nothing was written.
    #[error("{0}")]
    Quota(String),
    /// The caller is over its limit of requests or writes per second, or its address failed to
    /// authenticate too often. Nothing was written.
    #[error("{text}")]
    Busy {
        /// The reason in metrics and in the audit log.
        reason: &'static str,
        /// The text for the caller.
        text: String,
    },
    /// An internal error of the server.
    #[error("{0}")]
    Internal(String),
}

impl AdminError {
    /// Returns the decision in the audit log.
    pub(crate) fn decision(&self) -> Decision {
        match self {
            Self::Input(_) => Decision::Refused("input"),
            Self::Parameter(_) => Decision::Refused("parameter"),
            Self::NotFound(_) | Self::NotFoundYet { .. } => Decision::Refused("not_found"),
            Self::Precondition(_) => Decision::Refused("precondition"),
            Self::TooLarge(_) => Decision::Refused("too_large"),
            Self::Method(_) => Decision::Refused("method"),
            Self::Unauthenticated(_) => Decision::Refused("unauthenticated"),
            Self::Forbidden(_) => Decision::Refused("forbidden"),
            Self::Unavailable(_) => Decision::Failed("unavailable"),
            Self::OutcomeUnknown(_) => Decision::Unknown("outcome_unknown"),
            Self::Quota(_) => Decision::Refused("quota"),
            Self::Busy { reason, .. } => Decision::Refused(reason),
            Self::Exhausted(_) => Decision::Failed("disk_full"),
            Self::Internal(_) => Decision::Failed("internal"),
        }
    }

    /// Returns the gRPC code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Input(_) | Self::Parameter(_) => Code::InvalidArgument,
            Self::NotFound(_) | Self::NotFoundYet { .. } => Code::NotFound,
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::TooLarge(_) | Self::Exhausted(_) | Self::Quota(_) | Self::Busy { .. } => {
                Code::ResourceExhausted
            }
            Self::Method(_) => Code::Unimplemented,
            Self::Unauthenticated(_) => Code::Unauthenticated,
            Self::Forbidden(_) => Code::PermissionDenied,
            Self::Unavailable(_) | Self::OutcomeUnknown(_) => Code::Unavailable,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// Returns the HTTP status, and the name of the gRPC code for the body.
    pub(crate) fn http(&self) -> (http::StatusCode, &'static str) {
        use http::StatusCode as S;
        match self {
            Self::Input(_) | Self::Parameter(_) => (S::BAD_REQUEST, "INVALID_ARGUMENT"),
            Self::NotFound(_) | Self::NotFoundYet { .. } => (S::NOT_FOUND, "NOT_FOUND"),
            Self::Precondition(_) => (S::CONFLICT, "FAILED_PRECONDITION"),
            Self::TooLarge(_) => (S::PAYLOAD_TOO_LARGE, "RESOURCE_EXHAUSTED"),
            Self::Exhausted(_) => (S::INSUFFICIENT_STORAGE, "RESOURCE_EXHAUSTED"),
            Self::Quota(_) | Self::Busy { .. } => (S::TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED"),
            Self::Method(_) => (S::METHOD_NOT_ALLOWED, "UNIMPLEMENTED"),
            Self::Unauthenticated(_) => (S::UNAUTHORIZED, "UNAUTHENTICATED"),
            Self::Forbidden(_) => (S::FORBIDDEN, "PERMISSION_DENIED"),
            Self::Unavailable(_) | Self::OutcomeUnknown(_) => {
                (S::SERVICE_UNAVAILABLE, "UNAVAILABLE")
            }
            Self::Internal(_) => (S::INTERNAL_SERVER_ERROR, "INTERNAL"),
        }
    }

    /// Returns the details of the status.
    fn details(&self) -> pb::Problems {
        match self {
            Self::Input(input) => input.clone(),
            Self::NotFoundYet { not_asked, .. } => {
                pb::Problems { not_asked: not_asked.clone(), ..pb::Problems::default() }
            }
            _ => pb::Problems::default(),
        }
    }

    /// Returns the error as the body of an HTTP answer.
    pub(crate) fn to_response(&self) -> pb::ErrorResponse {
        let pb::Problems { mut problems, checked_clients, not_asked, .. } = self.details();
        problems.truncate(PROBLEMS_MAX);
        let (_, code) = self.http();
        let (code, message) = (code.to_owned(), self.to_string());
        let error = pb::Error { code, message, problems, checked_clients, not_asked };
        pb::ErrorResponse { error: Some(error) }
    }
}

impl From<Vec<pb::Problem>> for AdminError {
    fn from(problems: Vec<pb::Problem>) -> Self {
        Self::Input(pb::Problems { problems, ..pb::Problems::default() })
    }
}

impl From<NameError> for AdminError {
    fn from(error: NameError) -> Self {
        Self::Parameter(error.to_string())
    }
}

impl From<Refusal> for AdminError {
    fn from(refusal: Refusal) -> Self {
        match &refusal {
            Refusal::Resource { expectation: Expectation::Present, .. } => {
                Self::NotFound(refusal.to_string())
            }
            Refusal::Quota(exceeded) => Self::Quota(exceeded.to_string()),
            _ => Self::Precondition(refusal.to_string()),
        }
    }
}

/// `google.rpc.Status`, the content of `grpc-status-details-bin`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

impl From<AdminError> for Status {
    fn from(error: AdminError) -> Self {
        let code = error.code();
        let message = cut(error.to_string(), STATUS_MESSAGE_BYTES_MAX);
        if let AdminError::Unavailable(_) = error {
            let mut metadata = MetadataMap::new();
            metadata.insert(WRITTEN, MetadataValue::from_static(WRITTEN_NO));
            return Self::with_metadata(code, message, metadata);
        }
        let details = error.details();
        if details == pb::Problems::default() {
            return Self::new(code, message);
        }
        let pb::Problems { problems, checked_clients, not_asked, .. } = details;
        let n_problems = problems.len();
        let (checked_clients, used_by_clients) = fitting(checked_clients, STATUS_PART_BYTES_MAX);
        let (not_asked, used_by_replicas) = fitting(not_asked, STATUS_PART_BYTES_MAX);
        let left = STATUS_DETAIL_BYTES_MAX - used_by_clients - used_by_replicas;
        let (problems, _) = fitting(problems, left);
        let omitted = (n_problems - problems.len()) as u64;
        let detail = pb::Problems { problems, omitted, checked_clients, not_asked };
        let any = prost_types::Any {
            type_url: "type.googleapis.com/chancery.admin.v1.Problems".to_owned(),
            value: detail.encode_to_vec(),
        };
        let status =
            RpcStatus { code: i32::from(code), message: message.clone(), details: vec![any] };
        let details = status.encode_to_vec().into();
        Self::with_details_and_metadata(code, message, details, MetadataMap::new())
    }
}

/// The trailer of a status of a request that wrote nothing.
const WRITTEN: &str = "chancery-written";
const WRITTEN_NO: &str = "no";

/// Returns whether the server says that a request with the status `UNAVAILABLE` has written
/// nothing. Otherwise the request may have written, because proxies return `UNAVAILABLE`, too.
#[must_use]
pub fn is_surely_not_written(status: &Status) -> bool {
    status.metadata().get(WRITTEN).is_some_and(|value| value == WRITTEN_NO)
}

/// Converts a problem of admission to a message.
pub(crate) fn problem(problem: chancery_admission::Problem) -> pb::Problem {
    let (line, column) = problem.position.unwrap_or_default();
    pb::Problem {
        file: problem.file,
        document: problem.document.unwrap_or_default(),
        resource: problem.resource.unwrap_or_default(),
        field_path: problem.field_path.unwrap_or_default(),
        message: problem.rule,
        line,
        column,
        rule_id: problem.id,
        fix: problem.fix,
    }
}

/// Formats a problem as one line: `web.yaml:3:7: document 2: resources[3] Cluster "web": lb_policy:
/// the rule`.
#[must_use]
pub fn problem_line(problem: &pb::Problem) -> String {
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    chancery_admission::Problem {
        file: problem.file.clone(),
        document: (problem.document > 0).then_some(problem.document),
        position: (problem.line > 0).then_some((problem.line, problem.column)),
        resource: text(&problem.resource),
        field_path: text(&problem.field_path),
        rule: problem.message.clone(),
        id: problem.rule_id.clone(),
        fix: problem.fix.clone(),
        ..chancery_admission::Problem::default()
    }
    .to_string()
}

fn problems_line(problems: &[pb::Problem]) -> String {
    match problems {
        [] => "the input was rejected".to_owned(),
        [only] => problem_line(only),
        [first, rest @ ..] => format!("{} (and {} more problems)", problem_line(first), rest.len()),
    }
}

/// Returns the first messages that fit into a number of bytes, and their size.
fn fitting<M: Message>(messages: Vec<M>, max: usize) -> (Vec<M>, usize) {
    let (mut fitting, mut used) = (Vec::new(), 0);
    for message in messages {
        let bytes = message.encoded_len() + 4;
        if used + bytes > max {
            break;
        }
        used += bytes;
        fitting.push(message);
    }
    (fitting, used)
}

/// Cuts a text to at most `max` bytes, at a character boundary.
fn cut(mut text: String, max: usize) -> String {
    if text.len() > max {
        text.truncate(text.floor_char_boundary(max));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::JsonMessage;

    fn problem(n: usize) -> pb::Problem {
        pb::Problem {
            file: "web.yaml".into(),
            document: 1,
            resource: format!("resources[{n}] Cluster \"web\""),
            field_path: "lb_policy".into(),
            message: "x".repeat(100),
            ..Default::default()
        }
    }

    #[test]
    fn status_details_contain_problems_that_fit_into_headers() {
        let status = Status::from(AdminError::from((0..100).map(problem).collect::<Vec<_>>()));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().ends_with("(and 99 more problems)"), "{}", status.message());
        assert!(status.details().len() < 5000);
        let details = RpcStatus::decode(status.details()).unwrap();
        let problems = pb::Problems::decode(details.details[0].value.as_slice()).unwrap();
        assert!(problems.problems.len() > 10);
        assert_eq!(problems.problems.len() as u64 + problems.omitted, 100);
    }

    #[test]
    fn only_unavailable_is_reported_as_not_written() {
        let says = |error: AdminError| is_surely_not_written(&Status::from(error));
        assert!(says(AdminError::Unavailable("no leader".to_owned())));
        assert!(!says(AdminError::OutcomeUnknown("not in time".to_owned())));
        assert!(!says(AdminError::Internal("broken".to_owned())));
        assert!(!is_surely_not_written(&Status::unavailable("says a proxy")));
    }

    #[test]
    fn an_http_answer_has_all_problems() {
        let error = AdminError::from((0..100).map(problem).collect::<Vec<_>>());
        let json = error.to_response().to_json();
        assert_eq!(json["error"]["code"], "INVALID_ARGUMENT");
        assert_eq!(json["error"]["problems"].as_array().unwrap().len(), 100);
        assert_eq!(json["error"]["problems"][3]["resource"], "resources[3] Cluster \"web\"");
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        assert_eq!(cut("aé".to_owned(), 2), "a…");
        assert_eq!(cut("aé".to_owned(), 3), "aé");
    }
}
