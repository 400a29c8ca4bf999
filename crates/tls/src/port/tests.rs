//! Handshakes over loopback: which certificates and protocols a port accepts, and which files it uses.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use chancery_testing::{
    Ca, Leaf, add_uri,
    rcgen::{
        BasicConstraints, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, SerialNumber,
        date_time_ymd,
    },
};
use futures::FutureExt;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};

use crate::{
    ClientCertificates, ClientStream, ClientTls, ClientTlsFiles, ConnectError, CredentialEnd,
    HandshakeError, HandshakeResult, MinVersion, PortTls, ServerRefusal, Stream, TlsConfig,
    TlsError, TlsFile, TlsPort, Validity, check_server_name, expiry_warning_seconds, host_of,
    material::provider,
};

mod changes;
mod trust_domains;

/// The files of a port in a directory of their own.
struct Files(TempDir);

impl Files {
    fn new(server: &Leaf, ca: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        server.write(files.0.path(), "server");
        fs::write(files.path("ca.pem"), ca).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the configuration of a port that requires certificates of clients.
    fn config(&self, port: TlsPort) -> TlsConfig {
        TlsConfig {
            port,
            cert: self.path("server.pem"),
            key: self.path("server.key"),
            ca: self.path("ca.pem"),
            crl: PathBuf::new(),
            min_version: MinVersion::Tls12,
            clients: ClientCertificates::default(),
        }
    }

    fn open(&self, port: TlsPort) -> PortTls {
        PortTls::new(self.config(port)).unwrap()
    }
}

/// A client of a test.
struct Client {
    config: ClientConfig,
}

impl Client {
    /// Creates a client that trusts `ca` and has a certificate.
    fn new(ca: &Ca, leaf: Option<&Leaf>, versions: &[&'static SupportedProtocolVersion]) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match leaf {
            None => builder.with_no_client_auth(),
            Some(leaf) => {
                let chain = CertificateDer::pem_slice_iter(leaf.cert.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain.map(Result::unwrap).collect(), key).unwrap()
            }
        };
        Self { config }
    }

    fn of(ca: &Ca, leaf: &Leaf) -> Self {
        Self::new(ca, Some(leaf), &[&TLS13])
    }

    fn with_alpn(mut self, names: &[&str]) -> Self {
        self.config.alpn_protocols = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        self
    }

    /// Connects, and returns both ends.
    async fn connect(
        &self,
        port: &PortTls,
    ) -> (Result<Stream, HandshakeError>, Option<tokio_rustls::client::TlsStream<TcpStream>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            port.accept(stream).await
        };
        let connect = async {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let connector = TlsConnector::from(Arc::new(self.config.clone()));
            connector.connect(name, stream).await.ok()
        };
        tokio::join!(accept, connect)
    }

    async fn result(&self, port: &PortTls) -> HandshakeResult {
        let (accepted, _client) = self.connect(port).await;
        accepted.map_or_else(|error| error.result, |_| HandshakeResult::Ok)
    }
}

/// Returns the PEM of the certificate that the port shows.
async fn shown(port: &PortTls, client: &Client) -> Vec<u8> {
    let (accepted, connection) = client.connect(port).await;
    accepted.unwrap();
    let connection = connection.unwrap();
    connection.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn der(leaf: &Leaf) -> Vec<u8> {
    CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap().to_vec()
}

/// Envoy speaks at most TLS 1.2 by default, and sends no ALPN.
#[tokio::test]
async fn xds_port_accepts_tls_1_2_and_1_3_with_h2_or_without_alpn() {
    let ca = Ca::new("ca");
    let (files, leaf) = (Files::new(&ca.loopback(), &ca.pem()), ca.client("spiffe://a/b"));
    let port = files.open(TlsPort::Xds);
    for versions in [&[&TLS12][..], &[&TLS13], &[&TLS13, &TLS12]] {
        for alpn in [&[][..], &["h2"], &["http/1.1"], &["spdy", "h2"]] {
            let client = Client::new(&ca, Some(&leaf), versions).with_alpn(alpn);
            let (accepted, connection) = client.connect(&port).await;
            let (mut accepted, mut connection) = (accepted.unwrap(), connection.unwrap());
            let expected = alpn.last().map(|name| name.as_bytes());
            assert_eq!(connection.get_ref().1.alpn_protocol(), expected);
            connection.write_all(b"hello").await.unwrap();
            let mut read = [0; 5];
            accepted.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, b"hello");
        }
        let client = Client::new(&ca, Some(&leaf), versions).with_alpn(&["h3"]);
        assert_eq!(client.result(&port).await, HandshakeResult::Alpn);
    }
}

