//! The content of earlier revisions: what a revision changed, what differs between two, and who set a line.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use chancery_admin_proto::v1 as pb;
use chancery_admission::MARK;
use chancery_diff::{common_lines, field_lines};
use chancery_model::{
    Change, ChangeKind, Resource, ResourceKey, Revision, ScopeName, State, Target, TypeUrl, Verb,
};
use chancery_store::{
    Differing, HistoryEntry, Part, PartChange, Past, PastError, ResourceChange, Selection,
};
use serde::{Deserialize, Serialize};

use crate::{
    AdminError, changes,
    cluster::show_entry,
    ctx::Ctx,
    deps::Freshness,
    page::Page,
    past::{RECORDS_MAX, past},
    resources::{Body, all_variants, given, parse_type, show, stored_name},
    work::Size,
    write_access::hide_differences,
};

/// The maximum number of versions of a resource that `blame` compares.
const VERSIONS_MAX: usize = 1000;
/// The default number of changes in an answer.
const CHANGES_DEFAULT: usize = 100;
/// Two revisions of the content, and what differs.
pub(crate) struct Compared {
    pub(crate) before: State,
    pub(crate) after: State,
    /// The resources that differ, sorted by scope, type and name.
    pub(crate) changes: Vec<Change>,
}

/// Compares the content at two revisions. Blocks.
pub(crate) fn compare(
    past: &Past,
    [from, to]: [Revision; 2],
    selection: &Selection,
) -> Result<Compared, PastError> {
    let differing = |revision| past.differing(revision, selection, RECORDS_MAX);
    let (old, new) = (differing(from)?, differing(to)?);
    let (before, after) = (past.state_at(from, &old), past.state_at(to, &new));
    let keys: BTreeSet<_> = old.resources.keys().chain(new.resources.keys()).collect();
    let changes = keys.into_iter().filter_map(|(scope, key)| {
        let (old, new) = (before.get(scope, key), after.get(scope, key));
        let kind = kind_of(old.map(|old| &**old), new.map(|new| &**new))?;
        Some(Change { scope: scope.clone(), key: key.clone(), kind, resource: new.cloned() })
    });
    let changes = changes.collect();
    Ok(Compared { before, after, changes })
}

impl Compared {
    /// Returns whether nothing that a transaction can restore differs.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { before, after, changes } = self;
        changes.is_empty()
            && before.assignments.rules == after.assignments.rules
            && before.access.rules == after.access.rules
            && before.quotas.rules == after.quotas.rules
    }

    /// Removes the changes of resources that the caller may not read, and returns their number.
    fn hide(&mut self, ctx: &Ctx) -> u64 {
        let n = self.changes.len();
        self.changes.retain(|one| {
            ctx.may(Verb::Get, Target::Resource(&one.scope, &one.key.type_url, &one.key.name))
        });
        (n - self.changes.len()) as u64
    }

    /// Lists all changes, with differences as far as the caller may read them.
    fn list(&self, ctx: &Ctx) -> pb::WriteResponse {
        let mut shown = changes::list_all(&self.before, &self.after, &self.changes);
        hide_differences(ctx, &mut shown);
        shown
    }

    /// Checks that the selection had a resource at one of the two revisions: its names may be misspelled. A caller that may
    /// not read the selection does not learn that.
    ///
    /// # Errors
    /// Fails if it had none.
    pub(crate) fn check_found(
        &self,
        ctx: &Ctx,
        past: &Past,
        selection: &Selection,
    ) -> Result<(), AdminError> {
        let Selection { scope, type_url, name } = selection;
        let target = match (scope, type_url, name) {
            (Some(scope), Some(type_url), Some(name)) => Target::Resource(scope, type_url, name),
            (Some(scope), Some(type_url), None) => Target::Type(scope, type_url),
            (Some(scope), None, _) => Target::Scope(scope),
            (None, ..) => Target::Cluster,
        };
        if !ctx.caller().may_everything() && !ctx.may(Verb::Get, target) {
            return Ok(());
        }
        let is_of = |resource: &Resource| {
            name.as_ref().is_none_or(|name| resource.base_name().as_str() == name.base())
        };
        let has_any = |state: &State| {
            let scopes = state.scopes.iter();
            let scopes = scopes.filter(|(of, _)| scope.as_ref().is_none_or(|scope| scope == *of));
            let mut collections = scopes.flat_map(|(_, scope)| scope.types.values());
            collections.any(|one| {
                type_url.as_ref().is_none_or(|of| *of == one.type_url)
                    && one.resources.values().any(|resource| is_of(resource))
            })
        };
        let is_known = match (scope, type_url, name) {
            // A scope that becomes empty remains.
            (None, None, None) => true,
            (Some(scope), None, None) => past.state().scopes.contains_key(scope),
            (Some(scope), Some(type_url), Some(name)) => {
                let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
                past.next_change(past.oldest(), scope, &key)?.is_some()
            }
            _ => false,
        };
        if is_known || has_any(&self.before) || has_any(&self.after) {
            return Ok(());
        }
        let place = scope.as_ref().map_or_else(String::new, |scope| format!(" in scope {scope:?}"));
        let missing = match (type_url, name) {
            (Some(type_url), Some(name)) => {
                let key = ResourceKey { type_url: type_url.clone(), name: name.clone() };
                format!("{key}{place} does not exist")
            }
            (Some(type_url), None) => format!("no {}{place} exists", type_url.short_name()),
            _ => format!("no resource{place} exists"),
        };
        let [from, to] = [&self.before, &self.after].map(|state| state.revision);
        Err(AdminError::NotFound(format!(
            "cannot compare revisions {from} and {to}: {missing} at revision {from} or {to}; check the names"
        )))
    }
}

