//! The content of the next response of a subscription: the difference between what was sent and the
//! view.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{
    Resource, ResourceDraft, ResourceKey, ResourceName, Revision, TypeUrl, TypeVersion, Version,
};
use chancery_view::{Differ, Resources, TypeView, difference};

use crate::{
    Protocol,
    subscription::{
        CarriedRevisions, Changed, ClientVersion, Pace, PendingRemoval, PendingResponse,
        Subscription, Urgency, Wildcard, is_replaced_by,
    },
};

mod collection;
mod content;
mod errors;
mod exclusion;
mod full_state;
mod names;
mod refresh;
mod renewal;

use content::Plan;
pub(crate) use content::Release;
use exclusion::Takeovers;

/// Resources that changed for the client.
#[derive(Debug)]
pub(crate) struct Touched {
    pub(crate) resources: Resources,
    before: Before,
}

/// The resources that the client had before.
#[derive(Debug)]
enum Before {
    /// All of a view.
    View(TypeView),
    /// All touched resources except those with these names.
    AllBut(BTreeSet<ResourceName>),
}

impl Touched {
    /// Returns whether the client had no resource of this name before.
    pub(crate) fn is_fresh(&self, resource: &Resource) -> bool {
        match &self.before {
            Before::View(view) => view.get(resource.base_name().as_str()).is_none(),
            Before::AllBut(names) => names.contains(resource.name()),
        }
    }
}

/// The names that are planned before all other changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The names that the client requested.
    Requested,
    /// The requested names, and the names that are sent again because a parent was sent.
    RequestedAndResent,
}

/// The view, revision, client and time of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanContext<'a> {
    pub(crate) view: &'a TypeView,
    pub(crate) revision: Revision,
    /// Whether the client holds resources of any type from an earlier stream.
    pub(crate) is_resumed: bool,
    pub(crate) now: u64,
}

impl Subscription {
    /// Plans the next response from the view and records the subscription as up to date with the
    /// view.
    pub(crate) fn plan(
        &mut self,
        context: PlanContext<'_>,
        release: Release,
        differ: &Differ,
    ) -> Touched {
        let carried = self.carried(context.revision);
        let before = self.wildcard.as_ref().map(Wildcard::base_or_empty);
        let sent_early = self.wildcard.as_ref().is_some_and(|w| !w.sent_early.is_empty());
        let full_state = self.is_full_state();
        let is_incremental = self.sends_incremental();
        let mut plan = match (full_state, self.is_wildcard()) {
            (true, _) => self.plan_full_state(context, release, differ),
            (false, true) => self.plan_wildcard(context, differ),
            (false, false) => self.plan_names(context),
        };
        if !full_state {
            let takeovers = exclusion::take_over(self, &mut plan, context.view, release);
            self.release(&mut plan, context.view, release, &takeovers);
        }
        if self.protocol == Protocol::Mcp && !is_incremental {
            self.plan_full_collection(&mut plan, context.view, differ);
        }
        exclusion::order_takeovers(self, &mut plan, before.as_ref());
        plan.is_incremental = is_incremental;
        plan.sent_early = sent_early;
        if let Some(wildcard) = &mut self.wildcard {
            wildcard.base = Some(context.view.clone());
            wildcard.sent_early.clear();
        }
        self.resumption.claimed.clear();
        plan.send |= self.work.take_all();
        // Pending removals are not sent yet.
        let waiting = self.removals.values().filter(|removal| !removal.is_kept);
        let unnamed = self.removals.unnamed().filter(|unnamed| !unnamed.is_kept);
        let seen = waiting.map(|removal| removal.seen).chain(unnamed.map(|_| Revision(0)));
        let oldest = seen.min();
        self.delivery.planned = oldest.unwrap_or(context.revision);
        self.delivery.checked = context.revision;
        self.delivery.included = context.revision;
        self.set_pending(plan, before, carried, context)
    }

