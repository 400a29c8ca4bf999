//! The external validator: a command checks each write before it is replicated.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chancery_admin::{ExternalInput, ExternalValidator};
use chancery_admission::{Validation, ValidationMode};
use chancery_model::ScopeName;
use futures::future::join_all;
use serde_json::json;

use crate::support::{Server, clusters, eventually};

/// Returns a validator that runs a script on a manifest.
pub(crate) fn script(script: &str) -> ExternalValidator {
    ExternalValidator {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        input: ExternalInput::Manifest,
        timeout: Duration::from_secs(15),
        memory_max: 1 << 30,
        required: true,
    }
}

/// Rejects manifests with the name `bad`.
const NOT_BAD: &str = "if grep -q 'bad'; then echo 'bad is bad' >&2; exit 1; fi";
const SAID: &str = "the external validator rejects the resources of scope \"default\": bad is bad";

#[tokio::test]
async fn write_that_the_command_rejects_changes_nothing() {
    let server = Server::start_judged(script(NOT_BAD)).await;
    let written = server.done("POST", "/v1/apply", &clusters(&["good"], "1s")).await;
    assert_eq!(written["changed"], 1);
    let (_, refused) = server.call("POST", "/v1/apply", &clusters(&["a", "bad"], "1s")).await;
    let problem = &refused["error"]["problems"][0];
    assert_eq!((&problem["message"], &problem["rule_id"]), (&json!(SAID), &json!("external")));
    let (status, refused) =
        server.call("POST", "/v1/apply?dry_run=true", &clusters(&["bad"], "1s")).await;
    assert_eq!(status, 400, "{refused}");
    let bootstrap = "static_resources: {clusters: [{name: bad, connect_timeout: 1s}]}";
    let refused = server.refused("POST", "/v1/import", bootstrap).await;
    assert_eq!(refused.0, 400, "{refused:?}");
    let cluster = server.done("GET", "/v1/cluster", "").await;
    assert_eq!(cluster["revision"], written["revision"]);
    server.stop().await;
}

#[tokio::test]
async fn mode_decides_whether_the_command_is_asked_and_refuses() {
    let server = Server::start_judged(script(NOT_BAD)).await;
    let bad = |timeout| clusters(&["bad"], timeout);
    let warned = server.done("POST", "/v1/apply?validation=warn", &bad("1s")).await;
    assert_eq!((&warned["changed"], &warned["warnings"][0]["message"]), (&json!(1), &json!(SAID)));
    let unchecked = server.done("POST", "/v1/apply?validation=off", &bad("2s")).await;
    assert_eq!((&unchecked["changed"], &unchecked["warnings"]), (&json!(1), &json!([])));
    server.stop().await;
}

/// Without a verdict, the configuration decides.
#[tokio::test]
async fn command_that_cannot_judge_refuses_or_accepts_by_configuration() {
    for required in [true, false] {
        let command = vec!["/nowhere/validator".to_owned()];
        let server =
            Server::start_judged(ExternalValidator { command, required, ..script("") }).await;
        let (status, json) = server.call("POST", "/v1/apply", &clusters(&["a"], "1s")).await;
        let said = "did not check the write: cannot start";
        if required {
            assert_eq!(status, 503, "{json}");
            let message = json["error"]["message"].as_str().unwrap();
            assert!(message.starts_with("nothing has been written: "), "{json}");
            assert!(message.contains(said), "{json}");
        } else {
            assert_eq!((status.as_u16(), &json["changed"]), (200, &json!(1)), "{json}");
            let warning = json["warnings"][0]["message"].as_str().unwrap();
            assert!(warning.contains(said), "{json}");
        }
        server.stop().await;
    }
}

/// Other writers do not wait for a run: it holds no lock of the apply path.
#[tokio::test]
async fn slow_command_delays_only_its_own_write() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("runs");
    let slow = format!("if grep -q slow; then touch {}; sleep 5; fi", mark.display());
    let server = Server::start_judged(script(&slow)).await;
    let start = Instant::now();
    let slow = clusters(&["slow"], "1s");
    let slow = server.done("POST", "/v1/apply", &slow);
    let quick = async {
        eventually(async || mark.exists().then_some(()), "the slow command runs").await;
        let quick = clusters(&["quick"], "1s");
        server.done("POST", "/v1/apply", &quick).await;
        start.elapsed()
    };
    let (_, quick) = tokio::join!(slow, quick);
    assert!(quick < Duration::from_secs(5), "{quick:?}");
    server.stop().await;
}

#[tokio::test]
async fn at_most_two_commands_run_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let marks = directory.path().display();
    // Each run reports the number of runs at its start.
    let counting = format!(
        "cat > /dev/null; touch {marks}/run.$$; ls {marks} | grep -c run >> {marks}/seen; sleep 0.3; rm {marks}/run.$$"
    );
    let server = Server::start_judged(script(&counting)).await;
    let names: Vec<String> = (0..6).map(|n| format!("c{n}")).collect();
    let writes = names.iter().map(|name| {
        let (server, manifest) = (&server, clusters(&[name], "1s"));
        async move { server.done("POST", "/v1/apply", &manifest).await }
    });
    join_all(writes).await;
    let seen = std::fs::read_to_string(directory.path().join("seen")).unwrap();
    let most = seen.lines().filter_map(|line| line.parse::<u32>().ok()).max();
    assert_eq!((seen.lines().count(), most), (6, Some(2)), "{seen}");
    server.stop().await;
}

