//! A cluster of real processes on this machine, with fixed ports.
//!
//! The first replica forms the cluster, and the others join it. All listen on loopback.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_admin_proto::v1::ClusterStatus;
use chancery_testing::reserve_address;

use crate::{
    author::Author,
    common::Common,
    server::{Launch, Ports, Server},
    stats::count,
};

/// The maximum time until all replicas vote, for a debug build on a busy machine.
const WHOLE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// Replicas, some of which may be down. Dropping the cluster kills them all.
#[derive(Debug)]
pub(crate) struct Cluster {
    replicas: Vec<Replica>,
}

#[derive(Debug)]
struct Replica {
    launch: Launch,
    ports: Ports,
    server: Option<Server>,
}

impl Cluster {
    /// Starts `replicas` replicas, and waits until all of them vote. `config` is their common
    /// configuration without section `[raft]`.
    pub(crate) async fn start(
        common: &Common,
        dir: &Path,
        replicas: usize,
        config: &str,
    ) -> Result<Self> {
        Self::start_with_files(common, dir, replicas, config, None).await
    }

    /// The same with a limit of open files for each replica.
    pub(crate) async fn start_with_files(
        common: &Common,
        dir: &Path,
        replicas: usize,
        config: &str,
        files: Option<u64>,
    ) -> Result<Self> {
        let mut cluster = Self { replicas: Vec::new() };
        for id in 1..=replicas {
            let [xds, admin, raft] = [(); 3].map(|()| reserve_address());
            let ports = Ports { xds, admin, raft };
            let join = match cluster.replicas.first() {
                Some(first) => format!("join = [\"{}\"]\n", first.ports.raft),
                None => String::new(),
            };
            let config = format!("{config}\n[raft]\nreplica_id = {id}\n{join}");
            let dir = dir.join(format!("replica-{id}"));
            let launch =
                Launch::new(&common.binary, &dir, None, &config)?.at(ports).with_files(files);
            let server = Some(launch.start().await?);
            cluster.replicas.push(Replica { launch, ports, server });
        }
        cluster.whole().await?;
        Ok(cluster)
    }

    /// Returns the ports of all replicas, including those that are down.
    pub(crate) fn ports(&self) -> Vec<Ports> {
        self.replicas.iter().map(|replica| replica.ports).collect()
    }

    /// Iterates over the replicas that are up.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.replicas.iter().filter_map(|replica| replica.server.as_ref())
    }

    /// Sends SIGTERM to the replica at this index of [`Cluster::ports`], and waits until it has
    /// ended.
    pub(crate) async fn terminate(&mut self, at: usize) -> Result<()> {
        let ended = self.take(at)?.terminate().await;
        ended.with_context(|| format!("replica {}", at + 1))
    }

    /// Sends SIGKILL to the replica at this index, and waits until it has ended.
    pub(crate) async fn kill(&mut self, at: usize) -> Result<()> {
        self.take(at)?.kill().await
    }

    fn take(&mut self, at: usize) -> Result<Server> {
        let replica = self.replicas.get_mut(at);
        let server = replica.and_then(|replica| replica.server.take());
        server.with_context(|| format!("replica {} is not up", at + 1))
    }

    /// Starts the replica at this index again. Waits until it is ready and the cluster is whole.
    pub(crate) async fn start_again(&mut self, at: usize) -> Result<()> {
        let replica = self.replicas.get_mut(at).context("no such replica")?;
        replica.server = Some(replica.launch.start().await?);
        self.whole().await.map(drop)
    }

    /// Waits until all replicas vote, agree on the leader, and have applied nearly all entries that
    /// it has committed. Returns the index of the leader.
    pub(crate) async fn whole(&self) -> Result<usize> {
        let deadline = Instant::now() + WHOLE;
        loop {
            let statuses = self.statuses().await;
            if let Ok(statuses) = &statuses
                && let Some(leader) = agreed(statuses, self.replicas.len())
            {
                return Ok(leader);
            }
            if Instant::now() > deadline {
                bail!("the replicas do not agree after {WHOLE:?}: {statuses:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the statuses of the replicas that are up.
    async fn statuses(&self) -> Result<Vec<ClusterStatus>> {
        let mut statuses = Vec::new();
        for server in self.servers() {
            statuses.push(Author::connect(server.admin).await?.cluster().await?);
        }
        Ok(statuses)
    }
}

/// Returns the index of the leader if all replicas vote, are ready, and name the same leader. They
/// must also have applied its committed entries, except for the last [`NEAR`].
fn agreed(statuses: &[ClusterStatus], replicas: usize) -> Option<usize> {
    let ids: Vec<u64> = (1..=count(replicas)).collect();
    let leader = statuses.first()?.leader?;
    let committed = statuses.iter().find(|status| status.replica_id == leader)?.committed_index;
    let agrees = |status: &ClusterStatus| {
        status.voters == ids && status.leader == Some(leader) && status.ready
    };
    // Writes continue meanwhile. A replica that answers before or after the leader may be slightly
    // behind or ahead.
    let is_near = |status: &ClusterStatus| status.applied_index + NEAR >= committed;
    let all = statuses.iter().all(|status| agrees(status) && is_near(status));
    (all && statuses.len() == replicas).then(|| usize::try_from(leader - 1).ok())?
}

/// The maximum number of entries that may be committed between two status requests.
const NEAR: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn status(replica_id: u64, leader: Option<u64>, applied_index: u64) -> ClusterStatus {
        let voters = vec![1, 2, 3];
        let committed_index = applied_index;
        ClusterStatus {
            replica_id,
            leader,
            voters,
            applied_index,
            committed_index,
            ready: true,
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn cluster_is_complete_when_all_replicas_agree_and_have_caught_up() {
        let whole = [status(1, Some(2), 5000), status(2, Some(2), 5010), status(3, Some(2), 5020)];
        assert_eq!(agreed(&whole, 3), Some(1));
        assert_eq!(agreed(&whole[..2], 3), None);
        let with = |changed: ClusterStatus| agreed(&[&whole[..2], &[changed]].concat(), 3);
        assert_eq!(with(whole[2].clone()), Some(1));
        assert_eq!(with(status(3, None, 5020)), None);
        assert_eq!(with(status(3, Some(1), 5020)), None);
        assert_eq!(with(status(3, Some(2), 4000)), None);
        assert_eq!(with(ClusterStatus { voters: vec![1, 2], ..whole[2].clone() }), None);
        assert_eq!(with(ClusterStatus { ready: false, ..whole[2].clone() }), None);
    }
}
