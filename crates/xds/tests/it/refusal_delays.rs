//! Clients that open a refused stream again at once, for as long as it is refused.

use std::time::{Duration, Instant};

use bytes::Bytes;
use chancery_load::{Limits, LoadReports, Settings};
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use futures::future::join_all;
use h2::client::SendRequest;
use prost::Message;

use crate::{access::Guarded, lrs::LRS, mcp::SOURCE, support::*};

/// The number of refusals in the tests: five immediate ones, and two delayed ones.
const ROUNDS: usize = 7;
/// The minimum time for these refusals: the delays of 1 s and 2 s, each less at most a fifth.
const TIME_MIN: Duration = Duration::from_millis(800 + 1600);

/// Opens a stream, sends a message, and returns the code that ends the stream.
async fn attempt(client: &SendRequest<Bytes>, path: &str, message: &Bytes) -> i32 {
    let mut raw = call_on(client.clone(), grpc(path).body(()).unwrap()).await;
    // The stream may end before it has received the message.
    drop(raw.send.send_data(message.clone(), false));
    raw.status().await.0
}

/// Returns the first requests of a client for two types on one stream.
fn two_types() -> Bytes {
    let request = |type_url: &str| {
        let request = DiscoveryRequest {
            type_url: type_url.into(),
            node: node("n1"),
            ..DiscoveryRequest::default()
        };
        framed(0, &request.encode_to_vec())
    };
    [request(CDS), request(EDS)].concat().into()
}

/// OPS-20: a client that reopens its refused stream at once, as Kitex does, gets few refusals. Streams that are served
/// share the connection, and are not delayed.
#[tokio::test]
async fn client_that_reopens_at_once_is_refused_slowly() {
    let mut fanout = fanout_config();
    fanout.session.types_max = 1;
    let server = Server::with(chancery_xds::Config::default(), fanout).await;
    let client = http2(&server).await;
    let mut other = call_on(client.clone(), grpc(DELTA_ADS).body(()).unwrap()).await;
    other.send.send_data(subscription("other"), false).unwrap();
    let first = other.next().await;
    other.ack(&first);
    let start = Instant::now();
    let looping = tokio::spawn(async move {
        for _ in 0..ROUNDS {
            assert_eq!(attempt(&client, SOTW_ADS, &two_types()).await, 8);
        }
    });
    let mut n_served = 0;
    while !looping.is_finished() {
        server.put(CDS, &[("a", &n_served.to_string())]);
        let response = other.next().await;
        other.ack(&response);
        n_served += 1;
        tokio::task::yield_now().await;
    }
    looping.await.unwrap();
    assert!(start.elapsed() >= TIME_MIN, "{ROUNDS} refusals in {:?}", start.elapsed());
    // A stream that waited for the refusals of the other one would have been served about as often as they ended.
    assert!(n_served > 10 * ROUNDS, "{n_served}");
    let n_refused = || {
        let refused = [("reason", "refused")];
        server.meter.counter("chancery_xds_stream_ends_total", &refused)
    };
    until("all refusals are counted", async || n_refused() == ROUNDS as u64).await;
}

/// OPS-20: the same holds for every protocol, and for streams that are refused before they are opened.
#[tokio::test]
async fn refusals_of_every_protocol_are_delayed() {
    let reports = LoadReports::new(Settings::default(), Limits::default()).unwrap();
    let config = chancery_xds::Config { load_reports: Some(reports), ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    let guarded = Guarded::start(None).await;
    let garbage = framed(0, &[0xff; 40]);
    let unknown = format!("{ADS}/FetchEverything");
    let cases = [
        (&server, SOTW_ADS, 3),
        (&server, DELTA_ADS, 3),
        (&server, SOTW_CDS, 3),
        (&server, SOURCE, 3),
        (&server, LRS, 3),
        (&server, &*unknown, 12),
        (&guarded.server, DELTA_ADS, 16),
    ];
    let start = Instant::now();
    let each = cases.map(|(server, path, code)| {
        let garbage = garbage.clone();
        async move {
            let client = http2(server).await;
            for _ in 0..ROUNDS {
                assert_eq!(attempt(&client, path, &garbage).await, code, "{path}");
            }
            assert!(start.elapsed() >= TIME_MIN, "{path}: {:?}", start.elapsed());
        }
    });
    join_all(each).await;
    // Nothing of the delayed refusals is left.
    server.until_no_stream().await;
    guarded.server.until_no_stream().await;
}

/// OPS-20: a client whose rights were revoked opens its stream again at once. Nothing delays the end of the stream that it
/// had.
#[tokio::test]
async fn client_without_access_is_refused_slowly() {
    let guarded = Guarded::start(None).await;
    let request = DeltaDiscoveryRequest {
        type_url: CDS.into(),
        node: node("n1"),
        ..DeltaDiscoveryRequest::default()
    };
    let request = framed(0, &request.encode_to_vec());
    let client = http2(&guarded.server).await;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let open = grpc(DELTA_ADS).header("authorization", format!("Bearer {}", guarded.token));
        let mut raw = call_on(client.clone(), open.body(()).unwrap()).await;
        raw.send.send_data(request.clone(), false).unwrap();
        assert_eq!(raw.status().await.0, 7);
    }
    assert!(start.elapsed() >= TIME_MIN, "{ROUNDS} refusals in {:?}", start.elapsed());
}

/// REST-20: refused polls have short delays, because Envoy gives up a poll after a second.
#[tokio::test]
async fn refused_polls_have_short_delays() {
    let server = Server::with(rest_config(), fanout_config()).await;
    let mut client = Http1::connect(&server).await;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        assert_eq!(client.post(REST_CDS, "{}").await.status, 400);
    }
    let passed = start.elapsed();
    assert!(passed >= Duration::from_millis(800), "{ROUNDS} refusals in {passed:?}");
    // A good poll is not delayed, but answered over the same connection.
    assert_eq!(client.post(REST_CDS, &poll("", &[])).await.status, 200);
}

/// OPS-15: delayed refusals end with their connection when the replica drains. Otherwise `close_timeout` would cut the
/// connection off before its client has the last ones, which wait for ten seconds.
#[tokio::test]
async fn drain_ends_delayed_refusals() {
    const STREAMS: usize = 20;
    let server = Server::start().await;
    let client = http2(&server).await;
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        open.push(call_on(client.clone(), grpc(DELTA_ADS).body(()).unwrap()).await);
    }
    for raw in &mut open {
        raw.send.send_data(framed(0, &[0xff; 40]), false).unwrap();
    }
    until("the first five have ended", async || server.fanout.n_streams() == STREAMS - 5).await;
    server.drain.cancel();
    for (code, _) in join_all(open.into_iter().map(Raw::status)).await {
        assert_eq!(code, 3);
    }
    server.until_no_stream().await;
}
