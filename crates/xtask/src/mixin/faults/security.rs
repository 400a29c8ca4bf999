//! Callers without rights, and missing keys.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    super::monitor::{eventually, get, get_with},
    cluster::{ANSWER, REPLICAS},
    scenario::{Group, Scenario, alert},
    stage::Stage,
};
use crate::proc;

/// A rule that permits Prometheus to read the metrics.
const RULES: &str = "
access:
- {name: prometheus, identity: 'token:prometheus', allow: [{verbs: [metrics]}]}
";

const SECRET: &str = "
scope: edge
resources:
- '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: password
  generic_secret: {secret: {inline_string: not-in-the-log}}
";

/// A manifest whose change the freeze holds.
const HELD: &str = "
resources:
- {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: held, connect_timeout: 1s}
";

/// A set with the public key of an issuer: the example in RFC 7517, appendix A.1.
const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "use": "sig", "kid": "1", "alg": "ES256",
"x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

/// The pause between two calls without rights.
const PAUSE: Duration = Duration::from_millis(400);

pub(super) const GROUP: Group = Group {
    name: "security",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[alert("ChanceryJwksStale", &[("instance", "@1"), ("issuer", "corp")])],
            also: &[],
            is_early: true,
            fault: "the server with the keys of an issuer does not run",
            repair: "the server runs",
            inject: |_| Ok(()),
            recover: |stage| {
                let listener = TcpListener::bind(format!("{}:8080", stage.cluster.ip(4)));
                let listener = listener.context("listen")?;
                listener.set_nonblocking(true).context("configure a listener")?;
                stage.repeat("keys", Duration::from_millis(50), move || drop(answer(&listener)));
                Ok(())
            },
        },
        Scenario {
            alerts: &[alert("ChanceryAccessRefused", &[("port", "admin")])],
            also: &[],
            is_early: false,
            fault: "a caller without a credential calls the admin port",
            repair: "the caller receives a token with a rule",
            inject: |stage| {
                let address = stage.cluster.admin(1);
                stage.repeat("caller", PAUSE, move || drop(get(&address, "/v1/cluster")));
                Ok(())
            },
            recover: |stage| {
                stage.cluster.run(&["token", "create", "caller", "--out", "caller.token"])?;
                stage.cluster.apply(
                    "access:\n- {name: caller, identity: 'token:caller', allow: [{verbs: [cluster]}]}\n",
                )?;
                let token = fs::read_to_string(stage.cluster.dir.join("caller.token"))?;
                let address = stage.cluster.admin(1);
                stage.stop("caller");
                get_with(&address, "/v1/cluster", &authorization(&token), ANSWER).map(drop)
            },
        },
        Scenario {
            alerts: &[alert(
                "ChanceryAuthenticationsFail",
                &[("port", "admin"), ("method", "token")],
            )],
            also: &[],
            is_early: false,
            fault: "a caller uses a token that was deleted",
            repair: "the caller receives a new token",
            inject: |stage| {
                stage.cluster.run(&["token", "create", "old", "--out", "old.token"])?;
                let token = fs::read_to_string(stage.cluster.dir.join("old.token"))?;
                stage.cluster.run(&["token", "delete", "old"])?;
                let (address, header) = (stage.cluster.admin(1), authorization(&token));
                stage.repeat("caller", PAUSE, move || {
                    drop(get_with(&address, "/v1/cluster", &header, ANSWER));
                });
                Ok(())
            },
            recover: |stage| {
                stage.stop("caller");
                stage.cluster.run(&["token", "create", "old", "--out", "new.token"]).map(drop)
            },
        },
        Scenario {
            alerts: &[alert("ChanceryChangesHeld", &[("severity", "warning")])],
            also: &[],
            is_early: false,
            fault: "an operator freezes a scope, and authors write to it",
            repair: "the operator thaws the scope",
            inject: |stage| {
                stage.cluster.run(&["freeze", "default", "--reason", "incident"])?;
                stage.cluster.apply(HELD)
            },
            recover: |stage| stage.cluster.run(&["thaw", "default"]).map(drop),
        },
        Scenario {
            alerts: &[alert(
                "ChancerySecretsUnavailable",
                &[("instance", "@3"), ("severity", "critical")],
            )],
            also: &[],
            is_early: false,
            fault: "a replica starts with another key file",
            repair: "the replica receives the key file of the other replicas",
            inject: |stage| {
                stage.cluster.apply(SECRET)?;
                stage.cluster.kill(3);
                create_key(&stage.cluster.dir.join("key-3"))?;
                stage.cluster.start(3)
            },
            recover: |stage| {
                let from = stage.cluster.dir.join("key-1");
                fs::copy(from, stage.cluster.dir.join("key-3")).context("copy the key")?;
                stage.cluster.expect_ready()
            },
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    let dir = stage.cluster.dir.clone();
    create_key(&dir.join("key-1"))?;
    for id in [2, 3] {
        fs::copy(dir.join("key-1"), dir.join(format!("key-{id}"))).context("copy the key")?;
    }
    let user = proc::output(Command::new("id").arg("-u"))?;
    let issuer = format!(
        "[{{name = 'corp', url = 'https://idp', jwks_url = 'http://{}:8080/keys'}}]",
        stage.cluster.ip(4)
    );
    stage.cluster.set("CHANCERY_ACCESS_ADMINS", format!("unix:{}", user.trim()));
    stage.cluster.set("CHANCERY_ADMIN_SOCKET", "{dir}/admin-{id}.sock");
    stage.cluster.set("CHANCERY_AUTH_ISSUERS", issuer);
    stage.cluster.set("CHANCERY_SECRETS_KEY_FILE", "{dir}/key-{id}");
    stage.cluster.socket = Some(dir.join("admin-1.sock"));
    for id in REPLICAS {
        stage.cluster.start(id)?;
    }
    eventually("no token is created", || {
        // The command fails until the cluster has a leader.
        let created =
            stage.cluster.run(&["token", "create", "prometheus", "--out", "metrics.token"]);
        Ok(created.is_ok().then_some(()))
    })?;
    stage.cluster.apply(RULES)?;
    let token = fs::read_to_string(dir.join("metrics.token")).context("read the token")?;
    stage.cluster.authorization = authorization(&token);
    stage.cluster.expect_ready()
}

fn authorization(token: &str) -> String {
    format!("Authorization: Bearer {}\r\n", token.trim())
}

/// Creates a key as docs/secrets.md describes it.
fn create_key(path: &std::path::Path) -> Result<()> {
    let script = "umask 077; openssl rand -base64 32 > \"$0\"";
    proc::run(Command::new("sh").args(["-c", script]).arg(path))
}

/// Answers a request for the keys, if there is one.
fn answer(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_nonblocking(false).context("configure a connection")?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).context("set a time limit")?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).context("read a request")?;
        request.push(byte[0]);
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{KEYS}", KEYS.len()).context("answer")
}
