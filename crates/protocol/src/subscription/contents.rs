//! The resources of a subscription, for introspection.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, TypeVersion};
use chancery_view::TypeView;

use super::{
    delivery::Delivery, interest::Interest, kind::Kind, names::ClientVersion,
    rejections::Rejections, removals::PendingRemovals,
};
use crate::{
    ContentsPage, Protocol,
    contents::{Item, Unanswered},
};

/// The parts of a subscription that know the state of its resources.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contents<'a> {
    pub(super) kind: &'a Kind,
    pub(super) interest: &'a Interest,
    pub(super) delivery: &'a Delivery,
    pub(super) removals: &'a PendingRemovals,
    pub(super) rejections: &'a Rejections,
}

impl Contents<'_> {
    /// Returns one page of the resources: at most `max` names after `after`.
    ///
    /// The names of a page are those that the client subscribes to, the resources of a wildcard's
    /// current view and of the view last planned, and those that wait for their removal.
    pub(super) fn page(
        self,
        view: &TypeView,
        after: Option<&ResourceName>,
        max: usize,
        now: u64,
    ) -> ContentsPage {
        let delivery = &self.delivery;
        let n_collections = if after.is_none() { max } else { 0 };
        let mut items: Vec<Item> = Vec::new();
        let mut after = after.cloned();
        while items.len() < max
            && let Some(name) = self.name_after(view, after.as_ref())
        {
            items.push(self.item(name.clone(), view, now));
            after = Some(name);
        }
        let next = after.filter(|last| self.name_after(view, Some(last)).is_some());
        let unanswered = delivery.unanswered().iter().map(|sent| Unanswered {
            version: sent.version.clone(),
            ms_ago: now.saturating_sub(sent.sent_at),
            resources: sent.resources.clone(),
        });
        let unsent = delivery.pending().map(|pending| pending.resources.clone());
        let n_unsent = unsent.as_ref().map_or(0, |resources| resources.len());
        ContentsPage {
            protocol: self.kind.protocol,
            sends_errors: self.kind.sends_errors && !self.kind.properties.absent_as_alias,
            items,
            collections: self.interest.globs().iter().take(n_collections).cloned().collect(),
            next,
            stamp: (delivery.last_nonce(), delivery.unanswered().len(), n_unsent),
            unsent,
            unanswered: unanswered.collect(),
            nack: self.rejections.nack().cloned(),
        }
    }

    fn name_after(self, view: &TypeView, after: Option<&ResourceName>) -> Option<ResourceName> {
        let name_in = |view: &TypeView| view.next_after(after).map(|found| found.name().clone());
        let (shown, planned) = match self.interest.wildcard() {
            Some(wildcard) => (name_in(view), wildcard.base().and_then(name_in)),
            None => (None, None),
        };
        // The names of collections have no resource.
        let (names, globs) = (self.interest.names(), self.interest.globs());
        let mut named = names.next_after(after);
        while named.is_some_and(|name| globs.contains(name.as_str())) {
            named = names.next_after(named);
        }
        let named = named.cloned();
        let removed = self.removals.next_after(after).cloned();
        [shown, planned, named, removed].into_iter().flatten().min()
    }

    fn item(self, name: ResourceName, view: &TypeView, now: u64) -> Item {
        let (entry, base) = (self.interest.names().get(&name), self.interest.base());
        let early = self.interest.wildcard().and_then(|wildcard| wildcard.sent_early(&name));
        let planned = match (early, base) {
            (Some(early), _) => early.cloned(),
            (None, Some(base)) => base.get(name.as_str()).cloned(),
            (None, None) => entry.and_then(ClientVersion::sent).cloned(),
        };
        // Until the removal is sent, the client has the old resource.
        let removed = || Some(Arc::clone(&self.removals.get(&name)?.resource));
        let planned = planned.or_else(removed);
        let is_rejected = planned.as_ref().is_some_and(|planned| {
            self.rejections.rejects(planned.name(), base, Revision(u64::MAX))
        });
        let sent_in = match (&planned, self.kind.protocol) {
            (Some(_), Protocol::Sotw) if self.kind.is_full_state() => {
                self.delivery.sent_version().cloned().map(Arc::new)
            }
            (Some(planned), Protocol::Sotw) => match entry.and_then(ClientVersion::sent_version) {
                Some(version) if !self.interest.is_wildcard() => Some(Arc::clone(version)),
                // A wildcard stores nothing per resource. It was sent each change with the version
                // that the change gave to the type.
                _ => base.map(|base| {
                    let revision = planned.version().revision;
                    Arc::new(TypeVersion { revision, label: None, ..base.version() })
                }),
            },
            _ => None,
        };
        let last_sent_at = self.delivery.last_sent_at().filter(|_| self.kind.is_full_state());
        let is_sotw_state = self.kind.is_full_state() && self.kind.protocol == Protocol::Sotw;
        let acked = self.delivery.acked_version().filter(|_| is_sotw_state);
        let is_old = |acked: &&TypeVersion| {
            planned.as_ref().is_some_and(|planned| planned.version().revision <= acked.revision)
        };
        let unchanged_since = acked.filter(is_old).cloned();
        Item {
            current: view.get(name.as_str()).cloned(),
            claimed: match entry {
                Some(ClientVersion::Claimed(version)) => Some(*version),
                _ => None,
            },
            planned,
            sent_in,
            sent_ms_ago: last_sent_at.map(|at| now.saturating_sub(at)),
            is_rejected,
            unchanged_since,
            name: self.interest.spellings().spell(name),
        }
    }
}
