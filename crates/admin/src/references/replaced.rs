//! Versions that clients reject as a replacement of the stored ones, or acknowledge and then apply only in part. Each
//! version alone is valid.
//!
//! The cost is O(changed listeners, scoped routes, secrets, and references to secrets). The index of references is
//! needed only if a secret changes its kind.

use std::collections::{BTreeMap, BTreeSet};

use chancery_admission::{
    Problem, Validation, ValidationMode, for_each_reference, listener_addresses, may_refer,
    needed_secret_kind, reuses_ports, secret_kind,
};
use chancery_model::{
    Applied, Change, ChangeKind, Node, Resource, ResourceKey, ResourceName, ScopeName, State,
    TypeUrl,
    types::{self, Exclusion},
};

use super::{index::ReferenceIndex, reference_view::label, report::Finding};

/// The maximum number of findings.
const FINDINGS_MAX: usize = 1000;
/// The maximum number of referrers of a secret that are compared with it.
const REFERRERS_MAX: usize = 100;
/// The IDs of the findings.
const KIND: &str = "secret.kind";
const EXCHANGED: &str = "scoped_route.exchanged_key";
const FIXED: &str = "listener.fixed_address";

/// Returns whether a change gives a secret another kind of content.
pub(crate) fn changes_secret(before: &State, change: &Change, validation: &Validation) -> bool {
    let Change { scope, key, resource, .. } = change;
    let kind = |one: &Resource| one.body().and_then(|body| secret_kind(&body));
    key.type_url.as_str() == types::SECRET
        && validation.mode(scope) != ValidationMode::Off
        && resource
            .as_deref()
            .is_some_and(|new| before.get(scope, key).is_none_or(|old| kind(old) != kind(new)))
}

/// Returns the warnings about a transaction that was applied to `before`. `index` is that of the state after it.
pub(crate) fn replaced(
    before: &State,
    applied: &Applied,
    index: Option<&ReferenceIndex>,
    validation: &Validation,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let is_checked = |change: &&Change| {
        let is_published = matches!(change.kind, ChangeKind::Added | ChangeKind::Updated);
        is_published && validation.mode(&change.scope) != ValidationMode::Off
    };
    let mut scopes = ChangedKeys::default();
    for change in applied.changes.iter().filter(is_checked) {
        let Change { scope, key, resource, .. } = change;
        let Some(new) = resource.as_deref() else { continue };
        let old = before.get(scope, key);
        match key.type_url.as_str() {
            types::LISTENER => found.extend(old.and_then(|old| listener(change, old, new))),
            types::SCOPED_ROUTE => scopes.add(change, old.map(|old| &**old), new),
            types::SECRET if changes_secret(before, change, validation) => {
                let referrers = index.map(|index| referrers(&applied.state, change, new, index));
                found.extend(referrers.into_iter().flatten());
            }
            _ => {}
        }
        if may_refer(&key.type_url) {
            found.extend(references(&applied.state, change, new));
        }
        if found.len() >= FINDINGS_MAX {
            break;
        }
    }
    found.extend(scopes.findings());
    found.truncate(FINDINGS_MAX);
    found
}

fn finding(
    scope: &ScopeName,
    key: &ResourceKey,
    field: &str,
    (id, rule, fix): (&str, String, &str),
) -> Finding {
    let problem = Problem {
        resource: Some(label(key)),
        field_path: Some(field.to_owned()),
        rule,
        id: id.to_owned(),
        fix: fix.to_owned(),
        ..Problem::default()
    };
    Finding { subject: Some((scope.clone(), key.clone())), problem }
}

/// Finds an update of a listener that Envoy rejects, because its sockets cannot be shared.
fn listener(change: &Change, old: &Resource, new: &Resource) -> Option<Finding> {
    let Change { scope, key, .. } = change;
    let (old, new) = (old.body()?, new.body()?);
    let fix = "remove the listener first, or publish it under another name and other addresses";
    if reuses_ports(&old) != reuses_ports(&new) {
        let rule = "differs from that of the stored listener; Envoy rejects the change".to_owned();
        return Some(finding(scope, key, "enable_reuse_port", (FIXED, rule, fix)));
    }
    let texts = |body: &[u8]| -> BTreeSet<String> {
        listener_addresses(key, body).into_iter().map(|address| address.text).collect()
    };
    let (old_addresses, new_addresses) = (texts(&old), texts(&new));
    let kept = old_addresses.intersection(&new_addresses).next()?;
    if reuses_ports(&new) || old_addresses == new_addresses {
        return None;
    }
    let rule = format!(
        "keeps {kept}, and other addresses change; with enable_reuse_port: false, Envoy rejects the update"
    );
    Some(finding(scope, key, "address", (FIXED, rule, fix)))
}

/// The scoped routes of a transaction, by scope.
#[derive(Default)]
struct ChangedKeys<'a>(BTreeMap<&'a ScopeName, Vec<Keys<'a>>>);

/// The keys of a scoped route before and after a transaction.
struct Keys<'a> {
    resource: &'a ResourceKey,
    old: u64,
    new: u64,
}

