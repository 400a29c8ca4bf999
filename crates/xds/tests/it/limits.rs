//! Limits: a client at a limit is served. A client beyond it is rejected with a text that names the
//! key, and is counted. Other clients are not affected.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use chancery_proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use chancery_xds::Config;
use prost::Message;
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::support::*;

/// Requests at a limit, and requests beyond it.
struct Case {
    /// The label of the metric.
    limit: &'static str,
    /// The text for the requests beyond the limit.
    text: &'static str,
    at: Vec<DeltaDiscoveryRequest>,
    beyond: Vec<DeltaDiscoveryRequest>,
}

fn request(type_url: &str, names: Vec<String>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.into(),
        node: node("limits"),
        resource_names_subscribe: names,
        ..DeltaDiscoveryRequest::default()
    }
}

fn names_of(n: usize, len: usize) -> Vec<String> {
    (0..n).map(|n| format!("{n:0>len$}")).collect()
}

/// Creates a request of `len` bytes.
fn sized(len: usize) -> DeltaDiscoveryRequest {
    let mut request = request(EDS, names_of(len / 200, 100));
    let missing = len - request.encoded_len();
    // The length of the field takes two bytes.
    request.response_nonce = "x".repeat(missing - 3);
    assert_eq!(request.encoded_len(), len);
    request
}

fn with_node(node: Bytes) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest { node: Some(node), ..request(EDS, names_of(1, 1)) }
}

fn node_of(len: usize) -> DeltaDiscoveryRequest {
    let node = |pad: usize| large_node("n", [("k".to_owned(), "x".repeat(pad))]);
    let pad = len - (node(200).len() - 200);
    assert_eq!(node(pad).len(), len);
    with_node(node(pad))
}

fn metadata_of(n: usize) -> DeltaDiscoveryRequest {
    with_node(large_node("n", (0..n).map(|n| (n.to_string(), String::new()))))
}

fn cases() -> Vec<Case> {
    // Names of all three lists count.
    let in_all = |n: usize| DeltaDiscoveryRequest {
        initial_resource_versions: (names_of(30, 3).into_iter())
            .map(|name| (name, "1-0".to_owned()))
            .collect(),
        resource_names_unsubscribe: names_of(n - 60, 4),
        ..request(EDS, names_of(30, 3))
    };
    let types = |n: usize| (0..n).map(|n| request(&format!("a/{n}"), names_of(1, 1))).collect();
    vec![
        Case {
            limit: "request_bytes",
            text: "a request of 10001 bytes exceeds the limit of 10000 bytes (request_bytes_max)",
            at: vec![sized(10_000)],
            beyond: vec![sized(10_001)],
        },
        Case {
            limit: "names_per_request",
            text: "a request names 121 resources, at most 120 are allowed (names_per_request_max)",
            at: vec![in_all(120)],
            beyond: vec![in_all(121)],
        },
        Case {
            limit: "names",
            text: "this stream subscribes to 101 names, at most 100 are allowed (names_max)",
            at: vec![request(EDS, names_of(50, 3)), request(CDS, names_of(50, 3))],
            beyond: vec![request(EDS, names_of(50, 3)), request(CDS, names_of(51, 3))],
        },
        Case {
            limit: "name_bytes",
            text: "a request names a resource in 301 bytes, at most 300 are allowed (name_bytes_max)",
            at: vec![request(EDS, names_of(1, 300))],
            beyond: vec![request(EDS, names_of(1, 301))],
        },
        Case {
            limit: "types",
            text: "this stream asks for more than 3 types (types_max)",
            at: types(3),
            beyond: types(4),
        },
        Case {
            limit: "node_bytes",
            text: "the node has 2001 bytes, at most 2000 are allowed (node_bytes_max)",
            at: vec![node_of(2000)],
            beyond: vec![node_of(2001)],
        },
        Case {
            limit: "node_metadata",
            text: "node.metadata has more than 20 scalars (node_metadata_max)",
            at: vec![metadata_of(20)],
            beyond: vec![metadata_of(21)],
        },
        Case {
            limit: "requests_per_second",
            text: "more than 1 requests per second (requests_per_second_max)",
            at: vec![request(EDS, names_of(1, 1)); 40],
            // Time passes, so there may be one or two more tokens.
            beyond: vec![request(EDS, names_of(1, 1)); 40 + 200],
        },
    ]
}

