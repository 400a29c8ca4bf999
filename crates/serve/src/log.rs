//! The log on standard error, as text or JSON, and its filter.
//!
//! docs/logs.md lists the fields. The filter may change while the replica runs. A temporary change ends by itself.

use std::{
    env,
    fs::File,
    io::{self, IsTerminal as _},
    os::fd::AsFd as _,
    panic,
    sync::{Arc, OnceLock},
    thread,
    time::Duration,
};

use chancery_admin::{LogFilter, LogFilterState};
use chancery_config::{Config, LogFormat, log_level_rules};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{Subscriber, error, field, info, warn};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt, layer::SubscriberExt as _, registry::LookupSpan, reload,
    util::SubscriberInitExt as _,
};

use super::log_writer::LogWriter;

/// The libraries that write lines for their developers, with their levels while the log has the level info or a less
/// detailed one. openraft warns at every start about messages that it correctly ignores.
const QUIET: [(&str, &str); 6] = [
    ("openraft", "error"),
    ("h2", "warn"),
    ("hyper", "warn"),
    ("hyper_util", "warn"),
    ("tonic", "warn"),
    ("rustls", "warn"),
];
/// The level of the same libraries while the log has the level trace. At trace, h2 writes the headers of requests,
/// and headers contain tokens.
const DETAILED: &str = "debug";

/// The maximum time that a thread which panics waits for the writer of the log.
const PANIC_TIMEOUT: Duration = Duration::from_millis(200);

/// The filter of the log.
struct Filter {
    handle: reload::Handle<EnvFilter, Registry>,
    configured: String,
    now: Mutex<Now>,
}

/// The filter of the process, which has one log.
static FILTER: OnceLock<Arc<Filter>> = OnceLock::new();
/// The writer of the log.
static WRITER: OnceLock<LogWriter> = OnceLock::new();

/// The filter in force.
struct Now {
    filter: String,
    /// The time at which the configured filter returns.
    until: Option<Instant>,
    /// The number of changes. The end of a temporary change has no effect after another change.
    n_changes: u64,
}

/// Starts logging. A second call fails.
pub(super) fn start(config: &Config) -> Result<(), String> {
    let log = &config.log;
    let (filter, handle) = reload::Layer::new(env_filter(&log.level)?);
    // The writer does not lock `io::stderr`, which a blocked write would hold.
    let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    let writer =
        LogWriter::start(log.format, File::from(stderr)).map_err(|error| error.to_string())?;
    let writer = WRITER.get_or_init(|| writer).clone();
    let lines = lines(log.format, writer);
    let started = tracing_subscriber::registry().with(filter).with(lines).try_init();
    started.map_err(|error| error.to_string())?;
    // The hook of the standard library writes to standard error itself, and waits for its reader without a limit.
    panic::set_hook(Box::new(|panic| {
        error!(
            thread = thread::current().name(),
            panic = panic.to_string(),
            "a thread has panicked"
        );
        // The process may end before the writer has the line.
        flush(PANIC_TIMEOUT);
    }));
    let now = Now { filter: log.level.clone(), until: None, n_changes: 0 };
    let filter = Filter { handle, configured: log.level.clone(), now: Mutex::new(now) };
    FILTER.set(Arc::new(filter)).map_err(|_| "logging has already started".to_owned())
}

/// Returns the layer that formats events as lines.
fn lines<S>(format: LogFormat, writer: LogWriter) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let lines = fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => lines.with_ansi(has_colors()).boxed(),
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
    }
}

/// Waits until all lines are written, or for `patience`. Returns whether they are written.
pub(super) fn flush(patience: Duration) -> bool {
    WRITER.get().is_none_or(|writer| writer.flush(patience))
}

/// Returns the filter of the log, if logging has started.
pub(super) fn filter() -> Option<Arc<dyn LogFilter>> {
    FILTER.get().map(|filter| Arc::clone(filter) as Arc<dyn LogFilter>)
}

