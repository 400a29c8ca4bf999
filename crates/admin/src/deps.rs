//! The parts of the replica with which the operations of the admin API work, and the state that they read.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use chancery_admission::Validation;
use chancery_audit::Audit;
use chancery_fanout::Fanout;
use chancery_load::LoadReports;
use chancery_mcp::Sources;
use chancery_model::{Revision, State};
use chancery_store::{Answerer, PastError, ReadError, Replica};
use chancery_trace::Tracer;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    AdminError,
    caller::AdminAccess,
    console_paths::ConsoleSettings,
    external::{External, settings::ExternalValidator},
    known_clients::KnownClients,
    log_filter::LogFilter,
    metrics::Metrics,
    probes::{Liveness, RenderMetrics},
    readiness::Readiness,
    recent_nodes::{RecentNodes, RecentNodesSettings},
    references::{ReferenceSettings, SharedIndex},
    wait::Waits,
    wait_progress::ForeignWaits,
    work::Work,
    write_guards::settings::GuardSettings,
};

/// The maximum time for which a read waits for the committed entries.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of answers about clients that are collected at a time. Further requests wait.
const CSDS_ANSWERS_MAX: usize = 2;

/// The maximum number of traced writes that wait for clients at a time. The traces of further ones lack this part.
const TRACED_WAITS_MAX: usize = 16;

/// The maximum number of watches. Further ones are refused.
pub(crate) const WATCHES_MAX: usize = 256;

/// The required freshness of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Everything that had been committed when the request arrived.
    Current,
    /// The present state of this replica.
    Stale,
}

impl Freshness {
    /// Returns the freshness for the field `stale` of a request.
    pub(crate) fn of(stale: bool) -> Self {
        if stale { Self::Stale } else { Self::Current }
    }
}

/// The dependencies of the admin API.
#[derive(Clone)]
pub struct AdminDeps {
    /// The replica's store.
    pub replica: Replica,
    /// The streams of clients.
    pub fanout: Fanout,
    /// Renders the metrics in the text format of Prometheus.
    pub metrics: RenderMetrics,
    /// Whether the event loops turn.
    pub liveness: Liveness,
    /// Whether the replica accepts streams.
    pub readiness: Readiness,
    /// Cancelled when the replica begins to drain. Watches and waits then end.
    pub drain: CancellationToken,
    /// The maximum size of a request, in bytes.
    pub request_bytes_max: u64,
    /// The host names that the HTTP API accepts, in addition to IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The settings of the console; `None` if the port has no console.
    pub console: Option<ConsoleSettings>,
    /// The version of the program.
    pub version: &'static str,
    /// The load reports of clients; `None` if the replica does not serve them.
    pub load_reports: Option<LoadReports>,
    /// The MCP sources.
    pub sources: Sources,
    /// The thresholds of the guards against dangerous writes.
    pub guards: GuardSettings,
    /// The modes of validation of the scopes.
    pub validation: Validation,
    /// The treatment of dangling references.
    pub references: ReferenceSettings,
    /// The external validator, if the operator has configured one.
    pub external: Option<ExternalValidator>,
    /// The settings of access to the port.
    pub access: AdminAccess,
    /// The audit log.
    pub audit: Audit,
    /// The log of the process, if its filter may change.
    pub log: Option<Arc<dyn LogFilter>>,
    /// The traces of writes.
    pub tracer: Tracer,
    /// The list of nodes that were connected recently.
    pub recent_nodes: RecentNodesSettings,
}

impl std::fmt::Debug for AdminDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminDeps")
            .field("request_bytes_max", &self.request_bytes_max)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The parts of the replica with which operations work. All requests share them.
