//! Commands with structured names (`xdstp:`).

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::support::Server;

/// XDSTP-03: commands find a resource in any spelling. The name in the body is canonical, and the output of `get` can
/// be applied.
#[test]
fn commands_find_structured_names_in_any_spelling() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    let written = "xdstp://m/envoy.config.cluster.v3.Cluster/web:80?b=2&a=1";
    let canonical = "xdstp://m/envoy.config.cluster.v3.Cluster/web%3A80?a=1&b=2";
    let other = "xdstp://%6d/envoy.config.cluster.v3.Cluster/web%3a80?b=2&a=1#entry=x";
    let cluster =
        json!({"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": canonical});
    let manifest = json!({"resources": [{"resource": cluster, "name": written}]}).to_string();
    assert_eq!(server.json(&["apply", "-f", "-"], &manifest)["changed"], 1);

    for name in [written, canonical, other] {
        let found = server.json(&["get", "cds", name], "");
        assert_eq!(found["resources"][0]["name"], canonical, "{found}");
        let yaml = server.run(&["get", "cds", name]);
        assert!(yaml.out.contains(canonical), "{}", yaml.out);
        assert_eq!(server.json(&["apply", "-f", "-"], &yaml.out)["unchanged"], 1);
        assert_eq!(server.json(&["describe", "cds", name], "")["name"], canonical);
        let explained = server.run(&["explain", "n1", "cds", name]);
        assert!(explained.code == 0 && explained.out.contains(canonical), "{}", explained.out);
    }
    let listed = server.json(&["delete", "cds", other], "");
    assert_eq!(listed["removed"], 1, "{listed}");
    assert_eq!(server.run(&["get", "cds", canonical]).code, 1);
}

/// Returns the content of all blocks of a page in one of these languages, with the language, in order.
pub(crate) fn blocks<'p>(page: &'p str, languages: &[&str]) -> Vec<(&'p str, &'p str)> {
    let opened = page.split("\n```").skip(1).step_by(2);
    let blocks = opened.filter_map(|block| block.split_once('\n'));
    blocks.filter(|(language, _)| languages.contains(language)).collect()
}

/// The examples of `docs/xdstp.md` work as they are written: the configuration, the manifests, the commands
/// and the bootstrap.
#[test]
fn examples_of_the_page_work() {
    let page = include_str!("../../../../docs/xdstp.md");
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("chancery.toml");
    let [(_, toml)] = blocks(page, &["toml"])[..] else { panic!("one configuration") };
    fs::write(&config, toml).unwrap();
    let environment = [("CHANCERY_CONFIG", config.to_str().unwrap())];
    let server = Server::start_with(&directory.path().join("data"), &environment);

    let mut files = ["web.yaml", "endpoints.yaml", "envoy.yaml", "members.yaml"].into_iter();
    let mut n_commands = 0;
    for (language, text) in blocks(page, &["yaml", "sh"]) {
        if language == "yaml" {
            fs::write(directory.path().join(files.next().unwrap()), text).unwrap();
            continue;
        }
        for line in text.lines() {
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
        }
    }
    assert_eq!((files.next(), n_commands), (None, 6));
    let left = server.json(&["get"], "");
    assert_eq!(left["resources"].as_array().unwrap().len(), 4, "{left}");
    let [(_, bootstrap)] = blocks(page, &["json"])[..] else { panic!("one bootstrap") };
    let bootstrap: Value = serde_json::from_str(bootstrap).unwrap();
    assert!(bootstrap["authorities"]["traffic.example"].is_object());
}
