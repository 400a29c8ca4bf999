//! Rollback and undo of everything beside resources, and their races with other writes.

use std::path::Path;

use chancery_admin::ExternalValidator;
use serde_json::{Value, json};

use crate::{
    external::script,
    support::{Server, clusters, eventually},
};

/// An assignment, an access rule and a quota, each with a number.
fn items(assignment: u64, rule: u64, quota: u64) -> String {
    json!({
        "assignments": [
            {"name": "each", "priority": 1, "match": {"id": "*"}, "scopes": [format!("s{assignment}")]},
        ],
        "access": [
            {"name": "ci", "identity": "token:ci", "allow": [{"verbs": ["get"], "scopes": [format!("s{rule}")]}]},
        ],
        "quotas": [{"name": "all", "scopes": ["**"], "max_resources": 1000 + quota}],
    })
    .to_string()
}

/// Everything that a rollback restores.
#[derive(Debug, Clone, PartialEq)]
struct Content {
    resources: Vec<Value>,
    assignments: Value,
    access: Value,
    quotas: Value,
}

async fn content(server: &Server) -> Content {
    let list = async |uri: &str, key: &str| server.done("GET", uri, "").await[key].take();
    let without_version =
        |one: &Value| json!([one["scope"], one["name"], one["body"], one["labels"], one["ttl_ms"]]);
    let resources = list("/v1/resources", "resources").await;
    Content {
        resources: resources.as_array().unwrap().iter().map(without_version).collect(),
        assignments: list("/v1/assignments", "assignments").await,
        access: list("/v1/access", "rules").await,
        quotas: list("/v1/quotas", "quotas").await,
    }
}

async fn write(server: &Server, uri: &str, manifest: &str) -> u64 {
    let written = server.done("POST", uri, manifest).await;
    written["revision"].as_u64().unwrap()
}

async fn revision(server: &Server) -> u64 {
    server.done("GET", "/v1/cluster", "").await["revision"].as_u64().unwrap()
}

/// `rollback --all` restores assignments, access rules and quotas: changed, new and deleted ones. Tokens stay as they are.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_of_everything_restores_assignments_access_rules_and_quotas() {
    let server = Server::start().await;
    server.done("POST", "/v1/tokens?name=old", "").await;
    write(&server, "/v1/apply", &items(1, 1, 1)).await;
    let more = json!({
        "assignments": [{"name": "more", "priority": 2, "match": {"id": "x*"}, "scopes": ["s1"]}],
        "access": [{"name": "more", "identity": "token:more", "refuse": true}],
        "quotas": [{"name": "more", "scopes": ["s9"], "max_bytes": 10_000}],
    });
    write(&server, "/v1/apply", &more.to_string()).await;
    let first = write(&server, "/v1/apply?scope=s1", &clusters(&["a", "b"], "1s")).await;
    let at_first = content(&server).await;

    server.done("DELETE", "/v1/tokens?name=old", "").await;
    for uri in ["/v1/assignments?name=more", "/v1/access?name=more", "/v1/quotas?name=more"] {
        server.done("DELETE", uri, "").await;
    }
    write(&server, "/v1/apply?confirm=all", &items(2, 2, 2)).await;
    let new = items(3, 3, 3).replace("\"each\"", "\"new\"").replace("\"ci\"", "\"new\"");
    write(&server, "/v1/apply?confirm=all", &new.replace("\"all\"", "\"new\"")).await;
    write(&server, "/v1/apply?scope=s1", &clusters(&["b", "c"], "2s")).await;
    let second = write(&server, "/v1/apply?scope=s2", &clusters(&["d"], "2s")).await;
    let at_second = content(&server).await;
    assert_ne!(at_first, at_second);

    for (to, expected) in [(first, &at_first), (second, &at_second), (first, &at_first)] {
        let before = content(&server).await;
        let uri = format!("/v1/rollback?all=true&to={to}&confirm=all");
        let tried = server.done("POST", &format!("{uri}&dry_run=true"), "").await;
        let changed = |list: &str| {
            let list = tried[list].as_array().unwrap().iter();
            list.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(changed("assignment_changes"), ["each", "more", "new"], "{tried}");
        assert_eq!(tried["access_changes"].as_array().unwrap().len(), 6, "{tried}");
        assert_eq!(content(&server).await, before, "a dry run changes nothing");
        let back = server.done("POST", &uri, "").await;
        assert_eq!(back["access"], 6, "{back}");
        assert_eq!(content(&server).await, *expected, "{back}");
        let nothing = server.done("POST", &uri, "").await;
        assert_eq!(nothing["revision"], back["revision"], "{nothing}");
    }
    let tokens = server.done("GET", "/v1/tokens", "").await;
    assert_eq!(tokens["tokens"], json!([]), "a deleted token does not become valid again");
    // The rollback of a scope restores only its resources.
    write(&server, "/v1/apply?confirm=all", &items(7, 7, 7)).await;
    let changed = content(&server).await;
    let uri = format!("/v1/rollback?scope=s2&to={second}&confirm=all");
    server.done("POST", &uri, "").await;
    let after = content(&server).await;
    assert_eq!(
        (&after.assignments, &after.access, &after.quotas.as_array().map(Vec::len)),
        (&changed.assignments, &changed.access, &changed.quotas.as_array().map(Vec::len))
    );
    assert_ne!(after.resources, changed.resources);
    server.stop().await;
}

