//! The external validator: a command of the operator that checks the resources of each write, such as
//! `envoy --mode validate`.
//!
//! It runs after admission and before replication, on threads for blocking work, and holds no lock. Only the
//! configuration names the command. The number of concurrent runs, their time, their memory and the length of
//! what they say are bounded. The server kills the process group at the end, at the deadline, when the client
//! leaves, and when the server stops.

mod files;
mod input;
mod run;
mod said;
pub(crate) mod settings;

use std::sync::Arc;

use chancery_admission::{Problem, Validation, ValidationMode};
use chancery_model::Transaction;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::AdminError;
use settings::{ExternalValidator, Resource};

/// The maximum number of concurrent runs. Further writes wait, for at most the time of a run.
const RUNS_MAX: usize = 2;
/// The ID of the findings.
const RULE: &str = "external";

/// The external validator with its limits. A clone is cheap.
#[derive(Debug, Clone)]
pub(crate) struct External {
    settings: Arc<ExternalValidator>,
    runs: Arc<Semaphore>,
    /// Cancelled when the replica begins to drain. After that, no command runs.
    drain: CancellationToken,
}

impl External {
    pub(crate) fn new(settings: &ExternalValidator, drain: CancellationToken) -> Self {
        files::remove_stale(&std::env::temp_dir());
        let runs = Arc::new(Semaphore::new(RUNS_MAX));
        Self { settings: Arc::new(settings.clone()), runs, drain }
    }

    /// Runs the command on the resources of a transaction, except those of scopes that are not validated.
    /// Returns the findings that do not refuse the transaction.
    pub(crate) async fn check(
        &self,
        transaction: &Transaction,
        validation: &Validation,
    ) -> Result<Vec<Problem>, AdminError> {
        let mut is_enforced = false;
        let mut resources: Vec<Resource> = Vec::new();
        for upsert in &transaction.upserts {
            let mode = validation.mode(&upsert.scope);
            is_enforced |= mode == ValidationMode::Enforce;
            if mode != ValidationMode::Off {
                let draft = &upsert.draft;
                resources.push((draft.key.type_url.clone(), draft.body.clone()));
            }
        }
        if resources.is_empty() {
            return Ok(Vec::new());
        }
        let problem = |text: String| Problem {
            rule: format!("the external validator {text}"),
            id: RULE.to_owned(),
            ..Problem::default()
        };
        let rejects = |said: String| problem(format!("rejects the resources: {said}"));
        match self.run(resources).await {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(said)) if is_enforced => {
                Err(vec![crate::error::problem(rejects(said))].into())
            }
            Ok(Some(said)) => Ok(vec![rejects(said)]),
            Err(reason) if self.settings.required && is_enforced => {
                Err(AdminError::Unavailable(format!(
                    "nothing has been written: the external validator did not check the write: {reason}"
                )))
            }
            Err(reason) => Ok(vec![problem(format!("did not check the write: {reason}"))]),
        }
    }

    /// Returns the reason why the command rejects the resources, or an error if it did not check them.
    async fn run(&self, resources: Vec<Resource>) -> Result<Option<String>, String> {
        let limit = self.settings.timeout;
        let permit = timeout(limit, Arc::clone(&self.runs).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(format!("{RUNS_MAX} other runs did not end within {limit:?}"));
        };
        let settings = Arc::clone(&self.settings);
        let stop = self.drain.child_token();
        // A run whose client has left stops.
        let _awaited = stop.clone().drop_guard();
        let job = move || {
            let judged = run::run(&settings, &resources, &stop);
            drop(permit);
            judged
        };
        let done = tokio::task::spawn_blocking(job).await;
        done.unwrap_or_else(|_| Err("the run has panicked".to_owned()))
    }
}
