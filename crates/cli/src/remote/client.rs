//! Connections to replicas.

use std::{cell::RefCell, error::Error, time::Duration};

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::{Code, Status, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::connector::{self, Channel, Security};
use crate::{address, exit::Exit, failure::Failure};

/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time for one of several servers to answer the first, cheap request.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// These times bound how long a server that vanishes during a request goes unnoticed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of response headers. Statuses carry the problems of the input.
const HEADER_LIST_BYTES_MAX: u32 = 1 << 20;

/// The replicas to which a command may connect, in the order in which they are tried.
pub(crate) struct Servers {
    list: Vec<String>,
    security: Security,
    /// The server to which the last connection was opened.
    asked: RefCell<String>,
}

impl Servers {
    /// Parses a list that is separated by commas.
    pub(crate) fn new(list: &str, security: Security) -> Self {
        let list = list.split(',').map(|server| server.trim().to_owned()).collect();
        Self { list, security, asked: RefCell::default() }
    }

    /// Returns the TLS settings.
    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the server of an attempt.
    pub(crate) fn name(&self, turn: usize) -> &str {
        &self.list[turn % self.list.len()]
    }

    /// Adds the address of the server of the last connection to a failure.
    pub(crate) fn named(&self, failure: Failure) -> Failure {
        let failure = match self.security.last_advice() {
            Some(advice) if failure.is_of_server() => of_server(&advice),
            _ => failure,
        };
        failure.at(&self.asked.borrow())
    }

    /// Connects to the server of an attempt.
    pub(crate) async fn connect(&self, turn: usize) -> Result<AdminClient<Channel>, Failure> {
        self.reach(self.name(turn)).await.map(admin)
    }

    /// Connects to a server. If there are other servers, this one must answer a request first,
    /// because a server that hangs also accepts connections.
    async fn reach(&self, server: &str) -> Result<Channel, Failure> {
        let channel = channel(server, &self.security).await?;
        server.clone_into(&mut self.asked.borrow_mut());
        if self.list.len() == 1 {
            return Ok(channel);
        }
        let mut client = admin(channel.clone());
        let version = client.get_version(pb::GetVersionRequest {});
        match tokio::time::timeout(ANSWER_TIMEOUT, version).await {
            // Any status of the server shows that it responds.
            Ok(Ok(_)) => Ok(channel),
            Ok(Err(status)) if status.source().is_none() => Ok(channel),
            Ok(Err(status)) => Err(Failure::new(format_args!(
                "the server at {server} closed the connection: {}",
                connector::advice(&status)
                    .or_else(|| self.security.last_advice())
                    .unwrap_or_else(|| root_cause(&status))
            ))),
            Err(_) => Err(Failure::new(format_args!(
                "the server at {server} accepts connections, but has not answered within {ANSWER_TIMEOUT:?}"
            ))),
        }
    }

    /// Connects to the first server that is ready.
    pub(crate) async fn connect_any(&self) -> Result<AdminClient<Channel>, Failure> {
        self.any_channel().await.map(admin)
    }

    /// Opens a connection to the first server that is ready, for any service. If none is ready, uses the
    /// first one that answers: it says why.
    pub(crate) async fn any_channel(&self) -> Result<Channel, Failure> {
        let (mut lines, mut unready) = (Vec::new(), None);
        for server in &self.list {
            match self.reach(server).await {
                Ok(channel) if self.list.len() == 1 || is_ready(&channel).await => {
                    return Ok(channel);
                }
                Ok(channel) => unready = unready.or(Some((server, channel))),
                Err(failure) => lines.extend(failure.lines),
            }
        }
        let Some((server, channel)) = unready else { return Err(Failure::lines(lines)) };
        server.clone_into(&mut self.asked.borrow_mut());
        Ok(channel)
    }
}

/// Returns whether a replica says that it is ready. A replica that has diverged from its cluster, or that
/// is starting or shutting down, is not.
async fn is_ready(channel: &Channel) -> bool {
    let mut client = HealthClient::new(channel.clone());
    let check = client.check(HealthCheckRequest::default());
    match tokio::time::timeout(ANSWER_TIMEOUT, check).await {
        Ok(Ok(response)) => response.into_inner().status() == ServingStatus::Serving,
        Ok(Err(_)) | Err(_) => false,
    }
}

pub(super) fn admin(channel: Channel) -> AdminClient<Channel> {
    AdminClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// Connects to the replica at `server`: `host:port`, or a URL.
pub(super) async fn channel(server: &str, security: &Security) -> Result<Channel, Failure> {
    if let Some(path) = address::socket(server) {
        return unix_channel(path, security).await;
    }
    let how = "set --server or CHANCERY_SERVER";
    let Some(endpoint) = address::endpoint(server) else {
        return Err(Failure::new(format_args!(
            "{server:?} is not the address of a server; {how} to HOST:PORT, such as 127.0.0.1:18001"
        )));
    };
    let link = security.of_scheme(endpoint.uri().scheme_str().unwrap_or_default(), server)?;
    let endpoint = with_settings(endpoint);
    connector::connect(&endpoint, &link).await.map_err(|error| match connector::advice(&error) {
        Some(advice) => Failure::new(format_args!("cannot connect to {server}: {advice}")),
        None => {
            let reason = root_cause(&error);
            Failure::new(format_args!(
                "cannot reach the server at {server}: {reason}; check that it is running, or {how}"
            ))
        }
    })
}

fn with_settings(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(4 << 20)
}

/// Connects to the replica at a UNIX socket on this machine (`admin.socket`).
async fn unix_channel(path: &str, security: &Security) -> Result<Channel, Failure> {
    let target = path.to_owned();
    let connector = tower::service_fn(move |_| {
        let target = target.clone();
        async move { UnixStream::connect(target).await.map(TokioIo::new) }
    });
    // The name is only the host of requests.
    let endpoint = with_settings(Endpoint::from_static("http://localhost"));
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map(|channel| security.with_token(channel)).map_err(|error| {
        let reason = root_cause(&error);
        Failure::new(format_args!(
            "cannot reach the server at unix:{path}: {reason}; check that it is running with admin.socket, and that \
             this user owns the socket"
        ))
    })
}

/// Returns the text of the innermost error, which explains the failure.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map(|error| message(*error)).unwrap_or_default()
}

/// Returns an error and its chain of sources.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source()).collect()
}

