//! Clients that do not behave: none of them harms another stream.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use chancery_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest};
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::net::TcpStream;
use tonic::Code;

use crate::support::*;

/// An HTTP/2 client without gRPC on top.
async fn raw(server: &Server) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client.ready().await.unwrap()
}

struct Raw {
    send: h2::SendStream<Bytes>,
    response: Response<h2::RecvStream>,
}

async fn call(server: &Server, request: Request<()>) -> Raw {
    let mut client = raw(server).await;
    let (response, send) = client.send_request(request, false).unwrap();
    let response = tokio::time::timeout(PATIENCE, response).await.expect("no headers").unwrap();
    Raw { send, response }
}

fn grpc(path: &str) -> http::request::Builder {
    Request::post(format!("http://chancery{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// A gRPC message with these bytes, whatever they are.
fn framed(flag: u8, bytes: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(flag);
    framed.put_u32(u32::try_from(bytes.len()).unwrap());
    framed.put_slice(bytes);
    framed.freeze()
}

impl Raw {
    /// The trailers, after whatever comes before.
    async fn trailers(mut self) -> HeaderMap {
        let body = self.response.body_mut();
        let read = async {
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            body.trailers().await.unwrap().expect("no trailers")
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the stream goes on")
    }
}

/// SVC-26: what is not served says so, in the language in which it was asked.
#[tokio::test]
async fn what_is_not_served_says_so() {
    let server = Server::start().await;
    let unknown = format!("{ADS}/FetchEverything");
    let raw = call(&server, grpc(&unknown).body(()).unwrap()).await;
    assert_eq!(raw.response.status(), StatusCode::OK);
    assert_eq!(raw.response.headers()["grpc-status"], "12");
    let message = raw.response.headers()["grpc-message"].to_str().unwrap();
    assert!(message.contains("FetchEverything"), "{message}");
    for (path, status) in [
        (SOTW_ADS, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("/v3/discovery:clusters", StatusCode::NOT_FOUND),
        ("/", StatusCode::NOT_FOUND),
    ] {
        let request = Request::post(format!("http://chancery{path}"))
            .header("content-type", "application/json")
            .body(())
            .unwrap();
        assert_eq!(call(&server, request).await.response.status(), status, "{path}");
    }
    let get = Request::get(format!("http://chancery{SOTW_ADS}"))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
    let status = call(&server, get).await.response.status();
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

/// Design 4.13: headers come before the client has sent anything.
#[tokio::test]
async fn headers_come_at_once() {
    let server = Server::start().await;
    let raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
    assert_eq!(raw.response.status(), StatusCode::OK);
    assert_eq!(raw.response.headers()["content-type"], "application/grpc");
    drop(raw);
    server.until_no_stream().await;
}

/// OPS-20: bytes that are no request end their stream with a text, and nothing else.
#[tokio::test]
async fn malformed_input_ends_its_own_stream_only() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    let mut good = server.delta(DELTA_ADS).await;
    good.subscribe(CDS, &[]).await;
    let first = good.next().await;
    good.ack(&first).await;

    let cases: [(&str, Bytes, &str, &str); 6] = [
        ("garbage", framed(0, &[0xff; 40]), "3", "malformed DeltaDiscoveryRequest"),
        ("a string that is not UTF-8", framed(0, b"\x12\x02\xc3\x28"), "3", "malformed"),
        ("an unknown flag", framed(7, b""), "13", "flag 7"),
        ("compressed, undeclared", framed(1, b"xx"), "13", "no grpc-encoding"),
        ("too long", Bytes::from_static(b"\0\xff\xff\xff\xff"), "8", "request_bytes_max"),
        ("a broken node", framed(0, b"\x0a\x02\xff\xff"), "3", "malformed node"),
    ];
    for (what, bytes, code, text) in cases {
        let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
        raw.send.send_data(bytes, false).unwrap();
        let trailers = raw.trailers().await;
        assert_eq!(trailers["grpc-status"], code, "{what}: {trailers:?}");
        let message = trailers["grpc-message"].to_str().unwrap().replace("%20", " ");
        assert!(message.contains(text), "{what}: {message}");
    }
    let request = grpc(DELTA_ADS).header("grpc-encoding", "gzip").body(()).unwrap();
    let mut raw = call(&server, request).await;
    assert_eq!(raw.response.headers()["grpc-accept-encoding"], "identity");
    raw.send.send_data(framed(1, b"xx"), false).unwrap();
    assert_eq!(raw.trailers().await["grpc-status"], "12");

    let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
    raw.send.send_data(Bytes::from_static(b"\0\0\0"), true).unwrap();
    assert_eq!(raw.trailers().await["grpc-status"], "13", "it ends inside a message");

    server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&good.next().await), ["a"]);
}

/// SOTW-06, SOTW-03: a client says who it is, once and for all.
#[tokio::test]
async fn a_client_has_to_say_who_it_is() {
    let server = Server::start().await;
    let request =
        |node| DiscoveryRequest { type_url: CDS.into(), node, ..DiscoveryRequest::default() };
    for (id, text) in [(None, "has to carry a node"), (Some(""), "node.id is empty")] {
        let mut client = server.sotw(SOTW_ADS).await;
        client.send(request(id.and_then(node))).await;
        let status = client.end().await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(text), "{status}");
    }
    let mut client = server.sotw(SOTW_ADS).await;
    client.send(request(node("n1"))).await;
    let first = client.next().await;
    client.ack(&first, &[]).await;
    client.send(request(node("n2"))).await;
    let status = client.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("\"n1\"") && status.message().contains("\"n2\""), "{status}");
}

/// SOTW-112, L12: clients that never read delay nobody, and what they are owed is not stored up.
#[tokio::test]
async fn clients_that_never_read_delay_nobody() {
    let server = Server::start().await;
    let large = "x".repeat(1 << 20);
    server.put(CDS, &[("a", &large)]);
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
        raw.send.send_data(subscription(), false).unwrap();
        silent.push(raw);
    }
    until("each has a response on its way", async || {
        let nodes = server.fanout.nodes().await;
        let sent =
            |s: &chancery_fanout::StreamStatus| s.subscriptions.iter().any(|s| s.sent.is_some());
        nodes.iter().filter(|node| sent(node)).count() == 20
    })
    .await;
    let mut good = server.delta(DELTA_ADS).await;
    good.subscribe(CDS, &[]).await;
    let first = good.next().await;
    good.ack(&first).await;
    for n in 0..50 {
        server.put(CDS, &[("a", &format!("{large}{n}")), ("b", &n.to_string())]);
        let next = good.next().await;
        assert_eq!(names(&next), ["a", "b"]);
        good.ack(&next).await;
    }
    // One that reads at last is behind by the one response that was on its way; the fifty commits
    // since then are one response.
    let pushes = |raw: Raw| async move {
        let mut responses = Responses::new(raw);
        let first = responses.next().await;
        responses.ack(&first);
        let second = responses.next().await;
        (names(&first).join(" "), names(&second).join(" "), second.resources[1].clone())
    };
    let (first, second, newest) = pushes(silent.swap_remove(0)).await;
    assert_eq!((first.as_str(), second.as_str()), ("a", "a b"));
    assert_eq!(newest.resource.unwrap().value, "49");
}

