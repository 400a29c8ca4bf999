//! The rights to freeze, and the records of freezes and of the ways back.

use std::{fs, path::Path, time::Duration};

use chancery_audit::{Audit, Settings, SinkSettings};
use chancery_auth::AuthSettings;
use serde_json::{Value, json};

use crate::{
    access::{Who, denied, done, rules, send, token},
    support::{Server, clusters},
};

const DEADLINE: Duration = Duration::from_secs(20);

fn in_scope(scope: &str, timeout: &str) -> String {
    format!("scope: {scope}\n{}", clusters(&["a"], timeout))
}

/// Without `freeze`, `freeze.all` or `freeze.override` in a scope, an author neither freezes nor thaws nor writes to clients of a
/// frozen scope, whatever else it may do.
#[tokio::test(flavor = "multi_thread")]
async fn each_operation_on_freezes_needs_its_right() {
    let server = Server::start_enforced().await;
    let ann = token(&server, "ann").await;
    let ann = Who::Token(&ann);
    let grant = async |more: Value| {
        let writes =
            json!({"verbs": ["get", "apply", "delete", "prune", "force"], "scopes": ["**"]});
        let mut allow = vec![writes, json!({"verbs": ["assign", "history"]})];
        allow.extend(more.as_array().unwrap().iter().cloned());
        rules(&server, json!([{"name": "ann", "identity": "token:ann", "allow": allow}])).await;
    };
    let freezes = async || {
        done(&server, Who::Admin, "GET", "/v1/freezes", "").await["freezes"]
            .as_array()
            .unwrap()
            .len()
    };
    grant(json!([])).await;
    for scope in ["edge", "core"] {
        done(&server, ann, "POST", "/v1/apply", &in_scope(scope, "1s")).await;
    }
    for (uri, verb) in [
        ("/v1/freeze?scope=edge", "freeze everything in scope \"edge\""),
        ("/v1/freeze?all=true", "freeze.all"),
    ] {
        let text = denied(&server, ann, "POST", uri, "").await;
        assert!(text.contains(verb), "{uri}: {text}");
    }
    assert_eq!(freezes().await, 0);
    done(&server, Who::Admin, "POST", "/v1/freeze?scope=edge", "").await;
    done(&server, Who::Admin, "POST", "/v1/freeze?all=true", "").await;
    let urgent = "/v1/apply?override_freeze=true";
    for uri in [
        "/v1/thaw?scope=edge",
        "/v1/thaw?scope=edge&discard=true",
        "/v1/thaw?scope=edge&dry_run=true",
        "/v1/thaw?all=true",
    ] {
        denied(&server, ann, "POST", uri, "").await;
    }
    let text = denied(&server, ann, "POST", urgent, &in_scope("edge", "2s")).await;
    assert!(text.contains("freeze.override everything in scope \"edge\""), "{text}");
    done(&server, ann, "POST", "/v1/apply", &in_scope("edge", "2s")).await;
    assert_eq!(freezes().await, 2);

    // The rights of one scope.
    done(&server, Who::Admin, "POST", "/v1/thaw?all=true", "").await;
    grant(json!([{"verbs": ["freeze", "freeze.override"], "scopes": ["edge"]}])).await;
    done(&server, ann, "POST", urgent, &in_scope("edge", "3s")).await;
    denied(&server, ann, "POST", urgent, &in_scope("core", "3s")).await;
    let assignment = "assignments:\n- {name: a, scopes: [edge]}\n";
    let text = denied(&server, ann, "POST", urgent, assignment).await;
    assert!(text.contains("freeze.all"), "{text}");
    done(&server, ann, "POST", "/v1/thaw?scope=edge", "").await;
    done(&server, ann, "POST", "/v1/freeze?scope=edge&for=1h", "").await;
    denied(&server, ann, "POST", "/v1/freeze?scope=core", "").await;
    denied(&server, ann, "POST", "/v1/freeze?all=true", "").await;
    done(&server, Who::Admin, "POST", "/v1/freeze?scope=core", "").await;
    denied(&server, ann, "POST", "/v1/thaw?scope=core", "").await;

    // The right to freeze all scopes.
    grant(json!([{"verbs": ["freeze.all"]}])).await;
    done(&server, ann, "POST", "/v1/freeze?all=true", "").await;
    done(&server, ann, "POST", "/v1/thaw?all=true", "").await;
    denied(&server, ann, "POST", "/v1/freeze?scope=new", "").await;
    denied(&server, ann, "POST", urgent, &in_scope("edge", "4s")).await;
    assert_eq!(freezes().await, 2);
    server.stop().await;
}

