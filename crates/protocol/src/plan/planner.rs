//! The planner: the parts of a subscription that a plan changes, and the steps that all plans share.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{
    Resource, ResourceDraft, ResourceKey, ResourceName, Revision, TypeUrl, TypeVersion, Version,
    types::{EXTENSION, ROUTE},
};
use chancery_view::{Resources, TypeView};

use super::content::{Plan, PlanContext};
use crate::{
    Protocol,
    subscription::{
        Changed, ClientVersion, Delivery, Interest, Kind, Orphans, PendingRemoval, PendingRemovals,
        Rejections, Renewals, Resumption, Work, is_replaced_by, tells_replaced,
    },
};

/// The parts of a subscription that a plan reads and changes.
#[derive(Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) kind: &'a Kind,
    /// The time at which the subscription was opened.
    pub(crate) opened_at: u64,
    pub(crate) interest: &'a mut Interest,
    pub(crate) work: &'a mut Work,
    pub(crate) delivery: &'a mut Delivery,
    pub(crate) removals: &'a mut PendingRemovals,
    pub(crate) orphans: &'a mut Orphans,
    pub(crate) rejections: &'a mut Rejections,
    pub(crate) resumption: &'a mut Resumption,
    pub(crate) renewals: &'a Renewals,
    /// MCP: whether the response is a difference.
    pub(crate) is_incremental: bool,
}