/// `undo` reverts a revision that changed, added or deleted an assignment, an access rule or a quota, and names a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn undo_reverts_assignments_access_rules_and_quotas_or_names_the_conflict() {
    let server = Server::start().await;
    write(&server, "/v1/apply", &items(0, 0, 0)).await;
    let undo = async |revision: u64| {
        server.done("POST", &format!("/v1/undo?revision={revision}&confirm=all"), "").await
    };
    for (n, what) in ["the assignment \"each\"", "the access rule \"ci\"", "the quota \"all\""]
        .into_iter()
        .enumerate()
    {
        // Changes one of the three.
        let change = async |number: u64| {
            let of = |at: usize| if at == n { number } else { 0 };
            write(&server, "/v1/apply?confirm=all", &items(of(0), of(1), of(2))).await
        };
        let before = content(&server).await;
        let changed = change(1).await;
        let resource = clusters(&[&format!("a{n}")], "1s");
        write(&server, "/v1/apply?scope=kept", &resource).await;
        let with_resource = content(&server).await;
        undo(changed).await;
        let undone = content(&server).await;
        assert_eq!(undone.resources, with_resource.resources, "{what}");
        assert_eq!((&undone.assignments, &undone.access), (&before.assignments, &before.access));
        let limits = |content: &Content| content.quotas[0]["max_resources"].clone();
        assert_eq!(limits(&undone), limits(&before), "{what}");

        let changed = change(2).await;
        let later = change(3).await;
        let newest = content(&server).await;
        let uri = format!("/v1/undo?revision={changed}&confirm=all");
        let refused = server.refused("POST", &uri, "").await;
        assert_eq!(refused.0, 409, "{refused:?}");
        let text = format!("cannot undo revision {changed}: later revisions changed {what}; undo");
        assert!(refused.2.starts_with(&text), "{refused:?}");
        assert_eq!((content(&server).await, revision(&server).await), (newest, later));
        undo(later).await;
        undo(changed).await;
        let last = content(&server).await;
        assert_eq!((&last.assignments, &last.access), (&before.assignments, &before.access));
        assert_eq!(limits(&last), limits(&before), "{what}");
    }
    // A deletion is undone, and so is the undo.
    let before = content(&server).await;
    for uri in ["/v1/assignments?name=each", "/v1/access?name=ci", "/v1/quotas?name=all"] {
        let deleted = server.done("DELETE", &format!("{uri}&confirm=all"), "").await;
        let without = content(&server).await;
        let restored = undo(deleted["revision"].as_u64().unwrap()).await;
        assert_eq!(content(&server).await, before, "{uri}");
        undo(restored["revision"].as_u64().unwrap()).await;
        assert_eq!(content(&server).await, without, "{uri}");
        undo(deleted["revision"].as_u64().unwrap() + 2).await;
        assert_eq!(content(&server).await, before, "{uri}");
    }
    server.stop().await;
}

/// A validator that waits while the file `hold` exists. It runs after a rollback has read the content, and before it commits.
fn holding(dir: &Path) -> ExternalValidator {
    let dir = dir.display();
    script(&format!(
        "[ -e {dir}/hold ] && touch {dir}/reached; while [ -e {dir}/hold ]; do sleep 0.01; done"
    ))
}

