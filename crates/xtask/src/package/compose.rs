//! The check of the Dockerfile, of the Compose file and of the files that it mounts.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{paths::Paths, proc, say::say, setup};

const DOCKERFILE: &str = "deploy/docker/Dockerfile";
const DIR: &str = "deploy/compose";
/// The address at which ports are published, because connections are not encrypted.
const LOOPBACK: &str = "127.0.0.1:";

/// Checks the files.
pub(super) fn check(paths: &Paths) -> Result<()> {
    let tools = setup::file_checkers(paths)?;
    proc::output(Command::new(&tools.hadolint).arg(paths.root.join(DOCKERFILE)))?;
    let dir = paths.root.join(DIR);
    let file = dir.join("compose.yaml");
    let mut schema = Command::new(&tools.check_jsonschema);
    schema.args(["--builtin-schema", "vendor.compose-spec"]);
    proc::output(schema.arg(&file))?;
    let compose = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    check_rules(&compose)?;
    check_order(&compose)?;
    for path in mounted(&compose) {
        ensure!(dir.join(path).exists(), "{DIR}/compose.yaml mounts {path}, which does not exist");
    }
    let promtool = setup::promtool(paths)?;
    let prometheus = dir.join("prometheus.yaml");
    proc::output(
        Command::new(promtool).args(["check", "config", "--syntax-only"]).arg(prometheus),
    )?;
    check_release(&paths.root, &compose)?;
    say!("the Dockerfile and the Compose file are correct");
    Ok(())
}

/// Checks that images have a version, and that ports are published on loopback only.
fn check_rules(compose: &str) -> Result<()> {
    let values = |key: &'static str| {
        compose.lines().filter_map(move |line| line.trim().strip_prefix(key)).map(str::trim)
    };
    ensure!(values("image:").count() >= 4, "the Compose file names too few images");
    for image in values("image:") {
        let default = image.split_once(":-").and_then(|(_, rest)| rest.strip_suffix('}'));
        let tag = default.and_then(|default| default.rsplit_once(':')).map(|(_, tag)| tag);
        let is_pinned = tag.is_some_and(|tag| tag != "latest" && !tag.is_empty());
        ensure!(is_pinned, "the image {image} has no variable with a version as its default");
    }
    for ports in values("ports:") {
        let list = ports.trim_matches(['[', ']']);
        for port in list.split(',').map(|port| port.trim().trim_matches('"')) {
            ensure!(port.starts_with(LOOPBACK), "the port {port} is reachable from other machines");
        }
    }
    Ok(())
}

/// Checks that a service depends on the success of each service that ends.
///
/// Otherwise, `docker compose up --wait` waits until the service that ends is healthy, and fails when it has ended.
fn check_order(compose: &str) -> Result<()> {
    let file: Value = serde_saphyr::from_str(compose).context("parse the Compose file")?;
    let services = file["services"].as_object().context("the Compose file has no services")?;
    let is_awaited = |name: &str| {
        services.values().any(|service| {
            service["depends_on"][name]["condition"] == "service_completed_successfully"
        })
    };
    let ending = services.iter().filter(|(_, service)| service["restart"] == "on-failure");
    let ending: Vec<_> = ending.map(|(name, _)| name.as_str()).collect();
    ensure!(!ending.is_empty(), "the Compose file has no service that publishes resources");
    for name in ending {
        ensure!(
            is_awaited(name),
            "the service {name} ends, and `docker compose up --wait` fails; let another service depend on it with \
             `condition: service_completed_successfully`"
        );
    }
    Ok(())
}

/// Returns the mounted files of the checkout, as relative paths.
fn mounted(compose: &str) -> Vec<&str> {
    let words = compose.split([' ', '"', '[', ']', '\n']);
    // A variable has the path as its default: `${FILE:-./path}:/target`.
    let words = words.map(|word| word.split_once(":-").map_or(word, |(_, default)| default));
    let sources = words.filter(|word| word.starts_with("./") || word.starts_with("../"));
    sources.filter_map(|word| word.split([':', '}']).next()).collect()
}

/// Checks that the default image of Chancery, and that of the Dockerfile, have the version of the workspace.
fn check_release(root: &Path, compose: &str) -> Result<()> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("read Cargo.toml")?;
    let version = super::release::version(&manifest)?;
    let image = format!("${{CHANCERY_IMAGE:-chancery:{version}}}");
    if !compose.contains(&image) {
        bail!("{DIR}/compose.yaml does not use the image of this version: write `{image}`");
    }
    let dockerfile =
        fs::read_to_string(root.join(DOCKERFILE)).with_context(|| format!("read {DOCKERFILE}"))?;
    let line = format!("ARG VERSION={version}\n");
    ensure!(
        dockerfile.contains(&line),
        "{DOCKERFILE} labels another version: write `{}`",
        line.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "image: ${A:-a:1}\nimage: ${B:-b:1}\nimage: ${C:-c:1}\nimage: ${D:-r/d:v2}\n\
                        ports: [\"127.0.0.1:1:2\", \"127.0.0.1:3:4\"]\n\
                        volumes: [\"./x.yaml:/x:ro\"]\n- ../y:/y\n- ${Z:-../z}:/z:ro\n";

    #[test]
    fn unpinned_image_and_public_port_are_refused() {
        check_rules(GOOD).unwrap();
        let refused =
            |from: &str, to: &str| check_rules(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            refused("r/d:v2", "r/d:latest"),
            "the image ${D:-r/d:latest} has no variable with a version as its default"
        );
        assert_eq!(refused("127.0.0.1:3", "3"), "the port 3:4 is reachable from other machines");
    }

    #[test]
    fn service_that_ends_needs_a_service_that_waits_for_it() {
        const FILE: &str = "\
            x-publish: &publish {restart: on-failure}\n\
            x-replicas: &replicas\n  a: {condition: service_healthy}\n\
            services:\n  a: {restart: always}\n  publish: {<<: *publish, command: [apply]}\n  \
              envoy:\n    depends_on:\n      <<: *replicas\n      \
                publish: {condition: service_completed_successfully}\n";
        check_order(FILE).unwrap();
        let refused = check_order(&FILE.replace("completed_successfully", "started")).unwrap_err();
        let expected = "the service publish ends, and `docker compose up --wait` fails; let another service depend on \
                        it with `condition: service_completed_successfully`";
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn mounted_files_are_found_in_both_forms_of_lists() {
        assert_eq!(mounted(GOOD), ["./x.yaml", "../y", "../z"]);
    }
}
