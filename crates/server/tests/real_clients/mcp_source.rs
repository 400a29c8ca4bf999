//! A source of MCP by grpcio, from which Chancery takes over a collection.

use std::path::Path;

use anyhow::{Result, ensure};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{chancery::Chancery, grpc::McpSource};

const COLLECTION: &str = "istio/networking/v1alpha3/gateways";

fn resource(name: &str, version: &str) -> Value {
    let body = json!({"@type": "type.googleapis.com/google.protobuf.Duration", "value": "5s"});
    json!({"metadata": {"name": name, "version": version}, "body": body})
}

fn message(nonce: &str, resources: &[Value]) -> Value {
    json!({"collection": COLLECTION, "nonce": nonce, "resources": resources})
}

/// Returns the names and the versions of the stored resources.
fn stored(sink: &Chancery) -> Result<Vec<(String, String)>> {
    let list = sink.cli(&["get", COLLECTION], "")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pair = |one: &Value| (text(&one["name"]), text(&one["body"]["metadata"]["version"]));
    Ok(list["resources"].as_array().into_iter().flatten().map(pair).collect())
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned())).collect()
}

/// MCP-04, MCP-33, MCP-55 to -58, MCP-65: the server connects to a source in Python. The source reads the requests of
/// the sink, and the sink stores the resources of the source. After a kill of the sink, the first request lists the versions that the source
/// chose.
#[test]
fn sink_takes_over_the_collection_of_a_source_by_grpcio() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut source = McpSource::listen(dir.path())?;
    let mut sink = start_sink(dir.path(), "address", source.port)?;
    exchange(&mut source, &mut sink)
}

/// MCP-03, MCP-04: the same exchange with a source by grpcio that connects.
#[test]
fn sink_takes_over_the_collection_of_a_source_by_grpcio_that_connects() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let port = reserve_port();
    let mut source = McpSource::connect(dir.path(), port)?;
    let mut sink = start_sink(dir.path(), "listen", port)?;
    exchange(&mut source, &mut sink)
}

fn start_sink(dir: &Path, key: &str, port: u16) -> Result<Chancery> {
    let configured = format!(
        "[{{name = 'python', {key} = '127.0.0.1:{port}', scope = 'mesh', collections = ['{COLLECTION}']}}]"
    );
    Chancery::start_with(dir, &[("CHANCERY_MCP_SOURCES", &configured)])
}

fn exchange(source: &mut McpSource, sink: &mut Chancery) -> Result<()> {
    let first = source.request()?;
    ensure!(first["collection"] == COLLECTION && first["incremental"] == true, "{first}");
    let trigger = source.send(&json!({"collection": "$triggerCollection"}))?;
    ensure!(trigger["errorDetail"]["code"] == 12, "{trigger}");
    let answer = source.send(&message("1", &[resource("ns/a", "a1"), resource("ns/b", "b1")]))?;
    ensure!(answer["responseNonce"] == "1" && answer["errorDetail"].is_null(), "{answer}");
    ensure!(stored(sink)? == pairs(&[("ns/a", "a1"), ("ns/b", "b1")]), "{:?}", stored(sink)?);

    let mut difference = message("2", &[resource("ns/c", "c1")]);
    difference["incremental"] = true.into();
    difference["removedResources"] = json!(["ns/a", "ns/unknown"]);
    let answer = source.send(&difference)?;
    ensure!(answer["responseNonce"] == "2" && answer["errorDetail"].is_null(), "{answer}");
    ensure!(stored(sink)? == pairs(&[("ns/b", "b1"), ("ns/c", "c1")]), "{:?}", stored(sink)?);
    let answer = source.send(&message("3", &[resource("", "x")]))?;
    ensure!(answer["responseNonce"] == "3" && answer["errorDetail"]["code"] == 3, "{answer}");

    sink.kill()?;
    sink.start_again()?;
    let resumed = source.request()?;
    let versions = json!({"ns/b": "b1", "ns/c": "c1"});
    ensure!(resumed["initialResourceVersions"] == versions, "{resumed}");
    Ok(())
}
