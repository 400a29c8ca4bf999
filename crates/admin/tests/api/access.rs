//! Access rules on the admin port: every method and path checks the rights of its caller.

use std::sync::Arc;

use axum::{Router, body::Body};
use chancery_admin::{EarlyDeps, Readiness, early_router};
use chancery_admin_proto::FILE_DESCRIPTOR_SET;
use chancery_audit::Audit;
use chancery_auth::TransportPeer;
use chancery_fanout::AccessControl;
use chancery_store::OpenProgress;
use http::{Request, StatusCode};
use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    external::script,
    references::ROUTE,
    support::{Server, clusters},
};

/// A caller of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Who<'a> {
    /// The administrator of the configuration.
    Admin,
    /// A token of Chancery.
    Token(&'a str),
    Nobody,
}

fn request(who: Who<'_>, method: &str, uri: &str, body: &str) -> Request<Body> {
    let mut request =
        Request::builder().method(method).uri(uri).body(Body::from(body.to_owned())).unwrap();
    match who {
        Who::Admin => drop(request.extensions_mut().insert(TransportPeer::UnixUser(0))),
        Who::Token(token) => {
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
        Who::Nobody => {}
    }
    request
}

pub(crate) async fn send(
    server: &Server,
    who: Who<'_>,
    method: &str,
    uri: &str,
    body: &str,
) -> (u16, Value) {
    let (status, body) = server.send(request(who, method, uri, body)).await;
    (status.as_u16(), serde_json::from_str(&body).unwrap_or(Value::Null))
}

pub(crate) async fn done(
    server: &Server,
    who: Who<'_>,
    method: &str,
    uri: &str,
    body: &str,
) -> Value {
    let (status, json) = send(server, who, method, uri, body).await;
    assert_eq!(status, 200, "{method} {uri}: {json}");
    json
}

/// Returns the message of a request that is refused with 403.
pub(crate) async fn denied(
    server: &Server,
    who: Who<'_>,
    method: &str,
    uri: &str,
    body: &str,
) -> String {
    let (status, json) = send(server, who, method, uri, body).await;
    assert_eq!(status, 403, "{method} {uri}: {json}");
    json["error"]["message"].as_str().unwrap().to_owned()
}

pub(crate) async fn token(server: &Server, name: &str) -> String {
    let uri = format!("/v1/tokens?name={name}");
    let created = done(server, Who::Admin, "POST", &uri, "").await;
    created["token"].as_str().unwrap().to_owned()
}

pub(crate) async fn rules(server: &Server, rules: Value) {
    let manifest = json!({ "access": rules }).to_string();
    done(server, Who::Admin, "POST", "/v1/apply", &manifest).await;
}

/// A method whose responses never end.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Returns the paths of all methods in the descriptors, and of those that have none. The descriptors contain every
/// service of Chancery, and those of other APIs, whether the port serves them or not.
pub(crate) fn methods() -> Vec<String> {
    let files = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut paths = Vec::new();
    for file in &files.file {
        for service in &file.service {
            for method in &service.method {
                paths.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    let own = paths.iter().filter(|path| path.starts_with("/chancery.admin.v1."));
    assert!(own.count() > 25, "{paths:?}");
    paths.extend(
        [
            "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus",
            "/envoy.service.status.v3.ClientStatusDiscoveryService/StreamClientStatus",
            "/grpc.health.v1.Health/Check",
            WATCH,
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/unknown.Service/Method",
        ]
        .map(str::to_owned),
    );
    paths.sort();
    paths.dedup();
    paths
}

/// Returns the gRPC status of a call with an empty message.
async fn grpc_status(server: &Server, who: Who<'_>, path: &str) -> i32 {
    grpc_call(server, who, path).await.0
}

/// Returns the gRPC status of a call with an empty message, and the bytes of its responses.
pub(crate) async fn grpc_call(server: &Server, who: Who<'_>, path: &str) -> (i32, Vec<u8>) {
    call(&server.router, who, path).await
}

async fn call(router: &Router, who: Who<'_>, path: &str) -> (i32, Vec<u8>) {
    let mut call = request(who, "POST", path, "");
    *call.version_mut() = http::Version::HTTP_2;
    *call.body_mut() = Body::from(vec![0; 5]);
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    call.headers_mut().insert("te", "trailers".parse().unwrap());
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;
    let response = router.clone().oneshot(call).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let number = |headers: &http::HeaderMap| {
        Some(headers.get("grpc-status")?.to_str().unwrap().parse::<i32>().unwrap())
    };
    if let Some(status) = number(response.headers()) {
        return (status, Vec::new());
    }
    if path == WATCH {
        let first = response.into_body().frame().await.unwrap().unwrap();
        return (OK, first.into_data().unwrap().to_vec());
    }
    let body =
        tokio::time::timeout(std::time::Duration::from_secs(20), response.into_body().collect());
    let body = body.await.expect("the call ends in time").unwrap();
    let status = number(body.trailers().expect("a gRPC call ends with a status")).unwrap();
    (status, body.to_bytes().to_vec())
}

/// The services of the port whose methods need rights. A service that the port does not serve is not implemented.
const SERVED: [&str; 2] =
    ["/chancery.admin.v1.", "/envoy.service.status.v3.ClientStatusDiscoveryService/"];

const OK: i32 = 0;
const INVALID_ARGUMENT: i32 = 3;
const PERMISSION_DENIED: i32 = 7;
const UNIMPLEMENTED: i32 = 12;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

/// Attack 24: no method and no path answers without a credential, except the probes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_needs_a_credential() {
    let server = Server::start_enforced().await;
    for path in methods() {
        assert_eq!(grpc_status(&server, Who::Nobody, &path).await, UNAUTHENTICATED, "{path}");
    }
    for path in chancery_admin::http_paths().iter().chain(&["/unknown"]) {
        let uri = path.replace("{*id}", "x");
        for method in ["GET", "POST", "DELETE"] {
            let (status, _) = send(&server, Who::Nobody, method, &uri, "").await;
            let is_probe = matches!(uri.as_str(), "/healthz" | "/readyz");
            let expected = if is_probe { status != 401 } else { status == 401 };
            assert!(expected, "{method} {uri}: {status}");
        }
    }
    server.stop().await;
}

/// Attacks 24 and 66: before the access rules are loaded, only the probes answer, whoever calls. Afterwards, the same port
/// checks every caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_port_answers_only_probes() {
    use tower::ServiceExt as _;
    let status = async |router: &Router, who, method: &str, uri: &str| {
        let response = router.clone().oneshot(request(who, method, uri, "")).await.unwrap();
        response.status().as_u16()
    };
    for control in [AccessControl::Off, AccessControl::Enforced] {
        let readiness = Readiness::new(
            OpenProgress::default(),
            CancellationToken::new(),
            CancellationToken::new(),
        );
        let (router, switch) = early_router(EarlyDeps {
            liveness: Arc::new(|| Ok(())),
            readiness,
            metrics: Arc::new(String::new),
            hosts: Vec::new(),
            control,
            audit: Audit::off(),
        });
        for who in [Who::Nobody, Who::Admin, Who::Token("chy_guessed")] {
            for path in methods() {
                assert_eq!(call(&router, who, &path).await.0, UNAVAILABLE, "{path}");
            }
            for path in chancery_admin::http_paths().iter().chain(&["/unknown"]) {
                let uri = path.replace("{*id}", "x");
                for method in ["GET", "POST", "DELETE"] {
                    let expected = match (method, uri.as_str(), control) {
                        ("GET", "/healthz", _) | ("GET", "/metrics", AccessControl::Off) => 200,
                        (_, "/healthz", _) | ("POST" | "DELETE", "/readyz", _) => 405,
                        (_, "/metrics", AccessControl::Off) => 405,
                        _ => 503,
                    };
                    let got = status(&router, who, method, &uri).await;
                    assert_eq!(got, expected, "{method} {uri} {control:?} {who:?}");
                }
            }
        }
        let mut from_page = request(Who::Nobody, "POST", "/v1/apply", "");
        from_page.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
        assert_eq!(router.clone().oneshot(from_page).await.unwrap().status(), 403);

        let server = Server::start_enforced().await;
        switch.replace(server.router.clone());
        assert_eq!(status(&router, Who::Admin, "GET", "/v1/whoami").await, 200);
        assert_eq!(status(&router, Who::Nobody, "GET", "/v1/whoami").await, 401);
        server.stop().await;
    }
}

/// Attack 24: every operation checks the rights of its caller. A new one without a check fails this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_needs_a_right() {
    let server = Server::start_enforced().await;
    let token = token(&server, "nothing").await;
    let who = Who::Token(&token);
    for path in methods() {
        let expected = match path.rsplit('/').next().unwrap() {
            "Watch" if path.contains("WatchService") => PERMISSION_DENIED,
            "WhoAmI" | "GetVersion" | "Check" | "Watch" => OK,
            // The caller may ask. The verb and the question are missing.
            "CheckAccess" | "ServerReflectionInfo" => INVALID_ARGUMENT,
            _ if !SERVED.iter().any(|service| path.starts_with(service)) => UNIMPLEMENTED,
            _ => PERMISSION_DENIED,
        };
        assert_eq!(grpc_status(&server, who, &path).await, expected, "{path}");
    }
    for path in chancery_admin::http_paths() {
        let uri = path.replace("{*id}", "x");
        for method in ["GET", "POST", "DELETE"] {
            let (status, json) = send(&server, who, method, &uri, "").await;
            let is_open = matches!(
                (method, uri.as_str()),
                (
                    "GET",
                    "/healthz"
                        | "/readyz"
                        | "/"
                        | "/v1"
                        | "/v1/openapi.json"
                        | "/v1/whoami"
                        | "/v1/version"
                )
            );
            if is_open {
                assert_eq!(status, 200, "{method} {uri}")
            } else {
                assert!(matches!(status, 400 | 403 | 405), "{method} {uri}: {status} {json}")
            }
        }
    }
    server.stop().await;
}

/// Attacks 26, 38 and 39: several credentials, other schemes, guessed tokens, and tokens in URLs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_credential_is_refused_and_not_ignored() {
    let server = Server::start_enforced().await;
    let good = token(&server, "ci").await;
    let with = |values: &[&str]| {
        let mut request = request(Who::Admin, "GET", "/v1/whoami", "");
        for value in values {
            request.headers_mut().append("authorization", value.parse().unwrap());
        }
        request
    };
    let bearer = format!("Bearer {good}");
    let lower = format!("bearer {good}");
    for (values, expected) in [
        (vec![bearer.as_str()], 200),
        (vec![lower.as_str()], 200),
        (vec![bearer.as_str(), bearer.as_str()], 401),
        (vec!["Basic YTpi"], 401),
        (vec!["Bearer"], 401),
        (vec![""], 401),
        (vec![&bearer[..bearer.len() - 1]], 401),
    ] {
        // The administrator's other credential does not help a bad one.
        let (status, body) = server.send(with(&values)).await;
        assert_eq!(status.as_u16(), expected, "{values:?}: {body}");
        assert!(!body.contains(&good[8..]), "{body}");
    }
    let uri = format!("/v1/whoami?access_token={good}");
    assert_eq!(send(&server, Who::Nobody, "GET", &uri, "").await.0, 401);

    // A deleted token is no longer valid.
    done(&server, Who::Admin, "DELETE", "/v1/tokens?name=ci", "").await;
    assert_eq!(send(&server, Who::Token(&good), "GET", "/v1/whoami", "").await.0, 401);
    server.stop().await;
}

