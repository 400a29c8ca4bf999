//! Tests of TLS between replicas: a cluster forms with TLS, and peers without a certificate of its
//! CA stay out.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use chancery_store::{CaughtUp, Config, OpenError, Replica, TlsConfig, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};

use crate::{
    cluster::{DEADLINE, equal, eventually, member_config, voters},
    questions::{answer, ask_settled, page},
    support::{commit, memory_dir, put},
};

/// A CA and the directory of its files.
pub(crate) struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Ca {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    /// Creates the files of a replica whose certificate has the given name.
    pub(crate) fn sign(&self, file: &str, name: &str) -> TlsConfig {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        self.sign_for(file, name, vec![ClientAuth, ServerAuth])
    }

    fn sign_for(&self, file: &str, name: &str, uses: Vec<ExtendedKeyUsagePurpose>) -> TlsConfig {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = uses;
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.dir.join(format!("{file}{end}"));
        fs::write(path(".pem"), cert.pem()).unwrap();
        fs::write(path(".key"), key.serialize_pem()).unwrap();
        let ca = self.dir.join("ca.pem");
        TlsConfig { cert: path(".pem"), key: path(".key"), ca, server_name: None }
    }
}

fn with_tls(dir: &Path, id: u64, join: &[&str], tls: Option<TlsConfig>) -> Config {
    Config { tls, ..member_config(dir, id, join) }
}

/// Checks that a replica is not admitted.
async fn expect_not_admitted(config: Config) {
    let opened = tokio::time::timeout(Duration::from_secs(3), Replica::open(config)).await;
    assert!(opened.is_err(), "{opened:?}");
}

/// T15: three replicas form a cluster over TLS and write to each other. A plaintext connection, a
/// certificate of another CA, and one for another name are refused, on either side.
#[tokio::test(flavor = "multi_thread")]
async fn only_replicas_with_certificate_of_the_ca_are_accepted() {
    let dir = memory_dir();
    let (ca, other) = (Ca::new(dir.path(), "ca"), Ca::new(dir.path(), "other"));
    let tls = |id: u64| Some(ca.sign(&id.to_string(), "127.0.0.1"));
    let open = async |id: u64, join: &[&str]| {
        let replica = Replica::open(with_tls(dir.path(), id, join, tls(id))).await.unwrap();
        assert_eq!(replica.catch_up(DEADLINE).await.unwrap(), CaughtUp::Yes);
        replica
    };
    let first = open(1, &[]).await;
    let address = first.raft_address().to_owned();
    let second = open(2, &[&address]).await;
    let third = open(3, &[&address]).await;
    eventually("three voters", async || voters(&first).await == [1, 2, 3]).await;
    for replica in [&first, &second, &third] {
        commit(replica, put("a", replica.raft_address().as_bytes())).await;
    }
    equal(&[&first, &second, &third]).await;

    expect_not_admitted(with_tls(dir.path(), 4, &[&address], None)).await;
    let foreign = Some(other.sign("5", "127.0.0.1"));
    expect_not_admitted(with_tls(dir.path(), 5, &[&address], foreign)).await;
    // This replica trusts the cluster's CA, but has a certificate of another CA: it does not even
    // try.
    let mixed = TlsConfig { ca: ca.dir.join("ca.pem"), ..other.sign("6", "127.0.0.1") };
    let refused = Replica::open(with_tls(dir.path(), 6, &[&address], Some(mixed))).await;
    assert!(matches!(refused, Err(OpenError::Tls(TlsError::Untrusted { .. }))), "{refused:?}");
    // This replica expects another name than the certificates have.
    let named = TlsConfig { server_name: Some("chancery".into()), ..ca.sign("7", "127.0.0.1") };
    expect_not_admitted(with_tls(dir.path(), 7, &[&address], Some(named))).await;
    assert_eq!(first.status().learners, Vec::<u64>::new());

    for replica in [&first, &second, &third] {
        replica.shutdown().await.unwrap();
    }
}

