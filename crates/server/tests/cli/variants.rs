//! Commands with variants of resources (dynamic parameters).

use std::{path::Path, process::Command};

use serde_json::{Value, json};

use crate::{structured_names::blocks, support::Server};

fn variant(constraints: Value, domain: &str) -> Value {
    let host = json!({"name": "h", "domains": [domain]});
    let body = json!({
        "@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        "name": "web",
        "virtual_hosts": [host],
    });
    json!({"dynamic_parameter_constraints": constraints, "resource": body})
}

fn manifest(variants: &[Value]) -> String {
    json!({"resources": variants}).to_string()
}

fn env(value: &str) -> Value {
    json!({"constraint": {"key": "env", "value": value}})
}

/// Long constraints would make the table of all resources unreadable.
#[test]
fn table_shortens_long_constraints_and_wide_table_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let any: Vec<Value> = (10..40).map(|n| env(&format!("region-{n}"))).collect();
    let long = variant(json!({"or_constraints": {"constraints": any}}), "long");
    let written = server.run_with_input(&["apply", "-f", "-"], &manifest(&[long]));
    let (short, wide) = (server.run(&["get", "rds"]), server.run(&["get", "rds", "-o", "wide"]));
    for text in [&written.out, &short.out] {
        assert!(text.contains("[env=\"region-10\" or") && text.contains("…"), "{text}");
        assert!(!text.contains("region-20") && text.contains("env=\"region-39\"]"), "{text}");
    }
    assert!(wide.out.contains("region-20") && !wide.out.contains("…"), "{}", wide.out);
    // Other commands have no such format.
    assert_eq!(server.run(&["nodes", "-o", "wide"]).code, 2);
}

/// DYN-02, DYN-06: an operator publishes variants, sees, explains and deletes each of them. A write
/// with overlapping variants is refused. The output of `get` can be applied.
#[test]
fn each_variant_is_published_shown_explained_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let absent = json!({"not_constraints": {"constraint": {"key": "env", "exists": {}}}});
    let all =
        [variant(env("prod"), "prod"), variant(env("test"), "test"), variant(absent, "default")];
    assert_eq!(server.json(&["apply", "-f", "-"], &manifest(&all))["changed"], 3);

    let either = json!({"or_constraints": {"constraints": [env("qa"), env("test")]}});
    let overlap = variant(either, "either");
    let refused = server.run_with_input(&["apply", "-f", "-"], &manifest(&[overlap]));
    assert_ne!(refused.code, 0);
    assert!(
        refused.err.contains("[env=\"test\"]") && refused.err.contains("both match env=\"test\""),
        "{}",
        refused.err
    );

    let found = server.json(&["get", "rds", "web"], "");
    assert_eq!(found["resources"].as_array().unwrap().len(), 3, "{found}");
    let found = server.json(&["get", "rds", "web", "--parameter", "env=test"], "");
    assert_eq!(found["resources"].as_array().unwrap().len(), 1, "{found}");
    let test = &found["resources"][0];
    assert_eq!((&test["name"], &test["variant"]), (&json!("web"), &json!("env=\"test\"")));
    assert_eq!(test["dynamic_parameter_constraints"], env("test"));
    let yaml = server.run(&["get", "rds", "web"]);
    assert_eq!(server.json(&["apply", "-f", "-"], &yaml.out)["unchanged"], 3, "{}", yaml.out);
    let twice = ["get", "rds", "web", "--parameter", "env=prod", "--parameter", "env=test"];
    let twice = server.run(&twice);
    assert_eq!(twice.code, 2, "{}", twice.err);
    assert!(twice.err.contains("\"env\" has two values, \"prod\" and \"test\""), "{}", twice.err);
    let described = server.run(&["describe", "rds", "web", "--parameter", "env=prod"]);
    assert!(described.out.contains("variant   env=\"prod\""), "{}", described.out);
    let explained = server.run(&["explain", "n1", "rds", "web", "--parameter", "env=prod"]);
    assert!(explained.out.contains("the variant [env=\"prod\"]"), "{}", explained.out);
    let explained = server.run(&["explain", "n1", "rds", "web", "--parameter", "env=qa"]);
    assert!(explained.out.contains("none matches env=\"qa\""), "{}", explained.out);

    // A restarted server finds the variants of a name, and checks new ones against them.
    drop(server);
    let server = Server::start(&directory.path().join("data"));
    let found = server.json(&["get", "rds", "web"], "");
    assert_eq!(found["resources"].as_array().unwrap().len(), 3, "{found}");
    let plain = variant(json!({}), "plain");
    let refused = server.run_with_input(&["apply", "-f", "-"], &manifest(&[plain]));
    assert!(refused.err.contains("the resource without constraints"), "{}", refused.err);

    let refused = server.run(&["delete", "rds", "web", "--parameter", "env=qa"]);
    assert!(refused.code != 0 && refused.err.contains("has 3 variants"), "{}", refused.err);
    let deleted = server.json(&["delete", "rds", "web", "--parameter", "env=test"], "");
    assert_eq!(deleted["changes"][0]["variant"], "env=\"test\"", "{deleted}");
    let deleted = server.json(&["delete", "rds", "web"], "");
    assert_eq!(deleted["changes"][0]["variant"], "not env exists", "{deleted}");
    let table = server.run(&["get", "rds"]);
    assert!(table.out.contains("web [env=\"prod\"]"), "{}", table.out);
}

/// The manifests and commands of `docs/dynamic-parameters.md` work as the page says.
#[test]
fn examples_of_the_page_work() {
    let page = include_str!("../../../../docs/dynamic-parameters.md");
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let manifests = blocks(page, &["yaml"]);
    let [(_, routes), (_, overlap)] = manifests[..] else { panic!("{manifests:?}") };
    std::fs::write(directory.path().join("routes.yaml"), routes).unwrap();
    let mut n_commands = 0;
    for line in blocks(page, &["sh"]).iter().flat_map(|(_, text)| text.lines()) {
        let done = Command::new("/bin/sh")
            .args(["-c", line])
            .current_dir(directory.path())
            .env_clear()
            .env("PATH", Path::new(env!("CARGO_BIN_EXE_chancery")).parent().unwrap())
            .env("CHANCERY_SERVER", &server.admin)
            .output();
        let done = done.unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success(), "{line}: {text}");
        n_commands += 1;
        // The next write is refused before the last command deletes the other variant.
        if line.starts_with("chancery apply") {
            let refused = server.run_with_input(&["apply", "-f", "-"], overlap);
            assert!(refused.code != 0 && page.contains(refused.err.trim()), "{}", refused.err);
        }
    }
    assert_eq!(n_commands, 6);
    assert_eq!(server.json(&["get"], "")["resources"].as_array().unwrap().len(), 2);
}
