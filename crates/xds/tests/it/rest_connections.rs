//! The connections of REST clients: limits, large messages, slow clients, and the drain.

use std::time::Duration;

use chancery_xds::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::*;

/// OPS-15, REST-13: at a drain, a held poll is answered at once, and idle HTTP/1.1 connections close.
#[tokio::test]
async fn drain_ends_held_polls_and_idle_connections() {
    let config = Config { poll_hold: PATIENCE, ..rest_config() };
    let mut server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let mut idle = Http1::connect(&server).await;
    let (version, _) = idle.post(REST_CDS, &poll("", &[])).await.content();
    let mut silent = Http1::connect(&server).await;
    let mut held = Http1::connect(&server).await;
    held.send(REST_CDS, &poll(&version, &[])).await;
    until("it waits", async || server.meter.gauge("chancery_xds_held_polls") > 0.5).await;
    server.drain.cancel();
    let reply = held.reply().await;
    reply.expect_not_modified();
    assert_eq!(reply.headers["connection"], "close");
    assert!(held.is_closed().await && idle.is_closed().await && silent.is_closed().await);
    let served = tokio::time::timeout(PATIENCE, &mut server.task).await;
    served.expect("the server does not return").unwrap().unwrap();
    assert_eq!(server.ends("drain"), 3);
}

/// OPS-14, T1: an HTTP/1.1 connection without a request is closed, whatever part of a request it has
/// sent. The time limits are those of HTTP/2.
#[tokio::test]
async fn http1_connections_without_requests_are_closed() {
    let config = Config {
        // The clients of the second half have to send their requests in this time, too.
        first_stream_timeout: Duration::from_secs(2),
        idle_timeout: Duration::from_millis(300),
        close_timeout: Duration::from_millis(300),
        ..rest_config()
    };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let mut clients = Vec::new();
    for bytes in ["P", "POST /v3/discovery:clusters HTTP/1.1\r\nhost:"] {
        let mut client = Http1::connect(&server).await;
        client.0.write_all(bytes.as_bytes()).await.unwrap();
        clients.push((client, bytes));
    }
    for (mut client, bytes) in clients {
        assert!(client.is_closed().await, "{bytes}");
    }
    assert_eq!(server.ends("first_stream"), 2);
    for bytes in ["", "POST /v3/discovery:clusters HTTP/1.1\r\nhost:"] {
        let mut client = Http1::connect(&server).await;
        client.post(REST_CDS, &poll("", &[])).await.content();
        // After a pause of the machine, the connection may be closed already.
        drop(client.0.write_all(bytes.as_bytes()).await);
        assert!(client.is_closed().await, "{bytes}");
    }
    assert_eq!(server.ends("idle"), 2);
    server.until_left(0, 0).await;
}

/// OPS-13: an HTTP/1.1 connection that reaches its maximum age is closed after its current response.
#[tokio::test]
async fn http1_connection_ends_at_its_age() {
    let config = Config {
        // Both polls begin before this age, and the second is held beyond it.
        connection_age_max: Some(Duration::from_secs(2)),
        connection_age_grace: PATIENCE,
        poll_hold: Duration::from_millis(2500),
        ..rest_config()
    };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let mut client = Http1::connect(&server).await;
    let (version, _) = client.post(REST_CDS, &poll("", &[])).await.content();
    let reply = client.post(REST_CDS, &poll(&version, &[])).await;
    reply.expect_not_modified();
    assert!(client.is_closed().await);
    assert_eq!(server.ends("age"), 1);
}

