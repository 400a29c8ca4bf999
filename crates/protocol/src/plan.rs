//! The content of the next response of a subscription: the difference between what was sent and the
//! view.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use chancery_model::{
    Resource, ResourceDraft, ResourceKey, ResourceName, Revision, TypeUrl, TypeVersion, Version,
};
use chancery_view::{Differ, Resources, TypeView, difference};

use crate::{
    Protocol,
    subscription::{Held, Lingering, Subscription},
};

mod full_state;

/// The bytes that a name takes besides its text, in a response that is not sent yet.
const LEAVING_COST_BYTES: usize = 64;

/// A planned response. If it exceeds the size of one response, the session sends it in parts.
#[derive(Debug)]
pub(crate) struct Train {
    pub(crate) resources: Resources,
    pub(crate) removed: VecDeque<ResourceName>,
    pub(crate) absent: VecDeque<ResourceName>,
    /// The bytes of `removed` and `absent` at the time of the plan.
    pub(crate) names_bytes: usize,
    pub(crate) version: TypeVersion,
    /// The revision of the state from which the response was built.
    pub(crate) revision: Revision,
    /// The revision up to which the client has everything once it has this response.
    pub(crate) covers: Revision,
    /// The names that the client has unsubscribed from since the plan. The rest of the response may
    /// still contain their resources.
    pub(crate) given_up: BTreeSet<ResourceName>,
    /// Whether the response has the whole view of a wildcard, not the difference to an earlier
    /// view.
    pub(crate) first_state: bool,
    pub(crate) pace: Pace,
}

impl Train {
    pub(crate) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty() && self.absent.is_empty()
    }
}

/// Whether the parts of a SotW response wait for the ACK of the response before them (SOTW-36).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Each part waits.
    Wait,
    /// The first part does not wait.
    FirstAtOnce,
    /// No part waits, because a type that depends on this one is sent next (ADS-06).
    AtOnce,
}

/// The result of planning.
#[derive(Debug, Default)]
struct Plan {
    resources: Resources,
    removed: Vec<ResourceName>,
    absent: Vec<ResourceName>,
    /// Whether a response is sent even without content.
    send: bool,
    /// The resources that changed for the client. Their children may have to be sent again.
    touched: Resources,
    /// The names of resources, among those subscribed by name, that the client did not have before.
    fresh: BTreeSet<ResourceName>,
    /// Whether the response has the whole view of a wildcard.
    first_state: bool,
}

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
            Before::View(view) => view.get(resource.name().as_str()).is_none(),
            Before::AllBut(names) => names.contains(resource.name()),
        }
    }
}

/// The removals that may be announced now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Release {
    /// None.
    Nothing,
    /// The removals detected up to a revision, because their referrers have moved, and those
    /// detected up to a time, so that no removal waits forever.
    UpTo {
        /// The revision.
        revision: Revision,
        /// The time.
        since: u64,
    },
}

impl Release {
    /// All of them.
    pub(crate) const ALL: Self = Self::UpTo { revision: Revision(u64::MAX), since: u64::MAX };

    pub(crate) fn allows(self, lingering: &Lingering) -> bool {
        match self {
            Self::Nothing => false,
            Self::UpTo { revision, since } => {
                lingering.revision <= revision || lingering.since <= since
            }
        }
    }
}

/// The names that are planned before all other changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// The names that the client requested.
    Asked,
    /// The requested names, and the names that are sent again because a parent was sent.
    AskedAndAgain,
}

/// The view, revision and time of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) view: &'a TypeView,
    pub(crate) revision: Revision,
    pub(crate) now: u64,
}

impl Subscription {
    /// Plans the next response from the view and records the subscription as up to date with the
    /// view.
    pub(crate) fn plan(
        &mut self,
        moment: Moment<'_>,
        release: Release,
        differ: &Differ,
    ) -> Touched {
        let before = self.wildcard.then(|| self.base.clone().unwrap_or_else(TypeView::empty));
        let full_state = self.is_full_state();
        let mut plan = match (full_state, self.wildcard) {
            (true, _) => self.plan_full_state(moment, release, differ),
            (false, true) => self.plan_wildcard(moment, differ),
            (false, false) => self.plan_names(moment),
        };
        if !full_state {
            self.release(&mut plan, moment.view, release);
        }
        self.base = self.wildcard.then(|| moment.view.clone());
        self.known.clear();
        self.pending.clear();
        self.again.clear();
        self.ahead.clear();
        self.stale.clear();
        (self.dirty, self.urgent, self.late) = (false, false, false);
        plan.send |= std::mem::take(&mut self.answer_due);
        // Pending removals are not sent yet.
        let oldest = self.lingering.values().map(|lingering| lingering.seen).min();
        self.planned_revision = oldest.unwrap_or(moment.revision);
        self.seen_revision = moment.revision;
        self.depart(plan, before, moment)
    }