/// Attack 10: the port itself refuses a peer without a certificate, or with one of another CA, independently
/// of the checks in replicas. It sends nothing but a TLS alert to a peer that does not speak TLS.
#[tokio::test(flavor = "multi_thread")]
async fn port_rejects_peer_without_valid_certificate() {
    use tokio_rustls::rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    };
    let dir = memory_dir();
    let (ca, other) = (Ca::new(dir.path(), "ca"), Ca::new(dir.path(), "other"));
    let own = ca.sign("1", "127.0.0.1");
    let first = Replica::open(with_tls(dir.path(), 1, &[], Some(own.clone()))).await.unwrap();
    let address = first.raft_address().to_owned();
    let root = || CertificateDer::from_pem_file(ca.dir.join("ca.pem")).unwrap();
    let builder = || {
        let mut roots = RootCertStore::empty();
        roots.add(root()).unwrap();
        ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
    };
    let shows = |tls: &TlsConfig| {
        let cert = CertificateDer::from_pem_file(&tls.cert).unwrap();
        let key = PrivateKeyDer::from_pem_file(&tls.key).unwrap();
        builder().with_client_auth_cert(vec![cert], key).unwrap()
    };
    let connect = async |mut config: ClientConfig| {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let mut stream = connector.connect(name, stream).await?;
        // In TLS 1.3 the client learns only at its next read that its certificate is refused.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        let mut answer = [0; 9];
        stream.read_exact(&mut answer).await
    };
    connect(shows(&own)).await.unwrap();
    let error = connect(builder().with_no_client_auth()).await.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    let error = connect(shows(&other.sign("2", "127.0.0.1"))).await.unwrap_err().to_string();
    assert!(error.contains("UnknownCA"), "{error}");
    // A client of the discovery services has a certificate of the CA for clients.
    let clients = Ca::new(dir.path(), "clients");
    let sidecar =
        clients.sign_for("sidecar", "127.0.0.1", vec![ExtendedKeyUsagePurpose::ClientAuth]);
    let error = connect(shows(&sidecar)).await.unwrap_err().to_string();
    assert!(error.contains("UnknownCA"), "{error}");

    let mut plain = TcpStream::connect(&address).unwrap();
    plain.set_read_timeout(Some(DEADLINE)).unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let read = plain.read_to_end(&mut answer);
    // A TLS alert, and the end of the stream.
    assert!(read.is_err() || answer.len() < 16, "{answer:?}");
    // The port closes a silent connection after a while. It delays nobody meanwhile.
    let mut silent = TcpStream::connect(&address).unwrap();
    silent.set_read_timeout(Some(DEADLINE)).unwrap();
    connect(shows(&own)).await.unwrap();
    assert!(matches!(silent.read(&mut [0; 16]), Ok(0) | Err(_)));
    first.shutdown().await.unwrap();
}

/// One name for all replicas suffices if addresses are not known in advance.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_can_share_one_name() {
    let dir = memory_dir();
    let ca = Ca::new(dir.path(), "ca");
    let tls = || TlsConfig {
        server_name: Some("replica.chancery".into()),
        ..ca.sign("all", "replica.chancery")
    };
    let first = Replica::open(with_tls(dir.path(), 1, &[], Some(tls()))).await.unwrap();
    let address = first.raft_address().to_owned();
    let second = Replica::open(with_tls(dir.path(), 2, &[&address], Some(tls()))).await.unwrap();
    eventually("two voters", async || voters(&second).await == [1, 2]).await;
    commit(&second, put("a", b"1")).await;
    let _answerer = answer(&first, |_| page("one"));
    let answers = ask_settled(&second).await;
    assert_eq!(answers.answered, [(1, vec!["one".into()])], "a question over TLS: {answers:?}");
    for replica in [&first, &second] {
        replica.shutdown().await.unwrap();
    }
}

