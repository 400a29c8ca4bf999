//! Chancery as a sink of MCP, against sources in other processes and against a scripted source.

mod faulty_proxy;
mod script;

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    path::{Path, PathBuf},
};

use chancery_proto::istio::mcp::v1alpha1 as pb;
use chancery_testing::{Ca, reserve_address};
use serde_json::Value;

use crate::{
    cluster::{Replica, eventually, index},
    support::{Server, chancery, http_get},
};
use faulty_proxy::FaultyProxy;
use script::{Connecting, Script, SinkStream, resource};

const SERVICES: &str = "istio/networking/v1alpha3/virtualservices";

/// A cluster of one replica, whose address and data survive a restart.
struct Node {
    xds: SocketAddr,
    directory: PathBuf,
    environment: Vec<(&'static str, String)>,
    server: Option<Server>,
}

impl Node {
    fn start(root: &Path, name: &str, environment: &[(&'static str, String)]) -> Self {
        let mut node = Self {
            xds: reserve_address(),
            directory: root.join(name),
            environment: environment.to_vec(),
            server: None,
        };
        node.restart();
        node
    }

    /// Kills the process and starts it again.
    fn restart(&mut self) {
        self.server = None;
        let log = self.directory.with_extension("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = chancery();
        command
            .args(["serve", "--xds", &self.xds.to_string(), "--admin", "127.0.0.1:0", "--raft"])
            .args(["127.0.0.1:0", "--data-dir"])
            .arg(&self.directory)
            .env("CHANCERY_STORE_FREE_BYTES_MIN", "64MiB")
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stderr(log);
        self.server = Some(Server::spawn(command));
    }

    /// Kills the process, and starts another one at the same address, with an empty directory.
    fn restart_without_data(&mut self, other: &str) {
        self.server = None;
        self.directory = self.directory.with_file_name(other);
        self.restart();
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Publishes these resources, and deletes all others.
    fn publish(&self, contents: &[(String, u32)]) {
        let one = |(name, seconds): &(String, u32)| {
            format!(
                "- \"@type\": {SERVICES}\n  metadata: {{name: {name}}}\n  body: {{\"@type\": \
                 type.googleapis.com/google.protobuf.Duration, value: {seconds}s}}\n"
            )
        };
        let manifest = format!("resources:\n{}", contents.iter().map(one).collect::<String>());
        self.server().json(&["apply", "--prune", "-f", "-"], &manifest);
    }

    /// Returns the names and contents of the stored resources.
    fn stored(&self) -> Vec<(String, u32)> {
        let list = self.server().json(&["get", SERVICES], "");
        let seconds = |one: &Value| {
            let text = one["body"]["body"]["value"].as_str().unwrap();
            text.trim_end_matches('s').parse().unwrap()
        };
        let resources = list["resources"].as_array().unwrap().iter();
        resources.map(|one| (one["name"].as_str().unwrap().to_owned(), seconds(one))).collect()
    }

    fn revision(&self) -> u64 {
        let history = self.server().json(&["history"], "");
        history["entries"]
            .as_array()
            .unwrap()
            .first()
            .map_or(0, |newest| newest["revision"].as_u64().unwrap())
    }

    /// Returns the status of the only collection of the only source, when it fulfills a condition.
    fn wait(&self, what: &str, condition: impl Fn(&Value, &Value) -> bool) -> Value {
        let mut last = Value::Null;
        eventually(what, || {
            last = self.server().json(&["mcp", "status"], "");
            let source = &last["sources"][0];
            let collection = &source["collections"][0];
            condition(source, collection).then(|| collection.clone())
        })
    }

    fn wait_stored(&self, expected: &[(String, u32)]) {
        let mut expected = expected.to_vec();
        expected.sort();
        eventually("the sink stores the state of the source", || {
            let mut stored = self.stored();
            stored.sort();
            (stored == expected).then_some(())
        });
    }

    fn metric(&self, name: &str) -> f64 {
        let (_, page) = http_get(&self.server().admin, "/metrics");
        let samples = page.lines().filter(|line| line.starts_with(name));
        samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }
}

/// Returns the variable that configures one source. `key` is `address` or `listen`.
fn sources(key: &str, address: SocketAddr, settings: &str) -> (&'static str, String) {
    let source = format!(
        "[{{name = \"pilot\", {key} = \"{address}\", scope = \"mesh\", collections = [\"{SERVICES}\"]{settings}}}]"
    );
    ("CHANCERY_MCP_SOURCES", source)
}

/// The server that opens the stream between two servers.
#[derive(Debug, Clone, Copy)]
enum Opens {
    Sink,
    Source,
}

impl Opens {
    /// Runs a test in both directions.
    fn both(test: impl Fn(Self) + Sync) {
        std::thread::scope(|scope| {
            for opens in [Self::Sink, Self::Source] {
                let test = &test;
                scope.spawn(move || test(opens));
            }
        });
    }
}

/// A server that is a source, and one that is its sink.
struct Pair {
    source: Node,
    sink: Node,
    /// The address of the port to which the other side connects.
    port: SocketAddr,
}

impl Pair {
    fn start(root: &Path, opens: Opens, settings: &str) -> Self {
        Self::start_with(root, opens, settings, [&[], &[]], |address| address)
    }

    /// Starts a pair that connects through `proxy`, which returns its own address. `more` has variables of the source
    /// and of the sink.
    fn start_with(
        root: &Path,
        opens: Opens,
        settings: &str,
        more: [&[(&'static str, String)]; 2],
        proxy: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        let start = |name, one: Option<(&'static str, String)>, more: &[(&'static str, String)]| {
            let all: Vec<_> = one.into_iter().chain(more.iter().cloned()).collect();
            Node::start(root, name, &all)
        };
        match opens {
            Opens::Sink => {
                let source = start("source", None, more[0]);
                let configured = sources("address", proxy(source.xds), settings);
                let sink = start("sink", Some(configured), more[1]);
                Self { port: source.xds, source, sink }
            }
            Opens::Source => {
                let port = reserve_address();
                let sink = start("sink", Some(sources("listen", port, settings)), more[1]);
                let sinks = ("CHANCERY_MCP_SINKS", proxy(port).to_string());
                Self { port, source: start("source", Some(sinks), more[0]), sink }
            }
        }
    }
}

fn contents(range: std::ops::Range<usize>, seconds: u32) -> Vec<(String, u32)> {
    range.map(|n| (format!("ns/{n:03}"), seconds)).collect()
}

fn is_connected(source: &Value) -> bool {
    source["connection"] == "connected"
}

/// MCP-55 to -57, MCP-66: a sink takes over additions, updates and deletions. After a kill of either side, the first
/// message is an empty incremental response, and the sink commits nothing.
#[test]
fn sink_follows_a_source_and_resumes_after_kills() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let Pair { mut source, mut sink, .. } = Pair::start(root.path(), opens, "");
        source.publish(&contents(0..40, 1));
        sink.wait_stored(&contents(0..40, 1));
        let mut changed = contents(0..35, 1);
        changed[3].1 = 9;
        source.publish(&changed);
        sink.wait_stored(&changed);
        let history = sink.server().json(&["history"], "");
        assert_eq!(history["entries"][0]["author"], "mcp/pilot", "{history}");
        let revision = sink.revision();

        // The sink counts a message before it sends the ACK.
        eventually("the source has all ACKs", || {
            let nodes = source.server().json(&["nodes"], "");
            (nodes["nodes"][0]["state"] == "synced").then_some(())
        });
        let n = sink.wait("a status", |_, _| true)["accepted"].as_u64().unwrap();
        source.restart();
        let is_resumed = |n: u64| {
            move |source: &Value, one: &Value| {
                is_connected(source) && one["accepted"].as_u64() >= Some(n)
            }
        };
        sink.wait("the sink accepts the first message of the next stream", is_resumed(n + 1));
        let pushed = source.metric("chancery_xds_pushed_bytes_total");
        assert!(pushed > 0.0 && pushed < 300.0, "{pushed} bytes");
        assert_eq!(sink.revision(), revision);

        sink.restart();
        sink.wait("the restarted sink accepts its first message", is_resumed(1));
        let pushed = source.metric("chancery_xds_pushed_bytes_total");
        assert!(pushed < 600.0, "{pushed} bytes");
        assert_eq!(sink.revision(), revision);
        changed.push(("ns/new".to_owned(), 2));
        source.publish(&changed);
        sink.wait_stored(&changed);
    });
}

/// MCP-34: a sink of full states follows a source, too, and commits no state twice.
#[test]
fn sink_of_full_states_follows_a_source() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let Pair { source, mut sink, .. } =
            Pair::start(root.path(), opens, ", incremental = false");
        source.publish(&contents(0..30, 1));
        sink.wait_stored(&contents(0..30, 1));
        source.publish(&contents(5..33, 1));
        sink.wait_stored(&contents(5..33, 1));
        let revision = sink.revision();
        sink.restart();
        sink.wait("the restarted sink accepts a full state", |_, one| one["accepted"] == 1);
        assert_eq!(sink.revision(), revision);
    });
}

/// MCP-37: a source that comes back with other data replaces the state of the sink.
#[test]
fn source_with_other_data_replaces_the_state() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let Pair { mut source, sink, .. } = Pair::start(root.path(), opens, "");
        source.publish(&contents(0..30, 1));
        sink.wait_stored(&contents(0..30, 1));
        // The sink must not reach the other source before it has its data.
        let other = Node::start(root.path(), "other", &[]);
        other.publish(&contents(10..40, 7));
        drop(other);
        source.restart_without_data("other");
        sink.wait_stored(&contents(10..40, 7));
    });
}