#[tokio::test]
async fn port_for_tls_1_3_refuses_tls_1_2() {
    let ca = Ca::new("ca");
    let (files, leaf) = (Files::new(&ca.loopback(), &ca.pem()), ca.client("spiffe://a/b"));
    let config = TlsConfig { min_version: MinVersion::Tls13, ..files.config(TlsPort::Admin) };
    let port = PortTls::new(config).unwrap();
    let result = async |version| Client::new(&ca, Some(&leaf), &[version]).result(&port).await;
    assert_eq!(result(&TLS12).await, HandshakeResult::ProtocolVersion);
    assert_eq!(result(&TLS13).await, HandshakeResult::Ok);
}

/// Without a CA, the port encrypts and accepts every client.
#[tokio::test]
async fn port_without_ca_requests_no_certificate() {
    let ca = Ca::new("ca");
    let files = Files::new(&ca.loopback(), &ca.pem());
    let port =
        PortTls::new(TlsConfig { ca: PathBuf::new(), ..files.config(TlsPort::Xds) }).unwrap();
    for version in [&TLS12, &TLS13] {
        let client = Client::new(&ca, None, &[version]);
        assert_eq!(client.result(&port).await, HandshakeResult::Ok);
    }
}

/// attack 3, 4, 6 and 8: each kind of unacceptable certificate has its own result, in both versions of TLS.
#[tokio::test]
async fn unacceptable_client_certificates_have_distinct_results() {
    use HandshakeResult as R;
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let files = Files::new(&ca.loopback(), &ca.pem());
    fs::write(files.path("crl.pem"), ca.revoke(&[7])).unwrap();
    let config = TlsConfig { crl: files.path("crl.pem"), ..files.config(TlsPort::Xds) };
    let port = PortTls::new(config).unwrap();
    let own_key = {
        let pair = chancery_testing::rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap();
        Leaf { cert: pair.cert.pem(), key: pair.signing_key.serialize_pem() }
    };
    let uris =
        |uris: &[&str]| ca.sign(&[], |params| uris.iter().for_each(|uri| add_uri(params, uri)));
    let uses = |uses: Vec<KeyUsagePurpose>| ca.sign(&["a"], |params| params.key_usages = uses);
    let cases = [
        (ca.client("spiffe://a/b"), R::Ok),
        (ca.client("https://a/b"), R::Ok),
        (ca.sign(&["host.example"], |_| ()), R::Ok),
        (uses(Vec::new()), R::Ok),
        (ca.sign(&["a"], |params| params.serial_number = Some(SerialNumber::from(8))), R::Ok),
        (ca.sign(&["a"], |params| params.serial_number = Some(SerialNumber::from(7))), R::Revoked),
        (other.client("spiffe://a/b"), R::UnknownCa),
        (own_key, R::SelfSigned),
        (ca.sign(&["a"], |params| params.not_after = date_time_ymd(2020, 1, 1)), R::Expired),
        (ca.sign(&["a"], |params| params.not_before = date_time_ymd(2090, 1, 1)), R::NotYetValid),
        (uris(&["spiffe://a/b", "spiffe://a/c"]), R::BadSan),
        (uris(&["spiffe://a/b", "https://a"]), R::BadSan),
        (uris(&["spiffe://a/../b"]), R::BadSan),
        (uris(&["spiffe://A/b"]), R::BadSan),
        (
            ca.sign(&["a"], |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }),
            R::BadCertificate,
        ),
        (
            ca.sign(&["a"], |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            R::BadCertificate,
        ),
        (
            uses(vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign]),
            R::BadCertificate,
        ),
        (uses(vec![KeyUsagePurpose::KeyEncipherment]), R::BadCertificate),
    ];
    for version in [&TLS12, &TLS13] {
        for (index, (leaf, expected)) in cases.iter().enumerate() {
            let result = Client::new(&ca, Some(leaf), &[version]).result(&port).await;
            assert_eq!(result, *expected, "case {index}, {version:?}");
        }
        let long = Leaf { cert: cases[0].0.cert.repeat(11), key: cases[0].0.key.clone() };
        let result = Client::new(&ca, Some(&long), &[version]).result(&port).await;
        assert_eq!(result, R::BadCertificate, "11 certificates");
        let result = Client::new(&ca, None, &[version]).result(&port).await;
        assert_eq!(result, R::NoCertificate);
    }
}