/// Design 4.6, performance.md 0 point 8: many streams of one connection, none of which reads before
/// all have been written to; nothing hangs.
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
    for client in &mut clients {
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
    }
}

/// SOTW-31, design 4.6: a client that never acknowledges gets the newest state after the timeout, and
/// shows as pending until then.
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
    assert_eq!(unsettled[0].state, chancery_fanout::UnsettledState::Pending);
    assert_eq!(names(&client.next().await), ["b", "c"]);
}

/// OPS-11, SOTW-52: each limit refuses with a text that names it, and disturbs nobody.
#[tokio::test]
async fn every_limit_says_which_it_is() {
    let mut fanout = fanout_config();
    fanout.session.names_max = 10;
    fanout.session.types_max = 2;
    let config = chancery_xds::Config {
        streams_per_connection_max: 3,
        names_per_request_max: 20,
        requests_burst_max: 50,
        requests_per_second_max: 1,
        request_bytes_max: 10_000,
        ..chancery_xds::Config::default()
    };
    let server = Server::with(config, fanout).await;
    let many = |n: usize, len: usize| -> Vec<String> {
        (0..n).map(|n| format!("{n}{}", "x".repeat(len))).collect()
    };
    let request = |type_url: &str, names: Vec<String>| DeltaDiscoveryRequest {
        type_url: type_url.into(),
        node: node("n1"),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    };
    let cases = [
        ("names_per_request_max", vec![request(EDS, many(21, 0))]),
        ("at most 10 are allowed", vec![request(EDS, many(11, 0))]),
        ("at most 4096 are allowed", vec![request(EDS, many(1, 4096))]),
        ("request_bytes_max", vec![request(EDS, many(5, 4000))]),
        ("more than 2 types", ["a/a", "a/b", "a/c"].map(|url| request(url, vec![])).to_vec()),
        ("requests_per_second_max", vec![request(CDS, vec![]); 60]),
    ];
    for (text, requests) in cases {
        let mut client = server.delta(DELTA_ADS).await;
        let sender = client.requests.take().unwrap();
        tokio::spawn(async move {
            for request in requests {
                if sender.send(request).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        });
        let status = client.end().await;
        assert_eq!(status.code(), Code::ResourceExhausted, "{text}: {status}");
        assert!(status.message().contains(text), "{status}");
    }
    let channel = server.channel().await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(Delta::open(channel.clone(), DELTA_ADS).await.unwrap());
    }
    let status = Delta::open(channel.clone(), DELTA_ADS).await.err().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("streams_per_connection_max"), "{status}");
    open.pop();
    until("a place is free again", async || Delta::open(channel.clone(), DELTA_ADS).await.is_ok())
        .await;
}

