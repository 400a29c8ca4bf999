//! Idle, slow and invalid connections of the admin port.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::support::{DEADLINE, Server};

fn connect(server: &Server, say: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(&server.admin).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(say).unwrap();
    stream
}

/// Returns all bytes until the other side closes the connection.
fn until_closed(mut stream: &TcpStream, what: &str) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{what} is not closed: {error}"),
    }
    all
}

/// Requests `/metrics` over HTTP/2 with an initial window of 0 bytes. Returns when the header of the answer has arrived.
fn without_window(server: &Server) -> TcpStream {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let len = u8::try_from(payload.len()).unwrap();
        [&[0, 0, len, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // GET, http, and the path and the authority as literals.
    let fields = [b"\x82\x86\x04\x08/metrics\x01\x09".as_slice(), b"localhost"].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let mut stream = connect(server, &[preface, &settings, &frame(1, 5, 1, &fields)].concat());
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let [high, middle, low, kind, ..] = head;
        let mut payload =
            vec![0; usize::from(low) | usize::from(middle) << 8 | usize::from(high) << 16];
        stream.read_exact(&mut payload).unwrap();
        if kind == 1 {
            return stream;
        }
    }
}

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Each kind of inactivity has its own time limit.
#[test]
fn silent_connection_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_with(
        &directory.path().join("data"),
        &[
            // The complete header of a request has to come within this time.
            ("CHANCERY_ADMIN_HEADER_TIMEOUT", "2s"),
            ("CHANCERY_ADMIN_IDLE_TIMEOUT", "600ms"),
            ("CHANCERY_ADMIN_BODY_TIMEOUT", "300ms"),
        ],
    );
    let body = b"POST /v1/apply HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nres";
    let idle_with_half_a_header = [HEALTH, b"GET"].concat();
    // HTTP/2: the preface and an empty SETTINGS frame, without a stream.
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let cases = [
        ("silence", b"".as_slice(), "", 1950),
        ("the start of HTTP/2", b"PRI", "", 1950),
        ("half a header", b"GET /healthz HTTP/1.1\r\nhost:", "", 1950),
        ("an idle connection of HTTP/1", HEALTH, "HTTP/1.1 200", 550),
        (
            "an idle connection of HTTP/1 with half a header",
            &idle_with_half_a_header,
            "HTTP/1.1 200",
            550,
        ),
        ("an idle connection of HTTP/2", greeting, "\0\0", 550),
        ("half a body", body, "HTTP/1.1 400", 250),
    ];
    std::thread::scope(|scope| {
        for (what, say, answer, milliseconds) in cases {
            let server = &server;
            scope.spawn(move || {
                let start = Instant::now();
                let stream = connect(server, say);
                let got = String::from_utf8_lossy(&until_closed(&stream, what)).into_owned();
                assert!(got.starts_with(answer), "{what}: {got}");
                assert!(!answer.is_empty() || got.is_empty(), "{what}: {got}");
                let passed = start.elapsed();
                assert!(passed >= Duration::from_millis(milliseconds), "{what}: {passed:?}");
            });
        }
    });
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn port_at_connection_limit_answers_health_checks() {
    let directory = tempfile::tempdir().unwrap();
    let max = [("CHANCERY_ADMIN_CONNECTIONS_MAX", "4"), ("CHANCERY_ADMIN_HEADER_TIMEOUT", "50s")];
    let server = Server::start_with(&directory.path().join("data"), &max);
    let health = || {
        let close = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer = until_closed(&connect(&server, close), "a health check");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let start = Instant::now();
    let idle: Vec<TcpStream> = (0..12).map(|_| connect(&server, b"")).collect();
    assert!(health().starts_with("HTTP/1.1 200"));
    // The oldest connections were closed for the new one, long before their time limit.
    until_closed(&idle[0], "the connection that was idle longest");
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());

    let begin = b"POST /v1/apply HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 100\r\n\r\n";
    let busy: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = connect(&server, begin);
            // The request for the body shows that the request has begun.
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"HTTP/1.1 100");
            stream
        })
        .collect();
    let refused = health();
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.ends_with("all connections are busy with requests (admin.connections_max)\n"));
    let refused = server.run(&["health"]);
    let reason = "all connections are busy with requests (admin.connections_max)";
    assert!(refused.code == 1 && refused.err.contains(reason), "{refused:?}");
    drop(busy);
    let start = Instant::now();
    while !health().starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < DEADLINE, "no connection is free again");
    }
    // Clients of HTTP/2 that permit no byte of the answer to `GET /metrics`.
    let _stalled: Vec<TcpStream> = (0..4).map(|_| without_window(&server)).collect();
    let start = Instant::now();
    while !health().starts_with("HTTP/1.1 200") {
        assert!(start.elapsed() < DEADLINE, "answers that nobody takes keep all connections busy");
    }
    assert_eq!(server.terminate().0, Some(0));
}

