//! The audit log, as the other crates use it.

use std::{
    fmt, io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, timeout},
};
use tracing::{error, info};

use crate::{
    chain::Chain,
    client_limit::{Allowance, ClientLimit},
    event::Event,
    file_output::{FileOutput, Opened},
    flood_limit::FloodLimit,
    line,
    metrics::register,
    policy::Level,
    policy_file::{PolicyError, PolicySource, Reread},
    settings::{Mode, Settings, SinkSettings},
    stdout_output::StdoutOutput,
    syslog_output::SyslogOutput,
    worker::{Entry, Output, Queue, WorkerSettings},
};

/// The interval at which [`Audit::keep_fresh`] checks the policy file and updates the metrics.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why the audit log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy file is unusable.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// A file cannot be opened.
    #[error("cannot open the audit log {}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread for the audit log: {0}")]
    Thread(io::Error),
}

/// No sink took a record in mode `strict`. The caller must refuse the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no sink of the audit log took the record within {0:?} (audit.strict_timeout), and audit.mode is strict; \
     check the sinks, such as for a full disk"
)]
pub struct NotTaken(Duration);

/// The audit log of a replica. Cheap to clone.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Shared>>);

struct Shared {
    mode: Mode,
    policy: PolicySource,
    queues: Vec<Queue>,
    flood_limit: Mutex<FloodLimit>,
    client_limit: Mutex<ClientLimit>,
    oldest_unwritten: Gauge,
}

impl Audit {
    /// Returns an audit log that is off.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Opens the sinks, and starts their threads. Describes the metrics, also without sinks.
    ///
    /// # Errors
    /// Fails if the policy file or a file for records is unusable.
    pub fn open(settings: &Settings) -> Result<Self, AuditError> {
        let oldest_unwritten = register();
        if settings.sinks.is_empty() {
            return Ok(Self::off());
        }
        let policy = PolicySource::open(settings.policy_file.clone())?;
        let queues = settings.sinks.iter().map(|sink| start(sink, settings));
        Ok(Self(Some(Arc::new(Shared {
            mode: settings.mode,
            policy,
            queues: queues.collect::<Result<_, _>>()?,
            flood_limit: Mutex::default(),
            client_limit: Mutex::default(),
            oldest_unwritten,
        }))))
    }

    /// Returns whether an operation must be recorded before it runs, by [`Self::record`].
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| matches!(shared.mode, Mode::Strict { .. }))
    }

    /// Records an event. In mode `strict`, waits until a sink has the record.
    ///
    /// # Errors
    /// Fails in mode `strict` if no sink takes the record in time.
    pub async fn record(&self, event: Event) -> Result<(), NotTaken> {
        let Some(shared) = &self.0 else { return Ok(()) };
        let Mode::Strict { timeout: patience } = shared.mode else {
            self.note(event);
            return Ok(());
        };
        let (sender, taken) = oneshot::channel();
        if !shared.push(&event, Some(sender)) {
            return Ok(());
        }
        // The sender is dropped if no queue has room.
        match timeout(patience, taken).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotTaken(patience)),
        }
    }

    /// Records an event without waiting, also in mode `strict`.
    pub fn note(&self, event: Event) {
        if let Some(shared) = &self.0 {
            shared.push(&event, None);
        }
    }

    /// Records a refusal that anyone who reaches a port can cause. The number of such records per second is
    /// limited, and records tell the number of omitted ones.
    pub fn note_stranger(&self, event: Event) {
        if let Some(shared) = &self.0 {
            shared.admit_stranger(event);
        }
    }

    /// Records a refusal of a client. Besides the limit of [`Self::note_stranger`], each client causes at most one
    /// record per minute for each verb and reason.
    pub fn note_client(&self, event: Event) {
        self.note_limited(event, Allowance::One);
    }

    /// Records an operation without an effect on the cluster, such as a refused one. Besides the limit of
    /// [`Self::note_stranger`], each client causes at most ten records per minute for each verb and reason.
    pub fn note_without_effect(&self, event: Event) {
        self.note_limited(event, Allowance::Several);
    }

    fn note_limited(&self, event: Event, allowance: Allowance) {
        let Some(shared) = &self.0 else { return };
        let admitted = shared.client_limit.lock().admit(event, allowance);
        if let Some(event) = admitted {
            shared.admit_stranger(event);
        }
    }

    /// Checks the policy file every second, and reads it again if it has changed. Updates the metrics. Ends only
    /// if the runtime does.
    pub async fn keep_fresh(self) {
        let Some(shared) = self.0 else { return };
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            shared.update_metrics();
            let overdue = shared.flood_limit.lock().overdue(SystemTime::now());
            for event in &overdue {
                shared.push(event, None);
            }
            let overdue = shared.client_limit.lock().overdue(SystemTime::now());
            for event in overdue {
                shared.admit_stranger(event);
            }
            let shared = Arc::clone(&shared);
            // The file may be on a disk that does not answer.
            if tokio::task::spawn_blocking(move || shared.reread_policy()).await.is_err() {
                return;
            }
        }
    }

    /// Writes what is queued, and ends the threads. Waits at most this time.
    pub async fn close(&self, patience: Duration) {
        let Some(shared) = &self.0 else { return };
        let ended: Vec<_> = shared.queues.iter().filter_map(Queue::stop).collect();
        let all = async {
            for ended in ended {
                // The thread drops the sender when it ends.
                drop(ended.await);
            }
        };
        if timeout(patience, all).await.is_err() {
            error!("the audit log has unwritten records after {patience:?}; they are lost");
        }
    }
}

