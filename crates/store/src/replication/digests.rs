//! Comparison of states: each replica asks the voters for digests at log positions that it has applied.
//!
//! Two replicas that have applied the same log have the same state. If their digests differ at the same
//! position, one of them serves data that was never committed, or lacks committed data (L13). No other
//! mechanism detects or repairs this.
//!
//! Invariants:
//! - A replica compares only digests at equal positions, of the same algorithm
//!   ([`crate::disk::digest::ALGORITHM`]), and within one incarnation of one cluster. Every call names both.
//! - Every difference raises an alarm. A replica whose state differs from that of a majority of the voters
//!   stops. It then serves no streams, reads or writes, takes part in no election, and does not start again
//!   with this data.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chancery_raft_proto::v1 as pb;
use futures::future::join_all;
use metrics::Gauge;
use parking_lot::Mutex;

use crate::{
    StateDigest,
    disk::digest::{ALGORITHM, Digests},
    metrics::gauge_value,
    replication::{calls::Calls, divergence::Divergence, peers::Lane, raft_node::RaftNode},
};

/// The time between two comparisons.
const INTERVAL: Duration = Duration::from_secs(3);
/// The maximum time for the answer of a voter. A voter without an answer is compared the next time.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The number of newest positions in a request, and also of older positions that replicas keep longer.
const ASKED: usize = 64;
/// The maximum number of positions in a request. The callee ignores the rest.
const INDEXES_MAX: usize = 1024;

/// The result of comparing this replica's digests with those of some voters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Verdict {
    /// The voters that have a position in common with this replica, each with the first position at which the
    /// digests differ.
    compared: BTreeMap<u64, Option<u64>>,
    /// The first position at which a majority of the voters agrees on a digest that differs from this
    /// replica's.
    outvoted: Option<u64>,
}

/// Compares digests. `voters` is the number of voters, and `votes` is whether this replica is one of them.
fn judge(
    own: &[StateDigest],
    votes: bool,
    voters: usize,
    answers: &[(u64, Vec<StateDigest>)],
) -> Verdict {
    let majority = voters / 2 + 1;
    let mut verdict = Verdict::default();
    for own in own {
        let mut count_by_digest: BTreeMap<u64, usize> = BTreeMap::new();
        if votes {
            count_by_digest.insert(own.digest, 1);
        }
        for (id, theirs) in answers {
            let Some(their) = theirs.iter().find(|their| their.index == own.index) else {
                continue;
            };
            *count_by_digest.entry(their.digest).or_default() += 1;
            let differs = verdict.compared.entry(*id).or_default();
            if their.digest != own.digest {
                differs.get_or_insert(own.index);
            }
        }
        let agreed = count_by_digest.iter().find(|(_, count)| **count >= majority);
        if agreed.is_some_and(|(digest, _)| *digest != own.digest) {
            verdict.outvoted.get_or_insert(own.index);
        }
    }
    verdict
}

/// The voters that are known to have a different state, each with the position of the difference.
#[derive(Debug, Default)]
struct Differences(BTreeMap<u64, u64>);

impl Differences {
    /// Applies a verdict. Returns whether the set of differing voters changed.
    fn update(&mut self, verdict: &Verdict, voters: &BTreeSet<u64>) -> bool {
        let before: Vec<u64> = self.0.keys().copied().collect();
        self.0.retain(|id, _| voters.contains(id) && verdict.compared.get(id) != Some(&None));
        for (id, index) in &verdict.compared {
            if let Some(index) = index {
                self.0.entry(*id).or_insert(*index);
            }
        }
        !self.0.keys().copied().eq(before)
    }

    /// Returns the text of the alarm; `None` if no difference is known.
    fn alarm(&self) -> Option<String> {
        let first = self.0.values().min()?;
        let replicas: Vec<String> = self.0.keys().map(|id| format!("replica {id}")).collect();
        Some(format!(
            "its state at log index {first} differs from that of {}: the replicas serve different states; \
             see docs/cluster.md, States that differ",
            replicas.join(" and ")
        ))
    }
}

/// The comparison of this replica's state with that of the voters.
pub(crate) struct StateComparison {
    node: Arc<RaftNode>,
    calls: Calls,
    /// The digests of the newest applied positions.
    digests: Arc<Digests>,
    /// The voters whose state differs.
    differences: Mutex<Differences>,
    divergence: Divergence,
    n_differences: Gauge,
}

impl StateComparison {
    /// Creates the comparison of a replica that knows of no difference.
    pub(crate) fn new(
        node: Arc<RaftNode>,
        calls: Calls,
        digests: Arc<Digests>,
        divergence: Divergence,
        n_differences: Gauge,
    ) -> Self {
        Self { node, calls, digests, differences: Mutex::default(), divergence, n_differences }
    }

