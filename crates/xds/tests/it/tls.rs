//! The port with TLS: which clients it serves, and that faulty ones delay nobody.

use std::{
    fs, io,
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_testing::{
    Ca, Leaf, expire_in,
    rcgen::{CertificateParams, date_time_ymd},
};
use chancery_tls::{ClientCertificates, MinVersion, PortTls, TlsConfig, TlsPort};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, SupportedProtocolVersion,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

use crate::support::*;

/// A server that requires certificates of a CA, and the files of its certificate.
struct TlsServer {
    ca: Ca,
    dir: TempDir,
    port: PortTls,
    server: Server,
}

impl TlsServer {
    async fn start(config: chancery_xds::Config) -> Self {
        let (ca, dir) = (Ca::new("ca"), tempfile::tempdir().unwrap());
        let (cert, key) = ca.loopback().write(dir.path(), "server");
        fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        fs::write(dir.path().join("crl.pem"), ca.revoke(&[])).unwrap();
        let files = TlsConfig {
            port: TlsPort::Xds,
            cert,
            key,
            ca: dir.path().join("ca.pem"),
            crl: dir.path().join("crl.pem"),
            min_version: MinVersion::Tls12,
            clients: ClientCertificates::default(),
        };
        // The meter of the test must exist before the metrics of the certificates.
        let meter = Meter::start();
        let port = PortTls::new(files).unwrap();
        let config = chancery_xds::Config { tls: Some(port.clone()), ..config };
        let server = Server::measured_with(meter, config, fanout_config()).await;
        Self { ca, dir, port, server }
    }

    /// Returns a client with a certificate that `change` adjusts. Like Envoy, it sends no ALPN.
    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        change: impl FnOnce(&mut CertificateParams),
    ) -> ClientConfig {
        self.client_with(version, Some(&self.ca.sign(&["client"], change)))
    }

    fn client_with(
        &self,
        version: &'static SupportedProtocolVersion,
        leaf: Option<&Leaf>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let Some(leaf) = leaf else { return builder.with_no_client_auth() };
        let chain = vec![CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    }

    async fn connect(&self, client: &ClientConfig) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.server.address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(client.clone())).connect(name, stream).await
    }

    /// Opens a channel over one TLS connection.
    async fn channel(&self, client: &ClientConfig) -> Result<Channel, tonic::transport::Error> {
        let connection = self.connect(client).await;
        let mut connection = Some(connection.map(TokioIo::new));
        let connector = tower::service_fn(move |_| {
            let connection = connection.take();
            async { connection.unwrap_or_else(|| Err(io::Error::other("only one connection"))) }
        });
        let endpoint = Endpoint::from_shared(format!("https://{}", self.server.address)).unwrap();
        endpoint.connect_with_connector(connector).await
    }

    /// Opens a stream that subscribes to all clusters, and acknowledges the first response.
    async fn subscribe(&self, client: &ClientConfig) -> Delta {
        let mut delta = Delta::open(self.channel(client).await.unwrap(), DELTA_ADS).await.unwrap();
        delta.subscribe(CDS, &[]).await;
        let first = delta.next().await;
        delta.ack(&first).await;
        delta
    }

    /// Connects, and waits until the server has refused the certificate.
    async fn refuses(&self, client: &ClientConfig, result: &str) {
        let before = self.handshakes(result);
        // In TLS 1.3, the client learns of the refusal only when it reads.
        let _connection = self.connect(client).await;
        until(result, async || self.handshakes(result) == before + 1).await;
    }

    fn handshakes(&self, result: &str) -> u64 {
        let labels = [("port", "xds"), ("result", result)];
        self.server.meter.counter("chancery_tls_handshakes_total", &labels)
    }
}

fn names(response: &chancery_proto::discovery::DeltaDiscoveryResponse) -> Vec<&str> {
    response.resources.iter().map(|resource| resource.name.as_str()).collect()
}

/// Envoy speaks at most TLS 1.2 unless its bootstrap says otherwise.
#[tokio::test]
async fn clients_of_tls_1_2_and_1_3_are_served() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "1")]);
    for (n, version) in [(1, &TLS12), (2, &TLS13)] {
        let client = tls.client(version, |_| ());
        let mut delta = tls.subscribe(&client).await;
        tls.server.put(CDS, &[("a", &format!("{version:?}"))]);
        assert_eq!(names(&delta.next().await), ["a"]);
        assert_eq!(tls.handshakes("ok"), n);
    }
}

