//! The resources of a subscription, for introspection.

use std::sync::Arc;

use chancery_model::{ResourceName, Revision, TypeVersion};
use chancery_view::TypeView;

use super::{ClientVersion, Subscription};
use crate::{
    ContentsPage, Protocol,
    contents::{Item, Unanswered},
};

impl Subscription {
    /// Returns one page of the resources: at most `max` names after `after`.
    ///
    /// The names of a page are those that the client subscribes to, the resources of a wildcard's
    /// current view and of the view last planned, and those that wait for their removal.
    pub(crate) fn contents(
        &self,
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
        let unanswered = delivery.unanswered.iter().map(|sent| Unanswered {
            version: sent.version.clone(),
            ms_ago: now.saturating_sub(sent.sent_at),
            resources: sent.resources.clone(),
        });
        let unsent = delivery.pending.as_ref().map(|pending| pending.resources.clone());
        let n_unsent = unsent.as_ref().map_or(0, |resources| resources.len());
        ContentsPage {
            protocol: self.protocol,
            sends_errors: self.sends_errors && !self.properties.absent_as_alias,
            items,
            collections: self.globs.iter().take(n_collections).cloned().collect(),
            next,
            stamp: (delivery.last_nonce, delivery.unanswered.len(), n_unsent),
            unsent,
            unanswered: unanswered.collect(),
            nack: self.nack().cloned(),
        }
    }

    fn name_after(&self, view: &TypeView, after: Option<&ResourceName>) -> Option<ResourceName> {
        let name_in = |view: &TypeView| view.next_after(after).map(|found| found.name().clone());
        let (shown, planned) = match &self.wildcard {
            Some(wildcard) => (name_in(view), wildcard.base.as_ref().and_then(name_in)),
            None => (None, None),
        };
        // The names of collections have no resource.
        let mut named = self.names.next_after(after);
        while named.is_some_and(|name| self.globs.contains(name.as_str())) {
            named = self.names.next_after(named);
        }
        let named = named.cloned();
        let removed = self.removals.next_after(after).cloned();
        [shown, planned, named, removed].into_iter().flatten().min()
    }

    fn item(&self, name: ResourceName, view: &TypeView, now: u64) -> Item {
        let entry = self.names.get(&name);
        let early = self.wildcard.as_ref().and_then(|wildcard| wildcard.sent_early.get(&name));
        let planned = match (early, self.base()) {
            (Some(early), _) => early.clone(),
            (None, Some(base)) => base.get(name.as_str()).cloned(),
            (None, None) => entry.and_then(ClientVersion::sent).cloned(),
        };
        // Until the removal is sent, the client has the old resource.
        let removed = || Some(Arc::clone(&self.removals.get(&name)?.resource));
        let planned = planned.or_else(removed);
        let is_rejected = planned.as_ref().is_some_and(|planned| {
            self.rejections.rejects(planned.name(), self.base(), Revision(u64::MAX))
        });
        let sent_in = match (&planned, self.protocol) {
            (Some(_), Protocol::Sotw) if self.is_full_state() => {
                self.delivery.sent_version.clone().map(Arc::new)
            }
            (Some(planned), Protocol::Sotw) => match entry.and_then(ClientVersion::sent_version) {
                Some(version) if !self.is_wildcard() => Some(Arc::clone(version)),
                // A wildcard stores nothing per resource. It was sent each change with the version
                // that the change gave to the type.
                _ => self.base().map(|base| {
                    let revision = planned.version().revision;
                    Arc::new(TypeVersion { revision, label: None, ..base.version() })
                }),
            },
            _ => None,
        };
        let last_sent_at = self.delivery.last_sent_at.filter(|_| self.is_full_state());
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
            name: self.spellings.spell(name),
        }
    }
}
