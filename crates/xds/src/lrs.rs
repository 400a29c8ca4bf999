//! Streams of load reports (LRS). They count as streams, and have the same limits.
//!
//! One task reads the reports of a stream. The body of the response follows the settings: it sends them
//! after the first request, and again when they change. A client that does not read the response still
//! reports, and at most one response waits for it.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use chancery_auth::RateExceeded;
use chancery_fanout::{End, EndCode, Fanout, HeldPoll, Poll as RunningPoll, limit_hit};
use chancery_load::{LoadReports, Report, ReportError, Settings};
use chancery_model::{Identity, Node, TypeUrl, types::CLUSTER};
use chancery_net::Bucket;
use futures::{FutureExt, StreamExt, future::abortable, stream};
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use metrics::Counter;
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};

use crate::{
    body::{LoadReportsBody, ResponseBody},
    caller::{Caller, RequestRate},
    connection::{Connection, PollRegistration},
    framing::{FrameError, Framed, Frames, PREFIX_BYTES},
    grpc,
    node::{NodeError, NodeReader},
    reader::ReadError,
    shared::Shared,
    until::Until,
};

/// The maximum size of a report in bytes.
pub(crate) const REPORT_BYTES_MAX: usize = 4 << 20;

/// The memory budget in bytes for the large reports of all streams.
pub(crate) const REPORTS_BYTES_MAX: usize = 32 << 20;

/// The sustained rate of reports per second on one stream. The minimum interval is a second.
const REPORTS_PER_SECOND_MAX: u32 = 10;

/// The number of reports that a stream may send at once after idle time.
const REPORTS_BURST_MAX: u32 = 100;

/// The feature of clients that support `send_all_clusters` (LRS-05).
const SENDS_ALL_CLUSTERS: &str = "envoy.lrs.supports_send_all_clusters";

/// The reason why a stream ends because of its reports.
#[derive(Debug, thiserror::Error)]
enum LrsError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("a load report of {len} bytes exceeds the limit of {max} bytes")]
    TooLong { len: usize, max: usize },
    #[error("more than {REPORTS_PER_SECOND_MAX} load reports per second")]
    Rate,
    #[error(transparent)]
    IdentityRate(#[from] RateExceeded),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("{}", .0.message)]
    Access(End),
}

impl From<FrameError> for LrsError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::TooLong { len, max } => Self::TooLong { len, max },
            error => Self::Read(error.into()),
        }
    }
}

impl From<NodeError> for LrsError {
    fn from(error: NodeError) -> Self {
        Self::Read(error.into())
    }
}

impl LrsError {
    fn code(&self) -> EndCode {
        match self {
            Self::Read(error) => error.code(),
            Self::TooLong { .. }
            | Self::Rate
            | Self::IdentityRate(_)
            | Self::Report(ReportError::TooMany) => EndCode::ResourceExhausted,
            Self::Report(ReportError::Malformed { .. }) => EndCode::InvalidArgument,
            Self::Access(end) => end.code,
        }
    }

    fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Read(error) => error.limit(),
            Self::TooLong { .. } => Some("report_bytes"),
            Self::Rate => Some("reports_per_second"),
            Self::Report(ReportError::TooMany) => Some("report_parts"),
            Self::IdentityRate(_)
            | Self::Report(ReportError::Malformed { .. })
            | Self::Access(_) => None,
        }
    }
}

/// The properties of a client that decide its responses.
#[derive(Debug)]
struct Client {
    node: Arc<Node>,
    /// Whether it supports `send_all_clusters` (LRS-05).
    supports_all: bool,
    /// Whether it follows further responses on a stream (LRS-07). grpc-go reads only the first one
    /// (LRS-08).
    follows: bool,
}

impl Client {
    fn new(node: Arc<Node>) -> Self {
        let agent = node.user_agent.split('/').next().unwrap_or_default();
        Self {
            supports_all: node.client_features.iter().any(|it| it == SENDS_ALL_CLUSTERS),
            follows: agent == "envoy",
            node,
        }
    }
}

