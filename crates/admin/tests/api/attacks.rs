//! Attacks on the admin port by authors with a credential.

use chancery_model::types::SECRET;
use serde_json::{Value, json};

use crate::{
    access::{Who, done, grpc_call, methods, rules, send, token},
    support::{Client, Server, clusters},
};

/// The content of a secret, which is long enough to occur nowhere by chance.
const CONTENT: &str = "q9Zx-7Jv!mW2_pL4";

fn secret(content: &str) -> String {
    json!({"resources": [{
        "@type": SECRET,
        "name": "cert",
        "generic_secret": {"secret": {"inline_string": content}},
    }]})
    .to_string()
}

/// Attack 23: no operation shows the content of a secret. An administrator calls every path and every method, after the
/// secret was written, changed, sent to a client, and quoted by it in a rejection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_shows_the_content_of_a_secret() {
    let server = Server::start_enforced().await;
    for content in [CONTENT, &format!("{CONTENT}-2")] {
        done(&server, Who::Admin, "POST", "/v1/apply", &secret(content)).await;
    }
    let mut client = Client::open(&server, "n");
    client.subscribe_to(SECRET, &["cert"]).await;
    let response = client.response().await;
    let sent = String::from_utf8_lossy(&response.resources[0].resource.as_ref().unwrap().value)
        .into_owned();
    assert!(sent.contains(CONTENT), "{sent}");
    let rejection = format!("bad secret: {CONTENT}-2");
    client.answer(&response, Some(&rejection)).await;

    let mut n_answers = 0;
    for path in chancery_admin::http_paths() {
        let query = match path {
            "/v1/describe" => "?type=sds&name=cert",
            "/v1/explain" => "?node=n&type=sds&name=cert",
            "/v1/access/check" => "?verb=get&scope=default&type=sds&name=cert",
            "/v1/access/explain" => "?identity=token:x&node=n",
            // Its answer does not end. It has the text of a rejection as `node` has it.
            "/v1/watch" => "?kind=unknown",
            _ => "",
        };
        let uri = path.replace("{*id}", "n") + query;
        let (status, json) = send(&server, Who::Admin, "GET", &uri, "").await;
        assert!(!json.to_string().contains(CONTENT), "GET {uri} shows the secret: {json}");
        n_answers += usize::from(status == 200);
    }
    assert!(n_answers >= 15, "only {n_answers} paths answered");
    let bootstrap = json!({"static_resources": {"secrets": [
        {"name": "cert", "generic_secret": {"secret": {"inline_string": format!("{CONTENT}-3")}}},
    ]}});
    let bootstrap = bootstrap.to_string();
    for (method, uri, body) in [
        ("POST", "/v1/apply?dry_run=true", secret(&format!("{CONTENT}-3"))),
        ("POST", "/v1/apply?dry_run=true", secret("[redacted]")),
        ("POST", "/v1/import?dry_run=true", bootstrap),
        ("DELETE", "/v1/resources?type=sds&name=cert&dry_run=true", String::new()),
    ] {
        let (_, json) = send(&server, Who::Admin, method, uri, &body).await;
        assert!(!json.to_string().contains(CONTENT), "{method} {uri} shows the secret: {json}");
    }
    let node = done(&server, Who::Admin, "GET", "/v1/nodes/n", "").await;
    assert!(node.to_string().contains("bad secret: [redacted]"), "{node}");

    for path in methods() {
        // A backup contains everything, and has a right of its own. The answer of a watch does not end.
        if ["BackupService/Backup", "WatchService/Watch"].iter().any(|one| path.ends_with(one)) {
            continue;
        }
        let (_, body) = grpc_call(&server, Who::Admin, &path).await;
        let is_shown = body.windows(CONTENT.len()).any(|bytes| bytes == CONTENT.as_bytes());
        assert!(!is_shown, "{path} shows the secret");
    }
    server.stop().await;
}

/// Attack 43: a request ID belongs to its author. If another author uses the same ID, the server makes a second write.
/// Its answer contains nothing of the first write. The first author can still repeat the first write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_id_of_another_author_is_another_write() {
    let server = Server::start_enforced().await;
    let (a, b) = (token(&server, "a").await, token(&server, "b").await);
    let own = json!({"verbs": ["apply"], "scopes": ["team/{team}"]});
    rules(&server, json!([{"name": "r", "identity": "token:{team}", "allow": [own]}])).await;
    let uri = "/v1/apply?request_id=000102030405060708090a0b0c0d0e0f";
    let write = async |token: &str, scope: &str, timeout: &str| {
        let manifest = format!("scope: team/{scope}\n{}", clusters(&["x"], timeout));
        send(&server, Who::Token(token), "POST", uri, &manifest).await
    };
    let outcome = |(status, json): (u16, Value)| {
        (status, json["revision"].as_u64(), json["repeated"].as_bool().unwrap_or(false))
    };
    let (status, first, repeated) = outcome(write(&a, "a", "1s").await);
    assert_eq!((status, repeated), (200, false));
    let (status, second, repeated) = outcome(write(&b, "b", "1s").await);
    assert_eq!((status, repeated), (200, false));
    assert!(second > first, "{second:?} {first:?}");
    assert_eq!(outcome(write(&a, "a", "1s").await), (200, first, true));
    assert_eq!(outcome(write(&b, "b", "1s").await), (200, second, true));
    // The author itself cannot use the ID for another write.
    let (status, ..) = outcome(write(&a, "a", "2s").await);
    assert_eq!(status, 409);
    server.stop().await;
}

/// Attack 47: no rule takes the rights of an administrator of the configuration, so that there always is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_rule_takes_the_rights_of_an_administrator() {
    let server = Server::start_enforced().await;
    let everything = json!([
        {"verbs": ["apply", "delete", "prune", "get", "force"], "scopes": ["**"]},
        {"verbs": ["access.read", "access.write", "tokens"]},
    ]);
    rules(
        &server,
        json!([
            {"name": "refused", "identity": "unix:0", "refuse": true},
            {"name": "denied", "identity": "unix:{uid}", "deny": everything},
        ]),
    )
    .await;
    done(&server, Who::Admin, "POST", "/v1/apply", &clusters(&["x"], "1s")).await;
    for name in ["refused", "denied"] {
        done(&server, Who::Admin, "DELETE", &format!("/v1/access?name={name}"), "").await;
    }
    let me = done(&server, Who::Admin, "GET", "/v1/whoami", "").await;
    assert_eq!(me["admin"], true, "{me}");
    server.stop().await;
}

/// Attack 64: lists of a rule have a limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_with_a_list_beyond_the_limit_is_refused() {
    let server = Server::start_enforced().await;
    for (n, expected) in [(256, 200), (257, 400)] {
        let scopes: Vec<String> = (0..n).map(|n| format!("s/{n}")).collect();
        let identities: Vec<String> = (0..n).map(|n| format!("token:t{n}")).collect();
        for rule in [
            json!({"name": "r", "identity": "token:x", "read": scopes}),
            json!({"name": "r", "identities": identities, "read": ["s"]}),
            json!({"name": "r", "identity": "token:x", "allow": [{"verbs": ["get"], "scopes": scopes}]}),
        ] {
            let manifest = json!({"access": [rule]}).to_string();
            let (status, json) = send(&server, Who::Admin, "POST", "/v1/apply", &manifest).await;
            assert_eq!(status, expected, "{n}: {json}");
        }
    }
    server.stop().await;
}
