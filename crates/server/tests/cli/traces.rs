//! Traces of writes: a real replica, and an OTLP receiver.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use chancery_admin_proto::v1::{self as pb, admin_client::AdminClient};
use chancery_model::types::CLUSTER;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{ResourceSpans, Span},
};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status, transport::Channel};

use crate::{
    secrets::clients::Client,
    support::{Server, clusters, eventually, http_get, logged},
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const AUTHOR: &str = "00f067aa0ba902b7";

#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<ResourceSpans>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    /// Starts a receiver. Returns its address.
    fn start(&self, runtime: &Runtime) -> String {
        let receiver = self.clone();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            let service = TraceServiceServer::new(receiver);
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(server.serve_with_incoming(incoming));
            format!("http://{address}")
        })
    }

    fn spans(&self) -> Vec<Span> {
        let all = self.0.lock().unwrap();
        let scopes = all.iter().flat_map(|all| &all.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Returns the spans of a trace by name, as soon as one has the given name.
    fn trace(&self, id: &str, last: &str) -> BTreeMap<String, Span> {
        eventually(&format!("a span {last}"), || {
            let is_own = |span: &Span| hex(&span.trace_id) == id;
            let own = self.spans().into_iter().filter(is_own);
            let own: BTreeMap<_, _> = own.map(|span| (span.name.clone(), span)).collect();
            own.contains_key(last).then_some(own)
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().find(|pair| pair.key == key)?.value.clone()?.value
}

fn number(span: &Span, key: &str) -> Option<i64> {
    match value(&span.attributes, key) {
        Some(Value::IntValue(number)) => Some(number),
        _ => None,
    }
}

/// Publishes clusters with a trace of the author. Returns the revision.
fn apply(runtime: &Runtime, server: &Server, parent: &str, content: String, dry_run: bool) -> u64 {
    let mut request = Request::new(pb::ApplyRequest {
        files: vec![pb::File { name: "test".to_owned(), content }],
        options: Some(pb::WriteOptions { dry_run, ..Default::default() }),
        ..Default::default()
    });
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    let address = format!("http://{}", server.admin);
    runtime.block_on(async {
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        AdminClient::new(channel).apply(request).await.unwrap().into_inner().revision
    })
}

#[test]
fn write_is_traced_from_admission_to_the_acknowledgment_of_its_clients() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    let receiver = Receiver::default();
    let endpoint = receiver.start(&runtime);
    let environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_SERVICE_NAME", "mesh")];
    let server = Server::start_with(&dir.path().join("data"), &environment);
    server.json(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    let mut client = Client::open(&server.xds, None);
    client.subscribe(CLUSTER, &[]);
    client.next(CLUSTER).unwrap();

    let unsampled = "00-11111111111111111111111111111111-2222222222222222-00";
    apply(&runtime, &server, unsampled, clusters(&["b"], "1s"), false);
    client.next(CLUSTER).unwrap();
    let parent = format!("00-{TRACE}-{AUTHOR}-01");
    apply(&runtime, &server, &parent, clusters(&["c"], "1s"), true);
    let revision = apply(&runtime, &server, &parent, clusters(&["c"], "2s"), false);
    client.next(CLUSTER).unwrap();

    let spans = receiver.trace(TRACE, "acknowledgment");
    let names: Vec<&str> = spans.keys().map(String::as_str).collect();
    assert_eq!(names, ["acknowledgment", "admission", "apply", "replication", "write"]);
    let write = &spans["write"];
    assert_eq!(hex(&write.parent_span_id), AUTHOR);
    assert_eq!(number(write, "chancery.revision"), i64::try_from(revision).ok());
    assert_eq!(number(write, "chancery.changed"), Some(1));
    for name in ["admission", "replication", "apply", "acknowledgment"] {
        assert_eq!(spans[name].parent_span_id, write.span_id, "{name}");
        assert!(spans[name].start_time_unix_nano >= write.start_time_unix_nano, "{name}");
    }
    let ends = |name: &str| spans[name].end_time_unix_nano;
    let starts = |name: &str| spans[name].start_time_unix_nano;
    assert_eq!(ends("admission"), starts("replication"));
    assert_eq!(ends("replication"), starts("apply"));
    assert!(ends("apply") <= ends("write"));
    assert_eq!(number(&spans["acknowledgment"], "chancery.sessions"), Some(1));
    assert_eq!(number(&spans["acknowledgment"], "chancery.acknowledged"), Some(1));

    // Only the decision of the author counts, and a dry run is no write. The first write had no trace of an author.
    let all = receiver.spans();
    assert!(all.iter().all(|span| hex(&span.trace_id) != "1".repeat(32)), "{all:#?}");
    assert_eq!(all.iter().filter(|span| span.name == "write").count(), 2, "{all:#?}");
    let resource = receiver.0.lock().unwrap()[0].resource.clone().unwrap();
    let name = value(&resource.attributes, "service.name");
    assert_eq!(name, Some(Value::StringValue("mesh".to_owned())));
    assert!(!format!("{all:?}").contains("\"c\""), "no span has the name of a resource");

    // A refused write has its reason, without names.
    assert_eq!(server.run(&["delete", "cluster", "none"]).code, 1);
    let is_failed = |span: &Span| span.name == "write" && span.status.is_some();
    let refused =
        eventually("a span of the refused write", || receiver.spans().into_iter().find(is_failed));
    assert_eq!(refused.status.unwrap().message, "not_found");
    let metrics = http_get(&server.admin, "/metrics").1;
    assert!(metrics.contains("chancery_trace_exports_total{result=\"failed\"} 0"), "{metrics}");
    assert!(metrics.contains("chancery_trace_spans_total{result=\"sent\"} "), "{metrics}");
    logged(&dir.path().join("data.log"), &format!("trace_id=\"{TRACE}\""));
}
