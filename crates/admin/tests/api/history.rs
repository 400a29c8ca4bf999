//! Earlier revisions over HTTP: who may see and restore what, pages, and the checks of a rollback.

use serde_json::{Value, json};

use crate::{
    access::{Who, denied, done, rules, send, token},
    external::script,
    support::{Server, clusters},
};

fn in_scope(scope: &str, names: &[&str], timeout: &str) -> String {
    format!("scope: {scope}\n{}", clusters(names, timeout))
}

fn names(changes: &Value) -> Vec<String> {
    let name = |one: &Value| {
        format!("{}/{}", one["scope"].as_str().unwrap(), one["name"].as_str().unwrap())
    };
    changes.as_array().unwrap().iter().map(name).collect()
}

/// The present rules decide who may see earlier content, and nobody learns names in scopes without rights.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_content_needs_the_present_rights() {
    let server = Server::start_enforced().await;
    let ann = token(&server, "ann").await;
    let ann = Who::Token(&ann);
    let grant = |scopes: &[&str]| {
        json!([{"name": "ann", "identity": "token:ann", "allow": [
            {"verbs": ["history"]}, {"verbs": ["get", "apply", "delete"], "scopes": scopes},
        ]}])
    };
    rules(&server, grant(&["a", "b"])).await;
    let apply = async |scope: &str, names: &[&str], timeout: &str| {
        let written =
            done(&server, Who::Admin, "POST", "/v1/apply", &in_scope(scope, names, timeout)).await;
        written["revision"].as_u64().unwrap()
    };
    let first = apply("a", &["mine"], "1s").await;
    let both =
        format!("{}---\n{}", in_scope("a", &["mine"], "2s"), in_scope("b", &["hidden"], "1s"));
    let second =
        done(&server, Who::Admin, "POST", "/v1/apply", &both).await["revision"].as_u64().unwrap();
    let third = apply("b", &["hidden"], "3s").await;
    rules(&server, grant(&["a"])).await;

    let listed = done(&server, ann, "GET", &format!("/v1/resources?revision={third}"), "").await;
    assert_eq!(names(&listed["resources"]), ["a/mine"], "{listed}");
    let shown = done(&server, ann, "GET", &format!("/v1/history/{second}"), "").await;
    assert_eq!(
        (names(&shown["changes"]), &shown["hidden"]),
        (vec!["a/mine".to_owned()], &json!(1)),
        "{shown}"
    );
    let differs = done(&server, ann, "GET", &format!("/v1/diff?from={first}"), "").await;
    assert_eq!(
        (names(&differs["changes"]), &differs["hidden"]),
        (vec!["a/mine".to_owned()], &json!(1))
    );
    // The conflict is in scope "b": the missing right is reported, and not the name.
    let uri = format!("/v1/undo?revision={second}");
    let refused = denied(&server, ann, "POST", &uri, "").await;
    assert!(
        !refused.contains("hidden") && refused.contains("part of which it may not read"),
        "{refused}"
    );
    let conflict = send(&server, Who::Admin, "POST", &uri, "").await;
    assert_eq!(conflict.0, 409, "{conflict:?}");
    assert!(conflict.1.to_string().contains("hidden"), "{conflict:?}");
    for unreadable in ["b", "nowhere"] {
        let uri = format!("/v1/rollback?scope={unreadable}&to={third}");
        let nothing = done(&server, ann, "POST", &uri, "").await;
        assert_eq!(nothing["changed"], 0, "{nothing}");
    }
    denied(&server, ann, "POST", &format!("/v1/rollback?scope=b&to={first}"), "").await;
    let back = done(&server, ann, "POST", &format!("/v1/rollback?scope=a&to={first}"), "").await;
    assert_eq!(back["changed"], 1, "{back}");
    let entry = &done(&server, ann, "GET", "/v1/history?limit=1", "").await["entries"][0];
    assert_eq!(entry["author"], "token:ann", "{entry}");
    server.stop().await;
}

/// A rollback names its revision, takes effect once under one request ID, and is checked as it would be today.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_is_checked_and_takes_effect_once() {
    let reject = "if grep -q '\"9s\"'; then echo 'no nine' >&2; exit 1; fi";
    let server = Server::start_judged(script(reject)).await;
    let apply = async |timeout: &str, mode: &str| {
        let uri = format!("/v1/apply?validation={mode}");
        server.done("POST", &uri, &clusters(&["web"], timeout)).await
    };
    apply("9s", "off").await;
    apply("1s", "enforce").await;
    for (uri, text) in [
        ("/v1/rollback?scope=default", "name the revision to restore (to)"),
        ("/v1/rollback?to=1", "name the scope to roll back, or all scopes (--all)"),
        ("/v1/rollback?to=1&all=true&scope=default", "name either a scope or all scopes (--all)"),
        ("/v1/rollback?to=1&scope=default&name=web", "a name needs a type"),
        ("/v1/rollback?to=1&all=true&type=cds", "a type needs a scope"),
        (
            "/v1/rollback?to=1&scope=default&type=",
            "the parameter type is empty; give it a value or omit it",
        ),
        ("/v1/undo", "the required parameter `revision` is missing"),
        (
            "/v1/undo?revision=0",
            "cannot undo revision 0: it does not exist, because revisions begin at 1",
        ),
    ] {
        let (status, _, message) = server.refused("POST", uri, "").await;
        assert_eq!((status, message.as_str()), (400, text), "{uri}");
    }
    let refused = server.refused("POST", "/v1/rollback?scope=default&to=1", "").await;
    assert!(refused.0 == 400 && refused.2.contains("no nine"), "{refused:?}");
    let refused = server.refused("GET", "/v1/diff", "").await;
    assert_eq!(refused.0, 400, "{refused:?}");

    let id = "0123456789abcdef0123456789abcdef";
    let uri = format!("/v1/rollback?scope=default&to=0&confirm=all&request_id={id}");
    let first = server.done("POST", &uri, "").await;
    assert_eq!((&first["revision"], &first["removed"]), (&json!(3), &json!(1)), "{first}");
    apply("2s", "enforce").await;
    let again = server.done("POST", &uri, "").await;
    assert_eq!((&again["revision"], &again["repeated"]), (&json!(3), &json!(true)), "{again}");
    let listed = server.done("GET", "/v1/resources?type=cds", "").await;
    assert_eq!(names(&listed["resources"]), ["default/web"]);
    // A second rollback to an empty scope changes nothing.
    for removed in [1, 0] {
        let done = server.done("POST", "/v1/rollback?scope=default&to=0&confirm=all", "").await;
        assert_eq!(done["removed"], removed, "{done}");
    }
    let named = "/v1/rollback?scope=default&type=cds&name=web&to=0";
    assert_eq!(server.done("POST", named, "").await["removed"], 0);
    server.stop().await;
}

