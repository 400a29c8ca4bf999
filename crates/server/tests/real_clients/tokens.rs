//! Real clients that prove their identity with tokens, while tokens and keys are replaced under their open streams.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use chancery_testing::{Ca, JwtKey, reserve_port};
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::{BINARY, Chancery},
    envoy::{Envoy, Mode},
    grpc::{GrpcClient, GrpcServer, Kind},
    http, in_directory,
    load::Load,
    manifests::{TYPES, proxied, service},
    upstream, wait_for,
};

const NODE: &str = "token-client";
const ISSUER: &str = "https://idp.e2e";
/// The validity of a token that has to be replaced during a test.
const SHORT: u64 = 20;
/// The validity of its successor.
const LONG: u64 = 3600;

/// A server whose clients need tokens, and on which access rules apply. Callers without a credential are operators.
struct Fixture<'a> {
    dir: &'a Path,
    chancery: Chancery,
}

impl<'a> Fixture<'a> {
    fn start(dir: &'a Path) -> Result<Self> {
        let ca = Ca::new("ca");
        fs::write(dir.join("ca.pem"), ca.pem())?;
        ca.loopback().write(dir, "server");
        let keys = json!({"keys": [JwtKey::es256().public("none")]});
        place(dir, "keys.json", &keys.to_string())?;
        let (at, user) = (dir.display(), fs::metadata(dir)?.uid());
        let config = format!(
            "[xds]\ntls_cert = \"{at}/server.pem\"\ntls_key = \"{at}/server.key\"\n\
             [admin]\nsocket = \"{at}/admin.sock\"\n\
             [access]\nadmins = [\"unix:{user}\"]\n\
             [[auth.issuers]]\nname = \"corp\"\nurl = \"{ISSUER}\"\njwks_file = \"{at}/keys.json\"\n"
        );
        fs::write(dir.join("chancery.toml"), config)?;
        let fixture = Self { dir, chancery: Chancery::start(dir)? };
        let scopes =
            json!({"verbs": ["get", "apply", "delete", "prune", "force"], "scopes": ["**"]});
        let rules = json!({"access": [
            {"name": "operators", "identity": "anonymous", "allow": [scopes, {"verbs": ["nodes", "metrics", "tokens"]}]},
            {"name": "clients", "identities": ["token:{name}", "jwt:corp/{name}"], "read": ["default"]},
        ]});
        fs::write(dir.join("rules.json"), rules.to_string())?;
        fixture.operate(&["apply", "-f", "rules.json"])?;
        Ok(fixture)
    }

    /// Runs a command as the administrator, and returns its output.
    fn operate(&self, args: &[&str]) -> Result<String> {
        let socket = format!("unix:{}/admin.sock", self.dir.display());
        let mut command = Command::new(BINARY);
        let output =
            command.current_dir(self.dir).args(["--server", &socket]).args(args).output()?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).context("the output is not UTF-8")
    }

    /// Writes a bootstrap that names the token file.
    fn bootstrap(&self, kind: &str) -> Result<()> {
        let address = format!("https://localhost:{}", self.chancery.at.xds);
        let mut command = Command::new(BINARY);
        command.current_dir(self.dir).args(["bootstrap", kind, "--node", NODE, "--xds", &address]);
        command.args(["--ca-cert", "ca.pem", "--token-file", "token", "--out", "made.yaml"]);
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Returns the numbers of ended streams and of resources that were sent.
    fn counts(&self) -> Result<[f64; 2]> {
        let sum = |name: &str| -> Result<f64> {
            let page = http::get(self.chancery.at.admin, "/metrics")?;
            let samples =
                page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
            let values = samples.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok());
            Ok(values.sum())
        };
        Ok([sum("chancery_xds_stream_ends_total")?, sum("chancery_xds_pushed_resources_total")?])
    }

    /// Replaces the token and waits for the end of the stream, until the token file is younger than half the lifetime of
    /// a token. Returns the counts.
    fn wait_for_fresh_token(&self, key: &JwtKey) -> Result<[f64; 2]> {
        loop {
            let (counts, age) = (self.counts()?, fs::metadata(self.dir.join("token"))?.modified()?);
            if age.elapsed()? < Duration::from_secs(SHORT / 2) {
                return Ok(counts);
            }
            place(self.dir, "token", &token(key, "old", SHORT)?)?;
            self.wait_for_end(counts[0])?;
        }
    }

    fn wait_for_end(&self, ended: f64) -> Result<()> {
        let patience = Duration::from_secs(SHORT) + STEP;
        wait_for("the end of the stream", patience, || {
            Ok((self.counts()?[0] > ended).then_some(()))
        })?;
        self.chancery.wait_for_node(NODE, "synced", &TYPES)
    }

    /// Replaces the key set, and waits until the server has accepted one more.
    fn trust(&self, keys: &[(&str, &JwtKey)]) -> Result<()> {
        let accepted = || self.chancery.metric("chancery_jwks_fetches_total", "result=\"ok\"");
        let before = accepted()?;
        let keys: Vec<Value> = keys.iter().map(|(id, key)| key.public(id)).collect();
        place(self.dir, "keys.json", &json!({ "keys": keys }).to_string())?;
        wait_for("the new key set", STEP, || Ok((accepted()? > before).then_some(())))
    }
}