/// Returns how a resource differs; `None` if it does not.
pub(crate) fn kind_of(before: Option<&Resource>, after: Option<&Resource>) -> Option<ChangeKind> {
    let (old, new) = match (before, after) {
        (None, None) => return None,
        (None, Some(_)) => return Some(ChangeKind::Added),
        (Some(_), None) => return Some(ChangeKind::Removed),
        (Some(old), Some(new)) => (old, new),
    };
    let is_same_body = match (old.sealed(), new.sealed()) {
        (Some(old), Some(new)) => old.mac == new.mac,
        _ => old.body() == new.body(),
    };
    if !is_same_body || old.ttl() != new.ttl() || old.aliases() != new.aliases() {
        return Some(ChangeKind::Updated);
    }
    let is_same = old.labels().eq(new.labels()) && old.children() == new.children();
    (!is_same).then_some(ChangeKind::Relabeled)
}

/// The key of a changed resource in a list: its scope, its type, and its name inside the server.
type ChangeKey = (String, String, String);

/// The place in a comparison: its revisions, and the key of a change.
type DifferenceKey = ((u64, u64), ChangeKey);

fn change_key(change: &Change) -> ChangeKey {
    let ResourceKey { type_url, name } = &change.key;
    (change.scope.to_string(), type_url.to_string(), name.as_str().to_owned())
}

/// The place in the list of a revision's changes: the revision, and the key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct RecordKey(u64, Vec<u8>);

/// Returns the error of a cursor that belongs to another request.
fn foreign_cursor() -> AdminError {
    let text = "the cursor continues the answer to another request; use it with the same revisions";
    AdminError::Parameter(text.to_owned())
}

/// Returns a revision and what it changed.
pub(crate) async fn get_revision(
    ctx: &Ctx,
    request: pb::GetRevisionRequest,
) -> Result<pb::RevisionChanges, AdminError> {
    let page: Page<RecordKey> =
        Page::parse("changes", request.limit, &request.cursor, CHANGES_DEFAULT)?;
    if page.after().is_some_and(|RecordKey(revision, _)| *revision != request.revision) {
        return Err(foreign_cursor());
    }
    let past = past(ctx, Freshness::of(request.stale)).await?;
    let revision = Revision(request.revision);
    let entry = entry_of(ctx, revision)?;
    let (reader, shown) = (ctx.clone(), show_entry(&entry));
    let read = move || {
        let after = page.after().map(|RecordKey(_, key)| &key[..]);
        let (parts, last) = match past.changes_of(revision, after, page.limit()) {
            Err(error @ PastError::ChangesForgotten { .. }) => {
                let (entry, not_kept) = (Some(shown), error.to_string());
                return Ok(pb::RevisionChanges { entry, not_kept, ..Default::default() });
            }
            found => found?,
        };
        let mut compared = with_parts(past.state(), parts);
        let hidden = compared.hide(&reader);
        let listed = compared.list(&reader);
        Ok::<_, AdminError>(pb::RevisionChanges {
            entry: Some(shown),
            changes: listed.changes,
            assignment_changes: listed.assignment_changes,
            access_changes: listed.access_changes,
            next: last
                .map(|key| page.cursor(&RecordKey(revision.0, key.to_vec())))
                .unwrap_or_default(),
            not_kept: String::new(),
            hidden,
        })
    };
    ctx.deps.work.run(Size::Large, read).await?
}

