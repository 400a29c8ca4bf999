//! Messages to the service manager: the protocol of `Type=notify` units of systemd.
//!
//! The service manager gives the process the path of a socket, or `@` and the name of an abstract one (`NOTIFY_SOCKET`).
//! Without it, this module does nothing.
//! `READY=1` has the meaning of `/readyz`, and `WATCHDOG=1` that of `/healthz`.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use chancery_admin::{Liveness, NotReady, NotReadyReason};
use chancery_config::Config;
use chancery_model::Printable;
use sd_notify::NotifyState;
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::admin_port::AdminPort;

const SOCKET: &str = "NOTIFY_SOCKET";
/// The maximum interval at which the state is computed again.
const TICK: Duration = Duration::from_secs(1);
/// The interval at which a start that progresses asks for more time, and the time that it asks for.
const EXTEND_INTERVAL: Duration = Duration::from_secs(10);
const EXTENSION: Duration = Duration::from_secs(60);
/// The minimum time without progress after which a start counts as hung while it loads data or starts Raft. The replica
/// then no longer asks for more time.
const HANGS_AFTER: Duration = Duration::from_secs(5 * 60);
/// The time for a shutdown in addition to `shutdown.timeout`: to transfer leadership, and to close the store.
const STOP_EXTRA: Duration = Duration::from_secs(25);
/// The maximum time for a message after `stop_tasks` is cancelled.
const LAST_MESSAGE: Duration = Duration::from_millis(500);
/// The maximum length of the status in bytes. systemd ignores messages of more than 4 KiB.
const STATUS_BYTES_MAX: usize = 1000;

/// Starts the task that informs the service manager, if there is one.
pub(super) fn start(port: &AdminPort, config: &Config) {
    if env::var_os(SOCKET).is_none() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero());
    let reporter = Reporter::new(watchdog, config);
    let liveness = port.event_loops.liveness();
    let (readiness, started) = (port.readiness.clone(), port.started.clone());
    let (stopping, stop) = (port.stopping.clone(), port.stop_tasks.clone());
    let task = async move {
        let mut reporter = reporter;
        let mut ticks = interval(reporter.period());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut has_started, mut has_warned) = (false, false);
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled(), if !reporter.is_stopping => {}
                () = stop.cancelled() => return,
                () = started.cancelled(), if !has_started => has_started = true,
                _ = ticks.tick() => {}
            }
            let is_stopping = stopping.is_cancelled();
            let messages =
                reporter.messages(Instant::now(), &readiness.check(), &liveness, is_stopping);
            let sent = tokio::select! {
                sent = send(messages) => sent,
                () = after(&stop, LAST_MESSAGE) => return,
            };
            if let Err(error) = sent
                && !std::mem::replace(&mut has_warned, true)
            {
                warn!(%error, "cannot inform the service manager (NOTIFY_SOCKET)");
            }
        }
    };
    port.tasks.spawn_on(task, &port.runtime);
}

/// Waits until `stop` is cancelled, and then for `time`.
async fn after(stop: &CancellationToken, time: Duration) {
    stop.cancelled().await;
    sleep(time).await;
}

/// Sends messages in one datagram. The socket may block while the service manager is busy.
async fn send(messages: Vec<String>) -> io::Result<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let text = messages.join("\n");
    let sent = spawn_blocking(move || notify(&text)).await;
    sent.map_err(io::Error::other)?
}

/// Sends one datagram. The library knows only sockets with a path.
fn notify(text: &str) -> io::Result<()> {
    let socket = env::var_os(SOCKET).unwrap_or_default();
    let Some(name) = socket.as_bytes().strip_prefix(b"@") else {
        return sd_notify::notify(&[NotifyState::Custom(text)]);
    };
    let sender = UnixDatagram::unbound()?;
    sender.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    sender.send(text.as_bytes()).map(drop)
}

/// Chooses the messages to the service manager.
#[derive(Debug)]
struct Reporter {
    /// The interval within which the service manager expects `WATCHDOG=1`.
    watchdog: Option<Duration>,
    /// The maximum duration of the shutdown.
    stop_time: Duration,
    /// The maximum duration of a start after the data are read.
    start_time: Duration,
    status: String,
    is_ready: bool,
    is_stopping: bool,
    /// The times of the last `WATCHDOG=1` and of the last request for more time.
    fed: Option<Instant>,
    extended: Option<Instant>,
    /// The reason why the replica is not ready, its progress, and the time of their last change.
    progress: Option<(NotReadyReason, Option<f64>, Instant)>,
}

