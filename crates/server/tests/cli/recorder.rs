//! A server that records the requests of commands.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpListener, runtime::Runtime, sync::watch};

use crate::support::eventually;

/// A request: its path, and its header `authorization`.
pub(crate) type Recorded = (String, Option<String>);

/// A server of gRPC over HTTP/2 that records the requests, and answers each one that it knows no method.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    requests: watch::Receiver<Vec<Recorded>>,
    /// The number of connections.
    connections: watch::Receiver<usize>,
    _runtime: Runtime,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (record, requests) = watch::channel(Vec::new());
        let (count, connections) = watch::channel(0);
        let record = Arc::new(record);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.send_modify(|n| *n += 1);
                let record = Arc::clone(&record);
                let answer = service_fn(move |request: Request<Incoming>| {
                    let header = request.headers().get("authorization");
                    let header = header.map(|value| value.to_str().unwrap().to_owned());
                    let path = request.uri().path().to_owned();
                    record.send_modify(|requests| requests.push((path, header)));
                    let response = Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", "12");
                    async move { Ok::<_, Infallible>(response.body(String::new()).unwrap()) }
                });
                let connection = http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { address, requests, connections, _runtime: runtime }
    }

    /// Returns the requests so far.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        self.requests.borrow().clone()
    }

    pub(crate) fn n_connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Waits for a request with this token.
    pub(crate) fn wait_for(&self, token: &str) {
        let expected = Some(format!("Bearer {token}"));
        let has = |(_, header): &Recorded| *header == expected;
        eventually(&format!("a request with {token}"), || self.requests().into_iter().find(has));
    }
}
