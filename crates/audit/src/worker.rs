//! The thread of a sink: takes records from a bounded queue, chains them, and writes them.
//!
//! Invariants:
//! - A record that the sink does not take stays first in line, and the thread tries again.
//! - A record tells the number of records that were dropped before it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tracing::{error, info};

use crate::{
    chain::{Chain, Head},
    event::Event,
    line,
    metrics::SinkMetrics,
    policy::Level,
    time,
};

/// The time between two attempts to write a record.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The minimum time between two messages in the log about the same sink.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The maximum number of records between two syncs, if each record must be synced.
const BATCH_MAX: usize = 256;

/// The destination of a sink's lines.
pub(crate) trait Output: Send {
    /// Appends a line with its line break, entirely or not at all. `seq` is its sequence number.
    fn append(&mut self, seq: u64, line: &[u8]) -> io::Result<()>;

    /// Writes all lines to the disk. Returns an event to record, if somebody has changed what was written.
    fn sync(&mut self) -> io::Result<Option<Event>>;
}

/// A record on its way to the sinks.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The JSON object of the event.
    body: String,
    /// The time when the record was queued, in milliseconds since 1970.
    queued_ms: u64,
    /// Notified by the first sink that has the record.
    taken: Mutex<Option<oneshot::Sender<()>>>,
}

impl Entry {
    /// Creates an entry. `taken` is notified by the first sink that has the record.
    pub(crate) fn new(body: String, taken: Option<oneshot::Sender<()>>) -> Self {
        let queued_ms = time::millis(SystemTime::now());
        Self { body, queued_ms, taken: Mutex::new(taken) }
    }

    fn on_taken(&self) {
        if let Some(taken) = self.taken.lock().take() {
            // The caller may have given up.
            let _gave_up = taken.send(());
        }
    }
}

enum Message {
    Record(Arc<Entry>),
    Stop,
}

/// The state that a sink's thread shares with its queue.
#[derive(Debug, Default)]
struct Shared {
    /// The number of dropped records that no record has told yet.
    n_dropped: AtomicU64,
    /// The time when the oldest unwritten record was queued, in milliseconds since 1970; 0 if all are written.
    oldest_ms: AtomicU64,
    stop: AtomicBool,
}

/// The queue of a sink.
pub(crate) struct Queue {
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
    metrics: SinkMetrics,
    /// Closed when the thread has ended.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

/// The settings of a sink's thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerSettings {
    pub(crate) kind: &'static str,
    pub(crate) queue_max: usize,
    pub(crate) sync_interval: Duration,
}

impl Queue {
    /// Starts the thread of a sink. `first` is recorded before all other events.
    pub(crate) fn start(
        output: Box<dyn Output>,
        chain: Chain,
        first: Option<Event>,
        settings: WorkerSettings,
    ) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(settings.queue_max);
        let (ended_sender, ended) = oneshot::channel();
        let shared = Arc::<Shared>::default();
        let metrics = SinkMetrics::new(settings.kind);
        let worker = Worker {
            output,
            chain,
            settings,
            shared: Arc::clone(&shared),
            metrics: metrics.clone(),
            unsynced_since: None,
            unsynced: Vec::new(),
            last_log: None,
        };
        let name = format!("audit-{}", settings.kind);
        thread::Builder::new().name(name).spawn(move || {
            worker.run(&receiver, first);
            drop(ended_sender);
        })?;
        Ok(Self { sender, shared, metrics, ended: Mutex::new(Some(ended)) })
    }

    /// Queues a record. Returns whether there was room for it.
    pub(crate) fn push(&self, entry: &Arc<Entry>) -> bool {
        match self.sender.try_send(Message::Record(Arc::clone(entry))) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.shared.n_dropped.fetch_add(1, Ordering::Relaxed);
                self.metrics.dropped.increment(1);
                false
            }
        }
    }

    /// Returns the age of the oldest unwritten record.
    pub(crate) fn oldest_unwritten(&self, now: SystemTime) -> Duration {
        match self.shared.oldest_ms.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(time::millis(now).saturating_sub(since)),
        }
    }

    /// Asks the thread to write what is queued and to end.
    pub(crate) fn stop(&self) -> Option<oneshot::Receiver<()>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        // A thread with a full queue sees the flag.
        drop(self.sender.try_send(Message::Stop));
        self.ended.lock().take()
    }
}

