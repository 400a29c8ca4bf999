//! Real clients over mutual TLS, while certificates and CAs are replaced under their open streams.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use chancery_testing::{
    Ca, Leaf, add_uri,
    rcgen::{SerialNumber, date_time_ymd},
    reserve_port,
};
use serde_json::{Value, json};

use crate::{
    grpc_life::with,
    support::{
        STEP,
        chancery::{BINARY, Chancery},
        envoy::{Envoy, Mode},
        grpc::{GrpcClient, GrpcServer, Kind},
        http, in_directory,
        load::Load,
        manifests::{TYPES, proxied, service},
        upstream, wait_for,
    },
};

const NODE: &str = "tls-client";

/// Replaces a file atomically.
fn place(path: &Path, content: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(&new, path).context("replace a file")
}

/// A certificate of the server that expires in this year.
fn server_cert(ca: &Ca, year: i32) -> Leaf {
    ca.sign(&["127.0.0.1", "localhost"], |params| params.not_after = date_time_ymd(year, 1, 1))
}

/// A certificate of the client with this serial number.
fn client_cert(ca: &Ca, serial: u64) -> Leaf {
    ca.sign(&[], |params| {
        add_uri(params, "spiffe://e2e/client");
        params.serial_number = Some(SerialNumber::from(serial));
    })
}

/// A server whose xDS port requires certificates of a CA, and the files of its clients.
struct Fixture<'a> {
    dir: &'a Path,
    old: Ca,
    /// The CA after the rotation.
    new: Option<Ca>,
    chancery: Chancery,
}

impl<'a> Fixture<'a> {
    fn start(dir: &'a Path) -> Result<Self> {
        let old = Ca::new("old");
        place(&dir.join("ca.pem"), &old.pem())?;
        place(&dir.join("client-ca.pem"), &old.pem())?;
        place(&dir.join("crl.pem"), &old.revoke(&[]))?;
        client_cert(&old, 7).write(dir, "client");
        let (cert, key) = server_cert(&old, 2080).write(dir, "server");
        let path = |path: &Path| path.display().to_string();
        let (cert, key, ca) = (path(&cert), path(&key), path(&dir.join("client-ca.pem")));
        let list = path(&dir.join("crl.pem"));
        let settings = [
            ("CHANCERY_XDS_TLS_CERT", cert.as_str()),
            ("CHANCERY_XDS_TLS_KEY", &key),
            ("CHANCERY_XDS_TLS_CLIENT_CA", &ca),
            ("CHANCERY_XDS_TLS_CRL", &list),
        ];
        let chancery = Chancery::start_with(dir, &settings)?;
        Ok(Self { dir, old, new: None, chancery })
    }

    fn seconds_left(&self) -> Result<f64> {
        self.chancery.metric("chancery_tls_certificate_seconds_left", "port=\"xds\"")
    }

    fn reloads(&self) -> Result<f64> {
        self.chancery.metric("chancery_tls_reloads_total", "port=\"xds\"")
    }

    /// Replaces the certificate of the server, adds a CA of clients, and gives the client a certificate of that CA.
    fn rotate(&mut self) -> Result<()> {
        let new = Ca::new("new");
        // Clients trust both CAs of servers first.
        place(&self.dir.join("ca.pem"), &(self.old.pem() + &new.pem()))?;
        let before = self.seconds_left()?;
        server_cert(&new, 2090).write(self.dir, "server");
        wait_for("the new certificate of the server", STEP, || {
            Ok((self.seconds_left()? > before + 1e6).then_some(()))
        })?;
        self.trust(&(self.old.pem() + &new.pem()))?;
        new.client("spiffe://e2e/client").write(self.dir, "client");
        self.new = Some(new);
        Ok(())
    }

    /// Removes the old CA of clients. The connections with its certificates end, and the clients come back.
    fn remove_old(&self) -> Result<()> {
        let bundle = self.new.as_ref().context("no new CA")?.pem();
        self.ends_stream(|| self.trust(&bundle))
    }

