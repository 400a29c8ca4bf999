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
    body::{ResponseBody, StreamBody},
    connection::Connection,
    framing::Frames,
    grpc, lrs,
    reader::Reader,
    rest,
    shared::Shared,
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

    fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let kind = self.shared.methods.get(request.uri().path());
        let is_report = self.shared.methods.is_load_reports(request.uri().path());
        if !grpc::is_grpc(request.headers()) {
            // SVC-26: a discovery method with the wrong content type gets a distinct status.
            let path = request.uri().path();
            return match kind.is_some() || is_report {
                true => rest::refuse(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "a gRPC method needs the content type application/grpc",
                ),
                false => rest::refuse(
                    StatusCode::NOT_FOUND,
                    &format!(
                        "{path:?} is not served here; REST paths look like /v3/discovery:clusters"
                    ),
                ),
            };
        }
        if request.version() != Version::HTTP_2 {
            return rest::refuse(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2");
        }
        if request.method() != Method::POST {
            return rest::refuse(StatusCode::METHOD_NOT_ALLOWED, "gRPC methods accept POST only");
        }
        if is_report && let Some(reports) = &self.shared.config.load_reports {
            return match self.check(&request) {
                Ok(timeout) => lrs::open(&self.shared, &self.connection, reports, timeout, request),
                Err(end) => grpc::reject(&end),
            };
        }
        let Some(kind) = kind else {
            let text = format!("{} is not served here", request.uri().path());
            return grpc::reject(&End::new(EndCode::Unimplemented, text));
        };
        let timeout = match self.check(&request) {
            Ok(timeout) => timeout,
            Err(end) => return grpc::reject(&end),
        };
        let info = StreamInfo { kind: kind.clone(), peer: self.connection.peer() };
        let protocol = info.kind.protocol;
        let (sink, responses) = match self.shared.fanout.open(info) {
            Ok(ends) => ends,
            Err(error) => {
                return grpc::reject(&End::new(EndCode::ResourceExhausted, error.to_string()));
            }
        };
        let closer = sink.ender();
        let registration = self.connection.add(closer.clone());
        let encoding = grpc::encoding(request.headers());
        let config = &self.shared.config;
        let frames = Frames::new(request.into_body(), encoding, self.shared.bounds.clone());
        let bytes = self.shared.request_bytes.clone();
        let reader =
            Reader::new(frames, sink, protocol, config, bytes, self.connection.peer()).run();
        // The end of the stream aborts the reader and its timeout.
        let (reader, handle) = abortable(in_time(reader, timeout, closer));
        // Aborted or finished, the reader has nothing more to read.
        self.connection.tasks.spawn(reader.map(|_aborted| ()));
        grpc::open(ResponseBody::Stream(Box::new(StreamBody::new(responses, handle, registration))))
    }

    /// Checks whether a stream may be opened, and returns its timeout.
    fn check(&self, request: &Request<Incoming>) -> Result<Option<Duration>, End> {
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

/// Runs the reader of a stream. Ends the stream when the client's timeout has expired.
async fn in_time(
    reader: impl Future<Output = ()>,
    timeout: Option<Duration>,
    closer: StreamCloser,
) {
    let Some(timeout) = timeout else { return reader.await };
    if tokio::time::timeout(timeout, reader).await.is_err() {
        let text = format!("the grpc-timeout of {} s has expired", timeout.as_secs_f64());
        closer.end(End::new(EndCode::DeadlineExceeded, text));
    }
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, Pin<Box<dyn Future<Output = Answer> + Send>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        match self.shared.methods.poll(request.uri().path()) {
            Some(type_url) if !grpc::is_grpc(request.headers()) => {
                let (shared, connection) = (Arc::clone(&self.shared), Arc::clone(&self.connection));
                let (rate, type_url) = (Arc::clone(&self.poll_rate), type_url.clone());
                let answer = rest::answer(shared, connection, rate, type_url, request);
                Either::Right(Box::pin(answer.map(Ok)))
            }
            _ => Either::Left(ready(Ok(self.answer(request)))),
        }
    }
}
