//! The list of revisions.

use std::{cmp::Reverse, ops::ControlFlow, sync::Arc, time::Duration};

use chancery_admin_proto::v1 as pb;
use chancery_model::{
    ResourceKey, ResourceName, Revision, ScopeName, Target, TransactionMeta, Verb,
};
use chancery_store::{HISTORY_MAX, HistoryEntry, PartKey, Past, PastError, Selection};

use crate::{
    AdminError,
    cluster::show_entry,
    ctx::Ctx,
    deps::Freshness,
    held_changes::HeldParts,
    page::Page,
    past::{RECORDS_MAX, past},
    request_ids::stored_id_of,
    resources::{given, parse_type},
    work::Size,
    write_options::request_id,
};

/// The name of the assignments among the changed names.
const ASSIGNMENTS: &str = "assignments";
/// The default number of history entries.
const HISTORY_DEFAULT: usize = 20;
/// The maximum number of names of a revision.
const NAMES_MAX: usize = 100;
/// The maximum number of records that are read for the names of a revision, and of a page.
const NAMED_RECORDS_OF_REVISION_MAX: usize = 1000;
const NAMED_RECORDS_MAX: usize = 100_000;
/// The maximum number of records that are read to find the held revisions of a page.
const HELD_RECORDS_MAX: usize = 1_000_000;
/// The maximum time to find the names of a list that needs no earlier content.
const NAMES_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns whether a revision has a label: `KEY=VALUE`, `KEY`, or the label of its versions.
fn has_label(meta: &TransactionMeta, wanted: &str) -> bool {
    let is_wanted = |(key, value): (&String, &String)| match wanted.split_once('=') {
        Some(pair) => pair == (key, value),
        None => wanted == key,
    };
    meta.label.as_deref() == Some(wanted) || meta.labels.iter().any(is_wanted)
}

/// Returns whether the caller may see which revisions changed a named resource. One that it may not read looks as if it did
/// not exist.
fn may_see(ctx: &Ctx, filter: &Selection) -> Result<bool, AdminError> {
    let Some(name) = &filter.name else { return Ok(true) };
    match (&filter.scope, &filter.type_url) {
        _ if ctx.caller().may_everything() => Ok(true),
        (Some(scope), Some(type_url)) => {
            Ok(ctx.may(Verb::Get, Target::Resource(scope, type_url, name)))
        }
        _ => {
            let text = "a search by name needs the scope and the type, because you may not read everything";
            Err(AdminError::Parameter(text.to_owned()))
        }
    }
}

/// Returns the newest revisions, or those that match.
pub(crate) async fn list_history(
    ctx: &Ctx,
    request: pb::ListHistoryRequest,
) -> Result<pb::ListHistoryResponse, AdminError> {
    let page = Page::parse("history", request.limit, &request.cursor, HISTORY_DEFAULT)?;
    let filter = Selection {
        scope: given(&request.scope).map(ScopeName::new).transpose()?,
        type_url: given(&request.r#type).map(parse_type).transpose()?,
        name: given(&request.name).map(ResourceName::canonical).transpose()?,
    };
    let may_see = may_see(ctx, &filter)?;
    let freshness = Freshness::of(request.stale);
    let before = page.after().map_or(Revision(u64::MAX), |Reverse(revision)| Revision(*revision));
    let selected_id = request.request_id.clone();
    let written_by = given(&request.request_id)
        .map(|id| Ok::<_, AdminError>(stored_id_of(request_id(id)?, ctx.caller())))
        .transpose()?;
    let matches = |entry: &HistoryEntry| {
        may_see
            && (written_by.is_none() || entry.request == written_by)
            && entry.meta.time_ms >= request.since_ms
            && entry.meta.author.contains(&request.author)
            && (request.label.is_empty() || has_label(&entry.meta, &request.label))
    };
    let n_names = usize::try_from(request.names).unwrap_or(NAMES_MAX).min(NAMES_MAX);
    if filter == Selection::default() {
        ctx.deps.catch_up(freshness).await?;
        let newest = ctx.deps.replica.history_before(before, HISTORY_MAX);
        let newest = newest.iter().filter(|entry| matches(entry));
        let (entries, next) = page.of(newest, |entry| Reverse(entry.revision.0));
        let mut entries: Vec<_> = entries.into_iter().map(|entry| show_entry(entry)).collect();
        let content_from = ctx.deps.replica.content_from().0;
        if n_names > 0 && !entries.is_empty() {
            entries = named(ctx, freshness, entries, n_names).await;
        }
        return Ok(pb::ListHistoryResponse {
            entries,
            next,
            content_from,
            request_id: selected_id,
        });
    }
    let past = past(ctx, freshness).await?;
    let content_from = past.oldest().0;
    let mut candidates = ctx.deps.replica.history_before(before, HISTORY_MAX);
    candidates.retain(|entry| matches(entry) && entry.revision.0 > content_from);
    let (reader, limit) = (ctx.clone(), page.limit());
    let read = move || changed(&reader, &past, &filter, candidates, limit, n_names);
    let (entries, last) = ctx.deps.work.run(Size::Large, read).await??;
    let next = last.map(|last| page.cursor(&last)).unwrap_or_default();
    Ok(pb::ListHistoryResponse { entries, next, content_from, request_id: selected_id })
}

/// Returns the entries that changed something of a selection, and the last revision that was searched if more may follow.
fn changed(
    ctx: &Ctx,
    past: &Past,
    selection: &Selection,
    candidates: Vec<Arc<HistoryEntry>>,
    limit: usize,
    n_names: usize,
) -> Result<(Vec<pb::HistoryEntry>, Option<Reverse<u64>>), PastError> {
    let mut names = Names::new(ctx, past, selection, n_names);
    let (mut found, mut records_left) = (Vec::new(), RECORDS_MAX);
    let mut last = None;
    for entry in candidates {
        if found.len() == limit {
            return Ok((found, last));
        }
        let mut any = false;
        let on = |_| {
            any = true;
            ControlFlow::Break(())
        };
        let is_read = past.each_changed(entry.revision, selection, &mut records_left, on)?;
        // A revision that alone is too large cannot be searched.
        if !is_read && last.is_none() {
            let (revision, max) = (entry.revision, RECORDS_MAX);
            return Err(PastError::TooMany { revision, max });
        }
        if !is_read {
            return Ok((found, last));
        }
        if any {
            found.push(names.add_to(show_entry(&entry))?);
        }
        last = Some(Reverse(entry.revision.0));
    }
    Ok((found, None))
}

/// Adds names to entries of the history. The list is useful without them, so that it neither fails nor waits long if they
/// cannot be read.
async fn named(
    ctx: &Ctx,
    freshness: Freshness,
    entries: Vec<pb::HistoryEntry>,
    n_names: usize,
) -> Vec<pb::HistoryEntry> {
    let (reader, unnamed) = (ctx.clone(), entries.clone());
    let named = async {
        let past = past(ctx, freshness).await?;
        let read = move || {
            let all = Selection::default();
            let mut names = Names::new(&reader, &past, &all, n_names);
            let named = unnamed.into_iter().map(|entry| names.add_to(entry));
            named.collect::<Result<Vec<_>, PastError>>()
        };
        Ok::<_, AdminError>(ctx.deps.work.run(Size::Large, read).await??)
    };
    match tokio::time::timeout(NAMES_TIMEOUT, named).await {
        Ok(Ok(named)) => named,
        _ => entries,
    }
}

/// Finds the names of what revisions changed, and whether a freeze holds it.
struct Names<'a> {
    ctx: &'a Ctx,
    past: &'a Past,
    /// The names come from this selection.
    selection: &'a Selection,
    held: HeldParts,
    n_names: usize,
    /// The records that may still be read for names, and to find held changes.
    names_left: usize,
    held_left: usize,
}

