//! Certificates over real TLS, and together with tokens.

use std::{fs, path::PathBuf, sync::Arc};

use chancery_auth::{IssuerKind, TransportPeer};
use chancery_testing::{
    Ca, Leaf, add_uri,
    rcgen::{CertificateParams, DnType},
};
use chancery_tls::{
    ClientCertificates, ClientTls, ClientTlsFiles, MinVersion, PeerIdentity, PortTls, TlsConfig,
    TlsPort,
};
use http::HeaderMap;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// A port that identifies clients by their certificates.
struct Port {
    ca: Ca,
    dir: TempDir,
    tls: PortTls,
}

impl Port {
    fn new(clients: ClientCertificates) -> Self {
        let (ca, dir) = (Ca::new("ca"), tempfile::tempdir().unwrap());
        let (cert, key) = ca.loopback().write(dir.path(), "server");
        fs::write(dir.path().join("ca.pem"), ca.pem()).unwrap();
        let tls = PortTls::new(TlsConfig {
            port: TlsPort::Xds,
            cert,
            key,
            ca: dir.path().join("ca.pem"),
            crl: PathBuf::new(),
            min_version: MinVersion::Tls12,
            clients,
        });
        Self { ca, dir, tls: tls.unwrap() }
    }

    /// Returns the client that the port sees after a handshake.
    async fn peer(&self, leaf: Option<&Leaf>) -> Option<TransportPeer> {
        let cert_and_key = leaf.map(|leaf| leaf.write(self.dir.path(), "client"));
        let ca = Some(self.dir.path().join("ca.pem"));
        let client = ClientTls::new(&ClientTlsFiles { ca, cert_and_key }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            self.tls.accept(stream).await.unwrap()
        };
        let connect = async {
            let stream = TcpStream::connect(address).await.unwrap();
            client.connect("127.0.0.1", stream).await.unwrap()
        };
        let (accepted, _client) = tokio::join!(accept, connect);
        let identity = accepted.peer().map(|peer| Arc::clone(peer.identity()));
        identity.map(TransportPeer::Certificate)
    }

    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        self.ca.sign(names, change)
    }
}

async fn principal(auth: &Auth, peer: Option<&TransportPeer>) -> Result<String, &'static str> {
    let proof = auth.identify(&HeaderMap::new(), peer, NOW).await;
    proof.map(|proof| proof.identity.principal.to_string()).map_err(|error| error.reason())
}

fn optional(by_common_name: bool) -> ClientCertificates {
    ClientCertificates {
        required: false,
        ca_name: "eu".into(),
        by_common_name,
        ..ClientCertificates::default()
    }
}

#[tokio::test]
async fn certificate_over_tls_proves_its_principal() {
    let auth = Auth::new(IssuerKind::Jwt, &[Key::es256().public("k")]);
    let port = Port::new(optional(false));
    let of = async |leaf: Option<&Leaf>| principal(&auth, port.peer(leaf).await.as_ref()).await;
    assert_eq!(of(None).await, Ok("anonymous".to_owned()));
    let spiffe = port.sign(&["a.example"], |params| add_uri(params, "spiffe://prod/ns/a/sa/b"));
    assert_eq!(of(Some(&spiffe)).await, Ok("spiffe://prod/ns/a/sa/b".to_owned()));
    let dns = port.sign(&["A.example"], |params| add_uri(params, "https://a"));
    assert_eq!(of(Some(&dns)).await, Ok("cert:eu/dns/a.example".to_owned()));
    assert_eq!(of(Some(&port.sign(&["a", "b"], |_| ()))).await, Err("no_name"));
    assert_eq!(of(Some(&port.sign(&["127.0.0.1"], |_| ()))).await, Err("no_name"));
}

/// attack 9: the common name `admin` of a CA for clients is no identity, unless the port uses common names.
#[tokio::test]
async fn common_name_is_an_identity_only_where_configured() {
    let auth = Auth::new(IssuerKind::Jwt, &[Key::es256().public("k")]);
    let named = |params: &mut CertificateParams| {
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, "admin");
    };
    let port = Port::new(optional(false));
    let peer = port.peer(Some(&port.sign(&[], named))).await;
    assert_eq!(principal(&auth, peer.as_ref()).await, Err("no_name"));
    let port = Port::new(optional(true));
    let peer = port.peer(Some(&port.sign(&["a.example"], named))).await;
    assert_eq!(principal(&auth, peer.as_ref()).await, Ok("cert:eu/cn/admin".to_owned()));
    let nameless = port.sign(&["a.example"], |params| {
        params.distinguished_name.remove(DnType::CommonName);
    });
    let peer = port.peer(Some(&nameless)).await;
    assert_eq!(principal(&auth, peer.as_ref()).await, Err("no_name"));
}

/// attack 32: a token of A with a certificate of B has the identity of A. If one of them is invalid, the caller is
/// refused.
#[tokio::test]
async fn token_with_certificate_has_the_identity_of_the_token() {
    let key = Key::es256();
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let port = Port::new(optional(false));
    let leaf = port.sign(&[], |params| add_uri(params, "spiffe://prod/ns/b"));
    let peer = port.peer(Some(&leaf)).await.unwrap();
    let good = bearer(&key.token("k", &claims()));
    let proof = auth.identify(&good, Some(&peer), NOW).await.unwrap();
    assert_eq!(proof.identity.principal.as_str(), "jwt:corp/alice");
    let bad = bearer(&Key::es256().token("k", &claims()));
    let error = auth.identify(&bad, Some(&peer), NOW).await.unwrap_err();
    assert_eq!(error.reason(), "signature", "the certificate does not replace the token");
    let TransportPeer::Certificate(identity) = &peer else { panic!("{peer:?}") };
    let expired = PeerIdentity { not_after: at(NOW - 1), ..(**identity).clone() };
    let expired = TransportPeer::Certificate(Arc::new(expired));
    let error = auth.identify(&good, Some(&expired), NOW).await.unwrap_err();
    assert_eq!(error.reason(), "expired", "the token does not replace the certificate");
}

#[tokio::test]
async fn user_of_a_unix_socket_is_identified_by_its_id() {
    let key = Key::es256();
    let auth = Auth::new(IssuerKind::Jwt, &[key.public("k")]);
    let user = TransportPeer::UnixUser(1000);
    assert_eq!(principal(&auth, Some(&user)).await, Ok("unix:1000".to_owned()));
    let token = bearer(&key.token("k", &claims()));
    let proof = auth.identify(&token, Some(&user), NOW).await.unwrap();
    assert_eq!(proof.identity.principal.as_str(), "jwt:corp/alice");
}