    /// Makes a change that ends the stream of the client, and waits until the client is synced again.
    fn ends_stream(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let [_, ended, _] = self.counts()?;
        change()?;
        wait_for("the end of the stream", STEP, || Ok((self.counts()?[1] > ended).then_some(())))?;
        self.chancery.wait_for_node(NODE, "synced", &TYPES)
    }

    fn trust(&self, bundle: &str) -> Result<()> {
        self.replace("client-ca.pem", bundle)
    }

    /// Replaces the revocation list. It names these serial numbers.
    fn revoke(&self, serials: &[u64]) -> Result<()> {
        self.replace("crl.pem", &self.old.revoke(serials))
    }

    /// Replaces a file of the server, and waits until the server has read it.
    fn replace(&self, name: &str, content: &str) -> Result<()> {
        let before = self.reloads()?;
        place(&self.dir.join(name), content)?;
        wait_for(name, STEP, || Ok((self.reloads()? > before).then_some(())))
    }

    /// Returns the numbers of connections, of ended streams, and of resources that were sent.
    fn counts(&self) -> Result<[f64; 3]> {
        let page = http::get(self.chancery.at.admin, "/metrics")?;
        let sum = |name: &str| -> Result<f64> {
            let mut sum = 0.0;
            for line in page.lines().filter_map(|line| line.strip_prefix(name)) {
                if let Some((labels, value)) = line.rsplit_once(' ')
                    && (labels.is_empty() || labels.starts_with('{'))
                {
                    sum += value.parse::<f64>()?;
                }
            }
            Ok(sum)
        };
        Ok([
            sum("chancery_xds_connections_total")?,
            sum("chancery_xds_stream_ends_total")?,
            sum("chancery_xds_pushed_resources_total")?,
        ])
    }

    fn handshakes(&self, result: &str) -> Result<f64> {
        self.chancery.metric("chancery_tls_handshakes_total", &format!("result=\"{result}\""))
    }
}

/// Returns the TLS context of an Envoy whose certificate and CA are files that it watches. Its TLS versions
/// are the defaults, up to 1.2.
fn transport_socket(dir: &Path) -> Result<Value> {
    let secret = |name: &str, content: Value| {
        let mut secret = content;
        secret["@type"] =
            "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret".into();
        secret["name"] = name.into();
        let path = dir.join(format!("{name}.json"));
        fs::write(&path, json!({"resources": [secret]}).to_string())?;
        let watched = json!({"path": path, "watched_directory": {"path": dir}});
        let source = json!({"resource_api_version": "V3", "path_config_source": watched});
        Ok::<Value, anyhow::Error>(json!({"name": name, "sds_config": source}))
    };
    let file = |name: &str| json!({"filename": dir.join(name)});
    let watched = json!({"path": dir});
    let certificate = secret(
        "own",
        json!({"tls_certificate": {
            "certificate_chain": file("client.pem"),
            "private_key": file("client.key"),
            "watched_directory": watched,
        }}),
    )?;
    let trusted = json!({"trusted_ca": file("ca.pem"), "watched_directory": watched});
    let authority = secret("trusted", json!({"validation_context": trusted}))?;
    Ok(json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "tls_certificate_sds_secret_configs": [certificate],
                "validation_context_sds_secret_config": authority,
            },
        },
    }))
}

