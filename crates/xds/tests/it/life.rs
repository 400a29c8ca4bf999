//! The life of connections: GOAWAY before the end, probes, and the counted reason of the end.

use std::time::{Duration, Instant};

use chancery_xds::Config;

use crate::support::*;

/// Returns the code and the last stream of the next `GOAWAY`. Answers probes meanwhile.
async fn goaway(client: &mut Frames) -> (u32, u32) {
    loop {
        let frame = answered(client).await;
        if frame.kind == GOAWAY {
            let number =
                |at: usize| u32::from_be_bytes(frame.payload[at..at + 4].try_into().unwrap());
            return (number(4), number(0));
        }
        let is_end = frame.kind == HEADERS && frame.flags & END_STREAM != 0;
        assert!(!is_end, "a stream ends before its client receives GOAWAY");
    }
}

const END_STREAM: u8 = 1;

/// Returns the next frame. Answers it if it is a probe.
async fn answered(client: &mut Frames) -> Frame {
    let next = client.next().await.expect("closed");
    if (next.kind, next.flags) == (PING, 0) {
        client.send(&frame(PING, ACK, 0, &next.payload)).await;
    }
    next
}

/// Waits for the end of stream 1.
async fn end_of_stream(client: &mut Frames) {
    loop {
        let frame = answered(client).await;
        if (frame.kind, frame.stream, frame.flags & END_STREAM) == (HEADERS, 1, END_STREAM) {
            return;
        }
    }
}

/// OPS-13: the server sends GOAWAY on a connection that reaches its maximum age. Its streams continue in the
/// grace time, in which new streams on another connection are served. Then the old streams end.
#[tokio::test]
async fn goaway_precedes_stream_end_at_maximum_age() {
    let config = Config {
        connection_age_max: Some(Duration::from_millis(500)),
        connection_age_grace: Duration::from_secs(3),
        ..Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let start = Instant::now();
    let mut client = Frames::start(&server).await;
    client.subscribe(1, "aged").await;
    assert_eq!(goaway(&mut client).await, (NO_ERROR, i32::MAX.unsigned_abs()));
    let mut other = Frames::start(&server).await;
    other.subscribe(1, "other").await;
    other.until(DATA).await;
    server.put(CDS, &[("during the grace time", "1")]);
    // The client has not acknowledged its first response, so the next one waits for the ACK timeout.
    server.until_left(2, 2).await;
    end_of_stream(&mut client).await;
    // At least nine tenths of the age, and the grace time.
    assert!(start.elapsed() >= Duration::from_millis(450 + 3000), "{:?}", start.elapsed());
    client.end().await;
    until("the end is counted", async || server.ends("age") >= 1).await;
}

/// OPS-13: a client that follows GOAWAY sees no failed stream at the maximum age of its connection. Requests
/// that its library had not sent at the GOAWAY go to the next connection. gRPC does this itself; tonic leaves
/// it to its caller.
#[tokio::test]
async fn client_survives_connection_age_without_failed_stream() {
    let config = Config {
        connection_age_max: Some(Duration::from_millis(200)),
        connection_age_grace: Duration::from_secs(30),
        ..Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let channel = server.channel().await;
    let connections = || server.meter.counter("chancery_xds_connections_total", &[]);
    let mut n_streams = 0;
    while connections() < 5 {
        let mut client = match Delta::open(channel.clone(), DELTA_ADS).await {
            Ok(client) => client,
            Err(status) => {
                let text = "operation was canceled";
                assert_eq!((status.code(), status.message()), (tonic::Code::Cancelled, text));
                continue;
            }
        };
        client.subscribe(CDS, &[]).await;
        assert_eq!(names(&client.next().await), ["a"]);
        n_streams += 1;
    }
    assert!(n_streams >= 5, "only {n_streams} streams on 5 connections");
    drop(channel);
    server.until_left(0, 0).await;
    assert!(server.ends("age") >= 4);
}

/// OPS-15, T11: a drain sends GOAWAY to all clients at once. Their streams end one after the other, and
/// are served until then.
#[tokio::test]
async fn drain_sends_goaway_to_all_and_ends_streams_one_by_one() {
    const N: usize = 60;
    let config = Config {
        drain_connections_per_second: 20,
        drain_spread_max: Duration::from_secs(3),
        ..Config::default()
    };
    let mut server = Server::with(config, fanout_config()).await;
    let mut clients = Vec::new();
    for n in 0..N {
        let mut client = Frames::start(&server).await;
        client.subscribe(1, &format!("n{n}")).await;
        client.until(DATA).await;
        clients.push(client);
    }
    let start = Instant::now();
    server.drain.cancel();
    let mut ends: Vec<Duration> =
        futures::future::join_all(clients.iter_mut().map(async |client| {
            assert_eq!(goaway(client).await, (NO_ERROR, i32::MAX.unsigned_abs()));
            end_of_stream(client).await;
            start.elapsed()
        }))
        .await;
    ends.sort();
    // The ends are random within three seconds. The probability that the last is within one second is 3 to the
    // power of -60. A pause of the machine delays the first end, so the spread has a large margin.
    assert!(ends[N - 1] > Duration::from_secs(1), "{ends:?}");
    assert!(ends[N - 1] - ends[0] > Duration::from_millis(100), "{ends:?}");
    drop(clients);
    tokio::time::timeout(PATIENCE, &mut server.task)
        .await
        .expect("the server does not return")
        .unwrap()
        .unwrap();
    server.until_left(0, 0).await;
    assert_eq!(server.ends("drain"), u64::try_from(N).unwrap());
}

/// OPS-15: a stream is served in a drain until its turn to end.
#[tokio::test]
async fn draining_stream_is_served_until_its_turn() {
    let config = Config {
        drain_connections_per_second: 1,
        drain_spread_max: Duration::from_secs(3600),
        ..Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Good::start(&server).await);
    }
    server.drain.cancel();
    // The turns are random within twenty seconds, ten on average.
    let mut served = 0;
    for mut client in clients {
        served += usize::from(client.try_is_served(&server).await);
    }
    assert!(served >= 1, "no client is served during the drain");
}

/// Ends of connections are counted by reason.
#[tokio::test]
async fn connection_ends_are_counted_by_reason() {
    let config = Config {
        idle_timeout: Duration::from_millis(300),
        first_stream_timeout: Duration::from_secs(600),
        close_timeout: Duration::from_millis(300),
        ..Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut idle = Frames::start(&server).await;
    idle.subscribe(1, "idle").await;
    idle.until(DATA).await;
    idle.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())).await;
    assert_eq!(idle.end().await, Some((NO_ERROR, String::new())));
    until("the end is counted", async || server.ends("idle") == 1).await;
    let mut leaves = Frames::start(&server).await;
    leaves.subscribe(1, "leaves").await;
    leaves.until(DATA).await;
    drop(leaves);
    until("the end is counted", async || server.ends("client") == 1).await;
    server.until_left(0, 0).await;
    assert_eq!(server.meter.counter("chancery_xds_connection_ends_total", &[]), 2);
}
