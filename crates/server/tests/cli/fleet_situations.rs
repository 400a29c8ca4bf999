//! Situations of a fleet, one after another. After each, every replica that runs gives the same answers, and they are the
//! truth: what the scripted clients hold and have answered.

mod answers;
mod silence;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Signal;

use crate::{
    cluster::eventually,
    network::Cut,
    scripted::{Client, Manner, Protocol},
    scripted_fleet::Fleet,
    support::clusters,
};

use self::{answers::difference, table::TABLE};

/// The marks of published clusters by scope and name.
type Marks = BTreeMap<(String, String), i64>;

const RULES: &str = "assignments:\n\
    - {name: canary, priority: 30, match: {id: 'canary-*'}, scopes: [canary, shared]}\n\
    - {name: edge, priority: 20, match: {id: 'edge-*'}, scopes: ['node/{node.id}', shared]}\n\
    - {name: crowd, priority: 10, match: {id: 'crowd-*'}, scopes: [crowd, shared]}\n";

/// A fleet, its clients, and what was published.
struct World {
    fleet: Fleet,
    /// The clients by a name of the test. Two clients may have one node ID.
    clients: BTreeMap<&'static str, Client>,
    /// The marks of the published clusters by scope and name.
    published: Marks,
    /// The replicas that hang or are down.
    missing: BTreeSet<usize>,
    /// The replica that runs, and reaches no other one.
    cut_off: Option<CutOff>,
    /// The pattern of the node IDs to which no assignment applies.
    unassigned: &'static str,
    /// The newest revision.
    revision: u64,
    mark: i64,
}

/// A replica that is cut off from the others, and what it has: no write since then.
struct CutOff {
    at: usize,
    published: Marks,
    revision: u64,
}

impl World {
    fn start(fleet: Fleet) -> Self {
        let mut world = Self {
            fleet,
            clients: BTreeMap::new(),
            published: BTreeMap::new(),
            missing: BTreeSet::new(),
            cut_off: None,
            unassigned: "stray",
            revision: 0,
            mark: 1,
        };
        world.apply(0, RULES);
        world.write(0, &["assignments", "delete", "default", "--confirm", "all"], "");
        world.publish(0, "shared", &["web", "db"]);
        let homes = [("edge-1", 0), ("edge-2", 1), ("edge-3", 2), ("canary-1", 1)];
        for (id, at) in homes {
            world.connect(id, id, at);
        }
        world.connect_crowd(if is_long() { 300 } else { 12 });
        world
    }

    /// Connects clients that accept everything, and return when they lose their streams. Half of them use delta.
    fn connect_crowd(&mut self, n: usize) {
        for number in 0..n {
            let key: &'static str = Box::leak(format!("crowd-{number}").into_boxed_str());
            let mut client = Client::new(key);
            client.returns = true;
            if number % 2 == 0 {
                client.protocol = Protocol::Delta;
            }
            self.fleet.connect(&mut client, number % 3);
            self.clients.insert(key, client);
        }
    }

    /// Runs a command that writes.
    fn write(&mut self, at: usize, args: &[&str], input: &str) {
        let answer = self.fleet.write(at, args, input);
        self.revision = answer["revision"].as_u64().unwrap_or(self.revision);
    }

    fn apply(&mut self, at: usize, manifest: &str) {
        self.write(at, &["apply", "--confirm", "all", "-f", "-"], manifest);
    }

    /// Publishes clusters with a new mark.
    fn publish(&mut self, at: usize, scope: &str, names: &[&str]) -> i64 {
        self.mark += 1;
        self.apply(at, &format!("scope: {scope}\n{}", clusters(names, &format!("{}s", self.mark))));
        for name in names {
            self.published.insert((scope.to_owned(), (*name).to_owned()), self.mark);
        }
        self.mark
    }

    fn delete(&mut self, at: usize, scope: &str, name: &str) {
        self.write(at, &["delete", "cds", name, "--scope", scope, "--confirm", "all"], "");
        self.published.remove(&(scope.to_owned(), name.to_owned()));
    }

    /// Adds a client, and connects it.
    fn connect(&mut self, key: &'static str, id: &str, at: usize) {
        self.add(key, Client::new(id), at);
    }

    fn add(&mut self, key: &'static str, client: Client, at: usize) {
        self.clients.insert(key, client);
        self.reconnect(key, at);
    }

    fn reconnect(&mut self, key: &'static str, at: usize) {
        self.fleet.connect(self.clients.get_mut(key).unwrap(), at);
        self.until(key, |client| client.record().connected == Some(at));
    }

    fn close(&mut self, key: &'static str) {
        self.clients.get_mut(key).unwrap().close();
        self.until(key, |client| client.record().connected.is_none());
    }

    fn client(&self, key: &str) -> &Client {
        &self.clients[key]
    }

