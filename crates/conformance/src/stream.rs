//! One gRPC stream of either variant, driven by hand.
//!
//! The stream checks every response with [`Reply::check`]. It acknowledges nothing by itself.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use chancery_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    Status as ErrorDetail,
};
use prost::Message;
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};
use tonic_prost::ProstCodec;

use crate::{
    kind::Kind,
    located::requested,
    log::Log,
    outcome::{Outcome, Stop, ensure, violation},
    reply::{Reply, listed, unexpected},
};

type AsciiValue = MetadataValue<Ascii>;

/// The number of requests and responses that wait inside of a stream.
const QUEUE: usize = 64;
/// The maximum size of a response.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A variant of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variant {
    Sotw,
    Delta,
}

impl Variant {
    pub(crate) const BOTH: [Self; 2] = [Self::Sotw, Self::Delta];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sotw => "sotw",
            Self::Delta => "delta",
        }
    }

    pub(crate) fn method_prefix(self) -> &'static str {
        match self {
            Self::Sotw => "Stream",
            Self::Delta => "Delta",
        }
    }

    pub(crate) fn ads_path(self) -> String {
        let method = self.method_prefix();
        format!(
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}AggregatedResources"
        )
    }
}

/// A request of either variant. Fields that the variant does not have are ignored.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestFields<'a> {
    pub(crate) type_url: String,
    /// `resource_names` or `resource_names_subscribe`.
    pub(crate) names: &'a [&'a str],
    pub(crate) unsubscribe: &'a [&'a str],
    /// `initial_resource_versions`, by name.
    pub(crate) initial: Vec<(&'a str, String)>,
    pub(crate) version: &'a str,
    pub(crate) nonce: &'a str,
    /// `error_detail`: code and message.
    pub(crate) error: Option<(i32, &'a str)>,
    /// The node, if not the default: the node of the case in the first request, and none later.
    pub(crate) node: Option<Option<Bytes>>,
}

impl<'a> RequestFields<'a> {
    /// Creates a request for names.
    pub(crate) fn names(kind: Kind, names: &'a [&'a str]) -> Self {
        Self { type_url: kind.url(), names, ..Self::default() }
    }

    /// Creates the acknowledgment of a response.
    pub(crate) fn ack(reply: &'a Reply, names: &'a [&'a str]) -> Self {
        let (version, nonce) = (reply.version.as_str(), reply.nonce.as_str());
        Self { type_url: reply.type_url.clone(), names, version, nonce, ..Self::default() }
    }

    /// Creates the rejection of a response. `version` is the version that the client still uses.
    pub(crate) fn nack(reply: &'a Reply, names: &'a [&'a str], version: &'a str) -> Self {
        let error = Some((3, "rejected by the conformance kit"));
        Self { version, error, ..Self::ack(reply, names) }
    }
}

/// The service on which a case opens its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamService {
    /// The service of the type.
    Own,
    /// The aggregated service.
    Ads,
}

impl StreamService {
    pub(crate) const BOTH: [Self; 2] = [Self::Own, Self::Ads];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Ads => "ads",
        }
    }
}

/// Adds the prefix of a case to a name. The wildcard and the empty name stay.
pub(crate) fn full(prefix: &str, name: &str) -> String {
    if ["", "*"].contains(&name) { name.to_owned() } else { format!("{prefix}{name}") }
}

/// The settings of a stream.
pub(crate) struct Opening {
    /// The start of the names of all resources.
    pub(crate) prefix: String,
    /// The encoded node.
    pub(crate) node: Bytes,
    pub(crate) log: Log,
    /// The header `authorization` of the request.
    pub(crate) authorization: Option<AsciiValue>,
    /// The maximum time of each wait.
    pub(crate) timeout: Duration,
    /// The time without a message after which nothing more is expected.
    pub(crate) quiet: Duration,
}

enum Event {
    Reply(Box<Reply>),
    End(Status),
}

enum Requests {
    Sotw(mpsc::Sender<DiscoveryRequest>),
    Delta(mpsc::Sender<DeltaDiscoveryRequest>),
    Closed,
}

/// An open stream.
pub(crate) struct Stream {
    variant: Variant,
    requests: Requests,
    events: mpsc::Receiver<Event>,
    reader: JoinHandle<()>,
    settings: Opening,
    /// Whether the stream has sent a request, and with it the node.
    has_sent: bool,
    path: String,
    nonces: BTreeSet<String>,
    asked: BTreeSet<String>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Runs the call and passes its events on. A server may send its response headers only with its first response, so the
/// call runs beside the requests.
async fn read<Q, R>(
    channel: Channel,
    path: http::uri::PathAndQuery,
    requests: mpsc::Receiver<Q>,
    authorization: Option<AsciiValue>,
    events: mpsc::Sender<Event>,
    reply: impl Fn(R) -> Reply,
) where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut client = Grpc::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    let status = async {
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let mut requests = Request::new(ReceiverStream::new(requests));
        if let Some(value) = authorization {
            requests.metadata_mut().insert("authorization", value);
        }
        let codec = ProstCodec::<Q, R>::default();
        let mut responses = client.streaming(requests, path, codec).await?.into_inner();
        while let Some(response) = responses.message().await? {
            if events.send(Event::Reply(Box::new(reply(response)))).await.is_err() {
                break;
            }
        }
        Ok::<(), Status>(())
    };
    let status = status.await.err().unwrap_or_else(|| Status::ok("the server ended the stream"));
    drop(events.send(Event::End(status)).await);
}