impl<'a> ChangedKeys<'a> {
    fn add(&mut self, change: &'a Change, old: Option<&Resource>, new: &Resource) {
        let key = |one: &Resource| one.exclusive_keys(Exclusion::ScopeKey)?.first().copied();
        if let Some((old, new)) = old.and_then(key).zip(key(new)).filter(|(old, new)| old != new) {
            let keys = Keys { resource: &change.key, old, new };
            self.0.entry(&change.scope).or_default().push(keys);
        }
    }

    /// Finds the scoped routes that exchange their keys in a circle. Envoy applies them one by one: each takes its new
    /// key, and then removes its old one, even if another scoped route has taken that key before.
    fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for (scope, all) in &self.0 {
            let giver: BTreeMap<u64, &Keys<'_>> = all.iter().map(|one| (one.old, one)).collect();
            let mut seen: BTreeSet<&ResourceName> = BTreeSet::new();
            for first in all {
                // The chain of the scoped routes, each of which takes the key of the next one.
                let mut chain = vec![first];
                while let Some(next) = chain.last().and_then(|last| giver.get(&last.new)) {
                    if seen.contains(&next.resource.name) || next.old == first.old {
                        break;
                    }
                    seen.insert(&next.resource.name);
                    chain.push(next);
                }
                let is_circle =
                    chain.len() > 1 && chain.last().is_some_and(|last| last.new == first.old);
                seen.insert(&first.resource.name);
                if is_circle {
                    found.push(exchange(scope, &chain));
                }
            }
        }
        found
    }
}

fn exchange(scope: &ScopeName, circle: &[&Keys<'_>]) -> Finding {
    let names: Vec<String> = circle.iter().map(|one| format!("{:?}", one.resource.name)).collect();
    let rule = format!(
        "{} exchange their keys in one write; Envoy acknowledges it, and loses one of the keys",
        names.join(", ")
    );
    let fix =
        "remove one of them, and publish it again after the nodes have acknowledged the others";
    finding(scope, circle[0].resource, "key", (EXCHANGED, rule, fix))
}

/// Finds references of a published resource to secrets of another kind in its scope.
fn references(after: &State, change: &Change, new: &Resource) -> Vec<Finding> {
    let Change { scope, key, .. } = change;
    let mut found = Vec::new();
    if after.collection(scope, &TypeUrl::from_static(types::SECRET)).is_none() {
        return found;
    }
    for_each_reference(key, &new.body().unwrap_or_default(), |reference| {
        let secret = reference.key().filter(|it| it.type_url.as_str() == types::SECRET);
        let Some(secret) = secret else { return };
        let needed = needed_secret_kind(reference.field);
        let body = after.get(scope, &secret).and_then(|stored| stored.body());
        if let Some(body) = body
            && secret_kind(&body) != Some(needed)
        {
            let kind = secret_kind(&body).unwrap_or("nothing");
            let rule = format!("refers to {}, which has {kind}, not {needed}", label(&secret));
            let field = reference.field.whole();
            found.push(finding(scope, key, &field, (KIND, rule + EFFECT, KIND_FIX)));
        }
    });
    found
}

/// The effect of a secret of another kind in Envoy.
const EFFECT: &str = "; Envoy rejects it as a certificate, and treats it as an empty secret otherwise, which verifies nothing";
const KIND_FIX: &str = "publish each kind of secret under a name of its own";

/// Finds a resource that refers to a published secret, and needs another kind.
fn referrers(
    after: &State,
    change: &Change,
    new: &Resource,
    index: &ReferenceIndex,
) -> Option<Finding> {
    let Change { scope, key, .. } = change;
    let kind = new.body().and_then(|body| secret_kind(&body))?;
    let all = index.referrers(&key.type_url, key.name.as_str());
    let all = all.filter(|(origin, _)| is_shown_together(after, scope, &origin.scope));
    for (origin, referrer) in all.take(REFERRERS_MAX) {
        let body = after.get(&origin.scope, &referrer).and_then(|stored| stored.body());
        let mut needed = None;
        for_each_reference(&referrer, &body.unwrap_or_default(), |reference| {
            if reference.key().as_ref() == Some(key) {
                let other = needed_secret_kind(reference.field);
                needed = needed.or(Some(other).filter(|other| *other != kind));
            }
        });
        if let Some(needed) = needed {
            let (referrer, of) = (label(&referrer), origin.scope.as_str());
            let rule = format!("has {kind}, but {referrer} in scope {of:?} needs {needed}");
            return Some(finding(scope, key, kind, (KIND, rule + EFFECT, KIND_FIX)));
        }
    }
    None
}

/// Returns whether a view may have two scopes.
fn is_shown_together(state: &State, one: &ScopeName, other: &ScopeName) -> bool {
    let node = Node::default();
    one == other
        || state.assignments.rules.iter().any(|rule| {
            // The scope of a template with variables depends on the node.
            let has = |wanted: &ScopeName| {
                rule.scopes.iter().any(|it| it.resolve(&node).is_none_or(|fixed| fixed == *wanted))
            };
            rule.scopes.len() > 1 && has(one) && has(other)
        })
}

#[cfg(test)]
mod tests;
