//! Real clients that start from the files of `chancery bootstrap`.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use chancery_testing::{Ca, reserve_port};
use serde_json::Value;

use crate::support::{
    STEP,
    chancery::{BINARY, Chancery},
    envoy::{Envoy, Mode},
    grpc::{GrpcClient, GrpcServer, Kind, Script},
    http, in_directory,
    manifests::{TYPES, proxied, service},
    process::{python, script},
    upstream, wait_for,
};

/// Writes the CA, and the certificates of a server and of a client.
fn certify(dir: &Path) -> Result<()> {
    let ca = Ca::new("ca");
    fs::write(dir.join("ca.pem"), ca.pem())?;
    ca.loopback().write(dir, "server");
    ca.client("spiffe://e2e/client").write(dir, "client");
    Ok(())
}

/// Starts a server whose xDS port requires certificates and TLS 1.3.
fn start(dir: &Path) -> Result<Chancery> {
    let path = |name: &str| dir.join(name).display().to_string();
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let settings = [
        ("CHANCERY_XDS_TLS_CERT", cert.as_str()),
        ("CHANCERY_XDS_TLS_KEY", &key),
        ("CHANCERY_XDS_TLS_CLIENT_CA", &ca),
        ("CHANCERY_XDS_TLS_MIN", "1.3"),
    ];
    Chancery::start_with(dir, &settings)
}

/// Writes a bootstrap with the certificates of the client.
fn bootstrap(dir: &Path, kind: &str, address: &str, more: &[&str]) -> Result<()> {
    let mut command = Command::new(BINARY);
    command.current_dir(dir).args(["bootstrap", kind, "--node", "b-1", "--xds", address]);
    command.args(["--ca-cert", "ca.pem", "--cert", "client.pem", "--cert-key", "client.key"]);
    let output = command.args(["--out", "made.yaml"]).args(more).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn start_envoy(dir: &Path) -> Result<Envoy> {
    let bootstrap: Value = serde_saphyr::from_str(&fs::read_to_string(dir.join("made.yaml"))?)?;
    Envoy::start_with(dir, "b-1", &bootstrap)
}

fn envoy_receives_resources(address: impl FnOnce(u16) -> String, more: &[&str]) -> Result<()> {
    in_directory(|dir| {
        certify(dir)?;
        let chancery = start(dir)?;
        let (a, port) = (upstream::spawn("a")?, reserve_port());
        chancery.publish(&proxied(Mode::DeltaAds, port, "one", a))?;
        bootstrap(dir, "envoy", &address(chancery.at.xds), more)?;
        let envoy = start_envoy(dir)?;
        ensure!(http::wait_for_answer(port)? == "a", "another upstream answered");
        chancery.wait_for_node("b-1", "synced", &TYPES)?;
        ensure!(envoy.stat("cluster.chancery.ssl.versions.TLSv1.3")? >= 1, "not TLS 1.3");
        let node = chancery.node("b-1")?;
        ensure!(node["streams"][0]["protocol"] == "delta", "{node}");
        Ok(())
    })
}

/// Envoy verifies the DNS name of the server.
#[test]
fn envoy_starts_from_its_bootstrap_by_name() -> Result<()> {
    let metadata = ["--cluster", "edge", "--metadata", "team=shop", "zone=\"a\": b"];
    envoy_receives_resources(|port| format!("https://localhost:{port}"), &metadata)
}

/// Envoy verifies the IP address of the server.
#[test]
fn envoy_starts_from_its_bootstrap_by_address() -> Result<()> {
    envoy_receives_resources(|port| format!("127.0.0.1:{port}"), &[])
}

/// Envoy refuses a server whose certificate has another name.
#[test]
fn envoy_verifies_the_name_of_the_server() -> Result<()> {
    in_directory(|dir| {
        certify(dir)?;
        let chancery = start(dir)?;
        let address = format!("https://localhost:{}", chancery.at.xds);
        bootstrap(dir, "envoy", &address, &["--server-name", "other.example"])?;
        let envoy = start_envoy(dir)?;
        wait_for("a refused certificate", STEP, || {
            let refused = envoy.stat("cluster.chancery.ssl.fail_verify_san")?;
            Ok((refused > 0).then_some(()))
        })?;
        ensure!(chancery.n_streams("b-1")? == 0, "Envoy has a stream");
        Ok(())
    })
}

#[test]
fn c_core_starts_from_its_bootstrap() -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    in_directory(|dir| {
        certify(dir)?;
        let chancery = start(dir)?;
        let a = GrpcServer::start(dir, "a")?;
        chancery.publish(&service(SERVICE, "one", a.port))?;
        bootstrap(dir, "grpc", &format!("https://localhost:{}", chancery.at.xds), &[])?;
        let made = dir.join("made.yaml");
        let mut client = GrpcClient::start_from(dir, Kind::Python, "b-1", SERVICE, &made, &[])?;
        client.wait_for_only("a")?;
        chancery.wait_for_node("b-1", "synced", &TYPES)
    })
}

/// Writes a bootstrap for a list of servers without TLS.
fn bootstrap_of_list(dir: &Path, kind: &str, servers: &[Chancery]) -> Result<()> {
    let addresses: Vec<String> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.at.xds)).collect();
    let mut command = Command::new(BINARY);
    command.args(["bootstrap", kind, "--node", "b-1", "--xds", &addresses.join(",")]);
    let output = command.arg("--out").arg(dir.join("made.yaml")).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Starts two servers, each with its own resources.