/// MCP-45, MCP-56, MCP-57: a source that lost its data deletes nothing until the deletion is confirmed.
#[test]
fn lost_data_of_a_source_is_held_until_confirmed() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let Pair { mut source, mut sink, .. } = Pair::start(root.path(), opens, "");
        source.publish(&contents(0..30, 1));
        sink.wait_stored(&contents(0..30, 1));
        let revision = sink.revision();
        source.restart_without_data("empty");
        let is_held = |_: &Value, one: &Value| one["held"]["deletions"] == 30;
        let held = sink.wait("the deletion is held", is_held);
        assert_eq!((held["held"]["stored"].as_u64(), sink.revision()), (Some(30), revision));
        assert!(held["last_rejection"].as_str().unwrap().contains("mass-deletion"), "{held}");
        assert!(sink.metric("chancery_mcp_held_deletions") > 29.0);

        // The token survives a restart of the sink.
        sink.restart();
        let again = sink.wait("the deletion is held again", is_held);
        assert_eq!(again["held"]["token"], held["held"]["token"]);
        let confirm =
            |token: &str| sink.server().run(&["mcp", "confirm", "pilot", SERVICES, token]);
        let wrong = confirm("0");
        assert!(wrong.code != 0 && wrong.err.contains("is held"), "{wrong:?}");
        assert_eq!(sink.revision(), revision);
        let done = confirm(held["held"]["token"].as_str().unwrap());
        assert_eq!(done.code, 0, "{done:?}");
        sink.wait_stored(&[]);
        let status = sink.server().run(&["mcp", "status"]);
        assert!(status.code == 0 && status.out.contains("connected"), "{status:?}");
    });
}

