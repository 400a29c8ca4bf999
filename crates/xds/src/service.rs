//! The handling of HTTP requests: opens a stream, or rejects the request.

use std::{convert::Infallible, future::Ready, sync::Arc, time::Duration};

use chancery_fanout::{End, EndCode, Fanout, StreamCloser, StreamInfo, limit_hit};
use futures::{FutureExt, future::abortable};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use metrics::Counter;

use crate::{
    Config,
    body::{ResponseBody, StreamBody},
    connection::Connection,
    framing::{Bounds, Frames},
    grpc,
    methods::Methods,
    reader::Reader,
};

/// The state that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) fanout: Fanout,
    pub(crate) methods: Methods,
    pub(crate) request_bytes: Counter,
    /// The bounds for the requests of every stream.
    pub(crate) bounds: Bounds,
}

/// The service of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
}

impl Service {
    pub(crate) fn new(shared: Arc<Shared>, connection: Arc<Connection>) -> Self {
        Self { shared, connection }
    }

    fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let kind = self.shared.methods.get(request.uri().path());
        if !grpc::is_grpc(request.headers()) {
            // SVC-26: a discovery method with the wrong content type gets a distinct status.
            return grpc::not_grpc(match kind {
                Some(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
                None => StatusCode::NOT_FOUND,
            });
        }
        if request.method() != Method::POST {
            return grpc::not_grpc(StatusCode::METHOD_NOT_ALLOWED);
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
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        std::future::ready(Ok(self.answer(request)))
    }
}
