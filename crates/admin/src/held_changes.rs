//! The changes that freezes hold back from clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_admin_proto::v1 as pb;
use chancery_model::{
    Applied, Change, Freeze, FreezeParts, FreezeTarget, FrozenResource, Outcome, ResourceKey,
    Revision, ScopeName, State, Summary, Target, Verb,
};
use chancery_store::PartKey;

use crate::{
    changes::{self, Effect},
    ctx::Ctx,
    revisions::{Compared, kind_of},
    write_access::hide_differences,
};

/// The changes that a freeze holds: from what clients have to the newest content.
pub(crate) struct HeldBack<'a> {
    state: &'a State,
    parts: &'a FreezeParts,
    /// The held resources, except for those of scopes with a freeze of their own.
    held: Vec<(&'a ScopeName, &'a ResourceKey, &'a FrozenResource)>,
}

impl<'a> HeldBack<'a> {
    /// Finds the changes that a freeze holds.
    pub(crate) fn of(state: &'a State, freeze: &'a Freeze) -> Self {
        let parts = freeze.parts();
        let is_of_this = |scope: &ScopeName| {
            let of_scope = state.freezes.of_scope(scope);
            of_scope.is_some_and(|of_scope| of_scope.parts().target == parts.target)
        };
        let held = parts.held.iter().filter(|((scope, key), FrozenResource(had))| {
            let now = state.get(scope, key).map(|now| &**now);
            is_of_this(scope) && kind_of(had.as_deref(), now).is_some()
        });
        let held = held.map(|((scope, key), held)| (scope, key, held)).collect();
        Self { state, parts, held }
    }

    /// Returns the number of held resources.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether clients have other assignments than the newest ones.
    pub(crate) fn has_assignments(&self) -> bool {
        let had = self.parts.assignments.as_ref();
        had.is_some_and(|had| had.rules != self.state.assignments.rules)
    }

    /// Returns the newest state with the content that this freeze holds for clients.
    fn had(&self) -> State {
        let had =
            self.held.iter().map(|(scope, key, FrozenResource(had))| (*scope, *key, had.clone()));
        let mut state = self.state.with_resources(had);
        if let Some(assignments) = &self.parts.assignments {
            state.assignments = Arc::clone(assignments);
        }
        state
    }

    /// Returns the changes that restore the content that clients have.
    pub(crate) fn discarded(&self) -> Compared {
        let change =
            |&(scope, key, FrozenResource(had)): &(&ScopeName, &ResourceKey, &FrozenResource)| {
                let kind = kind_of(self.state.get(scope, key).map(|now| &**now), had.as_deref())?;
                Some(Change { scope: scope.clone(), key: key.clone(), kind, resource: had.clone() })
            };
        let changes = self.held.iter().filter_map(change).collect();
        Compared { before: self.state.clone(), after: self.had(), changes }
    }

    /// Adds the changes that the caller may read to an answer.
    pub(crate) fn list(&self, ctx: &Ctx, response: pb::WriteResponse) -> pb::WriteResponse {
        let may_get = |scope, key: &ResourceKey| {
            ctx.may(Verb::Get, Target::Resource(scope, &key.type_url, &key.name))
        };
        let changes = self.held.iter().filter(|(scope, key, _)| may_get(scope, key)).filter_map(
            |&(scope, key, FrozenResource(had))| {
                let resource = self.state.get(scope, key).cloned();
                let kind = kind_of(had.as_deref(), resource.as_deref())?;
                Some(Change { scope: scope.clone(), key: key.clone(), kind, resource })
            },
        );
        let changes: Vec<Change> = changes.collect();
        let n_hidden = (self.held.len() - changes.len()) as u64;
        let outcome = Outcome::Committed(Summary::default());
        let applied = Applied { state: self.state.clone(), outcome, changes };
        let effect = if response.dry_run { Effect::DryRun } else { Effect::Committed };
        let mut response = changes::list(&self.had(), &applied, effect, response);
        let n_removed = self.held.iter().filter(|(s, key, _)| self.state.get(s, key).is_none());
        response.removed = n_removed.count() as u64;
        response.changed = self.held.len() as u64 - response.removed;
        response.assignments = response.assignment_changes.len() as u64;
        response.changes_omitted += n_hidden;
        hide_differences(ctx, &mut response);
        response
    }
}

/// All held changes, to find the revisions that made them.
pub(crate) struct HeldParts {
    /// The held resources, each with the newest revision that clients have.
    resources: BTreeMap<(ScopeName, ResourceKey), Revision>,
    /// The newest revision of the assignments that clients have, if newer ones are held.
    assignments: Option<Revision>,
    /// The revision of the oldest freeze.
    since: Option<Revision>,
}

impl HeldParts {
    pub(crate) fn of(state: &State) -> Self {
        let (mut resources, mut assignments) = (BTreeMap::new(), None);
        for freeze in state.freezes.iter() {
            let since = freeze.parts().meta.revision;
            let held = HeldBack::of(state, freeze);
            if held.has_assignments() {
                assignments = freeze.parts().assignments.as_ref().map(|had| had.changed);
            }
            let had = held.held.into_iter().map(|(scope, key, FrozenResource(had))| {
                let had = had.as_ref().map_or(since, |had| had.version().revision.max(since));
                ((scope.clone(), key.clone()), had)
            });
            resources.extend(had);
        }
        let since = state.freezes.iter().map(|freeze| freeze.parts().meta.revision).min();
        Self { resources, assignments, since }
    }

    /// Returns whether a freeze may hold changes of a revision.
    pub(crate) fn may_have(&self, revision: Revision) -> bool {
        let any = !self.resources.is_empty() || self.assignments.is_some();
        any && self.since.is_some_and(|since| revision > since)
    }

