//! Key sets over HTTP: which answers are accepted, and how many requests are made.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chancery_testing::Ca;
use chancery_tls::{ClientCertificates, MinVersion, PortTls, Security, TlsConfig, TlsPort};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::{
    key_set::{Algorithm, Verdict},
    settings::IssuerKind,
};

/// A server of a key set.
struct Server {
    port: u16,
    n_requests: Arc<AtomicUsize>,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl Server {
    async fn start(security: Security) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Self { port, n_requests: Arc::default(), answer: Arc::default() };
        let (n_requests, answer) = (Arc::clone(&server.n_requests), Arc::clone(&server.answer));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                n_requests.fetch_add(1, Ordering::Relaxed);
                let Ok(mut stream) = security.accept(stream).await else { continue };
                let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
                while !request.ends_with(b"\r\n\r\n") {
                    let n = stream.read(&mut buffer).await.unwrap();
                    request.extend_from_slice(&buffer[..n]);
                }
                assert!(request.starts_with(b"GET /keys HTTP/1.1\r\n"));
                let answer = answer.lock().clone();
                // The client may close the connection before it has read everything.
                drop(stream.write_all(&answer).await);
                drop(stream.shutdown().await);
            }
        });
        server
    }

    fn answer(&self, status: &str, body: &str) {
        let len = body.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\n\r\n{body}");
        *self.answer.lock() = answer.into_bytes();
    }

    fn n_requests(&self) -> usize {
        self.n_requests.load(Ordering::Relaxed)
    }

    fn source(&self, scheme: &str, ca: Option<PathBuf>) -> Arc<KeySource> {
        let url = format!("{scheme}://127.0.0.1:{}/keys", self.port).parse().unwrap();
        let settings = IssuerSettings {
            name: "corp".to_owned(),
            kind: IssuerKind::Jwt,
            url: "https://idp".to_owned(),
            audience: vec!["chancery".to_owned()],
            algorithms: vec![Algorithm::EdDsa],
            keys: KeyLocation::Url { url, ca },
        };
        Arc::new(KeySource::open(&settings).unwrap())
    }
}

fn set(id: &str) -> String {
    let x = URL_SAFE_NO_PAD.encode([1; 32]);
    format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"{id}"}}]}}"#)
}

fn has(source: &KeySource, id: &str) -> bool {
    source
        .keys()
        .is_some_and(|(keys, _)| keys.verify(id, Algorithm::EdDsa, b"", b"") != Verdict::UnknownKey)
}

/// attack 29: tokens with unknown keys cause one request within 30 seconds, and wait for it together.
#[tokio::test]
async fn unknown_keys_cause_one_request() {
    let server = Server::start(Security::Plain).await;
    server.answer("200 OK", &set("a"));
    let source = server.source("http", None);
    assert!(source.keys().is_none());
    let waits: Vec<_> = (0..1000)
        .map(|_| {
            let source = Arc::clone(&source);
            tokio::spawn(async move {
                source.refresh_for_unknown_key().await;
                assert!(has(&source, "a"));
            })
        })
        .collect();
    for wait in waits {
        wait.await.unwrap();
    }
    source.keep_fresh().await;
    assert_eq!(server.n_requests(), 1);
}

/// attack 30: no bad answer replaces a good key set.
#[tokio::test]
async fn bad_answer_keeps_the_last_good_keys() {
    let server = Server::start(Security::Plain).await;
    let source = server.source("http", None);
    server.answer("200 OK", &set("a"));
    source.request(Duration::ZERO).await;
    assert!(has(&source, "a"));
    let huge = format!("{}{}", " ".repeat(2 << 20), set("b"));
    for (status, body) in [
        ("302 Found\r\nlocation: /keys", set("b")),
        ("500 Internal Server Error", set("b")),
        ("204 No Content", String::new()),
        ("200 OK", String::new()),
        ("200 OK", "<html>".to_owned()),
        ("200 OK", r#"{"keys":[]}"#.to_owned()),
        ("200 OK", huge),
    ] {
        server.answer(status, &body);
        source.request(Duration::ZERO).await;
        assert!(has(&source, "a") && !has(&source, "b"), "{status}");
        assert_eq!(source.generation(), 1);
    }
    *server.answer.lock() = b"garbage".to_vec();
    source.request(Duration::ZERO).await;
    assert!(has(&source, "a"));
    server.answer("200 OK", &set("b"));
    source.request(Duration::ZERO).await;
    assert!(has(&source, "b") && !has(&source, "a"));
    assert_eq!(source.generation(), 2);
}

/// attack 30: a server that never answers is given up after five seconds.
#[tokio::test(start_paused = true)]
async fn slow_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url: KeyUrl = format!("http://127.0.0.1:{port}/keys").parse().unwrap();
    let error = fetch(&url, None).await.unwrap_err();
    assert_eq!((error.kind, &*error.reason), (Fetched::Unreachable, "no answer within 5s"));
}

/// attack 30: the certificate of the server is verified.
#[tokio::test]
async fn server_of_another_ca_is_refused() {
    let (ca, other, dir) = (Ca::new("ca"), Ca::new("other"), tempfile::tempdir().unwrap());
    let (cert, key) = ca.loopback().write(dir.path(), "server");
    let tls = PortTls::new(TlsConfig {
        port: TlsPort::Admin,
        cert,
        key,
        ca: PathBuf::new(),
        crl: PathBuf::new(),
        min_version: MinVersion::Tls12,
        clients: ClientCertificates::default(),
    });
    let server = Server::start(Security::Tls(tls.unwrap())).await;
    server.answer("200 OK", &set("a"));
    let file = |name: &str, ca: &Ca| {
        let path = dir.path().join(name);
        fs::write(&path, ca.pem()).unwrap();
        Some(path)
    };
    let source = server.source("https", file("other.pem", &other));
    source.request(Duration::ZERO).await;
    assert!(source.keys().is_none());
    let source = server.source("https", file("ca.pem", &ca));
    source.request(Duration::ZERO).await;
    assert!(has(&source, "a"));
}
