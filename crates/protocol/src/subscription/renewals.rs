//! The renewal of lifetimes: which resources are due, and when (TTL-08).
//!
//! A client drops a resource with a lifetime unless the server renews it in time. A subscription
//! keeps one deadline for all of them. The resources that are due follow from what the client was
//! last sent, by classes of similar lifetimes ([`LifetimeClass`]). All resources of a class are due
//! together, in a fixed rhythm of about a third of the lifetime. Nothing is kept per resource, except
//! for the few that were sent in between: they are due a third of their lifetime later (TTL-13).

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::{LifetimeClass, Resource, ResourceName, Revision, TypeVersion};

use crate::{LifetimeSupport, encoding::LifetimeForm};

/// The minimum interval between two renewals, in milliseconds. Lifetimes below three times this
/// value end between two renewals.
const INTERVAL_MIN_MS: u64 = 100;

/// The part of the interval by which streams differ, in thousandths.
const JITTER: u64 = 100;

/// The maximum number of resources that are remembered after they were sent alone. A further one is
/// renewed with its class, which may be earlier than necessary.
pub(crate) const SENT_ALONE_MAX: usize = 64;

/// The rhythm in which endpoints are sent again before they are stale (CLI-E-34).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refresh {
    /// The time at which the rhythm begins.
    pub(crate) origin: u64,
    /// The time up to which everything due was requested.
    pub(crate) done: u64,
}

/// The lifetimes of a subscription.
#[derive(Debug)]
pub(crate) struct Renewals {
    pub(crate) support: LifetimeSupport,
    pub(crate) form: LifetimeForm,
    pub(crate) needs_content: bool,
    /// The time at which the rhythm begins: that of the last response with all resources.
    pub(crate) origin: u64,
    /// The revision of the first state that began the rhythm.
    pub(crate) origin_revision: Revision,
    /// The time up to which everything due was renewed.
    pub(crate) done: u64,
    /// Resources that were sent after the rhythm began, with the time.
    pub(crate) sent_alone: BTreeMap<ResourceName, (Arc<Resource>, u64)>,
    /// The time of the next renewal; `None` if the client has no resource with a lifetime.
    pub(crate) next: Option<u64>,
    /// The revision of the last response.
    pub(crate) revision: Revision,
    /// SotW: the version with which the client last received each resource with a lifetime, if it is
    /// the same for all. A heartbeat has this version (CLI-E-45).
    pub(crate) received_as: Option<TypeVersion>,
    /// `None` if the client was sent no endpoints that become stale.
    pub(crate) refresh: Option<Refresh>,
}

impl Renewals {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            support: LifetimeSupport::default(),
            form: LifetimeForm::None,
            needs_content: false,
            origin: now,
            origin_revision: Revision(0),
            done: now,
            sent_alone: BTreeMap::new(),
            next: None,
            revision: Revision(0),
            received_as: None,
            refresh: None,
        }
    }

    /// Returns the interval of a class: about a third of its lifetime (TTL-08).
    pub(crate) fn interval(&self, class: LifetimeClass) -> u64 {
        self.spread(class.0 / 3, class)
    }

    /// Shortens an interval by a small part that depends on the stream, so that not all streams are due at
    /// the same time.
    pub(crate) fn spread(&self, interval: u64, class: LifetimeClass) -> u64 {
        let share = mix(self.support.seed() ^ class.0) % JITTER;
        let jitter = interval / 1000 * share + interval % 1000 * share / 1000;
        (interval - jitter).max(INTERVAL_MIN_MS)
    }

    /// Returns the last time at or before `at` at which a class was due.
    pub(crate) fn last_due(&self, class: LifetimeClass, at: u64) -> u64 {
        let interval = self.interval(class);
        self.origin + at.saturating_sub(self.origin) / interval * interval
    }

    /// Starts the rhythm again: the client has just received all resources.
    pub(crate) fn restart(&mut self, now: u64) {
        (self.origin, self.done) = (now, now);
        self.sent_alone.clear();
    }

    pub(crate) fn due_alone(&self, resource: &Resource, sent_at: u64) -> u64 {
        let class = resource.ttl().map_or(LifetimeClass(u64::MAX), LifetimeClass::of);
        sent_at.saturating_add(self.interval(class))
    }
}

/// Mixes the bits of a number, as the finalizer of `SplitMix64` does.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// TTL-08: the interval is at most a third of the lifetime, and differs between streams.
    #[test]
    fn interval_is_about_a_third_of_the_lifetime() {
        let intervals = |ms: u64| -> BTreeSet<u64> {
            let class = LifetimeClass::of(std::time::Duration::from_millis(ms));
            let of_seed = |seed| {
                let mut renewals = Renewals::new(0);
                let node = chancery_model::Node::default();
                renewals.support = LifetimeSupport::of(&node, seed);
                renewals.interval(class)
            };
            (0..100).map(of_seed).collect()
        };
        for ms in [600, 3_000, 30_000, 86_400_000, u64::MAX / 4] {
            let found = intervals(ms);
            let (Some(min), Some(max)) = (found.first(), found.last()) else { panic!("none") };
            assert!(*max <= ms / 3 && *min >= ms / 3 / 4 * 3, "{ms}: {min} to {max}");
            assert!(found.len() > 10, "{ms}: {} different intervals", found.len());
        }
        assert_eq!(intervals(1), BTreeSet::from([INTERVAL_MIN_MS]));
    }
}