impl Planner<'_> {
    /// Returns the names that may show another resource now: the marked names, or all.
    pub(super) fn names_to_check(&self) -> BTreeSet<ResourceName> {
        match self.work.changed() {
            Changed::All => self.interest.names().keys().cloned().collect(),
            Changed::Names(names) => names.union(self.work.requested()).cloned().collect(),
        }
    }

    pub(super) fn record(&mut self, name: &ResourceName, held: ClientVersion) {
        let is_there = matches!(held, ClientVersion::Sent(..));
        let is_absent = held == ClientVersion::Absent;
        let Some(before) = self.interest.set_version(name, held) else { return };
        match before {
            ClientVersion::Sent(before, _) => self.rejections.touch(before.name()),
            ClientVersion::Absent if is_there && self.kind.protocol == Protocol::Sotw => {
                self.delivery.on_returned();
            }
            ClientVersion::Absent | ClientVersion::Nothing | ClientVersion::Claimed(_) => {}
        }
        if is_absent {
            self.drop_absent_member(name);
        }
    }

    /// Records a sent resource for all other subscribed names (aliases), so that none of them
    /// causes the same resource to be sent again.
    pub(super) fn record_other_names(
        &mut self,
        resource: &Arc<Resource>,
        view: &TypeView,
        version: &Arc<TypeVersion>,
    ) {
        let (names, changed) = (self.interest.names(), self.work.changed());
        let is_changed = |name: &&ResourceName| {
            names.contains(name.as_str())
                && changed.contains(name)
                && view.get(name.as_str()) == Some(resource)
        };
        let names: Vec<ResourceName> =
            self.interest.names_for(resource).filter(is_changed).cloned().collect();
        for name in &names {
            self.work.on_change_planned(name);
            self.record(name, ClientVersion::sent_in(resource, version));
        }
    }

    /// Keeps a removed resource until its removal may be announced.
    pub(super) fn hold_removal(
        &mut self,
        name: ResourceName,
        resource: Arc<Resource>,
        context: PlanContext<'_>,
    ) {
        self.rejections.on_gone(&resource);
        let PlanContext { revision, now, .. } = context;
        let seen = self.delivery.checked();
        let removal = PendingRemoval {
            resource,
            revision,
            seen,
            since: now,
            is_tried: false,
            is_kept: false,
        };
        self.removals.add(name, removal);
    }

    /// Handles resources that reappear before their removal was announced. The client still has
    /// them, and needs them only if they differ.
    pub(super) fn drop_returned(&mut self, resources: &mut Resources) {
        let mut rest = Resources::default();
        for resource in resources.iter() {
            match self.removals.remove(resource.name()) {
                Some(held) if held.resource == *resource => {}
                _ => rest.push(Arc::clone(resource)),
            }
        }
        *resources = rest;
    }

    /// Returns the resource that the client has under a name, if `new` replaces it.
    pub(super) fn replaced_under(
        &self,
        name: &ResourceName,
        new: &Resource,
    ) -> Option<Arc<Resource>> {
        let old = self.interest.names().get(name)?.sent()?;
        is_replaced_by(old, new).then(|| Arc::clone(old))
    }

    /// Removes variants that others replace, in the response with the others (DYN-07).
    pub(super) fn remove_replaced(
        &mut self,
        replaced: Vec<Arc<Resource>>,
        plan: &mut Plan,
        view: &TypeView,
    ) {
        for old in replaced {
            self.rejections.touch(old.name());
            if tells_replaced(self.kind, self.interest, view, &old)
                && !plan.removed.contains(old.name())
            {
                plan.removed.push(old.name().clone());
            }
        }
    }

    /// Reports that a requested name does not exist (DELTA-40). SotW has no message for this
    /// (SOTW-78), except an error where errors are enabled.
    pub(super) fn report_absent(
        &mut self,
        name: &ResourceName,
        plan: &mut Plan,
        context: PlanContext<'_>,
    ) {
        self.note_orphan(name, context.is_resumed, context.now);
        let held = self.removals.remove(name);
        self.rejections.touch(name);
        match self.kind.protocol {
            Protocol::Sotw => {
                let is_reported = self.interest.names().get(name) == Some(&ClientVersion::Absent);
                if self.kind.sends_errors && !is_reported {
                    plan.errors.push(name.clone());
                }
            }
            Protocol::Delta if self.kind.properties.absent_as_alias => {
                self.keep_removal(name, held, context);
                plan.absent.push(name.clone());
            }
            // DELTA-48: the client continues to use the resource that it holds from an earlier stream.
            Protocol::Delta | Protocol::Mcp
                if !self.kind.properties.announce_removal && self.resumption.claims(name) => {}
            Protocol::Delta | Protocol::Mcp => {
                // The client knows a variant that it holds by its constraints (DYN-08).
                let sent = self.interest.names().get(name).and_then(ClientVersion::sent);
                let variant = sent.filter(|sent| sent.constraints().is_some());
                let known = variant.map_or(name, |variant| variant.name());
                plan.removed.push(known.clone());
            }
        }
        self.record(name, ClientVersion::Absent);
    }

    /// Schedules the removal of the resource that the client holds under an absent name. DELTA-63:
    /// the report that a virtual host does not exist removes nothing from the client. The removal
    /// follows in a response of its own (DELTA-42, DELTA-47).
    pub(super) fn keep_removal(
        &mut self,
        name: &ResourceName,
        held: Option<PendingRemoval>,
        context: PlanContext<'_>,
    ) {
        let PlanContext { view, revision, now, .. } = context;
        let sent = match self.interest.names().get(name) {
            Some(ClientVersion::Sent(resource, _)) => Some(Arc::clone(resource)),
            Some(ClientVersion::Claimed(version)) => {
                Some(gone_resource(&self.kind.type_url, name, Some(*version)))
            }
            Some(ClientVersion::Nothing | ClientVersion::Absent) | None => None,
        };
        let seen = self.delivery.checked();
        let pending = |resource| PendingRemoval {
            resource,
            revision,
            seen,
            since: now,
            is_tried: false,
            is_kept: false,
        };
        let sent = sent.map(pending);
        let Some(gone) = held.or(sent) else { return };
        let own = gone.resource.name().clone();
        if view.get(own.as_str()).is_none() {
            self.removals.add(own, gone);
        }
    }

    /// Records a name without a resource, if the client keeps the resource that it had. `is_resumed` means that
    /// the client holds resources of any type from an earlier stream.
    pub(super) fn note_orphan(&mut self, name: &ResourceName, is_resumed: bool, now: u64) {
        if ![ROUTE, EXTENSION].contains(&self.kind.type_url.as_str()) {
            return;
        }
        let is_first = self.delivery.last_nonce() == 0;
        let was_sent =
            self.interest.names().get(name).is_some_and(|version| version.sent().is_some());
        // SotW clients do not report what they hold. Delta clients do not list a table whose removal was announced.
        // They subscribe to it for as long as its listener drains.
        let may_hold = is_first
            && match self.kind.protocol {
                Protocol::Sotw => self.resumption.has_resources(),
                Protocol::Delta => is_resumed,
                Protocol::Mcp => false,
            };
        let claims =
            self.interest.names().get(name).is_some_and(|version| version.version().is_some())
                || self.resumption.claimed().contains_key(name);
        let (seen, since) = if was_sent {
            (self.delivery.checked(), now)
        } else if may_hold || claims {
            (Revision(0), self.opened_at)
        } else {
            return;
        };
        self.orphans.add(name, seen, since);
    }

    /// Drops a member of a collection that no longer exists.
    pub(super) fn drop_absent_member(&mut self, name: &ResourceName) {
        if self.interest.drop_absent_member(name) {
            // The absence is reported now, and not again for the claim (DELTA-44).
            self.resumption.disclaim(name);
        }
    }
}

/// Creates an entry without a body for a removed resource. It lasts until the session announces the removal. The name
/// is known, and possibly the version.
pub(super) fn gone_resource(
    type_url: &TypeUrl,
    name: &ResourceName,
    version: Option<Version>,
) -> Arc<Resource> {
    let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
    let draft = ResourceDraft::new(key, bytes::Bytes::new());
    Arc::new(match version {
        Some(version) => Resource::with_version(&draft, version),
        None => Resource::publish(&draft, Revision(0)),
    })
}
