//! Three replicas with Envoys, gRPC clients and synthetic clients in situations about which operators ask.
//!
//! After each situation, the test compares the answer of every replica with what the clients hold. It reads Envoy's
//! configuration dump and the status of each gRPC client. Each synthetic client records what it has received.

mod commands;
mod crowd;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    net::{Ipv4Addr, TcpListener},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use chancery_testing::{Lack, reserve_port, skip};
use serde_json::{Value, json};

use self::{
    commands::{
        add, check_client, check_version, check_wait, node_of, own, publish, revision_of,
        start_envoy, subscription_of, write,
    },
    crowd::Crowd,
    table::{Situation, TABLE},
};
use crate::network::Network;
use crate::support::{
    STEP,
    chancery::Chancery,
    envoy::{Envoy, Mode},
    grpc::{GrpcClient, GrpcServer, Kind},
    held::Held,
    http, in_directory,
    manifests::{CLUSTER, LISTENER, ROUTE, cluster, endpoints, listener, route, service},
    report,
    switch::Switch,
    upstream, wait_for,
};

const SERVICE: &str = "greeter.fleet";

/// Returns whether `cargo xtask fleet` runs the test, with nothing else on the machine.
fn is_large() -> bool {
    env::var_os("CHANCERY_TEST_FLEET").is_some()
}

/// Returns the kinds of the gRPC clients. A machine may lack one.
fn kinds() -> Result<Vec<Kind>> {
    let all = if is_large() {
        &[Kind::Python, Kind::Go, Kind::Node, Kind::Python][..]
    } else {
        &[Kind::Python; 2]
    };
    let or_python = |kind: &Kind| {
        Ok(match kind.absence()? {
            Some(reason) => {
                skip(Lack::Go, &format!("the fleet has no grpc-go: {reason}"));
                Kind::Python
            }
            None => *kind,
        })
    };
    all.iter().map(or_python).collect()
}

/// An Envoy that is connected to a replica.
struct Proxy {
    id: String,
    mode: Mode,
    /// The index of the replica.
    at: usize,
    port: u16,
    switch: Switch,
    envoy: Envoy,
}

impl Proxy {
    fn scope(&self) -> String {
        format!("own/{}", self.id)
    }

    fn held(&self) -> Result<Held> {
        Held::of(self.envoy.admin)
    }
}

struct Fleet {
    replicas: [Chancery; 3],
    /// The indexes of the replicas that answer.
    live: Vec<usize>,
    proxies: Vec<Proxy>,
    /// The gRPC clients, each with its ID, its replica, and its connection.
    clients: Vec<(String, usize, Switch, GrpcClient)>,
    crowd: Crowd,
    /// The newest mark of the cluster of the synthetic clients.
    mark: i64,
    /// The nodes that are not synced, each with its state and a part of the text.
    unusual: Vec<(String, &'static str, &'static str)>,
    network: Network,
    _servers: [GrpcServer; 1],
}

/// The state of a node, and a part of its text.
type Condition<'a> = (&'a str, &'a str);

/// SOTW-28, CSDS-07: the answers of all replicas agree with the clients in each situation.
#[test]
fn all_replicas_answer_as_the_clients_of_the_fleet_confirm() -> Result<()> {
    in_directory(|dir| {
        let mut fleet = Fleet::start(dir)?;
        fleet.check("the start", &[])?;
        fleet.rejected_listener()?;
        fleet.dangling_name()?;
        fleet.shadowed_cluster()?;
        fleet.revision_of_nobody()?;
        fleet.shared_id(dir)?;
        for situation in TABLE.iter().filter(|_| is_large()) {
            fleet.run(situation).context(situation.name)?;
        }
        fleet.stopped_replica()?;
        fleet.killed_replica()
    })
}

