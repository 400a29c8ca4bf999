//! Clients that do not read, do not answer, or send nothing.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use chancery_proto::discovery::DeltaDiscoveryRequest;
use chancery_xds::Config;
use tokio::io::AsyncWriteExt;

use crate::support::*;

/// Creates a configuration with timeouts of at most two seconds instead of tens of seconds. Correct clients meet them
/// even after a pause of the machine.
fn impatient() -> Config {
    Config {
        keepalive_interval: Duration::from_millis(400),
        keepalive_timeout: Duration::from_millis(1600),
        first_stream_timeout: Duration::from_secs(2),
        close_timeout: Duration::from_millis(300),
        ..Config::default()
    }
}

/// SOTW-112, L12: clients that never read delay no other client. The server neither stores nor builds their
/// responses before it can write them, even if answers of these clients are long overdue.
#[tokio::test]
async fn clients_that_never_read_delay_no_other_client() {
    let mut fanout = fanout_config();
    fanout.session.ack_timeout_ms = 100;
    let server = Server::with(Config::default(), fanout).await;
    let large = "x".repeat(1 << 20);
    server.put(CDS, &[("a", &large)]);
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
        raw.send.send_data(subscription("silent"), false).unwrap();
        silent.push(raw);
    }
    until("each client has a response in transit", async || {
        let nodes = server.fanout.nodes().await;
        let sent =
            |s: &chancery_fanout::StreamStatus| s.subscriptions.iter().any(|s| s.sent.is_some());
        nodes.iter().filter(|node| sent(node)).count() == 20
    })
    .await;
    let mut good = Good::start(&server).await;
    for n in 0..50 {
        server.put(CDS, &[("a", &format!("{large}{n}")), ("b", &n.to_string())]);
        good.is_served(&server).await;
    }
    // A client that finally reads gets the response that was in transit, and then the fifty commits
    // since in one response.
    let pushes = |raw: Raw| async move {
        let mut responses = raw;
        let first = responses.next().await;
        responses.ack(&first);
        let second = responses.next().await;
        (names(&first).join(" "), names(&second).join(" "), second.resources[1].clone())
    };
    let (first, second, newest) = pushes(silent.swap_remove(0)).await;
    assert_eq!((first.as_str(), second.as_str()), ("a", "a b good"));
    assert_eq!(newest.resource.unwrap().value, "49");
    drop(silent);
    server.until_left(1, 1).await;
}

/// Many streams of one connection do not block each other, even if none reads before all have been
/// written to.
#[tokio::test]
async fn streams_that_write_before_they_read_do_not_hang() {
    let server = Server::start().await;
    server.put(CDS, &[("a", &"x".repeat(50_000))]);
    let channel = server.channel().await;
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(Delta::open(channel.clone(), DELTA_ADS).await.unwrap());
    }
    for client in &clients {
        client.subscribe(CDS, &[]).await;
    }
    for round in 0..10 {
        server.put(CDS, &[("a", &format!("{round}{}", "x".repeat(50_000)))]);
        for client in &clients {
            for n in 0..5 {
                client.subscribe(EDS, &[&format!("e{n}")]).await;
            }
        }
    }
    // All read at the same time: the unread responses of some could take up the HTTP/2 window of the connection.
    futures::future::join_all(clients.iter_mut().map(async |client| {
        loop {
            let response = client.next().await;
            client.ack(&response).await;
            let newest = |r: &chancery_proto::discovery::Resource| {
                r.resource.as_ref().is_some_and(|any| any.value.starts_with(b"9"))
            };
            if response.resources.iter().any(newest) {
                break;
            }
        }
    }))
    .await;
}

/// SOTW-31: a client that never acknowledges receives the newest state after the timeout. Meanwhile
/// it is reported as pending.
#[tokio::test]
async fn a_client_that_never_acknowledges_is_pending_and_still_served() {
    let mut fanout = fanout_config();
    fanout.session.ack_timeout_ms = 300;
    let server = Server::with(chancery_xds::Config::default(), fanout).await;
    server.put(CDS, &[("a", "1")]);
    let mut client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    assert_eq!(names(&client.next().await), ["a"]);
    server.put(CDS, &[("b", "1")]);
    let revision = server.put(CDS, &[("c", "1")]);
    let unsettled = server.fanout.unsettled(revision).await;
    assert_eq!(unsettled.len(), 1);
    assert_eq!(unsettled[0].state, chancery_fanout::UnacknowledgedState::Pending);
    assert_eq!(names(&client.next().await), ["b", "c"]);
}