/// Replaces a file atomically.
fn place(dir: &Path, name: &str, content: &str) -> Result<()> {
    let new = dir.join(format!("{name}.new"));
    fs::write(&new, content)?;
    fs::rename(&new, dir.join(name)).context("replace a file")
}

/// Returns a token that is valid for this number of seconds.
fn token(key: &JwtKey, id: &str, seconds: u64) -> Result<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let claims = json!({
        "iss": ISSUER, "sub": "edge", "aud": "chancery", "iat": now, "exp": now + seconds,
    });
    Ok(key.token(id, &claims))
}

fn start_envoy(dir: &Path) -> Result<Envoy> {
    let bootstrap: Value = serde_saphyr::from_str(&fs::read_to_string(dir.join("made.yaml"))?)?;
    Envoy::start_with(dir, NODE, &bootstrap)
}

/// An Envoy with a static token keeps its stream while a second token of the same name is created. When the first one is
/// deleted, Envoy comes back with the second one, and receives only what it requests by name again.
#[test]
fn envoy_keeps_its_configuration_while_its_static_token_is_replaced() -> Result<()> {
    in_directory(|dir| {
        let (mode, a, port) = (Mode::DeltaAds, upstream::spawn("a")?, reserve_port());
        let fixture = Fixture::start(dir)?;
        let create = || fixture.operate(&["token", "create", "edge"]);
        place(dir, "token", create()?.trim())?;
        fixture.chancery.publish(&proxied(mode, port, "one", a))?;
        fixture.bootstrap("envoy")?;
        let _envoy = start_envoy(dir)?;
        http::wait_for_answer(port)?;
        fixture.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let load = Load::start(port);
        let before = fixture.counts()?;

        let listed: Value =
            serde_json::from_str(&fixture.operate(&["token", "list", "-o", "json"])?)?;
        let first = listed["tokens"][0]["id"].as_str().context("no token")?.to_owned();
        place(dir, "token", create()?.trim())?;
        load.wait_for_more(200)?;
        ensure!(fixture.counts()? == before, "{before:?}, then {:?}", fixture.counts()?);
        fixture.operate(&["token", "delete", "edge", "--id", &first])?;
        fixture.wait_for_end(before[0])?;
        load.wait_for_more(200)?;
        let after = fixture.counts()?;
        ensure!(after == [before[0] + 1.0, before[1] + 2.0], "{before:?}, then {after:?}");
        load.finish_without_failure(400)?;
        Ok(())
    })
}

/// Attack 34: an Envoy with a token of an issuer keeps its configuration while the keys of the issuer and the token are
/// replaced. The stream of the first token ends before the token, and the removal of its key changes nothing then.
#[test]
fn envoy_keeps_its_configuration_while_the_keys_of_its_issuer_are_replaced() -> Result<()> {
    in_directory(|dir| {
        let (mode, a, port) = (Mode::DeltaAds, upstream::spawn("a")?, reserve_port());
        let fixture = Fixture::start(dir)?;
        let (old, new) = (JwtKey::es256(), JwtKey::es256());
        fixture.trust(&[("old", &old)])?;
        fixture.chancery.publish(&proxied(mode, port, "one", a))?;
        fixture.bootstrap("envoy")?;
        place(dir, "token", &token(&old, "old", SHORT)?)?;
        let _envoy = start_envoy(dir)?;
        http::wait_for_answer(port)?;
        fixture.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let load = Load::start(port);
        let before = fixture.wait_for_fresh_token(&old)?;

        fixture.trust(&[("old", &old), ("new", &new)])?;
        place(dir, "token", &token(&new, "new", LONG)?)?;
        fixture.wait_for_end(before[0])?;
        fixture.trust(&[("new", &new)])?;
        load.wait_for_more(200)?;
        let after = fixture.counts()?;
        ensure!(after == [before[0] + 1.0, before[1] + 2.0], "{before:?}, then {after:?}");
        load.finish_without_failure(400)?;
        Ok(())
    })
}

/// C-core with a token of an issuer, with the same changes.
#[test]
fn c_core_keeps_its_configuration_while_the_keys_of_its_issuer_are_replaced() -> Result<()> {
    const SERVICE: &str = "greeter.e2e";
    in_directory(|dir| {
        let a = GrpcServer::start(dir, "a")?;
        let fixture = Fixture::start(dir)?;
        let (old, new) = (JwtKey::es256(), JwtKey::es256());
        fixture.trust(&[("old", &old)])?;
        fixture.chancery.publish(&service(SERVICE, "one", a.port))?;
        fixture.bootstrap("grpc")?;
        place(dir, "token", &token(&old, "old", SHORT)?)?;
        let (made, enabled) =
            (dir.join("made.yaml"), [("GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS", "true")]);
        let mut client = GrpcClient::start_from(dir, Kind::Python, NODE, SERVICE, &made, &enabled)?;
        client.wait_for_only("a")?;
        fixture.chancery.wait_for_node(NODE, "synced", &TYPES)?;
        let before = fixture.wait_for_fresh_token(&old)?;

        fixture.trust(&[("old", &old), ("new", &new)])?;
        place(dir, "token", &token(&new, "new", LONG)?)?;
        fixture.wait_for_end(before[0])?;
        fixture.trust(&[("new", &new)])?;
        client.wait_for_more(100)?;
        ensure!(
            fixture.counts()?[0] == before[0] + 1.0,
            "{before:?}, then {:?}",
            fixture.counts()?
        );
        client.expect_own_faults(40)
    })
}
