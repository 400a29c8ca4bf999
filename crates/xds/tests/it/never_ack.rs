//! Clients that read and never answer: reported, and closed if so configured.

use chancery_fanout::UnacknowledgedState;
use chancery_proto::discovery::DeltaDiscoveryRequest;
use tonic::Code;

use crate::support::*;

/// The timeout is shorter than the configuration of a server allows, to keep the test short.
const PATIENCE_MS: u64 = 3_000;

async fn server() -> Server {
    let mut fanout = fanout_config();
    fanout.session.ack_close_after_ms = Some(PATIENCE_MS);
    fanout.session.ack_timeout_ms = 50;
    Server::with(chancery_xds::Config::default(), fanout).await
}

/// CLI-G-15, CLI-G-28: a client answers nothing. Its stream ends with a status that permits a retry, and a
/// text with the reason. Clients that answer are not affected, and the client is served again when it
/// reconnects.
#[tokio::test]
async fn a_client_that_never_answers_is_closed_and_served_again_when_it_comes_back() {
    let server = server().await;
    server.put(CDS, &[("a", "1")]);
    let mut good = server.delta(DELTA_ADS).await;
    good.subscribe(CDS, &[]).await;
    let first = good.next().await;
    good.ack(&first).await;
    let mut delta = server.delta(DELTA_ADS).await;
    delta.subscribe(CDS, &[]).await;
    assert_eq!(names(&delta.next().await), ["a"]);
    let mut sotw = server.sotw(SOTW_ADS).await;
    sotw.subscribe(CDS, &[]).await;
    assert_eq!(bodies(&sotw.next().await), ["1"]);
    for (kind, status) in [("delta", delta.end().await), ("sotw", sotw.end().await)] {
        assert_eq!(status.code(), Code::Unavailable, "{kind}: {status}");
        let text = status.message();
        assert!(text.starts_with("no answer to a response of type "), "{kind}: {text}");
        assert!(text.contains("Cluster") && text.contains("ack_close_after"), "{kind}: {text}");
        // The text says what to do.
        assert!(text.ends_with("reconnect"), "{kind}: {text}");
    }
    let mut again = server.delta(DELTA_ADS).await;
    again.subscribe(CDS, &[]).await;
    let first = again.next().await;
    assert_eq!(names(&first), ["a"]);
    again.ack(&first).await;
    server.put(CDS, &[("a", "2")]);
    for client in [&mut good, &mut again] {
        let next = client.next().await;
        assert_eq!(names(&next), ["a"]);
        client.ack(&next).await;
    }
    until("only the clients that answer are left", async || server.fanout.nodes().await.len() == 2)
        .await;
}

/// A client is reported as pending until it answers.
#[tokio::test]
async fn a_client_that_never_answers_is_reported() {
    let server = Server::start().await;
    let revision = server.put(CDS, &[("a", "1")]);
    let mut silent = server.delta(DELTA_ADS).await;
    silent.subscribe(CDS, &[]).await;
    let first = silent.next().await;
    let unsettled = server.fanout.unsettled(revision).await;
    assert_eq!(unsettled.len(), 1, "{unsettled:?}");
    assert_eq!(
        (unsettled[0].node.as_str(), &unsettled[0].state),
        ("n1", &UnacknowledgedState::Pending)
    );
    silent.ack(&first).await;
    until("the client has answered", async || server.fanout.unsettled(revision).await.is_empty())
        .await;
}

/// CLI-E: by default, a client that is silent on one response is never closed. Its answer to the
/// response that corrects it suffices.
#[tokio::test]
async fn answer_to_later_response_ends_earlier_silence() {
    let mut fanout = fanout_config();
    fanout.session.ack_timeout_ms = 50;
    let server = Server::with(chancery_xds::Config::default(), fanout).await;
    server.put(CDS, &[("good", "1"), ("bad", "1")]);
    let mut envoy = server.delta(DELTA_ADS).await;
    envoy.subscribe(CDS, &[]).await;
    assert_eq!(names(&envoy.next().await), ["bad", "good"]);
    let revision = server.put(CDS, &[("bad", "2")]);
    let second = envoy.next().await;
    assert_eq!(names(&second), ["bad"]);
    envoy
        .send(DeltaDiscoveryRequest {
            type_url: CDS.to_owned(),
            response_nonce: second.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    until("the client owes nothing", async || server.fanout.unsettled(revision).await.is_empty())
        .await;
}