#[tokio::test]
async fn explanation_says_what_is_wrong_with_the_certificate() {
    let ca = Ca::new("ca");
    let port = Files::new(&ca.loopback(), &ca.pem()).open(TlsPort::Xds);
    let explain = async |leaf: &Leaf| {
        let (accepted, _client) = Client::of(&ca, leaf).connect(&port).await;
        accepted.unwrap_err().explanation()
    };
    let two = ca.sign(&[], |params| {
        add_uri(params, "spiffe://a/b");
        add_uri(params, "spiffe://a/c");
    });
    assert_eq!(
        explain(&two).await,
        "the client's certificate is refused: it has 2 URI names (subjectAltName), at most one is allowed"
    );
    let old = ca.sign(&["a"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    let text = explain(&old).await;
    assert!(text.starts_with("the client's certificate expired: "), "{text}");
    assert_eq!(
        explain(&Ca::new("x").client("spiffe://a/b")).await,
        "no CA in tls_client_ca, or of its trust domain in tls_trust_domains, signed the client's certificate"
    );
}

/// A client that does not speak TLS, goes away, or distrusts the port does not harm it.
#[tokio::test]
async fn failed_handshake_names_the_fault_of_the_client() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let port = Files::new(&ca.loopback(), &ca.pem()).open(TlsPort::Xds);
    let send = async |bytes: &[u8]| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        port.accept(stream).await.unwrap_err().result
    };
    assert_eq!(send(b"").await, HandshakeResult::Closed);
    assert_eq!(send(b"\x16\x03\x01").await, HandshakeResult::Closed);
    assert_eq!(send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, HandshakeResult::Protocol);
    assert_eq!(send(b"GET / HTTP/1.1\r\n\r\n").await, HandshakeResult::Protocol);
    assert_eq!(send(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00").await, HandshakeResult::Protocol);
    let leaf = ca.client("spiffe://a/b");
    let distrusts = Client::of(&other, &leaf);
    assert_eq!(distrusts.result(&port).await, HandshakeResult::RefusedByClient);
    assert_eq!(Client::of(&ca, &leaf).result(&port).await, HandshakeResult::Ok);
}

/// Attack 53: a handshake that makes no progress is cut.
#[tokio::test(start_paused = true)]
async fn silent_client_is_refused_after_the_handshake_timeout() {
    let ca = Ca::new("ca");
    let port = Files::new(&ca.loopback(), &ca.pem()).open(TlsPort::Xds);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let error = port.accept(stream).await.unwrap_err();
    assert_eq!(error.result, HandshakeResult::Timeout);
    assert_eq!(error.to_string(), "no TLS handshake within 5s");
}

/// attack 12 and 13: a resumed session would skip the verification of the certificate. The client stores sessions, and
/// offers them with early data.
#[tokio::test]
async fn no_session_is_resumed() {
    let ca = Ca::new("ca");
    let port = Files::new(&ca.loopback(), &ca.pem()).open(TlsPort::Xds);
    let leaf = ca.client("spiffe://a/b");
    for version in [&TLS12, &TLS13] {
        let mut client = Client::new(&ca, Some(&leaf), &[version]);
        client.config.resumption = rustls::client::Resumption::in_memory_sessions(8);
        client.config.enable_early_data = true;
        for _ in 0..3 {
            let (accepted, connection) = client.connect(&port).await;
            let (mut accepted, mut connection) = (accepted.unwrap(), connection.unwrap());
            // The client reads a ticket, if there is one.
            accepted.write_all(b"x").await.unwrap();
            connection.read_exact(&mut [0]).await.unwrap();
            let kind = connection.get_ref().1.handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
        }
    }
}

#[tokio::test]
async fn replaced_files_apply_to_new_connections_only() {
    let (ca, new) = (Ca::new("ca"), Ca::new("new"));
    let (first, second) = (ca.loopback(), ca.loopback());
    let files = Files::new(&first, &ca.pem());
    let port = files.open(TlsPort::Xds);
    let client = Client::of(&ca, &ca.client("spiffe://a/b"));
    let (open, connection) = client.connect(&port).await;
    let (mut open, mut connection) = (open.unwrap(), connection.unwrap());
    assert_eq!(shown(&port, &client).await, der(&first));
    second.write(files.0.path(), "server");
    assert_eq!(shown(&port, &client).await, der(&first), "nobody has checked the files");
    port.refresh();
    assert_eq!(shown(&port, &client).await, der(&second));
    // The CA of clients changes in two steps.
    let newer = Client::of(&ca, &new.client("spiffe://a/b"));
    fs::write(files.path("ca.pem"), ca.pem() + &new.pem()).unwrap();
    port.refresh();
    for client in [&client, &newer] {
        assert_eq!(client.result(&port).await, HandshakeResult::Ok);
    }
    fs::write(files.path("ca.pem"), new.pem()).unwrap();
    port.refresh();
    assert_eq!(newer.result(&port).await, HandshakeResult::Ok);
    assert_eq!(client.result(&port).await, HandshakeResult::UnknownCa);
    // The connection of the start still works.
    connection.write_all(b"x").await.unwrap();
    open.read_exact(&mut [0]).await.unwrap();
}

/// Attack 62: between the replacements of the two files, the key belongs to another certificate.
#[tokio::test]
async fn mismatched_pair_keeps_the_previous_pair_until_the_second_file_follows() {
    let ca = Ca::new("ca");
    let (first, second) = (ca.loopback(), ca.loopback());
    let files = Files::new(&first, &ca.pem());
    let port = files.open(TlsPort::Xds);
    let client = Client::of(&ca, &ca.client("spiffe://a/b"));
    fs::write(files.path("server.pem"), &second.cert).unwrap();
    for _ in 0..3 {
        port.refresh();
        assert_eq!(shown(&port, &client).await, der(&first));
    }
    fs::write(files.path("server.key"), &second.key).unwrap();
    port.refresh();
    assert_eq!(shown(&port, &client).await, der(&second));
}

/// Attack 62: a file may become usable without a change that its inode, time and length show. Only a check with
/// a retry reads it again.
#[tokio::test]
async fn unusable_files_keep_the_previous_ones_and_are_read_again() {
    let ca = Ca::new("ca");
    let (first, second) = (ca.loopback(), ca.loopback());
    let files = Files::new(&first, &ca.pem());
    let port = files.open(TlsPort::Xds);
    let client = Client::of(&ca, &ca.client("spiffe://a/b"));
    let certificate = files.path("server.pem");
    for content in ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
    {
        fs::write(&certificate, content).unwrap();
        port.refresh();
        assert_eq!(shown(&port, &client).await, der(&first), "{content:?}");
    }
    fs::remove_file(&certificate).unwrap();
    port.refresh();
    assert_eq!(shown(&port, &client).await, der(&first));
    second.write(files.0.path(), "server");
    port.refresh();
    assert_eq!(shown(&port, &client).await, der(&second));
}

/// Attack 62: Kubernetes replaces all files of a secret by one change of a symbolic link to their directory.
#[tokio::test]
async fn swapped_symbolic_link_of_a_secret_mount_is_followed() {
    let ca = Ca::new("ca");
    let (first, second) = (ca.loopback(), ca.loopback());
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    for (dir, leaf) in [("..1", &first), ("..2", &second)] {
        fs::create_dir(path(dir)).unwrap();
        leaf.write(&path(dir), "tls");
        fs::write(path(dir).join("ca.pem"), ca.pem()).unwrap();
    }
    let point_to = |dir: &str| {
        symlink(Path::new(dir), path("..new")).unwrap();
        fs::rename(path("..new"), path("..data")).unwrap();
    };
    point_to("..1");
    for name in ["tls.pem", "tls.key", "ca.pem"] {
        symlink(Path::new("..data").join(name), path(name)).unwrap();
    }
    let port = PortTls::new(TlsConfig {
        port: TlsPort::Admin,
        cert: path("tls.pem"),
        key: path("tls.key"),
        ca: path("ca.pem"),
        crl: PathBuf::new(),
        min_version: MinVersion::Tls13,
        clients: ClientCertificates::default(),
    })
    .unwrap();
    let client = Client::of(&ca, &ca.client("spiffe://a/b"));
    assert_eq!(shown(&port, &client).await, der(&first));
    point_to("..2");
    port.refresh();
    assert_eq!(shown(&port, &client).await, der(&second));
}

/// attack 11: a changed revocation list applies to the next connection. An unusable one keeps the previous list.
#[tokio::test]
async fn changed_revocation_list_applies_and_unusable_one_does_not() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let files = Files::new(&ca.loopback(), &(ca.pem() + &other.pem()));
    let list = files.path("crl.pem");
    fs::write(&list, ca.revoke(&[])).unwrap();
    let port = PortTls::new(TlsConfig { crl: list.clone(), ..files.config(TlsPort::Xds) }).unwrap();
    let serial = |ca: &Ca, serial: u64| {
        ca.sign(&["a"], |params| params.serial_number = Some(SerialNumber::from(serial)))
    };
    let (leaf, foreign) = (serial(&ca, 7), serial(&other, 7));
    let result = async |leaf: &Leaf| Client::of(&ca, leaf).result(&port).await;
    assert_eq!(result(&leaf).await, HandshakeResult::Ok);
    fs::write(&list, ca.revoke(&[7])).unwrap();
    port.refresh();
    assert_eq!(result(&leaf).await, HandshakeResult::Revoked);
    assert_eq!(result(&foreign).await, HandshakeResult::Ok, "its CA has no list");
    for unusable in ["", "x", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"] {
        fs::write(&list, unusable).unwrap();
        port.refresh();
        assert_eq!(result(&leaf).await, HandshakeResult::Revoked, "{unusable:?}");
    }
    fs::write(&list, ca.revoke(&[7]) + &other.revoke(&[7])).unwrap();
    port.refresh();
    assert_eq!(result(&foreign).await, HandshakeResult::Revoked);
}

#[test]
fn remaining_time_is_that_of_the_first_certificate_to_expire() {
    let ca = Ca::new("ca");
    let until =
        |year| ca.sign(&["127.0.0.1"], |params| params.not_after = date_time_ymd(year, 1, 1));
    let (early, late) = (until(2080), until(2090));
    let files = Files::new(&late, &ca.pem());
    let left = || files.open(TlsPort::Xds).seconds_left();
    let year = 365.0 * 86_400.0;
    let alone = left();
    assert!(alone > 40.0 * year, "{alone}");
    fs::write(files.path("server.pem"), late.cert.clone() + &early.cert).unwrap();
    let ten_years = alone - left();
    assert!((9.9 * year..10.1 * year).contains(&ten_years), "{ten_years}");
    until(2020).write(files.0.path(), "server");
    assert!(left() < 0.0, "an expired certificate does not prevent the start");
}

#[test]
fn lifetime_is_the_time_in_which_all_certificates_of_the_chain_are_valid() {
    let ca = Ca::new("ca");
    let during = |from, until| {
        ca.sign(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(until, 1, 1);
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chain.pem");
    fs::write(&path, during(2021, 2090).cert + &during(2000, 2022).cert).unwrap();
    let lifetime = Validity::of_file(&path).unwrap().lifetime();
    assert_eq!(lifetime, 365 * 86_400);
    assert_eq!(expiry_warning_seconds(lifetime), 14 * 86_400);
    assert_eq!(expiry_warning_seconds(86_400), 6 * 3600);
}

#[test]
fn every_unusable_file_is_reported() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let files = Files::new(&ca.loopback(), &ca.pem());
    let config = files.config(TlsPort::Xds);
    let none = || files.path("none");
    let wrong = |config: TlsConfig| -> Vec<(Option<TlsFile>, String)> {
        config.check().iter().map(|error| (error.file(), error.to_string())).collect()
    };
    assert_eq!(wrong(config.clone()), []);
    let all = wrong(TlsConfig { cert: none(), key: none(), ca: none(), ..config.clone() });
    let kinds: Vec<_> = all.iter().map(|(file, _)| *file).collect();
    assert_eq!(kinds, [Some(TlsFile::Ca), Some(TlsFile::Cert), Some(TlsFile::Key)]);
    let list = wrong(TlsConfig { crl: files.path("ca.pem"), ..config.clone() });
    let [(Some(TlsFile::Crl), text)] = list.as_slice() else { panic!("{list:?}") };
    assert!(text.ends_with("it contains no PEM revocation list (X509 CRL)"), "{text}");
    other.loopback().write(files.0.path(), "other");
    let mixed = wrong(TlsConfig { key: files.path("other.key"), ..config.clone() });
    assert!(matches!(mixed.as_slice(), [(Some(TlsFile::Key), _)]), "{mixed:?}");
    let error = PortTls::new(TlsConfig { key: files.path("other.key"), ..config }).unwrap_err();
    assert!(matches!(error, TlsError::Mismatch { .. }), "{error}");
}

/// A client of the command line, and a port.
async fn dial(files: &ClientTlsFiles, host: &str, port: &PortTls) -> Result<Vec<u8>, ConnectError> {
    let client = ClientTls::new(files).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async {
        let (stream, _) = listener.accept().await.unwrap();
        if let Ok(mut stream) = port.accept(stream).await {
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
        }
    };
    let connect = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = client.connect(host, stream).await?;
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await?;
        Ok(read)
    };
    tokio::join!(accept, connect).1
}

#[tokio::test]
async fn client_explains_why_it_has_no_connection() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let files = Files::new(&ca.loopback(), &ca.pem());
    let port = files.open(TlsPort::Admin);
    ca.client("spiffe://a/b").write(files.0.path(), "client");
    other.client("spiffe://a/b").write(files.0.path(), "other");
    fs::write(files.path("other-ca.pem"), other.pem()).unwrap();
    let with = |ca: &str, cert: Option<&str>| ClientTlsFiles {
        ca: Some(files.path(ca)),
        cert_and_key: cert
            .map(|name| (files.path(&format!("{name}.pem")), files.path(&format!("{name}.key")))),
    };
    let good = with("ca.pem", Some("client"));
    for host in ["127.0.0.1", "localhost"] {
        assert_eq!(dial(&good, host, &port).await.unwrap(), b"hello");
    }
    let error = dial(&good, "example.com", &port).await.unwrap_err().to_string();
    assert!(
        error.starts_with("the server's certificate is for ") && error.contains("127.0.0.1"),
        "{error}"
    );
    assert!(error.ends_with(", not for \"example.com\""), "{error}");
    let error = dial(&with("other-ca.pem", Some("client")), "localhost", &port).await.unwrap_err();
    let expected = format!(
        "the server's certificate is not signed by a CA in {}",
        files.path("other-ca.pem").display()
    );
    assert_eq!(error.to_string(), expected);
    let system = ClientTlsFiles { ca: None, ..good.clone() };
    if ClientTls::new(&system).is_ok() {
        let error = dial(&system, "localhost", &port).await.unwrap_err().to_string();
        assert!(error.ends_with("is not signed by a CA that this system trusts"), "{error}");
    }
    let refusal = async |files: ClientTlsFiles| -> ServerRefusal {
        match dial(&files, "localhost", &port).await.unwrap_err() {
            ConnectError::Io(error) => *error.get_ref().unwrap().downcast_ref().unwrap(),
            error => panic!("{error}"),
        }
    };
    assert_eq!(refusal(with("ca.pem", None)).await, ServerRefusal::NeedsCertificate);
    assert_eq!(refusal(with("ca.pem", Some("other"))).await, ServerRefusal::UnknownCa);
    let error = dial(&good, "a b", &port).await.unwrap_err();
    assert!(matches!(error, ConnectError::Host(_)), "{error}");
}