/// Attacks 40 to 44: an author writes only what its rules allow, and as itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn author_writes_only_its_own_scope() {
    let server = Server::start_enforced().await;
    let token = token(&server, "shop").await;
    let who = Who::Token(&token);
    rules(
        &server,
        json!([{"name": "teams", "identity": "token:{team}", "allow": [
            {"verbs": ["apply", "delete", "get"], "scopes": ["team/{team}/**"]},
            {"verbs": ["apply", "prune"], "scopes": ["shared"], "types": ["cluster"], "names": ["{team}-*"]},
        ]}]),
    )
    .await;
    let to = |scope: &str, names: &[&str]| format!("scope: {scope}\n{}", clusters(names, "1s"));
    done(&server, who, "POST", "/v1/apply?author=root", &to("team/shop/a", &["x"])).await;
    done(&server, who, "POST", "/v1/apply", &to("shared", &["shop-x"])).await;

    // All missing rights are listed, and nothing is written.
    let both = format!("{}---\n{}", to("team/other/a", &["x"]), to("shared", &["shop-y", "web"]));
    let text = denied(&server, who, "POST", "/v1/apply", &both).await;
    assert_eq!(
        text,
        "token:shop has no right to apply Cluster \"web\" in scope \"shared\", apply Cluster \"x\" in scope \
         \"team/other/a\"; `chancery whoami` shows the rights"
    );
    let text =
        denied(&server, who, "POST", "/v1/apply?prune=true", &to("shared", &["shop-x"])).await;
    assert!(text.contains("prune everything in scope \"shared\""), "{text}");
    let text =
        denied(&server, who, "POST", "/v1/apply?validation=off", &to("team/shop/a", &["x"])).await;
    assert!(text.contains("force everything in scope \"team/shop/a\""), "{text}");
    let text =
        denied(&server, who, "POST", "/v1/apply?dry_run=true", &to("team/other/a", &["x"])).await;
    assert!(text.contains("\"team/other/a\""), "{text}");
    let cluster =
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "shop-z"});
    let alias =
        json!({"scope": "shared", "resources": [{"resource": cluster, "aliases": ["pay"]}]});
    let text = denied(&server, who, "POST", "/v1/apply", &alias.to_string()).await;
    assert!(text.contains("apply Cluster \"pay\" in scope \"shared\""), "{text}");
    let assignment = "assignments:\n- {name: a, scopes: [team/shop/a]}\n";
    let text = denied(&server, who, "POST", "/v1/apply", assignment).await;
    assert!(text.contains("assign"), "{text}");

    let history = done(&server, Who::Admin, "GET", "/v1/history", "").await;
    let entries = history["entries"].as_array().unwrap();
    let authors: Vec<_> = entries.iter().map(|entry| entry["author"].as_str().unwrap()).collect();
    // The newest first: two writes, the rules, the token. The name that the first write gave is a claim.
    let claim = "token:shop (claims root)";
    assert_eq!(authors, ["token:shop", claim, "unix:0", "unix:0"]);
    server.stop().await;
}