    /// Plans a response to the requested names only. All other changes wait for a later plan.
    pub(crate) fn plan_asked(&mut self, moment: Moment<'_>, which: Which) -> Touched {
        let mut plan = Plan::default();
        (self.urgent, self.late) = (false, false);
        let mut sent = BTreeSet::new();
        let asked = std::mem::take(&mut self.pending);
        let again = match which {
            Which::Asked => BTreeSet::new(),
            Which::AskedAndAgain => std::mem::take(&mut self.again),
        };
        for name in asked.union(&again) {
            match moment.view.get(name.as_str()) {
                Some(resource) => {
                    self.stale.remove(name);
                    self.again.remove(name);
                    self.unmet.remove(name);
                    self.lingering.remove(name);
                    if !self.holds(name) {
                        plan.fresh.insert(resource.name().clone());
                    }
                    self.hold(name, Held::Sent(Arc::clone(resource)));
                    self.hold_other_names(resource, moment.view);
                    if sent.insert(resource.name().clone()) {
                        plan.resources.push(Arc::clone(resource));
                    }
                    if self.wildcard {
                        let told = Some(Arc::clone(resource));
                        self.ahead.insert(resource.name().clone(), told);
                    }
                }
                None if asked.contains(name) => {
                    self.stale.remove(name);
                    self.say_absent(name, &mut plan, moment);
                    if self.wildcard && plan.removed.contains(name) {
                        self.ahead.insert(name.clone(), None);
                    }
                }
                // The removal of the resource is an ordinary change.
                None => {
                    self.stale.insert(name.clone());
                    self.unmet.insert(name.clone());
                }
            }
        }
        plan.touched = plan.resources.clone();
        self.depart(plan, None, moment)
    }

    /// Returns whether each response contains all subscribed resources (SOTW-70).
    pub(crate) fn is_full_state(&self) -> bool {
        self.protocol == Protocol::Sotw && self.properties.full_state
    }

    /// Makes the plan the pending response, unless there is nothing to send. `before` is the
    /// previous view of a wildcard.
    fn depart(&mut self, plan: Plan, before: Option<TypeView>, moment: Moment<'_>) -> Touched {
        let covers = self.planned_revision;
        let Plan { resources, removed, absent, send, touched, fresh, first_state } = plan;
        let content = !resources.is_empty() || !removed.is_empty() || !absent.is_empty();
        if content || send {
            let mut version = moment.view.version();
            if self.is_full_state() && !self.lingering.is_empty() {
                version = version.holding(self.lingering.values().map(|held| &*held.resource));
            }
            let revision = moment.revision;
            let names = removed.iter().chain(&absent);
            let names_bytes = names.map(|name| LEAVING_COST_BYTES + name.as_str().len()).sum();
            self.train = Some(Train {
                resources,
                removed: removed.into(),
                absent: absent.into(),
                names_bytes,
                version,
                revision,
                covers,
                given_up: BTreeSet::new(),
                first_state,
                pace: Pace::FirstAtOnce,
            });
        } else if self.outstanding.is_empty() {
            self.settled_revision = self.settled_revision.max(covers);
        }
        if !self.rejected.is_empty() {
            touched.iter().for_each(|resource| self.rejected.touch(resource.name()));
        }
        self.review_rejections();
        Touched { resources: touched, before: before.map_or(Before::AllBut(fresh), Before::View) }
    }

    /// Keeps a removed resource until its removal may be announced.
    fn linger(&mut self, name: ResourceName, resource: Arc<Resource>, moment: Moment<'_>) {
        self.rejected.on_gone(&resource);
        let Moment { revision, now, .. } = moment;
        let seen = self.seen_revision;
        self.lingering.add(name, Lingering { resource, revision, seen, since: now });
    }

    /// Returns the names that may show another resource now: the marked names, or all.
    fn names_to_check(&self) -> BTreeSet<ResourceName> {
        match self.dirty {
            true => self.names.keys().cloned().collect(),
            false => self.stale.union(&self.pending).cloned().collect(),
        }
    }

