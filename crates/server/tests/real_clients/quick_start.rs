//! The quick start of the README, command by command, with a real Envoy.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use chancery_testing::reserve_port;

use crate::support::{
    chancery::{BINARY, Chancery},
    envoy::Envoy,
    http, in_directory,
};

const README: &str = include_str!("../../../../README.md");

/// Commands of this test instead of the usual ports, which other processes may use. `chancery bootstrap` and
/// `chancery mirror` read the port from no variable.
const PRELUDE: &str = r#"set -eu
chancery() {
    case "$1" in
    bootstrap | mirror) "$BINARY" "$@" --xds "$XDS" ;;
    *) "$BINARY" "$@" ;;
    esac
}
curl() { :; }
"#;

/// Returns the code blocks of the quick start.
fn blocks() -> Vec<&'static str> {
    let start = README.find("## Quick start by hand").unwrap_or_default();
    let end = README[start..].find("Exit codes of commands").map_or(start, |len| start + len);
    README[start..end]
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|it| it.strip_prefix("sh\n"))
        .collect()
}

/// Runs commands in a shell, and returns what they print.
fn run(dir: &Path, chancery: &Chancery, commands: &str) -> Result<String> {
    let address = |port| format!("127.0.0.1:{port}");
    let output = Command::new("sh")
        .args(["-c", &format!("{PRELUDE}{commands}")])
        .current_dir(dir)
        .env("BINARY", BINARY)
        .env("XDS", address(chancery.at.xds))
        .env("CHANCERY_SERVER", address(chancery.at.admin))
        .env("CHANCERY_CONTEXTS", dir.join("contexts.toml"))
        .output()?;
    let [out, errors] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    ensure!(output.status.success(), "{}\n{out}{errors}", output.status);
    Ok(out)
}

#[test]
fn quick_start_of_the_readme_works() -> Result<()> {
    in_directory(|dir| {
        let blocks = blocks();
        let block = |text: &str| {
            let found = blocks.iter().find(|block| block.contains(text));
            found.with_context(|| format!("no block of the quick start contains {text:?}"))
        };
        block("chancery serve ")?;
        let chancery = Chancery::start(dir)?;
        let bootstrap = block("chancery bootstrap ")?;
        let (bootstrap, envoy) =
            bootstrap.split_once("\nenvoy ").context("Envoy is not started")?;
        ensure!(envoy.starts_with("-c envoy.yaml"), "{envoy}");
        run(dir, &chancery, bootstrap)?;
        let bootstrap = serde_saphyr::from_str(&fs::read_to_string(dir.join("envoy.yaml"))?)?;
        let _envoy = Envoy::start_with(dir, "envoy-1", &bootstrap)?;
        chancery.wait_for_node("envoy-1", "synced", &[])?;
        let port = reserve_port();
        let commands = block("cat > my-resources.yaml")?;
        ensure!(commands.contains("port_value: 10000"), "{commands}");
        let commands = commands
            .replace("port_value: 10000", &format!("port_value: {port}"))
            .replace("127.0.0.1:10000", &format!("127.0.0.1:{port}"));
        let out = run(dir, &chancery, &commands)?;
        ensure!(out.contains("1 of 1 session acknowledged"), "{out}");
        ensure!(out.contains("envoy-1  envoy-1  synced"), "{out}");
        let answer = http::wait_for_answer(port)?;
        ensure!(answer.trim_end() == "hello from Chancery", "{answer:?}");
        Ok(())
    })
}