#[tokio::test]
async fn client_recognizes_a_server_without_tls() {
    let ca = Ca::new("ca");
    let files = Files::new(&ca.loopback(), &ca.pem());
    let tls = ClientTlsFiles { ca: Some(files.path("ca.pem")), cert_and_key: None };
    let client = ClientTls::new(&tls).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    server.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    let error = client.connect("localhost", stream).await.unwrap_err();
    assert!(matches!(error, ConnectError::NotTls), "{error}");
}

/// Without TLS, the alert of a server that uses TLS looks like broken HTTP/2.
#[tokio::test]
async fn client_without_tls_recognizes_a_server_with_tls() {
    let ca = Ca::new("ca");
    let port = Files::new(&ca.loopback(), &ca.pem()).open(TlsPort::Admin);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    let mut client = ClientStream::plain(stream);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    port.accept(server).await.unwrap_err();
    let error = client.read_to_end(&mut Vec::new()).await.unwrap_err().to_string();
    assert_eq!(ServerRefusal::quoted_in(&error), Some(ServerRefusal::NeedsTls), "{error}");
    assert_eq!(ServerRefusal::quoted_in("connection refused"), None);
}

#[test]
fn tls_server_name_is_the_host_of_the_address() {
    assert_eq!(host_of("replica-1.chancery:18002"), "replica-1.chancery");
    assert_eq!(host_of("127.0.0.1:18002"), "127.0.0.1");
    assert_eq!(host_of("[::1]:18002"), "::1");
    assert!(check_server_name(host_of("[::1]:1")).is_ok());
    assert!(check_server_name("no such name").is_err());
}

