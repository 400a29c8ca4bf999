//! The steps that all clients have in common.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{replica::Replica, steps::Steps};
use crate::proc;

/// The time limit for a change to arrive.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// The answer while a client has no configuration.
pub(super) const NOTHING: &str = "nothing";

/// A change of the configuration, and the answer to a request after it.
pub(super) struct Change<'a> {
    pub(super) publish: &'a dyn Fn(&Replica) -> Result<()>,
    pub(super) answer: &'a str,
}

/// The changes of a scenario.
pub(super) struct Changes<'a> {
    /// Published before the client starts.
    pub(super) first: Change<'a>,
    pub(super) update: Change<'a>,
    pub(super) removal: Change<'a>,
}

impl Changes<'_> {
    /// Checks the changes with a running client, and then a restart of the replica. `ask` sends a request.
    pub(super) fn check(
        &self,
        steps: &mut Steps,
        replica: &mut Replica,
        mut ask: impl FnMut() -> Result<String>,
    ) -> Result<()> {
        let first = self.first.answer;
        steps.run(&step("first configuration", first), || wait(first, &mut ask))?;
        let changes =
            [("update", &self.update), ("removal", &self.removal), ("addition", &self.first)];
        for (what, change) in changes {
            steps.run(&step(what, change.answer), || {
                (change.publish)(replica)?;
                wait(change.answer, &mut ask)
            })?;
        }
        steps.run("the traffic continues without the replica, and after its restart", || {
            let stored = replica.command(&["get"])?;
            replica.stop()?;
            stays(first, &mut ask)?;
            replica.resume()?;
            ensure!(replica.command(&["get"])? == stored, "the restarted replica has other data");
            stays(first, &mut ask)
        })?;
        steps.run(&step("update after the restart", self.update.answer), || {
            (self.update.publish)(replica)?;
            wait(self.update.answer, &mut ask)
        })
    }
}

fn step(what: &str, answer: &str) -> String {
    format!("{what}: {answer}")
}

/// Waits until a request has this answer.
pub(super) fn wait(answer: &str, ask: &mut impl FnMut() -> Result<String>) -> Result<()> {
    let mut last = String::new();
    proc::eventually(LIMIT, &format!("not {answer:?}"), || {
        last = ask()?;
        Ok((last == answer).then_some(()))
    })
    .with_context(|| format!("the answer is {last:?}"))
}

/// Checks that requests have this answer for two seconds.
fn stays(answer: &str, ask: &mut impl FnMut() -> Result<String>) -> Result<()> {
    for _ in 0..20 {
        let found = ask()?;
        ensure!(found == answer, "the answer is {found:?} instead of {answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
