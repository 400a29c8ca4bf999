//! Three replicas as processes, with scripted clients.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::{
    cluster::{Replica, eventually, index, joined},
    scripted::{Addresses, Client},
    support::signal,
};

/// Three replicas, and the addresses at which clients find them.
pub(crate) struct Fleet {
    pub(crate) replicas: [Replica; 3],
    pub(crate) addresses: Addresses,
    pub(crate) runtime: Runtime,
}

impl Fleet {
    pub(crate) fn start(root: &Path) -> Self {
        let replicas = joined(root);
        let addresses = Arc::new(Mutex::new(replicas.each_ref().map(Replica::xds)));
        Self { replicas, addresses, runtime: Runtime::new().unwrap() }
    }

    pub(crate) fn connect(&self, client: &mut Client, at: usize) {
        client.connect(self.runtime.handle(), &self.addresses, at);
    }

    /// Starts a replica that has ended.
    pub(crate) fn restart(&mut self, at: usize) {
        self.replicas[at].start_and_wait(&[]);
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
