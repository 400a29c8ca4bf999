//! Reads the body of a poll, within the limits and the memory budget of all requests.

use std::{error::Error, io, iter, pin::Pin, time::Duration};

use bytes::{Bytes, BytesMut};
use chancery_fanout::limit_hit;
use futures::poll;
use http_body::Body;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    framing::{Bounds, PROGRESS_BYTES, PROGRESS_PART},
    memory_budget::BudgetShare,
};

/// The size above which a body needs memory of the budget.
const LARGE_BYTES: usize = 256 << 10;

/// The reason why a body could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// The client disconnected, or reset the request.
    #[error("the connection was lost")]
    Gone,
    /// The body violates HTTP, such as its chunks.
    #[error("the body is not valid HTTP: {0}")]
    Malformed(String),
    /// OPS-12.
    #[error("the request has more than {max} bytes (request_bytes_max)")]
    TooLong { max: usize },
    /// The body takes too long.
    #[error("the request did not arrive within {} s (large_request_timeout)", limit.as_secs_f64())]
    Slow { limit: Duration },
    /// The body holds memory for which others wait, and makes too little progress.
    #[error(
        "less than {PROGRESS_BYTES} bytes of a large request arrived within {} s (a tenth of \
         large_request_timeout)",
        limit.as_secs_f64()
    )]
    Stalled { limit: Duration },
}

/// A body with its part of the memory budget.
#[derive(Debug)]
pub(crate) struct ReadBody {
    pub(crate) bytes: Bytes,
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

/// Reads a body. Beyond [`LARGE_BYTES`], it is read only as far as memory is available.
pub(crate) async fn read(
    mut body: impl Body<Data = Bytes, Error: Error + 'static> + Unpin,
    bounds: &Bounds,
) -> Result<ReadBody, BodyError> {
    let max = bounds.message_bytes_max;
    if body.size_hint().lower() > u64::try_from(max).unwrap_or(u64::MAX) {
        return Err(BodyError::TooLong { max });
    }
    let mut until = Instant::now() + bounds.timeout;
    let stall_limit = bounds.timeout / PROGRESS_PART;
    // The length after which a body that holds memory makes progress, and the time until which it must.
    let mut progress: Option<(usize, Instant)> = None;
    let mut held: Option<BudgetShare> = None;
    let mut covered = LARGE_BYTES;
    let mut buffer = BytesMut::new();
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let due = progress.map_or(until, |(_, due)| until.min(due));
        let frame = tokio::time::timeout_at(due, frame).await;
        let frame = frame.map_err(|_elapsed| {
            if due < until {
                BodyError::Stalled { limit: stall_limit }
            } else {
                BodyError::Slow { limit: bounds.timeout }
            }
        })?;
        let data = match frame {
            None => break,
            // Trailers are ignored.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) => return Err(lost(&error)),
        };
        if buffer.is_empty() && body.is_end_stream() && data.len() <= max.min(LARGE_BYTES) {
            return Ok(ReadBody { bytes: data, memory: None });
        }
        let len = buffer.len().saturating_add(data.len());
        if len > max {
            return Err(BodyError::TooLong { max });
        }
        if len > covered {
            covered = covered.saturating_mul(2).max(len).min(max);
            let since = Instant::now();
            let mut cover = std::pin::pin!(bounds.budget.cover(&mut held, covered));
            if poll!(cover.as_mut()).is_pending() {
                limit_hit("large_requests_bytes");
                cover.await;
            }
            // The wait does not count, because the body could not progress.
            until += since.elapsed();
            progress = progress.map(|(next, due)| (next, due + since.elapsed()));
        }
        if len > LARGE_BYTES && progress.is_none_or(|(next, _)| len >= next) {
            progress = Some((len + PROGRESS_BYTES, Instant::now() + stall_limit));
        }
        if buffer.capacity() < len {
            let capacity = covered.min(len.saturating_mul(2));
            buffer.reserve(capacity - buffer.len());
        }
        buffer.extend_from_slice(&data);
    }
    Ok(ReadBody { bytes: buffer.freeze(), memory: held.map(BudgetShare::into_permit) })
}

/// Returns the reason why reading has failed. The client of a malformed body still reads the response.
fn lost(error: &(dyn Error + 'static)) -> BodyError {
    let mut causes = iter::successors(Some(error), |&error| error.source());
    let malformed = causes.find_map(|cause| {
        let cause = cause.downcast_ref::<io::Error>()?;
        let is_malformed =
            matches!(cause.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData);
        is_malformed.then(|| cause.to_string().to_lowercase())
    });
    malformed.map_or(BodyError::Gone, BodyError::Malformed)
}
