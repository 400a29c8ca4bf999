//! Quotas on the admin port: of tenants, of identities, and of addresses.

use std::net::SocketAddr;

use axum::{body::Body, extract::ConnectInfo};
use chancery_audit::{Audit, Settings, SinkSettings};
use chancery_auth::{AuthSettings, TransportPeer, new_token};
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tonic::Code;
use tower::ServiceExt as _;

use crate::support::{Client, Server, clusters};

/// Sends a request of the administrator, or of a token from an address.
async fn send(
    server: &Server,
    token: Option<&str>,
    method: &str,
    uri: &str,
    body: &str,
) -> (u16, HeaderMap, Value) {
    let mut request =
        Request::builder().method(method).uri(uri).body(Body::from(body.to_owned())).unwrap();
    match token {
        None => drop(request.extensions_mut().insert(TransportPeer::UnixUser(0))),
        Some(token) => {
            let address: SocketAddr = "192.0.2.1:4242".parse().unwrap();
            request.extensions_mut().insert(ConnectInfo(address));
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
    }
    let response = server.router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    (parts.status.as_u16(), parts.headers, json)
}

async fn done(server: &Server, method: &str, uri: &str, body: &str) -> Value {
    let (status, _, json) = send(server, None, method, uri, body).await;
    assert_eq!(status, 200, "{method} {uri}: {json}");
    json
}

async fn token(server: &Server, name: &str) -> String {
    let created = done(server, "POST", &format!("/v1/tokens?name={name}"), "").await;
    created["token"].as_str().unwrap().to_owned()
}

fn message(json: &Value) -> (&str, &str) {
    let text = |key: &str| json["error"][key].as_str().unwrap_or_default();
    (text("code"), text("message"))
}

const FULL: &str = "the quota \"edge\" is exceeded: max_resources is 2, and the write needs 3; delete resources or \
                    raise the limit";

/// Attack 57: a write up to the limit commits. One more is refused over HTTP and gRPC, also in a dry run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_beyond_a_quota_is_refused_with_key_value_and_limit() {
    let server = Server::start().await;
    let quota =
        json!({"quotas": [{"name": "edge", "scopes": ["edge", "edge/**"], "max_resources": 2}]});
    let written = server.done("POST", "/v1/apply", &quota.to_string()).await;
    assert_eq!(written["access"], 1);
    server.done("POST", "/v1/apply?scope=edge", &clusters(&["a", "b"], "1s")).await;
    for uri in
        ["/v1/apply?scope=edge", "/v1/apply?scope=edge&dry_run=true", "/v1/apply?scope=edge/eu"]
    {
        let refused = server.refused("POST", uri, &clusters(&["c"], "1s")).await;
        assert_eq!(refused, (429, "RESOURCE_EXHAUSTED".to_owned(), FULL.to_owned()), "{uri}");
    }
    let request = chancery_admin_proto::v1::ApplyRequest {
        files: vec![chancery_admin_proto::v1::File {
            name: "c.yaml".to_owned(),
            content: clusters(&["c"], "1s"),
        }],
        scope: "edge".to_owned(),
        ..Default::default()
    };
    let status = server.grpc().apply(request).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, FULL));
    server.done("POST", "/v1/apply", &clusters(&["c"], "1s")).await;
    let listed = server.done("GET", "/v1/quotas", "").await;
    let expected =
        json!({"name": "edge", "scopes": ["edge", "edge/**"], "max_resources": 2, "resources": 2});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&listed["quotas"][0][key], value, "{listed}");
    }
    assert_eq!(listed["quotas"][0]["used_scopes"], 1);
    assert!(listed["quotas"][0]["bytes"].as_u64().unwrap() > 0, "{listed}");
    server.done("DELETE", "/v1/quotas?name=edge", "").await;
    assert_eq!(server.refused("DELETE", "/v1/quotas?name=edge", "").await.0, 404);
    server.done("POST", "/v1/apply?scope=edge", &clusters(&["c"], "1s")).await;
    server.stop().await;
}