impl Stream {
    pub(crate) fn open(
        settings: Opening,
        channel: Channel,
        variant: Variant,
        path: &str,
    ) -> Result<Self, Stop> {
        let Ok(uri) = path.parse() else {
            return violation("kit", "a valid path", path);
        };
        let (sender, events) = mpsc::channel(QUEUE);
        let prefix = settings.prefix.clone();
        let authorization = settings.authorization.clone();
        let (requests, reader) = match variant {
            Variant::Sotw => {
                let (requests, queue) = mpsc::channel(QUEUE);
                let reply = move |it: DiscoveryResponse| Reply::sotw(&prefix, it);
                let reader = tokio::spawn(read(channel, uri, queue, authorization, sender, reply));
                (Requests::Sotw(requests), reader)
            }
            Variant::Delta => {
                let (requests, queue) = mpsc::channel(QUEUE);
                let reply = move |it: DeltaDiscoveryResponse| Reply::delta(&prefix, it);
                let reader = tokio::spawn(read(channel, uri, queue, authorization, sender, reply));
                (Requests::Delta(requests), reader)
            }
        };
        settings.log.add(format!("open {path}"));
        Ok(Self {
            variant,
            requests,
            events,
            reader,
            settings,
            has_sent: false,
            path: path.to_owned(),
            nonces: BTreeSet::new(),
            asked: BTreeSet::new(),
        })
    }

