//! The allowed dependencies between crates (`docs/ARCHITECTURE.md`, "Crates"), checked with cargo's
//! metadata.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The crate that all other crates may use in their tests.
const TESTING: &str = "chancery-testing";

/// The workspace crates that each crate may use. The list must name every crate.
const ALLOWED: &[(&str, &[&str])] = &[
    ("base2histogram", &[]),
    ("chancery-metrics", &[]),
    ("chancery-model", &[]),
    ("chancery-audit", &["chancery-metrics", "chancery-model"]),
    ("chancery-diff", &[]),
    ("chancery-view", &["chancery-model"]),
    ("chancery-protocol", &["chancery-model", "chancery-view"]),
    ("chancery-proto-build", &[]),
    ("chancery-proto", &["chancery-proto-build"]),
    ("chancery-admin-proto", &["chancery-proto-build"]),
    ("chancery-raft-proto", &["chancery-proto-build"]),
    ("chancery-console", &["chancery-admin-proto"]),
    ("chancery-lb-policy", &[]),
    ("chancery-net", &[]),
    ("chancery-tls", &["chancery-metrics"]),
    ("chancery-auth", &["chancery-metrics", "chancery-model", "chancery-net", "chancery-tls"]),
    ("chancery-secrets", &["chancery-metrics", "chancery-model"]),
    ("chancery-trace", &["chancery-metrics"]),
    (
        "chancery-load",
        &["chancery-admin-proto", "chancery-metrics", "chancery-model", "chancery-proto"],
    ),
    (
        "chancery-store",
        &[
            "chancery-metrics",
            "chancery-model",
            "chancery-raft-proto",
            "chancery-net",
            "chancery-secrets",
            "chancery-tls",
        ],
    ),
    ("chancery-admission", &["chancery-lb-policy", "chancery-model", "chancery-proto"]),
    ("chancery-resolve", &["chancery-model", "chancery-proto"]),
    (
        "chancery-mcp",
        &[
            "chancery-metrics",
            "chancery-model",
            "chancery-proto",
            "chancery-net",
            "chancery-tls",
            "chancery-store",
            "chancery-admission",
        ],
    ),
    (
        "chancery-fanout",
        &["chancery-metrics", "chancery-model", "chancery-view", "chancery-protocol"],
    ),
    (
        "chancery-xds",
        &[
            "chancery-auth",
            "chancery-metrics",
            "chancery-model",
            "chancery-view",
            "chancery-protocol",
            "chancery-proto",
            "chancery-fanout",
            "chancery-load",
            "chancery-net",
            "chancery-tls",
        ],
    ),
    (
        "chancery-admin",
        &[
            "chancery-audit",
            "chancery-auth",
            "chancery-metrics",
            "chancery-model",
            "chancery-diff",
            "chancery-view",
            "chancery-protocol",
            "chancery-admin-proto",
            "chancery-console",
            "chancery-proto",
            "chancery-raft-proto",
            "chancery-secrets",
            "chancery-store",
            "chancery-admission",
            "chancery-fanout",
            "chancery-load",
            "chancery-mcp",
            "chancery-resolve",
            "chancery-trace",
        ],
    ),
    (
        "chancery-config",
        &[
            "chancery-audit",
            "chancery-model",
            "chancery-proto",
            "chancery-protocol",
            "chancery-secrets",
            "chancery-store",
            "chancery-tls",
            "chancery-trace",
            "chancery-fanout",
            "chancery-load",
            "chancery-mcp",
            "chancery-xds",
            "chancery-admin",
            "chancery-auth",
            "chancery-admission",
        ],
    ),
    (
        "chancery-serve",
        &[
            "chancery-config",
            "chancery-audit",
            "chancery-metrics",
            "chancery-model",
            "chancery-net",
            "chancery-proto",
            "chancery-secrets",
            "chancery-store",
            "chancery-tls",
            "chancery-trace",
            "chancery-fanout",
            "chancery-load",
            "chancery-mcp",
            "chancery-xds",
            "chancery-admin",
            "chancery-auth",
        ],
    ),
    (
        "chancery-cli",
        &[
            "chancery-config",
            "chancery-serve",
            "chancery-admin-proto",
            "chancery-audit",
            "chancery-model",
            "chancery-proto",
            "chancery-store",
            "chancery-tls",
            "chancery-lb-policy",
            "chancery-admin",
            "chancery-admission",
            "chancery-conformance",
            "chancery-fleet-load",
        ],
    ),
    // The binary. The other crates are for its tests.
    (
        "chancery-server",
        &[
            "chancery-cli",
            "chancery-admin-proto",
            "chancery-admin",
            "chancery-admission",
            "chancery-audit",
            "chancery-auth",
            "chancery-fanout",
            "chancery-lb-policy",
            "chancery-load",
            "chancery-mcp",
            "chancery-metrics",
            "chancery-model",
            "chancery-proto",
            "chancery-raft-proto",
            "chancery-secrets",
            "chancery-store",
            "chancery-tls",
            "chancery-trace",
            "chancery-xds",
        ],
    ),
    // The kit checks a server from outside, and shares only the messages with it.
    ("chancery-conformance", &["chancery-admin-proto", "chancery-proto"]),
    // The thin clients and the load test know a server only from outside, too.
    ("chancery-fleet-load", &["chancery-model", "chancery-proto", "chancery-tls"]),
    (TESTING, &[]),
    // The load test drives a server from outside, like a client and an author.
    (
        "chancery-loadtest",
        &[
            "chancery-admin-proto",
            "chancery-fleet-load",
            "chancery-model",
            "chancery-proto",
            "chancery-tls",
            TESTING,
        ],
    ),
    // The benchmarks measure the pure crates, admission, and the index of references.
    (
        "chancery-benches",
        &[
            "chancery-model",
            "chancery-view",
            "chancery-protocol",
            "chancery-admission",
            "chancery-admin",
        ],
    ),
    // The fuzz targets are decoders of client input.
    (
        "chancery-fuzz",
        &[
            "chancery-admin",
            "chancery-admission",
            "chancery-auth",
            "chancery-fanout",
            "chancery-load",
            "chancery-model",
            "chancery-proto",
            "chancery-protocol",
            "chancery-xds",
        ],
    ),
    ("xtask", &[]),
];