/// An author that may not read sees no differences, and one without `force` confirms no change of assignments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn author_without_rights_to_read_or_to_force_is_limited() {
    let server = Server::start_enforced().await;
    let token = token(&server, "blind").await;
    let allow = json!([{"verbs": ["apply"], "scopes": ["blind"]}, {"verbs": ["assign"]}]);
    rules(&server, json!([{"name": "r", "identity": "token:blind", "allow": allow}])).await;
    let to = |timeout: &str| format!("scope: blind\n{}", clusters(&["x"], timeout));
    done(&server, Who::Admin, "POST", "/v1/apply", &to("1s")).await;
    for (who, is_shown) in [(Who::Token(&token), false), (Who::Admin, true)] {
        let tried = done(&server, who, "POST", "/v1/apply?dry_run=true", &to("2s")).await;
        let change = &tried["changes"][0];
        assert_eq!(change["name"], "x", "{tried}");
        assert_eq!(change["differences"] != json!([]), is_shown, "{who:?}: {tried}");
        assert_eq!(change["unified"] != json!(""), is_shown, "{who:?}: {tried}");
    }
    let assignment = "assignments:\n- {name: a, scopes: [blind]}\n";
    let uri = "/v1/apply?confirm=view-change";
    let text = denied(&server, Who::Token(&token), "POST", uri, assignment).await;
    assert!(text.contains("force a change of assignments"), "{text}");
    done(&server, Who::Token(&token), "POST", "/v1/apply", assignment).await;
    server.stop().await;
}