/// Opens a stream of load reports.
pub(crate) fn open(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    reports: &LoadReports,
    timeout: Option<Duration>,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, End> {
    let poll = match shared.fanout.open_poll(connection.peer()) {
        Ok(poll) => poll,
        Err(error) => return Err(End::new(EndCode::ResourceExhausted, error.to_string())),
    };
    let config = &shared.config;
    let encoding = grpc::encoding(request.headers());
    let bounds = shared.report_bounds.clone();
    let (greet, greeted) = oneshot::channel();
    let (ended, end) = oneshot::channel();
    let reader = Reader {
        frames: Frames::new(request.into_body(), encoding, bounds),
        node: NodeReader::new(config.node_bytes_max, config.node_metadata_max),
        bucket: Bucket::new(REPORTS_PER_SECOND_MAX, REPORTS_BURST_MAX),
        reports: reports.clone(),
        bytes: shared.request_bytes.clone(),
        connection: Arc::clone(connection),
        fanout: shared.fanout.clone(),
        identity: Arc::clone(&caller.identity),
        rate: caller.rate,
    };
    let run = in_time(reader.run(greet), Until::first(timeout, caller.ends_after));
    let (run, reader) = abortable(run.map(|end| drop(ended.send(end))));
    connection.tasks.spawn(run.map(|_aborted| ()));
    let registration = connection.begin_poll();
    let state = ClientState::Unknown(greeted);
    let settings = reports.watch();
    let identity = caller.identity;
    let placement = poll.hold_placement();
    let writer =
        Writer { poll, placement, identity, registration, settings, state, end, is_over: false };
    let frames = stream::unfold(writer, Writer::next).boxed();
    Ok(grpc::open(ResponseBody::LoadReports(LoadReportsBody::new(frames, reader))))
}

/// Returns the end of the stream: that of its requests, or that of the client's timeout or credential.
async fn in_time(reader: impl Future<Output = End>, until: Option<Until>) -> End {
    let Some(Until { after, end }) = until else { return reader.await };
    tokio::time::timeout(after, reader).await.unwrap_or(end)
}

/// Reads the reports of a stream.
struct Reader<B> {
    frames: Frames<B>,
    node: NodeReader,
    bucket: Bucket,
    reports: LoadReports,
    bytes: Counter,
    connection: Arc<Connection>,
    fanout: Fanout,
    identity: Arc<Identity>,
    /// The rate of the identity. The first report counts as the opening of the stream.
    rate: Option<RequestRate>,
}

impl<B: Body<Data = Bytes> + Unpin> Reader<B> {
    /// Reads until the client closes its half of the stream or breaks a rule. Passes on the client's
    /// properties when the first request has arrived.
    async fn run(mut self, greet: oneshot::Sender<Client>) -> End {
        let peer: SocketAddr = self.connection.peer();
        match self.read(greet).await {
            Ok(()) => End::ok(),
            Err(LrsError::Access(end)) => end,
            Err(error) => {
                if !matches!(error, LrsError::Read(ReadError::Frame(_))) {
                    self.reports.count_rejected();
                }
                if let Some(limit) = error.limit() {
                    limit_hit(limit);
                }
                let end = End::new(error.code(), error.to_string());
                self.fanout.log_refusal(self.node.id(), peer, &end.message);
                end
            }
        }
    }

    async fn read(&mut self, greet: oneshot::Sender<Client>) -> Result<(), LrsError> {
        let mut greet = Some(greet);
        let mut reporter = None;
        let mut known: Option<Arc<Node>> = None;
        let mut is_first = true;
        while let Some(Framed { message, memory: _memory }) = self.frames.next().await? {
            self.bytes.increment(message.len() as u64);
            if !self.bucket.take(Instant::now(), 1) {
                return Err(LrsError::Rate);
            }
            let is_opening = std::mem::take(&mut is_first);
            if let Some(rate) = self.rate.as_ref().filter(|_| !is_opening) {
                rate.take()?;
            }
            let report = Report::new(message)?;
            let node = self.node.read(report.node())?;
            known = node.clone().or(known);
            if let Some(node) = &known {
                self.check_access(node, reporter.is_some())?;
            }
            let reporter = reporter.get_or_insert_with(|| {
                let node = node.as_ref().map_or("", |node| node.id.as_str());
                self.reports.open(self.identity.principal.as_str(), node)
            });
            if let (Some(greet), Some(node)) = (greet.take(), node) {
                // The body of the response is gone if the stream is ending.
                drop(greet.send(Client::new(node)));
                if report.is_empty() {
                    continue;
                }
            } else {
                // The client has received the first response.
                self.connection.establish();
            }
            reporter.report(report).await?;
        }
        Ok(())
    }

    /// Checks the rights of the client. One that has lost its rights since it opened the stream receives OK.
    fn check_access(&self, node: &Node, is_open: bool) -> Result<(), LrsError> {
        let checked = self.fanout.check_access(&self.identity, node, self.connection.peer());
        checked.map_err(|end| LrsError::Access(if is_open { access_changed() } else { end }))
    }
}

fn access_changed() -> End {
    End::new(EndCode::AccessChanged, "the access rules have changed; reconnect")
}

#[derive(Debug)]
enum ClientState {
    /// The first request has not arrived.
    Unknown(oneshot::Receiver<Client>),
    Known(Client),
}

/// Sends the settings to the client of a stream.
#[derive(Debug)]
struct Writer {
    /// The place of the stream, and the source of its view.
    poll: RunningPoll,
    /// Wakes the writer when the rights of the client may have changed.
    placement: HeldPoll,
    identity: Arc<Identity>,
    registration: PollRegistration,
    settings: watch::Receiver<Arc<Settings>>,
    state: ClientState,
    end: oneshot::Receiver<End>,
    is_over: bool,
}

impl Writer {
    /// Returns the next frame of the response.
    async fn next(mut self) -> Option<(Frame<Bytes>, Self)> {
        if self.is_over {
            return None;
        }
        let frame = match self.response().await {
            Ok(response) => Frame::data(framed(&response)),
            Err(end) => {
                self.is_over = true;
                if let Some(delay) = self.registration.delay(&end) {
                    delay.await;
                }
                Frame::trailers(grpc::trailers(&end))
            }
        };
        Some((frame, self))
    }

    /// Waits for the next response: for the first request, and then for changes of the settings.
    async fn response(&mut self) -> Result<Bytes, End> {
        match &mut self.state {
            ClientState::Unknown(greeted) => {
                let client = tokio::select! {
                    biased;
                    client = greeted => client.ok(),
                    () = self.registration.over() => return Err(self.registration.end()),
                };
                let Some(client) = client else { return Err(reader_end(&mut self.end).await) };
                self.state = ClientState::Known(client);
            }
            ClientState::Known(client) => {
                loop {
                    tokio::select! {
                        end = reader_end(&mut self.end) => return Err(end),
                        () = self.registration.over() => return Err(self.registration.end()),
                        () = self.placement.changed() => {
                            let view = self.poll.view(&self.identity, &client.node);
                            view.map_err(|_| access_changed())?;
                        }
                        changed = self.settings.changed() => match changed {
                            Ok(()) => break,
                            Err(_) => {
                                let text = "the replica is shutting down";
                                return Err(End::new(EndCode::Unavailable, text));
                            }
                        },
                    }
                }
                if !client.follows {
                    // The client receives OK, because nothing is wrong, and opens another stream.
                    let text = "the settings of load reports have changed; open another stream";
                    return Err(End::new(EndCode::Aged, text));
                }
            }
        }
        let ClientState::Known(client) = &self.state else { return Err(End::ok()) };
        let settings = Arc::clone(&self.settings.borrow_and_update());
        self.response_for(client, &settings)
    }

    fn response_for(&self, client: &Client, settings: &Settings) -> Result<Bytes, End> {
        let view = self.poll.view(&self.identity, &client.node)?.view;
        if !settings.needs_names(client.supports_all) {
            return Ok(settings.response(client.supports_all, std::iter::empty()));
        }
        let own = || Some(Arc::clone(&client.node));
        let clusters =
            view.map(|view| view.of_type(&TypeUrl::from_static(CLUSTER)).hiding_other_nodes(own));
        let names = clusters.iter().flat_map(|clusters| clusters.iter());
        Ok(settings.response(false, names.map(|resource| resource.name().as_str())))
    }
}

/// Waits for the end that the reader of the stream decides.
async fn reader_end(end: &mut oneshot::Receiver<End>) -> End {
    let stopped = |_| End::new(EndCode::Internal, "the reader of the stream has stopped");
    end.await.unwrap_or_else(stopped)
}

/// Returns a gRPC message.
fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    // The list of clusters is limited to much less than 4 GiB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}