/// CLI-E-36: an Envoy that speaks TLS 1.2 keeps its stream while certificates change and a CA is added. When the old CA
/// is removed, it comes back with its new certificate, and receives only what it requests by name again.
#[test]
fn envoy_keeps_its_configuration_while_cas_are_replaced() -> Result<()> {
    in_directory(|dir| {
        let mode = Mode::DeltaAds;
        let (a, b) = (upstream::spawn("a")?, upstream::spawn("b")?);
        let port = reserve_port();
        let mut tls = Fixture::start(dir)?;
        tls.chancery.publish(&proxied(mode, port, "one", a))?;
        let mut bootstrap = mode.bootstrap(NODE, tls.chancery.at.xds);
        bootstrap["static_resources"]["clusters"][0]["transport_socket"] = transport_socket(dir)?;
        let envoy = Envoy::start_with(dir, NODE, &bootstrap)?;
        http::wait_for_answer(port)?;
        tls.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let load = Load::start(port);
        ensure!(envoy.stat("cluster.chancery.ssl.versions.TLSv1.2")? >= 1, "not TLS 1.2");
        ensure!(tls.handshakes("ok")? >= 1.0, "no handshake was counted");
        let before = tls.counts()?;

        tls.rotate()?;
        load.wait_for_more(200)?;
        ensure!(tls.counts()? == before, "{before:?}, then {:?}", tls.counts()?);
        tls.remove_old()?;
        load.wait_for_more(200)?;
        let [connections, ends, pushed] = before;
        let after = tls.counts()?;
        ensure!(after[1..] == [ends + 1.0, pushed + 2.0], "{before:?}, then {after:?}");
        ensure!(after[0] > connections, "{before:?}, then {after:?}");
        tls.chancery.publish_and_wait(&proxied(mode, port, "one", b))?;
        load.wait_for_only("b")?;
        let after = tls.counts()?;
        ensure!(after[1..] == [ends + 1.0, pushed + 3.0], "{before:?}, then {after:?}");

        tls.chancery.terminate()?;
        tls.chancery.start_again()?;
        tls.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        ensure!(tls.handshakes("ok")? >= 1.0, "no handshake was counted");
        load.finish_without_failure(200)?;
        Ok(())
    })
}

/// A revocation list with other certificates changes nothing for an Envoy. One with its replaced certificate ends its
/// connection: it comes back with the new one, and receives only what it requests by name again.
#[test]
fn envoy_keeps_its_configuration_while_revocation_lists_change() -> Result<()> {
    in_directory(|dir| {
        let (mode, a, port) = (Mode::DeltaAds, upstream::spawn("a")?, reserve_port());
        let tls = Fixture::start(dir)?;
        tls.chancery.publish(&proxied(mode, port, "one", a))?;
        let mut bootstrap = mode.bootstrap(NODE, tls.chancery.at.xds);
        bootstrap["static_resources"]["clusters"][0]["transport_socket"] = transport_socket(dir)?;
        let _envoy = Envoy::start_with(dir, NODE, &bootstrap)?;
        http::wait_for_answer(port)?;
        tls.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let load = Load::start(port);
        let before = tls.counts()?;

        tls.revoke(&[99])?;
        client_cert(&tls.old, 8).write(dir, "client");
        load.wait_for_more(200)?;
        ensure!(tls.counts()? == before, "{before:?}, then {:?}", tls.counts()?);
        tls.ends_stream(|| tls.revoke(&[7, 99]))?;
        load.wait_for_more(200)?;
        let (after, [_, ends, pushed]) = (tls.counts()?, before);
        ensure!(after[1..] == [ends + 1.0, pushed + 2.0], "{before:?}, then {after:?}");
        load.finish_without_failure(400)?;
        Ok(())
    })
}

/// C-core, with the same changes of revocation lists.
#[test]
fn c_core_keeps_its_configuration_while_revocation_lists_change() -> Result<()> {
    revocation_under(Kind::Python)
}

/// grpc-js, with the same changes of revocation lists.
#[test]
fn grpc_js_keeps_its_configuration_while_revocation_lists_change() -> Result<()> {
    revocation_under(Kind::Node)
}

