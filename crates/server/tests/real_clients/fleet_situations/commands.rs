//! The commands and answers of the situations.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::support::{
    chancery::Chancery,
    envoy::{Envoy, Mode},
    grpc::{GrpcClient, Kind},
    held::Held,
};

pub(super) fn own(id: &str) -> String {
    format!("own/{id}")
}

/// Starts an Envoy with a short drain time, so that it soon forgets what it no longer uses.
pub(super) fn start_envoy(dir: &Path, mode: Mode, name: &str, id: &str, xds: u16) -> Result<Envoy> {
    let options = ["--drain-time-s", "1"];
    Envoy::start_with_options(dir, name, &mode.bootstrap(id, xds), &options)
}

/// Adds resources to a scope, and waits until all clients have them.
pub(super) fn write(replica: &Chancery, scope: &str, resources: &[Value]) -> Result<()> {
    let manifest = json!({"scope": scope, "resources": resources}).to_string();
    replica.cli(&["apply", "-f", "-", "--wait=60s"], &manifest).map(drop)
}

/// Adds resources to a scope before there are clients.
pub(super) fn publish(replica: &Chancery, scope: &str, resources: &[Value]) -> Result<()> {
    let manifest = json!({"scope": scope, "resources": resources}).to_string();
    replica.cli(&["apply", "-f", "-"], &manifest).map(drop)
}

/// Adds a resource to a scope, and returns the revision.
pub(super) fn add(replica: &Chancery, scope: &str, resource: &Value) -> Result<u64> {
    let manifest = json!({"scope": scope, "resources": [resource]}).to_string();
    let done = replica.cli(&["apply", "-f", "-"], &manifest)?;
    done["revision"].as_u64().with_context(|| format!("no revision: {done}"))
}

/// Returns the revision that the replica has applied.
pub(super) fn revision_of(replica: &Chancery) -> Result<u64> {
    let status = replica.cli(&["cluster", "status"], "")?;
    status["revision"].as_u64().with_context(|| format!("no revision: {status}"))
}

/// Checks that a wait for the revision ends for all nodes except `unsettled`.
pub(super) fn check_wait(replica: &Chancery, revision: u64, unsettled: &[&str]) -> Result<()> {
    let timeout = if unsettled.is_empty() { "30s" } else { "1s" };
    let done = replica.ask(&["wait", &revision.to_string(), "--timeout", timeout], "")?;
    let nodes = done.json["unsettled"].as_array().with_context(|| format!("{done:?}"))?;
    let nodes: BTreeSet<_> = nodes.iter().filter_map(|one| one["node"].as_str()).collect();
    let code = i32::from(!unsettled.is_empty());
    let expected = unsettled.iter().copied().collect();
    ensure!(nodes == expected && done.status.code() == Some(code), "{done:?}");
    Ok(())
}

pub(super) fn node_of<'a>(answer: &'a Value, id: &str) -> Result<&'a Value> {
    let mut nodes = answer["nodes"].as_array().into_iter().flatten();
    nodes.find(|node| node["id"] == id).with_context(|| format!("no node {id}: {answer}"))
}

pub(super) fn subscription_of<'a>(node: &'a Value, type_url: &str) -> Result<&'a Value> {
    let mut all = node["streams"][0]["subscriptions"].as_array().into_iter().flatten();
    let found = all.find(|one| one["type_url"] == type_url);
    found.with_context(|| format!("no subscription of {type_url}: {node}"))
}

/// Compares the acknowledged version of a type with Envoy's version. Envoy keeps its version if a response changes nothing.
pub(super) fn check_version(subscription: &Value, held: &Held, type_url: &str) -> Result<()> {
    let version = held.versions.get(type_url).context("Envoy shows no version")?;
    let acked = subscription["acked_version"].as_str().unwrap_or_default();
    let revision = |text: &str| u64::from_str_radix(text.split('-').next().unwrap_or(""), 36);
    ensure!(revision(acked)? >= revision(version)?, "not {version}: {subscription:#}");
    Ok(())
}

/// Compares the answer about a gRPC client with what the client reports.
pub(super) fn check_client(node: &Value, client: &mut GrpcClient) -> Result<()> {
    if client.kind == Kind::Node {
        // grpc-js does not report its resources.
        ensure!(node["condition"]["state"] == "synced", "{node}");
        return Ok(());
    }
    let held = client.resource_status()?;
    let types: BTreeSet<_> = held.iter().map(|one| one.type_url.clone()).collect();
    if types.len() != 4 {
        bail!("the client has {held:?}");
    }
    for resource in held {
        ensure!(resource.has_verdict() && resource.rejection().is_none(), "{resource:?}");
        let subscription = subscription_of(node, &resource.type_url)?;
        ensure!(subscription["acked_version"] == resource.version_info, "{resource:?}");
        ensure!(subscription["names"] == 1, "{subscription}");
    }
    Ok(())
}
