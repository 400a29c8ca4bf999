//! Three replicas as processes, with scripted clients.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    cluster::{Replica, eventually, index},
    network::Network,
    scripted::{Addresses, Client},
    support::signal,
};

/// Three replicas, the network between them, and the addresses at which clients find them.
pub(crate) struct Fleet {
    pub(crate) replicas: [Replica; 3],
    pub(crate) network: Network,
    pub(crate) addresses: Addresses,
    pub(crate) runtime: Runtime,
}

impl Fleet {
    pub(crate) fn start(root: &Path) -> Self {
        let network = Network::start();
        let mut replicas = [1, 2, 3].map(|id| Replica::new(root, id));
        for (at, replica) in replicas.iter_mut().enumerate() {
            replica.environment.push(("CHANCERY_RAFT_ADVERTISE", network.address(at)));
            let first = network.address(0);
            let join: &[&str] = &["--join", &first];
            replica.start(if at == 0 { &[] } else { join });
            network.place(at, replica.child.as_ref().unwrap().id(), &replica.raft);
            if at == 0 {
                replica.wait_ready();
            }
        }
        replicas.iter_mut().for_each(Replica::wait_ready);
        replicas[2].wait_voters(3);
        let addresses = Arc::new(Mutex::new(replicas.each_ref().map(Replica::xds)));
        Self { replicas, network, addresses, runtime: Runtime::new().unwrap() }
    }

    pub(crate) fn connect(&self, client: &mut Client, at: usize) {
        client.connect(self.runtime.handle(), &self.addresses, at);
    }

    /// Starts a replica that has ended.
    pub(crate) fn restart(&mut self, at: usize) {
        self.start_again(at, &[]);
    }

    /// Starts a replica that has ended without its data. It joins the cluster through another replica.
    pub(crate) fn rejoin(&mut self, at: usize, through: usize) {
        fs::remove_dir_all(&self.replicas[at].directory).unwrap();
        let join = self.network.address(through);
        self.start_again(at, &["--join", &join]);
    }

    fn start_again(&mut self, at: usize, args: &[&str]) {
        let replica = &mut self.replicas[at];
        replica.start(args);
        self.network.place(at, replica.child.as_ref().unwrap().id(), &replica.raft);
        replica.wait_ready();
        self.addresses.lock().unwrap()[at] = self.replicas[at].xds();
    }

    pub(crate) fn signal(&self, at: usize, number: Signal) {
        signal(self.replicas[at].child.as_ref().unwrap(), number);
    }

    /// Waits until a replica knows a leader of the replicas that run.
    pub(crate) fn wait_leader(&self, at: usize) {
        eventually("a replica leads", || {
            (self.replicas[at].run(&["get"], "").code == 0).then_some(())
        });
    }

    /// Returns the position of the leader, as a replica knows it.
    pub(crate) fn leader(&self, at: usize) -> usize {
        index(&self.replicas[at].wait_voters(3)["leader"])
    }

    /// Runs a command that must succeed, and returns its answer.
    pub(crate) fn write(&self, at: usize, args: &[&str], input: &str) -> Value {
        let args = [args, &["-o", "json"]].concat();
        let done = self.replicas[at].run(&args, input);
        assert_eq!(done.code, 0, "{args:?} at replica {}: {done:?}", at + 1);
        serde_json::from_str(&done.out).unwrap()
    }
}