/// `thaw --discard` writes, so that it needs the rights of the write, too.
#[tokio::test(flavor = "multi_thread")]
async fn discarding_held_changes_needs_the_right_to_write_them() {
    let server = Server::start_enforced().await;
    let ann = token(&server, "ann").await;
    let ann = Who::Token(&ann);
    let grant = async |verbs: Value| {
        let allow = json!([{"verbs": verbs, "scopes": ["edge"]}]);
        rules(&server, json!([{"name": "ann", "identity": "token:ann", "allow": allow}])).await;
    };
    done(&server, Who::Admin, "POST", "/v1/apply", &in_scope("edge", "1s")).await;
    done(&server, Who::Admin, "POST", "/v1/freeze?scope=edge", "").await;
    done(&server, Who::Admin, "POST", "/v1/apply", &in_scope("edge", "2s")).await;
    grant(json!(["get", "freeze"])).await;
    let text = denied(&server, ann, "POST", "/v1/thaw?scope=edge&discard=true", "").await;
    assert!(text.contains("apply Cluster \"a\" in scope \"edge\""), "{text}");
    grant(json!(["get", "freeze", "apply"])).await;
    let discarded = done(&server, ann, "POST", "/v1/thaw?scope=edge&discard=true", "").await;
    assert_eq!(discarded["changed"], 1, "{discarded}");
    server.stop().await;
}

/// Returns an audit log with the details of all operations.
fn audit_of_requests(file: &Path) -> Audit {
    let policy = file.with_extension("toml");
    fs::write(&policy, "default = \"request\"\n").unwrap();
    let sinks = vec![SinkSettings::File(file.to_owned())];
    Audit::open(&Settings { sinks, policy_file: Some(policy), ..Settings::default() }).unwrap()
}

/// Returns the records of ways back and of freezes.
fn records_of_ways(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let verbs = ["rollback", "undo", "freeze", "thaw"];
    records.filter(|record| verbs.contains(&record["verb"].as_str().unwrap())).collect()
}

/// A rollback, an undo, a freeze and a thaw have a record with what they concern, allowed or not.
#[tokio::test(flavor = "multi_thread")]
async fn ways_back_and_freezes_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    let audit = audit_of_requests(&file);
    let server = Server::start_enforced_audited(AuthSettings::default(), audit.clone()).await;
    let ann = token(&server, "ann").await;
    let allow = json!([{"verbs": ["get"], "scopes": ["**"]}]);
    rules(&server, json!([{"name": "ann", "identity": "token:ann", "allow": allow}])).await;
    let apply = async |timeout: &str| {
        let uri = "/v1/apply?reason=why";
        let written = done(&server, Who::Admin, "POST", uri, &in_scope("edge", timeout)).await;
        written["revision"].as_u64().unwrap()
    };
    let (first, second) = (apply("1s").await, apply("2s").await);
    let operations = [
        format!("/v1/rollback?scope=edge&type=cds&name=a&to={first}"),
        format!("/v1/rollback?all=true&to={second}"),
        format!("/v1/undo?revision={second}"),
        "/v1/freeze?scope=edge&for=1h".to_owned(),
        "/v1/thaw?scope=edge".to_owned(),
        "/v1/freeze?all=true".to_owned(),
        "/v1/thaw?all=true&discard=true".to_owned(),
    ];
    let mut revisions = Vec::new();
    for uri in &operations {
        let (status, _) = send(&server, Who::Token(&ann), "POST", uri, "").await;
        assert_eq!(status, 403, "{uri}");
        let reason = format!("{uri}&reason=incident&author=bob");
        let written = done(&server, Who::Admin, "POST", &reason, "").await;
        revisions.push(written["revision"].clone());
    }
    audit.close(DEADLINE).await;
    let records = records_of_ways(&file);
    let shown: Vec<_> = records
        .iter()
        .map(|one| {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            (text("verb"), text("decision"), text("principal"), text("scope"))
        })
        .collect();
    // The record of a write that was allowed has the scopes of its resources.
    let expected: Vec<_> = [
        ("rollback", "edge", "edge"),
        ("rollback", "", "edge"),
        ("undo", "", "edge"),
        ("freeze", "edge", "edge"),
        ("thaw", "edge", "edge"),
        ("freeze", "", ""),
        ("thaw", "", ""),
    ]
    .into_iter()
    .flat_map(|(verb, asked, written)| {
        [("refused", "token:ann", asked), ("allowed", "unix:0", written)].map(
            |(decision, who, scope)| {
                (verb.to_owned(), decision.to_owned(), who.to_owned(), scope.to_owned())
            },
        )
    })
    .collect();
    assert_eq!(shown, expected, "{records:#?}");
    for (record, revision) in records.iter().skip(1).step_by(2).zip(&revisions) {
        assert_eq!(&record["details"]["revision"], revision, "{record}");
        assert_eq!(record["details"]["reason"], "incident", "{record}");
    }
    let detail = |at: usize, name: &str| records[2 * at + 1]["details"][name].clone();
    assert_eq!((detail(0, "to"), detail(1, "to")), (json!(first), json!(second)));
    assert_eq!((detail(1, "all"), detail(2, "undone_revision")), (json!(true), json!(second)));
    assert_eq!((detail(3, "for_ms"), detail(5, "all")), (json!(3_600_000), json!(true)));
    assert_eq!((detail(4, "discard"), detail(6, "discard")), (json!(false), json!(true)));
    assert_eq!((&records[1]["type"], &records[1]["name"]), (&json!("cds"), &json!("a")));
    server.stop().await;
}