/// MCP-56, MCP-57, MCP-65, MCP-66: a source from another implementation. An invalid resource is rejected, and the next
/// state repairs it. The sink reconnects when the stream ends, with the versions that it holds.
#[test]
fn scripted_source_is_answered_by_the_rules() {
    let root = tempfile::tempdir().unwrap();
    let mut script = Script::start();
    let sink = Node::start(root.path(), "sink", &[sources("address", script.address, "")]);
    exchange(&sink, || script.accept());
}

/// MCP-03, MCP-04: the exchange is the same if the source connects.
#[test]
fn scripted_source_that_connects_is_answered_by_the_rules() {
    let root = tempfile::tempdir().unwrap();
    let address = reserve_address();
    let sink = Node::start(root.path(), "sink", &[sources("listen", address, "")]);
    let source = Connecting::new(address);
    exchange(&sink, || source.open_admitted());
}

/// Plays a source whose streams come from `accept`.
fn exchange(sink: &Node, mut accept: impl FnMut() -> SinkStream) {
    let mut stream = accept();
    let first = stream.receive();
    assert_eq!((first.collection.as_str(), first.incremental), (SERVICES, true));
    assert_eq!(first.sink_node.unwrap().id, "chancery/1");
    stream.send(pb::Resources {
        collection: "$triggerCollection".to_owned(),
        ..pb::Resources::default()
    });
    let trigger = stream.receive();
    assert_eq!((trigger.error_detail.unwrap().code, trigger.response_nonce.as_str()), (12, ""));
    let counted = sink.metric("chancery_mcp_messages_total");
    assert!(counted < 0.5, "the trigger counts as a message with a result: {counted}");
    stream.send_state("1", &[resource("ns/a", "v1", 1), resource("ns/b", "v1", 1)]);
    let answer = stream.receive();
    assert_eq!((answer.response_nonce.as_str(), answer.error_detail), ("1", None));
    let expected = [("ns/a".to_owned(), 1), ("ns/b".to_owned(), 1)];
    assert_eq!(sink.stored(), expected, "an ACK follows the commit");

    stream.send_state("2", &[resource("ns/a", "v2", 2), resource("", "v2", 2)]);
    let answer = stream.receive();
    let error = answer.error_detail.unwrap();
    assert_eq!((answer.response_nonce.as_str(), error.code), ("2", 3));
    assert!(error.message.contains("metadata.name"), "{error:?}");
    assert_eq!(sink.stored(), expected);
    stream.send_state("3", &[resource("ns/a", "v3", 3)]);
    assert_eq!(stream.receive().error_detail, None);
    assert_eq!(sink.stored(), [("ns/a".to_owned(), 3)]);

    drop(stream);
    let mut stream = accept();
    let versions = stream.receive().initial_resource_versions;
    assert_eq!(versions.into_iter().collect::<Vec<_>>(), [("ns/a".to_owned(), "v3".to_owned())]);
    stream.send_state("1", &[]);
    assert_eq!(stream.receive().error_detail.unwrap().code, 9, "an empty start is held");
    assert_eq!(sink.stored(), [("ns/a".to_owned(), 3)]);
    stream.send_state("2", &[resource("ns/a", "v4", 4)]);
    assert_eq!(stream.receive().error_detail, None);
    assert_eq!(sink.stored(), [("ns/a".to_owned(), 4)]);
}

