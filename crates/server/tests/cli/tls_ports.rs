//! TLS on the ports for clients and operators, and the command line as their client.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use chancery_testing::Ca;
use chancery_tls::{ClientTls, ClientTlsFiles};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    cluster::eventually,
    support::{Done, Server, chancery, clusters, logged, run},
};

/// The directory of `chancery dev certs`.
pub(crate) struct Certs(pub(crate) PathBuf);

impl Certs {
    pub(crate) fn create(dir: &Path) -> Self {
        let certs = dir.join("certs");
        let done = dev_certs(&certs);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{}", done.out);
        Self(certs)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Starts a replica with TLS on all ports.
    pub(crate) fn start(&self, data_dir: &Path) -> Server {
        let mut command = chancery();
        let log = fs::File::create(data_dir.with_extension("log")).unwrap();
        command.args(["serve", "--config", &self.path("chancery.toml"), "--xds", "127.0.0.1:0"]);
        command.args(["--admin", "127.0.0.1:0", "--raft", "127.0.0.1:0", "--data-dir"]);
        command.arg(data_dir).env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB").stderr(log);
        Server::spawn(command)
    }

    /// Returns the flags for the certificate `name` and the CA of servers.
    pub(crate) fn flags(&self, name: &str) -> Vec<String> {
        let [cert, key] = ["pem", "key"].map(|end| self.path(&format!("{name}.{end}")));
        let words = ["--ca-cert", &self.path("ca.pem"), "--cert", &cert, "--cert-key", &key];
        words.map(str::to_owned).to_vec()
    }
}

fn dev_certs(dir: &Path) -> Done {
    let mut command = chancery();
    command.args(["dev", "certs", "--dir"]).arg(dir);
    run(command, "")
}

/// Runs a command with the flags, against a server.
pub(crate) fn on(server: &str, flags: &[String], args: &[&str], input: &str) -> Done {
    let mut command = chancery();
    // No CA of the machine has any effect.
    command.args(["--server", server]).args(flags).args(args).env("SSL_CERT_FILE", "/dev/null");
    run(command, input)
}

/// Returns the text of a metric page over TLS.
fn metrics(server: &Server, certs: &Certs) -> String {
    let files = ClientTlsFiles {
        ca: Some(certs.path("ca.pem").into()),
        cert_and_key: Some((certs.path("operator.pem").into(), certs.path("operator.key").into())),
    };
    let get = async {
        let tls = ClientTls::new(&files).unwrap();
        let stream = TcpStream::connect(&server.admin).await.unwrap();
        let mut stream = tls.connect("localhost", stream).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // A server may close a connection of HTTP/1.1 without the end of TLS.
        drop(stream.read_to_string(&mut answer).await);
        answer
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(get)
}

fn metric(page: &str, sample: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample} in {page}")).parse().unwrap()
}

#[test]
fn dev_certs_creates_private_keys_and_overwrites_nothing() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let mode = |name: &str| fs::metadata(certs.path(name)).unwrap().permissions().mode() & 0o777;
    for name in ["server.key", "client.key", "operator.key", "replica.key"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    let before = fs::read(certs.path("server.pem")).unwrap();
    let again = dev_certs(&certs.0);
    let expected = format!(
        "error: {} exists, and is not overwritten; remove it, or choose another directory\n",
        certs.path("ca.pem")
    );
    assert_eq!((again.code, again.err), (1, expected));
    // One file is enough, and none is written.
    for entry in fs::read_dir(&certs.0).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap() != "server.pem" {
            fs::remove_file(path).unwrap();
        }
    }
    assert_eq!(dev_certs(&certs.0).code, 1);
    assert_eq!(fs::read_dir(&certs.0).unwrap().count(), 1);
    assert_eq!(fs::read(certs.path("server.pem")).unwrap(), before);
}