pub(crate) struct Deps {
    pub(crate) replica: Replica,
    pub(crate) fanout: Fanout,
    pub(crate) readiness: Readiness,
    pub(crate) drain: CancellationToken,
    pub(crate) version: &'static str,
    pub(crate) work: Work,
    pub(crate) waits: Waits,
    /// The waits of callers of other replicas.
    pub(crate) foreign_waits: ForeignWaits,
    pub(crate) metrics: Metrics,
    /// Bounds the answers about clients that are collected at a time.
    pub(crate) csds_answers: Arc<Semaphore>,
    pub(crate) load_reports: Option<LoadReports>,
    pub(crate) sources: Sources,
    pub(crate) guards: Arc<GuardSettings>,
    pub(crate) validation: Validation,
    pub(crate) reference_settings: Arc<ReferenceSettings>,
    pub(crate) references: Arc<SharedIndex>,
    pub(crate) clients: KnownClients,
    /// Answers other replicas while the routes exist.
    pub(crate) answerer: Arc<dyn Answerer>,
    pub(crate) external: Option<External>,
    pub(crate) access: AdminAccess,
    pub(crate) audit: Audit,
    pub(crate) log: Option<Arc<dyn LogFilter>>,
    pub(crate) tracer: Tracer,
    pub(crate) recent_nodes: RecentNodes,
    /// Bounds the traced writes that wait for clients at a time.
    pub(crate) traced_waits: Arc<Semaphore>,
    /// Bounds the watches.
    pub(crate) watches: Arc<Semaphore>,
}

impl Deps {
    /// Creates the parts, with what `answerer` returns for them.
    pub(crate) fn new(
        deps: &AdminDeps,
        answerer: impl FnOnce(&Fanout, &Weak<Self>) -> Arc<dyn Answerer>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            replica: deps.replica.clone(),
            fanout: deps.fanout.clone(),
            readiness: deps.readiness.clone(),
            drain: deps.drain.clone(),
            version: deps.version,
            work: Work::new(),
            waits: Waits::default(),
            foreign_waits: ForeignWaits::default(),
            metrics: Metrics::new(),
            csds_answers: Arc::new(Semaphore::new(CSDS_ANSWERS_MAX)),
            load_reports: deps.load_reports.clone(),
            sources: deps.sources.clone(),
            guards: Arc::new(deps.guards.clone()),
            validation: deps.validation.clone(),
            reference_settings: Arc::new(deps.references.clone()),
            references: Arc::default(),
            clients: KnownClients::default(),
            answerer: answerer(&deps.fanout, this),
            external: (deps.external.as_ref())
                .map(|settings| External::new(settings, deps.drain.clone())),
            access: deps.access.clone(),
            audit: deps.audit.clone(),
            log: deps.log.clone(),
            tracer: deps.tracer.clone(),
            recent_nodes: RecentNodes::new(&deps.recent_nodes),
            traced_waits: Arc::new(Semaphore::new(TRACED_WAITS_MAX)),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
        })
    }

    /// Returns the state for a read.
    pub(crate) async fn state(&self, freshness: Freshness) -> Result<Arc<State>, AdminError> {
        self.catch_up(freshness).await?;
        Ok(self.replica.state())
    }

    /// Returns the newest state for a write that was not proposed yet.
    pub(crate) async fn state_to_write(&self) -> Result<Arc<State>, AdminError> {
        self.catch_up_to_write("nothing was written").await?;
        Ok(self.replica.state())
    }

    /// Waits until this replica has the newest state, for a write that was not proposed or was refused. `known` is what
    /// is known about its outcome. Reading a stale state is no alternative.
    pub(crate) async fn catch_up_to_write(&self, known: &str) -> Result<(), AdminError> {
        let current = self.replica.read_barrier(READ_TIMEOUT).await;
        current.map_err(|error| {
            AdminError::Unavailable(format!(
                "{error}; {known}; try again, or write through another replica"
            ))
        })
    }

    /// Checks that a revision exists. Also succeeds if this replica cannot determine the newest revision within `timeout`.
    ///
    /// # Errors
    /// Fails if the revision is later than the newest one.
    pub(crate) async fn check_exists(
        &self,
        revision: Revision,
        timeout: Duration,
    ) -> Result<(), AdminError> {
        if revision <= self.replica.state().revision {
            return Ok(());
        }
        let current = self.replica.read_barrier(timeout.min(READ_TIMEOUT)).await;
        let newest = self.replica.state().revision;
        if current.is_err() || revision <= newest {
            return Ok(());
        }
        Err(PastError::Future { revision, newest }.into())
    }

    /// Waits until the state of this replica has the required freshness.
    pub(crate) async fn catch_up(&self, freshness: Freshness) -> Result<(), AdminError> {
        let read = match freshness {
            Freshness::Stale => self.replica.check_diverged(),
            Freshness::Current => self.replica.read_barrier(READ_TIMEOUT).await,
        };
        read.map_err(|error| {
            AdminError::Unavailable(match error {
                ReadError::Diverged(_) => error.to_string(),
                _ => format!("{error}; --stale (stale=true) reads the state of this replica"),
            })
        })
    }
}
