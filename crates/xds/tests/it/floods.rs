//! Bytes that are not HTTP/2, and malicious HTTP/2 (T5). Each affects only its own connection. The
//! texts that the client receives are checked to the letter.

use chancery_xds::Config;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::*;

/// Checks that the connection has ended with `ENHANCE_YOUR_CALM` and this text, was counted, and has
/// left nothing. A client on another connection is served meanwhile.
async fn expect_enhance_your_calm(
    server: &Server,
    good: &mut Good,
    what: &str,
    last: Option<(u32, String)>,
    (limit, text): (&str, &str),
) {
    good.is_served(server).await;
    // A client that continues to send may lose the last frames from the server.
    if let Some((code, said)) = last {
        assert_eq!(code, ENHANCE_YOUR_CALM, "{what}: {said}");
        assert!(said.starts_with(text), "{what}: {said}");
    }
    server.until_left(1, 1).await;
    assert_eq!((server.hits(limit), server.ends("limit")), (1, 1), "{what}");
}

const HTTP2_FLOOD: &str = "http2_flood";
const CONTROL: (&str, &str) = (
    "control_frames",
    "more than 1000 frames without data per second (control_frames_per_second_max)",
);

/// T1, T6: a connection with bytes that are not HTTP is closed.
#[tokio::test]
async fn invalid_http_closes_its_connection() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let tls: &[u8] =
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let cases: [(&str, &[u8]); 5] = [
        ("TLS", tls),
        ("only zeros", &[0; 1000]),
        ("a broken header of HTTP/1.1", b"GET / HTTP/1.1\r\n\0: x\r\n\r\n"),
        ("a proxy's greeting", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"),
        (
            "a preface, then nonsense",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ),
    ];
    for (n, (what, bytes)) in cases.into_iter().enumerate() {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        // The result may be an orderly close or a reset.
        drop(read.unwrap_or_else(|_| panic!("{what}: the connection is still open")));
        until(what, async || server.ends("protocol_error") == u64::try_from(n).unwrap() + 1).await;
    }
    good.is_served(&server).await;
    server.until_left(1, 1).await;
}

/// T5: streams are opened and reset at once (CVE-2023-44487).
#[tokio::test]
async fn rapid_resets_close_their_connection() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let client = Frames::start(&server).await;
    let last = client
        .flood(|round| {
            let cancel = 8_u32.to_be_bytes();
            let pair = |n: u32| {
                let stream = 2 * n + 1;
                [open_stream(stream), frame(RST_STREAM, 0, stream, &cancel)].concat()
            };
            (round * 100..(round + 1) * 100).flat_map(pair).collect()
        })
        .await;
    expect_enhance_your_calm(
        &server,
        &mut good,
        "rapid reset",
        last,
        (HTTP2_FLOOD, "too_many_resets"),
    )
    .await;
}

/// T5: streams are reset by the server because of client errors (CVE-2025-8671).
#[tokio::test]
async fn streams_that_have_to_be_reset_close_their_connection() {
    let config = Config { error_resets_max: 100, ..Config::default() };
    let server = Server::with(config, fanout_config()).await;
    let mut good = Good::start(&server).await;
    let client = Frames::start(&server).await;
    let last = client
        .flood(|round| {
            let stream = 2 * round + 1;
            // A window that overflows is an error of the stream.
            let most = i32::MAX.to_be_bytes();
            [open_stream(stream), frame(WINDOW_UPDATE, 0, stream, &most)].concat()
        })
        .await;
    let expected = (HTTP2_FLOOD, "too_many_internal_resets");
    expect_enhance_your_calm(&server, &mut good, "made you reset", last, expected).await;
}

/// T5: headers never end (RUSTSEC-2024-0332).
#[tokio::test]
async fn headers_without_end_close_their_connection() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let client = Frames::start(&server).await;
    let last = client
        .flood(|round| match round {
            0 => frame(HEADERS, 0, 1, &call_headers()),
            _ => frame(CONTINUATION, 0, 1, &header("x", "y")),
        })
        .await;
    let expected = (HTTP2_FLOOD, "too_many_continuations");
    expect_enhance_your_calm(&server, &mut good, "CONTINUATION", last, expected).await;
}