/// OPS-11, SOTW-52, T8: each limit of a request accepts requests at the limit. Requests beyond it are
/// rejected with a text that names the limit.
#[tokio::test]
async fn request_limits_accept_the_maximum_and_reject_more() {
    let mut fanout = fanout_config();
    fanout.session.names_max = 100;
    fanout.session.types_max = 3;
    let config = Config {
        names_per_request_max: 120,
        name_bytes_max: 300,
        requests_burst_max: 40,
        requests_per_second_max: 1,
        request_bytes_max: 10_000,
        node_bytes_max: 2000,
        node_metadata_max: 20,
        ..Config::default()
    };
    let server = Server::with(config, fanout).await;
    let mut good = Good::start(&server).await;
    for Case { limit, text, at, beyond } in cases() {
        let mut client = server.delta(DELTA_ADS).await;
        let n_types =
            at.iter().map(|r| &r.type_url).collect::<std::collections::BTreeSet<_>>().len();
        for request in at {
            client.send(request).await;
        }
        for _ in 0..n_types {
            client.next().await;
        }
        assert_eq!(server.hits(limit), 0, "{limit}");
        drop(client);

        let mut client = server.delta(DELTA_ADS).await;
        let sender = client.requests.take().unwrap();
        tokio::spawn(async move {
            for request in beyond {
                // The server may have rejected the stream already.
                if sender.send(request).await.is_err() {
                    return;
                }
            }
            sender.closed().await;
        });
        let status = client.end().await;
        assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, text));
        assert_eq!(server.hits(limit), 1, "{limit}");
        drop(client);
        good.is_served(&server).await;
        server.until_left(1, 1).await;
    }
}

/// SOTW-52: the limits apply to SotW in the same way.
#[tokio::test]
async fn limits_of_names_hold_for_sotw() {
    let mut fanout = fanout_config();
    fanout.session.names_max = 100;
    let config = Config { names_per_request_max: 120, ..Config::default() };
    let server = Server::with(config, fanout).await;
    for (n, text) in [
        (100, None),
        (101, Some("this stream subscribes to 101 names, at most 100 are allowed (names_max)")),
        (
            121,
            Some("a request names 121 resources, at most 120 are allowed (names_per_request_max)"),
        ),
    ] {
        let mut client = server.sotw(SOTW_ADS).await;
        client
            .send(DiscoveryRequest {
                type_url: CDS.into(),
                node: node("limits"),
                resource_names: names_of(n, 3),
                ..DiscoveryRequest::default()
            })
            .await;
        match text {
            None => assert_eq!(client.next().await.type_url, CDS),
            Some(text) => {
                let status = client.end().await;
                assert_eq!(status.code(), tonic::Code::ResourceExhausted);
                assert_eq!(status.message(), text);
            }
        }
    }
}