/// T1: a request body that does not arrive ends its request after a time limit.
#[tokio::test]
async fn unfinished_body_ends_its_request() {
    let config = Config { large_request_timeout: Duration::from_millis(300), ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    let mut client = Http1::connect(&server).await;
    let head = format!("POST {REST_CDS} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{");
    client.0.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(client.reply().await.status, 408);
    assert_eq!(server.hits("large_request_timeout"), 1);
    // A client that leaves in the middle of a body frees its place.
    let mut client = Http1::connect(&server).await;
    client.0.write_all(head.as_bytes()).await.unwrap();
    drop(client);
    server.until_left(0, 0).await;
}

/// REST-20: a body that violates HTTP is answered with the violation. The connection is not lost.
#[tokio::test]
async fn malformed_chunks_are_named() {
    let server = Server::with(rest_config(), fanout_config()).await;
    let head = format!("POST {REST_CDS} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    for chunks in ["zz\r\n{}\r\n0\r\n\r\n", "fffffffffffffffffff\r\n{", "2\r\n{}{}\r\n0\r\n\r\n"] {
        let mut client = Http1::connect(&server).await;
        client.0.write_all(format!("{head}{chunks}").as_bytes()).await.unwrap();
        let reply = client.reply().await;
        assert_eq!(reply.status, 400, "{chunks}");
        assert!(reply.error().contains("the body is not valid HTTP: invalid chunk"), "{reply:?}");
    }
}

/// T1: a large body that stalls gives its memory back after a tenth of its time.
#[tokio::test]
async fn stalled_large_body_ends_its_request_early() {
    let config = Config { large_request_timeout: Duration::from_secs(10), ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    let mut client = Http1::connect(&server).await;
    let head = format!("POST {REST_CDS} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n");
    client.0.write_all(head.as_bytes()).await.unwrap();
    client.0.write_all(&vec![b' '; 600_000]).await.unwrap();
    let reply = client.reply().await;
    assert_eq!(reply.status, 408);
    assert!(String::from_utf8_lossy(&reply.body).contains("65536 bytes"), "{:?}", reply.body);
}

/// T6, REST-13: a poll with many names is not held, so that their memory is free at once.
#[tokio::test]
async fn large_unchanged_poll_is_answered_at_once() {
    let config = Config { poll_hold: 10 * PATIENCE, ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    server.put(EDS, &[("a", "1")]);
    let names: Vec<String> = (0..2000).map(|n| format!("missing-{n:05}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("a");
    let mut client = Http1::connect(&server).await;
    let (version, texts) = client.post(REST_EDS, &poll("", &names)).await.content();
    assert_eq!(texts, "1");
    client.post(REST_EDS, &poll(&version, &names)).await.expect_not_modified();
}

/// OPS-11: streams and polls of a connection have one limit together.
#[tokio::test]
async fn polls_of_a_connection_are_limited() {
    let config = Config { poll_hold: PATIENCE, streams_per_connection_max: 2, ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let client = http2(&server).await;
    let (version, _) = post2(&mut client.clone(), REST_CDS, &poll("", &[])).await.content();
    let held: Vec<_> = (0..2)
        .map(|_| {
            let (mut client, body) = (client.clone(), poll(&version, &[]));
            tokio::spawn(async move { post2(&mut client, REST_CDS, &body).await })
        })
        .collect();
    until("both wait", async || server.meter.gauge("chancery_xds_held_polls") > 1.5).await;
    let reply = post2(&mut client.clone(), REST_CDS, &poll("", &[])).await;
    assert_eq!(reply.status, 503);
    assert!(reply.error().contains("streams_per_connection_max"), "{reply:?}");
    server.put(CDS, &[("a", "2")]);
    for held in held {
        assert_eq!(held.await.unwrap().content().1, "2");
    }
}

/// SOTW-52, OPS-12: a request of megabytes with many names is served over both versions of HTTP.
#[tokio::test]
async fn large_request_is_served() {
    let server = Server::with(rest_config(), fanout_config()).await;
    server.put(EDS, &[("e7", "seven"), ("e49999", "last")]);
    let names: Vec<String> = (0..50_000).map(|n| format!("e{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut body = poll("", &names);
    body.push_str(&" ".repeat(1 << 20));
    let (version, texts) = Http1::connect(&server).await.post(REST_EDS, &body).await.content();
    assert_eq!(texts, "last seven", "in the order of names");
    let body = poll(&version, &names);
    let mut client = http2(&server).await;
    post2(&mut client, REST_EDS, &body).await.expect_not_modified();
}

/// SOTW-112, OPS-10, REST-18: clients that do not read a large full state delay nobody, and are cut off. The
/// response arrives unchanged at those that read it.
#[tokio::test]
async fn slow_readers_of_a_large_state_delay_nobody() {
    let config = Config {
        keepalive_interval: Duration::from_millis(1500),
        keepalive_timeout: Duration::from_millis(1500),
        ..rest_config()
    };
    let server = Server::with(config, fanout_config()).await;
    let large = "x".repeat(1 << 20);
    let all: Vec<String> = (0..24).map(|n| format!("c{n:02}")).collect();
    let all: Vec<_> = all.iter().map(|name| (name.as_str(), large.as_str())).collect();
    server.put(CDS, &all);
    let mut slow = Vec::new();
    for _ in 0..5 {
        let mut client = Http1::connect(&server).await;
        client.send(REST_CDS, &poll("", &[])).await;
        slow.push(client);
    }
    let mut good = Http1::connect(&server).await;
    for _ in 0..3 {
        let (version, texts) = good.post(REST_CDS, &poll("", &[])).await.content();
        assert_eq!(texts.len(), 24 * (1 << 20) + 23);
        good.post(REST_CDS, &poll(&version, &[])).await.expect_not_modified();
        assert_eq!(good.post(REST_CDS, &poll("", &["c01"])).await.content().1, large);
    }
    let mut two = http2(&server).await;
    assert_eq!(
        post2(&mut two, REST_CDS, &poll("", &[])).await.content().1.len(),
        24 * (1 << 20) + 23
    );
    until("the slow clients are cut off", async || server.ends("keepalive") >= 5).await;
    for mut client in slow {
        drop(client.0.read_to_end(&mut Vec::new()).await);
    }
}

/// OPS-11: responses to polls have a memory limit. Polls beyond it are rejected, and say when to retry.
#[tokio::test]
async fn responses_beyond_the_memory_limit_are_rejected() {
    let config = Config { poll_bytes_max: 1 << 20, ..rest_config() };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", &"x".repeat(600 << 10)), ("b", &"x".repeat(600 << 10))]);
    let mut client = Http1::connect(&server).await;
    let reply = client.post(REST_CDS, &poll("", &[])).await;
    assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (503, "1"));
    assert!(reply.error().contains("poll_bytes_max"), "{reply:?}");
    assert_eq!(server.hits("poll_bytes"), 1);
    client.post(REST_CDS, &poll("", &["a"])).await.content();
}
