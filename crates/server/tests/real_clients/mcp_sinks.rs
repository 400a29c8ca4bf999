//! Sinks of MCP in Python, which share no code with Chancery and follow the specification of the protocol.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use chancery_testing::reserve_port;
use serde_json::{Value, json};

use crate::support::{
    STEP,
    chancery::Chancery,
    grpc::Script,
    in_directory,
    process::{python, script},
    wait_for,
};

const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";
const GATEWAYS: &str = "istio/networking/v1alpha3/gateways";
const NODE: &str = "python-sink";

struct Sink {
    script: Script,
    /// The messages since the last [`Self::wait_for`].
    counts: Counts,
}

impl Sink {
    /// Starts a sink that connects to a source.
    fn start(dir: &Path, xds: u16, incremental: bool) -> Result<Self> {
        let address = format!("127.0.0.1:{xds}");
        let args = ["--server", &address, "--incremental"];
        Self::launch(dir, if incremental { &args } else { &args[..2] })
    }

    /// Starts a sink that listens.
    fn listen(dir: &Path, port: u16) -> Result<Self> {
        Self::listen_with(dir, port, &[])
    }

    fn listen_with(dir: &Path, port: u16, args: &[&str]) -> Result<Self> {
        let port = port.to_string();
        let mut sink = Self::launch(dir, &[&["--port", &port, "--incremental"], args].concat())?;
        sink.script.answer()?;
        Ok(sink)
    }

    fn launch(dir: &Path, args: &[&str]) -> Result<Self> {
        let mut command = std::process::Command::new(python()?);
        command.args(["-B".as_ref(), script("mcp_sink.py").as_os_str()]);
        command.args(args).args(["--node", NODE, SERVICES, GATEWAYS]);
        Ok(Self { script: Script::start(NODE, dir, &command)?, counts: Counts::default() })
    }

    fn ask(&mut self, command: &str) -> Result<Value> {
        let report = self.script.ask(command)?;
        let count = |name: &str| report[name].as_u64().unwrap_or_default();
        self.counts.full += count("full");
        self.counts.differences += count("differences");
        self.counts.rejected += count("rejected");
        self.counts.resources += count("resources");
        Ok(report)
    }

    /// Returns the number of streams since the start, of open streams, and of received triggers.
    fn streams(&mut self) -> Result<[u64; 3]> {
        let report = self.ask("look")?;
        Ok(["streams", "open", "triggers"].map(|name| report[name].as_u64().unwrap_or_default()))
    }

    /// Waits until the sink holds these services, by name and text, and the server has the ACK of both collections, so
    /// that no more messages follow. Returns what the sink holds, and the counts of its messages since the last
    /// call.
    fn wait_for(
        &mut self,
        chancery: &Chancery,
        wanted: &[(&str, &str)],
    ) -> Result<(Value, Counts)> {
        let held = self.wait_for_held(wanted)?;
        chancery.wait_for_node(NODE, "synced", &[SERVICES, GATEWAYS])?;
        self.ask("look")?;
        Ok((held, std::mem::take(&mut self.counts)))
    }

    fn wait_for_held(&mut self, wanted: &[(&str, &str)]) -> Result<Value> {
        wait_for(&format!("{wanted:?}"), STEP, || {
            let held = self.ask("look")?["collections"][SERVICES].clone();
            // The key and the length of the text are control characters.
            let text = |one: &'_ Value| {
                one["body"].as_str().unwrap_or_default().replace(char::is_control, "")
            };
            let found: Vec<(String, String)> = held
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, one)| (name.clone(), text(one)))
                .collect();
            let wanted: Vec<(String, String)> =
                wanted.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
            ensure!(found == wanted, "the sink holds {held}");
            Ok(Some(held))
        })
    }
}

/// The messages that a sink received.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    full: u64,
    differences: u64,
    rejected: u64,
    resources: u64,
}

/// Returns a manifest of a resource. Its content is an encoded message in base64.
fn service(name: &str, message_base64: &str) -> Value {
    json!({
        "@type": SERVICES,
        "metadata": {"name": name, "labels": {"app": name}, "version": "of-the-author"},
        "body": {"@type": "type.googleapis.com/istio.networking.v1alpha3.VirtualService", "value": message_base64},
    })
}

/// Messages with the texts `one` and `two`, in base64.
const ONE: &str = "CgNvbmU=";
const TWO: &str = "CgN0d28=";

