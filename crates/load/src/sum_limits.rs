//! The limits of the sums: which reported items are kept, and what did not fit.

use crate::{
    node_share::{Budget, Bytes, Limited, Limits, Owner, Refused},
    stats::Metric,
};

/// The kinds of reported items that may not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Cluster,
    Locality,
    Endpoint,
    Metric,
    Category,
    /// The present values of a stream.
    Stream,
    /// A value that is not a finite number.
    Value,
}

impl Kind {
    /// All kinds, in the order of their discriminants.
    pub(crate) const ALL: [Self; 7] = [
        Self::Cluster,
        Self::Locality,
        Self::Endpoint,
        Self::Metric,
        Self::Category,
        Self::Stream,
        Self::Value,
    ];

    /// Returns the name in answers and labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Locality => "locality",
            Self::Endpoint => "endpoint",
            Self::Metric => "metric",
            Self::Category => "category",
            Self::Stream => "stream",
            Self::Value => "value",
        }
    }
}

/// The limits of the sums, and what did not fit.
#[derive(Debug)]
pub(crate) struct SumLimits {
    limits: Limits,
    pub(crate) budget: Budget,
    /// By [`Kind`].
    pub(crate) omitted: [u64; Kind::ALL.len()],
    /// The number of omitted items whose node holds its share of a limit.
    pub(crate) n_over_share: u64,
    /// Whether something did not fit since the last search for outdated entries.
    pub(crate) is_full: bool,
}

impl SumLimits {
    pub(crate) fn new(limits: Limits) -> Self {
        let budget = Budget::new(limits.bytes_max);
        let omitted = [0; Kind::ALL.len()];
        Self { limits, budget, omitted, n_over_share: 0, is_full: false }
    }

    /// Counts an item that is not kept.
    pub(crate) fn omit(&mut self, kind: Kind) {
        let omitted = &mut self.omitted[kind as usize];
        *omitted = omitted.saturating_add(1);
        self.is_full |= kind != Kind::Value;
    }

    /// Counts an item that exceeds a limit.
    pub(crate) fn refuse(&mut self, kind: Kind, why: Refused) {
        self.omit(kind);
        if why == Refused::Share {
            self.n_over_share = self.n_over_share.saturating_add(1);
        }
    }

    /// Returns the entry of a key, or counts that it is not kept. The key is `None` if it is too long.
    pub(crate) fn entry<'m, K: Ord + Clone + Bytes, V: Default + Bytes>(
        &mut self,
        map: &'m mut Limited<K, V>,
        key: Option<K>,
        owner: Owner,
        kind: Kind,
    ) -> Option<(&'m K, &'m mut V)> {
        let max = match kind {
            Kind::Cluster => self.limits.clusters_max,
            Kind::Locality => self.limits.localities_max,
            Kind::Endpoint => self.limits.endpoints_max,
            Kind::Category => self.limits.categories_max,
            Kind::Metric | Kind::Stream | Kind::Value => self.limits.metrics_max,
        };
        let Some(key) = key else {
            self.omit(kind);
            return None;
        };
        let entry = map.entry(&key, max, owner, &mut self.budget);
        entry.map_err(|why| self.refuse(kind, why)).ok()
    }

    /// Returns the text if it is not too long for a key.
    pub(crate) fn name(&self, text: &str) -> Option<Box<str>> {
        (text.len() <= self.limits.name_bytes_max).then(|| text.into())
    }

    pub(crate) fn metric(
        &mut self,
        map: &mut Limited<Box<str>, Metric>,
        owner: Owner,
        name: &str,
        requests: u64,
        sum: f64,
    ) {
        let key = self.name(name);
        if let Some((_, metric)) = self.entry(map, key, owner, Kind::Metric)
            && !metric.add(requests, sum)
        {
            self.omit(Kind::Value);
        }
    }
}