/// REST polls use HTTP/1.1 on the same port.
#[tokio::test]
async fn rest_poll_over_tls_is_answered() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    let mut client = tls.client(&TLS13, |_| ());
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut connection = tls.connect(&client).await.unwrap();
    let body = "{\"node\":{\"id\":\"n\"}}";
    let request = format!(
        "POST /v3/discovery:clusters HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

/// attack 2, 3 and 10: no byte of the configuration goes to a client without an acceptable certificate. Each reason is
/// counted.
#[tokio::test]
async fn client_without_acceptable_certificate_is_refused() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("secret", "1")]);
    let foreign = Ca::new("other").sign(&["client"], |_| ());
    let mut ends = 0;
    for version in [&TLS12, &TLS13] {
        let cases = [
            ("no_certificate", tls.client_with(version, None)),
            ("unknown_ca", tls.client_with(version, Some(&foreign))),
            ("expired", tls.client(version, |leaf| leaf.not_after = date_time_ymd(2020, 1, 1))),
            (
                "not_yet_valid",
                tls.client(version, |leaf| leaf.not_before = date_time_ymd(2090, 1, 1)),
            ),
        ];
        for (result, client) in cases {
            let before = tls.handshakes(result);
            // In TLS 1.3, the client learns of the refusal only when it reads.
            if let Ok(mut connection) = tls.connect(&client).await {
                drop(connection.write_all(PREFACE).await);
                let mut read = Vec::new();
                connection.read_to_end(&mut read).await.unwrap_err();
                assert_eq!(read, b"");
            }
            until(result, async || tls.handshakes(result) == before + 1).await;
            ends += 1;
            until("the end is counted", async || tls.server.ends("tls") == ends).await;
        }
    }
    assert_eq!((tls.handshakes("ok"), tls.server.fanout.n_streams()), (0, 0));
}

/// attack 1: a client without TLS gets an alert of TLS, and no HTTP.
#[tokio::test]
async fn plaintext_on_a_tls_port_is_closed() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    for bytes in [PREFACE, b"POST /v3/discovery:clusters HTTP/1.1\r\n\r\n"] {
        let mut plain = TcpStream::connect(tls.server.address).await.unwrap();
        plain.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        drop(plain.read_to_end(&mut answer).await);
        assert!(answer.len() < 16, "{answer:?}");
    }
    until("both are counted", async || tls.handshakes("protocol") == 2).await;
}

/// Attack 53: clients that begin a handshake and never finish it hold only their own connections.
#[tokio::test]
async fn half_open_handshakes_delay_no_other_client() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "1")]);
    let client = tls.client(&TLS12, |_| ());
    let mut first = tls.subscribe(&client).await;
    let mut half_open = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(tls.server.address).await.unwrap();
        // Nothing, the start of a record, or the start of a ClientHello.
        let bytes: &[u8] =
            [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"][n % 3];
        stream.write_all(bytes).await.unwrap();
        half_open.push(stream);
    }
    until("all are open", async || tls.server.meter.gauge("chancery_xds_connections") == 201.0)
        .await;
    tls.server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&first.next().await), ["a"]);
    let _second = tls.subscribe(&client).await;
    assert_eq!((tls.handshakes("ok"), tls.handshakes("timeout")), (2, 0));
    drop(half_open);
    until("they are freed", async || tls.server.meter.gauge("chancery_xds_connections") == 2.0)
        .await;
    assert_eq!(tls.handshakes("closed"), 200);
}

/// Attack 69: handshakes that nobody finishes give way to a client, and a client keeps its connection.
#[tokio::test]
async fn half_open_handshakes_give_way_to_clients() {
    let config = chancery_xds::Config { connections_max: 3, ..chancery_xds::Config::default() };
    let tls = TlsServer::start(config).await;
    tls.server.put(CDS, &[("a", "1")]);
    let client = tls.client(&TLS13, |_| ());
    let mut first = tls.subscribe(&client).await;
    let mut half_open = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(tls.server.address).await.unwrap();
        stream.write_all(b"\x16\x03\x01").await.unwrap();
        half_open.push(stream);
    }
    until("all slots are taken", async || tls.server.hits("connections") == 8).await;
    let mut second = tls.subscribe(&client).await;
    tls.server.put(CDS, &[("b", "1")]);
    assert_eq!((names(&first.next().await), names(&second.next().await)), (vec!["b"], vec!["b"]));
    until("they are closed", async || tls.server.ends("limit") == 9).await;
    drop(half_open);
}

