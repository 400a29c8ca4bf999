//! The external validator: a command of the operator that checks the resources of each write, such as
//! `envoy --mode validate`.
//!
//! It runs after admission and before replication, on threads for blocking work, and holds no lock. Only the
//! configuration names the command. The server limits the number of concurrent runs, their time, their memory
//! and the length of their text. It kills the process group at the end, at the deadline, when the client leaves,
//! and when the server stops.

mod files;
mod input;
mod run;
pub(crate) mod settings;
mod stderr_tail;

use std::{collections::BTreeMap, sync::Arc};

use chancery_admission::{Problem, Validation, ValidationMode};
use chancery_model::{ResourceKey, ScopeName, Transaction};
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::AdminError;
use settings::{ExternalValidator, Resource};

/// The maximum number of concurrent runs. Further writes wait, for at most the time of a run.
const RUNS_MAX: usize = 2;
/// The maximum number of runs for a write. A write that needs more is not checked.
const WRITE_RUNS_MAX: usize = 100;
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

    /// Runs the command on the resources of each scope of a transaction that is validated, first on those whose mode
    /// is `enforce`. Returns the findings that do not refuse the transaction. A run that cannot check them is the last
    /// one.
    pub(crate) async fn check(
        &self,
        transaction: &Transaction,
        validation: &Validation,
    ) -> Result<Vec<Problem>, AdminError> {
        let problem = |text: String| Problem {
            rule: format!("the external validator {text}"),
            id: RULE.to_owned(),
            ..Problem::default()
        };
        let scopes = scopes(transaction);
        let mut runs: Vec<_> = (scopes.iter())
            .map(|(scope, names)| (validation.mode(scope), scope, names))
            .filter(|(mode, ..)| *mode != ValidationMode::Off)
            .flat_map(|(mode, scope, names)| {
                (0..n_runs(names)).map(move |n| (mode, scope, names, n))
            })
            .collect();
        runs.sort_by_key(|(mode, ..)| *mode != ValidationMode::Enforce);
        let n_runs = runs.len();
        let mut findings = Vec::new();
        for (mode, scope, names, n) in runs {
            let is_enforced = mode == ValidationMode::Enforce;
            let judged = match n_runs {
                ..=WRITE_RUNS_MAX => self.run(input(names, n)).await,
                _ => Err(format!("it needs {n_runs} runs, more than {WRITE_RUNS_MAX}; split it")),
            };
            match judged {
                Ok(None) => {}
                Ok(Some(rejection)) => {
                    let found =
                        format!("rejects the resources of scope {:?}: {rejection}", scope.as_str());
                    if is_enforced {
                        return Err(vec![crate::error::problem(problem(found))].into());
                    }
                    findings.push(problem(found));
                }
                Err(reason) if self.settings.required && is_enforced => {
                    return Err(AdminError::Unavailable(format!(
                        "nothing has been written: the external validator did not check the write: {reason}"
                    )));
                }
                Err(reason) => {
                    findings.push(problem(format!("did not check the write: {reason}")));
                    break;
                }
            }
        }
        Ok(findings)
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

/// The resources of a scope by the name that clients request. Several with one name are variants.
type Names = BTreeMap<ResourceKey, Vec<Resource>>;

fn scopes(transaction: &Transaction) -> BTreeMap<&ScopeName, Names> {
    let mut scopes = BTreeMap::<_, Names>::new();
    for upsert in &transaction.upserts {
        let draft = &upsert.draft;
        let name = draft.key.to_base();
        let resource = (draft.key.type_url.clone(), draft.body.clone());
        scopes.entry(&upsert.scope).or_default().entry(name).or_default().push(resource);
    }
    scopes
}

/// Returns the number of runs for a scope: the largest number of variants of a name.
fn n_runs(names: &Names) -> usize {
    names.values().map(Vec::len).max().unwrap_or_default()
}

/// Returns the input of run `n` for a scope: all names, each with one variant.
fn input(names: &Names, n: usize) -> Vec<Resource> {
    names.values().filter_map(|it| it.get(n).or(it.first()).cloned()).collect()
}
