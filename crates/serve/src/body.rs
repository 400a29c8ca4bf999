//! Bodies of the admin port. Request bodies have a time limit, and response bodies keep their
//! connection busy while the client takes them.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Bytes;
use chancery_net::{Activity, RequestGuard};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep, sleep_until},
};

/// The minimum rate of a body, in bytes per second, after the initial grace time.
const BYTES_PER_SECOND_MIN: u64 = 16 << 10;
/// The time that a client has to take the next part of an answer, in addition to the time that depends on the size of
/// the last part. After it, the answer no longer keeps its connection busy.
///
/// The kernels on both sides buffer several MB for a slow client, and accept the next part when about a third of a buffer
/// is free. A client that takes 150 KB per second needs 9 s for that.
const TAKE_TIME: Duration = Duration::from_secs(20);
/// The interval of checks whether clients take their answers.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum size of a part of an answer. hyper takes a part at once, so an answer of one large part would appear
/// complete before the client has received it.
const PART_BYTES_MAX: usize = 64 << 10;
/// The maximum size of an answer that never keeps its connection busy, such as that of a probe or a refusal.
const SHORT_BYTES_MAX: u64 = 4 << 10;

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

/// The answers of one connection.
#[derive(Debug)]
pub(crate) struct Answers {
    activity: Arc<Activity>,
    /// The answers that may keep the connection busy.
    open: Mutex<Vec<Weak<Mutex<Taking>>>>,
    /// Notified when an answer begins to keep the connection busy.
    begun: Notify,
}

/// How far a client has taken an answer.
#[derive(Debug)]
struct Taking {
    /// Keeps the connection busy.
    busy: Option<RequestGuard>,
    /// The time by which the client must take the next part. `None` while the server produces it.
    due: Option<Instant>,
}

impl Answers {
    pub(crate) fn new(activity: Arc<Activity>) -> Arc<Self> {
        Arc::new(Self { activity, open: Mutex::default(), begun: Notify::new() })
    }

    /// Returns the body of an answer. `busy` is the guard of its request.
    pub(crate) fn answer(
        self: &Arc<Self>,
        inner: axum::body::Body,
        busy: RequestGuard,
    ) -> AnswerBody {
        let is_short = inner.size_hint().upper().is_some_and(|bytes| bytes <= SHORT_BYTES_MAX);
        let taking = (!is_short).then(|| {
            let due = Some(Instant::now() + TAKE_TIME);
            let taking = Arc::new(Mutex::new(Taking { busy: Some(busy), due }));
            self.open.lock().push(Arc::downgrade(&taking));
            self.begun.notify_one();
            taking
        });
        AnswerBody { inner, rest: Bytes::new(), taking, answers: Arc::clone(self) }
    }

    /// Ends the requests of answers that the client does not take. HTTP/2 does not ask for the next part of an answer
    /// while the client permits no bytes.
    pub(crate) async fn release_untaken(&self) -> Infallible {
        loop {
            self.begun.notified().await;
            while self.release(Instant::now()) {
                sleep(CHECK_INTERVAL).await;
            }
        }
    }

    /// Returns whether there are answers that keep the connection busy.
    fn release(&self, now: Instant) -> bool {
        let mut is_busy = false;
        self.open.lock().retain(|taking| {
            let Some(taking) = taking.upgrade() else { return false };
            let mut taking = taking.lock();
            if taking.due.is_some_and(|due| due <= now) {
                taking.busy = None;
            }
            is_busy |= taking.busy.is_some();
            true
        });
        is_busy
    }
}

/// A response body that keeps its connection busy while the client takes it.
///
/// When the body ends, a slow client still lacks what is in the buffers of the connection: a part, and up to several MB
/// in the kernel. These bytes do not keep the connection busy. `admin.idle_timeout` leaves time for them. If the port
/// is full, the connection may be evicted, and loses them after a second. The buffers do not report when they are
/// empty. If these bytes kept the connection busy for the longest permitted time, clients that have received everything
/// would keep slots.
pub(crate) struct AnswerBody {
    inner: axum::body::Body,
    /// The bytes after the last part.
    rest: Bytes,
    /// `None` if the answer is short.
    taking: Option<Arc<Mutex<Taking>>>,
    answers: Arc<Answers>,
}