/// The explanation of a limit reaches only clients with a certificate.
#[tokio::test]
async fn connection_over_the_limit_receives_the_reason_over_tls() {
    let config = chancery_xds::Config { connections_max: 1, ..chancery_xds::Config::default() };
    let tls = TlsServer::start(config).await;
    let client = tls.client(&TLS13, |_| ());
    let _first = tls.subscribe(&client).await;
    let mut second = tls.connect(&client).await.unwrap();
    second.write_all(PREFACE).await.unwrap();
    let mut answer = Vec::new();
    second.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("1 connections are open (connections_max)"), "{text:?}");
    assert_eq!(tls.server.hits("connections"), 1);
    let stranger = tls.connect(&tls.client_with(&TLS13, None)).await;
    if let Ok(mut stranger) = stranger {
        stranger.read_to_end(&mut Vec::new()).await.unwrap_err();
    }
    until("the stranger is refused", async || tls.handshakes("no_certificate") == 1).await;
}

/// Attack 54: a flood of handshakes, each of which the server refuses, delays no established stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_handshakes_delays_no_stream() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "0")]);
    let mut stream = tls.subscribe(&tls.client(&TLS13, |_| ())).await;
    let stranger = tls.client_with(&TLS13, None);
    let flood = async || -> () {
        loop {
            // The client learns of the refusal when it reads.
            if let Ok(mut connection) = tls.connect(&stranger).await {
                drop(connection.read_to_end(&mut Vec::new()).await);
            }
        }
    };
    let updates = async {
        for n in 1..=20 {
            let before = tls.handshakes("no_certificate");
            tls.server.put(CDS, &[("a", &n.to_string())]);
            let response = stream.next().await;
            assert_eq!(names(&response), ["a"]);
            stream.ack(&response).await;
            until("the flood continues", async || tls.handshakes("no_certificate") > before).await;
        }
    };
    // The floods never end.
    tokio::select! {
        _ = futures::future::join4(flood(), flood(), flood(), flood()) => {}
        () = updates => {}
    }
    assert_eq!(tls.handshakes("ok"), 1);
}

/// Attack 55: the limits of HTTP/2 frames work inside TLS. A client on another connection is served meanwhile.
#[tokio::test]
async fn floods_over_tls_close_their_connection() {
    type Flood = fn(u32) -> Vec<u8>;
    let floods: [(&str, &str, Flood); 5] = [
        ("PING", "control_frames", |_| frame(PING, 0, 0, &[0; 8]).repeat(1000)),
        ("rapid reset", "http2_flood", |round| {
            let pair = |n: u32| {
                let reset = frame(RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes());
                [open_stream(2 * n + 1), reset].concat()
            };
            (round * 100..(round + 1) * 100).flat_map(pair).collect()
        }),
        ("CONTINUATION", "http2_flood", |round| match round {
            0 => frame(HEADERS, 0, 1, &call_headers()),
            _ => frame(CONTINUATION, 0, 1, &header("x", "y")).repeat(100),
        }),
        ("empty DATA", "http2_flood", |round| match round {
            0 => open_stream(1),
            _ => frame(DATA, 0, 1, &[]).repeat(100),
        }),
        ("HPACK bomb", "http2_flood", |_| {
            // A header of 3 KB goes into the table, and single bytes then repeat it: 30 MB.
            let mut bomb = [call_headers(), vec![0x40, 1, b'x', 0x7f, 0xb9, 0x16]].concat();
            bomb.extend_from_slice(&[b'y'; 0x7f + 0x39 + 0x16 * 128]);
            bomb.extend_from_slice(&[0x80 | 62; 10_000]);
            frame(HEADERS, END_HEADERS, 1, &bomb)
        }),
    ];
    for (what, limit, bytes) in floods {
        let tls = TlsServer::start(chancery_xds::Config::default()).await;
        tls.server.put(CDS, &[("a", "1")]);
        let mut good = tls.subscribe(&tls.client(&TLS13, |_| ())).await;
        let connection = tls.connect(&tls.client(&TLS13, |_| ())).await.unwrap();
        let (mut read, mut write) = tokio::io::split(connection);
        write.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
        let flood = async {
            for round in 0..100_000 {
                if write.write_all(&bytes(round)).await.is_err() {
                    return;
                }
            }
            panic!("{what}: the server accepts everything");
        };
        let answers = async { drop(read.read_to_end(&mut Vec::new()).await) };
        tokio::time::timeout(PATIENCE, async { tokio::join!(flood, answers) }).await.unwrap();
        until("the limit is counted", async || tls.server.hits(limit) == 1).await;
        assert_eq!(tls.server.ends("limit"), 1, "{what}");
        tls.server.put(CDS, &[("a", "2")]);
        assert_eq!(names(&good.next().await), ["a"], "{what}");
    }
}