/// Sends a write that is held while another takes effect.
async fn with_write_between(
    server: &Server,
    dir: &Path,
    uri: &str,
    between: impl AsyncFnOnce(),
) -> (u16, Value) {
    std::fs::write(dir.join("hold"), "").unwrap();
    let meanwhile = async {
        eventually(async || dir.join("reached").exists().then_some(()), "the write is held").await;
        between().await;
        std::fs::remove_file(dir.join("reached")).unwrap();
        std::fs::remove_file(dir.join("hold")).unwrap();
    };
    let (answer, ()) = tokio::join!(server.call("POST", uri, ""), meanwhile);
    (answer.0.as_u16(), answer.1)
}

/// A rollback or an undo reads content, and another write then changes a resource that it restores. It changes nothing,
/// because it would discard that write.
#[tokio::test(flavor = "multi_thread")]
async fn write_between_read_and_commit_refuses_rollback_and_undo() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_judged(holding(dir.path())).await;
    let apply = async |scope: &str, timeout: &str| {
        let uri = format!("/v1/apply?scope={scope}&validation=off&confirm=all");
        write(&server, &uri, &clusters(&["a"], timeout)).await
    };
    let other = async |manifest: &str| {
        write(&server, "/v1/apply?validation=off&confirm=all", manifest).await
    };
    other(&items(1, 1, 1)).await;
    let first = apply("edge", "1s").await;
    // One revision changes everything.
    let both = format!("scope: edge\n{}---\n{}", clusters(&["a"], "2s"), items(2, 2, 2));
    let changed = other(&both).await;
    let all = format!("/v1/rollback?all=true&to={first}&confirm=all");
    let undo = format!("/v1/undo?revision={changed}&confirm=all");
    let scope = format!("/v1/rollback?scope=edge&to={first}&confirm=all");
    let of_type = format!("/v1/rollback?scope=edge&type=cds&to={first}&confirm=all");
    let of_name = format!("/v1/rollback?scope=edge&type=cds&name=a&to={first}&confirm=all");
    let check = async |uri: &str, what: &str, between: &dyn Fn() -> String, is_refused: bool| {
        let manifest = between();
        let before = content(&server).await;
        let mut expected = None;
        let (status, answer) = with_write_between(&server, dir.path(), uri, async || {
            other(&manifest).await;
            expected = Some(content(&server).await);
        })
        .await;
        if is_refused {
            assert_eq!(status, 409, "{uri}, {what}: {answer}");
            assert_eq!(Some(content(&server).await), expected, "{uri}, {what}");
        } else {
            assert_eq!(status, 200, "{uri}, {what}: {answer}");
        }
        // Everything is as before.
        let newest = revision(&server).await;
        let back = if is_refused { newest - 1 } else { changed };
        let uri = format!("/v1/rollback?all=true&to={back}&confirm=all&validation=off");
        server.done("POST", &uri, "").await;
        assert_eq!(content(&server).await, before, "{uri}, {what}");
    };
    let same_scope = || format!("scope: edge\n{}", clusters(&["z"], "1s"));
    let same_resource = || format!("scope: edge\n{}", clusters(&["a"], "9s"));
    for uri in [&scope, &of_type, &of_name, &all, &undo] {
        check(uri, "a resource", &same_resource, true).await;
        check(uri, "the scope", &same_scope, true).await;
    }
    for uri in [&all, &undo] {
        check(uri, "an assignment", &|| items(3, 2, 2), true).await;
        check(uri, "an access rule", &|| items(2, 3, 2), true).await;
        check(uri, "a quota", &|| items(2, 2, 3), true).await;
    }
    // Other writes do not matter.
    let elsewhere = || format!("scope: other\n{}", clusters(&["a"], "1s"));
    for uri in [&scope, &of_name, &undo] {
        check(uri, "another scope", &elsewhere, false).await;
    }
    check(&scope, "an assignment", &|| items(3, 2, 2), false).await;
    server.stop().await;
}