/// T15: with the files of `dev certs`, all ports use TLS, and the command line reaches them.
#[test]
fn commands_reach_a_replica_with_tls_on_all_ports() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let fleet_ca = Ca::new("fleet");
    let trusted = fs::read_to_string(certs.path("ca.pem")).unwrap() + &fleet_ca.pem();
    fs::write(certs.path("ca.pem"), trusted).unwrap();
    let server = certs.start(&root.path().join("data"));
    let admin = format!("https://{}", server.admin);
    let operator = certs.flags("operator");
    let applied = on(&admin, &operator, &["apply", "-f", "-"], &clusters(&["web"], "1s"));
    assert_eq!((applied.code, applied.err.as_str()), (0, ""), "{}", applied.out);
    let got = on(&admin, &operator, &["get", "-o", "json"], "");
    let got: Value = serde_json::from_str(&got.out).unwrap();
    assert_eq!(got["resources"].as_array().unwrap().len(), 1, "{got}");
    // The environment works like the flags, and the system's CAs like --ca-cert.
    let mut command = chancery();
    command.args(["get"]).env("CHANCERY_SERVER", &admin).env("SSL_CERT_FILE", certs.path("ca.pem"));
    command.env("CHANCERY_CERT", certs.path("operator.pem"));
    command.env("CHANCERY_CERT_KEY", certs.path("operator.key"));
    let done = run(command, "");
    assert!(done.code == 0 && done.out.contains("web"), "{done:?}");

    let xds = format!("https://{}", server.xds);
    let files = root.path().join("files");
    let dir = files.display().to_string();
    let mirror = ["mirror", "--node", "n", "--dir", &dir, "--once", "--xds", &xds];
    let mirrored = on(&admin, &certs.flags("client"), &mirror, "");
    assert_eq!(mirrored.code, 0, "{mirrored:?}");
    assert!(fs::read_to_string(files.join("cds.json")).unwrap().contains("web"));

    // The clients of a load test have certificates of their own: the operator is no client of the xDS port.
    let fleet = ["loadtest", "--xds", &xds, "--clients", "4", "--rate", "5", "--seconds", "1"];
    let [ca, key] = ["fleet.pem", "fleet.key"].map(|name| certs.path(name));
    fs::write(&ca, fleet_ca.pem()).unwrap();
    fs::write(&key, fleet_ca.key_pem()).unwrap();
    let own = ["--client-ca", &ca, "--client-ca-key", &key, "-o", "json"];
    let done = on(&admin, &operator, &[&fleet[..], &own].concat(), "");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(report["correctness"]["equal"], 4, "{done:?}");
    assert_eq!(report["phases"][0]["delivery_ms"]["n"], 20, "{done:?}");

    let page = metrics(&server, &certs);
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    for port in ["xds", "admin"] {
        let ok = format!("chancery_tls_handshakes_total{{port=\"{port}\",result=\"ok\"}}");
        assert!(metric(&page, &ok) >= 1.0, "{port}");
    }
    for port in ["xds", "admin", "raft"] {
        let left = format!("chancery_tls_certificate_seconds_left{{port=\"{port}\"}}");
        let days = metric(&page, &left) / 86_400.0;
        assert!((29.9..=30.0).contains(&days), "{port}: {days}");
        let lifetime = format!("chancery_tls_certificate_lifetime_seconds{{port=\"{port}\"}}");
        let days = metric(&page, &lifetime) / 86_400.0;
        assert!((30.0..30.1).contains(&days), "{port}: {days}");
    }
    assert_eq!(server.terminate().0, Some(0));
}

/// Without access rules, too, the author is the identity of the certificate, and `--author` is a claim beside it.
#[test]
fn certificate_is_the_author_without_access_rules() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let admin = format!("https://{}", server.admin);
    let operator = certs.flags("operator");
    let apply = |author: &str, timeout: &str| {
        let args = ["apply", "-f", "-", "--author", author, "--label", "git=4fe1"];
        let done = on(&admin, &operator, &args, &clusters(&["web"], timeout));
        assert_eq!(done.code, 0, "{done:?}");
    };
    apply("", "1s");
    apply("root", "2s");
    let who = on(&admin, &operator, &["whoami", "-o", "json"], "");
    let who: Value = serde_json::from_str(&who.out).unwrap();
    let identity = who["identity"].as_str().unwrap();
    assert!(identity.starts_with("spiffe://"), "{who}");
    let history = on(&admin, &operator, &["history", "-o", "json"], "");
    let history: Value = serde_json::from_str(&history.out).unwrap();
    let entries = history["entries"].as_array().unwrap().iter();
    let authors: Vec<_> = entries.map(|entry| entry["author"].as_str().unwrap()).collect();
    assert_eq!(authors, [format!("{identity} for root").as_str(), identity]);
}

