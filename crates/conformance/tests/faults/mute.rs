//! A server that accepts everything and serves nothing.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use chancery_conformance::{Adapter, Publishing, State};
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use serde_json::Value;
use tokio::net::TcpListener;

/// An adapter that publishes nothing.
pub(crate) struct Ignore;

impl Adapter for Ignore {
    fn publish<'a>(&'a self, _: &'a State) -> Publishing<'a> {
        Box::pin(async { Ok(()) })
    }
}

/// An adapter that has lost the server.
pub(crate) struct Lost;

impl Adapter for Lost {
    fn publish<'a>(&'a self, _: &'a State) -> Publishing<'a> {
        Box::pin(async { Err("connection refused".to_owned()) })
    }
}

/// Starts a server whose streams stay open without a message, and whose polls are answered without resources.
pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let connection = Builder::new(TokioExecutor::new());
                drop(connection.serve_connection(TokioIo::new(stream), service_fn(answer)).await);
            });
        }
    });
    address
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let content_type = request.headers().get("content-type").cloned();
    if let Some(value) =
        content_type.filter(|value| value.as_bytes().starts_with(b"application/grpc"))
    {
        let silence = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let mut response = Response::new(StreamBody::new(silence).boxed_unsync());
        response.headers_mut().insert("content-type", value);
        return Ok(response);
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let (status, body) = polled(&head.method, head.uri.path(), &body);
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Returns the right status, without resources.
fn polled(method: &Method, path: &str, body: &[u8]) -> (StatusCode, &'static str) {
    let Ok(poll) = serde_json::from_slice::<Value>(body) else {
        let is_post = method == Method::POST;
        let status = if is_post { StatusCode::BAD_REQUEST } else { StatusCode::METHOD_NOT_ALLOWED };
        return (status, "");
    };
    let contradicts = poll["type_url"].as_str().is_some_and(|url| !url.ends_with(".Cluster"));
    if !["/v3/discovery:clusters", "/v3/discovery:endpoints"].contains(&path) {
        (StatusCode::NOT_FOUND, "")
    } else if contradicts {
        (StatusCode::BAD_REQUEST, "")
    } else if poll["version_info"] == "1" {
        (StatusCode::NOT_MODIFIED, "")
    } else {
        (StatusCode::OK, r#"{"version_info": "1", "resources": []}"#)
    }
}