/// The status tells a failed connection from a stream that the source ended, and shows where the source has to connect.
#[test]
fn status_tells_a_failed_connection_from_an_ended_stream() {
    let check = |sink: &Node, proxy: &FaultyProxy, accept: &mut dyn FnMut() -> SinkStream| {
        let shows = |text: &str| {
            let has =
                |source: &Value| source["last_error"].as_str().is_some_and(|e| e.contains(text));
            sink.wait(text, |source, _| has(source));
        };
        let mut stream = accept();
        stream.receive();
        proxy.cut();
        shows("the connection failed");
        let mut stream = accept();
        stream.receive();
        drop(stream);
        shows("the source ended the stream");
    };
    let root = tempfile::tempdir().unwrap();
    let (mut script, proxy) = (Script::start(), FaultyProxy::default());
    let address = proxy.start(&[script.address]);
    let sink = Node::start(root.path(), "dials", &[sources("address", address, "")]);
    check(&sink, &proxy, &mut || script.accept());

    let (address, proxy) = (reserve_address(), FaultyProxy::default());
    let sink = Node::start(root.path(), "listens", &[sources("listen", address, "")]);
    let source = Connecting::new(proxy.start(&[address]));
    check(&sink, &proxy, &mut || source.open_admitted());
    sink.wait("the sink waits again", |source, _| source["connection"] == "waiting");
    let status = sink.server().run(&["mcp", "status"]);
    let waits = format!("pilot: waits for the source to connect to {address}; the last stream: ");
    assert!(status.out.contains(&waits), "{status:?}");
}

