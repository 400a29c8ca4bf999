//! Snapshots of what users read: the help of every command, the printed configuration, and errors.
//!
//! `cargo insta review` accepts changes, or `INSTA_UPDATE=always` and a look at the difference. A
//! changed text fails the test until the snapshot has it.

use std::fs;

use crate::support::{Done, Server, chancery, clusters, run};

fn assert_screen(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// Returns the help of a command, and the names of its subcommands.
fn help(path: &[&str]) -> (String, Vec<String>) {
    let mut command = chancery();
    command.args(path).arg("--help");
    let done = run(command, "");
    assert_eq!((done.code, done.err.as_str()), (0, ""), "{path:?}");
    let listed = done.out.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    let lines = listed.lines().take_while(|line| !line.is_empty());
    // The description of a command may continue on lines with more space at the start.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned);
    (done.out.clone(), names.collect())
}

#[test]
fn help_of_every_command_is_as_reviewed() {
    let mut open: Vec<Vec<String>> = vec![Vec::new()];
    let mut n = 0;
    while let Some(path) = open.pop() {
        let words: Vec<&str> = path.iter().map(String::as_str).collect();
        let (text, names) = help(&words);
        assert_screen(&["help"].iter().chain(&words).copied().collect::<Vec<_>>().join("-"), &text);
        open.extend(names.into_iter().map(|name| [path.as_slice(), &[name]].concat()));
        n += 1;
    }
    assert!(n >= 25, "only {n} commands were found");
}

#[test]
fn printed_configuration_is_as_reviewed() {
    let mut command = chancery();
    command.args(["config", "print"]);
    assert_screen("config-print", &run(command, "").out);
}

/// Returns a command with its exit code and its messages, without names that vary.
fn screen(args: &[&str], done: &Done, names: &[(&str, &str)]) -> String {
    let args: Vec<String> = args.iter().map(|arg| format!(" {arg}")).collect();
    let mut text = format!("$ chancery{}\n{}", args.concat(), done.err);
    for (name, shown) in names {
        text = text.replace(name, shown);
    }
    format!("{text}exit code {}\n", done.code)
}

#[test]
fn errors_without_a_server_are_as_reviewed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let path = |name: &str| format!("{root}/{name}");
    fs::write(path("bad.toml"), "[xds]\nadress = 'x'\n[shutdown]\ntimeout = '0s'\n").unwrap();
    fs::write(path("web.yaml"), "scop: a\nresources: [{}]\n").unwrap();
    let (config, web, none) = (path("bad.toml"), path("web.yaml"), path("none.yaml"));
    for (name, args) in [
        ("error-unknown-command", ["aply"].as_slice()),
        ("error-missing-flag", &["apply"]),
        ("error-wrong-value", &["apply", "-f", "x", "--wait=soon"]),
        ("error-no-server", &["get"]),
        ("error-wrong-address", &["get", "--server", "nowhere"]),
        ("error-files", &["apply", "-f", &web, "-f", &none]),
        ("error-configuration", &["config", "check", "--config", &config]),
        ("error-listen-address", &["serve", "--xds", "0.0.0.0:18001"]),
    ] {
        let mut command = chancery();
        command.args(args).env("CHANCERY_SERVER", "127.0.0.1:1");
        let done = run(command, "");
        assert_screen(name, &screen(args, &done, &[(root, "DIR")]));
    }
}

#[test]
fn errors_of_a_server_are_as_reviewed() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data"));
    server.json(&["apply", "-f", "-"], &clusters(&["a"], "1s"));
    let misspelled = clusters(&["web"], "1s").replace("connect_timeout", "conect_timeout");
    let bootstrap = "node: {id: a}\nadmin: {access_log_path: /dev/null}\nstats_sinks: [{name: a}, {name: b}]\n\
                     static_resources: {listeners: []}\ndynamic_resources: {ads_config: {}}\n";
    let absent = "resources: [{expect: absent, resource: \
                  {'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: a}}]";
    for (name, args, input) in [
        ("error-manifest", ["apply", "-f", "-"].as_slice(), misspelled.as_str()),
        ("error-expectation", &["apply", "-f", "-"], absent),
        ("error-revision", &["apply", "-f", "-", "--if-revision", "0"], &clusters(&["a"], "2s")),
        ("error-wait", &["apply", "-f", "-", "--wait=1s"], &clusters(&["b"], "1s")),
        ("error-not-found", &["get", "cluster", "none"], ""),
        ("error-delete", &["delete", "cluster", "none", "nothing"], ""),
        ("error-unknown-type", &["get", "clutser"], ""),
        ("error-node", &["node", "edge-1"], ""),
        ("error-resolve", &["resolve", "edge-1", "--url", "shop.example"], ""),
        ("note-import", &["import", "-"], bootstrap),
    ] {
        let done = server.run_with_input(args, input);
        assert_screen(name, &screen(args, &done, &[(&server.admin, "SERVER")]));
    }
    assert_eq!(server.terminate().0, Some(0));
}
