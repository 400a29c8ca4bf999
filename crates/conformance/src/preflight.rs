//! The checks before the first case: that the server accepts the kit's connections and credentials.
//!
//! Without them, each case would report a violation of the protocol, although no rule was checked.

use std::{sync::Arc, time::Duration};

use tonic::Code;

use crate::{
    case::Case,
    ctx::{Ctx, Target, innermost},
    kind::Kind,
    log::Log,
    outcome::Stop,
    stream::{RequestFields, StreamService, Variant},
    transport::HttpVersion,
};

/// The number of the context of these checks, which no case has.
const NUMBER: usize = usize::MAX;
/// The time after which a stream without a response counts as accepted.
const SILENCE: Duration = Duration::from_secs(2);

/// Prepares a run: connects to the ports of the server, starts the adapter, and opens a stream as a node of the run.
///
/// # Errors
/// Fails with the reason if a port does not accept the connection, the adapter cannot start, or the server refuses the
/// stream. Nothing remains of what the adapter has created, unless the reason says so.
pub async fn prepare(target: &Arc<Target>, cases: &[Case]) -> Result<(), String> {
    let uses_rest = cases.iter().any(|case| case.name.starts_with("rest/"));
    check_connection(target, uses_rest)
        .await
        .map_err(|error| format!("{error}; nothing was written"))?;
    let mut prepared = target.adapter.start().await;
    if prepared.is_ok() {
        prepared = check_permission(target).await;
    }
    match prepared {
        Ok(()) => Ok(()),
        Err(error) => match target.adapter.finish().await {
            Ok(()) => Err(error),
            Err(left) => Err(format!("{error}; and not everything was removed: {left}")),
        },
    }
}

/// Connects to the ports, and opens an aggregated stream. Before the adapter has started, it is unknown whether the
/// server permits the streams of the run.
async fn check_connection(target: &Arc<Target>, uses_rest: bool) -> Result<(), String> {
    match open_stream(target).await? {
        Some((code, message)) if code != Code::PermissionDenied => Err(refused(code, &message)),
        _ if uses_rest => check_rest(target).await,
        _ => Ok(()),
    }
}

async fn check_permission(target: &Arc<Target>) -> Result<(), String> {
    match open_stream(target).await? {
        Some((code, message)) => Err(refused(code, &message)),
        None => Ok(()),
    }
}

fn refused(code: Code, message: &str) -> String {
    format!("it refuses the stream of the kit: {code:?}: {message}")
}

/// Opens a stream and sends a request. Returns the status with which the server refuses it. A server without this
/// service or variant refuses nothing.
async fn open_stream(target: &Arc<Target>) -> Result<Option<(Code, String)>, String> {
    let ctx = Ctx::new(target.clone(), StreamService::Ads, NUMBER, Log::default());
    let text = |reason: String| target.transport.refusal().unwrap_or(reason);
    let opened = ctx.open(Variant::Sotw, Kind::Cds).await;
    let mut stream = opened.map_err(|stop| text(observed(stop)))?;
    stream.ask(RequestFields::names(Kind::Cds, &["preflight"])).await;
    let at_most = target.timeout.min(SILENCE);
    let Some(status) = stream.ended_within(at_most).await else { return Ok(None) };
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            Ok(Some((status.code(), status.message().to_owned())))
        }
        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled => {
            Err(text(innermost(&status)))
        }
        _ => Ok(None),
    }
}

async fn check_rest(target: &Target) -> Result<(), String> {
    let connect = target.transport.connect(&target.rest, HttpVersion::Http1);
    let address = &target.rest;
    match tokio::time::timeout(target.timeout, connect).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("the port of REST polls, {address}: {error}")),
        Err(_) => Err(format!(
            "the port of REST polls, {address}, accepts no connection within {:?}",
            target.timeout
        )),
    }
}

fn observed(stop: Stop) -> String {
    match stop {
        Stop::Failed(failed) => failed.observed,
        Stop::Skipped(reason) => reason,
    }
}
