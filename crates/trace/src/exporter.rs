//! The task that sends spans to the receiver, in batches.

use std::{sync::Arc, time::Duration};

use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, trace_service_client::TraceServiceClient},
    common::v1::InstrumentationScope,
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tracing::warn;

use crate::{
    Settings,
    metrics::Counters,
    span::{Attribute, pair},
};

/// The maximum number of spans in a request.
const BATCH_MAX: usize = 512;
/// The time for which the first span of a batch waits for others.
const BATCH_DELAY: Duration = Duration::from_millis(500);
/// The maximum time of a request. The exporter does not repeat a failed request, because further spans wait.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time of all requests after the process has begun to end.
pub(crate) const LAST_EXPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The minimum time between two lines of the log about a receiver that fails.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// How an attempt to send a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    /// There was an answer, or none in time.
    Answered,
    /// The process ends.
    Ended,
}

/// The sender of spans.
pub(crate) struct Exporter {
    client: TraceServiceClient<Channel>,
    endpoint: String,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    counters: Arc<Counters>,
    warned: Option<tokio::time::Instant>,
}

impl Exporter {
    pub(crate) fn new(
        settings: &Settings,
        spans: mpsc::Receiver<Span>,
        counters: Arc<Counters>,
    ) -> Result<Self, String> {
        let endpoint = settings.endpoint.clone();
        let channel = Endpoint::from_shared(endpoint.clone()).map_err(|error| error.to_string())?;
        // The connection opens with the first request.
        let client =
            TraceServiceClient::new(channel.connect_timeout(EXPORT_TIMEOUT).connect_lazy());
        let attributes = settings.resource.iter();
        let attributes = attributes.map(|(key, value)| pair(key, Attribute::Text(value.clone())));
        let resource = Resource { attributes: attributes.collect(), ..Resource::default() };
        Ok(Self { client, endpoint, resource, spans, counters, warned: None })
    }

    /// Sends spans until `stop` is cancelled. Then sends the remaining spans for at most `last`.
    pub(crate) async fn run(mut self, stop: CancellationToken, last: Duration) {
        let end = async {
            stop.cancelled().await;
            sleep(last).await;
        };
        tokio::pin!(end);
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            tokio::select! {
                n = self.spans.recv_many(&mut batch, BATCH_MAX) => {
                    if n == 0 {
                        return;
                    }
                }
                () = stop.cancelled() => break,
            }
            tokio::select! {
                () = self.fill(&mut batch) => {}
                () = stop.cancelled() => break,
            }
            if self.send(&mut batch, end.as_mut()).await == Sent::Ended {
                return;
            }
        }
        while let Ok(span) = self.spans.try_recv() {
            batch.push(span);
        }
        if !batch.is_empty() {
            self.send(&mut batch, end).await;
        }
    }

    /// Waits for more spans.
    async fn fill(&mut self, batch: &mut Vec<Span>) {
        let filled = async {
            while batch.len() < BATCH_MAX {
                let Some(span) = self.spans.recv().await else { return };
                batch.push(span);
            }
        };
        // The spans that have arrived are in the batch.
        drop(timeout(BATCH_DELAY, filled).await);
    }

    async fn send(&mut self, batch: &mut Vec<Span>, end: impl Future<Output = ()>) -> Sent {
        let spans = std::mem::take(batch);
        let n = spans.len() as u64;
        let scope = InstrumentationScope { name: "chancery".to_owned(), ..Default::default() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let all = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
        let request = ExportTraceServiceRequest { resource_spans: vec![all] };
        let answer = tokio::select! {
            answer = timeout(EXPORT_TIMEOUT, self.client.export(request)) => answer,
            () = end => {
                self.failed(n, "there was no answer before the end of the process");
                return Sent::Ended;
            }
        };
        match answer {
            Ok(Ok(response)) => {
                let rejected = response.into_inner().partial_success;
                let rejected = rejected.map_or(0, |partial| partial.rejected_spans);
                let rejected = u64::try_from(rejected).unwrap_or(0).min(n);
                self.counters.exports_ok.increment(1);
                self.counters.rejected.increment(rejected);
                self.counters.sent.increment(n - rejected);
            }
            Ok(Err(status)) => self.failed(n, &format!("{}: {}", status.code(), status.message())),
            Err(_) => self.failed(n, &format!("there was no answer within {EXPORT_TIMEOUT:?}")),
        }
        Sent::Answered
    }

    fn failed(&mut self, n: u64, error: &str) {
        self.counters.exports_failed.increment(1);
        self.counters.failed.increment(n);
        if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_INTERVAL) {
            self.warned = Some(tokio::time::Instant::now());
            warn!(
                address = self.endpoint,
                error,
                spans = n,
                "cannot send traces; the spans are lost"
            );
        }
    }
}

#[cfg(test)]
mod tests;
