//! The list of revisions.

use std::cmp::Reverse;

use chancery_admin_proto::v1 as pb;
use chancery_model::{ResourceName, Revision, ScopeName, Target, TransactionMeta, Verb};
use chancery_store::{HISTORY_MAX, HistoryEntry, PastError, Selection};

use crate::{
    AdminError,
    cluster::show_entry,
    ctx::Ctx,
    deps::Freshness,
    page::Page,
    past::{RECORDS_MAX, past},
    request_ids::stored_id_of,
    resources::{given, parse_type},
    work::Size,
    write_options::request_id,
};

/// The default number of history entries.
const HISTORY_DEFAULT: usize = 20;

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
    if filter == Selection::default() {
        ctx.deps.catch_up(freshness).await?;
        let newest = ctx.deps.replica.history_before(before, HISTORY_MAX);
        let newest = newest.iter().filter(|entry| matches(entry));
        let (entries, next) = page.of(newest, |entry| Reverse(entry.revision.0));
        let entries = entries.into_iter().map(|entry| show_entry(entry)).collect();
        let content_from = ctx.deps.replica.content_from().0;
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
    let limit = page.limit();
    let read = move || {
        let (mut found, mut records_left) = (Vec::new(), RECORDS_MAX);
        let mut last = None;
        for entry in candidates {
            if found.len() == limit {
                return Ok((found, last));
            }
            match past.has_changed(entry.revision, &filter, &mut records_left)? {
                Some(true) => found.push(show_entry(&entry)),
                Some(false) => {}
                // A revision that alone is too large cannot be searched.
                None if last.is_none() => {
                    let (revision, max) = (entry.revision, RECORDS_MAX);
                    return Err(PastError::TooMany { revision, max });
                }
                None => return Ok((found, last)),
            }
            last = Some(Reverse(entry.revision.0));
        }
        Ok::<_, PastError>((found, None))
    };
    let (entries, last) = ctx.deps.work.run(Size::Large, read).await??;
    let next = last.map(|last| page.cursor(&last)).unwrap_or_default();
    Ok(pb::ListHistoryResponse { entries, next, content_from, request_id: selected_id })
}
