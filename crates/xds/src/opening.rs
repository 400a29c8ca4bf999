//! The threads for new connections and for connections that are being closed.
//!
//! A connection is new until the client of one of its streams has answered the responses to its first
//! requests. Tokio runs tasks in the order in which they become ready. When thousands of clients
//! connect at once, a push to an established client would wait for all their handshakes, requests and
//! first responses. When thousands of clients leave at once, it would wait until the memory of their
//! connections is freed.
//!
//! New connections, and connections that their clients have closed, therefore have a separate runtime.
//! It has half as many threads as there are processors, with a lower priority. Established connections
//! and shards stay on the runtime that calls [`NewConnections::start`]. The kernel divides the processors
//! between the two runtimes: established connections proceed at once, and new connections always
//! progress.
//!
//! A caller whose runtime has only the thread of `block_on` gets no additional threads.
//!
//! Only the polling moves. Sockets and timers belong to the caller's runtime from the start, so a
//! connection changes threads without a system call.

use std::{
    future::Future,
    io,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    thread,
};

use futures::FutureExt;
use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio_util::task::TaskTracker;

use crate::connection::Connection;

/// The priority of the threads, as in `nice`. They get a third of a processor that another thread also
/// wants.
const NICE: i32 = 5;

/// The runtime of new connections. Dropping it drops these connections.
#[derive(Debug)]
pub(crate) struct NewConnections {
    /// `None` if new connections run on the same runtime as established ones.
    runtime: Option<Runtime>,
    home: Handle,
}

/// A connection on one of the two runtimes. Resolves to the rest of its future when the connection must
/// move to the other runtime, or to `None` when the connection has ended.
struct Polled<F> {
    connection: Arc<Connection>,
    home: Handle,
    /// Whether it runs on the runtime for established connections.
    is_on_main_runtime: bool,
    run: Option<Pin<Box<F>>>,
}

impl NewConnections {
    /// Starts the threads. Established connections will run on the current runtime.
    pub(crate) fn start() -> io::Result<Self> {
        let home = Handle::current();
        if home.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return Ok(Self { runtime: None, home });
        }
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get) / 2;
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("chancery-opening")
            .on_thread_start(|| {
                // Linux changes only the calling thread. If the system denies it, the priority stays as
                // it is.
                let _: Result<(), _> = rustix::process::setpriority_process(None, NICE);
            })
            .build()?;
        chancery_metrics::register_runtime("chancery-opening", runtime.handle());
        Ok(Self { runtime: Some(runtime), home })
    }

    /// Runs a connection. `tracker` tracks it until its end.
    pub(crate) fn spawn(
        &self,
        tracker: &TaskTracker,
        connection: Arc<Connection>,
        run: impl Future<Output = ()> + Send + 'static,
    ) {
        let Some(runtime) = &self.runtime else {
            self.home.spawn(tracker.track_future(run));
            return;
        };
        let (home, opening) = (self.home.clone(), runtime.handle().clone());
        let polled = move |is_on_main_runtime, run| {
            let (connection, home) = (Arc::clone(&connection), home.clone());
            Polled { connection, home, is_on_main_runtime, run: Some(run) }
        };
        let (home, its_tracker) = (self.home.clone(), tracker.clone());
        runtime.spawn(tracker.track_future(async move {
            let Some(established) = polled(false, Box::pin(run)).await else { return };
            let tracker = its_tracker.clone();
            home.spawn(its_tracker.track_future(async move {
                if let Some(closing) = polled(true, established).await {
                    opening.spawn(tracker.track_future(polled(false, closing).map(drop)));
                }
            }));
        }));
    }
}

impl Drop for NewConnections {
    fn drop(&mut self) {
        // This may run on an asynchronous thread, which must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl<F: Future<Output = ()>> Future for Polled<F> {
    type Output = Option<Pin<Box<F>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        // The timers belong to the runtime of established connections.
        let _home = this.home.enter();
        let Some(run) = &mut this.run else { return Poll::Ready(None) };
        match run.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending if this.connection.is_established() != this.is_on_main_runtime => {
                Poll::Ready(this.run.take())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::Notify,
    };

    use chancery_fanout::RefusalPlaces;
    use chancery_net::{Activity, FirstBytes, GuardedIo, Guards};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn connection() -> Arc<Connection> {
        let places = RefusalPlaces::without_streams(1);
        Connection::new(Activity::new(([127, 0, 0, 1], 1).into()), 1, places)
    }

    /// OPS-17: thousands of new connections can keep only their own threads busy.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn new_connections_run_on_separate_threads() {
        let (opening, tracker) = (NewConnections::start().unwrap(), TaskTracker::new());
        let ((gate, wait), (told, heard)) =
            (mpsc::sync_channel::<()>(1), tokio::sync::oneshot::channel());
        opening.spawn(&tracker, connection(), async move {
            // The poll blocks until the thread for established connections has proceeded.
            told.send(wait.recv_timeout(PATIENCE)).unwrap();
        });
        tokio::spawn(async move { drop(gate) });
        assert_eq!(heard.await.unwrap(), Err(mpsc::RecvTimeoutError::Disconnected));
        tracker.close();
        tracker.wait().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn established_connection_moves_to_shared_threads() {
        let (opening, tracker, connection) =
            (NewConnections::start().unwrap(), TaskTracker::new(), connection());
        let (threads, mut polled) = tokio::sync::mpsc::channel(8);
        let wake = Arc::new(Notify::new());
        let woken = Arc::clone(&wake);
        opening.spawn(&tracker, Arc::clone(&connection), async move {
            for _ in 0..3 {
                // A timer works on both runtimes.
                tokio::time::sleep(Duration::from_millis(1)).await;
                threads.send(thread::current().id()).await.unwrap();
                woken.notified().await;
            }
        });
        let here = tokio::spawn(async { thread::current().id() }).await.unwrap();
        assert_ne!(polled.recv().await, Some(here));
        wake.notify_one();
        assert_ne!(polled.recv().await, Some(here), "the connection is not established yet");
        connection.establish();
        wake.notify_one();
        // The wake-up finds the connection established. Its next timer is awaited on this runtime.
        assert_eq!(polled.recv().await, Some(here));
        wake.notify_one();
        tracker.close();
        tracker.wait().await;
        assert!(polled.recv().await.is_none());
    }

    /// OPS-17: thousands of clients that leave at once do not occupy the threads for established
    /// connections.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn connection_closed_by_client_leaves_shared_threads() {
        let (opening, tracker, connection) =
            (NewConnections::start().unwrap(), TaskTracker::new(), connection());
        connection.establish();
        let (io, mut client) = tokio::io::duplex(64);
        let guards = Guards { delays_end: true, ..Guards::default() };
        let activity = Arc::clone(&connection.activity);
        let mut io = GuardedIo::new(io, FirstBytes::default(), activity, guards);
        let (threads, mut polled) = tokio::sync::mpsc::channel(8);
        opening.spawn(&tracker, connection, async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut buf = [0; 8];
            while let Ok(n) = io.read(&mut buf).await {
                threads.send((n, thread::current().id())).await.unwrap();
                if n == 0 {
                    // A timer works on this runtime, too.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    return;
                }
            }
        });
        let here = tokio::spawn(async { thread::current().id() }).await.unwrap();
        client.write_all(b"12345").await.unwrap();
        assert_eq!(polled.recv().await, Some((5, here)));
        drop(client);
        let (n, there) = polled.recv().await.unwrap();
        assert_eq!(n, 0, "the connection reads its end");
        assert_ne!(there, here);
        tracker.close();
        tracker.wait().await;
    }
}