fn message(error: &dyn Error) -> String {
    let text = error.to_string();
    // The error number in `Connection refused (os error 111)` has no use for the reader.
    match text.split_once(" (os error") {
        Some((message, _)) => message.to_lowercase(),
        None => text,
    }
}

/// Returns the failure of a server that an advice about TLS describes.
fn of_server(advice: &str) -> Failure {
    Failure::of_server(advice.strip_prefix("the server ").unwrap_or(advice))
}

/// Returns the failure of a connection that broke without an answer.
fn broken(source: &(dyn Error + 'static), message_of_status: &str) -> Failure {
    if let Some(advice) = connector::advice(source) {
        return of_server(&advice);
    }
    let causes = causes(source);
    let is_silent = |error: &&(dyn Error + 'static)| {
        error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout)
    };
    if causes.iter().any(is_silent) {
        let silence = KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT;
        return Failure::of_server(format_args!(
            "could not answer: it has sent nothing for {silence:?}, although the connection is open; it may hang"
        ));
    }
    let mut reasons = vec![message_of_status.to_owned()];
    for reason in causes.into_iter().map(message) {
        // Some errors repeat the text of their source.
        if !reasons.iter().any(|told| told.contains(&reason)) {
            reasons.push(reason);
        }
    }
    reasons.retain(|reason| !reason.is_empty());
    Failure::of_server(format_args!("could not answer: {}", reasons.join(": ")))
}