/// A retry answers what the first attempt did, although the command rejects the resources now.
#[tokio::test]
async fn retry_returns_the_first_result_although_the_command_rejects_it_now() {
    let directory = tempfile::tempdir().unwrap();
    let switch = directory.path().join("off");
    let command = format!("cat > /dev/null; test ! -e {} || exit 1", switch.display());
    let server = Server::start_judged(script(&command)).await;
    let uri = format!("/v1/apply?request_id={:032x}", 7);
    let first = server.done("POST", &uri, &clusters(&["a"], "1s")).await;
    std::fs::write(&switch, "").unwrap();
    let again = server.done("POST", &uri, &clusters(&["a"], "1s")).await;
    assert_eq!((&again["revision"], &again["repeated"]), (&first["revision"], &json!(true)));
    let other = uri.replace("7", "8");
    assert_eq!(server.refused("POST", &other, &clusters(&["a"], "1s")).await.0, 400);
    server.stop().await;
}

/// Returns a manifest with a cluster in a scope.
fn in_scope(scope: &str, name: &str) -> String {
    json!({"scope": scope, "resources": [
        {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": name, "connect_timeout": "1s"}
    ]})
    .to_string()
}

/// Accepts inputs in which each name occurs once.
const DISTINCT: &str =
    r#"test $(grep -o '"name":"web"' | wc -l) -le 1 || { echo duplicate >&2; exit 1; }"#;

/// The resources of two scopes never meet in one client, and variants of a resource neither.
#[tokio::test]
async fn scopes_and_variants_with_one_name_are_checked_apart() {
    let server = Server::start_judged(script(DISTINCT)).await;
    let scopes = format!("{}\n---\n{}", in_scope("a", "web"), in_scope("b", "web"));
    let written = server.done("POST", "/v1/apply", &scopes).await;
    assert_eq!(written["changed"], 2, "{written}");
    let variant = |value: &str| {
        json!({
            "dynamic_parameter_constraints": {"constraint": {"key": "env", "value": value}},
            "resource": {
                "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "web", "connect_timeout": "1s"
            },
        })
    };
    let variants = json!({"scope": "c", "resources": [variant("x"), variant("y")]}).to_string();
    let written = server.done("POST", "/v1/apply", &variants).await;
    assert_eq!(written["changed"], 2, "{written}");
    server.stop().await;
}

/// The last variant is checked, too.
#[tokio::test]
async fn each_variant_is_checked() {
    let server = Server::start_judged(script(NOT_BAD)).await;
    let variant = |value: &str, stat: &str| {
        json!({
            "dynamic_parameter_constraints": {"constraint": {"key": "env", "value": value}},
            "resource": {
                "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "web",
                "connect_timeout": "1s", "alt_stat_name": stat,
            },
        })
    };
    let variants = json!({"resources": [variant("x", "good"), variant("y", "bad")]}).to_string();
    let (status, refused) = server.call("POST", "/v1/apply", &variants).await;
    assert_eq!((status.as_u16(), &refused["error"]["problems"][0]["message"]), (400, &json!(SAID)));
    server.stop().await;
}

#[tokio::test]
async fn finding_in_a_scope_that_warns_does_not_refuse_another_scope() {
    let lab = ScopeName::new("lab").unwrap();
    let validation = Validation {
        scopes: Arc::new([(lab, ValidationMode::Warn)].into()),
        ..Validation::default()
    };
    let server = Server::start_judged_with(script(NOT_BAD), validation).await;
    let write = |lab: &str, edge: &str| {
        format!("{}\n---\n{}", in_scope("lab", lab), in_scope("edge", edge))
    };
    let written = server.done("POST", "/v1/apply", &write("bad", "good")).await;
    let warning = "the external validator rejects the resources of scope \"lab\": bad is bad";
    assert_eq!(
        (&written["changed"], &written["warnings"][0]["message"]),
        (&json!(2), &json!(warning))
    );
    let (status, refused) = server.call("POST", "/v1/apply", &write("good", "bad")).await;
    let message = refused["error"]["problems"][0]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("scope \"edge\""), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn write_that_needs_too_many_runs_is_not_checked() {
    let server = Server::start_judged(script("exit 0")).await;
    let scopes: Vec<String> = (0..101).map(|n| in_scope(&format!("s{n}"), "web")).collect();
    let (status, json) = server.call("POST", "/v1/apply", &scopes.join("\n---\n")).await;
    let message = json["error"]["message"].as_str().unwrap();
    assert!(
        status == 503 && message.ends_with("it needs 101 runs, more than 100; split it"),
        "{json}"
    );
    server.stop().await;
}