/// Returns the entry of the history.
pub(crate) fn entry_of(ctx: &Ctx, revision: Revision) -> Result<Arc<HistoryEntry>, AdminError> {
    let next = Revision(revision.0.saturating_add(1));
    let found = ctx.deps.replica.history_before(next, 1).pop();
    found.filter(|entry| entry.revision == revision).ok_or_else(|| {
        let oldest = ctx.deps.replica.history_after(Revision(0), 1);
        let first = oldest.map_or_else(|first| first.0 + 1, |_| 1);
        let newest = ctx.deps.replica.state().revision;
        AdminError::NotFound(format!(
            "the history has no revision {revision}; it has the revisions {first} to {newest}"
        ))
    })
}

/// Returns states with the parts before and after a revision. Everything else in them is as in `newest`.
fn with_parts(newest: &State, parts: Vec<PartChange>) -> Compared {
    let [mut old, mut new] = [Differing::default(), Differing::default()];
    let mut changes = Vec::new();
    for PartChange { before, after } in parts {
        if let (Part::Resource { scope, key, resource: old }, Part::Resource { resource: new, .. }) =
            (&before, &after)
            && let Some(kind) = kind_of(old.as_deref(), new.as_deref())
        {
            let (scope, key) = (scope.clone(), key.clone());
            changes.push(Change { scope, key, kind, resource: new.clone() });
        }
        old.add(before);
        new.add(after);
    }
    changes.sort_by_key(change_key);
    let [before, after] = [(&old, 0), (&new, 1)]
        .map(|(differing, number)| differing.applied_to(newest, Revision(number)));
    Compared { before, after, changes }
}

