//! Runs cases.

use std::{future::Future, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Instant};

use futures::{FutureExt as _, StreamExt as _, stream};

use crate::{
    case::Case,
    ctx::{Ctx, Target},
    log::Log,
    outcome::{ADAPTER, Failed, Stop},
    report::{Entry, Report, Verdict},
};

/// The maximum duration of a case, in units of [`Target::timeout`].
const WAITS_MAX: u32 = 6;

/// Runs cases, at most `jobs` at the same time. When `interrupted` completes, no further case starts. When the adapter
/// can no longer publish anything, the run ends at once.
pub async fn run(
    target: impl Into<Arc<Target>>,
    cases: Vec<Case>,
    jobs: usize,
    interrupted: impl Future<Output = ()>,
) -> Report {
    let start = Instant::now();
    let target = target.into();
    let n_cases = cases.len();
    let running = stream::iter(cases.iter().enumerate())
        .take_until(interrupted)
        .map(|(number, case)| {
            let target = target.clone();
            async move { (number, run_case(target, case, number).await) }
        })
        .buffer_unordered(jobs.max(1));
    let mut running = pin!(running);
    let mut done: Vec<(usize, Entry)> = Vec::new();
    while target.adapter.failure().is_none()
        && let Some(ended) = running.next().await
    {
        done.push(ended);
    }
    done.sort_unstable_by_key(|(number, _)| *number);
    let leftover = target.adapter.finish().await.err();
    Report {
        entries: done.into_iter().map(|(_, entry)| entry).collect(),
        n_selected: n_cases,
        leftover,
        adapter_failure: target.adapter.failure(),
        duration: start.elapsed(),
    }
}

async fn run_case(target: Arc<Target>, case: &Case, number: usize) -> Entry {
    let start = Instant::now();
    let log = Log::default();
    let ctx = Ctx::new(target.clone(), case.service, number, log.clone());
    let state = ctx.state();
    let at_most = target.timeout * WAITS_MAX;
    // A case that panics must not keep the others from removing their resources.
    let checked = AssertUnwindSafe((case.check)(ctx)).catch_unwind();
    let outcome = tokio::time::timeout(at_most, checked).await;
    let mut verdict = match outcome {
        Ok(Ok(Ok(()))) => Verdict::Passed,
        // The server is not the cause.
        Ok(Ok(Err(Stop::Failed(failed)))) if failed.requirement == ADAPTER => {
            Verdict::Undecided(failed)
        }
        Ok(Ok(Err(Stop::Failed(failed)))) => Verdict::Failed(failed),
        Ok(Ok(Err(Stop::Skipped(reason)))) => Verdict::Skipped(reason),
        Ok(Err(_)) => Verdict::Failed(violated(case, "the case has panicked".to_owned())),
        Err(_) => {
            Verdict::Failed(violated(case, format!("the case has not ended within {at_most:?}")))
        }
    };
    let mut state = state.lock().await;
    state.clear();
    if let Err(error) = target.adapter.publish(&state).await
        && matches!(verdict, Verdict::Passed)
    {
        verdict = Verdict::Undecided(Failed {
            requirement: ADAPTER.to_owned(),
            expected: "the adapter removes the resources of the case".to_owned(),
            observed: error,
        });
    }
    let log = match verdict {
        Verdict::Failed(_) | Verdict::Undecided(_) => log.take(),
        Verdict::Passed | Verdict::Skipped(_) => Vec::new(),
    };
    Entry {
        name: case.name.clone(),
        requirements: case.requirements,
        basis: case.basis,
        shows: case.shows,
        verdict,
        duration: start.elapsed(),
        log,
    }
}

fn violated(case: &Case, observed: String) -> Failed {
    let requirement = case.requirements.first().copied().unwrap_or_default().to_owned();
    Failed { requirement, expected: case.shows.to_owned(), observed }
}