impl Fleet {
    fn start(dir: &Path) -> Result<Self> {
        let network = Network::start();
        let replicas = Chancery::start_three_behind(dir, &[], Some(&network))?;
        let servers = [GrpcServer::start(dir, "a")?];
        let rules = json!({"assignments": [
            {"name": "proxies", "priority": 10, "match": {"id": "edge-*"}, "scopes": ["own/{node.id}", "mesh"]},
            {"name": "clients", "priority": 5, "match": {"id": "grpc-*"}, "scopes": ["grpc"]},
            {"name": "crowd", "priority": 3, "match": {"id": "crowd-*"}, "scopes": [crowd::SCOPE]},
        ]});
        replicas[0].cli(&["apply", "-f", "-"], &rules.to_string())?;
        let default = ["assignments", "delete", "default", "--confirm", "all"];
        replicas[0].cli(&default, "")?;
        let mode = Mode::SotwAds;
        let mesh = [
            cluster(mode, "web", "20s"),
            endpoints("web", upstream::spawn("web")?),
            route("main", "web"),
        ];
        publish(&replicas[1], "mesh", &mesh)?;
        publish(&replicas[2], "grpc", &service(SERVICE, "calls", servers[0].port))?;
        let mut proxies = Vec::new();
        for n in 0..if is_large() { 20 } else { 6 } {
            let (at, id) = (n % 3, format!("edge-{n}"));
            let mode = if (n / 3) % 2 == 0 { Mode::DeltaAds } else { Mode::SotwAds };
            let port = reserve_port();
            let own = listener(mode, "main", port, "main", "main");
            publish(&replicas[(at + 1) % 3], &format!("own/{id}"), &[own])?;
            let switch = Switch::start(replicas[at].at.xds)?;
            let envoy = start_envoy(dir, mode, &id, &id, switch.port)?;
            proxies.push(Proxy { id, mode, at, port, switch, envoy });
        }
        let mut clients = Vec::new();
        for (n, kind) in kinds()?.into_iter().enumerate() {
            let (at, id) = (n % 3, format!("grpc-{n}"));
            let switch = Switch::start(replicas[at].at.xds)?;
            let mut client = GrpcClient::start(dir, kind, &id, switch.port, SERVICE)?;
            client.wait_for_only("a")?;
            clients.push((id, at, switch, client));
        }
        publish(&replicas[0], crowd::SCOPE, &[crowd::cluster(1)])?;
        let crowd = Crowd::start(&replicas, if is_large() { 300 } else { 12 })?;
        let fleet = Self {
            replicas,
            live: vec![0, 1, 2],
            proxies,
            clients,
            crowd,
            mark: 1,
            unusual: Vec::new(),
            network,
            _servers: servers,
        };
        fleet.wait_for_conditions(&[])?;
        Ok(fleet)
    }

    /// Returns the ID of each node with the indexes of its replicas.
    fn places(&self) -> BTreeMap<String, Vec<usize>> {
        let proxies = self.proxies.iter().map(|proxy| (proxy.id.clone(), vec![proxy.at]));
        let clients = self.clients.iter().map(|(id, at, ..)| (id.clone(), vec![*at]));
        let mut places = proxies.chain(clients).collect();
        self.crowd.add_places(&mut places);
        places
    }

    /// Expects a state of a node from now on.
    fn expect(&mut self, id: &str, state: &'static str, text: &'static str) {
        self.unusual.push((id.to_owned(), state, text));
    }

    /// Expects that all nodes are synced from now on.
    fn expect_nothing(&mut self) {
        self.unusual.clear();
    }

    fn unusual_ids(&self) -> Vec<String> {
        self.unusual.iter().map(|(id, ..)| id.clone()).collect()
    }

    /// Returns the IDs of the synthetic clients of replicas that do not answer.
    fn crowd_of_dead(&self) -> Vec<String> {
        let mut places = BTreeMap::new();
        self.crowd.add_places(&mut places);
        let is_dead = |(_, at): &(String, Vec<usize>)| !at.iter().all(|at| self.live.contains(at));
        places.into_iter().filter(is_dead).map(|(id, _)| id).collect()
    }

    /// Lets the real clients of a replica connect to another one.
    fn move_clients(&mut self, from: usize, to: usize) {
        let xds = self.replicas[to].at.xds;
        let proxies = self.proxies.iter_mut().map(|proxy| (&mut proxy.at, &proxy.switch));
        let clients = self.clients.iter_mut().map(|(_, at, switch, _)| (at, &*switch));
        for (at, switch) in proxies.chain(clients).filter(|(at, _)| **at == from) {
            switch.cut();
            switch.connect(xds);
            *at = to;
        }
    }