/// The pure crates, which have no async, gRPC or randomness.
pub(super) const PURE: &[&str] = &["chancery-model", "chancery-view", "chancery-protocol"];

/// The packages on which no pure crate may depend, directly or indirectly.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio-util",
    "tonic",
    "tonic-prost",
    "hyper",
    "h2",
    "mio",
    "rand",
    "getrandom",
    "openraft",
    "rocksdb",
];

/// Dependencies that only one crate may have directly: package, crate.
const WALLS: &[(&str, &str)] = &[
    ("openraft", "chancery-store"),
    ("openraft-rocksstore", "chancery-store"),
    ("rocksdb", "chancery-store"),
    ("librocksdb-sys", "chancery-store"),
];

/// A package of the workspace.
#[derive(Debug)]
pub(super) struct Package {
    name: String,
    /// The names of the direct dependencies, each with the code that may use it.
    dependencies: BTreeMap<String, Reach>,
}

/// The code that may use a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Tests,
    Code,
}

/// Parses the output of `cargo metadata --no-deps`.
pub(super) fn packages(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata).context("parse cargo's metadata")?;
    let packages = metadata["packages"].as_array().context("cargo's metadata has no packages")?;
    packages.iter().map(package).collect()
}

fn package(package: &Value) -> Result<Package> {
    let name = package["name"].as_str().context("a package without a name")?.to_owned();
    let mut dependencies = BTreeMap::new();
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let on = dependency["name"].as_str().context("a dependency without a name")?;
        let reach = match dependency["kind"].as_str() {
            Some("dev") => Reach::Tests,
            _ => Reach::Code,
        };
        let known = dependencies.entry(on.to_owned()).or_insert(reach);
        *known = reach.max(*known);
    }
    Ok(Package { name, dependencies })
}