/// MCP-70: only the leader connects to the source. A leadership transfer ends the stream, and the next leader opens one.
#[test]
fn only_the_leader_dials_the_source() {
    let root = tempfile::tempdir().unwrap();
    let mut script = Script::start();
    let mut replicas = [1, 2, 3].map(|id| Replica::new(root.path(), id));
    for replica in &mut replicas {
        replica.environment.push(sources("address", script.address, ""));
    }
    let first = replicas[0].raft.clone();
    replicas[0].start_and_wait(&[]);
    for replica in &mut replicas[1..] {
        replica.start_and_wait(&["--join", &first]);
    }
    replicas[2].wait_voters(3);
    let mut stream = script.accept();
    let sink = stream.receive().sink_node.unwrap().id;
    let leader = index(&replicas[0].json(&["cluster", "status"])["leader"]);
    assert_eq!(sink, format!("chancery/{}", leader + 1));
    stream.send_state("1", &[resource("ns/a", "v1", 1)]);
    assert_eq!(stream.receive().error_detail, None);
    let next = (leader + 1) % 3;
    eventually("the next leader reports that it is a follower", || {
        let follower = replicas[next].json(&["mcp", "status", "--local"]);
        (follower["sources"][0]["connection"] == "follower").then_some(())
    });
    let refused = replicas[next].run(&["mcp", "confirm", "pilot", SERVICES, "0"], "");
    assert!(refused.code != 0 && refused.err.contains("does not lead"), "{refused:?}");

    let id = (next + 1).to_string();
    let done = replicas[leader].run(&["cluster", "transfer-leader", &id], "");
    assert_eq!(done.code, 0, "{done:?}");
    stream.wait_end();
    let mut stream = script.accept();
    let request = stream.receive();
    assert_eq!(request.sink_node.unwrap().id, format!("chancery/{id}"));
    assert_eq!(request.initial_resource_versions["ns/a"], "v1");
    assert!(script.is_idle(), "one stream at a time");
}

/// MCP-04, MCP-70: only the leader serves a source that connects, and only one stream at a time. A hand-over ends the
/// stream with `UNAVAILABLE`, and the next leader continues with the versions of the first.
#[test]
fn only_the_leader_serves_one_stream_of_a_source_that_connects() {
    let root = tempfile::tempdir().unwrap();
    let mut replicas = [1, 2, 3].map(|id| Replica::new(root.path(), id));
    let addresses = [(); 3].map(|()| reserve_address());
    for (replica, address) in replicas.iter_mut().zip(addresses) {
        replica.environment.push(sources("listen", address, ""));
    }
    let connecting = addresses.map(Connecting::new);
    let first = replicas[0].raft.clone();
    replicas[0].start_and_wait(&[]);
    for replica in &mut replicas[1..] {
        replica.start_and_wait(&["--join", &first]);
    }
    replicas[2].wait_voters(3);
    let leader = index(&replicas[0].json(&["cluster", "status"])["leader"]);
    let next = (leader + 1) % 3;
    let mut stream = connecting[leader].open_admitted();
    assert_eq!(stream.receive().sink_node.unwrap().id, format!("chancery/{}", leader + 1));
    stream.send_state("1", &[resource("ns/a", "v1", 1)]);
    assert_eq!(stream.receive().error_detail, None);

    let refused = connecting[leader].open().err().expect("a second stream is refused");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("already has a stream"), "{refused}");
    let refused = connecting[next].open().err().expect("a follower refuses streams");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let leading = format!("the leader, which is replica {}", leader + 1);
    assert!(refused.message().contains(&leading), "{refused}");
    let status = replicas[leader].json(&["mcp", "status"]);
    let source = &status["sources"][0];
    assert!(source["listen"].is_string() && source["peer"].is_string(), "{source}");
    let (_, metrics) = http_get(&replicas[leader].admin, "/metrics");
    let refusals = "chancery_mcp_refused_streams_total{source=\"pilot\"}";
    assert!(metrics.contains(refusals) && !metrics.contains(&format!("{refusals} 0\n")));

    let id = (next + 1).to_string();
    let done = replicas[leader].run(&["cluster", "transfer-leader", &id], "");
    assert_eq!(done.code, 0, "{done:?}");
    let ended = stream.end_status().expect("the stream does not end with OK");
    assert_eq!(ended.code(), tonic::Code::Unavailable, "{ended}");
    let mut stream = connecting[next].open_admitted();
    let request = stream.receive();
    assert_eq!(request.sink_node.unwrap().id, format!("chancery/{id}"));
    assert_eq!(request.initial_resource_versions["ns/a"], "v1");

    drop(stream);
    // A client repeats its calls on the same connection, which the balancer cannot move.
    let balancer = FaultyProxy::default();
    let targets = [leader, (next + 1) % 3, next].map(|index| addresses[index]);
    let balanced = Connecting::new(balancer.start(&targets));
    let mut stream = balanced.open_admitted_on_one_channel();
    assert_eq!(stream.receive().sink_node.unwrap().id, format!("chancery/{id}"));
}