impl AnswerBody {
    /// Returns the next part, or the trailers.
    fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let n = self.rest.len().min(PART_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(n)))))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = self.poll_part(cx);
        if let Some(taking) = &self.taking {
            let mut taking = taking.lock();
            if taking.busy.is_none() {
                taking.busy = Some(self.answers.activity.begin());
                self.answers.begun.notify_one();
            }
            if let Some(busy) = &mut taking.busy {
                // A watch may wait forever.
                if polled.is_pending() { busy.wait() } else { busy.serve() }
            }
            taking.due = match &polled {
                Poll::Pending => None,
                Poll::Ready(frame) => {
                    let frame = frame.as_ref().and_then(|frame| frame.as_ref().ok());
                    let bytes = frame.and_then(|frame| Some(frame.data_ref()?.len() as u64));
                    let by_size = bytes.unwrap_or_default() / BYTES_PER_SECOND_MIN;
                    Some(Instant::now() + TAKE_TIME + Duration::from_secs(by_size))
                }
            };
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use chancery_net::Timeouts;
    use http_body_util::BodyExt as _;
    use tokio::{sync::mpsc, time::advance};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answer_that_is_not_taken_does_not_keep_its_connection_busy() {
        let activity = Activity::new(([127, 0, 0, 1], 1).into());
        let answers = Answers::new(Arc::clone(&activity));
        let short = answers.answer("healthy\n".into(), activity.begin());
        assert!(activity.idle_since().is_some(), "a short answer");
        let (parts, receiver) = mpsc::channel(2);
        parts.try_send(Ok::<_, Infallible>("a")).unwrap();
        parts.try_send(Ok("b")).unwrap();
        let parts_body = axum::body::Body::from_stream(ReceiverStream::new(receiver));
        let mut long = answers.answer(parts_body, activity.begin());
        let idle = Duration::from_secs(120);
        let run = {
            let (answers, activity) = (Arc::clone(&answers), Arc::clone(&activity));
            let timeouts = Timeouts { first: idle, idle };
            tokio::spawn(async move {
                tokio::select! {
                    never = answers.release_untaken() => match never {},
                    unused = activity.unused(timeouts) => unused,
                }
            })
        };
        tokio::task::yield_now().await;
        assert_eq!(activity.idle_since(), None);
        sleep(TAKE_TIME * 2).await;
        assert!(activity.idle_since().is_some(), "the client takes nothing");
        long.frame().await.unwrap().unwrap();
        assert_eq!(activity.idle_since(), None, "the client takes a part");
        long.frame().await.unwrap().unwrap();
        let next = tokio::time::timeout(idle * 10, long.frame()).await;
        assert!(
            next.is_err() && activity.idle_since().is_none(),
            "the server produces the next part"
        );
        drop((short, long));
        advance(idle).await;
        run.await.unwrap();
    }

    /// An answer is usually one large part.
    #[tokio::test(start_paused = true)]
    async fn large_answer_keeps_its_connection_busy_until_its_last_part_is_taken() {
        let activity = Activity::new(([127, 0, 0, 1], 1).into());
        let answers = Answers::new(Arc::clone(&activity));
        let whole: Vec<u8> = (0..=u8::MAX).cycle().take(PART_BYTES_MAX * 4).collect();
        let mut answer = answers.answer(whole.clone().into(), activity.begin());
        let mut taken = Vec::new();
        while taken.len() < whole.len() {
            assert_eq!(answer.size_hint().exact(), Some((whole.len() - taken.len()) as u64));
            assert!(!answer.is_end_stream());
            let part = answer.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(part.len() <= PART_BYTES_MAX);
            taken.extend(part);
            // A client that takes 16 KiB per second is fast enough.
            advance(Duration::from_secs(4)).await;
            assert!(answers.release(Instant::now()) && activity.idle_since().is_none());
        }
        assert!(answer.is_end_stream() && taken == whole);
        drop(answer);
        assert!(activity.idle_since().is_some());
    }
}
