//! The plan of names: those of a named subscription, and those with parameters beside a wildcard.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Resource, ResourceName, TypeVersion};

use super::{Plan, PlanContext, exclusion::note_freed, gone_resource};
use crate::{
    Protocol,
    subscription::{ClientVersion, Subscription},
};

/// The results of a plan of names, besides the plan itself.
#[derive(Debug, Default)]
struct Found {
    /// The names of the planned resources.
    sent: BTreeSet<ResourceName>,
    /// The resources that others replace.
    replaced: Vec<Arc<Resource>>,
    /// The members of collections that no longer exist.
    lost: Vec<ResourceName>,
}

impl Subscription {
    /// Plans a named subscription: the changes of its names, and the requested names.
    pub(super) fn plan_names(&mut self, context: PlanContext<'_>) -> Plan {
        let view = context.view;
        let (mut plan, mut found) = (Plan::default(), Found::default());
        let mut names = self.names_to_check();
        names.extend(self.work.requested.union(&self.work.resent).cloned());
        let version = Arc::new(view.version());
        for name in names {
            self.plan_name(name, &version, &mut plan, &mut found, context);
        }
        self.remove_replaced(found.replaced, &mut plan, view);
        plan.touched = plan.resources.clone();
        let repeated = self.repeated_members(view, &found.lost, &found.sent);
        for resource in repeated.iter().filter_map(|name| view.get(name.as_str())) {
            self.record(resource.name(), ClientVersion::sent_in(resource, &version));
            plan.resources.push(Arc::clone(resource));
        }
        // DELTA-46, for names that the client lists but does not subscribe to.
        if self.properties.announce_removal {
            let claimed = self.resumption.claimed.keys();
            let unasked = claimed.filter(|name| !self.names.has_base(name.base()));
            plan.removed.extend(unasked.filter(|name| view.get(name.as_str()).is_none()).cloned());
        }
        plan
    }

    /// Plans the names with parameters beside a wildcard. They may select variants that the parameters of
    /// the wildcard do not (DYN-10). The cost is O(names with parameters).
    pub(super) fn plan_located(&mut self, plan: &mut Plan, context: PlanContext<'_>) {
        let names: Vec<ResourceName> = self.names.all_located().cloned().collect();
        if names.is_empty() {
            return;
        }
        let sent = plan.resources.iter().map(|resource| resource.name().clone()).collect();
        let mut found = Found { sent, ..Found::default() };
        let version = Arc::new(context.view.version());
        for name in names {
            self.plan_name(name.clone(), &version, plan, &mut found, context);
            self.work.requested.remove(&name);
            self.work.resent.remove(&name);
        }
        self.remove_replaced(found.replaced, plan, context.view);
    }

    /// Plans one name: its change, or the response to the request for it.
    fn plan_name(
        &mut self,
        name: ResourceName,
        version: &Arc<TypeVersion>,
        plan: &mut Plan,
        found: &mut Found,
        context: PlanContext<'_>,
    ) {
        let asked = self.work.requested.contains(&name);
        let again = self.work.resent.contains(&name);
        let wanted = asked || again || self.work.awaited.contains(&name);
        let held = self.names.get(&name).cloned().unwrap_or(ClientVersion::Nothing);
        let resource = context.view.get(name.as_str());
        if resource.is_none() && held.version().is_some() && self.globs.has_member(name.as_str()) {
            found.lost.push(name.clone());
        }
        match resource {
            Some(_) => self.orphans.remove(&name),
            None => self.note_orphan(&name, context.is_resumed, context.now),
        }
        match (resource, held) {
            (Some(resource), held)
                if held.version() == Some(resource.version())
                    && !wanted
                    // TTL-12: see `plan_wildcard`.
                    && (held.sent().is_some() || !self.runs_at_client(resource)) =>
            {
                self.removals.remove(&name);
                let sent_in = held.sent_version().unwrap_or(version);
                self.record(&name, ClientVersion::sent_in(resource, sent_in));
            }
            (Some(resource), held) => {
                self.removals.remove(&name);
                self.work.awaited.remove(&name);
                if held.version().is_none() {
                    plan.fresh.insert(resource.name().clone());
                }
                if found.sent.insert(resource.name().clone()) {
                    plan.resources.push(Arc::clone(resource));
                }
                found.replaced.extend(self.replaced_under(&name, resource));
                if let Some(old) = held.sent().filter(|old| *old != resource) {
                    note_freed(self, old, plan);
                }
                self.record(&name, ClientVersion::sent_in(resource, version));
            }
            (None, _) if asked => self.report_absent(&name, plan, context),
            (None, ClientVersion::Claimed(_) | ClientVersion::Sent(..))
                if self.protocol == Protocol::Sotw && !self.sends_errors =>
            {
                // SOTW-85: the client gets no message. If the resource reappears, that is a
                // change (SOTW-86).
                self.record(&name, ClientVersion::Absent);
            }
            (None, ClientVersion::Sent(old, _)) => {
                if again {
                    self.work.awaited.insert(name.clone());
                }
                self.hold_removal(name, old, context);
            }
            (None, ClientVersion::Claimed(version)) => {
                let old = gone_resource(&self.type_url, &name, Some(version));
                self.hold_removal(name, old, context);
            }
            (None, ClientVersion::Nothing | ClientVersion::Absent) => {}
        }
    }
}