/// The thread of a sink.
struct Worker {
    output: Box<dyn Output>,
    chain: Chain,
    settings: WorkerSettings,
    shared: Arc<Shared>,
    metrics: SinkMetrics,
    /// The time of the oldest line that is not synced.
    unsynced_since: Option<Instant>,
    /// The records that wait for a sync.
    unsynced: Vec<Arc<Entry>>,
    /// The time of the last message in the log.
    last_log: Option<Instant>,
}

impl Worker {
    fn run(mut self, receiver: &Receiver<Message>, first: Option<Event>) {
        if let Some(event) = first {
            self.write_event(&event);
        }
        loop {
            if self.is_sync_due() {
                self.sync();
            }
            let message = match receiver.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => match self.wait(receiver) {
                    Ok(Some(message)) => message,
                    Ok(None) => continue,
                    Err(End) => break,
                },
            };
            if let Message::Record(entry) = message {
                self.on_record(entry);
            }
        }
        self.sync();
        let head = self.chain.head().map(|head: Head| head.to_string()).unwrap_or_default();
        info!(sink = self.settings.kind, head, "the audit log has ended");
    }

    /// Waits for the next message, at most until lines must be synced.
    fn wait(&mut self, receiver: &Receiver<Message>) -> Result<Option<Message>, End> {
        let is_stopping = self.shared.stop.load(Ordering::Relaxed);
        let is_sync_due = self.settings.sync_interval.is_zero() && self.unsynced_since.is_some();
        if is_sync_due && !is_stopping {
            self.sync();
            return Ok(None);
        }
        if is_stopping {
            return Err(End);
        }
        self.shared.oldest_ms.store(0, Ordering::Relaxed);
        let Some(since) = self.unsynced_since else {
            return receiver.recv().map(Some).map_err(|_| End);
        };
        match receiver.recv_timeout(self.settings.sync_interval.saturating_sub(since.elapsed())) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(End),
        }
    }

    fn is_sync_due(&self) -> bool {
        if self.settings.sync_interval.is_zero() {
            self.unsynced.len() >= BATCH_MAX
        } else {
            self.unsynced_since.is_some_and(|since| since.elapsed() >= self.settings.sync_interval)
        }
    }

    fn on_record(&mut self, entry: Arc<Entry>) {
        if self.unsynced.is_empty() {
            self.shared.oldest_ms.store(entry.queued_ms, Ordering::Relaxed);
        }
        let n_dropped = self.shared.n_dropped.swap(0, Ordering::Relaxed);
        if n_dropped > 0
            && !self.write_event(&Event::internal("audit.dropped").detail("records", n_dropped))
        {
            self.shared.n_dropped.fetch_add(n_dropped, Ordering::Relaxed);
        }
        if !self.write(&entry.body) {
            self.shared.n_dropped.fetch_add(1, Ordering::Relaxed);
            self.metrics.dropped.increment(1);
        } else if self.settings.sync_interval.is_zero() {
            self.unsynced.push(entry);
        } else {
            entry.on_taken();
        }
    }

    fn write_event(&mut self, event: &Event) -> bool {
        self.write(&line::body(event, Level::Request))
    }

    /// Writes a record. Tries again until it is written, or the thread must end.
    fn write(&mut self, body: &str) -> bool {
        loop {
            let line = self.chain.line(body);
            let Err(error) = self.output.append(self.chain.next_seq, &line) else {
                self.chain.append(&line);
                self.metrics.written.increment(1);
                self.unsynced_since.get_or_insert_with(Instant::now);
                return true;
            };
            self.metrics.failed.increment(1);
            self.log(&error, "cannot write an audit record; trying again");
            if self.shared.stop.load(Ordering::Relaxed) {
                return false;
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn sync(&mut self) {
        if self.unsynced_since.is_none() {
            return;
        }
        match self.output.sync() {
            Ok(event) => {
                self.unsynced_since = None;
                self.unsynced.drain(..).for_each(|entry| entry.on_taken());
                if let Some(event) = event {
                    self.write_event(&event);
                }
            }
            Err(error) => {
                self.metrics.sync_failed.increment(1);
                self.log(&error, "cannot sync the audit log; trying again");
                self.unsynced_since = Some(Instant::now());
                if self.settings.sync_interval.is_zero() {
                    thread::sleep(RETRY_INTERVAL);
                }
            }
        }
    }

    /// Logs a failure, at a limited rate.
    fn log(&mut self, error: &io::Error, text: &str) {
        if self.last_log.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
            error!(sink = self.settings.kind, %error, "{text}");
            self.last_log = Some(Instant::now());
        }
    }
}

/// The thread must end.
struct End;

#[cfg(test)]
mod tests;