/// MCP-01, MCP-12, MCP-14, MCP-15, MCP-22, MCP-37, MCP-45 to -47, MCP-66: an incremental sink follows manifests,
/// rejects and recovers. It resumes after a crash of the server without a full state.
#[test]
fn python_sink_follows_manifests_and_resumes() -> Result<()> {
    in_directory(|dir| {
        let mut chancery = Chancery::start(dir)?;
        chancery.publish(&[service("ns/a", ONE), service("ns/b", ONE)])?;
        let mut sink = Sink::start(dir, chancery.at.xds, true)?;
        let (held, counts) = sink.wait_for(&chancery, &[("ns/a", "one"), ("ns/b", "one")])?;
        // The second collection is empty.
        assert_eq!(counts, Counts { full: 2, resources: 2, ..Counts::default() });
        assert_eq!(held["ns/a"]["labels"], json!({"app": "ns/a"}));
        assert_ne!(held["ns/a"]["version"], "of-the-author");
        let read = chancery.cli(&["get", SERVICES, "ns/a"], "")?;
        let shown = &read["resources"][0];
        assert_eq!(shown["body"]["metadata"]["version"], "of-the-author", "{shown}");
        let version = format!("{}-", shown["version"].as_str().unwrap_or_default());
        let sent = held["ns/a"]["version"].as_str().unwrap_or_default();
        assert!(sent.starts_with(&version), "{sent} is {version} and the incarnation");

        let current = [service("ns/a", TWO), service("ns/b", ONE)];
        chancery.publish_and_wait(&current)?;
        let (_, counts) = sink.wait_for(&chancery, &[("ns/a", "two"), ("ns/b", "one")])?;
        assert_eq!(counts, Counts { differences: 1, resources: 1, ..Counts::default() });
        chancery.wait_for_node(NODE, "synced", &[SERVICES, GATEWAYS])?;
        let nodes = chancery.cli(&["nodes"], "")?.to_string();
        assert!(nodes.contains("\"mcp\""), "{nodes}");

        let with = |name| [&current[..], &[service(name, ONE)]].concat();
        let text = chancery.publish_rejected(NODE, SERVICES, &with("ns/bad"))?;
        assert!(text.contains("ns/bad is bad"), "{text}");
        chancery.cli(&["delete", SERVICES, "ns/bad"], "")?;
        chancery.wait_for_node(NODE, "synced", &[SERVICES])?;
        let (_, counts) = sink.wait_for(&chancery, &[("ns/a", "two"), ("ns/b", "one")])?;
        assert_eq!((counts.rejected, counts.full), (1, 1), "{counts:?}");

        chancery.kill()?;
        chancery.start_again()?;
        chancery.publish(&with("ns/c"))?;
        sink.ask("reconnect")?;
        let (_, counts) =
            sink.wait_for(&chancery, &[("ns/a", "two"), ("ns/b", "one"), ("ns/c", "one")])?;
        assert_eq!(
            (counts.full, counts.resources),
            (1, 1),
            "only the empty collection: {counts:?}"
        );
        Ok(())
    })
}

/// MCP-32, MCP-34: a sink that takes no differences receives the full state each time, also after removals.
#[test]
fn python_sink_without_differences_receives_full_states() -> Result<()> {
    in_directory(|dir| {
        let chancery = Chancery::start(dir)?;
        let mut sink = Sink::start(dir, chancery.at.xds, false)?;
        chancery.wait_for_node(NODE, "synced", &[SERVICES, GATEWAYS])?;
        chancery.publish(&[service("ns/a", ONE), service("ns/b", ONE)])?;
        sink.wait_for(&chancery, &[("ns/a", "one"), ("ns/b", "one")])?;
        chancery.cli(&["delete", SERVICES, "ns/a"], "")?;
        let (_, counts) = sink.wait_for(&chancery, &[("ns/b", "one")])?;
        assert_eq!(counts, Counts { full: 1, resources: 1, ..Counts::default() });
        Ok(())
    })
}

