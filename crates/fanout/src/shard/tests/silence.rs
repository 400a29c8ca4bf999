//! Clients that never answer.

use chancery_model::types::{CLUSTER, ENDPOINT};
use chancery_protocol::DeltaRequest;

use super::harness::{Client, ShardHarness, text};
use crate::{Config, EndCode};

const PATIENCE_MS: u64 = 60_000;

fn harness() -> ShardHarness {
    let session =
        chancery_protocol::Config { ack_close_after_ms: Some(PATIENCE_MS), ..Default::default() };
    ShardHarness::with(Config { session, ..Config::default() })
}

/// Advances the time in steps of a second. The client reads all responses in each step.
fn pass(harness: &mut ShardHarness, client: &mut Client, ms: u64) {
    let until = harness.ms + ms;
    while harness.ms < until {
        harness.ms = until.min(harness.ms + 1000);
        harness.read(client);
    }
}

/// A stream whose client leaves a response unanswered for longer than the limit ends with an
/// explanation, to the millisecond. All its memory is freed.
#[test]
fn stream_of_client_that_never_answers_is_closed() {
    let mut harness = harness();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    assert_eq!(text(&harness.read(&mut client)), "a=1");
    // The client still receives changes, and they do not extend its time.
    pass(&mut harness, &mut client, 30_000);
    harness.put("default", CLUSTER, &[("a", "2")]);
    assert_eq!(text(&harness.read(&mut client)), "a=2");
    pass(&mut harness, &mut client, PATIENCE_MS - 30_000 - 1);
    assert_eq!(harness.sessions().len(), 1);
    harness.ms += 1;
    harness.settle();
    let end = client.end();
    assert_eq!(end.code, EndCode::Silent);
    assert_eq!(
        end.message,
        "no answer to a response of type type.googleapis.com/envoy.config.cluster.v3.Cluster for 60 s \
         (ack_close_after); reconnect"
    );
    assert!(harness.sessions().is_empty() && harness.sessions().index().is_empty());
    assert_eq!(harness.shard.service.clients().unanswered.oldest(harness.ms), None);
}

/// A stream whose client does not even read is closed too: its response waits in the slot.
#[test]
fn stream_of_client_that_never_reads_is_closed() {
    let mut harness = harness();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    harness.settle();
    for version in 2..=PATIENCE_MS / 1000 {
        harness.ms += 1000;
        harness.put("default", CLUSTER, &[("a", &version.to_string())]);
        harness.settle();
        assert_eq!(harness.sessions().len(), 1);
    }
    harness.ms += 1000;
    harness.settle();
    assert_eq!(client.end().code, EndCode::Silent);
}

/// Any answer counts, including a rejection.
#[test]
fn client_that_answers_late_is_not_closed() {
    let mut harness = harness();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    let mut owed = harness.read(&mut client);
    for version in 2..10 {
        pass(&mut harness, &mut client, PATIENCE_MS - 1);
        match version % 2 {
            0 => harness.ack(&client, &owed[0]),
            _ => harness.nack(&client, &owed[0], "no"),
        }
        harness.put("default", CLUSTER, &[("a", &version.to_string())]);
        owed = harness.read(&mut client);
        assert_eq!(text(&owed), format!("a={version}"));
        assert!(harness.sessions().n_scheduled()[2] <= 1, "one entry per session");
    }
    pass(&mut harness, &mut client, PATIENCE_MS - 1);
    harness.ack(&client, &owed[0]);
    // A client that has answered everything may be silent forever.
    pass(&mut harness, &mut client, 10 * PATIENCE_MS);
    assert_eq!(harness.sessions().len(), 1);
    harness.put("default", CLUSTER, &[("a", "last")]);
    assert_eq!(text(&harness.read(&mut client)), "a=last");
}

/// A client that answers a long state part by part is not silent. Once it stops, its silence starts at
/// its last answer.
#[test]
fn silence_is_measured_from_last_answer() {
    let session = chancery_protocol::Config {
        ack_close_after_ms: Some(PATIENCE_MS),
        response_bytes_target: 1,
        ..Default::default()
    };
    let mut harness = ShardHarness::with(Config { session, ..Config::default() });
    harness.put("default", CLUSTER, &[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    let parts = harness.read(&mut client);
    assert_eq!(parts.len(), 4);
    for part in &parts[..3] {
        pass(&mut harness, &mut client, PATIENCE_MS - 1);
        harness.ack(&client, part);
    }
    pass(&mut harness, &mut client, PATIENCE_MS - 1);
    assert_eq!(harness.sessions().len(), 1);
    harness.ms += 1;
    harness.settle();
    assert_eq!(client.end().code, EndCode::Silent);
}

/// One unanswered type is enough to close the stream: answers of other types do not count.
#[test]
fn answers_of_other_types_do_not_prevent_close() {
    let mut harness = harness();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    assert_eq!(text(&harness.read(&mut client)), "a=1");
    let names = vec!["x".to_owned()];
    let type_url = ENDPOINT.to_owned();
    harness.send(
        &client,
        None,
        DeltaRequest { type_url, subscribe: names.into(), ..Default::default() },
    );
    for version in 1..60 {
        harness.put("default", ENDPOINT, &[("x", &version.to_string())]);
        for response in harness.read(&mut client) {
            if response.type_url == ENDPOINT {
                harness.ack(&client, &response);
            }
        }
        harness.ms += 1000;
    }
    harness.settle();
    assert_eq!(harness.sessions().len(), 1);
    harness.ms += 1000;
    harness.settle();
    assert!(client.end().message.contains("Cluster for 60 s"));
}

/// CLI-G-13: a client does not answer a response of a type that it has just unsubscribed from. It is
/// not silent.
#[test]
fn response_of_unsubscribed_type_requires_no_answer() {
    let mut harness = harness();
    harness.put("default", ENDPOINT, &[("x", "1")]);
    let mut client = harness.subscribe("n1", ENDPOINT, &["x"]);
    assert_eq!(text(&harness.read(&mut client)), "x=1");
    let type_url = ENDPOINT.to_owned();
    let names = vec!["x".to_owned()];
    harness.send(
        &client,
        None,
        DeltaRequest { type_url, unsubscribe: names.into(), ..Default::default() },
    );
    assert_eq!(harness.shard.service.clients().unanswered.oldest(harness.ms), None);
    pass(&mut harness, &mut client, 2 * PATIENCE_MS);
    assert_eq!(harness.sessions().len(), 1);
}

/// By default, no client is closed for its silence.
#[test]
fn silent_client_is_not_closed_by_default() {
    let mut harness = ShardHarness::new();
    harness.put("default", CLUSTER, &[("a", "1")]);
    let mut client = harness.subscribe("n1", CLUSTER, &[]);
    assert_eq!(text(&harness.read(&mut client)), "a=1");
    harness.ms += 30 * 24 * 3600 * 1000;
    harness.put("default", CLUSTER, &[("a", "2")]);
    assert_eq!(text(&harness.read(&mut client)), "a=2");
    assert_eq!(harness.shard.service.clients().unanswered.oldest(harness.ms), Some(30 * 24 * 3600));
}
