//! MCP sources and sinks that fail.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    super::monitor::eventually,
    cluster::REPLICAS,
    scenario::{Group, Scenario, alert},
    stage::Stage,
};
use crate::say::say;

const COLLECTION: &str = "istio/networking/v1alpha3/virtualservices";
const SOURCE_PORT: &str = "7001";
const SINK_PORT: &str = "7002";

pub(super) const GROUP: Group = Group {
    name: "sources",
    prepare,
    scenarios: &[
        Scenario {
            alerts: &[alert("ChanceryMcpSinksFail", &[])],
            also: &[],
            is_early: true,
            fault: "the addresses of 24 sinks are wrong",
            repair: "the address in mcp.sinks is corrected, and the replicas are restarted",
            inject: |_| Ok(()),
            recover: |stage| {
                let args = ["--port", SINK_PORT, "--node", "sink", COLLECTION];
                stage.test_client("sink", "mcp_sink.py", &args)?;
                stage.cluster.set("CHANCERY_MCP_SINKS", format!("127.0.0.1:{SINK_PORT}"));
                for id in REPLICAS {
                    stage.cluster.kill(id);
                    stage.cluster.start(id)?;
                    stage.cluster.expect_ready()?;
                }
                Ok(())
            },
        },
        Scenario {
            alerts: &[alert("ChanceryMcpSourceDisconnected", &[("source", "pilot")])],
            also: &[],
            is_early: true,
            fault: "an MCP source does not run",
            repair: "the source is started",
            inject: |_| Ok(()),
            recover: |stage| {
                stage.test_client("source", "mcp_source.py", &["--port", SOURCE_PORT])?;
                let line = services(30)?;
                stage.tell("source", &line)
            },
        },
        Scenario {
            alerts: &[alert("ChanceryMcpDeletionsHeld", &[("source", "pilot")])],
            also: &[],
            is_early: false,
            fault: "an MCP source deletes a whole collection",
            repair: "the deletion is confirmed",
            inject: |stage| {
                eventually("the resources of the source do not arrive", || {
                    let n = stage.cluster.metric(1, "chancery_store_resources");
                    Ok(n.is_some_and(|n| n >= 30.0).then_some(()))
                })?;
                let line = services(0)?;
                stage.tell("source", &line)
            },
            recover: |stage| {
                let leader = stage.cluster.admin(stage.cluster.leader()?);
                let status =
                    stage.cluster.run(&["mcp", "status", "--server", &leader, "-o", "json"])?;
                let status: Value = serde_json::from_str(&status).context("parse the status")?;
                let token = find(&status, "token").context("the status has no token")?;
                say!("chancery mcp confirm pilot {COLLECTION} {token}");
                let confirm = ["mcp", "confirm", "--server", &leader, "pilot", COLLECTION, token];
                stage.cluster.run(&confirm)?;
                // The leader asks the source for its state, and the source sends it.
                let line = services(0)?;
                stage.tell("source", &line)
            },
        },
    ],
};

fn prepare(stage: &mut Stage) -> Result<()> {
    let source = format!(
        "[{{name = 'pilot', address = '127.0.0.1:{SOURCE_PORT}', scope = 'mesh', collections = ['{COLLECTION}']}}]"
    );
    stage.cluster.set("CHANCERY_MCP_SOURCES", source);
    // A replica waits up to a minute between two attempts, so the shorter window needs many sinks.
    let wrong: Vec<String> = (2..26).map(|host| format!("127.0.0.{host}:{SINK_PORT}")).collect();
    stage.cluster.set("CHANCERY_MCP_SINKS", wrong.join(","));
    stage.cluster.start_all()
}

/// Returns a message with all resources of the collection.
fn services(n: usize) -> Result<String> {
    let mut resources = String::new();
    for at in 0..n {
        let comma = if at == 0 { "" } else { "," };
        write!(
            resources,
            "{comma}{{\"metadata\": {{\"name\": \"shop/s{at}\"}}, \"body\": {{\"@type\": \
             \"type.googleapis.com/google.protobuf.Duration\", \"value\": \"{at}s\"}}}}"
        )?;
    }
    Ok(format!(
        "{{\"collection\": \"{COLLECTION}\", \"nonce\": \"{n}\", \"resources\": [{resources}]}}"
    ))
}

/// Returns the first text with this key.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    match value {
        Value::Object(object) => object
            .get(key)
            .and_then(Value::as_str)
            .or_else(|| object.values().find_map(|value| find(value, key))),
        Value::Array(items) => items.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}
