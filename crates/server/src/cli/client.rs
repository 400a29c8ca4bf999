//! The connection to a replica.

use std::time::Duration;

use chancery_proto::admin::v1::{self as pb, admin_client::AdminClient};
use prost::Message;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use super::failure::Failure;

/// How long the connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one of several servers may take to answer the first question, which costs it nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that vanishes in the middle of a request is noticed after these.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest list of headers taken: statuses carry what was wrong with the input.
const HEADER_LIST_BYTES_MAX: u32 = 1 << 20;

/// The replicas that a command may talk to, in the order in which they are tried.
pub(crate) struct Servers(Vec<String>);

impl Servers {
    /// Reads a list with commas.
    pub(crate) fn new(list: &str) -> Self {
        Self(list.split(',').map(|server| server.trim().to_owned()).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whose turn it is.
    pub(crate) fn name(&self, turn: usize) -> &str {
        &self.0[turn % self.0.len()]
    }

    /// Connects to one of them, in turn.
    pub(crate) async fn connect(&self, turn: usize) -> Result<AdminClient<Channel>, Failure> {
        self.reach(self.name(turn)).await.map(admin)
    }

    /// Connects to a server. If there are others, it has to answer something before anything is asked of it:
    /// one that hangs takes connections too.
    async fn reach(&self, server: &str) -> Result<Channel, Failure> {
        let channel = channel(server).await?;
        if self.0.len() == 1 {
            return Ok(channel);
        }
        let mut client = admin(channel.clone());
        let version = client.get_version(pb::GetVersionRequest {});
        match tokio::time::timeout(ANSWER_TIMEOUT, version).await {
            // Whatever it says, it is there.
            Ok(Ok(_)) => Ok(channel),
            Ok(Err(status)) if std::error::Error::source(&status).is_none() => Ok(channel),
            Ok(Err(status)) => Err(Failure::new(format_args!(
                "the server at {server} has hung up: {}",
                root_cause(&status)
            ))),
            Err(_) => Err(Failure::new(format_args!(
                "the server at {server} takes connections, but has not answered within {ANSWER_TIMEOUT:?}"
            ))),
        }
    }

    /// Connects to the first of them that answers.
    pub(crate) async fn connect_any(&self) -> Result<AdminClient<Channel>, Failure> {
        self.any_channel().await.map(admin)
    }

    /// The same connection, for another service.
    pub(crate) async fn any_channel(&self) -> Result<Channel, Failure> {
        let mut lines = Vec::new();
        for server in &self.0 {
            match self.reach(server).await {
                Ok(channel) => return Ok(channel),
                Err(failure) => lines.extend(failure.lines),
            }
        }
        Err(Failure { lines })
    }
}

fn admin(channel: Channel) -> AdminClient<Channel> {
    AdminClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// Connects to the replica at `server`: `host:port`, or a URL.
async fn channel(server: &str) -> Result<Channel, Failure> {
    let url = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
    let how = "set --server or CHANCERY_SERVER";
    let endpoint = Endpoint::from_shared(url)
        .ok()
        .filter(|endpoint| endpoint.uri().scheme_str() == Some("http"))
        .filter(|endpoint| endpoint.uri().host().is_some_and(|host| !host.is_empty()));
    let Some(endpoint) = endpoint else {
        return Err(Failure::new(format_args!(
            "{server:?} is not the address of a server: {how} to host:port"
        )));
    };
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(4 << 20)
        .connect()
        .await
        .map_err(|error| {
            let reason = root_cause(&error);
            Failure::new(format_args!(
                "cannot reach the server at {server}: {reason} (is it running? {how})"
            ))
        })
}

/// The innermost error: it is the one that says what happened.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    let text = error.to_string();
    // `Connection refused (os error 111)`: the number helps nobody.
    match text.split_once(" (os error") {
        Some((message, _)) => message.to_lowercase(),
        None => text,
    }
}

/// `google.rpc.Status`, of which only the details matter here.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// What the server refused, in its words.
pub(crate) fn refusal(status: &Status) -> Failure {
    let details = RpcStatus::decode(status.details()).unwrap_or_default().details;
    let problems = details.iter().find_map(|detail| {
        let ours = detail.type_url.ends_with("/chancery.admin.v1.Problems");
        ours.then(|| pb::Problems::decode(detail.value.as_slice()).ok())?
    });
    if let Some(problems) = problems.filter(|problems| !problems.problems.is_empty()) {
        let mut lines: Vec<String> =
            problems.problems.iter().map(chancery_admin::problem_line).collect();
        if problems.omitted > 0 {
            lines.push(format!("and {} more", problems.omitted));
        }
        return Failure::lines(lines);
    }
    match (status.code(), status.message()) {
        (Code::Unimplemented, "") => Failure::new("the server does not know this command"),
        (code, "") => Failure::new(format_args!("the server answered {code:?} without a reason")),
        (Code::OutOfRange, message) if message.contains("message length too large") => {
            Failure::new(format_args!(
                "the input is larger than the server takes at once (admin.request_bytes_max): {message}"
            ))
        }
        (Code::Unavailable | Code::Unknown, message) => {
            Failure::new(format_args!("the server could not answer: {message}"))
        }
        (_, message) => Failure::new(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_can_not_be_reached_is_named_with_the_way_to_set_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let failure = channel(&address).await.unwrap_err();
        assert_eq!(
            failure.lines,
            [format!(
                "cannot reach the server at {address}: connection refused (is it running? set --server or \
                 CHANCERY_SERVER)"
            )]
        );
    }

    #[tokio::test]
    async fn an_address_that_is_none_is_told() {
        for server in ["", "not an address", "https://h:1", "http://:1"] {
            let failure = channel(server).await.unwrap_err();
            assert!(failure.lines[0].contains("is not the address of a server"), "{failure:?}");
        }
    }
}