/// T20: bytes that are not a stream of MCP change nothing, and do not occupy the port of a source.
#[test]
fn hostile_input_on_the_port_of_a_source_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let address = reserve_address();
    let settings =
        [sources("listen", address, ""), ("CHANCERY_MCP_MESSAGE_BYTES_MAX", "64KiB".to_owned())];
    let sink = Node::start(root.path(), "sink", &settings);
    sink.wait("the port is served", |source, _| source["connection"] == "waiting");
    let talk = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        // The server may close the connection first.
        drop(stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write)));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    };
    let page = talk(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 505 "), "{page}");
    // A web page can send such a request to the loopback address.
    let page = talk(
        b"POST /istio.mcp.v1alpha1.ResourceSink/EstablishResourceStream HTTP/1.1\r\nhost: a\r\n\
          content-type: text/plain\r\ncontent-length: 5\r\n\r\n\0\0\0\0\0",
    );
    assert!(page.starts_with("HTTP/1.1 505 "), "{page}");
    talk(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff");
    talk(&[0x16; 4096]);
    let source = Connecting::new(address);
    let mut stream = source.open_admitted();
    stream.receive();
    let large = "x".repeat(100 << 10);
    stream.send(pb::Resources { system_version_info: large, ..pb::Resources::default() });
    let ended = stream.end_status().expect("an error");
    assert!(ended.message().contains("mcp.message_bytes_max"), "{ended}");
    let mut stream = source.open_admitted();
    stream.receive();
    stream.send_state("", &[resource("ns/a", "v1", 1)]);
    let ended = stream.end_status().expect("an error");
    assert!(ended.message().contains("no nonce"), "{ended}");
    let mut stream = source.open_admitted();
    stream.receive();
    stream.send_state("1", &[resource("ns/a", "v1", 1)]);
    assert_eq!(stream.receive().error_detail, None);
    assert_eq!(sink.stored(), [("ns/a".to_owned(), 1)]);
}

/// MCP-66: in both directions, a proxy delays bytes and cuts connections while the source changes. Both sides are
/// equal at the end.
#[test]
fn sink_follows_a_source_through_a_faulty_proxy() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let proxy = FaultyProxy::default();
        let Pair { source, sink, .. } =
            Pair::start_with(root.path(), opens, "", [&[], &[]], |address| proxy.start(&[address]));
        eventually("a connection", || (proxy.n_connections() > 0).then_some(()));
        for round in 0..8_u32 {
            let first = usize::try_from(round).unwrap();
            source.publish(&contents(first..first + 40, round));
            if round % 2 == 1 {
                proxy.cut();
            }
        }
        sink.wait_stored(&contents(7..47, 7));
        assert!(proxy.n_connections() >= 2, "the proxy has cut a connection");
        let failures = source.metric("chancery_xds_nacks_total");
        assert!(failures < 0.5, "{failures} NACKs");
        sink.wait("the sink has rejected nothing", |_, one| one["rejected"] == 0);
    });
}

