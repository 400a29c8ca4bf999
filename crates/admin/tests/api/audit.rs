//! The audit log of operations.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use axum::{body::Body, extract::ConnectInfo};
use chancery_admin::{ExternalInput, ExternalValidator};
use chancery_audit::{Audit, Settings, SinkSettings};
use chancery_auth::{AuthSettings, TransportPeer};
use http::Request;
use serde_json::{Value, json};

use crate::{
    access,
    support::{Server, clusters},
};

const DEADLINE: Duration = Duration::from_secs(20);

fn audit(dir: &Path) -> Audit {
    let sinks = vec![SinkSettings::File(dir.join("audit.jsonl"))];
    Audit::open(&Settings { sinks, ..Settings::default() }).unwrap()
}

/// Returns a validator that runs a script on a manifest.
fn script(script: &str) -> ExternalValidator {
    ExternalValidator {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        input: ExternalInput::Manifest,
        timeout: Duration::from_secs(60),
        memory_max: 1 << 30,
        required: true,
    }
}

fn apply(names: &[&str]) -> Request<Body> {
    let request = Request::post("/v1/apply").header("host", "localhost");
    let mut request =
        request.header("user-agent", "curl/8").body(Body::from(clusters(names, "1s"))).unwrap();
    let source: SocketAddr = "10.1.2.3:4".parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(source));
    request
}

fn records(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn record_of_write_has_address_and_user_agent_of_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audit(dir.path());
    let server = Server::start_audited(audit.clone(), script("true")).await;
    let (status, text) = server.send(apply(&["a"])).await;
    assert_eq!(status, 200, "{text}");
    audit.close(DEADLINE).await;
    let records = records(dir.path());
    assert_eq!(records.len(), 1, "{records:?}");
    let record = &records[0];
    assert_eq!(
        (&record["verb"], &record["decision"], &record["source"], &record["user_agent"]),
        (&"apply".into(), &"allowed".into(), &"10.1.2.3:4".into(), &"curl/8".into())
    );
    // The default level has no details.
    assert_eq!(record["details"], Value::Null);
}

/// Without access rules, everybody may do everything, but an identity that was proved is recorded. The record of a
/// write has the scopes of its resources, and not the scope of the request, which no resource has.
#[tokio::test]
async fn record_of_write_has_the_proved_identity_and_the_scopes_of_its_resources() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audit(dir.path());
    let server = Server::start_audited(audit.clone(), script("true")).await;
    let who = access::Who::Admin;
    let me = access::done(&server, who, "GET", "/v1/whoami", "").await;
    assert_eq!((&me["identity"], &me["enforced"]), (&json!("unix:0"), &json!(false)), "{me}");
    let mesh = format!("scope: mesh\n{}", clusters(&["a"], "1s"));
    let both = format!("{mesh}---\nscope: edge\n{}", clusters(&["b"], "1s"));
    for manifest in [&mesh, &both] {
        access::done(&server, who, "POST", "/v1/apply?scope=default", manifest).await;
    }
    let history = access::done(&server, who, "GET", "/v1/history", "").await;
    assert_eq!(history["entries"][0]["author"], "unix:0", "{history}");
    access::done(&server, who, "POST", "/v1/apply?author=anna", &clusters(&["c"], "1s")).await;
    let history = access::done(&server, who, "GET", "/v1/history", "").await;
    assert_eq!(history["entries"][0]["author"], "unix:0 for anna", "{history}");
    // A caller without a credential remains anonymous, and names the author itself.
    let nobody = access::Who::Nobody;
    let uri = "/v1/apply?author=anna";
    access::done(&server, nobody, "POST", uri, &clusters(&["d"], "1s")).await;
    let history = access::done(&server, nobody, "GET", "/v1/history", "").await;
    assert_eq!(history["entries"][0]["author"], "anna", "{history}");
    audit.close(DEADLINE).await;
    let records = records(dir.path());
    let shown = |record: &Value| {
        (record["principal"].clone(), record["scope"].clone(), record["scopes"].clone())
    };
    let shown: Vec<_> = records.iter().map(shown).collect();
    let unix = json!("unix:0");
    assert_eq!(
        shown,
        [
            (unix.clone(), json!("mesh"), Value::Null),
            (unix.clone(), Value::Null, json!(["edge", "mesh"])),
            (unix, json!("default"), Value::Null),
            (json!("anonymous"), json!("default"), Value::Null),
        ],
        "{records:?}"
    );
}