    /// Plans a delta wildcard: the difference to the view last sent, or to the resources that the
    /// client claims to hold.
    fn plan_wildcard(&mut self, moment: Moment<'_>, differ: &Differ) -> Plan {
        let view = moment.view;
        let mut plan = Plan::default();
        let mut removed = Vec::new();
        match &self.base {
            None if !self.known.is_empty() => {
                for resource in view.iter() {
                    if self.known.get(resource.name()) != Some(&Some(resource.version())) {
                        plan.resources.push(Arc::clone(resource));
                    }
                }
                // DELTA-46: the client holds resources that no longer exist. Only their names are
                // known.
                let gone = self.known.iter().filter(|(name, _)| view.get(name.as_str()).is_none());
                removed.extend(gone.map(|(name, v)| gone_resource(&self.type_url, name, *v)));
            }
            base => {
                plan.first_state = base.is_none();
                let empty = TypeView::empty();
                let change = difference(differ, base.as_ref().unwrap_or(&empty), view);
                (plan.resources, removed) = (change.changed, change.removed);
            }
        }
        if !self.lingering.is_empty() {
            self.drop_returned(&mut plan.resources);
        }
        self.settle_ahead(view, &mut plan.resources, &mut removed);
        plan.touched = plan.resources.clone();
        if !self.pending.is_empty() || !self.again.is_empty() {
            let mut sent: BTreeSet<ResourceName> =
                plan.resources.iter().map(|resource| resource.name().clone()).collect();
            let asked = std::mem::take(&mut self.pending);
            for name in asked.union(&std::mem::take(&mut self.again)) {
                match view.get(name.as_str()) {
                    Some(resource) if sent.insert(resource.name().clone()) => {
                        plan.resources.push(Arc::clone(resource));
                    }
                    None if asked.contains(name) => self.say_absent(name, &mut plan, moment),
                    Some(_) | None => {}
                }
            }
        }
        let said: BTreeSet<&ResourceName> = plan.removed.iter().collect();
        removed.retain(|resource| !said.contains(resource.name()));
        for resource in removed {
            self.linger(resource.name().clone(), resource, moment);
        }
        plan
    }

    /// Handles resources that reappear before their removal was announced. The client still has
    /// them, and needs them only if they differ.
    fn drop_returned(&mut self, resources: &mut Resources) {
        let mut rest = Resources::default();
        for resource in resources.iter() {
            match self.lingering.remove(resource.name()) {
                Some(held) if held.resource == *resource => {}
                _ => rest.push(Arc::clone(resource)),
            }
        }
        *resources = rest;
    }

    /// Accounts for resources that were sent before the change from `base`. They are not sent
    /// twice. A resource that has changed again since is sent as the view shows it.
    fn settle_ahead(
        &mut self,
        view: &TypeView,
        resources: &mut Resources,
        removed: &mut Vec<Arc<Resource>>,
    ) {
        if self.ahead.is_empty() {
            return;
        }
        let ahead = std::mem::take(&mut self.ahead);
        let mut rest = Resources::default();
        for resource in resources.iter().filter(|r| !ahead.contains_key(r.name())) {
            rest.push(Arc::clone(resource));
        }
        removed.retain(|resource| !ahead.contains_key(resource.name()));
        for (name, told) in ahead {
            match (view.get(name.as_str()), told) {
                (Some(now), Some(sent)) if *now == sent => {}
                (Some(now), _) => rest.push(Arc::clone(now)),
                (None, Some(sent)) => removed.push(sent),
                (None, None) => {}
            }
        }
        *resources = rest;
    }

    /// Plans a named subscription: the changes of its names, and the requested names.
    fn plan_names(&mut self, moment: Moment<'_>) -> Plan {
        let view = moment.view;
        let mut plan = Plan::default();
        let mut names = self.names_to_check();
        names.extend(self.pending.union(&self.again).cloned());
        let mut sent = BTreeSet::new();
        for name in names {
            let asked = self.pending.contains(&name);
            let again = self.again.contains(&name);
            let wanted = asked || again || self.unmet.contains(&name);
            let held = self.names.get(&name).cloned().unwrap_or(Held::Nothing);
            match (view.get(name.as_str()), held) {
                (Some(resource), held) if held.version() == Some(resource.version()) && !wanted => {
                    self.lingering.remove(&name);
                    self.hold(&name, Held::Sent(Arc::clone(resource)));
                }
                (Some(resource), held) => {
                    self.lingering.remove(&name);
                    self.unmet.remove(&name);
                    if held.version().is_none() {
                        plan.fresh.insert(resource.name().clone());
                    }
                    if sent.insert(resource.name().clone()) {
                        plan.resources.push(Arc::clone(resource));
                    }
                    self.hold(&name, Held::Sent(Arc::clone(resource)));
                }
                (None, _) if asked => self.say_absent(&name, &mut plan, moment),
                (None, Held::Version(_) | Held::Sent(_)) if self.protocol == Protocol::Sotw => {
                    // SOTW-85: the client gets no message. If the resource reappears, that is a
                    // change (SOTW-86).
                    self.hold(&name, Held::Absent);
                }
                (None, Held::Sent(old)) => {
                    if again {
                        self.unmet.insert(name.clone());
                    }
                    self.linger(name, old, moment);
                }
                (None, Held::Version(version)) => {
                    let old = gone_resource(&self.type_url, &name, Some(version));
                    self.linger(name, old, moment);
                }
                (None, Held::Nothing | Held::Absent) => {}
            }
        }
        plan.touched = plan.resources.clone();
        // DELTA-46, for names that the client lists but does not subscribe to.
        let unasked = self.known.keys().filter(|name| !self.names.contains_key(*name));
        plan.removed.extend(unasked.filter(|name| view.get(name.as_str()).is_none()).cloned());
        plan
    }