/// MCP-02, MCP-03, MCP-65, MCP-66: the server connects to a sink that sends nothing before the first message. It
/// retries until the sink listens, and again after the sink was killed. The new sink holds nothing, and receives full
/// states. The exchange is that of a sink that connects.
#[test]
fn server_connects_to_a_python_sink_that_starts_later_and_restarts() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let address = format!("127.0.0.1:{port}");
        let chancery = Chancery::start_with(dir, &[("CHANCERY_MCP_SINKS", &address)])?;
        chancery.publish(&[service("ns/a", ONE)])?;
        for round in 0..2 {
            let mut sink = Sink::listen(dir, port)?;
            let (_, counts) = sink.wait_for(&chancery, &[("ns/a", "one")])?;
            assert_eq!(counts, Counts { full: 2, resources: 1, ..Counts::default() }, "{round}");
            assert_eq!(sink.streams()?, [1, 1, 1]);
            chancery.publish_and_wait(&[service("ns/a", TWO)])?;
            let (_, counts) = sink.wait_for(&chancery, &[("ns/a", "two")])?;
            assert_eq!(counts, Counts { differences: 1, resources: 1, ..Counts::default() });
            chancery.wait_for_node(NODE, "synced", &[SERVICES, GATEWAYS])?;
            assert_eq!(chancery.total("chancery_mcp_connected_sinks")?, 1.0);
            drop(sink);
            chancery.publish(&[service("ns/a", ONE)])?;
        }
        assert!(chancery.total("chancery_mcp_sink_failures_total")? >= 2.0);
        Ok(())
    })
}

/// MCP-65, MCP-73: without the trigger, the server waits for the requests of the sink. The stream ends with the server.
#[test]
fn server_without_the_trigger_serves_a_sink_until_it_stops() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let address = format!("127.0.0.1:{port}");
        let mut sink = Sink::listen_with(dir, port, &["--eager"])?;
        let settings = [("CHANCERY_MCP_SINKS", &*address), ("CHANCERY_MCP_SINKS_TRIGGER", "false")];
        let mut chancery = Chancery::start_with(dir, &settings)?;
        chancery.publish(&[service("ns/a", ONE)])?;
        sink.wait_for(&chancery, &[("ns/a", "one")])?;
        assert_eq!(sink.streams()?, [1, 1, 0]);
        chancery.terminate()?;
        wait_for("the end of the stream", STEP, || {
            let [streams, open, _] = sink.streams()?;
            ensure!((streams, open) == (1, 0), "{streams} streams, {open} open");
            Ok(Some(()))
        })
    })
}

/// MCP-03, MCP-14, MCP-70: one replica of a cluster connects to a sink. When it is killed, the next leader does, and
/// the sink resumes with the versions of the first.
#[test]
fn sink_moves_to_the_next_leader_and_resumes() -> Result<()> {
    in_directory(|dir| {
        let port = reserve_port();
        let address = format!("127.0.0.1:{port}");
        let sinks = ("CHANCERY_MCP_SINKS", address.as_str());
        let mut replicas: Vec<Chancery> = Vec::new();
        for id in ["1", "2", "3"] {
            let directory = dir.join(id);
            std::fs::create_dir(&directory)?;
            let mut settings = vec![sinks, ("CHANCERY_RAFT_REPLICA_ID", id)];
            let first = replicas.first().map(|first| format!("127.0.0.1:{}", first.at.raft));
            settings.extend(first.as_deref().map(|first| ("CHANCERY_RAFT_JOIN", first)));
            replicas.push(Chancery::start_with(&directory, &settings)?);
        }
        let all_vote = |replica: &Chancery| {
            let status = replica.cli(&["cluster", "status"], "")?;
            let members = status["members"].as_array().context("no members")?;
            let roles: Vec<&str> = members.iter().filter_map(|m| m["role"].as_str()).collect();
            ensure!(roles.len() == 3 && !roles.contains(&"joining"), "{roles:?}");
            Ok(Some(()))
        };
        wait_for("three voters", STEP, || all_vote(&replicas[0]))?;
        replicas[0].publish(&[service("ns/a", ONE), service("ns/b", ONE)])?;
        let mut sink = Sink::listen(dir, port)?;
        sink.wait_for_held(&[("ns/a", "one"), ("ns/b", "one")])?;
        // An election may have ended an earlier stream.
        let [before, open, _] = sink.streams()?;
        assert_eq!(open, 1, "only one replica connects");
        sink.counts = Counts::default();
        let leader = replicas[0].cli(&["cluster", "status"], "")?["leader"].as_u64();
        let leader = usize::try_from(leader.context("no leader")?)? - 1;
        replicas[leader].kill()?;
        wait_for("a stream of the next leader", 2 * STEP, || {
            let [streams, open, _] = sink.streams()?;
            ensure!(streams > before && open == 1, "{streams} streams, {open} open");
            Ok(Some(()))
        })?;
        replicas[(leader + 1) % 3].publish(&[service("ns/a", TWO), service("ns/b", ONE)])?;
        sink.wait_for_held(&[("ns/a", "two"), ("ns/b", "one")])?;
        assert_eq!(sink.counts.resources, 1, "only what changed: {:?}", sink.counts);
        Ok(())
    })
}