/// A port for which certificates are optional refuses invalid ones: a credential is never ignored.
#[tokio::test]
async fn optional_certificate_may_be_absent_and_not_invalid() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let files = Files::new(&ca.loopback(), &ca.pem());
    let clients = ClientCertificates { required: false, ..ClientCertificates::default() };
    let port = PortTls::new(TlsConfig { clients, ..files.config(TlsPort::Xds) }).unwrap();
    for version in [&TLS12, &TLS13] {
        let peer = async |leaf: Option<&Leaf>| {
            let (accepted, _client) = Client::new(&ca, leaf, &[version]).connect(&port).await;
            accepted.map(|stream| stream.peer().map(|peer| Arc::clone(peer.identity())))
        };
        assert_eq!(peer(None).await.unwrap(), None);
        let identity = peer(Some(&ca.client("spiffe://a/b"))).await.unwrap().unwrap();
        assert_eq!(identity.spiffe_id.as_deref(), Some("spiffe://a/b"));
        let refused = async |leaf: Leaf| peer(Some(&leaf)).await.unwrap_err().result;
        assert_eq!(refused(other.client("spiffe://a/b")).await, HandshakeResult::UnknownCa);
        assert_eq!(refused(ca.client("spiffe://a/../b")).await, HandshakeResult::BadSan);
        let old = ca.sign(&["a"], |params| params.not_after = date_time_ymd(2020, 1, 1));
        assert_eq!(refused(old).await, HandshakeResult::Expired);
    }
}