/// Two writers at once cannot both take the last place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_stay_within_a_quota() {
    let server = Server::start().await;
    let quota = json!({"quotas": [{"name": "all", "scopes": ["**"], "max_resources": 5}]});
    server.done("POST", "/v1/apply", &quota.to_string()).await;
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    let writes = names.iter().map(|name| {
        let body = clusters(&[name.as_str()], "1s");
        async {
            let body = body;
            server.call("POST", "/v1/apply", &body).await.0.as_u16()
        }
    });
    let statuses = futures::future::join_all(writes).await;
    let n = |status: u16| statuses.iter().filter(|one| **one == status).count();
    assert_eq!((n(200), n(429)), (5, 15), "{statuses:?}");
    server.stop().await;
}

/// Only administrators change quotas, because a quota takes something away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_cannot_change_its_quota() {
    let server = Server::start_enforced().await;
    let tenant = token(&server, "tenant").await;
    let allow = json!([
        {"verbs": ["access.write", "access.read"]}, {"verbs": ["get", "apply"], "scopes": ["**"]},
    ]);
    let rule = json!({"access": [{"name": "r", "identity": "token:tenant", "allow": allow}]});
    done(&server, "POST", "/v1/apply", &rule.to_string()).await;
    let quota =
        json!({"quotas": [{"name": "q", "scopes": ["**"], "max_resources": 9}]}).to_string();
    for (method, uri, body) in
        [("POST", "/v1/apply", quota.as_str()), ("DELETE", "/v1/quotas?name=q", "")]
    {
        let (status, _, json) = send(&server, Some(&tenant), method, uri, body).await;
        assert_eq!(status, 403, "{json}");
        assert!(message(&json).1.contains("change quotas (only access.admins may)"), "{json}");
    }
    done(&server, "POST", "/v1/apply", &quota).await;
    let (status, _, json) = send(&server, Some(&tenant), "GET", "/v1/quotas", "").await;
    assert_eq!((status, &json["quotas"][0]["max_resources"]), (200, &9.into()));
    server.stop().await;
}

fn audit_file(directory: &std::path::Path) -> (Audit, std::path::PathBuf) {
    let path = directory.join("audit.jsonl");
    let settings =
        Settings { sinks: vec![SinkSettings::File(path.clone())], ..Settings::default() };
    (Audit::open(&settings).unwrap(), path)
}

/// The rates of an identity: the refusal is 429 with `Retry-After`, counted in the audit log, and others are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_has_limited_rates_of_requests_and_writes() {
    let directory = tempfile::tempdir().unwrap();
    let (audit, path) = audit_file(directory.path());
    let server = Server::start_enforced_audited(AuthSettings::default(), audit.clone()).await;
    let (ci, other) = (token(&server, "ci").await, token(&server, "other").await);
    let rules = json!({"access": [
        {"name": "r", "identities": ["token:ci", "token:other"],
         "allow": [{"verbs": ["get", "apply"], "scopes": ["**"]}]},
        {"name": "limits", "identity": "token:ci",
         "quota": {"requests_per_second": 20, "writes_per_second": 1}},
    ]});
    done(&server, "POST", "/v1/apply", &rules.to_string()).await;
    let (status, headers, json) = loop {
        let answer = send(&server, Some(&ci), "POST", "/v1/apply", &clusters(&["a"], "1s")).await;
        if answer.0 != 200 {
            break answer;
        }
    };
    let text = "the identity token:ci sends more than 1 writes per second on this replica \
                (quota.writes_per_second of its access rule); wait and try again";
    assert_eq!((status, message(&json)), (429, ("RESOURCE_EXHAUSTED", text)));
    assert_eq!(headers["retry-after"], "1");
    let dry = "/v1/apply?dry_run=true";
    let (status, _, json) = send(&server, Some(&ci), "POST", dry, &clusters(&["a"], "1s")).await;
    assert_eq!(status, 200, "a dry run is no write: {json}");
    let (status, headers, json) = loop {
        let answer = send(&server, Some(&ci), "GET", "/v1/whoami", "").await;
        if answer.0 != 200 {
            break answer;
        }
    };
    assert_eq!(status, 429);
    assert!(message(&json).1.contains("more than 20 requests per second"), "{json}");
    assert_eq!(headers["retry-after"], "1");
    let (status, _, json) =
        send(&server, Some(&other), "POST", "/v1/apply", &clusters(&["a"], "1s")).await;
    assert_eq!(status, 200, "{json}");
    let (status, _, json) = send(&server, Some(&other), "GET", "/v1/resources?type=sds", "").await;
    assert_eq!(status, 200, "{json}");
    audit.close(std::time::Duration::from_secs(5)).await;
    let text = std::fs::read_to_string(path).unwrap();
    for reason in ["\"reason\":\"writes_per_second\"", "\"reason\":\"requests_per_second\""] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
    assert!(!text.contains("secrets.read"), "there are no secrets: {text}");
    server.stop().await;
}

