//! The metrics of a shard.

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::harness::ShardHarness;
use crate::EndCode;

/// OPS-18: events of streams are counted in the metrics.
#[test]
fn stream_events_are_counted() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        crate::metrics::register();
        let mut harness = ShardHarness::new();
        harness.put("default", CLUSTER, &[("a", "1"), ("b", "1")]);
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        let first = harness.read(&mut client);
        harness.ack(&client, &first[0]);
        harness.settle();
        harness.ms += 1;
        harness.put("default", CLUSTER, &[("a", "2")]);
        let second = harness.read(&mut client);
        harness.nack(&client, &second[0], "no");
        harness.put("default", CLUSTER, &[("a", "3")]);
        let third = harness.read(&mut client);
        harness.ms += 40;
        harness.ack(&client, &third[0]);
        let mut refused = harness.open();
        harness.send(&refused, Some("n2"), DeltaRequest::default());
        assert_eq!(refused.end().code, EndCode::InvalidArgument);
        drop(refused);
        let gone = harness.subscribe("n3", ENDPOINT, &["x"]);
        harness.settle();
        drop(gone);
        harness.settle();
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
    let text = recorded(|harness| {
        harness.assign("both", "*", &["front", "back"]);
        harness.put("front", CLUSTER, &[("a", "1")]);
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        let first = harness.read(&mut client);
        // Three commits while the client owes an answer: the second and third fold into the first.
        for body in ["2", "3", "4"] {
            harness.put("front", CLUSTER, &[("a", body)]);
        }
        harness.ack(&client, &first[0]);
        let second = harness.read(&mut client);
        assert_eq!(second.len(), 1);
        harness.nack(&client, &second[0], "no");
        assert!(harness.read(&mut client).is_empty(), "the same content is not sent again");
        harness.put("front", CLUSTER, &[("a", "5")]);
        let third = harness.read(&mut client);
        harness.ack(&client, &third[0]);
        harness.settle();
        // The other scope shadows this resource.
        harness.put("back", CLUSTER, &[("a", "6")]);
        assert!(harness.read(&mut client).is_empty());
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
    let play = |harness: &mut ShardHarness, steps: usize| {
        harness.put("default", CLUSTER, &[("a", "1")]);
        let mut bad = harness.subscribe("bad", CLUSTER, &[]);
        let first = harness.read(&mut bad);
        harness.nack(&bad, &first[0], "no");
        let silent = harness.subscribe("silent", CLUSTER, &[]);
        harness.settle();
        harness.ms += 7_900;
        // The silent client has not read the first response yet.
        harness.put("default", CLUSTER, &[("a", "2")]);
        harness.settle();
        if steps == 1 {
            return;
        }
        let second = harness.read(&mut bad);
        harness.ack(&bad, &second[0]);
        drop(silent);
        harness.settle();
    };
    standing(&recorded(|harness| play(harness, 1)), 1, 7, 1);
    standing(&recorded(|harness| play(harness, 2)), 0, 0, 0);
}

/// Waiting times are measured from their start.
#[test]
fn waiting_times_are_measured_from_their_start() {
    let text = recorded(|harness| {
        harness.put("default", CLUSTER, &[("a", "1")]);
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        // The session was marked now, and is polled half a second later.
        harness.ms += 500;
        let first = harness.read(&mut client);
        harness.ack(&client, &first[0]);
        harness.settle();
        harness.put("default", CLUSTER, &[("a", "2")]);
        harness.settle();
        harness.ms += 6_000;
        harness.put("default", CLUSTER, &[("a", "3")]);
        harness.settle();
        harness.ms += 250;
        assert_eq!(harness.read(&mut client).len(), 2, "the client reads in the end");
    });
    has(&text, "chancery_xds_queue_wait_seconds_sum{lane=\"bulk\"} 0.5");
    has(&text, "chancery_xds_transport_wait_seconds_sum 0.25");
    has(&text, "chancery_xds_transport_wait_seconds_count 1");
}

/// Convergence is measured from the earliest change in a response to the answer to its last part.
#[test]
fn convergence_is_measured_from_first_change_in_response() {
    let text = recorded(|harness| {
        harness.put("default", CLUSTER, &[("a", "1")]);
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        let first = harness.read(&mut client);
        for _ in 0..2 {
            harness.put("default", CLUSTER, &[("a", &harness.ms.to_string())]);
            harness.settle();
            harness.ms += 1_000;
        }
        harness.ack(&client, &first[0]);
        let second = harness.read(&mut client);
        harness.ms += 500;
        harness.ack(&client, &second[0]);
        harness.settle();
        // A type to which a client subscribes only now does not count.
        let other = harness.subscribe("n2", ENDPOINT, &["x"]);
        harness.settle();
        drop(other);
    });
    has(&text, "chancery_xds_convergence_seconds_count 1");
    has(&text, "chancery_xds_convergence_seconds_sum 2.5");
    let text = recorded(|harness| {
        let session = chancery_protocol::Config { response_bytes_target: 1, ..Default::default() };
        *harness = ShardHarness::with(crate::Config { session, ..Default::default() });
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        let first = harness.read(&mut client);
        harness.ack(&client, &first[0]);
        harness.settle();
        harness.put("default", CLUSTER, &[("a", "1"), ("b", "1"), ("c", "1")]);
        let parts = harness.read(&mut client);
        assert_eq!(parts.len(), 3);
        for part in &parts {
            harness.ms += 1_000;
            harness.ack(&client, part);
        }
    });
    has(&text, "chancery_xds_convergence_seconds_count 1");
    has(&text, "chancery_xds_convergence_seconds_sum 3");
    let text = recorded(|harness| {
        harness.assign("both", "*", &["front", "back"]);
        harness.put("front", CLUSTER, &[("a", "1")]);
        let mut client = harness.subscribe("n1", CLUSTER, &[]);
        let first = harness.read(&mut client);
        harness.ack(&client, &first[0]);
        harness.settle();
        // No client sees this change, so no client waits for it.
        harness.put("back", CLUSTER, &[("a", "2")]);
        harness.settle();
        harness.ms += 60_000;
        harness.put("front", CLUSTER, &[("a", "3")]);
        let second = harness.read(&mut client);
        harness.ms += 250;
        harness.ack(&client, &second[0]);
    });
    has(&text, "chancery_xds_convergence_seconds_sum 0.25");
}
