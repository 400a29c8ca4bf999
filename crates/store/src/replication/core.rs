//! The parts of a running replica, which its handle, its server and its tasks share.

use std::sync::{Arc, OnceLock, atomic::AtomicBool};

use crate::{
    Config, OpenError, OwnPort,
    disk::{machine::Raft, storage::Storage},
    failure::Failure,
    format::identity::Identity,
    metrics::StoreMetrics,
    replication::{
        admit::Admitter,
        answer::Answering,
        ask::Asker,
        calls::Calls,
        digests::StateComparison,
        divergence::Divergence,
        forward::Forwarder,
        lost_entries::LostEntries,
        members::Members,
        outbox::Outbox,
        raft_node::{Leader, RaftNode},
        read_index::ReadIndex,
        reconcile::Reconciler,
        removal::RemovalDetector,
    },
};

/// A running replica. Each part owns its state.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    /// A random number that identifies this start of the replica.
    pub(crate) process: u64,
    /// The address at which other replicas reach this one; empty if it has none.
    pub(crate) address: String,
    /// The other ports of this replica, as soon as they are known.
    pub(crate) ports: OnceLock<Vec<OwnPort>>,
    /// Whether an operator drains the replica.
    pub(crate) is_drained: AtomicBool,
    pub(crate) storage: Storage,
    pub(crate) node: Arc<RaftNode>,
    pub(crate) calls: Calls,
    pub(crate) members: Arc<Members>,
    pub(crate) admitter: Admitter,
    pub(crate) removal: Arc<RemovalDetector>,
    pub(crate) divergence: Divergence,
    pub(crate) comparison: Arc<StateComparison>,
    pub(crate) lost_entries: LostEntries,
    pub(crate) forwarder: Forwarder,
    pub(crate) read_index: Arc<ReadIndex>,
    pub(crate) asker: Asker,
    pub(crate) answering: Answering,
    pub(crate) failure: Failure,
    pub(crate) metrics: StoreMetrics,
}

/// The parts from which a replica is assembled.
pub(crate) struct CoreParts {
    pub(crate) config: Config,
    pub(crate) process: u64,
    pub(crate) address: String,
    pub(crate) storage: Storage,
    pub(crate) raft: Raft,
    pub(crate) calls: Calls,
    pub(crate) outbox: Outbox,
    pub(crate) failure: Failure,
    pub(crate) metrics: StoreMetrics,
}

impl Core {
    /// Assembles a replica. Must be called on the runtime of the store.
    pub(crate) fn new(parts: CoreParts) -> Self {
        let CoreParts { config, process, address, storage, raft, calls, outbox, failure, metrics } =
            parts;
        let identity = calls.identity;
        let (runtime, data_dir) = (calls.runtime.clone(), config.data_dir.clone());
        let published = || storage.published.clone();
        let divergence =
            Divergence::new(data_dir, raft.clone(), runtime, failure.clone(), metrics.clone());
        let node = RaftNode::new(identity.replica_id, raft, &calls.peers, divergence.clone());
        let node = Arc::new(node);
        let (node_of, call) = (|| Arc::clone(&node), || calls.clone());
        let members = Arc::new(Members {
            node: node_of(),
            calls: call(),
            change_timeout: config.change_timeout,
        });
        let admitter = Admitter { node: node_of(), identity, members: Arc::clone(&members) };
        let removal =
            RemovalDetector::new(node_of(), call(), address.clone(), process, failure.clone());
        let comparison = StateComparison::new(
            node_of(),
            call(),
            Arc::clone(&storage.digests),
            divergence.clone(),
            metrics.cluster.state_differences.clone(),
        );
        let lost_entries = LostEntries {
            log: storage.log.clone(),
            published: published(),
            node: node_of(),
            calls: call(),
            divergence: divergence.clone(),
        };
        let forwarder =
            Forwarder::new(&config, node_of(), &storage, outbox, failure.clone(), metrics.clone());
        let asker = Asker::new(node_of(), call());
        let read_index = ReadIndex { node: node_of(), calls: call(), published: published() };
        Self {
            config,
            identity,
            process,
            address,
            ports: OnceLock::new(),
            is_drained: AtomicBool::new(false),
            storage,
            node,
            calls,
            members,
            admitter,
            removal: Arc::new(removal),
            divergence,
            comparison: Arc::new(comparison),
            lost_entries,
            forwarder,
            read_index: Arc::new(read_index),
            asker,
            answering: Answering::default(),
            failure,
            metrics,
        }
    }

    /// Returns the ID of this replica.
    pub(crate) fn id(&self) -> u64 {
        self.identity.replica_id
    }

    /// Returns the task that keeps the membership up to date.
    pub(crate) fn reconciler(&self) -> Reconciler {
        Reconciler {
            node: Arc::clone(&self.node),
            calls: self.calls.clone(),
            members: Arc::clone(&self.members),
            removal: Arc::clone(&self.removal),
            address: self.address.clone(),
        }
    }

    /// Returns why this replica accepts no writes: a failure, or lack of disk space on the leader.
    pub(crate) fn refuses_writes(&self) -> Option<String> {
        let failure = self.failure.get().map(str::to_owned);
        failure.or_else(|| match self.node.leader()? {
            Leader::Here => self.storage.space.full().map(|full| full.to_string()),
            Leader::There { .. } => None,
        })
    }

    /// Returns an error of the start, with the first failure as its reason if there is one.
    pub(crate) fn failed(&self, error: &dyn std::fmt::Display) -> OpenError {
        match self.failure.get() {
            Some(reason) => OpenError::Failed(reason.to_owned()),
            None => OpenError::Failed(error.to_string()),
        }
    }
}
