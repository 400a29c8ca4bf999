//! The contribution of each stream to the gauges: requests in progress, connections and rates.
//!
//! A report replaces the contribution of its stream. The end of a stream removes it (LRS-13).

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    node_share::{Limited, Owner},
    stats::{Cluster, ClusterKey, Gauges, LocalityKey, Totals},
    sum_limits::{Kind, SumLimits},
};

/// The approximate size of a cluster of a stream in bytes, without its localities.
const CLUSTER_BYTES: usize = 48 + size_of::<Arc<ClusterKey>>() + size_of::<Share>();

/// The approximate size of a locality of a stream in bytes.
const LOCALITY_BYTES: usize = size_of::<(Arc<LocalityKey>, Gauges)>();

type Clusters = Limited<Arc<ClusterKey>, Cluster>;

/// The part of a stream.
#[derive(Debug)]
pub(crate) struct StreamLoads {
    pub(crate) owner: Owner,
    clusters: BTreeMap<Arc<ClusterKey>, Share>,
    n_reports: u64,
}

/// The part of a stream in one cluster.
#[derive(Debug, Default)]
struct Share {
    /// The number of the last report with the cluster.
    report: u64,
    dropped_rate: u64,
    localities: Vec<(Arc<LocalityKey>, Gauges)>,
}

impl StreamLoads {
    pub(crate) fn new(owner: Owner) -> Self {
        Self { owner, clusters: BTreeMap::new(), n_reports: 0 }
    }

    /// Begins the next report.
    pub(crate) fn begin_report(&mut self) {
        self.n_reports += 1;
    }

    /// Replaces the part of the stream in a cluster. A report may have several entries of a cluster, which
    /// are added.
    pub(crate) fn replace(
        &mut self,
        key: &Arc<ClusterKey>,
        cluster: &mut Cluster,
        localities: BTreeMap<Arc<LocalityKey>, Gauges>,
        dropped_rate: u64,
        limits: &mut SumLimits,
        totals: &mut Totals,
    ) {
        if !self.clusters.contains_key(key) {
            if let Err(why) = limits.budget.take(self.owner, CLUSTER_BYTES) {
                return limits.refuse(Kind::Stream, why);
            }
            self.clusters.insert(Arc::clone(key), Share::default());
            cluster.n_streams += 1;
        }
        let Some(share) = self.clusters.get_mut(key) else { return };
        if share.report != self.n_reports {
            share.clear(self.owner, cluster, limits, totals);
            share.report = self.n_reports;
        }
        share.dropped_rate = share.dropped_rate.saturating_add(dropped_rate);
        shift(cluster, None, totals, Gauges::default(), dropped(dropped_rate));
        for (key, gauges) in localities {
            if let Err(why) = limits.budget.take(self.owner, LOCALITY_BYTES) {
                limits.refuse(Kind::Stream, why);
                continue;
            }
            if let Some(locality) = cluster.localities.get_mut(&key) {
                locality.n_streams += 1;
            }
            shift(cluster, Some(&key), totals, Gauges::default(), gauges);
            share.localities.push((key, gauges));
        }
    }

    /// Ends the rates of clusters that the last report does not contain: they had no requests in its
    /// period. Requests in progress stay, because missing is not zero (LRS-13).
    pub(crate) fn end_rates_of_missing(&mut self, clusters: &mut Clusters, totals: &mut Totals) {
        for (key, share) in &mut self.clusters {
            if share.report == self.n_reports {
                continue;
            }
            let Some(cluster) = clusters.get_mut(key) else { continue };
            let rate = std::mem::take(&mut share.dropped_rate);
            shift(cluster, None, totals, dropped(rate), Gauges::default());
            for (key, gauges) in &mut share.localities {
                let rest = gauges.without_rates();
                if *gauges != rest {
                    shift(cluster, Some(key), totals, *gauges, rest);
                    *gauges = rest;
                }
            }
        }
    }

    /// Keeps the part in some clusters, and ends it in the others.
    pub(crate) fn keep_only(
        &mut self,
        keep: impl Fn(&ClusterKey) -> bool,
        clusters: &mut Clusters,
        limits: &mut SumLimits,
        totals: &mut Totals,
    ) {
        let owner = self.owner;
        self.clusters.retain(|key, share| {
            let stays = keep(key);
            if !stays && let Some(cluster) = clusters.get_mut(key) {
                share.clear(owner, cluster, limits, totals);
                cluster.n_streams -= 1;
                limits.budget.give_back(owner, CLUSTER_BYTES);
            }
            stays
        });
    }
}

impl Share {
    /// Removes the part from the sums.
    fn clear(
        &mut self,
        owner: Owner,
        cluster: &mut Cluster,
        limits: &mut SumLimits,
        totals: &mut Totals,
    ) {
        let rate = std::mem::take(&mut self.dropped_rate);
        shift(cluster, None, totals, dropped(rate), Gauges::default());
        for (key, gauges) in std::mem::take(&mut self.localities) {
            shift(cluster, Some(&key), totals, gauges, Gauges::default());
            if let Some(locality) = cluster.localities.get_mut(&key) {
                locality.n_streams -= 1;
            }
            limits.budget.give_back(owner, LOCALITY_BYTES);
        }
    }
}

/// Replaces a part of the sums of a locality, of its cluster and of all clusters.
fn shift(
    cluster: &mut Cluster,
    locality: Option<&Arc<LocalityKey>>,
    totals: &mut Totals,
    old: Gauges,
    new: Gauges,
) {
    if let Some(locality) = locality.and_then(|key| cluster.localities.get_mut(key)) {
        locality.gauges.replace(old, new);
    }
    cluster.gauges.replace(old, new);
    totals.gauges.replace(old, new);
}

fn dropped(dropped_rate: u64) -> Gauges {
    Gauges { dropped_rate, ..Gauges::default() }
}
