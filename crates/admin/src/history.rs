//! The list of revisions.

use std::{cmp::Reverse, ops::ControlFlow, sync::Arc};

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

/// The default number of history entries.
const HISTORY_DEFAULT: usize = 20;
/// The maximum number of names of a revision.
const NAMES_MAX: usize = 100;
/// The maximum number of records that are read for the names of a page.
const NAMED_RECORDS_MAX: usize = 100_000;

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
    let held = HeldParts::of(past.state());
    let (mut found, mut records_left) = (Vec::new(), RECORDS_MAX);
    let mut last = None;
    for entry in candidates {
        if found.len() == limit {
            return Ok((found, last));
        }
        let mut names = Names::new(ctx, &held, entry.revision, n_names);
        let on = |part| names.add(&part);
        let is_read = past.each_changed(entry.revision, selection, &mut records_left, on)?;
        // A revision that alone is too large cannot be searched.
        if !is_read && last.is_none() {
            let (revision, max) = (entry.revision, RECORDS_MAX);
            return Err(PastError::TooMany { revision, max });
        }
        if !is_read {
            return Ok((found, last));
        }
        if names.any {
            found.push(names.into_entry(show_entry(&entry)));
        }
        last = Some(Reverse(entry.revision.0));
    }
    Ok((found, None))
}

/// Adds names to entries of the history. The list is useful without them, so that it does not fail if they cannot be read.
async fn named(
    ctx: &Ctx,
    freshness: Freshness,
    entries: Vec<pb::HistoryEntry>,
    n_names: usize,
) -> Vec<pb::HistoryEntry> {
    let Ok(past) = past(ctx, freshness).await else { return entries };
    let (reader, mut named) = (ctx.clone(), entries.clone());
    let read = move || {
        let held = HeldParts::of(past.state());
        let (all, mut records_left) = (Selection::default(), NAMED_RECORDS_MAX);
        for entry in &mut named {
            let revision = Revision(entry.revision);
            let mut names = Names::new(&reader, &held, revision, n_names);
            let on = |part| names.add(&part);
            past.each_changed(revision, &all, &mut records_left, on)?;
            *entry = names.into_entry(std::mem::take(entry));
        }
        Ok::<_, PastError>(named)
    };
    match ctx.deps.work.run(Size::Large, read).await {
        Ok(Ok(named)) => named,
        _ => entries,
    }
}

/// The names of what a revision changed, as they are found.
struct Names<'a> {
    ctx: &'a Ctx,
    held: &'a HeldParts,
    revision: Revision,
    max: usize,
    names: Vec<pb::ChangedName>,
    any: bool,
    is_held: bool,
}

impl<'a> Names<'a> {
    fn new(ctx: &'a Ctx, held: &'a HeldParts, revision: Revision, max: usize) -> Self {
        Self { ctx, held, revision, max, names: Vec::new(), any: false, is_held: false }
    }

    /// Adds a changed part. Breaks if no other part matters.
    fn add(&mut self, part: &PartKey) -> ControlFlow<()> {
        self.any = true;
        if self.names.len() < self.max {
            self.names.extend(changed_name(self.ctx, part));
        }
        self.is_held |= self.max > 0 && self.held.has(self.revision, part);
        let seeks_held = self.max > 0 && !self.is_held && self.held.may_have(self.revision);
        if self.names.len() < self.max || seeks_held {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }

    fn into_entry(self, entry: pb::HistoryEntry) -> pb::HistoryEntry {
        pb::HistoryEntry { names: self.names, held: self.is_held, ..entry }
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
        PartKey::Assignments => of_cluster("assignments", "", Verb::Assignments),
        PartKey::Rule(name) => of_cluster("rule", name, Verb::AccessRead),
        PartKey::Quota(name) => of_cluster("quota", name, Verb::AccessRead),
    }
}
