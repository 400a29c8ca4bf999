//! The handling of HTTP requests: opens a stream, answers a poll, or rejects the request.

use std::{convert::Infallible, pin::Pin, sync::Arc, time::Duration};

use chancery_fanout::{End, EndCode, StreamCloser, StreamInfo, limit_hit};
use chancery_net::Bucket;
use futures::{
    FutureExt,
    future::{Either, Ready, abortable, ready},
};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use parking_lot::Mutex;

use crate::{
    body::{DelayedEnd, ResponseBody, StreamBody},
    caller::Caller,
    connection::Connection,
    drain::DRAINED,
    framing::Frames,
    grpc, lrs,
    reader::Reader,
    refusal_delays::{DELAY_MAX, POLL_DELAY_MAX},
    rest,
    shared::Shared,
    until::Until,
};

/// The service of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    /// The limit for the polls of the connection.
    poll_rate: Arc<Mutex<Bucket>>,
}

impl Service {
    pub(crate) fn new(shared: Arc<Shared>, connection: Arc<Connection>) -> Self {
        let config = &shared.config;
        let rate = Bucket::new(config.requests_per_second_max, config.requests_burst_max);
        Self { poll_rate: Arc::new(Mutex::new(rate)), shared, connection }
    }

    fn answer(&self, request: Request<Incoming>, caller: Caller) -> Response<ResponseBody> {
        let kind = self.shared.methods.get(request.uri().path());
        let is_report = self.shared.methods.is_load_reports(request.uri().path());
        if !grpc::is_grpc(request.headers()) {
            // SVC-26: a discovery method with the wrong content type gets a distinct status.
            let path = request.uri().path();
            return if kind.is_some() || is_report {
                rest::refuse(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "a gRPC method needs the content type application/grpc",
                )
            } else {
                rest::refuse(
                    StatusCode::NOT_FOUND,
                    &format!(
                        "{path:?} is not served here; REST paths look like /v3/discovery:clusters"
                    ),
                )
            };
        }
        if request.version() != Version::HTTP_2 {
            return rest::refuse(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2");
        }
        if request.method() != Method::POST {
            return rest::refuse(StatusCode::METHOD_NOT_ALLOWED, "gRPC methods accept POST only");
        }
        if is_report && let Some(reports) = &self.shared.config.load_reports {
            let opened = self.check(&request).and_then(|timeout| {
                lrs::open(&self.shared, &self.connection, reports, timeout, caller, request)
            });
            return opened.unwrap_or_else(|end| self.refuse(end));
        }
        let Some(kind) = kind else {
            let text = format!("{} is not served here", request.uri().path());
            return self.refuse(End::new(EndCode::Unimplemented, text));
        };
        let timeout = match self.check(&request) {
            Ok(timeout) => timeout,
            Err(end) => return self.refuse(end),
        };
        let Caller { identity, ends_after, rate } = caller;
        let (peer, identity) = (self.connection.peer(), Some(identity));
        let info = StreamInfo { kind: kind.clone(), peer, identity };
        let protocol = info.kind.protocol;
        let (sink, responses) = match self.shared.fanout.open(info) {
            Ok(ends) => ends,
            Err(error) => return self.refuse(error.into()),
        };
        let closer = sink.ender();
        let registration = self.connection.add(closer.clone());
        let encoding = grpc::encoding(request.headers());
        let config = &self.shared.config;
        let frames = Frames::new(request.into_body(), encoding, self.shared.bounds.clone());
        let bytes = self.shared.request_bytes.clone();
        let reader = Reader::new(frames, sink, protocol, config, bytes).limited(rate);
        let reader = reader.run();
        // The end of the stream aborts the reader and its timeout.
        let until = Until::first(timeout, ends_after);
        let (reader, handle) = abortable(in_time(reader, until, closer));
        // Aborted or finished, the reader has nothing more to read.
        self.connection.tasks.spawn(reader.map(|_aborted| ()));
        grpc::open(ResponseBody::Stream(Box::new(StreamBody::new(responses, handle, registration))))
    }

    /// Returns the response that refuses a stream before it is opened. The status may have a delay.
    fn refuse(&self, end: End) -> Response<ResponseBody> {
        let Self { shared, connection, .. } = self;
        shared.fanout.log_refusal("", connection.peer(), &end.message);
        match connection.delay_unopened(end.code, DELAY_MAX) {
            Some(delay) => grpc::open(ResponseBody::Refused(Box::new(DelayedEnd::new(delay, end)))),
            None => grpc::reject(&end),
        }
    }

    /// Returns the response to a poll, after a delay if it refuses the poll.
    async fn delayed(&self, response: Response<ResponseBody>) -> Response<ResponseBody> {
        let connection = &self.connection;
        if response.status().is_client_error() {
            let code = EndCode::InvalidArgument;
            if let Some(delay) = connection.delay_unopened(code, POLL_DELAY_MAX) {
                delay.await;
            }
        }
        response
    }

    /// Returns whether an operator drains the replica. Clients may open streams until GOAWAY arrives.
    fn is_drained(&self) -> bool {
        self.shared.fanout.drain_orders().get().is_some()
    }

    /// Checks whether a stream may be opened, and returns its timeout.
    fn check(&self, request: &Request<Incoming>) -> Result<Option<Duration>, End> {
        if self.is_drained() {
            return Err(End::new(EndCode::Unavailable, DRAINED));
        }
        let config = &self.shared.config;
        let bytes = grpc::header_list_bytes(request);
        let max = usize::try_from(config.header_list_bytes_max).unwrap_or(usize::MAX);
        if bytes > max {
            limit_hit("header_list_bytes");
            let text = format!(
                "the request's headers have {bytes} bytes, at most {max} are allowed \
                 (header_list_bytes_max)"
            );
            return Err(End::new(EndCode::ResourceExhausted, text));
        }
        let max = usize::try_from(config.streams_per_connection_max).unwrap_or(usize::MAX);
        if self.connection.n_streams() >= max {
            limit_hit("streams_per_connection");
            let text = format!(
                "this connection already has {max} streams (streams_per_connection_max); use \
                 aggregated discovery or another connection"
            );
            return Err(End::new(EndCode::ResourceExhausted, text));
        }
        grpc::timeout(request.headers())
            .map_err(|error| End::new(EndCode::InvalidArgument, error.to_string()))
    }
}

type Answer = Result<Response<ResponseBody>, Infallible>;

/// Runs the reader of a stream, and ends the stream in time.
async fn in_time(reader: impl Future<Output = ()>, until: Option<Until>, closer: StreamCloser) {
    let Some(Until { after, end }) = until else { return reader.await };
    if tokio::time::timeout(after, reader).await.is_err() {
        closer.end(end);
    }
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, Pin<Box<dyn Future<Output = Answer> + Send>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let is_poll = self.shared.methods.poll(request.uri().path()).is_some()
            && !grpc::is_grpc(request.headers());
        match self.shared.auth() {
            None if !is_poll => {
                let caller = Caller::unrestricted(&self.connection);
                Either::Left(ready(Ok(self.answer(request, caller))))
            }
            _ => Either::Right(Box::pin(self.clone().authenticated(request).map(Ok))),
        }
    }
}