/// A reload ends the connections whose certificates are refused from now on, and no others. That includes a
/// connection whose handshake began before the reload.
#[tokio::test]
async fn reload_ends_connections_of_refused_certificates_only() {
    let (ca, second) = (Ca::new("ca"), Ca::new("second"));
    let files = Files::new(&ca.loopback(), &(ca.pem() + &second.pem()));
    let list = files.path("crl.pem");
    fs::write(&list, ca.revoke(&[])).unwrap();
    let port = PortTls::new(TlsConfig { crl: list.clone(), ..files.config(TlsPort::Xds) }).unwrap();
    let open = async |leaf: &Leaf| {
        let (accepted, client) = Client::of(&ca, leaf).connect(&port).await;
        (accepted.unwrap(), client)
    };
    let revoked = ca.sign(&["a"], |params| params.serial_number = Some(SerialNumber::from(7)));
    let (revoked, _client_1) = open(&revoked).await;
    let (orphan, _client_2) = open(&second.client("spiffe://a/b")).await;
    let (good, _client_3) = open(&ca.client("spiffe://a/b")).await;
    let old = port.0.sides.lock().verifier.clone();
    let ended = |stream: &Stream| stream.peer().unwrap().ended().now_or_never();
    fs::write(&list, ca.revoke(&[7])).unwrap();
    port.refresh();
    assert_eq!(ended(&revoked), Some(CredentialEnd::Revoked));
    assert_eq!((ended(&orphan), ended(&good)), (None, None));
    fs::write(files.path("ca.pem"), ca.pem()).unwrap();
    port.refresh();
    assert_eq!(ended(&orphan), Some(CredentialEnd::Untrusted));
    assert_eq!(ended(&good), None);
    let Stream::Tls(stream, _) = &orphan else { panic!("no TLS") };
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    let late = port.identify(chain, old.as_ref()).unwrap().unwrap();
    assert_eq!(late.ended().now_or_never(), Some(CredentialEnd::Untrusted));
}
