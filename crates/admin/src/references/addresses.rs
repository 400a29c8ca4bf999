//! The listeners of a transaction that have the address of a stored listener. Envoy rejects such a listener.
//!
//! The index of references has the addresses of all listeners. The cost is O(changed listeners), and a
//! transaction without listeners pays nothing. Only if an address occurs again, the views of nodes decide.

use std::collections::{BTreeMap, BTreeSet};

use chancery_admission::{Problem, Validation, ValidationMode, listener_addresses};
use chancery_model::{
    Applied, Change, ChangeKind, Node, ResourceKey, ResourceName, ScopeName, State, Transaction,
    types,
};

use super::{
    index::ReferenceIndex,
    reference_view::{ReferenceView, label},
    report::{Finding, Findings, views},
};
use crate::node_groups::NodeGroup;

/// The maximum number of listeners whose addresses are compared in the views of nodes.
const SUSPECTS_MAX: usize = 1000;
/// The maximum number of comparisons of an address with a scope of a view. Further views are not searched.
const CHECKS_MAX: usize = 100_000;
/// The maximum number of listeners of one scope with the same address that are compared with a listener.
const LISTENERS_MAX: usize = 10;
/// The maximum number of listed views of a finding.
const VIEWS_SHOWN_MAX: usize = 3;
/// The IDs of the findings.
const SHARED: &str = "listener.shared_address";
const MOVED: &str = "listener.moved_address";

/// A published listener with an address that another listener has or had, perhaps in the same view.
#[derive(Debug)]
struct Suspect {
    scope: ScopeName,
    listener: ResourceKey,
    field: String,
    address: String,
    /// The listener that gives up the address in the same transaction, but still exists.
    previous: Option<(ScopeName, ResourceName)>,
}

/// The published listeners whose addresses occur again.
#[derive(Debug, Default)]
pub(crate) struct SharedAddresses {
    suspects: Vec<Suspect>,
    /// The listeners of the transaction. Two of them in one scope were compared before.
    published: BTreeSet<(ScopeName, ResourceName)>,
    n_omitted: usize,
}

/// Returns whether a change publishes a listener that is checked.
pub(crate) fn is_checked(change: &Change, validation: &Validation) -> bool {
    change.key.type_url.as_str() == types::LISTENER
        && matches!(change.kind, ChangeKind::Added | ChangeKind::Updated)
        && validation.mode(&change.scope) != ValidationMode::Off
}

impl SharedAddresses {
    /// Finds the suspects of a transaction that was applied to `before`. `index` is that of the state after it.
    pub(crate) fn of(
        before: &State,
        transaction: &Transaction,
        applied: &Applied,
        index: &ReferenceIndex,
        validation: &Validation,
    ) -> Self {
        let mut found = Self::default();
        let changes = || applied.changes.iter().filter(|change| is_checked(change, validation));
        let given_up = given_up(before, changes());
        for Change { scope, key, resource, .. } in changes() {
            let Some(resource) = resource else { continue };
            for address in listener_addresses(key, &resource.body().unwrap_or_default()) {
                let previous = given_up.get(&address.text).cloned();
                let mut here = index.listeners_at(&address.text, scope);
                let is_shared = previous.is_some()
                    || here.any(|name| *name != key.name)
                    || index.has_listener_outside(&address.text, scope)
                        && is_combined(&applied.state, scope);
                if is_shared && found.suspects.len() >= SUSPECTS_MAX {
                    found.n_omitted += 1;
                } else if is_shared {
                    let (scope, listener) = (scope.clone(), key.clone());
                    let (field, address) = (address.field.into_owned(), address.text);
                    found.suspects.push(Suspect { scope, listener, field, address, previous });
                }
            }
        }
        if !found.suspects.is_empty() {
            let listeners = transaction.upserts.iter();
            let listeners =
                listeners.filter(|one| one.draft.key.type_url.as_str() == types::LISTENER);
            let names = listeners.map(|one| (one.scope.clone(), one.draft.key.name.clone()));
            found.published = names.collect();
        }
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }

    /// Returns the suspect listeners with their scopes.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&ScopeName, &ResourceKey)> {
        self.suspects.iter().map(|suspect| (&suspect.scope, &suspect.listener))
    }

    /// Returns the scopes of the suspects.
    pub(crate) fn scopes(&self) -> BTreeSet<ScopeName> {
        self.suspects.iter().map(|suspect| suspect.scope.clone()).collect()
    }

    /// Returns the suspects that share an address with another listener of a view. `groups` are the views with a
    /// scope of a suspect.
    pub(crate) fn findings(
        &self,
        after: &State,
        groups: &[NodeGroup],
        index: &ReferenceIndex,
        validation: &Validation,
    ) -> Findings {
        let mut by_scope: BTreeMap<&ScopeName, Vec<&Suspect>> = BTreeMap::new();
        for suspect in &self.suspects {
            by_scope.entry(&suspect.scope).or_default().push(suspect);
        }
        let (mut pairs, mut n_checks) = (BTreeMap::new(), 0);
        for group in groups {
            let Some(scopes) = group.after.as_deref() else { continue };
            let view = ReferenceView::new(after, scopes);
            let here = scopes.iter().filter_map(|scope| by_scope.get(scope)).flatten();
            for (suspect, scope) in
                here.flat_map(|one| scopes.iter().map(move |scope| (one, scope)))
            {
                n_checks += 1;
                if n_checks > CHECKS_MAX || !view.shows(&suspect.scope, &suspect.listener) {
                    continue;
                }
                let others = index.listeners_at(&suspect.address, scope).take(LISTENERS_MAX);
                for other in others.map(|name| (scope.clone(), name.clone())) {
                    // Two listeners of the transaction in one scope were compared before.
                    let is_new = *scope != suspect.scope || !self.published.contains(&other);
                    if is_new && other.1 != suspect.listener.name {
                        compare(suspect, other, SHARED, (&view, group), &mut pairs);
                    }
                }
                if let Some(previous) = suspect.previous.clone().filter(|(of, _)| of == scope) {
                    compare(suspect, previous, MOVED, (&view, group), &mut pairs);
                }
            }
        }
        self.report(pairs, validation)
    }

    fn report(&self, pairs: BTreeMap<Pair, Shared<'_>>, validation: &Validation) -> Findings {
        let mut findings = Findings::default();
        for shared in pairs.into_values() {
            match validation.envoy_mode(&shared.suspect.scope) {
                ValidationMode::Off => {}
                ValidationMode::Enforce if shared.rule == SHARED => {
                    findings.add(ValidationMode::Enforce, shared.finding());
                }
                _ => findings.add(ValidationMode::Warn, shared.finding()),
            }
        }
        let last = findings.refusing.last_mut().or(findings.warnings.last_mut());
        if let Some(last) = last.filter(|_| self.n_omitted > 0) {
            let n = self.n_omitted;
            last.problem.rule.push_str(&format!("; {n} further addresses were not compared"));
        }
        findings
    }
}

/// Adds a view to the pair of a suspect and another listener, if the view shows both.
fn compare<'a>(
    suspect: &'a Suspect,
    other: (ScopeName, ResourceName),
    rule: &'static str,
    (view, group): (&ReferenceView<'_>, &NodeGroup),
    pairs: &mut BTreeMap<Pair, Shared<'a>>,
) {
    let own = (suspect.scope.clone(), suspect.listener.name.clone());
    let type_url = suspect.listener.type_url.clone();
    let key = ResourceKey { type_url, name: other.1.clone() };
    // A view shows one listener of a name.
    if own.1 == other.1 || !view.shows(&other.0, &key) {
        return;
    }
    let place = (other.0.clone(), key);
    let pair = if own < other { (own, other) } else { (other, own) };
    let new = || Shared { suspect, other: place, rule, views: Vec::new(), n_views: 0 };
    let shared = pairs.entry((pair, suspect.address.clone())).or_insert_with(new);
    shared.n_views += 1;
    if shared.views.len() < VIEWS_SHOWN_MAX {
        let scopes = group.after.clone().unwrap_or_default();
        shared.views.push((scopes, group.users.n_nodes));
    }
}

/// Two listeners with their address. The listeners are in order, so that a pair is found once.
type Pair = (((ScopeName, ResourceName), (ScopeName, ResourceName)), String);

/// A published listener with the address of another one.
struct Shared<'a> {
    suspect: &'a Suspect,
    other: (ScopeName, ResourceKey),
    rule: &'static str,
    /// The first views with both: the scopes, and the number of connected nodes.
    views: Vec<(Vec<ScopeName>, usize)>,
    n_views: usize,
}

impl Shared<'_> {
    fn finding(&self) -> Finding {
        let Suspect { scope: own, listener, field, address, .. } = self.suspect;
        let (scope, other) = (self.other.0.as_str(), label(&self.other.1));
        let views = views(&self.views, self.n_views);
        let (rule, fix) = match self.rule {
            SHARED => (
                format!("{address} is also an address of {other} in scope {scope:?}, in {views}"),
                "give each listener its own address",
            ),
            _ => (
                format!(
                    "{other} in scope {scope:?} gives up {address} in the same write; Envoy rejects this listener while \
                     the other one still has the address, in {views}"
                ),
                "move the other listener first, and wait until the nodes have acknowledged it",
            ),
        };
        let problem = Problem {
            resource: Some(label(listener)),
            field_path: Some(field.clone()),
            rule,
            id: self.rule.to_owned(),
            fix: fix.to_owned(),
            ..Problem::default()
        };
        Finding { subject: Some((own.clone(), listener.clone())), problem }
    }
}

/// Returns the addresses that listeners lose in a transaction that updates them.
fn given_up<'a>(
    before: &State,
    changes: impl Iterator<Item = &'a Change>,
) -> BTreeMap<String, (ScopeName, ResourceName)> {
    let mut given_up = BTreeMap::new();
    for Change { scope, key, resource, .. } in changes {
        let Some((old, new)) = before.get(scope, key).zip(resource.as_ref()) else { continue };
        let kept = listener_addresses(key, &new.body().unwrap_or_default());
        let lost = listener_addresses(key, &old.body().unwrap_or_default()).into_iter();
        let lost = lost.filter(|old| kept.iter().all(|new| new.text != old.text));
        given_up.extend(lost.map(|old| (old.text, (scope.clone(), key.name.clone()))));
    }
    given_up
}

/// Returns whether an assignment may show a scope together with others.
fn is_combined(state: &State, scope: &ScopeName) -> bool {
    let node = Node::default();
    state.assignments.rules.iter().filter(|rule| rule.scopes.len() > 1).any(|rule| {
        // The scope of a template with variables depends on the node.
        rule.scopes.iter().any(|one| one.resolve(&node).is_none_or(|fixed| fixed == *scope))
    })
}

#[cfg(test)]
mod tests;