    /// Iterates over the scopes with held resources.
    pub(crate) fn scopes(&self) -> impl Iterator<Item = &ScopeName> {
        self.resources.keys().map(|(scope, _)| scope).collect::<BTreeSet<_>>().into_iter()
    }

    /// Returns whether a freeze holds the change of a part by a revision.
    pub(crate) fn has(&self, revision: Revision, part: &PartKey) -> bool {
        let had = match part {
            PartKey::Resource(scope, key) => self.resources.get(&(scope.clone(), key.clone())),
            PartKey::Assignments => self.assignments.as_ref(),
            PartKey::Rule(_) | PartKey::Quota(_) => None,
        };
        had.is_some_and(|had| revision > *had)
    }
}

/// Returns the scope of a freeze; empty for all.
pub(crate) fn name_of(target: &FreezeTarget) -> String {
    target.scope().map(ToString::to_string).unwrap_or_default()
}

/// Returns a sentence for each freeze that holds one of the scopes.
pub(crate) fn held_sentences(state: &State, scopes: &[ScopeName]) -> Vec<String> {
    let sentence = |by: &pb::HeldBy| {
        let what = match by.scope.as_str() {
            "" => "All scopes are".to_owned(),
            scope => format!("Scope {scope:?} is"),
        };
        format!(
            "{what} frozen since revision {}: clients receive the frozen content until the freeze ends.",
            by.revision
        )
    };
    held_by(state, scopes, true).iter().map(sentence).collect()
}

/// Returns the freezes that hold a write back from clients. `named` are the resources that the write names, `changes` those
/// that it changed, and `assignments` says whether it changed assignments.
pub(crate) fn held_of_write<'a>(
    state: &State,
    named: impl Iterator<Item = (&'a ScopeName, &'a ResourceKey)>,
    changes: &'a [Change],
    assignments: bool,
) -> Vec<pb::HeldBy> {
    if state.freezes.is_empty() {
        return Vec::new();
    }
    let served = state.served();
    let changed = changes.iter().map(|change| (&change.scope, &change.key));
    let is_held = |(scope, key): &(&ScopeName, &ResourceKey)| {
        let [had, now] = [&served, state].map(|of| of.get(scope, key).map(|one| &**one));
        kind_of(had, now).is_some()
    };
    let held: BTreeSet<&ScopeName> =
        named.chain(changed).filter(is_held).map(|(scope, _)| scope).collect();
    let assignments = assignments && served.assignments.rules != state.assignments.rules;
    held_by(state, held, assignments)
}

/// Returns the freezes of scopes, and that of all scopes if `assignments` is set.
fn held_by<'a>(
    state: &State,
    scopes: impl IntoIterator<Item = &'a ScopeName>,
    assignments: bool,
) -> Vec<pb::HeldBy> {
    let all = || state.freezes.get(&FreezeTarget::All).filter(|_| assignments);
    let of_scopes = scopes.into_iter().filter_map(|scope| state.freezes.of_scope(scope));
    let mut found: Vec<&FreezeParts> =
        of_scopes.chain(all()).map(|freeze| freeze.parts()).collect();
    found.sort_by(|a, b| a.target.cmp(&b.target));
    found.dedup_by(|a, b| a.target == b.target);
    let show = |parts: &FreezeParts| pb::HeldBy {
        scope: name_of(&parts.target),
        revision: parts.meta.revision.0,
        until_ms: parts.meta.until_ms,
        author: parts.meta.author.clone(),
        reason: parts.meta.reason.clone(),
    };
    found.into_iter().map(show).collect()
}

/// Returns the freezes that hold back changes up to a revision from clients, in one scope or in all. A freeze that holds
/// only later changes counts, too, if it began before the revision.
pub(crate) fn held_up_to(
    state: &State,
    revision: Revision,
    scope: Option<&ScopeName>,
) -> Vec<pb::HeldBy> {
    let is_asked = |of: &ScopeName| scope.is_none_or(|scope| scope == of);
    let holds = |freeze: &Freeze| {
        let held = HeldBack::of(state, freeze);
        freeze.parts().meta.revision < revision
            && (held.held.iter().any(|(of, ..)| is_asked(of)) || held.has_assignments())
    };
    let freezes = state.freezes.iter().filter(|freeze| holds(freeze));
    let targets: Vec<_> = freezes.map(|freeze| freeze.parts().target.clone()).collect();
    let scopes = targets.iter().filter_map(FreezeTarget::scope);
    held_by(state, scopes, targets.contains(&FreezeTarget::All))
}

/// The text instead of a scope that the caller may not see.
pub const HIDDEN_SCOPE: &str = "(hidden)";

/// Hides which scopes are frozen, and why, from a caller that may not read them.
pub(crate) fn hide_held(ctx: &Ctx, state: &Arc<State>, held: &mut [pb::HeldBy]) {
    if held.is_empty() {
        return;
    }
    let visible = ctx.visible(state);
    for by in held {
        let scope = ScopeName::new(&by.scope).ok();
        if !may_see(ctx, &visible, scope.as_ref()) {
            let scope = HIDDEN_SCOPE.to_owned();
            *by = pb::HeldBy { scope, revision: by.revision, ..pb::HeldBy::default() };
        }
    }
}

/// Returns whether the caller may see the freeze of a scope, or that of all scopes.
pub(crate) fn may_see(ctx: &Ctx, visible: &State, scope: Option<&ScopeName>) -> bool {
    scope.is_none_or(|scope| {
        visible.scopes.contains_key(scope) || ctx.may(Verb::Freeze, Target::Scope(scope))
    })
}