/// Whoever may not write a resource cannot make the replica run the external validator on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_checked_before_the_external_validator_runs() {
    let rejects_all = script("echo 'this is bad' >&2; exit 1");
    let server = Server::start_enforced_with(Some(rejects_all)).await;
    let token = token(&server, "shop").await;
    let allow = json!([{"verbs": ["apply"], "scopes": ["mine"]}]);
    rules(&server, json!([{"name": "r", "identity": "token:shop", "allow": allow}])).await;
    let who = Who::Token(&token);
    let text = denied(&server, who, "POST", "/v1/apply", &clusters(&["x"], "1s")).await;
    assert!(text.contains("no right to apply Cluster"), "{text}");
    let bootstrap = "static_resources: {clusters: [{name: x, connect_timeout: 1s}]}";
    let text = denied(&server, who, "POST", "/v1/import", bootstrap).await;
    assert!(text.contains("no right to apply Cluster"), "{text}");
    let own = format!("scope: mine\n{}", clusters(&["x"], "1s"));
    let (status, refused) = send(&server, who, "POST", "/v1/apply", &own).await;
    assert_eq!(status, 400, "{refused}");
    assert_eq!(refused["error"]["problems"][0]["rule_id"], "external");
    server.stop().await;
}

/// Attack 49, and property (d): what an author may not read looks as if it did not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forbidden_resource_looks_absent() {
    let server = Server::start_enforced().await;
    let token = token(&server, "shop").await;
    let who = Who::Token(&token);
    let grant = json!([{"verbs": ["get"], "scopes": ["mine"]}]);
    rules(&server, json!([{"name": "r", "identity": "token:shop", "allow": grant}])).await;
    for scope in ["mine", "theirs"] {
        let manifest = format!("scope: {scope}\n{}", clusters(&[scope], "1s"));
        done(&server, Who::Admin, "POST", "/v1/apply", &manifest).await;
    }
    let list = done(&server, who, "GET", "/v1/resources", "").await;
    let names: Vec<_> =
        list["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["mine"]);
    let uri = |name: &str, scope: &str| format!("/v1/describe?type=cds&name={name}&scope={scope}");
    done(&server, who, "GET", &uri("mine", "mine"), "").await;
    let mut answers = Vec::new();
    for (name, scope) in [("theirs", "theirs"), ("nothing", "theirs"), ("nothing", "nowhere")] {
        let (status, json) = send(&server, who, "GET", &uri(name, scope), "").await;
        let text = json.to_string().replace(name, "NAME").replace(scope, "SCOPE");
        answers.push((status, text.replace("NAME", "X").replace("SCOPE", "X")));
    }
    assert_eq!(answers[0].0, 404);
    assert!(answers.iter().all(|answer| answer == &answers[0]), "{answers:?}");
    let (status, _) = send(&server, who, "GET", "/v1/resources?scope=theirs", "").await;
    assert_eq!(status, 200);
    denied(&server, who, "GET", "/v1/nodes", "").await;
    denied(&server, who, "GET", "/v1/explain?node=x", "").await;
    server.stop().await;
}