impl Service {
    /// Answers a request after its client is authenticated. Every method and path goes through here, unless access
    /// rules do not apply.
    async fn authenticated(self, request: Request<Incoming>) -> Response<ResponseBody> {
        let is_grpc = grpc::is_grpc(request.headers());
        let caller = match self.shared.auth() {
            None => Ok(Caller::unrestricted(&self.connection)),
            Some(auth) => Caller::of(&self.shared, auth, &self.connection, &request).await,
        };
        let caller = match caller {
            Ok(caller) => caller,
            Err(error) if is_grpc => {
                let code = if error.is_limit() {
                    EndCode::ResourceExhausted
                } else {
                    EndCode::Unauthenticated
                };
                return self.refuse(End::new(code, error.to_string()));
            }
            Err(error) => {
                let text = error.to_string();
                self.shared.fanout.log_refusal("", self.connection.peer(), &text);
                let response = if error.is_limit() {
                    rest::refuse(StatusCode::TOO_MANY_REQUESTS, &text)
                } else {
                    rest::unauthenticated(&text)
                };
                return self.delayed(response).await;
            }
        };
        match self.shared.methods.poll(request.uri().path()) {
            Some(_) if !is_grpc && self.is_drained() => {
                rest::refuse(StatusCode::SERVICE_UNAVAILABLE, DRAINED)
            }
            Some(type_url) if !is_grpc => {
                let type_url = type_url.clone();
                let Self { shared, connection, poll_rate } = &self;
                let (shared, connection) = (Arc::clone(shared), Arc::clone(connection));
                let poll_rate = Arc::clone(poll_rate);
                let response =
                    rest::answer(shared, connection, poll_rate, type_url, caller, request).await;
                self.delayed(response).await
            }
            _ => self.answer(request, caller),
        }
    }
}
