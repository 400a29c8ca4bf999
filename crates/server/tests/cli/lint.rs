//! The command `lint`, which needs no server.

use std::fs;

use serde_json::Value;

use crate::support::{Done, chancery, run};

const MESH: &str = "resources:
- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: web
  type: STRICT_DNS
  connect_timeout: 0s
";

fn lint(args: &[&str], input: &str) -> Done {
    let mut command = chancery();
    command.args([&["lint", "-f", "-"], args].concat()).env("CHANCERY_SERVER", "127.0.0.1:1");
    run(command, input)
}

#[test]
fn findings_depend_on_the_profile_and_set_the_exit_code() {
    let good = lint(
        &["--profile", "grpc-go"],
        &MESH
            .replace("STRICT_DNS", "EDS")
            .replace("connect_timeout: 0s", "eds_cluster_config: {eds_config: {ads: {}}}"),
    );
    assert_eq!((good.code, good.err.as_str()), (0, ""), "{good:?}");
    assert_eq!(good.out, "0 errors, 0 warnings in 1 file; checked for grpc-go\n");

    let for_envoy = lint(&[], MESH);
    assert_eq!(for_envoy.code, 5, "{for_envoy:?}");
    assert_eq!(
        for_envoy.out,
        "error: -:5:3: document 1: resources[0] Cluster \"web\": connect_timeout: is 0s, but must be greater than 0s \
         [duration.gt]\n"
    );
    assert_eq!(for_envoy.err, "error: 1 error, 0 warnings in 1 file; checked for envoy\n");

    let for_go = lint(&["--profile", "grpc-go@1.70"], MESH);
    assert_eq!(for_go.code, 5, "{for_go:?}");
    assert!(for_go.out.starts_with("error: -:4:3: "), "{for_go:?}");
    assert!(
        for_go.out.contains("a gRPC client (Go) would reject this cluster, because"),
        "{for_go:?}"
    );
    assert!(!for_go.out.contains("connect_timeout"), "{for_go:?}");
    assert_eq!(lint(&["--profile", "grpc"], MESH).code, 2);
}

/// Envoy takes the cluster, which a gRPC client of the same scope would not ask for.
#[test]
fn warnings_fail_only_with_fail_on_warning() {
    let mixed = MESH.replace("  connect_timeout: 0s\n", "");
    let args = ["--profile", "envoy,grpc-go"];
    let warned = lint(&args, &mixed);
    assert_eq!(warned.code, 0, "{warned:?}");
    assert!(warned.out.starts_with("warning: -:4:3: "), "{warned:?}");
    let failed = lint(&[&args[..], &["--fail-on", "warning"]].concat(), &mixed);
    assert_eq!(failed.code, 5, "{failed:?}");
}

#[test]
fn unreadable_input_has_another_exit_code_than_findings() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("bad.yaml"), MESH).unwrap();
    let mut command = chancery();
    command.args(["lint", "-f", &path("bad.yaml"), "-f", &path("none.yaml")]);
    let done = run(command, "");
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.out.contains("duration.gt"), "the other file is checked too: {done:?}");
    assert!(done.err.contains("none.yaml: No such file"), "{done:?}");
    let mut command = chancery();
    command.args(["lint", "-f", &path("none.yaml")]);
    assert_eq!(run(command, "").out, "", "no count, because nothing was read");
    assert_eq!(lint(&[], "resources: [").code, 5, "a syntax error is a finding");
}

#[test]
fn json_has_all_findings_and_text_the_first_20() {
    let many: String = (0..30)
        .map(|n| MESH.replace("resources:\n", "").replace("web", &format!("web-{n}")))
        .collect();
    let many = format!("resources:\n{many}");
    let text = lint(&[], &many).out;
    assert_eq!(text.lines().count(), 21, "{text}");
    assert!(text.ends_with("and 10 more; -o json prints all of them\n"), "{text}");
    let json: Value = serde_json::from_str(&lint(&["-o", "json"], &many).out).unwrap();
    let findings = json["findings"].as_array().unwrap();
    assert_eq!((findings.len(), &json["errors"]), (30, &30.into()));
    assert_eq!((&findings[1]["line"], &findings[1]["column"]), (&9.into(), &3.into()));
    assert_eq!(findings[1]["rule_id"], "duration.gt");
}

/// The properties that the schema of SARIF 2.1.0 requires are present.
#[test]
fn sarif_has_the_required_properties() {
    let done = lint(&["-o", "sarif"], MESH);
    assert_eq!(done.code, 5, "{done:?}");
    let log: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "chancery");
    let result = &run["results"][0];
    assert!(result["message"]["text"].as_str().unwrap().contains("connect_timeout"), "{result}");
    assert_eq!((&result["ruleId"], &result["level"]), (&"duration.gt".into(), &"error".into()));
    assert_eq!(run["tool"]["driver"]["rules"][0]["id"], result["ruleId"]);
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "stdin");
    assert_eq!(
        (&place["region"]["startLine"], &place["region"]["startColumn"]),
        (&5.into(), &3.into())
    );
}