/// A caller that may read only a part does not disturb the references that others see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn referrers_are_shown_to_callers_that_may_read_them() {
    let server = Server::start_enforced().await;
    let token = token(&server, "shop").await;
    let grant = json!([{"verbs": ["get"], "scopes": ["default"], "types": ["cluster"]}]);
    rules(&server, json!([{"name": "r", "identity": "token:shop", "allow": grant}])).await;
    let both = format!("{}---\n{ROUTE}\n", clusters(&["web"], "1s"));
    done(&server, Who::Admin, "POST", "/v1/apply", &both).await;
    for (who, shown) in [(Who::Token(&token), 0), (Who::Admin, 1), (Who::Token(&token), 0)] {
        let cluster = done(&server, who, "GET", "/v1/describe?type=cds&name=web", "").await;
        let referrers = cluster["scopes"][0]["referrers"].as_array().unwrap();
        assert_eq!(referrers.len(), shown, "{who:?}: {referrers:?}");
    }
    server.stop().await;
}

/// Attack 40: a refused delete does not tell what exists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_delete_tells_nothing() {
    let server = Server::start_enforced().await;
    let token = token(&server, "shop").await;
    let grant = json!([{"verbs": ["delete"], "scopes": ["mine"]}]);
    rules(&server, json!([{"name": "r", "identity": "token:shop", "allow": grant}])).await;
    let constraints = |env: &str| json!({"constraint": {"key": "env", "value": env}});
    let cluster =
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "web"});
    let variant =
        |env: &str| json!({"dynamic_parameter_constraints": constraints(env), "resource": cluster});
    let manifest = json!({"resources": [variant("prod"), variant("test")]}).to_string();
    done(&server, Who::Admin, "POST", "/v1/apply", &manifest).await;
    for name in ["web", "nothing"] {
        let uri = format!("/v1/resources?type=cds&name={name}");
        let text = denied(&server, Who::Token(&token), "DELETE", &uri, "").await;
        let needed =
            format!("token:shop has no right to delete Cluster {name:?} in scope \"default\"");
        assert!(text.starts_with(&needed), "{text}");
    }
    server.stop().await;
}

