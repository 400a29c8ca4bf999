//! Endpoints that are sent again before the client marks them as stale (CLI-E-34).
//!
//! Envoy marks the endpoints of an assignment with `policy.endpoint_stale_after` as unhealthy, unless it
//! receives the assignment again within that time. Only its content counts: heartbeats do not. The server
//! therefore sends the resource again after about half of the time. Like lifetimes, similar times share a
//! class, and all resources of a class are due together. Nothing is kept per resource except its name.

use chancery_model::{LifetimeClass, ResourceName};

use super::{names::Names, rejections::Rejections, renewals::spread};

/// The rhythm in which endpoints are sent again; without a rhythm if the client was sent no endpoints that become
/// stale.
#[derive(Debug, Default)]
pub(crate) struct Refresh {
    rhythm: Option<Rhythm>,
    /// A number that differs between streams.
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Rhythm {
    /// The time at which the rhythm begins.
    origin: u64,
    /// The time up to which everything due was requested.
    done: u64,
}

impl Refresh {
    pub(super) fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Begins the rhythm when the client was sent the first resource with such a time.
    pub(super) fn on_planned(&mut self, names: &Names, now: u64) {
        let is_idle = names.stale().classes().next().is_none();
        let begun = || Rhythm { origin: now, done: now };
        self.rhythm = (!is_idle).then(|| self.rhythm.unwrap_or_else(begun));
    }

    /// Returns the time of the next refresh, in O(classes).
    pub(super) fn next_at(&self, names: &Names) -> Option<u64> {
        let rhythm = self.rhythm?;
        names.stale().classes().map(|class| self.next_of(rhythm, class)).min()
    }

    /// Returns the names of the resources that are due. The next plan sends them again, with the present content.
    /// Resources that the client rejects are not sent again.
    #[must_use]
    pub(super) fn take_due(
        &mut self,
        names: &Names,
        rejections: &Rejections,
        now: u64,
    ) -> Vec<ResourceName> {
        let Some(rhythm) = self.rhythm else { return Vec::new() };
        let stale = names.stale();
        let is_due = |class: &LifetimeClass| self.next_of(rhythm, *class) <= now;
        let due: Vec<LifetimeClass> = stale.classes().filter(is_due).collect();
        if due.is_empty() {
            return Vec::new();
        }
        let due = due.into_iter().flat_map(|class| stale.names(class)).filter(|name| {
            let sent = names.get(name).and_then(|version| version.sent());
            sent.is_some_and(|resource| !rejections.is_rejected(resource))
        });
        let due = due.cloned().collect();
        self.rhythm = Some(Rhythm { done: now, ..rhythm });
        due
    }

    /// Returns the maximum number of resources that a refresh visits.
    pub(super) fn cost(&self, names: &Names, now: u64) -> usize {
        let stale = names.stale();
        let is_due = self.next_at(names).is_some_and(|due| due <= now);
        if is_due { stale.classes().map(|class| stale.n_names(class)).sum() } else { 0 }
    }

    /// Returns the next time at which a class is due, after the last refresh.
    fn next_of(&self, rhythm: Rhythm, class: LifetimeClass) -> u64 {
        let interval = spread(self.seed, class.0 / 2, class);
        let last = rhythm.done.saturating_sub(rhythm.origin) / interval * interval;
        rhythm.origin.saturating_add(last).saturating_add(interval)
    }
}