/// Returns whether lines of text have colors: on a terminal, unless `NO_COLOR` is set (no-color.org).
fn has_colors() -> bool {
    io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns a filter with the levels of libraries, unless the filter names them.
fn env_filter(filter: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(complete(filter)).map_err(|error| error.to_string())
}

fn complete(filter: &str) -> String {
    let directives: Vec<&str> = filter.split(',').map(str::trim).collect();
    let level = directives.iter().rev().find(|directive| !directive.contains('='));
    let level = level.copied().unwrap_or("off").to_ascii_lowercase();
    let named = |library: &str| {
        let of = |directive: &&str| directive.split(['=', ':']).next() == Some(library);
        directives.iter().any(of)
    };
    let quiet = QUIET.iter().filter(|(library, _)| !named(library));
    let added = quiet.filter_map(|(library, least)| match level.as_str() {
        "trace" => Some(format!("{library}={DETAILED}")),
        "info" => Some(format!("{library}={least}")),
        "warn" if *least == "error" => Some(format!("{library}={least}")),
        _ => None,
    });
    directives
        .iter()
        .map(|directive| (*directive).to_owned())
        .chain(added)
        .collect::<Vec<_>>()
        .join(",")
}

impl Filter {
    fn apply(&self, filter: &str, until: Option<Instant>, now: &mut Now) -> Result<(), String> {
        let new = env_filter(filter)?;
        self.handle.reload(new).map_err(|error| error.to_string())?;
        filter.clone_into(&mut now.filter);
        now.until = until;
        now.n_changes += 1;
        Ok(())
    }

    /// Returns to the configured filter, unless there was another change.
    fn end(&self, n_changes: u64) {
        let mut now = self.now.lock();
        if now.n_changes == n_changes && self.apply(&self.configured, None, &mut now).is_ok() {
            info!(filter = self.configured, "the configured log filter is in force again");
        }
    }
}

impl LogFilter for Filter {
    fn state(&self) -> LogFilterState {
        let now = self.now.lock();
        LogFilterState {
            filter: now.filter.clone(),
            configured: self.configured.clone(),
            returns_in: now.until.map(|until| until.saturating_duration_since(Instant::now())),
        }
    }

    fn set(&self, filter: &str, lasts: Option<Duration>) -> Result<LogFilterState, String> {
        let filter = if filter.is_empty() { self.configured.as_str() } else { filter };
        if let Some(rule) = log_level_rules(filter).into_iter().next() {
            return Err(rule);
        }
        let until = lasts.map(|lasts| Instant::now() + lasts);
        let n_changes = {
            let mut now = self.now.lock();
            // The new filter may omit all later lines.
            warn!(
                filter,
                previous = now.filter.as_str(),
                lasts = lasts.map(field::debug),
                "the log filter changes"
            );
            self.apply(filter, until, &mut now)?;
            now.n_changes
        };
        if let Some(until) = until {
            tokio::spawn(async move {
                tokio::time::sleep_until(until).await;
                if let Some(filter) = FILTER.get() {
                    filter.end(n_changes);
                }
            });
        }
        Ok(self.state())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        mem,
        sync::mpsc::{Receiver, SyncSender, sync_channel},
    };

    use tracing::dispatcher::{self, Dispatch};

    use super::*;

    /// Standard error whose reader reads nothing until the test permits it. The thread that writes the log calls it, so
    /// it also sets the subscriber of this thread.
    struct Unread {
        subscriber: Receiver<Dispatch>,
        permit: Receiver<()>,
        read: SyncSender<Vec<u8>>,
    }

    impl Write for Unread {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Both channels are closed after the first line.
            if let Ok(subscriber) = self.subscriber.recv() {
                mem::forget(dispatcher::set_default(&subscriber));
                self.permit.recv().map_err(io::Error::other)?;
            }
            self.read.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn number_of_dropped_lines_follows_the_lines_that_were_kept() {
        // Sending the subscriber waits until the thread writes the first line.
        let (subscribe, subscriber) = sync_channel(0);
        let ((allow, permit), (read, reader)) = (sync_channel(1), sync_channel(1024));
        let out = Unread { subscriber, permit, read };
        let writer = LogWriter::start(LogFormat::Json, out).unwrap();
        let layer = lines(LogFormat::Json, writer.clone());
        let log = Dispatch::new(tracing_subscriber::registry().with(layer));
        // With a single dispatcher, tracing rebuilds its caches from the one of the current thread. Another test that
        // changes a filter has none, and would switch the report off.
        let _second = Dispatch::new(tracing_subscriber::registry());
        let filler = "x".repeat(64 << 10);
        dispatcher::with_default(&log, || {
            info!("a line that the reader does not take");
            subscribe.send(log.clone()).unwrap();
            drop(subscribe);
            (0..100).for_each(|n| info!(n, filler, "a long line"));
        });
        allow.send(()).unwrap();
        assert!(writer.flush(Duration::from_secs(60)));
        let text = String::from_utf8(reader.try_iter().flatten().collect()).unwrap();
        let all: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let kept = all.iter().filter(|line| line["message"] == "a long line").count();
        assert_eq!(kept, 63, "the queue has 4 MiB");
        let report = all.last().unwrap();
        assert_eq!((&report["level"], &report["dropped"]), (&"WARN".into(), &37.into()));
        assert_eq!(
            report["message"],
            "lines of the log were dropped, because standard error did not accept them in time"
        );
    }

    #[test]
    fn end_of_a_temporary_filter_does_not_end_a_later_one() {
        let (_layer, handle) = reload::Layer::new(env_filter("info").unwrap());
        let now = Now { filter: "info".to_owned(), until: None, n_changes: 0 };
        let filter = Filter { handle, configured: "info".to_owned(), now: Mutex::new(now) };
        let set = |text: &str| filter.apply(text, None, &mut filter.now.lock()).unwrap();
        let in_force = || filter.state().filter;
        set("debug");
        set("error");
        filter.end(1);
        assert_eq!(in_force(), "error");
        filter.end(2);
        assert_eq!(in_force(), "info");
        assert!(filter.set("debg", None).is_err());
        assert_eq!(in_force(), "info");
    }

    #[test]
    fn libraries_are_quiet_at_info_open_at_debug_and_without_headers_at_trace() {
        let quiet = "openraft=error,h2=warn,hyper=warn,hyper_util=warn,tonic=warn,rustls=warn";
        for (given, complete_filter) in [
            ("info", format!("info,{quiet}")),
            ("INFO", format!("INFO,{quiet}")),
            ("warn", "warn,openraft=error".to_owned()),
            ("debug", "debug".to_owned()),
            ("off", "off".to_owned()),
            ("info,h2=debug", format!("info,h2=debug,{}", quiet.replace("h2=warn,", ""))),
            ("debug,openraft=error", "debug,openraft=error".to_owned()),
            ("chancery_xds=trace", "chancery_xds=trace".to_owned()),
        ] {
            assert_eq!(complete(given), complete_filter, "{given}");
        }
        let detailed = complete("trace");
        assert!(
            detailed.ends_with("h2=debug,hyper=debug,hyper_util=debug,tonic=debug,rustls=debug")
        );
    }
}