/// T5: a few bytes of compressed headers expand to a very large header list.
#[tokio::test]
async fn an_hpack_bomb_closes_its_connection() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let mut client = Frames::start(&server).await;
    // A header of 3 KB goes into the table, and single bytes then repeat it: 30 MB.
    let mut bomb = [call_headers(), vec![0x40, 1, b'x', 0x7f, 0xb9, 0x16]].concat();
    bomb.extend_from_slice(&[b'y'; 0x7f + 0x39 + 0x16 * 128]);
    bomb.extend_from_slice(&[0x80 | 62; 10_000]);
    client.send(&frame(HEADERS, END_HEADERS, 1, &bomb)).await;
    let last = client.end().await;
    let expected = (HTTP2_FLOOD, "header_list_way_too_large");
    expect_enhance_your_calm(&server, &mut good, "HPACK bomb", last, expected).await;
}

/// T5: data frames have no data.
#[tokio::test]
async fn empty_data_frames_close_their_connection() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let client = Frames::start(&server).await;
    let last = client
        .flood(|round| match round {
            0 => open_stream(1),
            _ => frame(DATA, 0, 1, &[]).repeat(100),
        })
        .await;
    let expected = (HTTP2_FLOOD, "too_many_data_frames");
    expect_enhance_your_calm(&server, &mut good, "empty DATA", last, expected).await;
}

/// T5: frames without data each cost an answer or a check.
#[tokio::test]
async fn floods_of_control_frames_close_their_connection() {
    let floods: [(&str, Vec<u8>); 6] = [
        ("PING", frame(PING, 0, 0, b"12345678")),
        ("answers to no PING", frame(PING, ACK, 0, b"12345678")),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 16])),
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("frames of an unknown kind", frame(0xee, 0, 0, b"")),
    ];
    for (what, bytes) in floods {
        let server = Server::start().await;
        let mut good = Good::start(&server).await;
        let client = Frames::start(&server).await;
        let last = client.flood(|_| bytes.repeat(500)).await;
        expect_enhance_your_calm(&server, &mut good, what, last, CONTROL).await;
    }
}

/// OPS-14, CLI-E-43: the keepalive pings of clients, and far more frequent ones, are not a flood.
/// Before the fix, a client that sent ten pings per second only had the tokens of its burst.
#[tokio::test]
async fn pings_of_a_client_that_keeps_its_connection_alive_are_answered() {
    let server = Server::start().await;
    let mut client = Frames::start(&server).await;
    client.subscribe(1, "pings").await;
    for n in 0..5000_u64 {
        client.send(&frame(PING, 0, 0, &n.to_be_bytes())).await;
        let pong = client.until(PING).await;
        assert_eq!((pong.flags, pong.payload), (ACK, n.to_be_bytes().to_vec()));
    }
    assert_eq!(server.hits("control_frames"), 0);
    server.until_left(1, 1).await;
}

/// T5: a window update exceeds the maximum size of a window.
#[tokio::test]
async fn window_overflow_closes_its_stream_or_connection() {
    let server = Server::start().await;
    let mut good = Good::start(&server).await;
    let most = i32::MAX.to_be_bytes();
    let mut client = Frames::start(&server).await;
    client.subscribe(1, "widens").await;
    client.until(DATA).await;
    client.send(&frame(WINDOW_UPDATE, 0, 1, &most)).await;
    let reset = client.until(RST_STREAM).await;
    assert_eq!((reset.stream, reset.payload), (1, FLOW_CONTROL_ERROR.to_be_bytes().to_vec()));
    server.until_left(2, 1).await;
    client.send(&frame(WINDOW_UPDATE, 0, 0, &most)).await;
    assert_eq!(client.end().await.unwrap().0, FLOW_CONTROL_ERROR);
    server.until_left(1, 1).await;
    assert_eq!(server.ends("protocol_error"), 1);
    good.is_served(&server).await;
}