/// Attack 45: nobody gives rights that they do not have, by a rule or by a token. Nobody but an administrator limits
/// many identities, or lifts a limit of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn author_cannot_give_itself_rights() {
    let server = Server::start_enforced().await;
    let token = token(&server, "shop").await;
    let who = Who::Token(&token);
    rules(
        &server,
        json!([
            {"name": "shop", "identity": "token:shop", "allow": [
                {"verbs": ["access.write", "tokens", "access.read"]},
                {"verbs": ["apply"], "scopes": ["team/shop/**"]},
            ]},
            {"name": "big", "identity": "token:big", "allow": [{"verbs": ["apply"], "scopes": ["**"]}]},
            {"name": "revoked", "identity": "token:evil", "refuse": true},
            {"name": "slow", "identity": "token:*", "quota": {"requests_per_second": 1000}},
            {"name": "guest", "identity": "token:guest", "quota": {"requests_per_second": 5}},
        ]),
    )
    .await;
    let write = async |rule: Value| {
        let manifest = json!({ "access": [rule] }).to_string();
        send(&server, who, "POST", "/v1/apply", &manifest).await
    };
    let own = json!([{"verbs": ["apply"], "scopes": ["team/shop/x"]}]);
    let (status, json) = write(json!({"name": "new", "identity": "token:ci", "allow": own})).await;
    assert_eq!(status, 200, "{json}");
    let all = json!([{"verbs": ["apply"], "scopes": ["**"]}]);
    for rule in [
        json!({"name": "shop", "identity": "token:shop", "allow": all}),
        json!({"name": "new", "identity": "token:ci", "read": ["mesh"]}),
        json!({"name": "new", "identity": "token:ci", "allow": [{"verbs": ["members"]}]}),
        json!({"name": "revoked", "identity": "token:other", "refuse": true}),
        json!({"name": "all", "identity": "token:*", "refuse": true}),
        json!({"name": "all", "identity": "token:*", "quota": {"requests_per_second": 1}}),
        json!({"name": "all", "identity": "jwt:corp/{team}", "quota": {"writes_per_second": 1}}),
        json!({"name": "all", "identities": ["token:ci", "spiffe://prod.example/ns/*/sa/*"],
            "quota": {"requests_per_second": 1}}),
        json!({"name": "new", "identity": "jwt:corp/*", "allow": own, "quota": {"writes_per_second": 1}}),
        json!({"name": "slow", "identity": "token:*", "quota": {"requests_per_second": 9000}}),
        json!({"name": "slow", "identity": "token:other", "allow": own}),
    ] {
        let (status, json) = write(rule.clone()).await;
        assert_eq!(status, 403, "{rule}: {json}");
    }
    denied(&server, who, "DELETE", "/v1/access?name=revoked", "").await;
    let text = denied(&server, who, "DELETE", "/v1/access?name=slow", "").await;
    let needed = "token:shop has no right to change the access rule \"slow\", which has a quota for its author";
    assert!(text.starts_with(needed), "{text}");
    // A quota of single other identities is like a refusal of single identities.
    let faster =
        json!({"name": "guest", "identity": "token:guest", "quota": {"requests_per_second": 9}});
    assert_eq!(write(faster).await.0, 200);
    denied(&server, who, "POST", "/v1/tokens?name=big", "").await;
    done(&server, who, "POST", "/v1/tokens?name=ci", "").await;
    let gone = json!({"name": "gone", "identity": "token:gone", "refuse": true});
    assert_eq!(write(gone).await.0, 200);

    // The administrators of the configuration have no rule.
    denied(&server, who, "POST", "/v1/tokens?name=root", "").await;
    let root = self::token(&server, "root").await;
    denied(&server, who, "DELETE", "/v1/tokens?name=root", "").await;
    assert_eq!(send(&server, Who::Token(&root), "GET", "/v1/whoami", "").await.0, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_shown_to_callers_and_operators() {
    let server = Server::start_enforced().await;
    let token = token(&server, "shop").await;
    let who = Who::Token(&token);
    let grant = json!([{"verbs": ["get", "apply"], "scopes": ["mesh"]}]);
    rules(&server, json!([{"name": "r", "identity": "token:shop", "allow": grant}])).await;
    let me = done(&server, who, "GET", "/v1/whoami", "").await;
    assert_eq!(
        (&me["identity"], &me["rules"], &me["admin"]),
        (&json!("token:shop"), &json!(["r"]), &json!(false))
    );
    assert_eq!(me["verbs"], json!(["get", "apply"]));
    let admin = done(&server, Who::Admin, "GET", "/v1/whoami", "").await;
    assert_eq!((&admin["identity"], &admin["admin"]), (&json!("unix:0"), &json!(true)));
    let check = async |who, query: &str| {
        done(&server, who, "GET", &format!("/v1/access/check?{query}"), "").await["allowed"].clone()
    };
    assert_eq!(check(who, "verb=apply&scope=mesh").await, true);
    assert_eq!(check(who, "verb=apply&scope=mesh2").await, false);
    assert_eq!(check(who, "verb=nodes").await, false);
    assert_eq!(check(Who::Admin, "verb=apply&scope=mesh&identity=token:shop").await, true);
    denied(&server, who, "GET", "/v1/access/check?verb=nodes&identity=unix:0", "").await;
    let explained =
        done(&server, Who::Admin, "GET", "/v1/access/explain?identity=token:shop", "").await;
    assert_eq!(explained["verbs"], json!(["get", "apply"]));
    // The decision about a connected node shows values of the node.
    let watcher = self::token(&server, "watcher").await;
    let read = |verbs: &[&str]| json!([{"name": "z", "identity": "token:watcher", "allow": [{"verbs": verbs}]}]);
    self::rules(&server, read(&["access.read"])).await;
    let watcher = Who::Token(&watcher);
    let of_node = "/v1/access/explain?identity=token:shop&node=edge/1";
    done(&server, watcher, "GET", "/v1/access/explain?identity=token:shop", "").await;
    let text = denied(&server, watcher, "GET", of_node, "").await;
    assert!(text.starts_with("token:watcher has no right to nodes; "), "{text}");
    self::rules(&server, read(&["access.read", "nodes"])).await;
    assert_eq!(send(&server, watcher, "GET", of_node, "").await.0, 404);
    let list = done(&server, Who::Admin, "GET", "/v1/access", "").await;
    assert_eq!(list["rules"][0]["allow"][0]["scopes"], json!(["mesh"]));
    let tokens = done(&server, Who::Admin, "GET", "/v1/tokens", "").await;
    assert_eq!(tokens["tokens"][0]["name"], "shop");
    assert!(!tokens.to_string().contains(&token[10..]), "{tokens}");
    server.stop().await;
}

/// The answers showed only the rights of authors, and none of a client.
#[tokio::test]
async fn whoami_and_explain_show_rights_and_limits_of_clients() {
    let server = Server::start_enforced().await;
    let node = json!({"id": "{team}/*", "metadata": {"NAMESPACE": "{team}"}});
    let secrets = json!({"scopes": ["team/{team}"], "names": ["tls-*"]});
    let read = json!(["mesh", "team/{team}"]);
    let quota = json!({"streams": 4, "requests_per_second": 900});
    let clients = json!({
        "name": "clients", "identity": "token:{team}",
        "node": node, "read": read, "secrets": secrets, "quota": quota,
    });
    let allow = json!([{"verbs": ["nodes"]}]);
    let authors = json!({"name": "authors", "identity": "token:{team}", "allow": allow});
    rules(&server, json!([clients, authors])).await;
    let token = token(&server, "shop").await;
    let me = done(&server, Who::Token(&token), "GET", "/v1/whoami", "").await;
    let expected = json!([{
        "rule": "clients", "node": node, "read": read, "secrets": secrets,
        "variables": {"team": "shop"}, "streams": 4, "requests_per_second": 900,
    }]);
    assert_eq!(me["client_grants"], expected, "{me}");
    let uri = "/v1/access/explain?identity=token:shop";
    let explained = done(&server, Who::Admin, "GET", uri, "").await;
    assert_eq!(explained["client_grants"], expected, "{explained}");
    // A revoked identity has no rights.
    let revoked = json!({"name": "revoked", "identity": "token:shop", "refuse": true});
    rules(&server, json!([revoked])).await;
    let explained = done(&server, Who::Admin, "GET", uri, "").await;
    assert_eq!(explained["client_grants"], json!([]), "{explained}");
    server.stop().await;
}

/// A dry run showed only the number of changed rules, and the rights of an identity had no scopes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_run_shows_each_rule_and_quota_field_by_field() {
    let server = Server::start_enforced().await;
    let allow = json!([
        {"verbs": ["apply", "delete"], "scopes": ["team/{team}"], "types": ["cds"], "names": ["web-*"]},
        {"verbs": ["access.read", "tokens"]},
    ]);
    let deny = json!([{"verbs": ["delete"], "scopes": ["team/{team}"]}]);
    let rule = json!({"name": "teams", "identity": "token:{team}", "allow": allow, "deny": deny});
    rules(&server, json!([rule, {"name": "old", "identity": "token:x", "read": ["mesh"]}])).await;
    let changed = json!({
        "access": [
            {"name": "teams", "identity": "token:{team}", "read": ["mesh"], "allow": allow, "deny": deny},
            {"name": "new", "identity": "token:y", "refuse": true},
        ],
        "quotas": [{"name": "q", "scopes": ["team/*"], "max_resources": 7}],
    });
    let uri = "/v1/apply?dry_run=true";
    let tried = done(&server, Who::Admin, "POST", uri, &changed.to_string()).await;
    let text = |change: &Value| {
        let word = |key: &str| change[key].as_str().unwrap().to_owned();
        format!("{} {} {}\n{}", word("kind"), word("object"), word("name"), word("unified"))
    };
    let changes: Vec<String> =
        tried["access_changes"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(
        changes,
        [
            "added rule new\n+ identities: [token:y]\n+ refuse: true\n",
            "updated rule teams\n+ read: [mesh]\n",
            "added quota q\n+ max_resources: 7\n+ scopes: [\"team/*\"]\n",
        ]
    );
    let read = json!([{"path": "read", "before": "", "after": "[\"mesh\"]", "kind": "added"}]);
    assert_eq!(tried["access_changes"][1]["differences"], read);
    let deleted = done(&server, Who::Admin, "DELETE", "/v1/access?name=old", "").await;
    assert_eq!(deleted["access_changes"][0]["kind"], "deleted", "{deleted}");

    // The grants have their scopes, types and names, and the values of their variables.
    let token = token(&server, "shop").await;
    let me = done(&server, Who::Token(&token), "GET", "/v1/whoami", "").await;
    let grant = &me["grants"][0];
    assert_eq!((&grant["rule"], &grant["deny"]), (&json!("teams"), &json!(false)), "{me}");
    assert_eq!(grant["variables"], json!({"team": "shop"}), "{me}");
    assert_eq!(grant["grant"]["scopes"], json!(["team/{team}"]), "{me}");
    assert_eq!(grant["grant"]["names"], json!(["web-*"]), "{me}");
    assert_eq!(grant["grant"]["types"].as_array().unwrap().len(), 1, "{me}");
    assert_eq!(me["grants"][2]["deny"], true, "{me}");
    let uri = "/v1/access/explain?identity=token:shop";
    let explained = done(&server, Who::Admin, "GET", uri, "").await;
    assert_eq!(explained["grants"], me["grants"], "{explained}");
}
