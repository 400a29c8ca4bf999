//! A client of REST-JSON polling.

use std::fmt;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

use crate::{
    ctx::Ctx,
    kind::Kind,
    outcome::{Stop, violation},
    transport::HttpVersion,
};

/// The maximum size of a response.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// The response to a poll.
#[derive(Debug, Clone)]
pub(crate) struct Polled {
    pub(crate) status: StatusCode,
    pub(crate) content_type: String,
    pub(crate) body: Bytes,
    prefix: String,
}

impl fmt::Display for Polled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        let start: String = body.chars().take(300).collect();
        write!(f, "{} {start:?}", self.status)
    }
}

impl Polled {
    /// Returns the JSON of the body.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns a field, in either spelling of proto3 JSON.
    pub(crate) fn text(&self, snake: &str, camel: &str) -> String {
        let json = self.json();
        json.get(snake).or(json.get(camel)).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub(crate) fn version(&self) -> String {
        self.text("version_info", "versionInfo")
    }

    /// Returns the resources by name, with their generations.
    pub(crate) fn resources(&self, kind: Kind) -> Vec<(String, Option<u32>)> {
        let json = self.json();
        let resources = json["resources"].as_array().cloned().unwrap_or_default();
        let mut found: Vec<_> = resources
            .into_iter()
            .map(|mut resource| {
                let url = resource.as_object_mut().and_then(|fields| fields.remove("@type"));
                if url != Some(Value::from(kind.url())) {
                    return (format!("a resource of type {url:?}"), None);
                }
                let message = kind.read_json(resource);
                let bytes =
                    message.map(|it: DynamicMessage| it.encode_to_vec()).unwrap_or_default();
                kind.identify(&self.prefix, &bytes).unwrap_or_default()
            })
            .collect();
        found.sort();
        found
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Poll<'a> {
    pub(crate) path: &'a str,
    pub(crate) method: Method,
    pub(crate) body: String,
    pub(crate) content_type: bool,
    pub(crate) is_http2: bool,
}

impl<'a> Poll<'a> {
    /// Creates a poll for resources by name.
    pub(crate) fn new(ctx: &Ctx, kind: Kind, names: &[&str], version: &str) -> Self {
        let names: Vec<String> = names.iter().map(|name| ctx.full(name)).collect();
        Self::with(
            kind,
            json!({
                "version_info": version,
                "resource_names": names,
                "node": {"id": ctx.node_id(), "cluster": "conformance"},
            }),
        )
    }

    pub(crate) fn with(kind: Kind, body: Value) -> Self {
        let path = kind.rest_path().unwrap_or_default();
        Self {
            path,
            method: Method::POST,
            body: body.to_string(),
            content_type: true,
            is_http2: false,
        }
    }
}

/// Sends a poll on a connection of its own.
pub(crate) async fn send(ctx: &Ctx, poll: Poll<'_>) -> Result<Polled, Stop> {
    ctx.log.add(format!("> {} {} {}", poll.method, poll.path, poll.body));
    let answered = tokio::time::timeout(ctx.target.timeout, exchange(ctx, poll)).await;
    match answered {
        Ok(Ok(polled)) => {
            ctx.log.add(format!("< {polled}"));
            Ok(polled)
        }
        Ok(Err(error)) => violation("REST-01", "a response", error),
        Err(_) => {
            violation("REST-01", "a response", format!("none within {:?}", ctx.target.timeout))
        }
    }
}

async fn exchange(ctx: &Ctx, poll: Poll<'_>) -> Result<Polled, String> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let transport = &ctx.target.transport;
    let version = if poll.is_http2 { HttpVersion::Http2 } else { HttpVersion::Http1 };
    let connected = transport.connect(&ctx.target.rest, version).await;
    let io = TokioIo::new(connected.map_err(|error| text(&error))?);
    let mut request = http::Request::builder().method(poll.method);
    if let Some(authorization) = transport.authorization() {
        request = request.header("authorization", authorization);
    }
    if poll.content_type {
        request = request.header("content-type", "application/json");
    }
    let body = Full::new(Bytes::from(poll.body));
    let response = if poll.is_http2 {
        let uri = format!("{}://{}{}", transport.scheme(), ctx.target.rest, poll.path);
        let request = request.uri(uri).body(body).map_err(|error| text(&error))?;
        let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
        let (mut sender, connection) = connected.map_err(|error| text(&error))?;
        tokio::spawn(connection);
        sender.send_request(request).await
    } else {
        let request = request.uri(poll.path).header("host", &ctx.target.rest);
        let request = request.body(body).map_err(|error| text(&error))?;
        let connected = hyper::client::conn::http1::handshake(io).await;
        let (mut sender, connection) = connected.map_err(|error| text(&error))?;
        tokio::spawn(connection);
        sender.send_request(request).await
    };
    let (head, body) = response.map_err(|error| text(&error))?.into_parts();
    let body =
        Limited::new(body, RESPONSE_BYTES_MAX).collect().await.map_err(|it| it.to_string())?;
    let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
    Ok(Polled {
        status: head.status,
        content_type: content_type.unwrap_or_default().to_owned(),
        body: body.to_bytes(),
        prefix: ctx.prefix.clone(),
    })
}
