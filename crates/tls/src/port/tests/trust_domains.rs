//! The CAs of trust domains.

use super::*;

/// The CAs of two trust domains, and one for certificates without a SPIFFE ID.
struct Cas {
    a: Ca,
    b: Ca,
    others: Ca,
    files: Files,
}

impl Cas {
    fn new() -> Self {
        let (a, b, others) = (Ca::new("a"), Ca::new("b"), Ca::new("others"));
        let files = Files::new(&others.loopback(), &others.pem());
        fs::write(files.path("a.pem"), a.pem()).unwrap();
        fs::write(files.path("b.pem"), b.pem()).unwrap();
        Self { a, b, others, files }
    }

    fn port(&self) -> PortTls {
        let domain = |name: &str, file| (name.into(), self.files.path(file));
        let trust_domains = vec![domain("a.example", "a.pem"), domain("b.example", "b.pem")];
        let clients = ClientCertificates { trust_domains, ..ClientCertificates::default() };
        PortTls::new(TlsConfig { clients, ..self.files.config(TlsPort::Xds) }).unwrap()
    }
}

/// Attack 7: a CA signs only for its own trust domain, and the CAs of the port sign for none.
#[tokio::test]
async fn ca_signs_for_its_own_trust_domain_only() {
    use HandshakeResult::{Ok as Accepted, UnknownCa};
    let cas = Cas::new();
    let Cas { a, b, others, .. } = &cas;
    let port = cas.port();
    let host = |ca: &Ca| ca.sign(&["host.example"], |_| ());
    let cases = [
        (a.client("spiffe://a.example/x"), Accepted),
        (b.client("spiffe://b.example/x"), Accepted),
        (host(others), Accepted),
        (a.client("spiffe://b.example/x"), UnknownCa),
        (b.client("spiffe://a.example/x"), UnknownCa),
        (others.client("spiffe://a.example/x"), UnknownCa),
        (others.client("spiffe://c.example/x"), UnknownCa),
        (a.client("spiffe://c.example/a.example"), UnknownCa),
        (a.client("spiffe://a.example.org/x"), UnknownCa),
        (host(a), UnknownCa),
        (a.client("spiffe://A.EXAMPLE/x"), HandshakeResult::BadSan),
    ];
    for version in [&TLS12, &TLS13] {
        for (index, (leaf, expected)) in cases.iter().enumerate() {
            let result = Client::new(others, Some(leaf), &[version]).result(&port).await;
            assert_eq!(result, *expected, "case {index}, {version:?}");
        }
    }
}

/// A changed CA of a trust domain applies to new connections, and ends those of the previous CA.
#[tokio::test]
async fn changed_ca_of_a_trust_domain_ends_its_connections_only() {
    let cas = Cas::new();
    let port = cas.port();
    let open = async |leaf: &Leaf| {
        let (accepted, client) = Client::of(&cas.others, leaf).connect(&port).await;
        (accepted.unwrap(), client)
    };
    let (of_a, _client_1) = open(&cas.a.client("spiffe://a.example/x")).await;
    let (of_b, _client_2) = open(&cas.b.client("spiffe://b.example/x")).await;
    let new = Ca::new("new");
    fs::write(cas.files.path("a.pem"), new.pem()).unwrap();
    port.refresh();
    let ended = |stream: &Stream| stream.peer().unwrap().ended().now_or_never();
    assert_eq!(ended(&of_a), Some(CredentialEnd::Untrusted));
    assert_eq!(ended(&of_b), None);
    drop(open(&new.client("spiffe://a.example/x")).await);
    let result = Client::of(&cas.others, &cas.a.client("spiffe://a.example/x")).result(&port).await;
    assert_eq!(result, HandshakeResult::UnknownCa);
}

/// An unusable file is named with its key.
#[test]
fn unusable_file_of_a_trust_domain_is_reported() {
    let cas = Cas::new();
    fs::write(cas.files.path("a.pem"), "garbage").unwrap();
    let trust_domains = vec![("a.example".into(), cas.files.path("a.pem"))];
    let clients = ClientCertificates { trust_domains, ..ClientCertificates::default() };
    let errors = TlsConfig { clients, ..cas.files.config(TlsPort::Xds) }.check();
    let files: Vec<_> = errors.iter().map(TlsError::file).collect();
    assert_eq!(files, [Some(TlsFile::TrustDomain)], "{errors:?}");
}
