//! Guards, references and client profiles of three replicas: each replica knows the nodes of all, and names those that
//! did not answer.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use chancery_model::types::CLUSTER;
use chancery_proto::{
    discovery::{DiscoveryRequest, DiscoveryResponse},
    node::Node,
};
use prost::Message;
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, transport::Channel};

use crate::{
    cluster::{Replica, eventually, index},
    support::{Done, signal},
};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const RULES: &str = "assignments: [{name: each, priority: 1, match: {id: 'envoy-*'}, scopes: ['node/{node.id}', base]}]";

/// A SotW stream that subscribes to all clusters.
struct Client {
    _requests: tokio::sync::mpsc::Sender<DiscoveryRequest>,
    _responses: Streaming<DiscoveryResponse>,
}

async fn connect(xds: &str, id: &str, user_agent: &str, type_url: &str) -> Client {
    let channel = Channel::from_shared(format!("http://{xds}")).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let (requests, stream) = tokio::sync::mpsc::channel(4);
    let node = Node { id: id.into(), user_agent_name: user_agent.into(), ..Node::default() };
    let request = DiscoveryRequest {
        node: Some(node.encode_to_vec().into()),
        type_url: type_url.to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(request).await.unwrap();
    let codec = tonic_prost::ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static(SOTW);
    let response = client.streaming(Request::new(ReceiverStream::new(stream)), path, codec).await;
    Client { _requests: requests, _responses: response.unwrap().into_inner() }
}

fn cluster(name: &str) -> String {
    format!(
        "{{'@type': {CLUSTER}, name: {name}, connect_timeout: 1s, type: EDS, eds_cluster_config: {{eds_config: {{ads: {{}}}}}}}}"
    )
}

fn endpoints(n: usize) -> String {
    let one = "{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 80}}}}";
    let all = vec![one; n].join(", ");
    format!(
        "{{'@type': type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment, cluster_name: c0, endpoints: \
         [{{lb_endpoints: [{all}]}}]}}"
    )
}

fn route(name: &str, cluster: &str) -> String {
    format!(
        "{{'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: {name}, virtual_hosts: [{{name: \
         all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}]}}]}}"
    )
}

/// Returns `n` clusters, endpoints of the first one, and a route to it.
fn content(scope: &str, n: usize, n_endpoints: usize) -> String {
    let mut all: Vec<String> = (0..n).map(|n| cluster(&format!("c{n}"))).collect();
    all.extend([endpoints(n_endpoints), route("main", "c0")]);
    manifest(scope, &all)
}

fn manifest(scope: &str, resources: &[String]) -> String {
    format!("scope: {scope}\nresources: [{}]", resources.join(", "))
}

/// Three replicas with a node on each. The node of each replica has a scope of its own.
struct Fleet {
    replicas: [Replica; 3],
    runtime: Runtime,
    clients: Vec<Client>,
}

impl Fleet {
    fn start(root: &Path) -> Self {
        let mut replicas = [1, 2, 3].map(|id| Replica::new(root, id));
        for replica in &mut replicas {
            // A SotW response exceeds the limit with few clusters.
            replica.environment.push(("CHANCERY_GUARDS_SOTW_BYTES_MAX", "64KiB".to_owned()));
        }
        let first = replicas[0].raft.clone();
        replicas[0].start_and_wait(&[]);
        for replica in &mut replicas[1..] {
            replica.start(&["--join", &first]);
        }
        for replica in &mut replicas[1..] {
            replica.wait_ready();
        }
        replicas[2].wait_voters(3);
        let runtime = Runtime::new().unwrap();
        let mut fleet = Self { replicas, runtime, clients: Vec::new() };
        fleet.write(0, &["apply", "-f", "-"], RULES);
        for id in 1..=3 {
            fleet.write(0, &["apply", "-f", "-"], &content(&format!("node/envoy-{id}"), 30, 3));
            let at = usize::try_from(id - 1).unwrap();
            fleet.connect(at, &format!("envoy-{id}"), "envoy");
        }
        fleet
    }

    fn connect(&mut self, at: usize, id: &str, user_agent: &str) {
        self.connect_for(at, id, user_agent, CLUSTER);
    }

    /// Connects a node that subscribes to all resources of a type.
    fn connect_for(&mut self, at: usize, id: &str, user_agent: &str, type_url: &str) {
        let replica = &self.replicas[at];
        let client = self.runtime.block_on(connect(&replica.xds(), id, user_agent, type_url));
        self.clients.push(client);
        eventually("the node is listed", || {
            let nodes = replica.json(&["nodes"]);
            let nodes = nodes["nodes"].as_array()?.clone();
            nodes.iter().any(|node| node["id"] == id).then_some(())
        });
    }

    /// Runs a command that must succeed.
    fn write(&self, at: usize, args: &[&str], input: &str) -> Done {
        let done = self.replicas[at].run(args, input);
        assert_eq!(done.code, 0, "{args:?} at replica {}: {done:?}", at + 1);
        done
    }

    /// Returns the answer to a dry run at a replica.
    fn dry_run(&self, at: usize, args: &[&str], input: &str) -> Value {
        let args = [args, &["--dry-run", "--exit-zero", "-o", "json"]].concat();
        serde_json::from_str(&self.write(at, &args, input).out).unwrap()
    }

    /// Returns the position of a replica that does not lead.
    fn follower(&self) -> usize {
        let leader = index(&self.replicas[0].wait_voters(3)["leader"]);
        (leader + 1) % 3
    }

    fn revision(&self, at: usize) -> Value {
        self.replicas[at].json(&["cluster", "status"])["revision"].clone()
    }
}

/// A write that takes something from the node of one replica.
struct Case {
    guard: &'static str,
    args: Vec<String>,
    input: String,
    effect: String,
}

/// Returns a write for each guard. It concerns only the node `envoy-3`, whose scope depends on its ID.
fn cases() -> Vec<Case> {
    let case = |guard, args: &[&str], input: &str, effect: &str| Case {
        guard,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        input: input.to_owned(),
        effect: effect.to_owned(),
    };
    let apply = ["apply", "-f", "-"];
    let scope = "node/envoy-3";
    let moved =
        "assignments: [{name: third, priority: 9, match: {id: envoy-3}, scopes: [nothing]}]";
    let large: Vec<String> =
        (0..300).map(|n| cluster(&format!("{}{n}", "long".repeat(50)))).collect();
    let prune = ["apply", "--prune", "--scope", scope, "-f", "-"];
    vec![
        case(
            "view-change",
            &apply,
            moved,
            "1 node: node/envoy-3, base → nothing, 32 → 0 resources",
        ),
        case(
            "mass-deletion",
            &prune,
            &content(scope, 15, 3),
            "view node/envoy-3, base (1 node): 30 → 15 resources of type Cluster, more than 30 % deleted",
        ),
        case(
            "cluster-in-use",
            &["delete", "cds", "c0", "--scope", scope],
            "",
            "view node/envoy-3, base (1 node): RouteConfiguration \"main\" still uses the cluster \"c0\"",
        ),
        case(
            "empty-endpoints",
            &apply,
            &manifest(scope, &[endpoints(0)]),
            "view node/envoy-3, base (1 node): 3 → 0 endpoints of \"c0\"",
        ),
        case(
            "sotw-size",
            &apply,
            &manifest(scope, &large),
            "view node/envoy-3, base (1 node): a SotW response with every Cluster: 0.00 MiB → 0.08 MiB, more than 0.06 MiB",
        ),
    ]
}

/// Every guard gives one answer, whichever replica is asked. The node is connected to one of them.
#[test]
fn every_guard_gives_the_same_answer_at_each_replica() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let before = fleet.revision(0);
    for Case { guard, args, input, effect } in cases() {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let guards = |at| {
            let answer = fleet.dry_run(at, &args, &input);
            assert_eq!(answer["not_asked"], Value::Array(Vec::new()), "{answer}");
            answer["guards"].clone()
        };
        let first = guards(0);
        assert_eq!(first[0]["guard"], guard, "{first}");
        assert_eq!(first[0]["effects"], Value::from(vec![effect.clone()]), "{guard}");
        assert_eq!(first[0]["replicas_not_asked"], 0);
        assert_eq!((guards(1), guards(2)), (first.clone(), first), "{guard}");
        let refusals: BTreeSet<String> = (0..3)
            .map(|at| {
                let refused = fleet.replicas[at].run(&args, &input);
                assert_eq!(refused.code, 1, "{guard} at replica {}: {refused:?}", at + 1);
                refused.err
            })
            .collect();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        let refusal = refusals.first().unwrap();
        let start =
            format!("error: guard `{guard}` rejects the write: {effect}; nothing was written");
        assert!(refusal.starts_with(&start), "{refusal}");
    }
    assert_eq!(fleet.revision(1), before, "nothing was written");
    check_references(&fleet);
    check_profiles(&mut fleet);
    check_collections(&mut fleet);
}