/// SOTW-112, T10: a client does not read from its socket, though HTTP/2 flow control lets the replica send.
/// The replica closes the connection. One client is silent. One sends a request now and then, so that it
/// needs no probe. One sends until both directions are stuck.
#[tokio::test]
async fn clients_that_do_not_read_their_sockets_are_disconnected() {
    let server = Server::with(impatient(), fanout_config()).await;
    let large = "x".repeat(1 << 20);
    let all: Vec<String> = (0..32).map(|n| format!("c{n}")).collect();
    let all: Vec<_> = all.iter().map(|name| (name.as_str(), large.as_str())).collect();
    let mut good = Good::start(&server).await;
    let window = (4, i32::MAX.unsigned_abs());
    let mut clients = Vec::new();
    for (from, id) in [(2, "silent"), (3, "talks"), (4, "floods")] {
        let mut client = Frames::start_small(&server, [127, 0, 0, from], &[window]).await;
        client.send(&frame(WINDOW_UPDATE, 0, 0, &(i32::MAX - 65_535).to_be_bytes())).await;
        client.subscribe(1, id).await;
        clients.push(client);
    }
    server.until_left(4, 4).await;
    server.put(CDS, &all);
    let request = |len: usize| {
        let request = DeltaDiscoveryRequest {
            type_url: CDS.into(),
            response_nonce: "x".repeat(len),
            ..DeltaDiscoveryRequest::default()
        };
        frame(DATA, 0, 1, &framed(0, &prost::Message::encode_to_vec(&request)))
    };
    let mut sending = Vec::new();
    for (pause, len) in [(Duration::ZERO, 10_000), (Duration::from_millis(50), 10)] {
        let (mut client, request) = (clients.pop().unwrap(), request(len));
        // The task ends with the connection.
        sending.push(tokio::spawn(async move {
            while client.stream.write_all(&request).await.is_ok() {
                tokio::time::sleep(pause).await;
            }
        }));
    }
    good.is_served(&server).await;
    // The client that floods may first receive an error because it exceeds its windows.
    let ends = || (server.ends("keepalive"), server.ends("protocol_error"));
    until("all three are closed", async || matches!(ends(), (3, 0) | (2, 1))).await;
    server.until_left(1, 1).await;
    for task in sending {
        tokio::time::timeout(PATIENCE, task).await.expect("the client can still send").unwrap();
    }
    good.is_served(&server).await;
}

/// OPS-14, L11: the connection of a client that does not answer a probe is closed. A client that
/// answers stays connected.
#[tokio::test]
async fn a_client_that_does_not_answer_a_probe_is_closed() {
    let server = Server::with(impatient(), fanout_config()).await;
    let mut good = Good::start(&server).await;
    let mut lost = Frames::start(&server).await;
    lost.subscribe(1, "lost").await;
    let mut answers = Frames::start(&server).await;
    answers.subscribe(1, "answers").await;
    for _ in 0..4 {
        let ping = answers.until(PING).await;
        assert_eq!(ping.flags, 0);
        answers.send(&frame(PING, ACK, 0, &ping.payload)).await;
    }
    until("the other connection is closed", async || server.ends("keepalive") >= 1).await;
    // The frames that the lost client would have read.
    let ping = lost.until(PING).await;
    assert_eq!(ping.flags, 0);
    assert_eq!(lost.end().await, Some((NO_ERROR, String::new())));
    good.is_served(&server).await;
    drop(answers);
    server.until_left(1, 1).await;
}