/// OPS-11, T5, attack 26: header lists slightly and far beyond the limit are rejected.
#[tokio::test]
async fn a_header_list_is_bounded() {
    let config = Config { header_list_bytes_max: 4096, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let padded = |n: usize| grpc(DELTA_ADS).header("x-pad", "x".repeat(n)).body(()).unwrap();
    // Computes the size of the other headers from the text of the rejection.
    let (code, text) = call(&server, padded(5000)).await.status().await;
    assert_eq!(code, 8);
    let found: usize = text.split_whitespace().nth(4).unwrap().parse().unwrap();
    let fits = 5000 - (found - 4096);
    drop(call(&server, padded(fits)).await);
    assert_eq!(server.hits("header_list_bytes"), 1);
    let status = call(&server, padded(fits + 1)).await.status().await;
    let text =
        "the request's headers have 4097 bytes, at most 4096 are allowed (header_list_bytes_max)";
    assert_eq!(status, (8, text.to_owned()));
    assert_eq!(server.hits("header_list_bytes"), 2);
    // Beyond twice the limit, HTTP/2 itself rejects the request.
    let mut frames = Frames::start(&server).await;
    let many: Vec<u8> = (0..60).flat_map(|n| header(&format!("x{n}"), &"y".repeat(120))).collect();
    frames.send(&frame(HEADERS, END_HEADERS, 1, &[call_headers(), many].concat())).await;
    let refused = frames.until(HEADERS).await;
    let status_431 = [0x48, 0x83, 0x69, 0x90, 0xff];
    assert_eq!(refused.payload, status_431, "the HPACK encoding of :status 431");
    good.is_served(&server).await;
    drop(frames);
    server.until_left(1, 1).await;
}

/// OPS-11: a connection rejects streams beyond its limit. Streams that end make room for others.
#[tokio::test]
async fn streams_beyond_the_limit_of_a_connection_are_rejected() {
    let config = Config { streams_per_connection_max: 3, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let channel = server.channel().await;
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(Delta::open(channel.clone(), DELTA_ADS).await.unwrap());
    }
    let status = Delta::open(channel.clone(), DELTA_ADS).await.err().unwrap();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let text = "this connection already has 3 streams (streams_per_connection_max); use aggregated \
                discovery or another connection";
    assert_eq!(status.message(), text);
    assert_eq!(server.hits("streams_per_connection"), 1);
    Good::start(&server).await.is_served(&server).await;
    open[0].subscribe(CDS, &[]).await;
    open[0].next().await;
    open.pop();
    until("a new stream is accepted", async || {
        Delta::open(channel.clone(), DELTA_ADS).await.is_ok()
    })
    .await;
}

/// OPS-11, CLI-G-15: a replica with the maximum number of streams rejects a new one before any
/// response. The client then backs off.
#[tokio::test]
async fn a_full_replica_refuses_new_streams_only() {
    let fanout = chancery_fanout::Config { streams_max: 2, ..fanout_config() };
    let server = Server::with(Config::default(), fanout).await;
    let mut good = Good::start(&server).await;
    let second = server.delta(DELTA_ADS).await;
    let status = Delta::open(server.channel().await, DELTA_ADS).await.err().unwrap();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let text = "this replica already serves 2 streams, the maximum (streams_max)";
    assert_eq!(status.message(), text);
    assert_eq!(server.hits("streams"), 1);
    good.is_served(&server).await;
    drop(second);
    until("a new stream is accepted", async || {
        Delta::open(server.channel().await, DELTA_ADS).await.is_ok()
    })
    .await;
}

/// Returns the text that a rejected connection receives.
async fn refusal(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    read.expect("the connection is still open").unwrap();
    assert_eq!((said[3], said[12]), (SETTINGS, GOAWAY));
    assert_eq!(said[22..26], ENHANCE_YOUR_CALM.to_be_bytes());
    String::from_utf8(said[26..].to_vec()).unwrap()
}

/// OPS-11, T7: connections beyond the limit are rejected with GOAWAY and an explanation. Open
/// connections are not affected.
#[tokio::test]
async fn connections_beyond_the_limit_are_rejected() {
    let config = Config { connections_max: 2, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let second = server.delta(DELTA_ADS).await;
    let third = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(refusal(third).await, "2 connections are open (connections_max)");
    assert_eq!(server.hits("connections"), 1);
    // REST-20: a client that polls over HTTP/1.1 receives a response in its own protocol.
    let mut poller = Http1::connect(&server).await;
    let reply = poller.post(REST_CDS, &poll("", &[])).await;
    assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (503, "1"));
    assert_eq!(reply.error(), "2 connections are open (connections_max)");
    assert!(poller.is_closed().await);
    good.is_served(&server).await;
    drop(second);
    server.until_left(1, 1).await;
    drop(server.delta(DELTA_ADS).await);
}

/// Attack 69: connections that send nothing, or only the start of HTTP/2, give way to clients.
#[tokio::test]
async fn connections_without_accepted_request_give_way_to_clients() {
    let config = Config { connections_max: 3, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    let with_preface = http2(&server).await;
    let n_open = async || server.meter.gauge("chancery_xds_connections") == 3.0;
    until("all slots are taken", n_open).await;
    let second = server.delta(DELTA_ADS).await;
    let third = server.delta(DELTA_ADS).await;
    until("they are closed", async || server.ends("limit") == 2).await;
    assert_eq!(server.hits("connections"), 2);
    let fourth = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(refusal(fourth).await, "3 connections are open (connections_max)");
    good.is_served(&server).await;
    drop((silent, with_preface, second, third));
}

/// OPS-11, T7: one address cannot take all connections.
#[tokio::test]
async fn connections_beyond_the_limit_of_an_address_are_rejected() {
    let config = Config { connections_per_peer_max: 3, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let from = |address: [u8; 4]| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).unwrap();
        socket.connect(server.address)
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(from([127, 0, 0, 2]).await.unwrap());
    }
    let text = "3 connections from your address are open (connections_per_peer_max)";
    assert_eq!(refusal(from([127, 0, 0, 2]).await.unwrap()).await, text);
    assert_eq!(server.hits("connections_per_peer"), 1);
    open.push(from([127, 0, 0, 3]).await.unwrap());
    until("all are open", async || server.meter.gauge("chancery_xds_connections") == 5.0).await;
    good.is_served(&server).await;
    drop(open);
    server.until_left(1, 1).await;
    let again = from([127, 0, 0, 2]).await.unwrap();
    until("the connection is accepted", async || {
        server.meter.gauge("chancery_xds_connections") == 2.0
    })
    .await;
    drop(again);
}

/// OPS-17, T8: large requests without memory wait, and proceed when there is memory.
#[tokio::test]
async fn large_requests_wait_for_memory_one_after_another() {
    let config = Config {
        // There is memory for one request at a time.
        large_requests_bytes_max: 8 << 20,
        request_bytes_max: 8 << 20,
        large_request_timeout: 5 * PATIENCE,
        ..Config::default()
    };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let half = |id: &str| {
        let version = |n: u32| (format!("{n:0>1000}"), "1-0".to_owned());
        let request = DeltaDiscoveryRequest {
            type_url: CDS.into(),
            node: node(id),
            initial_resource_versions: (0..900).map(version).collect(),
            ..DeltaDiscoveryRequest::default()
        };
        let mut first = framed(0, &request.encode_to_vec());
        let second = first.split_off(first.len() / 2);
        (first, second)
    };
    let mut waiting = Vec::new();
    for id in ["first", "second", "third"] {
        let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
        let (first, second) = half(id);
        assert!(raw.send_all(first).await);
        waiting.push((raw, second));
    }
    until("two wait", async || server.hits("large_requests_bytes") == 2).await;
    good.is_served(&server).await;
    for (mut raw, second) in waiting {
        assert!(raw.send_all(second).await);
        raw.next().await;
    }
    server.until_left(1, 1).await;
}

/// T8: a large request that stops halfway ends its stream and releases its memory.
#[tokio::test]
async fn stalled_large_request_ends_its_stream() {
    let config = Config { large_request_timeout: Duration::from_secs(2), ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let mut raw = call(&server, grpc(DELTA_ADS).body(()).unwrap()).await;
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(1 << 20);
    bytes.put_bytes(b'a', 500_000);
    // After a pause of the machine, the stream may have ended before all is sent.
    raw.send_all(bytes.freeze()).await;
    let text = "less than 65536 bytes of a large request arrived within 0.2 s (a tenth of \
                large_request_timeout)";
    assert_eq!(raw.status().await, (8, text.to_owned()));
    assert_eq!(server.hits("large_request_timeout"), 1);
    good.is_served(&server).await;
    server.until_left(1, 1).await;
}

/// L11, L12: when the memory for subscriptions is used up, a stream over its share is rejected, and a
/// small stream is served. A stream that ends releases its memory.
#[tokio::test]
async fn large_stream_is_refused_and_small_stream_is_served_when_memory_is_full() {
    let fanout = chancery_fanout::Config { subscriptions_bytes_max: 4 << 20, ..fanout_config() };
    let server = Server::with(Config::default(), fanout).await;
    let mut good = Good::start(&server).await;
    let held = || server.meter.gauge("chancery_xds_subscription_bytes");
    let mut hogs = Vec::new();
    let mut refused = 0;
    for n in 0..6 {
        let mut hog = server.delta(DELTA_ADS).await;
        // Each request takes about 2 MiB.
        hog.send(DeltaDiscoveryRequest {
            node: node(&format!("hog{n}")),
            ..request(EDS, names_of(10_000, 6))
        })
        .await;
        match hog.responses.message().await {
            Ok(_) => hogs.push(hog),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::ResourceExhausted);
                assert!(status.message().contains("more than its share of"), "{status}");
                refused += 1;
            }
        }
    }
    assert_eq!((hogs.len(), refused), (2, 4), "{} bytes are held", held());
    good.is_served(&server).await;
    // The small stream takes 300 KB of its share of 1.3 MiB. It is served, and one of the largest
    // streams ends.
    let mut small = server.delta(DELTA_ADS).await;
    small
        .send(DeltaDiscoveryRequest { node: node("small"), ..request(EDS, names_of(1500, 6)) })
        .await;
    small.next().await;
    until("a hog is ended", async || server.fanout.n_streams() == 3).await;
    assert_eq!(server.hits("subscriptions_bytes"), 5);
    let ends = hogs.iter_mut().map(|hog| Box::pin(hog.end()));
    let (status, ..) = futures::future::select_all(ends).await;
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.message().contains("the most of all streams"), "{status}");
    good.is_served(&server).await;
    assert_eq!(server.fanout.n_streams(), 3, "the other hog is still open");
    drop((hogs, small));
    server.until_left(1, 1).await;
    assert!(held() < 1.0, "{} bytes are held", held());
}
