//! `/healthz`, `/readyz` and `/metrics`. They answer from the first second of a replica.
//!
//! `/healthz` says whether the event loops of the process turn. It depends neither on the disk nor on other replicas, so
//! that a restart can help if it fails. `/readyz` says whether the replica serves clients.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::readiness::Readiness;

/// Returns whether all event loops turn, or else a sentence that names one that does not.
pub type Liveness = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;
/// Renders the metrics in the text format of Prometheus.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The answers of the three paths.
#[derive(Clone)]
pub(crate) struct Probes {
    liveness: Liveness,
    pub(crate) readiness: Readiness,
    metrics: RenderMetrics,
    metrics_permit: Arc<Semaphore>,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

impl Format {
    /// Returns the format that a request asks for: by `?format=json`, or by its header `Accept`.
    fn of(query: Option<&str>, headers: &HeaderMap) -> Self {
        let by_query =
            query.is_some_and(|query| query.split('&').any(|pair| pair == "format=json"));
        let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        if by_query || accept.is_some_and(|accept| accept.contains("application/json")) {
            Self::Json
        } else {
            Self::Text
        }
    }
}

impl Probes {
    pub(crate) fn new(liveness: Liveness, readiness: Readiness, metrics: RenderMetrics) -> Self {
        Self { liveness, readiness, metrics, metrics_permit: Arc::new(Semaphore::new(1)) }
    }

    /// Answers `/healthz`: `ok`, or JSON with the reason.
    pub(crate) fn healthz(&self, query: Option<&str>, headers: &HeaderMap) -> Response {
        match (self.liveness)() {
            Ok(()) => positive(Format::of(query, headers), "ok\n", &json!({"healthy": true})),
            Err(message) => {
                negative(&json!({"healthy": false, "reason": "stalled", "message": message}))
            }
        }
    }

    /// Answers `/readyz`: `ready`, or JSON with the reason.
    pub(crate) fn readyz(&self, query: Option<&str>, headers: &HeaderMap) -> Response {
        match self.readiness.check() {
            Ok(()) => positive(Format::of(query, headers), "ready\n", &json!({"ready": true})),
            Err(not_ready) => negative(&not_ready.to_json()),
        }
    }

    /// Answers `/metrics`. One page at a time is rendered, on another thread: many requests at once must not delay
    /// `/healthz`.
    pub(crate) async fn metrics(self) -> Response {
        let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        match self.metrics_text().await {
            Some(page) => ([(header::CONTENT_TYPE, content_type)], page).into_response(),
            None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    /// Returns the page of metrics; `None` if it cannot be rendered.
    pub(crate) async fn metrics_text(self) -> Option<String> {
        let permit = self.metrics_permit.acquire_owned().await;
        let render = tokio::task::spawn_blocking(move || {
            let page = (self.metrics)();
            drop(permit);
            page
        });
        render.await.ok()
    }
}

/// Answers with 200, with a text unless the client asks for JSON.
fn positive(format: Format, text: &'static str, body: &serde_json::Value) -> Response {
    match format {
        Format::Text => text.into_response(),
        Format::Json => as_json(StatusCode::OK, body),
    }
}

fn negative(body: &serde_json::Value) -> Response {
    as_json(StatusCode::SERVICE_UNAVAILABLE, body)
}

fn as_json(status: StatusCode, body: &serde_json::Value) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, content_type)], format!("{body}\n")).into_response()
}