/// T6, OPS-20: bytes that are not a request are rejected, or their connection is closed, on both
/// ports. The next request is answered.
#[test]
fn garbage_on_a_port_is_not_treated_as_a_request() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let long_header = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let cases: [(&str, &[u8]); 6] = [
        (
            "TLS",
            b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n",
        ),
        ("zeros", &[0; 4096]),
        ("no HTTP", b"HELO example.com\r\n\r\n"),
        ("an invalid method", b"G@T / HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        ("a header that is too long", long_header.as_bytes()),
        ("invalid HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
    ];
    for (what, bytes) in cases {
        for address in [&server.admin, &server.xds] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            // The server may close the connection before all bytes are sent.
            drop(stream.write_all(bytes));
            let answer = until_closed(&stream, what);
            let is_http = answer.starts_with(b"HTTP/1.1 ");
            assert!(!is_http || answer.starts_with(b"HTTP/1.1 4"), "{what}: {answer:?}");
        }
        let health = connect(
            &server,
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        );
        let answer = until_closed(&health, "a health check");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{what}");
    }
    assert_eq!(server.terminate().0, Some(0));
}

/// PING, SETTINGS, WINDOW_UPDATE and PRIORITY cost an answer or a check each, and were unlimited. Their floods end on
/// all ports for HTTP/2 with the reason, and operators are served meanwhile.
#[test]
fn floods_of_frames_without_data_close_their_connection() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let path = socket.display().to_string();
    let environment = [("CHANCERY_ADMIN_SOCKET", path.as_str())];
    let server = Server::start_with(&directory.path().join("data"), &environment);
    let status = server.json(&["cluster", "status"], "");
    let raft = status["members"][0]["address"].as_str().unwrap().to_owned();
    // Kind, flags, and payload of a frame on the connection.
    let frames: [(u8, &[u8]); 4] =
        [(6, &[7; 8]), (4, &[]), (8, &[0, 0, 0, 1]), (2, &[0, 0, 0, 3, 0])];
    for (kind, payload) in frames {
        let stream = if kind == 2 { 1 } else { 0 };
        let len = u8::try_from(payload.len()).unwrap();
        let frame = [&[0, 0, len, kind, 0, 0, 0, 0, stream], payload].concat();
        let flood = frame.repeat(400_000);
        let tcp = |address: &str| {
            let stream = TcpStream::connect(address).unwrap();
            (stream.try_clone().unwrap(), stream)
        };
        for address in [&server.admin, &server.xds, &raft] {
            let (read, write) = tcp(address);
            read.set_read_timeout(Some(DEADLINE)).unwrap();
            assert_closed(read, write, &flood, &format!("kind {kind} to {address}"));
        }
        let stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let read = stream.try_clone().unwrap();
        assert_closed(read, stream, &flood, &format!("kind {kind} to the UNIX socket"));
        assert_eq!(server.json(&["cluster", "status"], "")["voters_up"], 1);
    }
    assert_eq!(server.terminate().0, Some(0));
}

/// Sends a flood after the start of HTTP/2, and checks that the server explains why it closes the connection.
fn assert_closed(
    mut read: impl Read + Send + 'static,
    mut write: impl Write,
    flood: &[u8],
    what: &str,
) {
    // Reading the answers meanwhile, because a server that cannot write its answers reads no more.
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let ended = read.read_to_end(&mut all).map(|_| ());
        (String::from_utf8_lossy(&all).into_owned(), ended)
    });
    let begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // The server may close the connection before all frames are sent.
    drop(write.write_all(begin).and_then(|()| write.write_all(flood)));
    let (answer, ended) = reader.join().unwrap();
    let is_explained = answer.contains("frames without data per second");
    // A reset may overtake the explanation.
    let is_reset =
        ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
    assert!(is_explained || is_reset, "{what} is not closed: {ended:?}");
}

/// T6, T7: a replica raises its soft limit of open files. Otherwise it would never reach its limits
/// of connections.
#[test]
fn the_limit_of_open_files_is_raised() {
    let directory = tempfile::tempdir().unwrap();
    let script = "ulimit -S -n 300 && exec \"$0\" \"$@\"";
    let server = Server::start_by(&["sh", "-c", script], &directory.path().join("data"), &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_ne!(numbers[0], "300", "{line}");
    assert_eq!(numbers[0], numbers[1], "{line}");
    assert_eq!(server.terminate().0, Some(0));
}