    /// Records a sent resource for all other subscribed names (aliases), so that none of them
    /// causes the same resource to be sent again.
    fn hold_other_names(&mut self, resource: &Arc<Resource>, view: &TypeView) {
        for name in std::iter::once(resource.name()).chain(resource.aliases()) {
            let marked = self.dirty || self.stale.contains(name);
            if marked && view.get(name.as_str()) == Some(resource) {
                self.stale.remove(name);
                self.hold(name, Held::Sent(Arc::clone(resource)));
            }
        }
    }

    fn hold(&mut self, name: &ResourceName, held: Held) {
        let Some(entry) = self.names.get_mut(name) else { return };
        let is_there = matches!(held, Held::Sent(_));
        match std::mem::replace(entry, held) {
            Held::Sent(before) => self.rejected.touch(before.name()),
            Held::Absent => self.returned |= is_there && self.protocol == Protocol::Sotw,
            Held::Nothing | Held::Version(_) => {}
        }
    }

    /// Reports that a requested name does not exist (DELTA-40). SotW has no message for this
    /// (SOTW-78).
    fn say_absent(&mut self, name: &ResourceName, plan: &mut Plan, moment: Moment<'_>) {
        let held = self.lingering.remove(name);
        self.rejected.touch(name);
        match self.protocol {
            Protocol::Sotw => {}
            Protocol::Delta if self.properties.absent_as_alias => {
                self.keep_removal(name, held, moment);
                plan.absent.push(name.clone());
            }
            Protocol::Delta => plan.removed.push(name.clone()),
        }
        self.hold(name, Held::Absent);
    }

    /// Schedules the removal of the resource that the client holds under an absent name. DELTA-63:
    /// the report that a virtual host does not exist removes nothing from the client. The removal
    /// follows in a response of its own (DELTA-42, DELTA-47).
    fn keep_removal(&mut self, name: &ResourceName, held: Option<Lingering>, moment: Moment<'_>) {
        let Moment { view, revision, now } = moment;
        let sent = match self.names.get(name) {
            Some(Held::Sent(resource)) => Some(Arc::clone(resource)),
            Some(Held::Version(version)) => {
                Some(gone_resource(&self.type_url, name, Some(*version)))
            }
            Some(Held::Nothing | Held::Absent) | None => None,
        };
        let seen = self.seen_revision;
        let sent = sent.map(|resource| Lingering { resource, revision, seen, since: now });
        let Some(gone) = held.or(sent) else { return };
        let own = gone.resource.name().clone();
        if view.get(own.as_str()).is_none() {
            self.lingering.add(own, gone);
        }
    }

    /// Announces the removals that `release` allows, each once (DELTA-44). A removal waits for the
    /// next response if this response has a resource with the name as an alias, or reports the name
    /// as absent (DELTA-47).
    fn release(&mut self, plan: &mut Plan, view: &TypeView, release: Release) {
        if self.lingering.is_empty() {
            return;
        }
        let aliases = plan.resources.iter().flat_map(|resource| resource.aliases().iter().cloned());
        let aliased: BTreeSet<ResourceName> = aliases.chain(plan.absent.iter().cloned()).collect();
        let mut said: BTreeSet<ResourceName> = plan.removed.iter().cloned().collect();
        for (name, lingering) in std::mem::take(&mut self.lingering) {
            let own = lingering.resource.name();
            let is_back =
                |name: &ResourceName| view.get(name.as_str()).is_some_and(|r| r.name() == name);
            if is_back(&name) {
                continue;
            }
            let beside = aliased.contains(&name) || aliased.contains(own);
            if !release.allows(&lingering) || beside {
                self.lingering.add(name, lingering);
                continue;
            }
            self.rejected.touch(own);
            self.hold(&name, Held::Absent);
            if !self.properties.announce_removal {
                continue;
            }
            // A client that subscribed by an alias also knows the resource by its own name.
            let own_gone = *own != name && view.get(own.as_str()).is_none();
            if own_gone && said.insert(own.clone()) {
                plan.removed.push(own.clone());
            }
            if said.insert(name.clone()) {
                plan.removed.push(name);
            }
        }
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