/// Without access rules, an expired token in the environment of an operator hid the certificate of its connection.
#[tokio::test]
async fn invalid_token_does_not_hide_the_identity_of_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audit(dir.path());
    let server = Server::start_audited(audit.clone(), script("true")).await;
    let with_token = |mut request: Request<Body>| {
        let token = "Bearer chy_invalid".parse().unwrap();
        request.headers_mut().insert("authorization", token);
        request.extensions_mut().insert(TransportPeer::UnixUser(0));
        request
    };
    let whoami = Request::get("/v1/whoami").header("host", "localhost");
    let (status, me) = server.send(with_token(whoami.body(Body::empty()).unwrap())).await;
    assert_eq!(status, 200, "{me}");
    let me: Value = serde_json::from_str(&me).unwrap();
    assert_eq!(me["identity"], "unix:0", "{me}");
    let (status, text) = server.send(with_token(apply(&["a"]))).await;
    assert_eq!(status, 200, "{text}");
    audit.close(DEADLINE).await;
    assert_eq!(records(dir.path())[0]["principal"], "unix:0");
}

/// Attack 68: a caller that repeats refused writes and dry runs does not displace the records of other callers.
#[tokio::test]
async fn flood_of_refused_writes_and_dry_runs_has_few_records() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audit(dir.path());
    let server = Server::start_enforced_audited(AuthSettings::default(), audit.clone()).await;
    let token = access::token(&server, "shop").await;
    let allow = json!([{"verbs": ["apply"], "scopes": ["mine"]}]);
    access::rules(&server, json!([{"name": "r", "identity": "token:shop", "allow": allow}])).await;
    let who = access::Who::Token(&token);
    let own = format!("scope: mine\n{}", clusters(&["a"], "1s"));
    for _ in 0..100 {
        access::denied(&server, who, "POST", "/v1/apply", &clusters(&["a"], "1s")).await;
        access::done(&server, who, "POST", "/v1/apply?dry_run=true", &own).await;
        access::done(&server, who, "POST", "/v1/apply", &own).await;
    }
    audit.close(DEADLINE).await;
    let records = records(dir.path());
    let of_shop = records.iter().filter(|record| record["principal"] == "token:shop");
    let (refused, allowed): (Vec<&Value>, Vec<&Value>) =
        of_shop.partition(|record| record["decision"] == "refused");
    assert_eq!(refused.len(), 10, "{records:?}");
    // All writes have a record, and few of the dry runs.
    assert_eq!(allowed.len(), 110, "{records:?}");
    server.stop().await;
}

/// A write may take effect although its caller has left, so that its record must not be lost.
#[tokio::test]
async fn write_whose_caller_leaves_is_recorded_as_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audit(dir.path());
    let marker = dir.path().join("started");
    let command = format!("touch {}; sleep 60", marker.display());
    let server = Server::start_audited(audit.clone(), script(&command)).await;
    let has_started = async {
        while !marker.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = server.send(apply(&["a"])) => panic!("{answer:?}"),
        started = tokio::time::timeout(DEADLINE, has_started) => started.unwrap(),
    }
    audit.close(DEADLINE).await;
    let records = records(dir.path());
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(
        (&records[0]["decision"], &records[0]["reason"]),
        (&"unknown".into(), &"abandoned".into())
    );
}
