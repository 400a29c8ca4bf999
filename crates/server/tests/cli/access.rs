//! Access rules with the real binary: an administrator on the UNIX socket, and everybody else.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::json;

use crate::support::{Server, clusters, http_get};

/// The first steps of docs/access.md.
#[test]
fn administrator_sets_up_rules_and_tokens() {
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("admin.sock").display().to_string();
    let environment =
        [("CHANCERY_ADMIN_SOCKET", socket.as_str()), ("CHANCERY_ACCESS_ADMINS", "unix:0")];
    let server = Server::start_with(&root.path().join("data"), &environment);
    let address = format!("unix:{socket}");
    let admin = |args: &[&str]| server.run(&[&["--server", &address], args].concat());
    let done = admin(&["whoami"]);
    assert_eq!(
        (done.code, done.out.as_str()),
        (0, "unix:0\nmay do everything (access.admins)\n"),
        "{done:?}"
    );

    // The port needs a credential; the probes do not.
    let done = server.run(&["get"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.err.contains("the request has no credential"), "{done:?}");
    assert_eq!(http_get(&server.admin, "/readyz").0, 200);
    let (status, page) = http_get(&server.admin, "/metrics");
    assert_eq!(status, 401, "{page}");

    let file = root.path().join("ci.token");
    let done = admin(&["token", "create", "ci", "--out", &file.display().to_string()]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap();
    assert!(token.starts_with("chy_ci_") && !done.out.contains(token.trim()), "{done:?}");
    // A token is never written over another file.
    let done = admin(&["token", "create", "ci", "--out", &file.display().to_string()]);
    assert!(done.code == 1 && done.err.contains("cannot create"), "{done:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), token);

    let rules = json!({"access": [{"name": "ci", "identity": "token:ci", "allow": [
        {"verbs": ["apply", "get"], "scopes": ["team/**"]},
    ]}]});
    let done =
        server.run_with_input(&["--server", &address, "apply", "-f", "-"], &rules.to_string());
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.out.ends_with("0 changed, 0 removed, 0 unchanged, 1 access rule or quota\n"),
        "{done:?}"
    );
    for (entry, expected) in [
        (
            json!({"verbs": ["get", "backup"], "scopes": ["team/**"]}),
            "allow[0].verbs: backup concerns the whole cluster, and get concerns scopes; put them into two entries",
        ),
        (
            json!({"verbs": ["backup"], "scopes": ["team/**"]}),
            "allow[0].scopes: backup concerns the whole cluster; remove the scopes",
        ),
        (
            json!({"verbs": ["backup"], "types": ["cluster"]}),
            "allow[0].verbs: backup concerns the whole cluster; remove types and names",
        ),
        (json!({"verbs": ["get"]}), "allow[0].scopes: is missing: get concerns scopes"),
    ] {
        let rule = json!({"access": [{"name": "x", "identity": "token:x", "allow": [entry]}]});
        let done =
            server.run_with_input(&["--server", &address, "apply", "-f", "-"], &rule.to_string());
        assert!(done.code == 1 && done.err.contains(expected), "{done:?}");
    }
    let listed = admin(&["access", "list", "-o", "yaml"]);
    let again = server.run_with_input(&["--server", &address, "apply", "-f", "-"], &listed.out);
    assert!(again.code == 0 && !again.out.contains("access rule"), "{again:?} {listed:?}");

    for (args, code) in [
        (&["can-i", "apply", "team/a", "--as", "token:ci"][..], 0),
        (&["can-i", "apply", "mesh", "--as", "token:ci"], 1),
        (&["can-i", "members", "--as", "token:ci"], 1),
        (&["can-i", "members"], 0),
    ] {
        let done = admin(args);
        assert_eq!(done.code, code, "{args:?} {done:?}");
        assert_eq!(done.out, if code == 0 { "yes\n" } else { "no\n" });
    }
    let done = admin(&["can-i", "aply", "mesh"]);
    assert!(done.code == 1 && done.err.contains("the verb \"aply\" is unknown"), "{done:?}");

    let done = admin(&["access", "revoke", "token:ci", "--reason", "lost"]);
    assert_eq!(done.code, 0, "{done:?}");
    let done = admin(&["can-i", "apply", "team/a", "--as", "token:ci"]);
    assert_eq!(done.code, 1, "{done:?}");
    let history = admin(&["history"]);
    assert!(history.out.contains("unix:0") && history.out.contains("lost"), "{history:?}");
    assert_eq!(admin(&["access", "delete", "revoked/token:ci"]).code, 0);
    assert_eq!(admin(&["token", "delete", "ci"]).code, 0);
    assert!(admin(&["token", "list"]).out.contains("no tokens"));
    server.terminate();
}

/// A restart keeps rules and tokens. Without administrators, rules have no effect, and say so.
#[test]
fn rules_survive_a_restart_and_need_an_administrator() {
    let root = tempfile::tempdir().unwrap();
    let (data, socket) = (root.path().join("data"), root.path().join("admin.sock"));
    let socket = socket.display().to_string();
    let address = format!("unix:{socket}");
    let environment =
        [("CHANCERY_ADMIN_SOCKET", socket.as_str()), ("CHANCERY_ACCESS_ADMINS", "unix:0")];
    let server = Server::start_with(&data, &environment);
    let admin =
        |server: &Server, args: &[&str]| server.run(&[&["--server", &address], args].concat());
    assert_eq!(admin(&server, &["token", "create", "ci"]).code, 0);
    assert_eq!(admin(&server, &["access", "revoke", "token:other"]).code, 0);
    server.terminate();
    let server = Server::start_with(&data, &environment);
    assert!(admin(&server, &["access", "list"]).out.contains("revoked/token:other"));
    assert!(admin(&server, &["token", "list"]).out.contains("ci"));
    server.terminate();
    let server = Server::start(&data);
    let done = server.run(&["whoami"]);
    assert!(done.out.contains("access rules do not apply"), "{done:?}");
    let done = server.run_with_input(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    assert_eq!(done.code, 0, "{done:?}");
    server.terminate();
}

#[test]
fn invalid_administrators_are_refused_at_the_start() {
    let root = tempfile::tempdir().unwrap();
    let config = root.path().join("chancery.toml");
    fs::write(&config, "[access]\nadmins = [\"anna\", \"anonymous\", \"unix:0\"]\n").unwrap();
    let mut command = crate::support::chancery();
    command.args(["config", "check", "--config"]).arg(&config);
    let done = crate::support::run(command, "");
    assert_eq!(done.code, 1, "{done:?}");
    for text in ["\"anna\" is unknown", "anonymous cannot be", "has no effect without admin.socket"]
    {
        assert!(done.err.contains(text), "{text}: {done:?}");
    }
}