    /// Plans a response to the requested names only. All other changes wait for a later plan.
    pub(crate) fn plan_requested(
        &mut self,
        context: PlanContext<'_>,
        selection: Selection,
    ) -> Touched {
        let mut plan = Plan::default();
        let carried = self.carried(context.revision);
        self.work.set_urgency(Urgency::AfterAnswer);
        let (mut sent, mut replaced) = (BTreeSet::new(), Vec::new());
        let version = Arc::new(context.view.version());
        let asked = std::mem::take(&mut self.work.requested);
        let again = match selection {
            Selection::Requested => BTreeSet::new(),
            Selection::RequestedAndResent => std::mem::take(&mut self.work.resent),
        };
        for name in asked.union(&again) {
            match context.view.get(name.as_str()) {
                Some(resource) => {
                    self.orphans.remove(name);
                    self.work.changed.remove(name);
                    self.work.resent.remove(name);
                    self.work.awaited.remove(name);
                    self.removals.remove(name);
                    if !self.holds(name) {
                        plan.fresh.insert(resource.name().clone());
                    }
                    replaced.extend(self.replaced_under(name, resource));
                    self.record(name, ClientVersion::sent_in(resource, &version));
                    self.record_other_names(resource, context.view, &version);
                    if sent.insert(resource.name().clone()) {
                        plan.resources.push(Arc::clone(resource));
                    }
                    if let Some(wildcard) = &mut self.wildcard
                        && context.view.has(resource)
                    {
                        let sent = Some(Arc::clone(resource));
                        wildcard.sent_early.insert(resource.name().clone(), sent);
                    }
                }
                None if asked.contains(name) => {
                    self.work.changed.remove(name);
                    self.report_absent(name, &mut plan, context);
                    if let Some(wildcard) = &mut self.wildcard
                        && plan.removed.contains(name)
                    {
                        wildcard.sent_early.insert(name.clone(), None);
                    }
                }
                // The removal of the resource is an ordinary change.
                None => {
                    self.work.changed.insert(name.clone());
                    self.work.awaited.insert(name.clone());
                }
            }
        }
        self.remove_replaced(replaced, &mut plan, context.view);
        plan.touched = plan.resources.clone();
        self.set_pending(plan, None, carried, context)
    }

    /// Makes the plan the pending response, unless there is nothing to send. `before` is the
    /// previous view of a wildcard.
    fn set_pending(
        &mut self,
        plan: Plan,
        before: Option<TypeView>,
        carried: CarriedRevisions,
        context: PlanContext<'_>,
    ) -> Touched {
        let covers = self.delivery.planned;
        let is_atomic = exclusion::exchanges_keys(self, &plan, before.as_ref());
        let Plan { resources, removed, absent, errors, send, touched, fresh, .. } = plan;
        let changes = plan.releases || !touched.is_empty() || !removed.is_empty();
        let has_names = !removed.is_empty() || !absent.is_empty() || !errors.is_empty();
        if !resources.is_empty() || has_names || send {
            let mut version = context.view.version();
            if self.is_full_state() && !self.removals.is_empty() {
                let held = self.removals.values().map(|held| &held.resource);
                let is_whole = self.is_wildcard() && self.names.is_empty();
                version = version.holding(is_whole, held.map(|held| (held.name(), held.version())));
            }
            let revision = context.revision;
            let names = removed.iter().chain(&absent).chain(&errors);
            let names_bytes = PendingResponse::bytes_of(names);
            self.delivery.pending = Some(PendingResponse {
                resources,
                heartbeats: Resources::default(),
                removed: removed.into(),
                n_removed_first: plan.n_removed_first,
                announced: plan.announced,
                changes,
                is_atomic,
                absent: absent.into(),
                errors: errors.into(),
                names_bytes,
                version,
                revision,
                covers,
                carried,
                unsubscribed: BTreeSet::new(),
                first_state: plan.first_state,
                repeats: plan.repeats,
                is_incremental: plan.is_incremental,
                is_renewal: false,
                base: before.clone().filter(|_| !plan.sent_early),
                pace: Pace::FirstAtOnce,
            });
        } else if self.delivery.unanswered.is_empty() {
            self.delivery.settle(covers);
        }
        if !self.rejections.is_empty() {
            touched.iter().for_each(|resource| self.rejections.touch(resource.name()));
        }
        self.review_rejections();
        Touched { resources: touched, before: before.map_or(Before::AllBut(fresh), Before::View) }
    }

