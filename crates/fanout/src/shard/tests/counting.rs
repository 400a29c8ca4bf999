//! The metrics of a shard.

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::desk::ShardHarness;
use crate::EndCode;

/// OPS-18: events of streams are counted in the metrics.
#[test]
fn stream_events_are_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        crate::metrics::register();
        let mut desk = ShardHarness::new();
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
    for slot in [
        "chancery_xds_streams{protocol=\"delta\",type=\"aggregated\"} 1",
        "chancery_xds_stream_ends_total{reason=\"refused\"} 1",
        "chancery_xds_stream_ends_total{reason=\"client\"} 1",
        "chancery_xds_requests_total{type=\"cluster\"} 4",
        "chancery_xds_requests_total{type=\"endpoint\"} 1",
        "chancery_xds_requests_by_kind_total{kind=\"ack\"} 2",
        "chancery_xds_requests_by_kind_total{kind=\"nack\"} 1",
        "chancery_xds_requests_by_kind_total{kind=\"subscribe\"} 2",
        "chancery_xds_requests_by_kind_total{kind=\"stale\"} 0",
        "chancery_xds_response_bytes_count{protocol=\"delta\"} 4",
        "chancery_xds_first_sync_seconds_count 1",
        "chancery_xds_commit_seconds_count 3",
        "chancery_xds_pushes_total{type=\"cluster\"} 3",
        "chancery_xds_pushed_resources_total{type=\"cluster\"} 4",
        "chancery_xds_acks_total{type=\"cluster\"} 2",
        "chancery_xds_nacks_total{type=\"cluster\"} 1",
        "chancery_xds_ack_seconds_count 2",
        "chancery_xds_ack_seconds_sum 0.04",
        "chancery_xds_convergence_seconds_count 1",
        "chancery_xds_convergence_seconds_sum 0.04",
        "chancery_xds_rejecting_streams 0",
        "chancery_xds_index_wildcards{shard=\"0\"} 1",
        "chancery_xds_index_names{shard=\"0\"} 0",
        "chancery_xds_oldest_unanswered_seconds{shard=\"0\"} 0",
        "chancery_xds_limits_hit_total{limit=\"names\"} 0",
        "chancery_xds_pending_sessions{shard=\"0\"} 0",
    ] {
        assert!(text.lines().any(|found| found == slot), "{slot} is not in\n{text}");
    }
}

/// Runs `run` with a separate recorder, and returns the recorded metrics.
fn recorded(run: impl FnOnce(&mut ShardHarness)) -> String {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || run(&mut ShardHarness::new()));
    recorder.handle().render()
}

fn has(text: &str, slot: &str) {
    assert!(text.lines().any(|found| found == slot), "{slot} is not in\n{text}");
}

/// Unnecessary responses are counted by reason.
#[test]
fn unnecessary_responses_are_counted_by_reason() {
    let text = recorded(|desk| {
        desk.assign("both", "*", &["front", "back"]);
        desk.put("front", CLUSTER, &[("a", "1")]);
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        let first = desk.read(&mut client);
        // Three commits while the client owes an answer: the second and third fold into the first.
        for body in ["2", "3", "4"] {
            desk.put("front", CLUSTER, &[("a", body)]);
        }
        desk.ack(&client, &first[0]);
        let second = desk.read(&mut client);
        assert_eq!(second.len(), 1);
        desk.nack(&client, &second[0], "no");
        assert!(desk.read(&mut client).is_empty(), "the same content is not sent again");
        desk.put("front", CLUSTER, &[("a", "5")]);
        let third = desk.read(&mut client);
        desk.ack(&client, &third[0]);
        desk.settle();
        // The other scope shadows this resource.
        desk.put("back", CLUSTER, &[("a", "6")]);
        assert!(desk.read(&mut client).is_empty());
    });
    has(&text, "chancery_xds_suppressed_resends_total{reason=\"folded\"} 2");
    has(&text, "chancery_xds_suppressed_resends_total{reason=\"rejected\"} 1");
    has(&text, "chancery_xds_suppressed_resends_total{reason=\"unchanged\"} 1");
}

