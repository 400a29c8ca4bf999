//! Bodies of the admin port. Request bodies have a time limit, and response bodies keep their
//! connection busy until they end.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Bytes;
use chancery_net::RequestGuard;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// The minimum rate of a body, in bytes per second, after the initial grace time.
const BYTES_PER_SECOND_MIN: u64 = 16 << 10;

/// An error of a request body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    #[error(
        "the request body has timed out: only {received} bytes arrived in {time:?} (admin.body_timeout)"
    )]
    Slow { received: u64, time: Duration },
}

/// A request body with a time limit.
pub(crate) struct TimedBody {
    inner: Incoming,
    start: Instant,
    grace: Duration,
    received: u64,
    sleep: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(crate) fn new(inner: Incoming, grace: Duration) -> Self {
        let start = Instant::now();
        Self { inner, start, grace, received: 0, sleep: Box::pin(sleep_until(start + grace)) }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
            {
                self.received += data.len() as u64;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
        }
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let time = self.start.elapsed();
            let by_size = Duration::from_secs(self.received / BYTES_PER_SECOND_MIN);
            let end = self.start + self.grace + by_size;
            if end <= Instant::now() {
                let received = self.received;
                return Poll::Ready(Some(Err(BodyError::Slow { received, time })));
            }
            self.sleep.as_mut().reset(end);
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response body that keeps its connection busy.
pub(crate) struct Answer {
    pub(crate) inner: axum::body::Body,
    pub(crate) _busy: RequestGuard,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