fn start_two(dir: &Path, resources: impl Fn(usize) -> Vec<Value>) -> Result<Vec<Chancery>> {
    let start = |at: usize| {
        let dir = dir.join(at.to_string());
        fs::create_dir(&dir)?;
        let server = Chancery::start(&dir)?;
        server.publish(&resources(at))?;
        Ok::<_, anyhow::Error>(server)
    };
    (0..2).map(start).collect()
}

/// Envoy connects to one of the servers, without DNS, and to the other one when the first is killed.
#[test]
fn envoy_moves_to_another_server_of_its_bootstrap() -> Result<()> {
    in_directory(|dir| {
        let upstreams = [upstream::spawn("a")?, upstream::spawn("b")?];
        let port = reserve_port();
        let mut servers =
            start_two(dir, |at| proxied(Mode::DeltaAds, port, "one", upstreams[at]).to_vec())?;
        bootstrap_of_list(dir, "envoy", &servers)?;
        let _envoy = start_envoy(dir)?;
        let first = http::wait_for_answer(port)?;
        let used = usize::from(first == "b");
        servers[used].kill()?;
        let other = &servers[1 - used];
        other.wait_for_node("b-1", "synced", &TYPES)?;
        wait_for("the resources of the other server", STEP, || {
            let answer = http::wait_for_answer(port)?;
            Ok((answer != first).then_some(()))
        })
    })
}

/// CLI-G-16: a C-core client whose first server is gone starts with the second one. A running client keeps its resources.
#[test]
fn c_core_falls_back_to_the_second_server_of_its_bootstrap() -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    in_directory(|dir| {
        let backends = [GrpcServer::start(dir, "a")?, GrpcServer::start(dir, "b")?];
        let mut servers = start_two(dir, |at| service(SERVICE, "one", backends[at].port).to_vec())?;
        bootstrap_of_list(dir, "grpc", &servers)?;
        let made = dir.join("made.yaml");
        let start = || GrpcClient::start_from(dir, Kind::Python, "b-1", SERVICE, &made, &[]);
        let mut running = start()?;
        running.wait_for_only("a")?;
        servers[0].kill()?;
        let mut started = start()?;
        started.wait_for_only("b")?;
        servers[1].wait_for_node("b-1", "synced", &TYPES)?;
        running.wait_for_only("a")
    })
}

/// An xDS server over TLS that records the header `authorization` of each stream.
struct Recorder {
    port: u16,
    script: Script,
}

impl Recorder {
    fn start(dir: &Path) -> Result<Self> {
        let mut command = Command::new(python()?);
        command.arg("-B").arg(script("xds_recorder.py")).arg(dir);
        let mut script = Script::start("xds-recorder", dir, &command)?;
        let ready = script.answer()?;
        let port = ready["port"].as_u64().with_context(|| format!("no port in {ready}"))?;
        Ok(Self { port: u16::try_from(port)?, script })
    }

    /// Returns the header of the next stream.
    fn next(&mut self) -> Result<Value> {
        Ok(self.script.answer()?["authorization"].take())
    }

    /// Ends the streams, and returns the header of the next stream.
    fn next_after_end(&mut self) -> Result<Value> {
        Ok(self.script.ask("end")?["authorization"].take())
    }
}

/// Replaces the token file atomically.
fn place_token(dir: &Path, token: &str) -> Result<()> {
    fs::write(dir.join("token.new"), token)?;
    Ok(fs::rename(dir.join("token.new"), dir.join("token"))?)
}

/// Envoy sends the token of the file, and follows changes of the file.
#[test]
fn envoy_sends_the_token_of_its_bootstrap() -> Result<()> {
    in_directory(|dir| {
        certify(dir)?;
        place_token(dir, "first\n")?;
        let mut recorder = Recorder::start(dir)?;
        let address = format!("https://localhost:{}", recorder.port);
        bootstrap(dir, "envoy", &address, &["--token-file", "token"])?;
        let _envoy = start_envoy(dir)?;
        ensure!(recorder.next()? == "Bearer first", "another token");
        place_token(dir, "second\n")?;
        // Envoy reads the file soon, and shows it in no statistic. Each early end makes it wait longer for the next.
        std::thread::sleep(Duration::from_secs(1));
        wait_for("the second token", STEP, || {
            let header = recorder.next_after_end()?;
            Ok((header == "Bearer second").then_some(()))
        })
    })
}

/// A JWT without a valid signature, which expires in 2100. C-core reads the time.
const JWT: &str = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9.c2lnbmF0dXJl";

#[test]
fn c_core_sends_the_token_of_its_bootstrap() -> Result<()> {
    in_directory(|dir| {
        certify(dir)?;
        place_token(dir, JWT)?;
        let mut recorder = Recorder::start(dir)?;
        let address = format!("https://localhost:{}", recorder.port);
        bootstrap(dir, "grpc", &address, &["--token-file", "token"])?;
        let made = dir.join("made.yaml");
        let enabled = [("GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS", "true")];
        let _client =
            GrpcClient::start_from(dir, Kind::Python, "b-1", "none.e2e", &made, &enabled)?;
        let header = recorder.next()?;
        ensure!(header == format!("Bearer {JWT}"), "{header}");
        Ok(())
    })
}
