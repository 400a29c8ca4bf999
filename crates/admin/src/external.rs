//! The external validator: a command of the operator that checks the resources of each write, such as
//! `envoy --mode validate`.
//!
//! It runs after admission and before replication, on threads for blocking work, and holds no lock. Only the
//! configuration names the command. The number of concurrent runs, their time, their memory and the length of
//! what they say are bounded. At the end or at the deadline, the server kills the process group.

mod input;
mod run;
pub(crate) mod settings;

use std::sync::Arc;

use chancery_admission::{Problem, Validation, ValidationMode};
use chancery_model::Transaction;
use tokio::{sync::Semaphore, time::timeout};

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
}

impl External {
    pub(crate) fn new(settings: &ExternalValidator) -> Self {
        Self { settings: Arc::new(settings.clone()), runs: Arc::new(Semaphore::new(RUNS_MAX)) }
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
        let problem = |rule: String| Problem { rule, id: RULE.to_owned(), ..Problem::default() };
        match self.run(resources).await {
            Ok(None) => Ok(Vec::new()),
            Ok(Some(rule)) if is_enforced => Err(vec![crate::error::problem(problem(rule))].into()),
            Ok(Some(rule)) => Ok(vec![problem(rule)]),
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
        let job = move || {
            let judged = run::run(&settings, &resources);
            drop(permit);
            judged
        };
        let done = tokio::task::spawn_blocking(job).await;
        done.unwrap_or_else(|_| Err("the run has panicked".to_owned()))
    }
}