    /// Sends a request. A stream that has ended ignores it; the next wait reports the end.
    pub(crate) async fn ask(&mut self, ask: RequestFields<'_>) {
        self.settings.log.add(shown(&ask));
        if !ask.type_url.is_empty() {
            self.asked.insert(ask.type_url.clone());
        }
        let is_first = !std::mem::replace(&mut self.has_sent, true);
        let node = ask.node.unwrap_or_else(|| is_first.then(|| self.settings.node.clone()));
        let all = |names: &[&str]| requested(names, |name| full(&self.settings.prefix, name));
        let error_detail = ask.error.map(|(code, message)| ErrorDetail {
            code,
            message: message.to_owned(),
            details: Vec::new(),
        });
        let (type_url, response_nonce) = (ask.type_url, ask.nonce.to_owned());
        match &self.requests {
            Requests::Sotw(requests) => {
                let (resource_names, resource_locators) = all(ask.names);
                let request = DiscoveryRequest {
                    version_info: ask.version.to_owned(),
                    node,
                    resource_names,
                    resource_locators,
                    type_url,
                    response_nonce,
                    error_detail,
                };
                drop(requests.send(request).await);
            }
            Requests::Delta(requests) => {
                let initial = ask.initial.into_iter();
                let (resource_names_subscribe, resource_locators_subscribe) = all(ask.names);
                let (resource_names_unsubscribe, resource_locators_unsubscribe) =
                    all(ask.unsubscribe);
                let request = DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe,
                    resource_names_unsubscribe,
                    resource_locators_subscribe,
                    resource_locators_unsubscribe,
                    initial_resource_versions: initial
                        .map(|(name, version)| (full(&self.settings.prefix, name), version))
                        .collect(),
                    response_nonce,
                    error_detail,
                };
                drop(requests.send(request).await);
            }
            Requests::Closed => {}
        }
    }

    /// Accepts responses of a type that no request names, because the method implies it.
    pub(crate) fn expect_type(&mut self, kind: Kind) {
        self.asked.insert(kind.url());
    }

    /// Returns the maximum time of each wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// Ends the client's side of the stream.
    pub(crate) fn half_close(&mut self) {
        self.settings.log.add("half-close".to_owned());
        self.requests = Requests::Closed;
    }

    /// Waits for an event, and checks it if it is a response.
    async fn event(&mut self, at_most: Duration) -> Result<Option<Event>, Stop> {
        let Ok(event) = timeout(at_most, self.events.recv()).await else { return Ok(None) };
        match event {
            Some(Event::Reply(reply)) => {
                self.settings.log.add(format!("< {reply}"));
                reply.check(&self.nonces, &self.asked)?;
                self.nonces.insert(reply.nonce.clone());
                Ok(Some(Event::Reply(reply)))
            }
            Some(Event::End(status)) => {
                self.settings.log.add(format!("< end {}", shown_status(&status)));
                Ok(Some(Event::End(status)))
            }
            None => Ok(Some(Event::End(Status::unknown("the stream has ended before")))),
        }
    }

    /// Returns the end of the case after the end of its stream.
    fn ended<T>(&self, requirement: &str, expected: &str, status: &Status) -> Result<T, Stop> {
        if status.code() == Code::Unimplemented && self.nonces.is_empty() {
            return Err(Stop::Skipped(format!("the server does not implement {}", self.path)));
        }
        violation(requirement, expected, format!("the stream ended: {}", shown_status(status)))
    }

    /// Waits for the next response.
    pub(crate) async fn next(&mut self, requirement: &str, expected: &str) -> Result<Reply, Stop> {
        match self.event(self.settings.timeout).await? {
            Some(Event::Reply(reply)) => Ok(*reply),
            Some(Event::End(status)) => self.ended(requirement, expected, &status),
            None => violation(
                requirement,
                expected,
                format!("no response within {:?}", self.settings.timeout),
            ),
        }
    }

    /// Waits for the next response, which must hold exactly these resources.
    pub(crate) async fn exactly(
        &mut self,
        requirement: &str,
        kind: Kind,
        expected: &[(&str, u32)],
    ) -> Result<Reply, Stop> {
        let text = format!("a response {}", listed(kind, expected));
        let reply = self.next(requirement, &text).await?;
        reply.exactly(requirement, kind, expected)?;
        Ok(reply)
    }

    /// Waits for the next response, which must remove exactly these names.
    pub(crate) async fn removes(
        &mut self,
        requirement: &str,
        kind: Kind,
        names: &[&str],
    ) -> Result<Reply, Stop> {
        let expected = format!("a response {} [] removed [{}]", kind.label(), names.join(" "));
        let reply = self.next(requirement, &expected).await?;
        reply.removes(requirement, kind, names)?;
        Ok(reply)
    }

    /// Acknowledges a response.
    pub(crate) async fn ack(&mut self, reply: &Reply, names: &[&str]) {
        // Delta requests list only changes of the subscription.
        let names = if self.variant == Variant::Delta { &[] } else { names };
        self.ask(RequestFields::ack(reply, names)).await;
    }

    /// Waits for the next response with exactly these resources, and acknowledges it.
    pub(crate) async fn take(
        &mut self,
        requirement: &str,
        kind: Kind,
        names: &[&str],
        expected: &[(&str, u32)],
    ) -> Result<Reply, Stop> {
        let reply = self.exactly(requirement, kind, expected).await?;
        self.ack(&reply, names).await;
        Ok(reply)
    }

    /// Fails if a response comes within the quiet time.
    pub(crate) async fn quiet(&mut self, requirement: &str, expected: &str) -> Outcome {
        match self.event(self.settings.quiet).await? {
            Some(Event::Reply(reply)) => unexpected(requirement, expected, &reply),
            Some(Event::End(status)) => self.ended(requirement, expected, &status),
            None => Ok(()),
        }
    }

    /// Returns the status if the stream ends within a time before any response.
    pub(crate) async fn ended_within(&mut self, at_most: Duration) -> Option<Status> {
        match timeout(at_most, self.events.recv()).await {
            Ok(Some(Event::End(status))) => Some(status),
            Ok(Some(Event::Reply(_)) | None) | Err(_) => None,
        }
    }

    /// Returns a response within the quiet time, if there is one.
    pub(crate) async fn maybe(&mut self, requirement: &str) -> Result<Option<Reply>, Stop> {
        match self.event(self.settings.quiet).await? {
            Some(Event::Reply(reply)) => Ok(Some(*reply)),
            Some(Event::End(status)) => self.ended(requirement, "the stream stays open", &status),
            None => Ok(None),
        }
    }

    /// Waits for the end of the stream with a status. Skips responses before it.
    pub(crate) async fn end(&mut self, requirement: &str, code: Code) -> Outcome {
        let expected = format!("the stream ends with {code:?}");
        loop {
            match self.event(self.settings.timeout).await? {
                Some(Event::Reply(_)) => {}
                Some(Event::End(status)) if status.code() == code => return Ok(()),
                Some(Event::End(status)) => return self.ended(requirement, &expected, &status),
                None => {
                    let observed = format!("the stream is open after {:?}", self.settings.timeout);
                    return ensure(requirement, false, expected, || observed);
                }
            }
        }
    }
}

fn shown(ask: &RequestFields<'_>) -> String {
    let label = Kind::of_url(&ask.type_url).map_or(ask.type_url.as_str(), |kind| kind.label());
    let mut text = format!("> {label} [{}]", ask.names.join(" "));
    if !ask.unsubscribe.is_empty() {
        text += &format!(" unsubscribe [{}]", ask.unsubscribe.join(" "));
    }
    for (name, version) in &ask.initial {
        text += &format!(" has {name} {version:?}");
    }
    for (field, value) in [("version", ask.version), ("nonce", ask.nonce)] {
        if !value.is_empty() {
            text += &format!(" {field}={value:?}");
        }
    }
    if let Some((code, message)) = ask.error {
        text += &format!(" error={code} {message:?}");
    }
    text
}

fn shown_status(status: &Status) -> String {
    format!("{:?} {:?}", status.code(), status.message())
}