/// Returns a virtual service of a collection.
fn virtual_service(collection: &str) -> String {
    let body = "{'@type': type.googleapis.com/istio.networking.v1alpha3.VirtualService, value: CgdyZXZpZXdz}";
    format!("{{'@type': {collection}, metadata: {{name: shop/reviews}}, body: {body}}}")
}

/// A collection is requested if a node of any replica asks for it. Otherwise, `apply` and `explain` name the version that
/// nodes ask for.
fn check_collections(fleet: &mut Fleet) {
    let url = |version: &str| format!("networking.istio.io/{version}/VirtualService");
    fleet.connect_for(2, "istiod", "istiod", &url("v1"));
    let resource = |version: &str| manifest("base", &[virtual_service(&url(version))]);
    let text = format!(
        "no connected node asks for {}, but 1 node asks for {}",
        url("v1alpha3"),
        url("v1")
    );
    for at in 0..3 {
        let args = ["apply", "-f", "-", "--dry-run", "--exit-zero"];
        let done = fleet.write(at, &args, &resource("v1alpha3"));
        assert!(done.err.contains(&text), "replica {}: {done:?}", at + 1);
        let done = fleet.write(at, &args, &resource("v1"));
        assert!(!done.err.contains("asks for"), "replica {}: {done:?}", at + 1);
        // The node is connected to one replica only, and `explain` says so with its code.
        let explained = fleet.replicas[at].run(&["explain", "istiod", &url("v1alpha3")], "");
        assert!(explained.out.contains(&text), "replica {}: {explained:?}", at + 1);
    }
    // The time of creation is that of the first write, whichever replica takes the next ones.
    let created = |at: usize| {
        let got = fleet.replicas[at].json(&["get", &url("v1"), "shop/reviews", "--scope", "base"]);
        got["resources"][0]["body"]["metadata"]["create_time"].clone()
    };
    fleet.write(0, &["apply", "-f", "-"], &resource("v1"));
    let first = created(0);
    assert!(first.is_string(), "{first}");
    for at in [1, 2, 0] {
        let done = fleet.write(at, &["apply", "-f", "-", "-o", "json"], &resource("v1"));
        let answer: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!((&answer["changed"], &answer["unchanged"]), (&0.into(), &1.into()), "{answer}");
        assert_eq!(created(at), first);
    }
}