/// Writes a certificate for the loopback address, and returns the variables for TLS of MCP and of the xDS port.
fn tls_variables(root: &Path, name: &str, own: &Ca, trusted: &Ca) -> Vec<(&'static str, String)> {
    let (cert, key) = own.loopback().write(root, name);
    let ca = root.join(format!("{name}-ca.pem"));
    std::fs::write(&ca, trusted.pem()).unwrap();
    let variables = [
        ("CHANCERY_MCP_TLS_CERT", &cert),
        ("CHANCERY_MCP_TLS_KEY", &key),
        ("CHANCERY_MCP_TLS_CA", &ca),
        ("CHANCERY_XDS_TLS_CERT", &cert),
        ("CHANCERY_XDS_TLS_KEY", &key),
        ("CHANCERY_XDS_TLS_CLIENT_CA", &ca),
    ];
    variables.map(|(variable, path)| (variable, path.display().to_string())).to_vec()
}

/// MCP-67: with TLS, both sides need a certificate of the CA, whoever opens the connection. A renewed certificate is used
/// without a restart.
#[test]
fn sink_follows_a_source_over_tls() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let ca = Ca::new("mesh");
        let variables =
            ["source-tls", "sink-tls"].map(|name| tls_variables(root.path(), name, &ca, &ca));
        let Pair { mut source, sink, port } =
            Pair::start_with(root.path(), opens, "", [&variables[0], &variables[1]], |address| {
                address
            });
        source.publish(&contents(0..30, 1));
        sink.wait_stored(&contents(0..30, 1));
        let refused =
            Connecting::new(port).open().err().expect("a connection without TLS is refused");
        assert_ne!(refused.code(), tonic::Code::Ok);

        // The names of the old certificates are no longer of use.
        let renewed = Ca::new("renewed");
        for name in ["source-tls", "sink-tls"] {
            tls_variables(root.path(), name, &renewed, &renewed);
        }
        source.restart();
        source.publish(&contents(0..31, 2));
        sink.wait_stored(&contents(0..31, 2));
    });
}

/// MCP-67: a source that connects needs a certificate with one of the configured names, and not only of the CA.
#[test]
fn source_needs_one_of_the_configured_names() {
    for (names, is_allowed) in
        [("'spiffe://mesh/galley', 'localhost'", true), ("'spiffe://mesh/galley'", false)]
    {
        let root = tempfile::tempdir().unwrap();
        let ca = Ca::new("mesh");
        let variables =
            ["source-tls", "sink-tls"].map(|name| tls_variables(root.path(), name, &ca, &ca));
        let settings = format!(", peer_names = [{names}]");
        let more: [&[_]; 2] = [&variables[0], &variables[1]];
        let Pair { source, sink, .. } =
            Pair::start_with(root.path(), Opens::Source, &settings, more, |address| address);
        source.publish(&contents(0..3, 1));
        if is_allowed {
            sink.wait_stored(&contents(0..3, 1));
            continue;
        }
        let log = source.directory.with_extension("log");
        eventually("the source learns why it is refused", || {
            let log = std::fs::read_to_string(&log).unwrap();
            log.contains("does not allow (peer_names)").then_some(())
        });
        assert!(sink.metric("chancery_mcp_refused_streams_total") > 0.5);
        assert_eq!(sink.stored(), []);
    }
}

/// MCP-67: a side with a certificate of another CA is refused, and changes nothing.
#[test]
fn certificate_of_another_ca_is_refused() {
    Opens::both(|opens| {
        let root = tempfile::tempdir().unwrap();
        let (ca, other) = (Ca::new("mesh"), Ca::new("other"));
        let of_source = tls_variables(root.path(), "source-tls", &other, &ca);
        let of_sink = tls_variables(root.path(), "sink-tls", &ca, &ca);
        let Pair { source, sink, .. } =
            Pair::start_with(root.path(), opens, "", [&of_source, &of_sink], |address| address);
        source.publish(&contents(0..30, 1));
        let failures = match opens {
            Opens::Sink => "chancery_mcp_stream_errors_total",
            Opens::Source => "chancery_tls_handshakes_total{port=\"mcp\",result=\"unknown_ca\"}",
        };
        eventually("the sink refuses the source", || (sink.metric(failures) > 1.5).then_some(()));
        assert_eq!(sink.stored(), []);
        if let Opens::Sink = opens {
            let status = sink.server().run(&["mcp", "status"]);
            assert!(status.out.contains("UnknownIssuer"), "{status:?}");
        }
    });
}
