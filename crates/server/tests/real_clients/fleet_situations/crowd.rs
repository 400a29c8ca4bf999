//! Synthetic clients in addition to the real clients. Half of them use delta. Each client records its resources.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    scripted::{Addresses, Client, Manner, Protocol},
    support::{STEP, chancery::Chancery, manifests::CLUSTER, wait_for},
};

/// The scope of all synthetic clients, and their cluster.
pub(super) const SCOPE: &str = "crowd";

/// Connected synthetic clients by their ID.
pub(super) struct Crowd {
    runtime: Runtime,
    addresses: Addresses,
    clients: BTreeMap<String, Client>,
}

/// Returns the ID of a client. It is connected to the replica `number % 3`, and uses delta if the number is even.
pub(super) fn id(number: usize) -> String {
    format!("crowd-{number}")
}

/// Returns the cluster of the clients with a mark.
pub(super) fn cluster(mark: i64) -> Value {
    json!({"@type": CLUSTER, "name": SCOPE, "connect_timeout": format!("{mark}s")})
}

impl Crowd {
    pub(super) fn start(replicas: &[Chancery; 3], n: usize) -> Result<Self> {
        let addresses = replicas.each_ref().map(|replica| format!("127.0.0.1:{}", replica.at.xds));
        let (runtime, addresses) = (Runtime::new()?, Arc::new(Mutex::new(addresses)));
        let mut crowd = Self { runtime, addresses, clients: BTreeMap::new() };
        for number in 0..n {
            let protocol = if number % 2 == 0 { Protocol::Delta } else { Protocol::Sotw };
            crowd.connect(&id(number), &id(number), protocol, number % 3);
        }
        Ok(crowd)
    }

    /// Adds a client with a name in the test and a node ID, and connects it.
    pub(super) fn connect(&mut self, name: &str, id: &str, protocol: Protocol, at: usize) {
        let mut client = Client::new(id);
        (client.protocol, client.returns) = (protocol, true);
        client.connect(self.runtime.handle(), &self.addresses, at);
        self.clients.insert(name.to_owned(), client);
    }

    /// Connects a client that has left.
    pub(super) fn return_to(&mut self, name: &str, at: usize) -> Result<()> {
        let client = self.clients.get_mut(name).context("no client")?;
        client.connect(self.runtime.handle(), &self.addresses, at);
        Ok(())
    }

    pub(super) fn close(&mut self, name: &str) -> Result<()> {
        self.clients.get_mut(name).context("no client")?.close();
        self.until(name, "it leaves", |client| client.record().connected.is_none())
    }

    /// Removes a client that has left.
    pub(super) fn forget(&mut self, name: &str) {
        self.clients.remove(name);
    }

    pub(super) fn client(&self, name: &str) -> Result<&Client> {
        self.clients.get(name).with_context(|| format!("no client {name}"))
    }

    pub(super) fn set_manner(&self, name: &str, manner: Manner) -> Result<()> {
        self.client(name)?.record().manner = manner;
        Ok(())
    }

    pub(super) fn until(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&Client) -> bool,
    ) -> Result<()> {
        let client = self.client(name)?;
        wait_for(&format!("{name}: {what}"), STEP, || Ok(is_so(client).then_some(())))
    }

    pub(super) fn until_rejected(&self, name: &str) -> Result<()> {
        self.until(name, "it rejects", |client| !client.record().rejected.is_empty())
    }

    pub(super) fn until_owing(&self, name: &str) -> Result<()> {
        self.until(name, "it owes an answer", |client| !client.record().unanswered.is_empty())
    }

    /// Waits until all connected clients except `except` hold the cluster with a mark.
    pub(super) fn until_held(&self, mark: i64, except: &[&str]) -> Result<()> {
        for (name, client) in &self.clients {
            let is_excepted = except.contains(&name.as_str());
            if !is_excepted && client.record().connected.is_some() {
                self.until(name, "it holds the cluster", |client| {
                    client.record().mark(SCOPE) == Some(mark)
                })?;
            }
        }
        Ok(())
    }

    /// Adds the replicas of each node ID.
    pub(super) fn add_places(&self, places: &mut BTreeMap<String, Vec<usize>>) {
        for client in self.clients.values() {
            if let Some(at) = client.record().connected {
                places.entry(client.id.clone()).or_default().push(at);
            }
        }
        places.values_mut().for_each(|at| at.sort_unstable());
    }

    /// Compares the accepted versions of a list of nodes with those that the clients have accepted.
    pub(super) fn check_versions(&self, nodes: &Value) -> Result<()> {
        for node in nodes["nodes"].as_array().context("no nodes")? {
            let id = node["id"].as_str().unwrap_or_default();
            let streams = node["streams"].as_array().context("no streams")?;
            for client in self.clients.values().filter(|client| client.id == id) {
                let record = client.record().clone();
                let Some(at) = record.connected else { continue };
                let is_it = |stream: &&Value| stream["replica_id"] == at + 1;
                let stream = streams.iter().find(is_it).with_context(|| format!("{node}"))?;
                let shown = &stream["subscriptions"][0];
                let accepted = record.accepted.get(CLUSTER).cloned().unwrap_or_default();
                let is_open = !record.accepted_here.contains(CLUSTER);
                ensure!(
                    shown["acked_version"] == accepted || is_open && shown["acked_version"] == "",
                    "{id} has accepted {accepted:?}: {shown}"
                );
                let is_rejected = shown["nack_message"] != "";
                ensure!(is_rejected == record.rejected.contains_key(CLUSTER), "{id}: {shown}");
            }
        }
        Ok(())
    }
}