/// OPS-11, CLI-G-15: a replica that serves as many streams as it may refuses one more at its start, before
/// any answer, so that the client backs off.
#[tokio::test]
async fn a_full_replica_refuses_new_streams_only() {
    let fanout = chancery_fanout::Config { streams_max: 2, ..fanout_config() };
    let server = Server::with(chancery_xds::Config::default(), fanout).await;
    let mut first = server.delta(DELTA_ADS).await;
    let _second = server.delta(DELTA_ADS).await;
    let status = Delta::open(server.channel().await, DELTA_ADS).await.err().unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("streams_max"), "{status}");
    first.subscribe(CDS, &[]).await;
    assert!(first.next().await.resources.is_empty());
}

/// L11: a connection that is cut, or says nothing, or nonsense, leaves nothing behind.
#[tokio::test]
async fn connections_that_break_are_freed() {
    let config = chancery_xds::Config {
        first_stream_timeout: Duration::from_millis(200),
        close_timeout: Duration::from_millis(200),
        ..chancery_xds::Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut nonsense = TcpStream::connect(server.address).await.unwrap();
    let mut mute = TcpStream::connect(server.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut nonsense, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    for stream in [&mut nonsense, &mut mute] {
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(stream, &mut rest);
        // An orderly close or a reset: it is over.
        drop(tokio::time::timeout(PATIENCE, read).await.expect("it is still open"));
    }
    let client = server.delta(DELTA_ADS).await;
    client.subscribe(CDS, &[]).await;
    until("the stream is known", async || server.fanout.nodes().await.len() == 1).await;
    drop(client);
    server.until_no_stream().await;
}

/// OPS-20, L11: requests with random damage, on every kind of stream, harm nobody.
#[tokio::test]
async fn damaged_requests_harm_nobody() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    server.put(EDS, &[("x", "1")]);
    let mut good = server.delta(DELTA_ADS).await;
    good.subscribe(CDS, &[]).await;
    let first = good.next().await;
    good.ack(&first).await;

    let whole = prost::Message::encode_to_vec(&DeltaDiscoveryRequest {
        type_url: EDS.into(),
        node: node("n1"),
        resource_names_subscribe: vec!["x".into(), "*".into(), "xdstp://a/b/c?d=e".into()],
        resource_names_unsubscribe: vec!["y".into()],
        initial_resource_versions: [("x".to_owned(), "1-00000000".to_owned())].into(),
        response_nonce: "1".into(),
        error_detail: Some(chancery_proto::discovery::Status {
            code: 3,
            message: "no".into(),
            details: vec![],
        }),
        ..DeltaDiscoveryRequest::default()
    });
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % u64::try_from(n).unwrap()).unwrap()
    };
    let mut client = raw(&server).await;
    for round in 0..400 {
        let path = [DELTA_ADS, SOTW_ADS, DELTA_CDS, SOTW_CDS][round % 4];
        client = client.ready().await.unwrap();
        let (response, mut send) =
            client.send_request(grpc(path).body(()).unwrap(), false).unwrap();
        for _ in 0..3 {
            let mut bytes = whole.clone();
            for _ in 0..below(4) {
                let at = below(bytes.len());
                bytes[at] = u8::try_from(below(256)).unwrap();
            }
            bytes.truncate(bytes.len() - below(2) * below(bytes.len()));
            // The stream may have been refused already.
            drop(send.send_data(framed(0, &bytes), false));
        }
        drop(send.send_data(Bytes::new(), true));
        let raw = Raw { send, response: response.await.unwrap() };
        let trailers = raw.trailers().await;
        assert!(trailers.contains_key("grpc-status"), "{trailers:?}");
    }
    drop(client);
    until("only the good one is left", async || server.fanout.n_streams() == 1).await;
    server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&good.next().await), ["a"]);
}