/// `google.rpc.Status`, reduced to its details.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// Returns the failure that a status of the server or the connection describes.
pub(crate) fn refusal(status: &Status) -> Failure {
    let details = RpcStatus::decode(status.details()).unwrap_or_default().details;
    let problems = details.iter().find_map(|detail| {
        let ours = detail.type_url.ends_with("/chancery.admin.v1.Problems");
        ours.then(|| pb::Problems::decode(detail.value.as_slice()).ok())?
    });
    let problems = problems.unwrap_or_default();
    if !problems.not_asked.is_empty() {
        return Failure::new(status.message())
            .with_problems(code_name(status.code()), problems)
            .exiting_with(Exit::NotAllAsked);
    }
    if !problems.problems.is_empty() {
        let mut lines: Vec<String> =
            problems.problems.iter().map(chancery_admin::problem_line).collect();
        if problems.omitted > 0 {
            lines.push(format!("and {} more", problems.omitted));
        }
        return Failure::lines(lines).with_problems(code_name(status.code()), problems);
    }
    // A status from the connection has a source; a status from the server has none.
    if let Some(source) = status.source() {
        return broken(source, status.message());
    }
    let failure = match (status.code(), status.message()) {
        (Code::Unimplemented, said) => {
            let said = if said.is_empty() { String::new() } else { format!(": {said}") };
            Failure::of_server(format_args!(
                "does not know this command; check that it is the admin port (18001, unless admin.address is set) of \
                 a chancery server of release {VERSION}{said}"
            ))
        }
        (code, "") => Failure::new(format_args!("the server answered {code:?} without a reason")),
        (Code::OutOfRange, message) if message.contains("message length too large") => {
            Failure::new(format_args!(
                "the input is larger than the server accepts (admin.request_bytes_max): {message}"
            ))
        }
        (Code::Unavailable | Code::Unknown, message) => {
            Failure::new(format_args!("the server could not answer: {message}"))
        }
        (_, message) => Failure::new(message),
    };
    failure.with_problems(code_name(status.code()), pb::Problems::default())
}

/// Returns the name of a status code, as errors of the HTTP API have it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unreachable_server_is_named_with_the_flag_to_set_it() {
        let address = "127.0.0.1:1";
        let failure = channel(address, &Security::default()).await.unwrap_err();
        assert_eq!(
            failure.lines,
            [format!(
                "cannot reach the server at {address}: connection refused; check that it is running, or set \
                 --server or CHANCERY_SERVER"
            )]
        );
    }

    #[tokio::test]
    async fn invalid_address_is_rejected() {
        for server in [
            "",
            "not an address",
            "ftp://h:1",
            "https://:1",
            "http://:1",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:0",
            "127.0.0.1:99999",
            "http://127.0.0.1:99999",
            "[::1]",
        ] {
            let failure = channel(server, &Security::default()).await.unwrap_err();
            let expected = format!(
                "{server:?} is not the address of a server; set --server or CHANCERY_SERVER to HOST:PORT, such \
                 as 127.0.0.1:18001"
            );
            assert_eq!(failure.lines, [expected]);
        }
    }

    /// The error of a server that stopped during a request names the server and the time of
    /// silence.
    #[tokio::test]
    async fn silent_server_is_reported_with_name_and_duration() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let servers = Servers::new(&address, Security::default());
        let mut client = servers.connect_any().await.unwrap();
        // From here on, the paused clock advances whenever nothing else happens.
        tokio::time::pause();
        let status = client.get_version(pb::GetVersionRequest {}).await.unwrap_err();
        let expected = format!(
            "the server at {address} could not answer: it has sent nothing for 15s, although the connection \
             is open; it may hang"
        );
        assert_eq!(servers.named(refusal(&status)).lines, [expected]);
    }

    #[tokio::test]
    async fn broken_connection_is_reported_with_all_its_causes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let servers = Servers::new(&address, Security::default());
        let mut client = servers.connect_any().await.unwrap();
        let hang_up = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The client expects HTTP/2.
            std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        });
        let status = client.get_version(pb::GetVersionRequest {}).await.unwrap_err();
        hang_up.join().unwrap();
        let line = servers.named(refusal(&status)).lines.join("; ");
        assert!(line.starts_with(&format!("the server at {address} could not answer: ")), "{line}");
        assert!(!line.ends_with("http2 error") && !line.ends_with("transport error"), "{line}");
    }

    #[test]
    fn unimplemented_command_names_the_admin_port_and_the_release() {
        for (said, end) in [("", VERSION), ("x is not served here", ": x is not served here")] {
            let failure = refusal(&Status::unimplemented(said)).at("h:1");
            let start =
                "the server at h:1 does not know this command; check that it is the admin port";
            let line = &failure.lines[0];
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        }
    }
}