/// Checks that `chancery get` fails with an error that begins with this text.
fn expect_refusal(server: &str, flags: &[String], code: i32, text: &str) {
    let done = on(server, flags, &["get"], "");
    assert_eq!(done.code, code, "{done:?}");
    assert!(done.err.starts_with(&format!("error: {text}")), "{text}\n{done:?}");
}

/// Attack 65: a server that is not trusted is refused. Each failed connection names its cause and what to do.
#[test]
fn command_explains_why_tls_failed() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let admin = format!("https://{}", server.admin);
    let other_ca = certs.path("other.pem");
    fs::write(&other_ca, Ca::new("other").pem()).unwrap();
    let ca_only = |name: &str| vec!["--ca-cert".to_owned(), certs.path(name)];
    let text = format!(
        "cannot connect to {admin}: the server's certificate is not signed by a CA in {other_ca}; set --ca-cert or \
         CHANCERY_CA_CERT to the file of the CA that signed it"
    );
    expect_refusal(&admin, &ca_only("other.pem"), 1, &text);
    expect_refusal(&admin, &[], 1, "cannot use TLS: this system has no CA certificates");
    expect_refusal(&admin, &ca_only("none.pem"), 1, "cannot use TLS: cannot read the CA in ");
    let text = format!(
        "the server at {admin} needs a client certificate; set --cert and --cert-key (CHANCERY_CERT, \
         CHANCERY_CERT_KEY)"
    );
    expect_refusal(&admin, &ca_only("ca.pem"), 1, &text);
    let text = format!(
        "the server at {admin} does not trust the CA of the client certificate; set --cert to"
    );
    expect_refusal(&admin, &certs.flags("client"), 1, &text);
    let alone = vec!["--cert".to_owned(), certs.path("operator.pem")];
    expect_refusal(&admin, &alone, 2, "--cert needs --cert-key");
    // Operators and xDS clients have different CAs.
    let xds = format!("https://{}", server.xds);
    let dir = root.path().join("files").display().to_string();
    // The mirror would wait for a server that starts, but not for another certificate.
    let mirror =
        ["mirror", "--node", "n", "--dir", &dir, "--once", "--timeout", "10m", "--xds", &xds];
    let operator = certs.flags("operator");
    for (flags, text) in [
        (operator.as_slice(), "the server does not trust the CA of the client certificate"),
        (&ca_only("ca.pem"), "the server needs a client certificate"),
        (&ca_only("other.pem"), "the server's certificate is not signed by a CA in"),
    ] {
        let refused = on(&admin, flags, &mirror, "");
        let lines: Vec<&str> = refused.err.lines().collect();
        assert_eq!((refused.code, lines.len()), (1, 2), "{refused:?}");
        assert!(lines[0].contains(text), "{text}: {refused:?}");
        assert!(lines[1].contains("another attempt would fail in the same way"), "{refused:?}");
    }
}

/// Attack 65: no command falls back to a connection without TLS.
#[test]
fn command_and_server_must_agree_on_tls() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let plain = Server::start(&root.path().join("plain"));
    let text = format!("the server at {} uses TLS; begin its address with https://", server.admin);
    expect_refusal(&server.admin, &[], 1, &text);
    let operator = certs.flags("operator");
    let at_plain = format!("https://{}", plain.admin);
    let text = format!(
        "cannot connect to {at_plain}: the server does not use TLS on this port; write its address without https://"
    );
    expect_refusal(&at_plain, &operator, 1, &text);
    let text = format!(
        "the connection to {0} would not be encrypted, although --ca-cert or --cert is set; write https://{0}",
        plain.admin
    );
    expect_refusal(&plain.admin, &operator, 1, &text);
}