/// T8, OPS-17: large requests that are announced and do not come, or stop halfway, delay no honest one.
#[tokio::test]
async fn requests_that_do_not_come_delay_no_large_one() {
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

/// L11: a connection may break at any moment of a stream's opening.
#[tokio::test]
async fn connections_that_break_while_streams_open_are_freed() {
    let server = Server::start().await;
    for round in 0..200 {
        let stream = TcpStream::connect(server.address).await.unwrap();
        // Dropped, it is reset and not closed.
        stream.set_zero_linger().unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let mut client = client.ready().await.unwrap();
        let mut open = Vec::new();
        for _ in 0..5 {
            let (response, mut send) =
                client.send_request(grpc(DELTA_ADS).body(()).unwrap(), false).unwrap();
            send.send_data(subscription(), false).unwrap();
            open.push((response, send));
        }
        // Far enough to have sent something, and now and then everything.
        let patience = Duration::from_micros(50 * (round % 20));
        drop(tokio::time::timeout(patience, connection).await);
    }
    server.until_no_stream().await;
}

/// OPS-11: one connection too many is closed; the others do not notice.
#[tokio::test]
async fn a_replica_takes_only_so_many_connections() {
    let config = chancery_xds::Config { connections_max: 2, ..chancery_xds::Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut first = server.delta(DELTA_ADS).await;
    let second = server.delta(DELTA_ADS).await;
    let mut third = TcpStream::connect(server.address).await.unwrap();
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut third, &mut rest);
    drop(tokio::time::timeout(PATIENCE, read).await.expect("it is still open"));
    first.subscribe(CDS, &[]).await;
    first.next().await;
    drop(second);
    until("a place is free again", async || {
        let opened = tokio::time::timeout(Duration::from_millis(500), server.channel()).await;
        match opened {
            Ok(channel) => Delta::open(channel, DELTA_ADS).await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
}

fn subscription() -> Bytes {
    let request = DeltaDiscoveryRequest {
        type_url: CDS.into(),
        node: node("silent"),
        ..DeltaDiscoveryRequest::default()
    };
    framed(0, &prost::Message::encode_to_vec(&request))
}

/// Reads the gRPC messages of a raw stream.
struct Responses {
    raw: Raw,
    buffer: BytesMut,
}

impl Responses {
    fn new(raw: Raw) -> Self {
        Self { raw, buffer: BytesMut::new() }
    }

    async fn next(&mut self) -> DeltaDiscoveryResponse {
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<5>() {
                let len = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
                if self.buffer.len() >= 5 + len {
                    let message = self.buffer.split_to(5 + len).freeze().slice(5..);
                    return prost::Message::decode(message).unwrap();
                }
            }
            let body = self.raw.response.body_mut();
            let data = tokio::time::timeout(PATIENCE, body.data()).await.expect("no data");
            let data = data.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            self.buffer.extend_from_slice(&data);
        }
    }

    fn ack(&mut self, response: &DeltaDiscoveryResponse) {
        let request = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        let bytes = framed(0, &prost::Message::encode_to_vec(&request));
        self.raw.send.send_data(bytes, false).unwrap();
    }
}