    /// Keeps a removed resource until its removal may be announced.
    fn hold_removal(
        &mut self,
        name: ResourceName,
        resource: Arc<Resource>,
        context: PlanContext<'_>,
    ) {
        self.rejections.on_gone(&resource);
        let PlanContext { revision, now, .. } = context;
        let seen = self.delivery.checked;
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

    /// Returns the names that may show another resource now: the marked names, or all.
    fn names_to_check(&self) -> BTreeSet<ResourceName> {
        match &self.work.changed {
            Changed::All => self.names.keys().cloned().collect(),
            Changed::Names(names) => names.union(&self.work.requested).cloned().collect(),
        }
    }

    /// Plans a delta wildcard: the difference to the view last sent, or to the resources that the
    /// client claims to hold.
    fn plan_wildcard(&mut self, context: PlanContext<'_>, differ: &Differ) -> Plan {
        let view = context.view;
        let mut plan = Plan::default();
        let (mut removed, mut replaced) = (Vec::new(), Vec::new());
        let base = self.base();
        let claimed = &self.resumption.claimed;
        match base {
            None if !claimed.is_empty() => {
                plan.resumes = true;
                for resource in view.iter() {
                    // TTL-12: the lifetime runs since the client's earlier stream, and a heartbeat is
                    // only for a resource that this stream sent (TTL-04).
                    let names = [resource.name(), resource.base_name()];
                    let version = Some(resource.version());
                    let is_claimed = names.iter().any(|name| claimed.get(*name) == Some(&version));
                    if !is_claimed || self.sends_lifetime(resource) {
                        plan.resources.push(Arc::clone(resource));
                    }
                }
                // DELTA-46: the client holds resources that no longer exist. Only their names are
                // known.
                let gone = claimed.iter().filter(|(name, _)| view.get(name.as_str()).is_none());
                removed.extend(gone.map(|(name, v)| gone_resource(&self.type_url, name, *v)));
            }
            base => {
                plan.first_state = base.is_none();
                let empty = TypeView::empty();
                let change = difference(differ, base.unwrap_or(&empty), view);
                if let Some(base) = base.filter(|_| self.nack().is_some()) {
                    let old = change.changed.iter().filter_map(|new| base.get(new.name().as_str()));
                    let old: Vec<Arc<Resource>> = old.cloned().collect();
                    old.iter().for_each(|old| exclusion::note_freed(self, old, &mut plan));
                    replaced = old;
                }
                (plan.resources, removed) = (change.changed, change.removed);
            }
        }
        replaced.iter().for_each(|old| self.rejections.on_gone(old));
        if !self.removals.is_empty() {
            self.drop_returned(&mut plan.resources);
        }
        self.settle_sent_early(view, &mut plan.resources, &mut removed);
        self.plan_located(&mut plan, context);
        plan.touched = plan.resources.clone();
        if !self.work.requested.is_empty() || !self.work.resent.is_empty() {
            let mut sent: BTreeSet<ResourceName> =
                plan.resources.iter().map(|resource| resource.name().clone()).collect();
            let asked = std::mem::take(&mut self.work.requested);
            for name in asked.union(&std::mem::take(&mut self.work.resent)) {
                match view.get(name.as_str()) {
                    Some(resource) if sent.insert(resource.name().clone()) => {
                        plan.resources.push(Arc::clone(resource));
                    }
                    None if asked.contains(name) => self.report_absent(name, &mut plan, context),
                    Some(_) | None => {}
                }
            }
        }
        let said: BTreeSet<&ResourceName> = plan.removed.iter().collect();
        removed.retain(|resource| !said.contains(resource.name()));
        for resource in removed {
            if self.is_replaced(view, &resource) {
                self.remove_replaced(vec![resource], &mut plan, view)
            } else {
                self.hold_removal(resource.name().clone(), resource, context)
            }
        }
        plan
    }

    /// Returns the resource that the client has under a name, if `new` replaces it.
    fn replaced_under(&self, name: &ResourceName, new: &Resource) -> Option<Arc<Resource>> {
        let old = self.names.get(name)?.sent()?;
        is_replaced_by(old, new).then(|| Arc::clone(old))
    }

    /// Removes variants that others replace, in the response with the others (DYN-07).
    fn remove_replaced(&mut self, replaced: Vec<Arc<Resource>>, plan: &mut Plan, view: &TypeView) {
        for old in replaced {
            self.rejections.touch(old.name());
            if self.tells_replaced(view, &old) && !plan.removed.contains(old.name()) {
                plan.removed.push(old.name().clone());
            }
        }
    }

    /// Handles resources that reappear before their removal was announced. The client still has
    /// them, and needs them only if they differ.
    fn drop_returned(&mut self, resources: &mut Resources) {
        let mut rest = Resources::default();
        for resource in resources.iter() {
            match self.removals.remove(resource.name()) {
                Some(held) if held.resource == *resource => {}
                _ => rest.push(Arc::clone(resource)),
            }
        }
        *resources = rest;
    }

    /// Accounts for resources that were sent before the change from `base`. They are not sent
    /// twice. A resource that has changed again since is sent as the view shows it.
    fn settle_sent_early(
        &mut self,
        view: &TypeView,
        resources: &mut Resources,
        removed: &mut Vec<Arc<Resource>>,
    ) {
        let Some(wildcard) = self.wildcard.as_mut().filter(|w| !w.sent_early.is_empty()) else {
            return;
        };
        let sent_early = std::mem::take(&mut wildcard.sent_early);
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

    /// Records a sent resource for all other subscribed names (aliases), so that none of them
    /// causes the same resource to be sent again.
    fn record_other_names(
        &mut self,
        resource: &Arc<Resource>,
        view: &TypeView,
        version: &Arc<TypeVersion>,
    ) {
        let is_changed = |name: &&ResourceName| {
            self.names.contains(name.as_str())
                && self.work.changed.contains(name)
                && view.get(name.as_str()) == Some(resource)
        };
        let names: Vec<ResourceName> =
            self.names_for(resource).filter(is_changed).cloned().collect();
        for name in &names {
            self.work.changed.remove(name);
            self.record(name, ClientVersion::sent_in(resource, version));
        }
    }

    fn record(&mut self, name: &ResourceName, held: ClientVersion) {
        let is_there = matches!(held, ClientVersion::Sent(..));
        let is_absent = held == ClientVersion::Absent;
        let Some(before) = self.names.set(name, held) else { return };
        match before {
            ClientVersion::Sent(before, _) => self.rejections.touch(before.name()),
            ClientVersion::Absent => {
                self.delivery.returned |= is_there && self.protocol == Protocol::Sotw
            }
            ClientVersion::Nothing | ClientVersion::Claimed(_) => {}
        }
        if is_absent {
            self.drop_absent_member(name);
        }
    }

    /// Reports that a requested name does not exist (DELTA-40). SotW has no message for this
    /// (SOTW-78), except an error where errors are enabled.
    fn report_absent(&mut self, name: &ResourceName, plan: &mut Plan, context: PlanContext<'_>) {
        self.note_orphan(name, context.is_resumed, context.now);
        let held = self.removals.remove(name);
        self.rejections.touch(name);
        match self.protocol {
            Protocol::Sotw => self.report_error(name, plan),
            Protocol::Delta if self.properties.absent_as_alias => {
                self.keep_removal(name, held, context);
                plan.absent.push(name.clone());
            }
            // DELTA-48: the client continues to use the resource that it holds from an earlier stream.
            Protocol::Delta | Protocol::Mcp
                if !self.properties.announce_removal && self.resumption.claims(name) => {}
            Protocol::Delta | Protocol::Mcp => {
                // The client knows a variant that it holds by its constraints (DYN-08).
                let sent = self.names.get(name).and_then(ClientVersion::sent);
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
    fn keep_removal(
        &mut self,
        name: &ResourceName,
        held: Option<PendingRemoval>,
        context: PlanContext<'_>,
    ) {
        let PlanContext { view, revision, now, .. } = context;
        let sent = match self.names.get(name) {
            Some(ClientVersion::Sent(resource, _)) => Some(Arc::clone(resource)),
            Some(ClientVersion::Claimed(version)) => {
                Some(gone_resource(&self.type_url, name, Some(*version)))
            }
            Some(ClientVersion::Nothing | ClientVersion::Absent) | None => None,
        };
        let seen = self.delivery.checked;
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

    /// Announces the removals that `release` allows, each once (DELTA-44). A removal waits for the
    /// next response if this response has a resource with the name as an alias, or reports the name
    /// as absent (DELTA-47).
    ///
    /// Those of `takeovers` go out before the resources of the plan.
    fn release(
        &mut self,
        plan: &mut Plan,
        view: &TypeView,
        release: Release,
        takeovers: &Takeovers,
    ) {
        if self.removals.is_empty() {
            return;
        }
        let aliases = plan.resources.iter().flat_map(|resource| resource.aliases().iter().cloned());
        let absent: BTreeSet<ResourceName> = plan.absent.iter().cloned().collect();
        let aliased: BTreeSet<ResourceName> = aliases.chain(absent.iter().cloned()).collect();
        let mut said: BTreeSet<ResourceName> = plan.removed.iter().cloned().collect();
        let mut first = Vec::new();
        for (name, removal) in std::mem::take(&mut self.removals) {
            let own = removal.resource.name();
            let is_back =
                |name: &ResourceName| view.get(name.as_str()).is_some_and(|r| r.name() == name);
            if is_back(&name) {
                continue;
            }
            if self.is_replaced(view, &removal.resource) {
                if view.get(name.as_str()).is_none() {
                    self.record(&name, ClientVersion::Absent);
                }
                self.remove_replaced(vec![removal.resource], plan, view);
                continue;
            }
            let is_takeover = takeovers.are_now(&name);
            let others = if is_takeover { &absent } else { &aliased };
            let beside = others.contains(&name) || others.contains(own);
            if !takeovers.allow(&name, &removal, release) || beside {
                self.removals.add(name, removal);
                continue;
            }
            self.rejections.touch(own);
            // ERR-10: a member of a glob that the client has not named itself has no error.
            let is_named = !self.globs.has_member(name.as_str());
            self.record(&name, ClientVersion::Absent);
            if !self.properties.announce_removal {
                continue;
            }
            if self.protocol == Protocol::Sotw {
                if is_named {
                    plan.errors.push(name);
                }
                continue;
            }
            if removal.resource.constraints().is_some() {
                if said.insert(own.clone()) && !self.has_elsewhere(view, &removal.resource) {
                    plan.removed.push(own.clone());
                }
                continue;
            }
            // A client that subscribed by an alias also knows the resource by its own name.
            let own_gone = *own != name && view.get(own.as_str()).is_none();
            let to = if is_takeover { &mut first } else { &mut plan.removed };
            let names = own_gone.then(|| own.clone()).into_iter().chain([name.clone()]);
            to.extend(names.filter(|name| said.insert(name.clone())));
            if self.properties.exclusion.rejects_whole() {
                plan.announced.push((name, removal));
            }
        }
        plan.n_removed_first = first.len();
        plan.removed.splice(..0, first);
    }
}

/// Creates a placeholder for a resource whose body is unknown, until its removal is announced. Its
/// name is known, and possibly its version.
fn gone_resource(
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