/// A view with a variable is that of a node on another replica.
fn check_references(fleet: &Fleet) {
    let input = manifest("node/envoy-3", &[route("other", "gone")]);
    for at in 0..3 {
        let done = fleet.write(at, &["apply", "-f", "-", "--dry-run", "--exit-zero"], &input);
        let view = "refers to Cluster \"gone\", which is missing in 1 view: node/envoy-3+base (1 node); publish it";
        assert!(done.err.contains(view), "replica {}: {done:?}", at + 1);
    }
}

/// The rules for the clients of a scope are those of the clients of all replicas.
fn check_profiles(fleet: &mut Fleet) {
    fleet.connect(2, "envoy-go", "gRPC Go/1.85.0");
    let dns = format!("{{'@type': {CLUSTER}, name: a, type: STRICT_DNS}}");
    let args = ["apply", "-f", "-", "--validation", "enforce", "--dry-run"];
    for at in 0..3 {
        // The clients of other replicas may be known from a write of the last seconds.
        eventually("the gRPC client is known", || {
            let refused = fleet.replicas[at]
                .run(&args, &manifest("node/envoy-go", std::slice::from_ref(&dns)));
            refused.err.contains("a gRPC client (Go) would reject this cluster").then_some(())
        });
    }
}

/// Asserts that two replicas name a third one that did not answer, until the write confirms that.
fn check_unasked(fleet: &Fleet, missing: usize, reason: &str, text: &str) {
    let id = missing + 1;
    let moved = format!(
        "assignments: [{{name: moved, priority: 9, match: {{id: envoy-{id}}}, scopes: [nothing]}}]"
    );
    let args = ["apply", "-f", "-"];
    let others = (0..3).filter(|at| *at != missing);
    for at in others.clone() {
        let begun = Instant::now();
        let answer = fleet.dry_run(at, &args, &moved);
        let asked_for = begun.elapsed();
        let not_asked = &answer["not_asked"];
        assert_eq!(
            (&not_asked[0]["replica_id"], &not_asked[0]["reason"]),
            (&id.into(), &reason.into()),
            "{not_asked}"
        );
        let guards = answer["guards"].as_array().unwrap();
        assert_eq!(guards.len(), 1, "{answer}");
        assert_eq!(
            (&guards[0]["guard"], &guards[0]["replicas_not_asked"]),
            (&"unasked".into(), &1.into())
        );
        let effect = guards[0]["effects"][0].as_str().unwrap();
        assert!(effect.starts_with(&format!("replica {id} {text}")), "{effect}");
        // The question takes at most a second, and the rest of the command is short.
        assert!(asked_for < Duration::from_secs(20), "{asked_for:?}");
        let refused = fleet.replicas[at].run(&args, &moved);
        assert_eq!(refused.code, 1, "{refused:?}");
        let start = format!("error: guard `unasked` rejects the write: replica {id} ");
        assert!(refused.err.starts_with(&start), "{refused:?}");
        assert!(
            refused.err.contains("pass `--confirm unasked` (HTTP: confirm=unasked)"),
            "{refused:?}"
        );
        let with_endpoints = format!(
            "{{'@type': {CLUSTER}, name: new, type: STATIC, load_assignment: {{cluster_name: new, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 80}}}}}}}}]}}]}}}}"
        );
        let plain =
            fleet.dry_run(at, &args, &manifest("base", std::slice::from_ref(&with_endpoints)));
        assert_eq!(plain["guards"], Value::Array(Vec::new()), "no guard can concern this write");
        // The other replica may have clients of a scope without known ones.
        eventually("the answer names the replica", || {
            let unseen = manifest("unseen", std::slice::from_ref(&with_endpoints));
            let unseen = fleet.dry_run(at, &args, &unseen);
            let checked = &unseen["checked_clients"][0];
            let is_named = unseen["not_asked"][0]["replica_id"] == id;
            (is_named && checked["source"] == "assumed" && checked["replicas_not_asked"] == 1)
                .then_some(())
        });
        let collection = "networking.istio.io/v1alpha3/VirtualService";
        let done = fleet.dry_run(at, &args, &manifest("base", &[virtual_service(collection)]));
        assert_eq!(done["not_asked"][0]["replica_id"], missing + 1, "{done}");
        let warnings = done["warnings"].to_string();
        assert!(warnings.contains("it is not known whether nodes ask for"), "{done}");
    }
    for (n, at) in others.enumerate() {
        let moved = moved.replace("[nothing]", &format!("[nothing, n{n}]"));
        let written = fleet.write(at, &["apply", "-f", "-", "--confirm", "unasked"], &moved);
        assert!(written.out.contains("guard unasked, confirmed:\n"), "{written:?}");
    }
    let history = fleet.replicas[(missing + 1) % 3].json(&["history"]);
    assert_eq!(history["entries"][0]["confirmed"], Value::from(vec!["unasked"]), "{history}");
}

/// A replica that is down or hangs is named within the time for a question. The guard `unasked` then rejects what only
/// that replica could judge.
#[test]
fn replica_that_does_not_answer_is_named_and_trips_unasked() {
    let root = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::start(root.path());
    let hanging = fleet.follower();
    signal(fleet.replicas[hanging].child.as_ref().unwrap(), Signal::STOP);
    check_unasked(&fleet, hanging, "timed-out", "did not answer within ");
    signal(fleet.replicas[hanging].child.as_ref().unwrap(), Signal::CONT);
    let id = hanging + 1;
    let back = format!(
        "assignments: [{{name: moved, priority: 9, match: {{id: envoy-{id}}}, scopes: [back]}}]"
    );
    let other = (hanging + 1) % 3;
    eventually("the replica answers again", || {
        let answer = fleet.dry_run(other, &["apply", "-f", "-"], &back);
        answer["not_asked"].as_array().unwrap().is_empty().then_some(())
    });
    let delete = ["assignments", "delete", "moved", "--confirm", "all"];
    fleet.write(other, &delete, "");

    let down = fleet.follower();
    fleet.replicas[down].kill();
    check_unasked(&fleet, down, "down", "cannot be reached: ");
}
