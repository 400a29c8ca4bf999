//! Endpoints that are sent again before the client marks them as stale (CLI-E-34).
//!
//! Envoy marks the endpoints of an assignment with `policy.endpoint_stale_after` as unhealthy, unless it
//! receives the assignment again within that time. Only its content counts: heartbeats do not. The server
//! therefore sends the resource again after about half of the time. Like lifetimes, similar times share a
//! class, and all resources of a class are due together. Nothing is kept per resource except its name.

use chancery_model::LifetimeClass;

use crate::subscription::{Refresh, Subscription};

impl Subscription {
    /// Begins the rhythm when the client was sent the first resource with such a time.
    pub(crate) fn schedule_refresh(&mut self, now: u64) {
        let is_idle = self.names.stale().classes().next().is_none();
        let begun = || Refresh { origin: now, done: now };
        self.renewals.refresh = (!is_idle).then(|| self.renewals.refresh.unwrap_or_else(begun));
    }

    /// Returns the time of the next refresh, in O(classes).
    pub(crate) fn refresh_at(&self) -> Option<u64> {
        let refresh = self.renewals.refresh?;
        self.names.stale().classes().map(|class| self.next_refresh(refresh, class)).min()
    }

    /// Requests the resources that are due. The next plan sends them again, with the present content.
    /// Resources that the client rejects are not sent again.
    pub(crate) fn request_refresh(&mut self, now: u64) {
        let Some(refresh) = self.renewals.refresh else { return };
        let stale = self.names.stale();
        let is_due = |class: &LifetimeClass| self.next_refresh(refresh, *class) <= now;
        let due: Vec<LifetimeClass> = stale.classes().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let names = due.into_iter().flat_map(|class| stale.names(class)).filter(|name| {
            let sent = self.names.get(name).and_then(|version| version.sent());
            sent.is_some_and(|resource| !self.rejections.is_rejected(resource))
        });
        self.work.resent.extend(names.cloned());
        self.renewals.refresh = Some(Refresh { done: now, ..refresh });
    }

    /// Returns the maximum number of resources that a refresh visits.
    pub(crate) fn cost_of_refresh(&self, now: u64) -> usize {
        let stale = self.names.stale();
        let is_due = self.refresh_at().is_some_and(|due| due <= now);
        if is_due { stale.classes().map(|class| stale.n_names(class)).sum() } else { 0 }
    }

    /// Returns the next time at which a class is due, after the last refresh.
    fn next_refresh(&self, refresh: Refresh, class: LifetimeClass) -> u64 {
        let interval = self.renewals.spread(class.0 / 2, class);
        let last = refresh.done.saturating_sub(refresh.origin) / interval * interval;
        refresh.origin.saturating_add(last).saturating_add(interval)
    }
}