    fn manner(&self, key: &str, manner: Manner) {
        self.client(key).record().manner = manner;
    }

    fn until(&self, key: &str, is_so: impl Fn(&Client) -> bool) {
        eventually(key, || is_so(self.client(key)).then_some(()));
    }

    /// Waits until a client holds the cluster with a mark.
    fn until_held(&self, key: &str, name: &str, mark: i64) {
        self.until(key, |client| client.record().mark(name) == Some(mark));
    }

    /// Waits until a client does not hold the cluster.
    fn until_gone(&self, key: &str, name: &str) {
        self.until(key, |client| client.record().mark(name).is_none());
    }

    /// Waits until a client has a response that it does not answer.
    fn until_owing(&self, key: &str) {
        self.until(key, |client| !client.record().unanswered.is_empty());
    }

    /// Waits until a client has rejected a response.
    fn until_rejected(&self, key: &str) {
        self.until(key, |client| !client.record().rejected.is_empty());
    }

    /// Returns a replica that answers.
    fn asked(&self) -> usize {
        (0..3).find(|at| !self.missing.contains(at)).unwrap()
    }

    fn is_cut_off(&self, at: usize) -> bool {
        self.cut_off.as_ref().is_some_and(|cut| cut.at == at)
    }

    /// Returns the replicas whose answers a replica has, including its own.
    fn reached_by(&self, asked: usize) -> BTreeSet<usize> {
        let is_reached = |at: &usize| {
            *at == asked
                || !self.missing.contains(at) && !self.is_cut_off(asked) && !self.is_cut_off(*at)
        };
        (0..3).filter(is_reached).collect()
    }

    /// Cuts a replica off from the others. It runs, and its clients reach it.
    fn cut(&mut self, at: usize, cut: Cut) {
        let (published, revision) = (self.published.clone(), self.revision);
        self.cut_off = Some(CutOff { at, published, revision });
        self.fleet.network.cut(at, cut);
    }

    /// Connects the replica that was cut off.
    fn heal(&mut self) {
        self.fleet.network.heal();
        self.cut_off = None;
        self.fleet.replicas[0].wait_voters(3);
    }

    fn leader(&self) -> usize {
        self.fleet.leader(self.asked())
    }

    /// Returns a follower. It is not the first replica, which the situations of lost replicas ask.
    fn follower(&self) -> usize {
        let leader = self.leader();
        (1..3).find(|at| *at != leader).unwrap()
    }

    /// Makes a replica the leader.
    fn lead(&mut self, at: usize) {
        self.write(0, &["cluster", "transfer-leader", &(at + 1).to_string()], "");
        eventually("the replica leads", || (self.leader() == at).then_some(()));
    }

    fn hang(&mut self, at: usize) {
        self.fleet.signal(at, Signal::STOP);
        self.missing.insert(at);
    }

    fn go_on(&mut self, at: usize) {
        self.fleet.signal(at, Signal::CONT);
        self.missing.remove(&at);
    }

    /// Kills a replica, and waits until its clients have noticed that.
    fn kill(&mut self, at: usize) {
        let keys = self.keys_at(at);
        self.fleet.replicas[at].kill();
        self.missing.insert(at);
        for key in keys {
            self.until(key, |client| client.record().connected != Some(at));
        }
    }

    fn keys_at(&self, at: usize) -> Vec<&'static str> {
        let is_here = |(_, client): &(&&str, &Client)| client.record().connected == Some(at);
        self.clients.iter().filter(is_here).map(|(key, _)| *key).collect()
    }

    /// Starts a killed replica again.
    fn restart(&mut self, at: usize) {
        self.fleet.restart(at);
        self.missing.remove(&at);
    }
}

fn is_long() -> bool {
    std::env::var_os("CHANCERY_TEST_LONG").is_some()
}

/// A change of the fleet, and what the test then asks about.
struct Situation {
    name: &'static str,
    change: fn(&mut World),
    /// The node and the name of a cluster.
    subject: (&'static str, &'static str),
}

/// Every replica answers with the truth in each situation.
#[test]
fn answers_are_the_truth_in_every_situation() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::start(Fleet::start(root.path()));
    // A part of the situations: those of the table with this number.
    let part: Option<usize> =
        std::env::var("CHANCERY_TEST_PART").ok().and_then(|part| part.parse().ok());
    let tables = TABLE.into_iter().enumerate().filter(|(n, _)| part.is_none_or(|part| part == *n));
    let situations = tables.flat_map(|(_, table)| table);
    for (n, Situation { name, change, subject }) in situations.enumerate() {
        change(&mut world);
        let mut last = String::new();
        eventually(name, || match difference(&world, *subject, n) {
            None => Some(()),
            Some(text) => {
                if text != last {
                    eprintln!("{name}: {text}");
                }
                last = text;
                None
            }
        });
        eprintln!("{name}: the answers are right");
    }
}
