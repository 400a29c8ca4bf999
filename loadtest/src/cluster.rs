//! A cluster of real processes on this machine, on ports that they keep.
//!
//! The first forms the cluster, the others join it by its address. All are on loopback.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use chancery_proto::admin::v1::ClusterStatus;
use chancery_testing::reserve_address;

use crate::{
    Common,
    author::Author,
    server::{Launch, Ports, Server},
    stats::count,
};

/// How long a cluster may take until all of its replicas vote, in a debug build on a busy machine.
const WHOLE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// Replicas, of which some may be down. Dropping it kills them all.
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
    /// Starts so many replicas, and waits until all of them vote. `config` is what they have in common
    /// besides section `[raft]`.
    pub(crate) async fn start(
        common: &Common,
        dir: &Path,
        replicas: usize,
        config: &str,
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
            let launch = Launch::new(&common.binary, &dir, None, &config)?.at(ports);
            let server = Some(launch.start().await?);
            cluster.replicas.push(Replica { launch, ports, server });
        }
        cluster.whole().await?;
        Ok(cluster)
    }

    /// Where all of them listen, those that are down too.
    pub(crate) fn ports(&self) -> Vec<Ports> {
        self.replicas.iter().map(|replica| replica.ports).collect()
    }

    /// Those that are up.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.replicas.iter().filter_map(|replica| replica.server.as_ref())
    }

    /// SIGTERM to the replica at this place of [`Cluster::ports`]; waits until it has ended.
    pub(crate) async fn terminate(&mut self, at: usize) -> Result<()> {
        let ended = self.take(at)?.terminate().await;
        ended.with_context(|| format!("replica {}", at + 1))
    }

    /// SIGKILL to it; waits until it is gone.
    pub(crate) async fn kill(&mut self, at: usize) -> Result<()> {
        self.take(at)?.kill().await
    }

    fn take(&mut self, at: usize) -> Result<Server> {
        let replica = self.replicas.get_mut(at);
        let server = replica.and_then(|replica| replica.server.take());
        server.with_context(|| format!("replica {} is not up", at + 1))
    }

    /// Starts it again, and waits until it is ready and all replicas that are up vote and agree.
    pub(crate) async fn start_again(&mut self, at: usize) -> Result<()> {
        let replica = self.replicas.get_mut(at).context("there is no such replica")?;
        replica.server = Some(replica.launch.start().await?);
        self.whole().await.map(drop)
    }

    /// Waits until all replicas vote, know the same leader, and have applied what it has committed.
    /// Gives the place of the leader.
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
                bail!("the cluster is not whole after {WHOLE:?}: {statuses:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Of those that are up.
    async fn statuses(&self) -> Result<Vec<ClusterStatus>> {
        let mut statuses = Vec::new();
        for server in self.servers() {
            statuses.push(Author::connect(server.admin).await?.cluster().await?);
        }
        Ok(statuses)
    }
}

/// The place of the leader, if all replicas say that all vote, name it, and are where it was before.
fn agreed(statuses: &[ClusterStatus], replicas: usize) -> Option<usize> {
    let ids: Vec<u64> = (1..=count(replicas)).collect();
    let leader = statuses.first()?.leader?;
    let committed = statuses.iter().find(|status| status.replica_id == leader)?.committed_index;
    let agrees = |status: &ClusterStatus| {
        status.voters == ids && status.leader == Some(leader) && status.ready
    };
    // Writes go on meanwhile: who is asked later may be further, who is asked before a little behind.
    let is_near = |status: &ClusterStatus| status.applied_index + NEAR >= committed;
    let all = statuses.iter().all(|status| agrees(status) && is_near(status));
    (all && statuses.len() == replicas).then(|| usize::try_from(leader - 1).ok())?
}

/// Entries that may be committed between two questions.
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
    fn a_cluster_is_whole_when_all_vote_and_agree_and_have_what_the_leader_has() {
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