/// T18: certificates and the CA are replaced while replicas run. New connections use the new ones.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_while_replicas_run() {
    let dir = memory_dir();
    let (old, new) = (Ca::new(dir.path(), "old"), Ca::new(dir.path(), "new"));
    let used = dir.path().join("used");
    fs::create_dir(&used).unwrap();
    let path = |name: &str| used.join(name);
    let tls = TlsConfig {
        cert: path("cert"),
        key: path("key"),
        ca: path("ca"),
        server_name: Some("all".into()),
    };
    let place = |from: &TlsConfig, ca: &str| {
        fs::write(path("new"), ca).unwrap();
        fs::rename(path("new"), &tls.ca).unwrap();
        fs::copy(&from.cert, &tls.cert).unwrap();
        fs::copy(&from.key, &tls.key).unwrap();
    };
    let pem = |ca: &Ca| fs::read_to_string(ca.dir.join("ca.pem")).unwrap();
    place(&old.sign("1", "all"), &pem(&old));
    let first = Replica::open(with_tls(dir.path(), 1, &[], Some(tls.clone()))).await.unwrap();
    let address = first.raft_address().to_owned();
    let joiner = |id, from: &TlsConfig| {
        let from = TlsConfig { server_name: Some("all".into()), ..from.clone() };
        // A learner, because the cluster would lose a voter when the test shuts the replica down.
        Config { learner: true, ..with_tls(dir.path(), id, &[&address], Some(from)) }
    };
    expect_not_admitted(joiner(2, &new.sign("2", "all"))).await;
    // Unusable files change nothing.
    fs::write(&tls.cert, "no certificate").unwrap();
    let second = Replica::open(joiner(3, &old.sign("3", "all"))).await.unwrap();
    second.shutdown().await.unwrap();
    place(&new.sign("1b", "all"), &pem(&new));
    let third = Replica::open(joiner(4, &new.sign("4", "all"))).await.unwrap();
    expect_not_admitted(joiner(5, &old.sign("5", "all"))).await;
    for replica in [&third, &first] {
        replica.shutdown().await.unwrap();
    }
}

/// Unusable files are reported before anything is opened, with the file and the reason.
#[tokio::test(flavor = "multi_thread")]
async fn unusable_tls_files_are_named_in_the_error() {
    let dir = memory_dir();
    let (ca, other) = (Ca::new(dir.path(), "ca"), Ca::new(dir.path(), "other"));
    let good = ca.sign("good", "127.0.0.1");
    let second = ca.sign("second", "127.0.0.1");
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, "-----BEGIN nothing").unwrap();
    let none = dir.path().join("none");
    let server_only = ca.sign_for("server", "127.0.0.1", vec![ExtendedKeyUsagePurpose::ServerAuth]);
    let other_ca = other.dir.join("ca.pem");
    let show = |path: &Path| path.display().to_string();
    let cases = [
        (TlsConfig { cert: none.clone(), ..good.clone() }, [show(&none), "No such file".into()]),
        (TlsConfig { key: none.clone(), ..good.clone() }, [show(&none), "read the key".into()]),
        (TlsConfig { ca: none.clone(), ..good.clone() }, [show(&none), "read the CA".into()]),
        (TlsConfig { cert: garbage.clone(), ..good.clone() }, [show(&garbage), "PEM".into()]),
        (
            TlsConfig { key: garbage.clone(), ..good.clone() },
            [show(&garbage), "read the key".into()],
        ),
        (TlsConfig { ca: garbage.clone(), ..good.clone() }, [show(&garbage), "PEM".into()]),
        (
            TlsConfig { key: second.key.clone(), ..good.clone() },
            [show(&second.key), "does not belong to the certificate".into()],
        ),
        (
            TlsConfig { ca: other_ca.clone(), ..good.clone() },
            [show(&other_ca), "UnknownIssuer".into()],
        ),
        (server_only, ["server.pem".into(), "for a replica".into()]),
        (
            TlsConfig { server_name: Some("a b".into()), ..good.clone() },
            ["\"a b\"".into(), "not a valid server name".into()],
        ),
    ];
    for (tls, expected) in cases {
        let error = Replica::open(with_tls(dir.path(), 1, &[], Some(tls))).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Tls(_)), "{text}");
        assert!(expected.iter().all(|part| text.contains(part)), "{text}: {expected:?}");
        assert!(!dir.path().join("1").join("IDENTITY").exists());
    }
}
