//! The log service: an operator may change the filter of the log while the replica runs.

use std::{sync::Arc, time::Duration};

use chancery_admin_proto::v1 as pb;
use chancery_audit::duration_text;

use crate::{
    AdminError,
    ctx::Ctx,
    log_filter::{LogFilter, LogFilterState},
    record::Operation,
    time_limits::LOG_FILTER,
};

/// Returns the filter.
pub(crate) fn get_log_filter(ctx: &Ctx) -> Result<pb::LogFilter, AdminError> {
    Ok(show_log_filter(ctx, log_of(ctx)?.state()))
}

/// Returns the record of [`set_log_filter`].
pub(crate) fn record(request: &pb::SetLogFilterRequest) -> Operation {
    let operation = Operation::new("log.set").detail("filter", request.filter.as_str());
    match request.for_ms {
        Some(ms) => operation.detail("for_ms", ms),
        None => operation,
    }
}

/// Changes the filter.
pub(crate) fn set_log_filter(
    ctx: &Ctx,
    request: pb::SetLogFilterRequest,
) -> Result<pb::LogFilter, AdminError> {
    let lasts = request.for_ms.map(Duration::from_millis);
    if let Some(time) = lasts.filter(|time| !LOG_FILTER.contains(time)) {
        let [time, min, max] = [time, *LOG_FILTER.start(), *LOG_FILTER.end()].map(duration_text);
        let text = format!("invalid `for`: {time} is outside the range of {min} to {max}");
        return Err(AdminError::Parameter(text));
    }
    let state = log_of(ctx)?.set(&request.filter, lasts).map_err(|reason| {
        AdminError::Parameter(format!("the log filter is not valid: {reason}"))
    })?;
    Ok(show_log_filter(ctx, state))
}

fn log_of(ctx: &Ctx) -> Result<&Arc<dyn LogFilter>, AdminError> {
    ctx.deps
        .log
        .as_ref()
        .ok_or_else(|| AdminError::Precondition("the log of this process has no filter".to_owned()))
}

fn show_log_filter(ctx: &Ctx, state: LogFilterState) -> pb::LogFilter {
    let LogFilterState { filter, configured, returns_in } = state;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    pb::LogFilter {
        replica_id: ctx.deps.replica.status().replica_id,
        filter,
        configured,
        returns_in_ms: returns_in.map(millis),
    }
}
