//! Readers of the content of earlier revisions.

use std::{sync::Arc, time::Duration};

use chancery_model::{Revision, State};
use chancery_store::{Past, PastError, Selection};

use crate::{AdminError, ctx::Ctx, deps::Freshness, work::Size};

/// The maximum number of records that one answer reads.
pub(crate) const RECORDS_MAX: usize = 1_000_000;
/// The maximum time until the newest changes are stored.
const STORED_TIMEOUT: Duration = Duration::from_secs(10);

impl From<PastError> for AdminError {
    fn from(error: PastError) -> Self {
        let text = error.to_string();
        match error {
            PastError::Forgotten { .. }
            | PastError::ChangesForgotten { .. }
            | PastError::TooMany { .. } => Self::Precondition(text),
            PastError::Future { .. } | PastError::Skipped { .. } => Self::NotFound(text),
            PastError::Unreadable { .. } => Self::Internal(text),
        }
    }
}

/// Returns a reader of earlier content. Unless `freshness` is stale, it includes all writes committed before the call.
pub(crate) async fn past(ctx: &Ctx, freshness: Freshness) -> Result<Past, AdminError> {
    ctx.deps.catch_up(freshness).await?;
    let past = tokio::time::timeout(STORED_TIMEOUT, ctx.deps.replica.past()).await;
    past.map_err(|_| {
        AdminError::Unavailable(format!(
            "cannot read earlier revisions: this replica has not stored the newest changes within {STORED_TIMEOUT:?}; \
             try again, or use another replica"
        ))
    })
}

/// Returns the selected part of the state at a revision, with the current access rules.
pub(crate) async fn state_at(
    ctx: &Ctx,
    revision: Revision,
    selection: Selection,
    freshness: Freshness,
) -> Result<Arc<State>, AdminError> {
    let past = past(ctx, freshness).await?;
    let read = move || {
        let differing = past.differing(revision, &selection, RECORDS_MAX)?;
        let access = Arc::clone(&past.state().access);
        Ok::<_, PastError>(Arc::new(State { access, ..past.state_at(revision, &differing) }))
    };
    Ok(ctx.deps.work.run(Size::Large, read).await??)
}