/// Gauges show rejecting streams, owed answers and blocked transports, and return to zero.
#[test]
fn stream_state_gauges_return_to_zero() {
    let standing = |text: &str, rejecting: u8, unanswered: u64, blocked: u8| {
        has(text, &format!("chancery_xds_rejecting_streams {rejecting}"));
        has(text, &format!("chancery_xds_oldest_unanswered_seconds{{shard=\"0\"}} {unanswered}"));
        has(text, &format!("chancery_xds_blocked_streams {blocked}"));
    };
    let play = |desk: &mut ShardHarness, steps: usize| {
        desk.put("default", CLUSTER, &[("a", "1")]);
        let mut bad = desk.subscribe("bad", CLUSTER, &[]);
        let first = desk.read(&mut bad);
        desk.nack(&bad, &first[0], "no");
        let silent = desk.subscribe("silent", CLUSTER, &[]);
        desk.settle();
        desk.ms += 7_900;
        // The silent client has not read the first response yet.
        desk.put("default", CLUSTER, &[("a", "2")]);
        desk.settle();
        if steps == 1 {
            return;
        }
        let second = desk.read(&mut bad);
        desk.ack(&bad, &second[0]);
        drop(silent);
        desk.settle();
    };
    standing(&recorded(|desk| play(desk, 1)), 1, 7, 1);
    standing(&recorded(|desk| play(desk, 2)), 0, 0, 0);
}

/// Waiting times are measured from their start.
#[test]
fn waiting_times_are_measured_from_their_start() {
    let text = recorded(|desk| {
        desk.put("default", CLUSTER, &[("a", "1")]);
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        // The session was marked now, and is polled half a second later.
        desk.ms += 500;
        let first = desk.read(&mut client);
        desk.ack(&client, &first[0]);
        desk.settle();
        desk.put("default", CLUSTER, &[("a", "2")]);
        desk.settle();
        desk.ms += 6_000;
        desk.put("default", CLUSTER, &[("a", "3")]);
        desk.settle();
        desk.ms += 250;
        assert_eq!(desk.read(&mut client).len(), 2, "the client reads in the end");
    });
    has(&text, "chancery_xds_queue_wait_seconds_sum{lane=\"bulk\"} 0.5");
    has(&text, "chancery_xds_transport_wait_seconds_sum 0.25");
    has(&text, "chancery_xds_transport_wait_seconds_count 1");
}

/// Convergence is measured from the earliest change in a response to the answer to its last part.
#[test]
fn convergence_is_measured_from_first_change_in_response() {
    let text = recorded(|desk| {
        desk.put("default", CLUSTER, &[("a", "1")]);
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        let first = desk.read(&mut client);
        for _ in 0..2 {
            desk.put("default", CLUSTER, &[("a", &desk.ms.to_string())]);
            desk.settle();
            desk.ms += 1_000;
        }
        desk.ack(&client, &first[0]);
        let second = desk.read(&mut client);
        desk.ms += 500;
        desk.ack(&client, &second[0]);
        desk.settle();
        // A type to which a client subscribes only now does not count.
        let other = desk.subscribe("n2", ENDPOINT, &["x"]);
        desk.settle();
        drop(other);
    });
    has(&text, "chancery_xds_convergence_seconds_count 1");
    has(&text, "chancery_xds_convergence_seconds_sum 2.5");
    let text = recorded(|desk| {
        let session = chancery_protocol::Config { response_bytes_target: 1, ..Default::default() };
        *desk = ShardHarness::with(crate::Config { session, ..Default::default() });
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        let first = desk.read(&mut client);
        desk.ack(&client, &first[0]);
        desk.settle();
        desk.put("default", CLUSTER, &[("a", "1"), ("b", "1"), ("c", "1")]);
        let parts = desk.read(&mut client);
        assert_eq!(parts.len(), 3);
        for part in &parts {
            desk.ms += 1_000;
            desk.ack(&client, part);
        }
    });
    has(&text, "chancery_xds_convergence_seconds_count 1");
    has(&text, "chancery_xds_convergence_seconds_sum 3");
    let text = recorded(|desk| {
        desk.assign("both", "*", &["front", "back"]);
        desk.put("front", CLUSTER, &[("a", "1")]);
        let mut client = desk.subscribe("n1", CLUSTER, &[]);
        let first = desk.read(&mut client);
        desk.ack(&client, &first[0]);
        desk.settle();
        // No client sees this change, so no client waits for it.
        desk.put("back", CLUSTER, &[("a", "2")]);
        desk.settle();
        desk.ms += 60_000;
        desk.put("front", CLUSTER, &[("a", "3")]);
        let second = desk.read(&mut client);
        desk.ms += 250;
        desk.ack(&client, &second[0]);
    });
    has(&text, "chancery_xds_convergence_seconds_sum 0.25");
}