impl Shared {
    /// Queues the record of an event for each sink. Returns whether the policy wants a record.
    fn push(&self, event: &Event, taken: Option<oneshot::Sender<()>>) -> bool {
        let level = self.policy.level(event);
        if level == Level::None {
            return false;
        }
        self.push_at(level, event, taken);
        true
    }

    fn admit_stranger(&self, event: Event) {
        let admitted = self.flood_limit.lock().admit(event);
        if let Some(event) = admitted {
            self.push(&event, None);
        }
    }

    fn push_at(&self, level: Level, event: &Event, taken: Option<oneshot::Sender<()>>) {
        let entry = Arc::new(Entry::new(line::body(event, level), taken));
        for queue in &self.queues {
            queue.push(&entry);
        }
    }

    fn reread_policy(&self) {
        let event = match self.policy.reread() {
            Reread::Unchanged => return,
            Reread::Changed(hash) => {
                info!("read the changed audit policy");
                Event::internal("audit.policy_changed").detail("sha256", hash.to_string())
            }
            Reread::Unusable(error) => {
                error!(%error, "the audit policy has changed and is unusable; the previous policy stays in force");
                let decision = crate::event::Decision::Failed("unusable");
                Event { decision, ..Event::internal("audit.policy_changed") }
            }
        };
        // No policy may hide a change of the policy.
        self.push_at(Level::Request, &event, None);
    }

    fn update_metrics(&self) {
        let now = SystemTime::now();
        let oldest = self.queues.iter().map(|queue| queue.oldest_unwritten(now)).max();
        self.oldest_unwritten.set(oldest.unwrap_or_default().as_secs_f64());
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.0.as_ref().map(|shared| shared.mode);
        f.debug_tuple("Audit").field(&mode).finish()
    }
}

fn start(sink: &SinkSettings, settings: &Settings) -> Result<Queue, AuditError> {
    let (output, chain, torn): (Box<dyn Output>, _, _) = match sink {
        SinkSettings::File(path) => {
            let Opened { output, chain, torn } = FileOutput::open(path, settings.rotation)
                .map_err(|source| AuditError::File { path: path.clone(), source })?;
            (Box::new(output), chain, torn)
        }
        SinkSettings::Stdout => (Box::new(StdoutOutput::new(io::stdout())), Chain::EMPTY, None),
        SinkSettings::Syslog(path) => {
            (Box::new(SyslogOutput::new(path.clone())), Chain::EMPTY, None)
        }
    };
    let worker = WorkerSettings {
        kind: sink.kind(),
        queue_max: settings.queue_max,
        sync_interval: match sink {
            SinkSettings::File(_) => settings.sync_interval,
            // There is nothing to sync, so that each record is taken at once.
            SinkSettings::Stdout | SinkSettings::Syslog(_) => CHECK_INTERVAL,
        },
    };
    Queue::start(output, chain, torn, worker).map_err(AuditError::Thread)
}

#[cfg(test)]
mod tests;