/// `if_revision` names the revision that the caller has seen: a rollback or an undo does not discard what it has not seen.
#[tokio::test(flavor = "multi_thread")]
async fn later_change_refuses_rollback_and_undo_with_an_expected_revision() {
    let server = Server::start().await;
    let apply = async |scope: &str, timeout: &str| {
        let uri = format!("/v1/apply?scope={scope}&confirm=all");
        write(&server, &uri, &clusters(&["a"], timeout)).await
    };
    let other = async |manifest: &str| write(&server, "/v1/apply?confirm=all", manifest).await;
    other(&items(1, 1, 1)).await;
    let first = apply("edge", "1s").await;
    let both = format!("scope: edge\n{}---\n{}", clusters(&["a"], "2s"), items(2, 2, 2));
    let changed = other(&both).await;
    let all = format!("/v1/rollback?all=true&to={first}");
    let undo = format!("/v1/undo?revision={changed}");
    let scope = format!("/v1/rollback?scope=edge&to={first}");
    let unchanged = format!("/v1/rollback?scope=edge&to={changed}");
    let changes = [
        (
            "the scope",
            format!("scope: edge\n{}", clusters(&["z"], "1s")),
            &[&all, &undo, &scope][..],
        ),
        ("an assignment", items(3, 2, 2), &[&all][..]),
        ("an access rule", items(2, 3, 2), &[&all]),
        ("a quota", items(2, 2, 3), &[&all]),
    ];
    for (what, manifest, uris) in changes {
        let seen = revision(&server).await;
        let later = other(&manifest).await;
        let newest = content(&server).await;
        for uri in uris {
            let uri = format!("{uri}&confirm=all&if_revision={seen}");
            let refused = server.refused("POST", &uri, "").await;
            assert_eq!(refused.0, 409, "{uri}, {what}: {refused:?}");
            assert_eq!((content(&server).await, revision(&server).await), (newest.clone(), later));
            let tried = server.refused("POST", &format!("{uri}&dry_run=true"), "").await;
            assert_eq!(tried.0, 409, "{uri}, {what}: {tried:?}");
            let uri = uri.replace(&format!("if_revision={seen}"), &format!("if_revision={later}"));
            server.done("POST", &format!("{uri}&dry_run=true"), "").await;
        }
        let back = format!("/v1/rollback?all=true&to={seen}&confirm=all");
        server.done("POST", &back, "").await;
    }
    // The scope changed and changed back, so that nothing is left to restore. The caller has not seen that.
    let uri = format!("{unchanged}&if_revision={changed}");
    let refused = server.refused("POST", &uri, "").await;
    assert_eq!(refused.0, 409, "{refused:?}");
    server.stop().await;
}

fn endpoints(n: usize) -> String {
    let one = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 80}}}}";
    let all = vec![one; n].join(", ");
    format!(
        "resources: [{{'@type': type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: web, \
         endpoints: [{{lb_endpoints: [{all}]}}]}}]"
    )
}

/// A rollback, an undo, and the rollback of one resource are guarded like the writes that they are.
#[tokio::test(flavor = "multi_thread")]
async fn guard_rejects_rollback_and_undo_until_confirmed() {
    let server = Server::start().await;
    let empty = write(&server, "/v1/apply", &endpoints(0)).await;
    let full = write(&server, "/v1/apply", &endpoints(3)).await;
    let named = format!("/v1/rollback?scope=default&type=eds&name=web&to={empty}");
    for uri in [
        format!("/v1/rollback?scope=default&to={empty}"),
        format!("/v1/rollback?all=true&to={empty}"),
        named,
        format!("/v1/undo?revision={full}"),
    ] {
        let before = (content(&server).await, revision(&server).await);
        let tried = server.done("POST", &format!("{uri}&dry_run=true"), "").await;
        let guard = &tried["guards"][0];
        assert_eq!(
            (&guard["guard"], &guard["confirmed"]),
            (&json!("empty-endpoints"), &json!(false)),
            "{uri}: {tried}"
        );
        for other in ["", "&confirm=mass-deletion"] {
            let refused = server.refused("POST", &format!("{uri}{other}"), "").await;
            assert_eq!(refused.0, 409, "{uri}: {refused:?}");
            let text = "guard `empty-endpoints` rejects the write";
            assert!(refused.2.starts_with(text), "{uri}: {refused:?}");
        }
        assert_eq!((content(&server).await, revision(&server).await), before, "{uri}");
        server.done("POST", &format!("{uri}&confirm=empty-endpoints"), "").await;
        let undo = format!("/v1/undo?revision={}", before.1 + 1);
        server.done("POST", &undo, "").await;
        assert_eq!(content(&server).await, before.0, "{uri}");
        // The next `undo` is that of the revision that has filled the list.
        let refilled = revision(&server).await;
        assert_eq!(refilled, before.1 + 2);
    }
    server.stop().await;
}