/// All changes are listed, whatever the size of a page.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_changes_have_all_of_them() {
    let server = Server::start().await;
    let all: Vec<String> = (0..2300).map(|n| format!("c{n:04}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    server.done("POST", "/v1/apply", &clusters(&all[..1500], "1s")).await;
    server.done("POST", "/v1/apply", &clusters(&all[1500..], "1s")).await;
    let assignment = "assignments:\n- name: edge\n  match: {}\n  scopes: [default]\n";
    server.done("POST", "/v1/apply", assignment).await;
    let foreign = server.done("GET", "/v1/history/1?limit=1", "").await["next"].clone();
    let refused = server
        .refused("GET", &format!("/v1/history/2?cursor={}", foreign.as_str().unwrap()), "")
        .await;
    assert!(refused.0 == 400 && refused.2.contains("another request"), "{refused:?}");
    let expected: Vec<String> = all.iter().map(|name| format!("default/{name}")).collect();
    for limit in [700, 5000] {
        for uri in ["/v1/diff?from=0", "/v1/history/1?", "/v1/history/2?"] {
            let (mut found, mut cursor) = (Vec::new(), String::new());
            loop {
                let paged = format!("{uri}&limit={limit}&cursor={cursor}");
                let page = server.done("GET", &paged, "").await;
                if uri.starts_with("/v1/diff") {
                    let beside = page["assignment_changes"].as_array().unwrap().len();
                    assert_eq!(beside, usize::from(cursor.is_empty()), "{uri} {limit}");
                    assert_eq!(page["total"], 2301, "each page has the number of all changes");
                }
                found.extend(names(&page["changes"]));
                cursor = page["next"].as_str().unwrap().to_owned();
                if cursor.is_empty() {
                    break;
                }
            }
            let expected = match uri {
                "/v1/history/1?" => &expected[..1500],
                "/v1/history/2?" => &expected[1500..],
                _ => &expected[..],
            };
            assert_eq!(found, expected, "{uri} {limit}");
        }
    }
    server.stop().await;
}

/// The list showed only numbers. Names that the caller may not read are omitted, and a freeze marks what it holds.
#[tokio::test(flavor = "multi_thread")]
async fn list_has_the_first_names_of_each_revision() {
    let server = Server::start_enforced().await;
    let ann = token(&server, "ann").await;
    let allow = json!([{"verbs": ["history"]}, {"verbs": ["get"], "scopes": ["a"]}]);
    rules(&server, json!([{"name": "ann", "identity": "token:ann", "allow": allow}])).await;
    let apply = async |input: &str| {
        let written = done(&server, Who::Admin, "POST", "/v1/apply", input).await;
        written["revision"].as_u64().unwrap()
    };
    let both = format!("{}---\n{}", in_scope("a", &["x", "y"], "1s"), in_scope("b", &["z"], "1s"));
    let first = apply(&both).await;
    done(&server, Who::Admin, "POST", "/v1/freeze?scope=a", "").await;
    let held = apply(&in_scope("a", &["y"], "2s")).await;
    let listed = async |who, uri: &str, revision: u64| {
        let list = done(&server, who, "GET", uri, "").await;
        let entries = list["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["revision"] == revision).unwrap();
        let named = entry["names"].as_array().unwrap().iter();
        let named: Vec<String> = named
            .map(|one| {
                format!("{} {}", one["scope"].as_str().unwrap(), one["name"].as_str().unwrap())
            })
            .collect();
        (named.join(", "), entry["held"] == true)
    };
    let all = "/v1/history?names=5";
    assert_eq!(listed(Who::Admin, all, first).await, ("a x, a y, b z".to_owned(), false));
    assert_eq!(listed(Who::Token(&ann), all, first).await, ("a x, a y".to_owned(), false));
    assert_eq!(listed(Who::Admin, "/v1/history?names=1", held).await, ("a y".to_owned(), true));
    let of_scope = "/v1/history?names=5&scope=b";
    assert_eq!(listed(Who::Admin, of_scope, first).await, ("b z".to_owned(), false));
    assert_eq!(listed(Who::Admin, "/v1/history", held).await, (String::new(), false));
    done(&server, Who::Admin, "POST", "/v1/thaw?scope=a", "").await;
    assert_eq!(listed(Who::Admin, all, held).await, ("a y".to_owned(), false));
    server.stop().await;
}