/// Reports direct dependencies that are not allowed.
///
/// Tests may also use the pure crates, the crate of test support, and the messages, with which they
/// decode what goes on the wire.
pub(super) fn direct(packages: &[Package]) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut complaints = Vec::new();
    for package in packages {
        let name = package.name.as_str();
        let Some(may_use) = allowed.get(name) else {
            complaints.push(format!(
                "{name}: unknown crate; add it to ALLOWED in tidy/crate_dependencies.rs"
            ));
            continue;
        };
        for (on, reach) in &package.dependencies {
            let on = on.as_str();
            let is_own = ours.contains(on);
            let is_allowed = may_use.contains(&on)
                || on == name
                || (*reach == Reach::Tests
                    && (PURE.contains(&on) || on == TESTING || on.ends_with("-proto")));
            if is_own && !is_allowed {
                complaints.push(format!("{name}: may not use {on}"));
            }
            for (wall, owner) in WALLS {
                if on == *wall && name != *owner {
                    complaints.push(format!("{name}: may not use {wall}; only {owner} may"));
                }
            }
        }
    }
    complaints
}

/// Reports impure packages in the `cargo tree --prefix=none` of a pure crate.
pub(super) fn reached(pure: &str, tree: &str) -> Vec<String> {
    let reached: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if !reached.contains(pure) {
        return vec![format!("{pure}: the output of cargo tree does not name this crate")];
    }
    IMPURE
        .iter()
        .filter(|impure| reached.contains(*impure))
        .map(|impure| format!("{pure}: a pure crate may not depend on {impure}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(json: &str) -> Vec<String> {
        direct(&packages(json).unwrap())
    }

    #[test]
    fn disallowed_dependency_is_reported() {
        let json = r#"{"packages": [
            {"name": "chancery-model", "dependencies": [{"name": "chancery-view", "kind": null}]},
            {"name": "chancery-view", "dependencies": [{"name": "chancery-model", "kind": null}]}
        ]}"#;
        assert_eq!(complaints(json), ["chancery-model: may not use chancery-view"]);
    }

    #[test]
    fn test_may_use_pure_crates_and_messages_only() {
        let json = r#"{"packages": [
            {"name": "chancery-model", "dependencies": []},
            {"name": "chancery-store", "dependencies": []},
            {"name": "chancery-proto", "dependencies": [
                {"name": "chancery-model", "kind": "dev"}, {"name": "chancery-store", "kind": "dev"}]},
            {"name": "chancery-fanout", "dependencies": [{"name": "chancery-proto", "kind": "dev"}]}
        ]}"#;
        assert_eq!(complaints(json), ["chancery-proto: may not use chancery-store"]);
    }

    #[test]
    fn only_store_may_use_openraft_and_rocksdb_even_in_tests() {
        let json = r#"{"packages": [
            {"name": "chancery-store", "dependencies": [{"name": "rocksdb", "kind": null}]},
            {"name": "chancery-server", "dependencies": [{"name": "openraft", "kind": "dev"}]}
        ]}"#;
        assert_eq!(
            complaints(json),
            ["chancery-server: may not use openraft; only chancery-store may"]
        );
    }

    #[test]
    fn unknown_crate_is_reported() {
        let json = r#"{"packages": [{"name": "chancery-utils", "dependencies": []}]}"#;
        assert_eq!(complaints(json).len(), 1);
    }

    #[test]
    fn dependency_of_code_and_tests_counts_as_code() {
        let json = r#"{"packages": [{"name": "chancery-proto", "dependencies": [
            {"name": "chancery-model", "kind": null}, {"name": "chancery-model", "kind": "dev"}]},
            {"name": "chancery-model", "dependencies": []}]}"#;
        assert_eq!(complaints(json), ["chancery-proto: may not use chancery-model"]);
    }

    #[test]
    fn pure_crate_that_depends_on_tokio_is_reported() {
        let tree = "chancery-view v0.1.0 (/x)\nbytes v1.12.1\ntokio v1.54.1\n";
        assert_eq!(
            reached("chancery-view", tree),
            ["chancery-view: a pure crate may not depend on tokio"]
        );
        let tree = "chancery-view v0.1.0 (/x)\nrand_core v0.9.1\ntokio-macros-like v1\n";
        assert!(reached("chancery-view", tree).is_empty());
        assert_eq!(reached("chancery-view", "").len(), 1);
    }
}
