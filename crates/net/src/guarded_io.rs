//! A wrapper of a connection's socket that detects stalled clients and floods of frames without data.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::{
    activity::Activity,
    first_bytes::FirstBytes,
    http2::{FrameLimit, FrameRate, goaway},
};

/// The checks of a connection. The default has none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Guards {
    /// The maximum time without progress of a pending write.
    pub write_timeout: Option<Duration>,
    /// The limit of HTTP/2 frames without data.
    pub frames: Option<FrameRate>,
    /// Whether the reader sees the end of the client's bytes one poll later, after
    /// [`Activity::is_closed_by_client`] reports it.
    pub delays_end: bool,
}

/// The reason for cutting off a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disconnect {
    /// The client accepted no data.
    #[error("the client has accepted no data for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    /// The client sent too many frames without data.
    #[error("{0}")]
    Flood(FrameRate),
}

/// A watched connection.
#[derive(Debug)]
pub struct GuardedIo<I> {
    io: I,
    activity: Arc<Activity>,
    /// The bytes that were read before, and how many of them were delivered.
    first_bytes: (FirstBytes, usize),
    write_timeout: Option<Duration>,
    /// Runs while the client accepts no data.
    stalled: Option<Pin<Box<Sleep>>>,
    frame_limit: Option<FrameLimit>,
    /// Whether the last write was complete, so that another frame may follow.
    is_whole: bool,
    delays_end: bool,
    /// The end of the client's bytes, held until the next poll.
    ended: Option<io::Result<()>>,
}

impl<I> GuardedIo<I> {
    /// Wraps a connection of which `first_bytes` has been read.
    pub fn new(io: I, first_bytes: FirstBytes, activity: Arc<Activity>, guards: Guards) -> Self {
        Self {
            io,
            activity,
            first_bytes: (first_bytes, 0),
            write_timeout: guards.write_timeout,
            stalled: None,
            frame_limit: guards.frames.map(FrameLimit::new),
            is_whole: true,
            delays_end: guards.delays_end,
            ended: None,
        }
    }

    /// Handles the result of a write.
    fn on_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        match (&written, self.write_timeout) {
            (Poll::Pending, Some(timeout)) => {
                let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
                if stalled.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(cut(Disconnect::Stalled(timeout))));
                }
            }
            (Poll::Pending, None) => {}
            (Poll::Ready(result), _) => {
                self.stalled = None;
                if let Ok(n) = result {
                    self.is_whole = *n == len;
                    if let Some(limit) = &mut self.frame_limit {
                        limit.on_written(*n);
                    }
                }
            }
        }
        written
    }
}

impl<I: AsyncWrite + Unpin> GuardedIo<I> {
    /// Sends the client the reason for the disconnection, if that is possible at once.
    fn send_goaway(&mut self, cx: &mut Context<'_>, why: Disconnect) {
        if self.is_whole {
            let frame = goaway(&why.to_string());
            // The connection ends, whether the frame arrives or not.
            drop(Pin::new(&mut self.io).poll_write(cx, &frame));
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for GuardedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let (first_bytes, n_delivered) = &mut this.first_bytes;
        let rest = &first_bytes.bytes()[*n_delivered..];
        if !rest.is_empty() {
            let n = rest.len().min(buf.remaining());
            if let Some(limit) = &mut this.frame_limit {
                // They are the preface, or not HTTP/2, so no frame begins in them.
                limit.allows(&rest[..n]);
            }
            buf.put_slice(&rest[..n]);
            *n_delivered += n;
            return Poll::Ready(Ok(()));
        }
        if let Some(ended) = this.ended.take() {
            return Poll::Ready(ended);
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        let is_over = match &read {
            Poll::Ready(Ok(())) => buf.filled().len() == before && buf.remaining() > 0,
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        };
        if is_over && this.delays_end && this.activity.on_client_close() {
            // HTTP/2 frees the connection's memory when it reads the end, so the end is delivered
            // after the connection may have moved to other threads.
            if let Poll::Ready(ended) = read {
                this.ended = Some(ended);
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let bytes = &buf.filled()[before..];
        if !bytes.is_empty() {
            this.activity.on_read();
        }
        if let Some(limit) = &mut this.frame_limit
            && !limit.allows(bytes)
        {
            let why = Disconnect::Flood(limit.rate());
            this.send_goaway(cx, why);
            return Poll::Ready(Err(cut(why)));
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for GuardedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.on_write(cx, written, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.on_write(cx, written, bufs.iter().map(|buf| buf.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

fn cut(why: Disconnect) -> io::Error {
    let kind = match why {
        Disconnect::Stalled(_) => io::ErrorKind::TimedOut,
        Disconnect::Flood(_) => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, why)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn client_that_accepts_no_data_is_disconnected() {
        let (io, mut client) = tokio::io::duplex(8);
        let activity = Activity::new(([127, 0, 0, 1], 1).into());
        let timeout = Duration::from_secs(50);
        let guards = Guards { write_timeout: Some(timeout), ..Guards::default() };
        let mut io = GuardedIo::new(io, FirstBytes::default(), activity, guards);
        let reader = tokio::spawn(async move {
            tokio::time::sleep(timeout / 2).await;
            client.read_exact(&mut [0; 8]).await.unwrap();
            client
        });
        let start = Instant::now();
        let error = io.write_all(&[0; 24]).await.unwrap_err();
        let _client = reader.await.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the client has accepted no data for 50 s");
        assert_eq!(start.elapsed(), timeout / 2 + timeout, "the time since the last progress");
    }
}