impl Reporter {
    fn new(watchdog: Option<Duration>, config: &Config) -> Self {
        Self {
            watchdog,
            stop_time: config.shutdown.timeout.duration().saturating_add(STOP_EXTRA),
            start_time: config.store.open_timeout.duration(),
            status: String::new(),
            is_ready: false,
            is_stopping: false,
            fed: None,
            extended: None,
            progress: None,
        }
    }

    /// Returns the interval at which [`Reporter::messages`] is called.
    fn period(&self) -> Duration {
        self.watchdog.map_or(TICK, |limit| TICK.min(limit / 4))
    }

    /// Returns the messages that are due.
    fn messages(
        &mut self,
        now: Instant,
        readiness: &Result<(), NotReady>,
        liveness: &Liveness,
        is_stopping: bool,
    ) -> Vec<String> {
        let mut messages = Vec::new();
        let mut tell = |message: NotifyState<'_>| messages.push(message.to_string());
        let is_due = |last: Option<Instant>, interval: Duration| {
            last.is_none_or(|last| now.duration_since(last) >= interval)
        };
        if is_stopping && !self.is_stopping {
            self.is_stopping = true;
            tell(NotifyState::Stopping);
            tell(NotifyState::ExtendTimeoutUsec(micros(self.stop_time)));
        }
        let alive = liveness();
        let may_wait = readiness.as_ref().is_err_and(|reason| may_wait(reason.reason));
        if readiness.is_ok() && !self.is_ready {
            self.is_ready = true;
            tell(NotifyState::Ready);
        }
        let hangs = readiness.as_ref().is_err_and(|reason| self.hangs(now, reason));
        let asks = may_wait && !hangs && !self.is_ready && alive.is_ok();
        if asks && is_due(self.extended, EXTEND_INTERVAL) {
            self.extended = Some(now);
            tell(NotifyState::ExtendTimeoutUsec(micros(EXTENSION)));
        }
        let status = match (&alive, readiness) {
            (Err(stalled), _) => shown(stalled),
            (Ok(()), Err(reason)) => shown(&reason.message),
            (Ok(()), Ok(())) => "ready".to_owned(),
        };
        if status != self.status {
            tell(NotifyState::Status(&status));
            self.status = status;
        }
        if let Some(limit) = self.watchdog
            && alive.is_ok()
            && is_due(self.fed, limit / 2 - self.period())
        {
            self.fed = Some(now);
            tell(NotifyState::Watchdog);
        }
        messages
    }

    /// Returns whether a start has made no progress for too long. Waiting for other replicas is not a hang.
    fn hangs(&mut self, now: Instant, state: &NotReady) -> bool {
        let since = match self.progress {
            Some((reason, progress, since))
                if (reason, progress) == (state.reason, state.progress) =>
            {
                since
            }
            _ => now,
        };
        self.progress = Some((state.reason, state.progress, since));
        let limit = match state.reason {
            NotReadyReason::Loading => HANGS_AFTER,
            // The store itself gives up after this time.
            NotReadyReason::Starting => HANGS_AFTER.max(self.start_time),
            _ => return false,
        };
        now.duration_since(since) >= limit
    }
}

/// Returns whether a replica that is not ready for this reason may take more time to start. A replica that has diverged
/// keeps running to report the reason: a restart would not help.
fn may_wait(reason: NotReadyReason) -> bool {
    match reason {
        NotReadyReason::Loading
        | NotReadyReason::Joining
        | NotReadyReason::Starting
        | NotReadyReason::CatchingUp
        | NotReadyReason::Diverged => true,
        NotReadyReason::StoreFailed
        | NotReadyReason::Stalled
        | NotReadyReason::Drained
        | NotReadyReason::Draining => false,
    }
}