    /// Waits until the nodes have these conditions, and all others are synced.
    fn wait_for_conditions(&self, unusual: &[(&str, Condition<'_>)]) -> Result<()> {
        wait_for("the conditions of all nodes", 2 * STEP, || {
            let shown = self.replicas[self.live[0]].ask(&["nodes"], "")?.json;
            self.check_nodes(&shown, unusual, &self.places()).map(Some)
        })
    }

    /// Asks every live replica about everything, and compares the answers with the clients. Nodes without an unusual
    /// condition are synced.
    fn check(&mut self, situation: &str, unusual: &[(&str, Condition<'_>)]) -> Result<()> {
        for proxy in &self.proxies {
            ensure!(http::get(proxy.port, "/")? == "web", "{} does not serve", proxy.id);
        }
        for at in self.live.clone() {
            let asked = format!("{situation}: replica {} answers", at + 1);
            self.check_replica(at, unusual).context(asked)?;
        }
        report(&format!("{situation}: {} replicas agree with the clients", self.live.len()));
        Ok(())
    }

    /// Causes a situation, and compares the answers of every live replica about all nodes with the clients. Also compares
    /// the dump of one Envoy of each replica.
    fn run(&mut self, situation: &Situation) -> Result<()> {
        (situation.change)(self)?;
        let unusual = self.unusual.clone();
        let unusual: Vec<(&str, Condition<'_>)> =
            unusual.iter().map(|(id, state, text)| (id.as_str(), (*state, *text))).collect();
        self.wait_for_conditions(&unusual)?;
        let revision = revision_of(&self.replicas[self.live[0]])?;
        for at in self.live.clone() {
            self.check_lists(at, revision, &unusual)
                .with_context(|| format!("replica {} answers", at + 1))?;
        }
        let name = situation.name;
        report(&format!("{name}: {} replicas agree with the clients", self.live.len()));
        Ok(())
    }

    fn check_lists(
        &mut self,
        at: usize,
        revision: u64,
        unusual: &[(&str, Condition<'_>)],
    ) -> Result<()> {
        let replica = &self.replicas[at];
        let places = self.places();
        let done = replica.ask(&["nodes"], "")?;
        let incomplete = if self.live.len() == 3 { 0 } else { 4 };
        ensure!(done.status.code() == Some(incomplete), "nodes: {done:?}");
        self.check_not_asked(&done.json)?;
        self.check_nodes(&done.json, unusual, &places)?;
        self.crowd.check_versions(&done.json)?;

        let is_open = |(_, (state, _)): &&(&str, Condition<'_>)| *state != "unassigned";
        let open: BTreeSet<&str> = unusual.iter().filter(is_open).map(|(id, _)| *id).collect();
        let timeout = if open.is_empty() { "30s" } else { "1s" };
        let waited = replica.ask(&["wait", &revision.to_string(), "--timeout", timeout], "")?;
        self.check_not_asked(&waited.json)?;
        let unsettled = waited.json["unsettled"].as_array().context("no list")?;
        let unsettled: BTreeSet<_> =
            unsettled.iter().filter_map(|one| one["node"].as_str()).collect();
        let code = if open.is_empty() { incomplete } else { 1 };
        ensure!(unsettled == open && waited.status.code() == Some(code), "{waited:?}");
        let behind = replica.ask(&["nodes", "--behind", &revision.to_string()], "")?.json;
        let behind = behind["nodes"].as_array().context("no nodes")?;
        let behind: BTreeSet<_> = behind.iter().filter_map(|node| node["id"].as_str()).collect();
        ensure!(behind == open, "{behind:?} are behind, expected {open:?}");

        let described = replica.ask(&["describe", "cluster", crowd::SCOPE], "")?.json;
        let seen = described["scopes"][0]["nodes_total"].as_u64().context("no number")?;
        let mut crowd = BTreeMap::new();
        self.crowd.add_places(&mut crowd);
        let is_seen = |id: &str| unusual.iter().all(|one| *one != (id, ("unassigned", "")));
        crowd.retain(|id, at| is_seen(id) && at.iter().all(|at| self.live.contains(at)));
        // The answer lists 100 nodes, so that a node on two replicas may count twice.
        let (nodes, streams) = (crowd.len() as u64, crowd.values().map(Vec::len).sum::<usize>());
        ensure!((nodes..=streams as u64).contains(&seen), "{seen} of {nodes} see the cluster");

        let proxy = self.proxies.iter().find(|proxy| proxy.at == at);
        if let Some(proxy) = proxy {
            let held = proxy.held()?;
            self.check_proxy(replica, proxy, &held, &done.json)
                .with_context(|| format!("{}: {held:#?}", proxy.id))?;
        }
        for (id, _, _, client) in self.clients.iter_mut().filter(|(_, of, ..)| *of == at) {
            let node = node_of(&done.json, id)?;
            check_client(node, client).with_context(|| format!("{id}: {node:#}"))?;
        }
        Ok(())
    }

    fn check_replica(&mut self, at: usize, unusual: &[(&str, Condition<'_>)]) -> Result<()> {
        let replica = &self.replicas[at];
        let done = replica.ask(&["nodes"], "")?;
        let code = if self.live.len() == 3 { 0 } else { 4 };
        ensure!(done.status.code() == Some(code), "nodes: {done:?}");
        self.check_not_asked(&done.json)?;
        self.check_nodes(&done.json, unusual, &self.places())?;
        let mut holders = BTreeMap::<String, BTreeSet<&str>>::new();
        for proxy in self.proxies.iter().filter(|proxy| self.live.contains(&proxy.at)) {
            let held = proxy.held()?;
            self.check_proxy(replica, proxy, &held, &done.json)
                .with_context(|| format!("{}: {held:#?}", proxy.id))?;
            let web = &held.active[&(CLUSTER, "web".to_owned())];
            let own = web["connect_timeout"] == "7s";
            let scope = if own { proxy.scope() } else { "mesh".to_owned() };
            holders.entry(scope).or_default().insert(&proxy.id);
        }
        let described = replica.ask(&["describe", "cluster", "web"], "")?.json;
        let scopes = described["scopes"].as_array().context("no scopes")?;
        let mut seen = BTreeMap::<String, BTreeSet<&str>>::new();
        for scope in scopes {
            let name = scope["resource"]["scope"].as_str().unwrap_or_default().to_owned();
            let nodes = scope["nodes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            seen.entry(name).or_default().extend(nodes);
        }
        ensure!(seen == holders, "describe says {seen:?}, and Envoy holds {holders:?}");
        for (id, replica_of, _, client) in &mut self.clients {
            if self.live.contains(replica_of) {
                let node = node_of(&done.json, id)?;
                check_client(node, client).with_context(|| format!("{id}: {node:#}"))?;
            }
        }
        Ok(())
    }

    /// An answer names the replicas that do not answer.
    fn check_not_asked(&self, answer: &Value) -> Result<()> {
        let named = answer["not_asked"].as_array().context("no list")?;
        let named: Vec<_> = named.iter().map(|one| one["replica_id"].clone()).collect();
        let dead: Vec<_> =
            (0..3).filter(|at| !self.live.contains(at)).map(|at| json!(at + 1)).collect();
        ensure!(named == dead, "{named:?} did not answer, but {dead:?} are gone");
        Ok(())
    }

    /// Compares a list of nodes with the places and conditions that they have.
    fn check_nodes(
        &self,
        answer: &Value,
        unusual: &[(&str, Condition<'_>)],
        places: &BTreeMap<String, Vec<usize>>,
    ) -> Result<()> {
        let listed = answer["nodes"].as_array().with_context(|| format!("no nodes: {answer}"))?;
        let shown: BTreeMap<String, Vec<usize>> = listed
            .iter()
            .map(|node| {
                let streams = node["streams"].as_array().into_iter().flatten();
                let ids = streams.filter_map(|stream| stream["replica_id"].as_u64());
                let mut at: Vec<_> = ids.filter_map(|id| usize::try_from(id - 1).ok()).collect();
                at.sort_unstable();
                (node["id"].as_str().unwrap_or_default().to_owned(), at)
            })
            .collect();
        let mut expected = places.clone();
        expected.retain(|_, at| at.iter().all(|at| self.live.contains(at)));
        ensure!(shown == expected, "nodes are at {shown:?}, expected {expected:?}");
        // A node that is connected is not shown as disconnected, too.
        for gone in answer["disconnected"].as_array().into_iter().flatten() {
            let id = gone["id"].as_str().unwrap_or_default();
            ensure!(!expected.contains_key(id), "{id} is connected, and shown as {gone}");
        }
        for node in listed {
            let id = node["id"].as_str().unwrap_or_default();
            let of_node = unusual.iter().find(|(unusual, _)| *unusual == id);
            let (state, text) = of_node.map_or(("synced", ""), |(_, condition)| *condition);
            let condition = &node["condition"];
            let message = condition["message"].as_str().unwrap_or_default();
            ensure!(
                condition["state"] == state && message.contains(text),
                "{id} is {condition}, expected {state} {text:?}"
            );
        }
        Ok(())
    }

    /// Compares the answers about one Envoy with its dump.
    fn check_proxy(
        &self,
        replica: &Chancery,
        proxy: &Proxy,
        held: &Held,
        nodes: &Value,
    ) -> Result<()> {
        let node = node_of(nodes, &proxy.id)?;
        let shown = replica.ask(&["node", &proxy.id], "")?.json;
        let subscriptions = |node: &Value| node["streams"][0]["subscriptions"].clone();
        ensure!(subscriptions(node) == subscriptions(&shown), "{node:#} is not {shown:#}");
        for type_url in [CLUSTER, LISTENER] {
            let subscription = subscription_of(node, type_url)?;
            check_version(subscription, held, type_url)?;
        }
        let refused = subscription_of(node, LISTENER)?["nack_message"].as_str().unwrap_or_default();
        for text in held.rejected.values() {
            ensure!(refused.contains(text.as_str()), "Envoy says {text:?}, and not {refused:?}");
        }
        ensure!(refused.is_empty() == held.rejected.is_empty(), "{refused:?}");
        // The view of the node, without what Envoy rejects or does not use yet.
        let view = replica.ask(&["get", "--node", &proxy.id], "")?.json;
        let mut wanted = BTreeMap::new();
        for resource in view["resources"].as_array().with_context(|| format!("no view: {view}"))? {
            let (type_url, name) = (resource["type_url"].as_str(), resource["name"].as_str());
            let known = [CLUSTER, LISTENER, ROUTE].into_iter().find(|one| Some(*one) == type_url);
            let (Some(type_url), Some(name)) = (known, name) else { continue };
            let key = (type_url, name.to_owned());
            self.check_explained(replica, (proxy, node), held, &key)
                .with_context(|| format!("explain {name}"))?;
            let is_rejected = type_url == LISTENER && held.rejected.contains_key(name);
            if !is_rejected && !held.warming.contains(&key) {
                wanted.insert(key, resource["body"].clone());
            }
        }
        ensure!(held.active == wanted, "the view has {wanted:#?}");
        Ok(())
    }

    /// `explain` says that a resource is acknowledged if Envoy holds it, and rejected if Envoy rejects it.
    fn check_explained(
        &self,
        replica: &Chancery,
        (proxy, node): (&Proxy, &Value),
        held: &Held,
        key: &(&'static str, String),
    ) -> Result<()> {
        let (type_url, name) = key;
        let answer = replica.ask(&["explain", &proxy.id, type_url, name], "")?.json;
        let said = answer["conclusions"].to_string();
        if *type_url == LISTENER && held.rejected.contains_key(name) {
            ensure!(said.contains(&format!("The client rejects {name} in version ")), "{said}");
            return Ok(());
        }
        if held.warming.contains(key) {
            return Ok(());
        }
        // With delta, each resource has its own version, and Envoy shows it.
        let acked = subscription_of(node, type_url)?["acked_version"].as_str().map(str::to_owned);
        let version = match proxy.mode {
            Mode::DeltaAds => held.version_of.get(key).cloned(),
            _ => acked,
        };
        let version = version.context("no version")?;
        let texts = [
            format!("The client has acknowledged {name} in version {version}."),
            // SotW: a rejected response also has listeners that Envoy has accepted before.
            format!("{name} has not changed since version {version}, which"),
        ];
        ensure!(texts.iter().any(|text| said.contains(text)), "not {texts:?}, but {said}");
        Ok(())
    }
}

// === The situations ===

impl Fleet {
    /// Envoy rejects a listener that admission accepts, because another process has its port. The others serve.
    fn rejected_listener(&mut self) -> Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = taken.local_addr()?.port();
        // Both are connected to the second replica. One uses delta, and the other SotW.
        let ids = ["edge-1", "edge-4"];
        let mut revision = 0;
        for id in ids {
            let bad = listener(Mode::SotwAds, "bad", port, "main", "bad");
            revision = add(&self.replicas[2], &own(id), &bad)?;
        }
        let unusual = ids.map(|id| (id, ("rejected", "cannot bind")));
        self.wait_for_conditions(&unusual)?;
        self.check("a rejected listener", &unusual)?;
        // The last revision concerns only one of them. The other one still rejects an earlier revision.
        for replica in &self.replicas {
            check_wait(replica, revision, &ids)?;
            let behind = replica.cli(&["nodes", "--behind", &revision.to_string()], "")?;
            let behind = behind["nodes"].as_array().context("no nodes")?;
            let behind: Vec<_> = behind.iter().filter_map(|node| node["id"].as_str()).collect();
            ensure!(behind == ids, "{behind:?} are behind");
        }
        for id in ids {
            self.replicas[0].cli(&["delete", "listener", "bad", "--scope", &own(id)], "")?;
        }
        self.wait_for_conditions(&[])?;
        self.check("the end of a rejection", &[])?;
        check_wait(&self.replicas[1], revision_of(&self.replicas[0])?, &[])
    }

    /// A listener refers to a route table that does not exist.
    fn dangling_name(&mut self) -> Result<()> {
        let ids = ["edge-2", "edge-5"];
        for id in ids {
            let lost = listener(Mode::SotwAds, "lost", reserve_port(), "nowhere", "lost");
            add(&self.replicas[0], &own(id), &lost)?;
        }
        let unusual = ids.map(|id| (id, ("waiting", "RouteConfiguration \"nowhere\"")));
        self.wait_for_conditions(&unusual)?;
        self.check("a name that dangles", &unusual)?;
        for replica in &self.replicas {
            for id in ids {
                let answer = replica.cli(&["explain", id, "route", "nowhere"], "")?;
                let said = answer["conclusions"].to_string();
                let missing = said.contains("\\\"nowhere\\\" is missing, although");
                ensure!(missing && said.contains("The stream asks for nowhere."), "{said}");
            }
        }
        for id in ids {
            self.replicas[1].cli(&["delete", "listener", "lost", "--scope", &own(id)], "")?;
        }
        self.wait_for_conditions(&[])?;
        self.check("the end of a dangling name", &[])
    }

    /// One node has a cluster of its own that shadows the one of all. It stays for the situations that follow.
    fn shadowed_cluster(&mut self) -> Result<()> {
        write(&self.replicas[2], &own("edge-0"), &[cluster(Mode::SotwAds, "web", "7s")])?;
        self.check("a shadowed cluster", &[])?;
        for replica in &self.replicas {
            let answer = replica.cli(&["explain", "edge-0", "cluster", "web"], "")?;
            let mesh = &answer["scopes"][1];
            let shown = (&mesh["scope"], &mesh["shadowed_by"]);
            ensure!(shown == (&json!("mesh"), &json!("own/edge-0")), "{answer}");
        }
        Ok(())
    }

    /// A write that no client sees.
    fn revision_of_nobody(&mut self) -> Result<()> {
        let held = || self.proxies.iter().map(Proxy::held).collect::<Result<Vec<_>>>();
        let before = held()?;
        let unseen = cluster(Mode::SotwAds, "unseen", "1s");
        let revision = add(&self.replicas[1], "nobody", &unseen)?;
        for replica in &self.replicas {
            check_wait(replica, revision, &[])?;
            let of_scope = ["wait", &revision.to_string(), "--scope", "nobody", "--timeout", "5s"];
            let done = replica.ask(&of_scope, "")?;
            ensure!(done.status.code() == Some(3), "{done:?}");
        }
        let after = held()?;
        ensure!(before == after, "Envoys held {before:#?}, and hold {after:#?}");
        self.check("a revision of nobody", &[])
    }

    /// Two Envoys use one node ID, on two replicas.
    fn shared_id(&mut self, dir: &Path) -> Result<()> {
        let (replica, first) = (&self.replicas[1], &self.proxies[0]);
        let twin = start_envoy(dir, first.mode, "twin", &first.id, replica.at.xds)?;
        let mut places = self.places();
        places.insert(first.id.clone(), vec![0, 1]);
        for replica in &self.replicas {
            wait_for("both streams of the ID", STEP, || {
                let answer = replica.cli(&["nodes"], "")?;
                self.check_nodes(&answer, &[], &places)?;
                let node = node_of(&answer, &first.id)?;
                ensure!(node["duplicates"] == 2, "{node:#}");
                Ok(Some(()))
            })?;
            let held = [first.held()?, Held::of(twin.admin)?];
            let node = replica.cli(&["node", &first.id], "")?;
            for stream in node["streams"].as_array().context("no streams")? {
                let at = usize::from(stream["replica_id"] == 2);
                for type_url in [CLUSTER, LISTENER] {
                    let all = stream["subscriptions"].as_array().context("none")?;
                    let one = all.iter().find(|one| one["type_url"] == type_url).context("none")?;
                    check_version(one, &held[at], type_url)?;
                }
            }
        }
        drop(twin);
        self.wait_for_conditions(&[])?;
        self.check("the end of a shared ID", &[])
    }

    /// A replica does not answer. The others say so, and answer for their own clients.
    fn stopped_replica(&mut self) -> Result<()> {
        self.replicas[2].freeze()?;
        self.live = vec![0, 1];
        wait_for("a leader without the stopped replica", STEP, || {
            add(&self.replicas[0], "mesh", &cluster(Mode::SotwAds, "web", "19s")).map(Some)
        })?;
        let revision = revision_of(&self.replicas[0])?;
        wait_for("the clients of the others", STEP, || {
            let done = self.ask_wait(0, revision)?;
            self.check_not_asked(&done)?;
            ensure!(done["unsettled"] == json!([]) && done["complete"] == false, "{done}");
            Ok(Some(()))
        })?;
        self.wait_for_conditions(&[])?;
        self.check("a stopped replica", &[])?;
        self.replicas[2].thaw()?;
        self.live = vec![0, 1, 2];
        self.wait_for_conditions(&[])?;
        check_wait(&self.replicas[1], revision, &[])?;
        self.check("the end of a stop", &[])
    }

    /// A replica is killed, and its clients move to another one.
    fn killed_replica(&mut self) -> Result<()> {
        self.replicas[0].kill()?;
        self.live = vec![1, 2];
        self.move_clients(0, 1);
        wait_for("a leader without the killed replica", STEP, || {
            add(&self.replicas[2], "mesh", &cluster(Mode::SotwAds, "web", "18s")).map(Some)
        })?;
        let revision = revision_of(&self.replicas[2])?;
        self.wait_for_conditions(&[])?;
        wait_for("the clients of the others", STEP, || {
            let done = self.ask_wait(2, revision)?;
            ensure!(done["unsettled"] == json!([]), "{done}");
            Ok(Some(()))
        })?;
        self.check("a killed replica", &[])?;
        self.replicas[0].start_again()?;
        self.replicas[0].wait_for_voters(3)?;
        self.live = vec![0, 1, 2];
        self.wait_for_conditions(&[])?;
        self.check("the return of a replica", &[])
    }

    /// Returns the answer of a wait that may be incomplete.
    fn ask_wait(&self, at: usize, revision: u64) -> Result<Value> {
        let args = ["wait", &revision.to_string(), "--timeout", "2s"];
        Ok(self.replicas[at].ask(&args, "")?.json)
    }
}