impl<'a> Names<'a> {
    fn new(ctx: &'a Ctx, past: &'a Past, selection: &'a Selection, n_names: usize) -> Self {
        let held = HeldParts::of(past.state());
        let (names_left, held_left) = (NAMED_RECORDS_MAX, HELD_RECORDS_MAX);
        Self { ctx, past, selection, held, n_names, names_left, held_left }
    }

    fn add_to(&mut self, entry: pb::HistoryEntry) -> Result<pb::HistoryEntry, PastError> {
        if self.n_names == 0 {
            return Ok(entry);
        }
        let revision = Revision(entry.revision);
        let mut names = self.names(revision)?;
        // The end of a freeze marks the assignments as changed, even if they are as before.
        names.retain(|one| one.object != ASSIGNMENTS || entry.assignments > 0);
        let held = self.is_held(revision, entry.assignments > 0)?;
        Ok(pb::HistoryEntry { names, held, ..entry })
    }

    fn names(&mut self, revision: Revision) -> Result<Vec<pb::ChangedName>, PastError> {
        let mut names = Vec::new();
        let mut left = self.names_left.min(NAMED_RECORDS_OF_REVISION_MAX);
        let before = left;
        let on = |part: PartKey| {
            names.extend(changed_name(self.ctx, &part));
            if names.len() < self.n_names {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        self.past.each_changed(revision, self.selection, &mut left, on)?;
        self.names_left -= before - left;
        Ok(names)
    }

    /// Returns whether a freeze holds a change of a revision. Reads only the changes of scopes with held resources.
    fn is_held(&mut self, revision: Revision, assignments: bool) -> Result<bool, PastError> {
        if !self.held.may_have(revision) {
            return Ok(false);
        }
        if assignments && self.held.has(revision, &PartKey::Assignments) {
            return Ok(true);
        }
        for scope in self.held.scopes() {
            let selection = Selection { scope: Some(scope.clone()), ..Selection::default() };
            let mut is_held = false;
            let on = |part: PartKey| {
                is_held = self.held.has(revision, &part);
                if is_held { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            self.past.each_changed(revision, &selection, &mut self.held_left, on)?;
            if is_held {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the name of a part, if the caller may read it.
fn changed_name(ctx: &Ctx, part: &PartKey) -> Option<pb::ChangedName> {
    let of_cluster = |object: &str, name: &str, verb| {
        let (object, name) = (object.to_owned(), name.to_owned());
        let shown = pb::ChangedName { object, name, ..pb::ChangedName::default() };
        ctx.may(verb, Target::Cluster).then_some(shown)
    };
    match part {
        PartKey::Resource(scope, ResourceKey { type_url, name }) => {
            let may_read = ctx.may(Verb::Get, Target::Resource(scope, type_url, name));
            may_read.then(|| pb::ChangedName {
                object: "resource".to_owned(),
                scope: scope.to_string(),
                type_url: type_url.to_string(),
                name: name.base().to_owned(),
            })
        }
        PartKey::Assignments => of_cluster(ASSIGNMENTS, "", Verb::Assignments),
        PartKey::Rule(name) => of_cluster("rule", name, Verb::AccessRead),
        PartKey::Quota(name) => of_cluster("quota", name, Verb::AccessRead),
    }
}
