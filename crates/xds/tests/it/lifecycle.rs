//! The ends of streams and connections.

use std::time::Duration;

use chancery_model::{Assignment, AssignmentOp, NodeMatcher, ScopeTemplate, Transaction};
use tonic::Code;

use crate::support::*;

/// SOTW-111: a half-closed stream ends with OK after the response to its request, and its state is
/// freed.
#[tokio::test]
async fn half_closed_stream_is_served_and_ends_with_ok() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "a1")]);
    let mut client = server.sotw(SOTW_ADS).await;
    client.subscribe(CDS, &[]).await;
    client.requests = None;
    assert_eq!(bodies(&client.next().await), ["a1"]);
    assert_eq!(client.end().await.code(), Code::Ok);
    server.until_no_stream().await;
    let mut unused = server.sotw(SOTW_ADS).await;
    unused.requests = None;
    assert_eq!(unused.end().await.code(), Code::Ok);
}

/// SOTW-111: a canceled stream frees all its state, and the other streams of its connection continue.
#[tokio::test]
async fn a_cancelled_stream_is_freed_alone() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    let channel = server.channel().await;
    let mut stays = Delta::open(channel.clone(), DELTA_ADS).await.unwrap();
    let mut goes = Delta::open(channel, DELTA_ADS).await.unwrap();
    for client in [&mut stays, &mut goes] {
        client.subscribe(CDS, &[]).await;
        let first = client.next().await;
        client.ack(&first).await;
    }
    drop(goes);
    until("one stream is freed", async || server.fanout.nodes().await.len() == 1).await;
    server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&stays.next().await), ["a"]);
}

/// OPS-15, CLI-G-28: a drain ends every stream with UNAVAILABLE and a text, and returns when the
/// clients have disconnected.
#[tokio::test]
async fn a_drain_ends_streams_with_unavailable() {
    let mut server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = server.delta(DELTA_ADS).await;
        client.subscribe(CDS, &[]).await;
        client.next().await;
        clients.push(client);
    }
    clients.push(server.delta(DELTA_ADS).await);
    server.drain.cancel();
    for client in &mut clients {
        let status = client.end().await;
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().starts_with("draining: "), "{status}");
    }
    drop(clients);
    let served = tokio::time::timeout(PATIENCE, &mut server.task).await;
    served.expect("the server does not return").unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err());
}

/// OPS-15: a client that does not read cannot delay a drain.
#[tokio::test]
async fn a_drain_does_not_wait_for_clients_that_do_not_read() {
    let config = chancery_xds::Config {
        close_timeout: Duration::from_millis(200),
        ..chancery_xds::Config::default()
    };
    let mut server = Server::with(config, fanout_config()).await;
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let client = server.delta(DELTA_ADS).await;
    server.put(CDS, &[("a", &"x".repeat(8 << 20))]);
    client.subscribe(CDS, &[]).await;
    until("the client is served", async || server.fanout.nodes().await.len() == 1).await;
    server.drain.cancel();
    let served = tokio::time::timeout(PATIENCE, &mut server.task).await;
    served.expect("the server does not return").unwrap().unwrap();
    drop((stream, client));
}

/// OPS-13, SOTW-110, CLI-G-15: a connection reaches its maximum age. After the grace time, its streams end
/// with a status that clients treat as normal: OK, with the reason as text.
#[tokio::test]
async fn connection_ends_at_its_maximum_age() {
    let config = chancery_xds::Config {
        connection_age_max: Some(Duration::from_secs(2)),
        connection_age_grace: Duration::from_millis(300),
        ..chancery_xds::Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    server.put(CDS, &[("a", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    client.next().await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::Ok);
    assert!(status.message().contains("maximum age"), "{status}");
    server.until_no_stream().await;
}

/// A connection without a stream is closed after the timeout; a connection with a stream is not.
#[tokio::test]
async fn only_connections_without_streams_are_closed_as_idle() {
    let config = chancery_xds::Config {
        idle_timeout: Duration::from_millis(200),
        // The correct client has to open its stream in this time, too.
        first_stream_timeout: Duration::from_secs(2),
        close_timeout: Duration::from_millis(200),
        ..chancery_xds::Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    client.ack(&first).await;
    let mut idle = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut idle, &mut rest);
    drop(tokio::time::timeout(PATIENCE, read).await.expect("the connection is still open"));
    server.put(CDS, &[("a", "1")]);
    assert_eq!(names(&client.next().await), ["a"]);

    // This connection had a stream.
    let stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let closed = tokio::spawn(connection);
    let request = http::Request::post(format!("http://chancery{DELTA_ADS}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let mut client = client.ready().await.unwrap();
    let (response, send) = client.send_request(request, false).unwrap();
    drop((response.await.unwrap(), send));
    drop(tokio::time::timeout(PATIENCE, closed).await.expect("the connection is still open"));
    drop(client);
}

/// A changed assignment moves a connected node to its new view with the smallest delta.
#[tokio::test]
async fn a_changed_assignment_moves_a_connected_node() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1"), ("b", "1")]);
    server.apply(&Transaction {
        upserts: vec![upsert("node/n1", CDS, "b", "own")],
        ..Transaction::default()
    });
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    let first = client.next().await;
    assert_eq!(names(&first), ["a", "b"]);
    client.ack(&first).await;
    let template = |text| ScopeTemplate::parse(text).unwrap();
    server.assign(AssignmentOp::Put(Assignment {
        name: "own".into(),
        priority: 1,
        matcher: NodeMatcher::default(),
        scopes: vec![template("node/{node.id}"), template("default")],
    }));
    let second = client.next().await;
    assert_eq!(names(&second), ["b"]);
    assert_eq!(second.resources[0].resource.as_ref().unwrap().value, "own");
    let nodes = server.fanout.nodes().await;
    assert_eq!(nodes[0].assignment.as_deref(), Some("own"));
    assert_eq!(nodes[0].scopes, [scope("node/n1"), scope("default")]);
}

/// SOTW-92, DELTA-05: many clients reach the same newest state after many commits.
#[tokio::test]
async fn all_clients_converge_under_load() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "0")]);
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let mut client = server.delta(DELTA_ADS).await;
        client.subscribe(CDS, &[]).await;
        tasks.push(tokio::spawn(async move {
            let mut last = -1;
            while last < 300 {
                let response = client.next().await;
                let value = response.resources[0].resource.as_ref().unwrap().value.clone();
                let value: i32 = std::str::from_utf8(&value).unwrap().parse().unwrap();
                assert!(value > last, "{value} after {last}");
                last = value;
                client.ack(&response).await;
            }
        }));
    }
    for n in 1..=300 {
        server.put(CDS, &[("a", &n.to_string())]);
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}
