//! The packages that are linked into the program, or whose data the image contains, from cargo's metadata and `Cargo.lock`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{paths::Paths, proc};

pub(super) const PROGRAM: &str = "chancery-server";
/// The package with the root certificates of the image, which the program does not use.
pub(super) const ROOT_CERTIFICATES: &str = "webpki-root-certs";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A package of the program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) version: String,
    /// The SPDX license expression in its manifest.
    pub(super) license: String,
    /// The directory with its sources.
    pub(super) dir: PathBuf,
    /// The SHA-256 of the downloaded package. Packages of the workspace have none.
    pub(super) checksum: Option<String>,
    /// The names and versions of the packages that it uses.
    pub(super) uses: Vec<(String, String)>,
}

/// Returns the program's package and everything that is linked into it, and the package with the root certificates of
/// the image. The packages are sorted by name and version.
pub(super) fn contained(paths: &Paths) -> Result<Vec<Dependency>> {
    let mut cargo = paths.cargo("metadata");
    let metadata =
        proc::output(cargo.args(["--locked", "--format-version=1", "--filter-platform", TARGET]))?;
    let metadata = serde_json::from_str(&metadata).context("parse cargo's metadata")?;
    let lock = fs::read_to_string(paths.root.join("Cargo.lock")).context("read Cargo.lock")?;
    select(&metadata, &checksums(&lock))
}

fn select(metadata: &Value, checksums: &BTreeMap<(&str, &str), &str>) -> Result<Vec<Dependency>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages: BTreeMap<String, Value> = (list(&metadata["packages"]).into_iter())
        .map(|package| (text(&package["id"]).to_owned(), package))
        .collect();
    let nodes: BTreeMap<String, Value> = (list(&metadata["resolve"]["nodes"]).into_iter())
        .map(|node| (text(&node["id"]).to_owned(), node))
        .collect();
    let id = |name: &str| {
        let found = packages.iter().find(|(_, package)| package["name"] == name);
        found.map(|(id, _)| id.clone()).with_context(|| format!("cargo's metadata lacks {name}"))
    };
    let mut open = vec![id(PROGRAM)?, id(ROOT_CERTIFICATES)?];
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let package = packages.get(&id).with_context(|| format!("cargo's metadata lacks {id}"))?;
        let mut uses = Vec::new();
        for dep in list(&nodes.get(&id).context("a package has no node")?["deps"]) {
            let is_linked = list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let used = packages.get(text(&dep["pkg"])).context("a dependency has no package")?;
            if is_linked && !is_macro(used) {
                open.push(text(&dep["pkg"]).to_owned());
                uses.push((text(&used["name"]).to_owned(), text(&used["version"]).to_owned()));
            }
        }
        uses.sort();
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let manifest = Path::new(text(&package["manifest_path"]));
        found.push(Dependency {
            name: name.to_owned(),
            version: version.to_owned(),
            license: package["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR "),
            dir: manifest.parent().context("a manifest has no directory")?.to_owned(),
            checksum: checksums.get(&(name, version)).map(|&checksum| checksum.to_owned()),
            uses,
        });
    }
    found.sort();
    Ok(found)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns whether the package runs in the compiler only.
fn is_macro(package: &Value) -> bool {
    package["targets"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|target| target["kind"][0] == "proc-macro")
}

/// Returns the checksums in a `Cargo.lock` by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]").filter_map(entry).collect()
}

/// Returns the name, the version and the checksum of one package.
fn entry(block: &str) -> Option<((&str, &str), &str)> {
    let field = |name: &str| {
        block
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"'))
    };
    Some(((field("name")?, field("version")?), field("checksum")?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_linked_packages_and_root_certificates_are_selected() {
        let package = |name: &str, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                "manifest_path": format!("/{name}/Cargo.toml"), "targets": [{"kind": [kind]}]})
        };
        let dep = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package(PROGRAM, "bin"), package("a", "lib"), package("b", "lib"),
                package("macro", "proc-macro"), package("tool", "lib"), package("other", "lib"),
                package(ROOT_CERTIFICATES, "lib")],
            "resolve": {"nodes": [
                {"id": PROGRAM, "deps": [dep("a", Value::Null), dep("tool", json!("build")),
                    dep("macro", Value::Null)]},
                {"id": "a", "deps": [dep("b", Value::Null), dep("other", json!("dev"))]},
                {"id": "b", "deps": []},
                {"id": ROOT_CERTIFICATES, "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"b\"\nversion = \"1.0.0\"\nchecksum = \"c0ffee\"\n";
        let found = select(&metadata, &checksums(lock)).unwrap();
        let names: Vec<_> = found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["a", "b", PROGRAM, ROOT_CERTIFICATES]);
        assert_eq!(found[1].checksum.as_deref(), Some("c0ffee"));
        assert_eq!(found[0].license, "MIT OR Apache-2.0");
        assert_eq!(found[0].uses, [("b".to_owned(), "1.0.0".to_owned())]);
    }
}