/// A new certificate of the server, and a second CA of clients, apply to new connections. Open streams continue, and
/// receive nothing again.
#[tokio::test]
async fn replaced_certificate_and_added_ca_do_not_disturb_streams() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "1"), ("b", "1")]);
    let mut stream = tls.subscribe(&tls.client(&TLS12, |_| ())).await;
    let sent = || tls.server.meter.counter("chancery_xds_pushes_total", &[]);
    let before = sent();
    tls.ca.loopback().write(tls.dir.path(), "server");
    let new = Ca::new("new");
    fs::write(tls.dir.path().join("ca.pem"), tls.ca.pem() + &new.pem()).unwrap();
    tls.port.refresh();
    let renewed = tls.client_with(&TLS12, Some(&new.sign(&["client"], |_| ())));
    let mut other = tls.subscribe(&renewed).await;
    assert_eq!(sent(), before + 1, "only the new stream received a response");
    tls.server.put(CDS, &[("b", "2")]);
    assert_eq!(names(&stream.next().await), ["b"]);
    assert_eq!(names(&other.next().await), ["b"]);
    assert_eq!((tls.server.ends("client"), tls.server.ends("credential")), (0, 0));
}

/// attack 12: the removal of a CA ends the streams of its clients, and refuses their next handshake. The streams end
/// with OK, because grpc-js reports any other status to waiting calls.
#[tokio::test]
async fn removed_ca_ends_streams_of_its_clients_with_ok() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "1")]);
    let new = Ca::new("new");
    fs::write(tls.dir.path().join("ca.pem"), tls.ca.pem() + &new.pem()).unwrap();
    tls.port.refresh();
    let old = tls.client(&TLS13, |_| ());
    let mut ends = tls.subscribe(&old).await;
    let renewed = tls.client_with(&TLS13, Some(&new.sign(&["client"], |_| ())));
    let mut stays = tls.subscribe(&renewed).await;
    fs::write(tls.dir.path().join("ca.pem"), new.pem()).unwrap();
    tls.port.refresh();
    let status = ends.end().await;
    assert_eq!(status.code(), Code::Ok);
    assert!(status.message().contains("the CAs have changed; reconnect"), "{status}");
    tls.refuses(&old, "unknown_ca").await;
    tls.server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&stays.next().await), ["a"]);
    until("the end is counted", async || tls.server.ends("credential") == 1).await;
}

/// attack 11: a certificate that is on a new revocation list loses its open connection, too.
#[tokio::test]
async fn revoked_certificate_ends_its_streams_with_ok() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "1")]);
    let serial = |n: u64| tls.client(&TLS13, |leaf| leaf.serial_number = Some(n.into()));
    let revoked = serial(7);
    let (mut ends, mut stays) = (tls.subscribe(&revoked).await, tls.subscribe(&serial(8)).await);
    fs::write(tls.dir.path().join("crl.pem"), tls.ca.revoke(&[7])).unwrap();
    tls.port.refresh();
    let status = ends.end().await;
    assert_eq!(status.code(), Code::Ok);
    assert!(status.message().contains("is revoked; reconnect"), "{status}");
    tls.refuses(&revoked, "revoked").await;
    tls.server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&stays.next().await), ["a"]);
}

/// attack 35: a connection never outlives its certificate. A renewed certificate is accepted.
#[tokio::test]
async fn expiring_certificate_ends_its_streams_with_ok() {
    let tls = TlsServer::start(chancery_xds::Config::default()).await;
    tls.server.put(CDS, &[("a", "1")]);
    let lifetime = Duration::from_secs(5);
    let start = Instant::now();
    let client = tls.client(&TLS13, |leaf| expire_in(leaf, lifetime));
    let (mut ends, mut stays) =
        (tls.subscribe(&client).await, tls.subscribe(&tls.client(&TLS13, |_| ())).await);
    let _fresh = tokio::spawn(tls.port.clone().keep_fresh());
    let status = ends.end().await;
    assert_eq!(status.code(), Code::Ok);
    assert!(status.message().contains("about to expire; reconnect"), "{status}");
    // The margin before the expiry has unit tests in the crate `tls`.
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    let mut renewed = tls.subscribe(&tls.client(&TLS13, |_| ())).await;
    tls.server.put(CDS, &[("a", "2")]);
    assert_eq!(names(&stays.next().await), ["a"]);
    assert_eq!(names(&renewed.next().await), ["a"]);
}
