//! Sinks of MCP to which the replica connects (MCP-02).
//!
//! The exchange is the same as with a sink that connects (MCP-03), but the replica is the gRPC client. The responses of
//! the session are the body of an HTTP/2 request, and the requests of the sink are the body of the HTTP/2 response.

use std::{
    convert::Infallible,
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use chancery_fanout::{End, EndCode, Fanout, StreamInfo};
use chancery_model::{
    Printable,
    wire::{len_field_len, put_len_field},
};
use chancery_net::{Activity, Backoff};
use chancery_proto::istio::mcp::v1alpha1::resource_sink_server;
use chancery_protocol::{Protocol, StreamKind};
use chancery_tls::{PortTls, Stream, host_of};
use futures::future::{AbortHandle, Abortable};
use http::{HeaderMap, Request, StatusCode, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use metrics::{Gauge, counter, gauge};
use parking_lot::Mutex;
use tokio::{net::TcpStream, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    Config,
    body::StreamBody,
    connection::Connection,
    framing::{Bounds, Frames, PREFIX_BYTES},
    grpc,
    memory_budget::MemoryBudget,
    reader::{Reader, TRIGGER},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time until the sink accepts the stream.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum time to read a status that arrived before the end of the connection.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
const NO_STATUS: &str = "no status";

/// A sink to which the replica connects.
#[derive(Debug, Clone)]
pub struct RemoteSink {
    /// The address: host and port.
    pub address: String,
    /// Whether the first message is the trigger: the collection `$triggerCollection` without resources (MCP-65).
    pub sends_trigger: bool,
    /// The certificates, if the connection uses TLS.
    pub tls: Option<PortTls>,
}

/// The reason why a stream to a sink has ended or did not begin.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    #[error("HTTP/2 failed: {}", shown(.0))]
    Http(#[from] hyper::Error),
    #[error("the sink did not accept the stream within {} s", ACCEPT_TIMEOUT.as_secs())]
    Silent,
    #[error("{0}")]
    Refused(String),
    #[error("this replica ended the stream: {0}")]
    EndedHere(String),
    #[error("the sink ended the stream: {0}")]
    EndedThere(String),
}

/// Serves a remote sink until `stop`. Connects again whenever the stream ends (MCP-66).
pub async fn serve_remote_sink(
    remote: RemoteSink,
    fanout: Fanout,
    config: Config,
    stop: CancellationToken,
) {
    let connected = gauge!("chancery_mcp_connected_sinks");
    let mut backoff = Backoff::default();
    loop {
        let begun = Instant::now();
        let stream = serve_once(&remote, &fanout, &config, &connected, &stop);
        let Err(error) = stream.await else { return };
        counter!("chancery_mcp_sink_failures_total").increment(1);
        let pause = backoff.after(begun.elapsed());
        let error = error.to_string();
        warn!(address = remote.address, error, ?pause, "no stream to a sink; connecting again");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Serves one stream. Returns `Ok` after `stop`.
async fn serve_once(
    remote: &RemoteSink,
    fanout: &Fanout,
    config: &Config,
    connected: &Gauge,
    stop: &CancellationToken,
) -> Result<(), DialError> {
    let connect = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&remote.address));
    let stream = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        stream = connect => stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
    };
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    let (stream, scheme) = match &remote.tls {
        None => (Stream::Plain(stream), "http"),
        Some(tls) => (tls.connect(host_of(&remote.address), stream).await?, "https"),
    };
    let (mut sender, http) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await?;
    let kind = StreamKind { protocol: Protocol::Mcp, type_url: None };
    let opened = fanout.open(StreamInfo { kind, peer, identity: None });
    let (sink, responses) = opened.map_err(|error| DialError::Refused(error.to_string()))?;
    let closer = sink.ender();
    let registration =
        Connection::new(Activity::new(peer), 1, fanout.refusal_places()).add(closer.clone());
    let (reader, aborted) = AbortHandle::new_pair();
    let (ended_here, ended_there) = (LastStatus::default(), LastStatus::default());
    let body = RequestBody {
        trigger: remote.sends_trigger.then(trigger),
        stream: StreamBody::new(responses, reader, registration),
        ended: ended_here.clone(),
    };
    let request = Request::post(format!(
        "{scheme}://{}/{}/EstablishResourceStream",
        remote.address,
        resource_sink_server::SERVICE_NAME
    ));
    let request = request.header(CONTENT_TYPE, "application/grpc").header("te", "trailers");
    let request = request.body(body).map_err(|error| DialError::Refused(error.to_string()))?;
    let exchange = async {
        let response = tokio::time::timeout(ACCEPT_TIMEOUT, sender.send_request(request)).await;
        let response = response.map_err(|_| DialError::Silent)??;
        check(response.status(), response.headers())?;
        info!(address = remote.address, "a stream to a sink is open");
        let _connected = Connected::new(connected);
        let encoding = grpc::encoding(response.headers());
        let body = SinkBody { body: response.into_body(), ended: ended_there.clone() };
        let frames = Frames::new(body, encoding, bounds(config));
        let bytes = counter!("chancery_xds_request_bytes_total");
        let reader = Reader::new(frames, sink, Protocol::Mcp, config, bytes);
        // The end of the session aborts the reader.
        let _aborted = Abortable::new(reader.run(), aborted).await;
        Err(match (ended_here.take(), ended_there.take()) {
            (Some(text), None) => DialError::EndedHere(text),
            (_, text) => DialError::EndedThere(text.unwrap_or_else(|| NO_STATUS.to_owned())),
        })
    };
    tokio::pin!(exchange);
    let closed = tokio::select! {
        biased;
        () = stop.cancelled() => {
            closer.end(End::new(EndCode::Unavailable, "this replica no longer serves the sink"));
            return Ok(());
        }
        ended = &mut exchange => return ended,
        closed = http => closed,
    };
    status_before(closed, exchange).await
}

/// Returns the status that ended an exchange, or else the end of its connection. A sink sends its status before it closes
/// the connection, and this replica may see both at the same time.
async fn status_before(
    closed: Result<(), hyper::Error>,
    exchange: impl Future<Output = Result<(), DialError>>,
) -> Result<(), DialError> {
    match tokio::time::timeout(STATUS_TIMEOUT, exchange).await {
        Ok(Err(status @ (DialError::Refused(_) | DialError::EndedHere(_)))) => Err(status),
        Ok(Err(DialError::EndedThere(text))) if text != NO_STATUS => {
            Err(DialError::EndedThere(text))
        }
        _ => Err(closed.map_or_else(DialError::Http, |()| {
            DialError::EndedThere("the connection was closed".to_owned())
        })),
    }
}

/// Returns the text of an error with its causes.
fn shown(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The status in the trailers of a direction, for people.
#[derive(Clone, Default)]
struct LastStatus(Arc<Mutex<Option<String>>>);

impl LastStatus {
    fn record<D>(&self, frame: &Frame<D>) {
        let status = frame.trailers_ref().and_then(tonic::Status::from_header_map);
        if let Some(status) = status {
            let text = format!("{:?}: {}", status.code(), Printable(status.message()));
            *self.0.lock() = Some(text);
        }
    }

    fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

/// Counts a stream until it is dropped.
struct Connected<'a>(&'a Gauge);

impl<'a> Connected<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Rejects a response that opens no stream: another HTTP status than 200, or a gRPC status in the headers.
fn check(status: StatusCode, headers: &HeaderMap) -> Result<(), DialError> {
    if status != StatusCode::OK {
        return Err(DialError::Refused(format!("the sink answered with HTTP {status}")));
    }
    match tonic::Status::from_header_map(headers) {
        Some(status) => Err(DialError::Refused(format!("the sink answered with {status}"))),
        None => Ok(()),
    }
}

fn bounds(config: &Config) -> Bounds {
    Bounds {
        message_bytes_max: config.request_bytes_max,
        budget: MemoryBudget::new(config.large_requests_bytes_max, config.request_bytes_max),
        timeout: config.large_request_timeout,
    }
}

/// Returns the trigger with its gRPC prefix: a message with a collection and no content.
fn trigger() -> Bytes {
    let len = u32::try_from(len_field_len(TRIGGER.len())).unwrap_or_default();
    let mut message = BytesMut::with_capacity(PREFIX_BYTES + TRIGGER.len() + 2);
    message.put_u8(0);
    message.put_u32(len);
    put_len_field(&mut message, 2, TRIGGER.as_bytes());
    message.freeze()
}

/// The requests of a sink that is the server.
struct SinkBody<B> {
    body: B,
    ended: LastStatus,
}

impl<B: Body + Unpin> Body for SinkBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            self.ended.record(frame);
        }
        Poll::Ready(frame)
    }
}

/// The messages of a source that is the client.
struct RequestBody {
    trigger: Option<Bytes>,
    stream: StreamBody,
    ended: LastStatus,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(trigger) = self.trigger.take() {
            return Poll::Ready(Some(Ok(Frame::data(trigger))));
        }
        // A client has no trailers.
        let frame = ready!(self.stream.poll_frame(cx));
        if let Some(frame) = &frame {
            self.ended.record(frame);
        }
        Poll::Ready(frame.filter(Frame::is_data).map(Ok))
    }
}
