//! The list of revisions.

use std::cmp::Reverse;

use chancery_admin_proto::v1 as pb;
use chancery_model::{ResourceName, Revision, ScopeName};
use chancery_store::{HistoryEntry, Selection};

use crate::{
    AdminError,
    cluster::show_entry,
    ctx::Ctx,
    deps::Freshness,
    page::Page,
    past::past,
    resources::{given, parse_type},
    work::Size,
};

/// The default number of history entries.
const HISTORY_DEFAULT: usize = 20;

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
    let past = past(ctx, Freshness::of(request.stale)).await?;
    let content_from = past.oldest().0;
    let before = page.after().map_or(Revision(u64::MAX), |Reverse(revision)| Revision(*revision));
    let matches = move |entry: &HistoryEntry| {
        entry.meta.time_ms >= request.since_ms && entry.meta.author.contains(&request.author)
    };
    let is_filtered = filter != Selection::default();
    let limit = page.limit() + 1;
    let replica = ctx.deps.replica.clone();
    let read = move || {
        let mut found = Vec::new();
        for entry in replica.history_before(before, usize::MAX) {
            if found.len() == limit {
                break;
            }
            if matches(&entry) && (!is_filtered || past.has_changed(entry.revision, &filter)?) {
                found.push(entry);
            }
        }
        Ok::<_, AdminError>(found)
    };
    let newest = ctx.deps.work.run(Size::of(!is_filtered), read).await??;
    let (entries, next) = page.of(&newest, |entry| Reverse(entry.revision.0));
    let entries = entries.into_iter().map(|entry| show_entry(entry));
    Ok(pb::ListHistoryResponse { entries: entries.collect(), next, content_from })
}