/// Compares the content at two revisions.
pub(crate) async fn compare_revisions(
    ctx: &Ctx,
    request: pb::CompareRevisionsRequest,
) -> Result<pb::RevisionComparison, AdminError> {
    let page: Page<DifferenceKey> =
        Page::parse("differences", request.limit, &request.cursor, CHANGES_DEFAULT)?;
    let scope = given(&request.scope).map(ScopeName::new).transpose()?;
    let type_url = given(&request.r#type).map(parse_type).transpose()?;
    if type_url.is_none() && !request.name.is_empty() {
        return Err(AdminError::Parameter("a name needs a type".to_owned()));
    }
    let past = past(ctx, Freshness::of(request.stale)).await?;
    let Some(from) = request.from.map(Revision) else {
        return Err(AdminError::Parameter("name the revision to compare (from)".to_owned()));
    };
    let begun = page.after().map(|(revisions, _)| *revisions);
    // All pages compare the same revisions.
    let to = begun.map_or(past.state().revision, |(_, to)| Revision(to));
    let to = request.to.map_or(to, Revision);
    if begun.is_some_and(|revisions| revisions != (from.0, to.0)) {
        return Err(foreign_cursor());
    }
    let name = match (&type_url, given(&request.name)) {
        (Some(type_url), Some(name)) => {
            Some(stored_name(past.state(), scope.as_ref(), type_url, name)?)
        }
        _ => None,
    };
    let is_named = name.is_some();
    let selection = Selection { scope, type_url, name };
    let reader = ctx.clone();
    let read = move || {
        let mut compared = compare(&past, [from, to], &selection)?;
        compared.check_found(&reader, &past, &selection)?;
        // A resource that the caller may not read looks as if it did not exist.
        let hidden = compared.hide(&reader);
        let hidden = if is_named { 0 } else { hidden };
        let total = compared.changes.len();
        let (of_page, next) = page.of(std::mem::take(&mut compared.changes), |change| {
            ((from.0, to.0), change_key(change))
        });
        compared.changes = of_page;
        let mut listed = compared.list(&reader);
        let beside = listed.assignment_changes.len() + listed.access_changes.len();
        if page.after().is_some() {
            // The first page has everything beside the resources.
            listed.assignment_changes.clear();
            listed.access_changes.clear();
        }
        Ok::<_, AdminError>(pb::RevisionComparison {
            from: from.0,
            to: to.0,
            changes: listed.changes,
            assignment_changes: listed.assignment_changes,
            access_changes: listed.access_changes,
            next,
            total: (total + beside) as u64,
            hidden,
        })
    };
    ctx.deps.work.run(Size::Large, read).await?
}

/// Says which revision last set each line of a resource.
pub(crate) async fn blame(
    ctx: &Ctx,
    request: pb::BlameRequest,
) -> Result<pb::BlameResponse, AdminError> {
    let scope = ScopeName::new(given(&request.scope).unwrap_or("default"))?;
    let type_url = parse_type(&request.r#type)?;
    let past = past(ctx, Freshness::of(request.stale)).await?;
    let name = stored_name(past.state(), Some(&scope), &type_url, &request.name)?;
    let key = ResourceKey { type_url, name };
    ctx.authorize(Verb::Get, Target::Resource(&scope, &key.type_url, &key.name))?;
    let Some(resource) = past.state().get(&scope, &key).cloned() else {
        let variants = all_variants(past.state(), Some(&scope), &key);
        let text = match variants.len() {
            0 => format!("{key} does not exist in scope {scope:?}"),
            n => format!("{key} has {n} variants in scope {scope:?}, which have no common lines"),
        };
        return Err(AdminError::NotFound(text));
    };
    let read = move || {
        let changes = past.changes_to(&scope, &key, VERSIONS_MAX)?;
        if let Some(sealed) = changes.iter().find(|one| !one.is_opened()) {
            let revision = sealed.revision;
            return Err(AdminError::Precondition(format!(
                "{key} before revision {revision} is sealed, and this replica cannot decrypt it; use another replica"
            )));
        }
        let lines = blamed(&scope, &key.type_url, &resource, &changes);
        let is_cut = changes.len() == VERSIONS_MAX;
        let cut = changes.first().filter(|_| is_cut).map(|oldest| oldest.revision);
        Ok((lines, cut.unwrap_or(past.oldest())))
    };
    let (lines, oldest) = ctx.deps.work.run(Size::Large, read).await??;
    let revisions: BTreeSet<u64> = lines.iter().map(|line| line.revision).collect();
    let revisions = revisions.into_iter().rev().filter(|revision| *revision > 0);
    let entries = revisions.filter_map(|revision| entry_of(ctx, Revision(revision)).ok());
    let revisions = entries.map(|entry| show_entry(&entry)).collect();
    Ok(pb::BlameResponse { lines, revisions, oldest: oldest.0 })
}

/// Returns the lines of a resource, each with the revision that last set it. `changes` are the revisions that changed the
/// resource, oldest first, each with the resource before it.
fn blamed(
    scope: &ScopeName,
    type_url: &TypeUrl,
    resource: &Resource,
    changes: &[ResourceChange],
) -> Vec<pb::BlameLine> {
    let lines = |resource: &Resource| {
        use crate::json::JsonMessage;
        let mut json = show(scope, type_url, resource, Body::Shown).to_json();
        field_lines(&json["body"].take())
    };
    let newest = lines(resource);
    // The lines that no later revision has set, by their index in the newest resource and in the one at hand.
    let mut open: BTreeMap<usize, usize> = (0..newest.len()).map(|at| (at, at)).collect();
    let mut revisions = vec![0; newest.len()];
    let mut at_hand = newest.clone();
    for ResourceChange { revision, before } in changes.iter().rev() {
        let old = before.as_deref().map(lines).unwrap_or_default();
        if old == at_hand {
            // Only what is not shown has changed: a secret.
            open.retain(|newest, at| {
                let is_secret = at_hand[*at].contains(MARK);
                if is_secret {
                    revisions[*newest] = revision.0;
                }
                !is_secret
            });
        }
        let kept: BTreeMap<usize, usize> =
            common_lines(&old, &at_hand).into_iter().map(|(old, new)| (new, old)).collect();
        open.retain(|newest, at| match kept.get(at) {
            Some(old) => {
                *at = *old;
                true
            }
            None => {
                revisions[*newest] = revision.0;
                false
            }
        });
        at_hand = old;
    }
    let lines = newest.into_iter().zip(revisions);
    lines.map(|(text, revision)| pb::BlameLine { revision, text }).collect()
}