    /// Compares every [`INTERVAL`], until the runtime ends.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.compare().await;
        }
    }

    /// Compares this replica's state with that of every voter that answers.
    pub(crate) async fn compare(&self) {
        let membership = self.node.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let own = self.digests.recent(ASKED, ASKED);
        let asked = voters.iter().filter(|id| **id != self.node.id());
        let asked = asked.filter_map(|id| Some((*id, membership.get_node(id)?.address.clone())));
        let answers = asked.map(|(id, address)| {
            let indexes = own.iter().map(|own| own.index).collect();
            async move { Some((id, self.ask_digests(id, &address, indexes).await?)) }
        });
        let answers: Vec<_> = join_all(answers).await.into_iter().flatten().collect();
        let verdict = judge(&own, voters.contains(&self.node.id()), voters.len(), &answers);
        let (changed, alarm, count) = {
            let mut differences = self.differences.lock();
            let changed = differences.update(&verdict, &voters);
            (changed, differences.alarm(), differences.0.len())
        };
        self.n_differences.set(gauge_value(count as u64));
        match alarm {
            Some(alarm) if changed => tracing::error!(replica = self.node.id(), "{alarm}"),
            None if changed => tracing::info!("all voters that answer have the same state again"),
            _ => {}
        }
        if let Some(index) = verdict.outvoted {
            let others: Vec<String> = answers.iter().map(|(id, _)| id.to_string()).collect();
            self.divergence.stop(&format!(
                "its state at log index {index} differs from that of most voters (asked: {})",
                others.join(", ")
            ));
        }
    }

    async fn ask_digests(
        &self,
        id: u64,
        address: &str,
        indexes: Vec<u64>,
    ) -> Option<Vec<StateDigest>> {
        let header = Some(self.calls.header(id));
        let mut client = self.calls.client(address, Lane::Control).ok()?;
        let call = client.digests(pb::DigestsRequest { header, indexes });
        // An earlier release does not implement the call.
        let answer = tokio::time::timeout(TIMEOUT, call).await.ok()?.ok()?.into_inner();
        let digest = |it: pb::StateDigest| StateDigest { index: it.index, digest: it.digest };
        (answer.algorithm == ALGORITHM).then(|| answer.digests.into_iter().map(digest).collect())
    }

    /// Answers a Digests call of another replica.
    pub(crate) fn answer(&self, indexes: &[u64]) -> pb::DigestsResponse {
        let known = indexes.iter().take(INDEXES_MAX).filter_map(|index| self.digests.at(*index));
        let digest = |it: StateDigest| pb::StateDigest { index: it.index, digest: it.digest };
        pb::DigestsResponse { algorithm: ALGORITHM, digests: known.map(digest).collect() }
    }

    /// Returns a text that names the voters with a different state, and the replicas that lost acknowledged
    /// entries; `None` if no such replica is known.
    pub(crate) fn alarm(&self) -> Option<String> {
        let alarms = [self.differences.lock().alarm(), self.calls.peers.acknowledged().alarm()];
        alarms.into_iter().flatten().reduce(|first, second| format!("{first}; {second}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(pairs: &[(u64, u64)]) -> Vec<StateDigest> {
        pairs.iter().map(|(index, digest)| StateDigest { index: *index, digest: *digest }).collect()
    }

    fn outvoted(own: &[(u64, u64)], votes: bool, others: &[&[(u64, u64)]]) -> Option<u64> {
        let answers: Vec<_> = (2..).zip(others.iter().map(|pairs| digests(pairs))).collect();
        let voters = others.len() + usize::from(votes);
        judge(&digests(own), votes, voters, &answers).outvoted
    }

    /// L13: digests are compared at equal positions only, and a majority of all voters decides.
    #[test]
    fn replica_is_outvoted_by_a_majority_at_one_position() {
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 7)], &[(1, 7)]]), None, "all are equal");
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 8)], &[(1, 8)]]), Some(1));
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 8)], &[(1, 7)]]), None, "the other is wrong");
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 8)], &[(1, 9)]]), None, "nobody agrees");
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 8)], &[]]), None, "one does not answer");
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 8)], &[(2, 8)]]), None, "other positions");
        assert_eq!(outvoted(&[(1, 7), (2, 6)], true, &[&[(2, 8)], &[(2, 8)]]), Some(2));
        assert_eq!(outvoted(&[(1, 7)], true, &[&[(1, 8)]]), None, "two voters, no majority");
        assert_eq!(outvoted(&[(1, 8)], true, &[&[(1, 7)]]), None, "the same with swapped digests");
        assert_eq!(outvoted(&[(1, 7)], false, &[&[(1, 8)]]), Some(1), "a learner of one voter");
        assert_eq!(outvoted(&[(1, 7)], false, &[&[(1, 8)], &[(1, 7)], &[(1, 7)]]), None);
        let five: [&[(u64, u64)]; 4] = [&[(1, 8)], &[(1, 8)], &[(1, 8)], &[(1, 7)]];
        assert_eq!(outvoted(&[(1, 7)], true, &five), Some(1));
    }

    /// L13: an alarm lasts until the voter has the same state again, or is no longer a voter.
    #[test]
    fn digest_alarm_lasts_until_difference_ends() {
        let voters = BTreeSet::from([1, 2, 3]);
        let verdict = |compared: &[(u64, Option<u64>)]| Verdict {
            compared: compared.iter().copied().collect(),
            outvoted: None,
        };
        let mut differences = Differences::default();
        assert!(!differences.update(&verdict(&[(2, None), (3, None)]), &voters));
        assert_eq!(differences.alarm(), None);
        assert!(differences.update(&verdict(&[(2, None), (3, Some(40))]), &voters));
        assert!(!differences.update(&verdict(&[(3, Some(44))]), &voters), "it is known already");
        assert!(!differences.update(&verdict(&[(2, None)]), &voters), "replica 3 is silent");
        let alarm = differences.alarm().unwrap();
        assert!(alarm.contains("at log index 40 differs from that of replica 3:"), "{alarm}");
        assert!(differences.update(&verdict(&[(3, None)]), &voters), "it was replaced");
        assert_eq!(differences.alarm(), None);
        differences.update(&verdict(&[(3, Some(50))]), &voters);
        assert!(differences.update(&verdict(&[]), &BTreeSet::from([1, 2])), "it was removed");
        assert_eq!(differences.alarm(), None);
    }
}