/// A read of secrets is recorded with the caller and the number of secrets, and without a secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_secrets_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let (audit, path) = audit_file(directory.path());
    let server = Server::start_enforced_audited(AuthSettings::default(), audit.clone()).await;
    let secret = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "name": "session-keys",
        "session_ticket_keys": {"keys": [{"inline_bytes": "aGVsbG8gd29ybGQsIHRoaXMgaXMgYSBzZWNyZXQga2V5IG9mIDgwIGJ5dGVzIGFuZCBpdCBpcyBwYWRkZWQgd2l0aCBkb3RzLi4uLg=="}]},
    });
    let manifest = json!({"resources": [secret]}).to_string();
    done(&server, "POST", "/v1/apply?validation=off", &manifest).await;
    done(&server, "GET", "/v1/resources?type=cluster", "").await;
    done(&server, "GET", "/v1/resources", "").await;
    done(&server, "GET", "/v1/describe?type=secret&name=session-keys", "").await;
    let mut client = Client::open(&server, "n1");
    client
        .subscribe_to(
            "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            &["session-keys"],
        )
        .await;
    client.response().await;
    done(&server, "POST", "/v3/discovery:client_status", "").await;
    audit.close(std::time::Duration::from_secs(5)).await;
    let text = std::fs::read_to_string(path).unwrap();
    let reads: Vec<Value> = (text.lines().map(|line| serde_json::from_str(line).unwrap()))
        .filter(|record: &Value| record["verb"] == "secrets.read")
        .collect();
    assert_eq!(reads.len(), 3, "{text}");
    assert_eq!((&reads[0]["principal"], &reads[0]["type"]), (&"unix:0".into(), &"secret".into()));
    assert_eq!(reads[1]["name"], "session-keys");
    server.stop().await;
}

/// Attack 38: an address with too many failures is refused before its token is verified. Other addresses are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessing_address_is_refused() {
    let settings = AuthSettings { failures_max: 10, ..AuthSettings::default() };
    let server = Server::start_enforced_audited(settings, Audit::off()).await;
    let known = token(&server, "known").await;
    let rule = json!({"access": [{"name": "r", "identity": "token:known", "allow": [{"verbs": ["history"]}]}]});
    done(&server, "POST", "/v1/apply", &rule.to_string()).await;
    assert_eq!(send(&server, Some(&known), "GET", "/v1/whoami", "").await.0, 200);
    let guess = new_token("root").unwrap().text.clone();
    let (n, (status, headers, json)) = loop_until_limited(&server, &guess).await;
    assert!((10..40).contains(&n), "{n} guesses were verified");
    assert_eq!((status, message(&json).0), (429, "RESOURCE_EXHAUSTED"));
    assert!(message(&json).1.contains("the address 192.0.2.1 had more than 10 failed"), "{json}");
    assert_eq!(headers["retry-after"], "1");
    let (status, _, json) = send(&server, Some(&known), "GET", "/v1/whoami", "").await;
    assert_eq!(
        status, 200,
        "a client at the same address that was verified before is served: {json}"
    );
    done(&server, "DELETE", "/v1/tokens?name=known", "").await;
    assert_eq!(send(&server, Some(&known), "GET", "/v1/whoami", "").await.0, 401);
    server.stop().await;
}

async fn loop_until_limited(server: &Server, guess: &str) -> (usize, (u16, HeaderMap, Value)) {
    for n in 0..1000 {
        let answer = send(server, Some(guess), "GET", "/v1/whoami", "").await;
        if answer.0 != 401 {
            return (n, answer);
        }
    }
    panic!("guesses are not limited");
}