/// Returns a text as one line: a line break would begin another message.
fn shown(text: &str) -> String {
    let mut text = Printable(&text.replace('\n', " ")).to_string();
    text.truncate(text.floor_char_boundary(STATUS_BYTES_MAX));
    text
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use chancery_config::Span;

    /// Returns a configuration with `shutdown.timeout` and `store.open_timeout` in seconds.
    fn config(shutdown: u64, open: u64) -> Config {
        let mut config = Config::default();
        config.shutdown.timeout = Span::seconds(shutdown);
        config.store.open_timeout = Span::seconds(open);
        config
    }

    fn not_ready(reason: NotReadyReason, message: &str) -> Result<(), NotReady> {
        Err(NotReady { reason, progress: None, message: message.to_owned() })
    }

    fn alive() -> Liveness {
        Arc::new(|| Ok(()))
    }

    #[tokio::test]
    async fn start_asks_for_time_until_it_is_ready_and_end_is_announced_once() {
        let mut reporter = Reporter::new(None, &config(15, 60));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let loading = not_ready(NotReadyReason::Loading, "loading: 1 %\nREADY=1");
        let mut tell = |seconds, readiness: &_, stops| {
            reporter.messages(at(seconds), readiness, &alive(), stops)
        };
        let first = ["EXTEND_TIMEOUT_USEC=60000000", "STATUS=loading: 1 % READY=1"];
        assert_eq!(tell(0, &loading, false), first);
        assert!(tell(9, &loading, false).is_empty(), "nothing has changed");
        assert_eq!(tell(10, &loading, false), [first[0]]);
        assert_eq!(tell(11, &Ok(()), false), ["READY=1", "STATUS=ready"]);
        let behind = not_ready(NotReadyReason::CatchingUp, "behind");
        assert_eq!(tell(30, &behind, false), ["STATUS=behind"], "the start has ended");
        let stopping = ["STOPPING=1", "EXTEND_TIMEOUT_USEC=40000000", "STATUS=ready"];
        assert_eq!(tell(31, &Ok(()), true), stopping);
        let draining = not_ready(NotReadyReason::Draining, "shutting down");
        assert_eq!(tell(32, &draining, true), ["STATUS=shutting down"]);
    }

    #[tokio::test]
    async fn only_a_replica_that_need_not_be_restarted_asks_for_time() {
        for (reason, asks) in
            [(NotReadyReason::Diverged, true), (NotReadyReason::StoreFailed, false)]
        {
            let mut reporter = Reporter::new(None, &Config::default());
            let state = not_ready(reason, "a reason");
            let told = reporter.messages(Instant::now(), &state, &alive(), false);
            let extends = told.contains(&"EXTEND_TIMEOUT_USEC=60000000".to_owned());
            assert_eq!((extends, told.last().unwrap().as_str()), (asks, "STATUS=a reason"));
        }
    }

    #[tokio::test]
    async fn start_that_makes_no_progress_asks_for_no_more_time() {
        let start = Instant::now();
        let asks = |reason: NotReadyReason, open_timeout, progress: &dyn Fn(u64) -> f64| {
            let mut reporter = Reporter::new(None, &config(10, open_timeout));
            let mut asks = (0..60).map(|turn| {
                let progress = Some(progress(turn));
                let state = Err(NotReady { reason, progress, message: String::new() });
                let now = start + EXTEND_INTERVAL * u32::try_from(turn).unwrap();
                reporter.messages(now, &state, &alive(), false) == ["EXTEND_TIMEOUT_USEC=60000000"]
            });
            asks.by_ref().filter(|asks| *asks).count()
        };
        assert_eq!(asks(NotReadyReason::Loading, 480, &|_| 0.5), 30, "for 5 minutes");
        assert_eq!(asks(NotReadyReason::Loading, 480, &|turn| turn as f64 / 60.0), 60);
        assert_eq!(asks(NotReadyReason::Joining, 60, &|_| 0.5), 60);
        assert_eq!(asks(NotReadyReason::Starting, 60, &|_| 0.5), 30, "for 5 minutes");
        assert_eq!(asks(NotReadyReason::Starting, 480, &|_| 0.5), 48, "for store.open_timeout");
    }

    #[tokio::test]
    async fn watchdog_is_fed_in_half_of_its_time_and_only_while_event_loops_turn() {
        let limit = Duration::from_secs(8);
        let mut reporter = Reporter::new(Some(limit), &Config::default());
        let start = Instant::now();
        let mut fed = Vec::new();
        for second in 0..12 {
            let now = start + Duration::from_secs(second);
            let told = reporter.messages(now, &Ok(()), &alive(), false);
            if told.contains(&"WATCHDOG=1".to_owned()) {
                fed.push(second);
            }
        }
        assert_eq!(fed, [0, 3, 6, 9], "never more than half of the limit later");
        let stalled: Liveness = Arc::new(|| Err("shard 1 does not turn".to_owned()));
        let later = start + Duration::from_secs(60);
        let told = reporter.messages(later, &Ok(()), &stalled, false);
        assert_eq!(told, ["STATUS=shard 1 does not turn"]);
    }
}