fn revocation_under(kind: Kind) -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    with(kind, |dir| {
        let a = GrpcServer::start(dir, "a")?;
        let tls = Fixture::start(dir)?;
        tls.chancery.publish(&service(SERVICE, "one", a.port))?;
        let xds = tls.chancery.at.xds;
        let mut client = GrpcClient::start_with_tls(dir, kind, NODE, xds, SERVICE)?;
        client.wait_for_only("a")?;
        tls.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let before = tls.counts()?;

        tls.revoke(&[99])?;
        client_cert(&tls.old, 8).write(dir, "client");
        client.wait_for_more(100)?;
        ensure!(tls.counts()? == before, "{before:?}, then {:?}", tls.counts()?);
        tls.ends_stream(|| tls.revoke(&[7, 99]))?;
        client.wait_for_more(100)?;
        let after = tls.counts()?;
        ensure!(after[1] == before[1] + 1.0, "{before:?}, then {after:?}");
        client.expect_own_faults(40)
    })
}

/// C-core over mutual TLS, with the same changes.
#[test]
fn c_core_keeps_its_configuration_while_cas_are_replaced() -> Result<()> {
    rotation_under(Kind::Python)
}

/// grpc-js over mutual TLS, with the same changes.
#[test]
fn grpc_js_keeps_its_configuration_while_cas_are_replaced() -> Result<()> {
    rotation_under(Kind::Node)
}

fn rotation_under(kind: Kind) -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    with(kind, |dir| {
        let (a, b) = (GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?);
        let mut tls = Fixture::start(dir)?;
        tls.chancery.publish(&service(SERVICE, "one", a.port))?;
        let xds = tls.chancery.at.xds;
        let mut client = GrpcClient::start_with_tls(dir, kind, NODE, xds, SERVICE)?;
        client.wait_for_only("a")?;
        tls.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let before = tls.counts()?;

        tls.rotate()?;
        client.wait_for_more(100)?;
        ensure!(tls.counts()? == before, "{before:?}, then {:?}", tls.counts()?);
        tls.remove_old()?;
        client.wait_for_more(100)?;
        tls.chancery.publish(&service(SERVICE, "one", b.port))?;
        client.wait_for_only("b")?;
        let after = tls.counts()?;
        ensure!(after[1] == before[1] + 1.0, "{before:?}, then {after:?}");

        tls.chancery.terminate()?;
        tls.chancery.start_again()?;
        tls.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        client.wait_for_more(100)?;
        client.expect_own_faults(40)
    })
}

/// The files of `chancery dev certs` work as they are: `chancery.toml` for the server, and `envoy.yaml`, with
/// TLS 1.3, for Envoy.
#[test]
fn envoy_connects_with_the_bootstrap_of_dev_certs() -> Result<()> {
    in_directory(|dir| {
        let certs = dir.join("certs");
        let status = Command::new(BINARY).args(["dev", "certs", "--dir"]).arg(&certs).status()?;
        ensure!(status.success(), "{status}");
        let path = |name: &str| certs.join(name).display().to_string();
        let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
        let settings = [
            ("CHANCERY_XDS_TLS_CERT", cert.as_str()),
            ("CHANCERY_XDS_TLS_KEY", &key),
            ("CHANCERY_XDS_TLS_CLIENT_CA", &ca),
            ("CHANCERY_XDS_TLS_MIN", "1.3"),
        ];
        let chancery = Chancery::start_with(dir, &settings)?;
        let (a, port, mode) = (upstream::spawn("a")?, reserve_port(), Mode::DeltaAds);
        chancery.publish(&proxied(mode, port, "one", a))?;
        let text = fs::read_to_string(certs.join("envoy.yaml"))?;
        ensure!(text.contains("port_value: 18000"), "{text}");
        let text = text.replace("port_value: 18000", &format!("port_value: {}", chancery.at.xds));
        let bootstrap: Value = serde_saphyr::from_str(&text)?;
        let envoy = Envoy::start_with(dir, "envoy-1", &bootstrap)?;
        ensure!(http::wait_for_answer(port)? == "a", "another upstream answered");
        chancery.wait_for_node("envoy-1", "synced", &TYPES)?;
        ensure!(envoy.stat("cluster.chancery.ssl.versions.TLSv1.3")? >= 1, "not TLS 1.3");
        Ok(())
    })
}
