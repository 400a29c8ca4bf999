//! What a shard counts.

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::desk::Desk;
use crate::EndCode;

/// OPS-18: what a shard counts.
#[test]
fn what_happens_is_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        let mut desk = Desk::new();
        desk.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        let first = desk.read(&mut client);
        desk.ack(&client, &first[0]);
        desk.settle();
        desk.ms += 1;
        desk.put("default", CLUSTER, &[("a", "2")]);
        let second = desk.read(&mut client);
        desk.nack(&client, &second[0], "no");
        desk.put("default", CLUSTER, &[("a", "3")]);
        let third = desk.read(&mut client);
        desk.ms += 40;
        desk.ack(&client, &third[0]);
        let mut refused = desk.open();
        desk.send(&refused, Some("n2"), DeltaRequest::default());
        assert_eq!(refused.end().code, EndCode::InvalidArgument);
        drop(refused);
        let gone = desk.subscribe("n3", ENDPOINT, &["x"]);
        desk.settle();
        drop(gone);
        desk.settle();
    });
    let text = recorder.handle().render();
    for line in [
        "chancery_xds_streams{protocol=\"delta\",type=\"aggregated\"} 1",
        "chancery_xds_stream_ends_total{reason=\"refused\"} 1",
        "chancery_xds_stream_ends_total{reason=\"client\"} 1",
        "chancery_xds_requests_total{type=\"cluster\"} 4",
        "chancery_xds_requests_total{type=\"endpoint\"} 1",
        "chancery_xds_pushes_total{type=\"cluster\"} 3",
        "chancery_xds_pushed_resources_total{type=\"cluster\"} 4",
        "chancery_xds_acks_total{type=\"cluster\"} 2",
        "chancery_xds_nacks_total{type=\"cluster\"} 1",
        "chancery_xds_ack_seconds_count 2",
        "chancery_xds_ack_seconds_sum 0.04",
        "chancery_xds_convergence_seconds_count 1",
        "chancery_xds_convergence_seconds_sum 0.04",
        "chancery_xds_pending_sessions{shard=\"0\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}
