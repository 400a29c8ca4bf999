//! The wildcard of a subscription, and what the client was sent for it.

use std::{collections::BTreeMap, sync::Arc};

use chancery_model::{Resource, ResourceName};
use chancery_view::{Resources, TypeView};

/// The resources that were sent ahead of other changes. `None` means that the name was reported as
/// absent.
type SentEarly = BTreeMap<ResourceName, Option<Arc<Resource>>>;

/// The state of a subscription to the whole view.
#[derive(Debug, Default)]
pub(crate) struct Wildcard {
    /// The view that was last planned. `None` before the first plan.
    ///
    /// Named subscriptions have no such view. They remember what was sent per name, so that they do
    /// not keep an old state alive for a few resources.
    base: Option<TypeView>,
    /// Resources that were sent before the next plan of the view, because the client requested or
    /// needs them; `base` lacks them.
    sent_early: SentEarly,
}

impl Wildcard {
    /// Returns the last planned view.
    pub(crate) fn base(&self) -> Option<&TypeView> {
        self.base.as_ref()
    }

    /// Returns the last planned view, which is empty before the first plan.
    pub(crate) fn base_or_empty(&self) -> TypeView {
        self.base.clone().unwrap_or_else(TypeView::empty)
    }

    /// Returns what was sent early under a name, if anything was.
    pub(crate) fn sent_early(&self, name: &ResourceName) -> Option<Option<&Arc<Resource>>> {
        self.sent_early.get(name).map(Option::as_ref)
    }

    /// Returns the number of names that were sent or reported early.
    pub(crate) fn n_sent_early(&self) -> usize {
        self.sent_early.len()
    }

    /// Records a resource that is sent early, or the early report that the name is absent.
    pub(crate) fn on_sent_early(&mut self, name: ResourceName, sent: Option<Arc<Resource>>) {
        self.sent_early.insert(name, sent);
    }

    /// Records that the client is sent everything of a view.
    pub(crate) fn on_planned(&mut self, view: TypeView) {
        self.base = Some(view);
        self.sent_early.clear();
    }

    /// Records that the last plan is withdrawn. `base` is the view before it.
    pub(crate) fn on_withdrawn(&mut self, base: TypeView) {
        self.base = Some(base);
    }

    /// Accounts for resources that were sent before the change from the last planned view. They are
    /// not sent twice. A resource that has changed again since is sent as the view shows it.
    pub(crate) fn settle_sent_early(
        &mut self,
        view: &TypeView,
        resources: &mut Resources,
        removed: &mut Vec<Arc<Resource>>,
    ) {
        if self.sent_early.is_empty() {
            return;
        }
        let sent_early = std::mem::take(&mut self.sent_early);
        let mut rest = Resources::default();
        for resource in resources.iter().filter(|r| !sent_early.contains_key(r.name())) {
            rest.push(Arc::clone(resource));
        }
        removed.retain(|resource| !sent_early.contains_key(resource.name()));
        for (name, sent) in sent_early {
            match (view.get(name.as_str()), sent) {
                (Some(now), Some(sent)) if *now == sent => {}
                (Some(now), _) => rest.push(Arc::clone(now)),
                (None, Some(sent)) => removed.push(sent),
                (None, None) => {}
            }
        }
        *resources = rest;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_model::{ResourceDraft, ResourceKey, Revision, TypeUrl, types::CLUSTER};

    use super::*;

    fn resource(name: &str, revision: u64) -> Arc<Resource> {
        let (type_url, name) = (TypeUrl::from_static(CLUSTER), ResourceName::new(name).unwrap());
        let draft = ResourceDraft::new(ResourceKey { type_url, name }, Bytes::new());
        Arc::new(Resource::publish(&draft, Revision(revision)))
    }

    /// A resource that was sent early and is not in the next view is removed. Nothing is sent twice.
    #[test]
    fn resource_sent_early_is_neither_sent_again_nor_forgotten() {
        let mut wildcard = Wildcard::default();
        let (early, other) = (resource("early", 1), resource("other", 1));
        wildcard.on_sent_early(early.name().clone(), Some(Arc::clone(&early)));
        assert_eq!(wildcard.sent_early(early.name()), Some(Some(&early)));
        let mut resources = Resources::default();
        resources.push(Arc::clone(&early));
        resources.push(Arc::clone(&other));
        let mut removed = Vec::new();
        wildcard.settle_sent_early(&TypeView::empty(), &mut resources, &mut removed);
        assert!(resources.iter().eq([&other]));
        assert_eq!(removed, [early]);
        assert_eq!(wildcard.n_sent_early(), 0);
    }
}