/// T18: the files of both ports are replaced while the replica runs.
#[test]
fn replaced_certificates_are_used_without_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let left = |port: &str| {
        let sample = format!("chancery_tls_certificate_seconds_left{{port=\"{port}\"}}");
        metric(&metrics(&server, &certs), &sample) / 86_400.0
    };
    assert!(left("xds") <= 30.0);
    // Another CA signs the new certificate of the server. Clients trust both.
    let ca = Ca::new("new");
    let both = fs::read_to_string(certs.path("ca.pem")).unwrap() + &ca.pem();
    fs::write(certs.path("ca.pem"), both).unwrap();
    ca.loopback().write(&certs.0, "server");
    for port in ["xds", "admin"] {
        eventually("the new certificate is used", || (left(port) > 1000.0).then_some(()));
    }
    let page = metrics(&server, &certs);
    for port in ["xds", "admin"] {
        let reloads = |result| {
            metric(
                &page,
                &format!("chancery_tls_reloads_total{{port=\"{port}\",result=\"{result}\"}}"),
            )
        };
        assert!(reloads("ok") >= 1.0, "{port}");
    }
    // Unusable files are counted, and change nothing.
    let failed = || {
        let sample = "chancery_tls_reloads_total{port=\"xds\",result=\"failed\"}";
        metric(&metrics(&server, &certs), sample)
    };
    // A reload between the writes of two files may have failed.
    let before = failed();
    fs::write(certs.path("server.pem"), "no certificate").unwrap();
    eventually("the failure is counted", || (failed() > before).then_some(()));
    assert!(left("xds") > 1000.0);
    let log = root.path().join("data.log");
    logged(&log, "the certificate files for xDS clients have changed and are unusable");
}

/// attack 12: the removal of a CA ends the open connections of its operators, too.
#[test]
fn admin_connection_ends_when_its_ca_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let server = certs.start(&root.path().join("data"));
    let files = ClientTlsFiles {
        ca: Some(certs.path("ca.pem").into()),
        cert_and_key: Some((certs.path("operator.pem").into(), certs.path("operator.key").into())),
    };
    let idle = async {
        let tls = ClientTls::for_http1(&files).unwrap();
        let stream = TcpStream::connect(&server.admin).await.unwrap();
        let mut stream = tls.connect("localhost", stream).await.unwrap();
        let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        fs::write(certs.path("operators-ca.pem"), Ca::new("new").pem()).unwrap();
        // An idle connection stays open for two minutes otherwise.
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest);
        drop(tokio::time::timeout(std::time::Duration::from_secs(30), end).await.unwrap());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(idle);
    let done = on(&format!("https://{}", server.admin), &certs.flags("operator"), &["nodes"], "");
    assert!(done.code != 0, "{done:?}");
}

/// A port that listens on all addresses needs TLS, or the consent of the operator.
#[test]
fn tls_makes_allow_plaintext_unnecessary() {
    let root = tempfile::tempdir().unwrap();
    let certs = Certs::create(root.path());
    let check = |args: &[&str], variables: &[(&str, String)]| {
        let mut command: Command = chancery();
        command.args(["config", "check"]).args(args);
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        run(command, "")
    };
    let open = ["--xds", "0.0.0.0:18000", "--admin", "0.0.0.0:18001"];
    let refused = check(&open, &[]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.err.contains("set xds.tls_cert and xds.tls_key, or xds.allow_plaintext = true")
            && refused.err.contains("set admin.tls_cert and admin.tls_key, or admin.allow"),
        "{refused:?}"
    );
    let config = certs.path("chancery.toml");
    let done = check(&[&["--config", &config], open.as_slice()].concat(), &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let wrong = [
        ("CHANCERY_XDS_TLS_CERT", certs.path("server.pem")),
        ("CHANCERY_XDS_TLS_KEY", certs.path("client.key")),
        ("CHANCERY_XDS_TLS_CLIENT_CA", certs.path("none")),
        ("CHANCERY_ADMIN_TLS_KEY", certs.path("server.key")),
    ];
    let refused = check(&[], &wrong);
    let lines: Vec<&str> = refused.err.lines().collect();
    let starts = [
        "error: admin.tls_cert = \"\" (from the default): is missing; set both admin.tls_cert and",
        "error: xds.tls_key = ",
        "error: xds.tls_client_ca = ",
    ];
    assert_eq!(lines.len(), starts.len(), "{refused:?}");
    assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{refused:?}");
}