/// T5, T7: connections that send nothing, too little, or too slowly are closed.
#[tokio::test]
async fn connections_without_a_stream_are_closed() {
    // Unanswered probes would also close some of these connections.
    let config = Config { keepalive_interval: PATIENCE, ..impatient() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let settings = frame(SETTINGS, 0, 0, &[]);
    let half_headers = &open_stream(1)[..40];
    let headers_without_end = frame(HEADERS, 0, 1, &call_headers());
    let cases: [(&str, Vec<u8>); 6] = [
        ("nothing", vec![]),
        ("half a preface", PREFACE[..10].to_vec()),
        ("a preface", PREFACE.to_vec()),
        ("settings", [PREFACE, &settings].concat()),
        ("half a frame", [PREFACE, &settings, half_headers].concat()),
        ("headers without end", [PREFACE, &settings, &headers_without_end].concat()),
    ];
    let mut open = Vec::new();
    for (_, bytes) in &cases {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        open.push(stream);
    }
    // A client that sends one byte at a time has no more time than the others.
    let mut slow = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let slowly = tokio::spawn(async move {
        for byte in [PREFACE, &settings].concat().repeat(100) {
            if slow.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the server does not end the slow connection");
    });
    until("all are closed", async || server.ends("first_stream") == 7).await;
    for (stream, (what, _)) in open.iter_mut().zip(cases) {
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(stream, &mut rest);
        drop(tokio::time::timeout(PATIENCE, read).await.expect(what));
    }
    tokio::time::timeout(PATIENCE, slowly).await.expect("the slow client continues").unwrap();
    good.is_served(&server).await;
    server.until_left(1, 1).await;
}

/// T5: an unfinished header on a connection with a stream ends the connection. Its client cannot answer
/// a probe before the end of the header.
#[tokio::test]
async fn a_header_that_is_never_finished_ends_its_connection() {
    let server = Server::with(impatient(), fanout_config()).await;
    let mut good = Good::start(&server).await;
    let mut client = Frames::start(&server).await;
    client.subscribe(1, "slow").await;
    client.until(DATA).await;
    client.send(&frame(HEADERS, 0, 3, &call_headers())).await;
    until("the connection is closed", async || server.ends("keepalive") >= 1).await;
    good.is_served(&server).await;
    server.until_left(1, 1).await;
}

/// T7: a stream without a request takes a place and nothing else, and is not ended. Envoy keeps such a
/// stream open if none of its configuration comes over it.
#[tokio::test]
async fn streams_without_a_request_are_kept_open() {
    let server = Server::with(impatient(), fanout_config()).await;
    let mut good = Good::start(&server).await;
    let channel = server.channel().await;
    let mut mute = Vec::new();
    for _ in 0..500 {
        mute.push(Delta::open(channel.clone(), DELTA_ADS).await.unwrap());
    }
    for _ in 0..3 {
        tokio::time::sleep(impatient().keepalive_interval).await;
        good.is_served(&server).await;
    }
    assert_eq!(server.fanout.n_streams(), 501);
    mute[0].subscribe(CDS, &[]).await;
    assert_eq!(names(&mute[0].next().await), ["good"]);
    drop((mute, channel));
    server.until_left(1, 1).await;
}

/// T8, OPS-17: announced large requests that do not arrive, or stop halfway, delay no large request of
/// other clients.
#[tokio::test]
async fn unsent_large_requests_do_not_delay_other_large_requests() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    let announced = 64_u32 << 20;
    let mut open = Vec::new();
    for sent in [100, 100, 100, 100, 100, 100, 900_000, 900_000, 900_000] {
        let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
        let mut bytes = BytesMut::new();
        bytes.put_u8(0);
        bytes.put_u32(announced);
        bytes.put_bytes(b'a', sent);
        raw.send.send_data(bytes.freeze(), false).unwrap();
        open.push(raw);
    }
    for id in ["n1", "n2", "n3"] {
        let mut honest = server.delta(DELTA_ADS).await;
        let version = |n: u32| (format!("{n:0>1000}"), "1-00000000".to_owned());
        honest
            .send(DeltaDiscoveryRequest {
                type_url: CDS.into(),
                node: node(id),
                initial_resource_versions: (0..1000).map(version).collect(),
                ..DeltaDiscoveryRequest::default()
            })
            .await;
        assert_eq!(names(&honest.next().await), ["a"]);
    }
    drop(open);
}
