//! Spans against a real OTLP receiver, and against one that fails.

use std::{future::pending, sync::Mutex, time::SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use super::*;
use crate::{Kind, Span, TraceParent, Tracer};

/// A receiver that rejects one span per request, or fails.
#[derive(Clone, Default)]
struct Receiver {
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    fails: bool,
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.fails {
            return Err(Status::unavailable("the receiver is full"));
        }
        self.requests.lock().unwrap().push(request.into_inner());
        let partial =
            ExportTracePartialSuccess { rejected_spans: 1, error_message: "one".to_owned() };
        Ok(Response::new(ExportTraceServiceResponse { partial_success: Some(partial) }))
    }
}

async fn serve(receiver: Receiver) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TraceServiceServer::new(receiver);
    let incoming = TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    format!("http://{address}")
}

fn settings(endpoint: String, sample_percent: u8) -> Settings {
    let resource = vec![("service.name".to_owned(), "test".to_owned())];
    Settings { endpoint, sample_percent, resource }
}

fn write() -> Span {
    let now = SystemTime::now();
    Span { kind: Kind::Server, ..Span::internal("write", now, now) }
}

#[tokio::test]
async fn spans_arrive_as_one_tree_when_the_exporter_ends() {
    let receiver = Receiver::default();
    let endpoint = serve(receiver.clone()).await;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let (settings, last) = (settings(endpoint, 0), Duration::from_secs(60));
    let tracer = Tracer::start_exporter_until(&settings, &tasks, stop.clone(), last).unwrap();
    assert!(tracer.start(None).is_none(), "the share is 0");
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
    let parse = |flags: &str| TraceParent::parse(&format!("{parent}-{flags}"));
    assert!(tracer.start(parse("00")).is_none(), "the caller does not trace");
    let trace = tracer.start(parse("01")).unwrap();
    assert_eq!(trace.id(), "4bf92f3577b34da6a3ce929d0e0e4736");
    let now = SystemTime::now();
    trace.child(Span::internal("admission", now, now).with("n", Attribute::Number(2)));
    trace.end(write());
    stop.cancel();
    tasks.close();
    tasks.wait().await;

    let requests = receiver.requests.lock().unwrap().clone();
    let [ResourceSpans { resource: Some(resource), scope_spans, .. }] =
        &requests[0].resource_spans[..]
    else {
        panic!("{requests:?}")
    };
    assert_eq!(resource.attributes, [pair("service.name", Attribute::Text("test".to_owned()))]);
    let [child, root] = &scope_spans[0].spans[..] else { panic!("{scope_spans:?}") };
    assert_eq!((root.name.as_str(), child.name.as_str()), ("write", "admission"));
    assert_eq!(hex::encode(&root.parent_span_id), "00f067aa0ba902b7");
    assert_eq!(child.parent_span_id, root.span_id);
    assert_eq!(root.trace_id, child.trace_id);
    assert!(!root.span_id.is_empty() && root.span_id != child.span_id);
}

/// If a receiver fails, spans are lost and counted. The caller does not notice.
#[tokio::test]
async fn failures_and_a_full_queue_are_counted_and_do_not_block() {
    let endpoint = serve(Receiver { fails: true, ..Receiver::default() }).await;
    let (queue, spans) = mpsc::channel(1);
    let counters = Arc::new(Counters::new());
    let mut exporter = Exporter::new(&settings(endpoint, 100), spans, counters).unwrap();
    queue.try_send(otlp_span()).unwrap();
    assert!(queue.try_send(otlp_span()).is_err(), "the queue is full");
    let mut batch = vec![otlp_span()];
    exporter.send(&mut batch, pending()).await;
    assert!(batch.is_empty() && exporter.warned.is_some());
    let first = exporter.warned;
    exporter.send(&mut vec![otlp_span()], pending()).await;
    assert_eq!(exporter.warned, first, "the log has one line per minute");
    assert!(
        Exporter::new(&settings("no url".to_owned(), 100), exporter.spans, exporter.counters)
            .is_err()
    );
}

/// A receiver that accepts connections and never answers does not delay the end of the process.
#[tokio::test]
async fn silent_receiver_delays_the_end_for_a_second_at_most() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (queue, spans) = mpsc::channel(8);
    let exporter = Exporter::new(&settings(endpoint, 100), spans, Arc::new(Counters::new()));
    let stop = CancellationToken::new();
    let running = tokio::spawn(exporter.unwrap().run(stop.clone(), LAST_EXPORT_TIMEOUT));
    queue.send(otlp_span()).await.unwrap();
    let (_connection, _) = listener.accept().await.unwrap();
    let start = tokio::time::Instant::now();
    stop.cancel();
    running.await.unwrap();
    let took = start.elapsed();
    assert!(took < EXPORT_TIMEOUT - LAST_EXPORT_TIMEOUT, "{took:?}");
}

fn otlp_span() -> opentelemetry_proto::tonic::trace::v1::Span {
    opentelemetry_proto::tonic::trace::v1::Span::default()
}
