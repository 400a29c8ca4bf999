//! The report: one line per step on standard output.

use std::{io::Write as _, time::Instant};

use anyhow::{Error, Result};

/// The steps of one client.
#[derive(Debug)]
pub(super) struct Steps {
    client: String,
    n_failed: usize,
}

impl Steps {
    pub(super) fn new(client: &str) -> Self {
        Self { client: client.to_owned(), n_failed: 0 }
    }

    /// Returns the number of failed steps.
    pub(super) fn n_failed(&self) -> usize {
        self.n_failed
    }

    /// Runs a step that later steps need, and prints its result.
    pub(super) fn run<T>(&mut self, what: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = step()?;
        self.line("ok    ", &format!("{what} ({:.1} s)", start.elapsed().as_secs_f32()));
        Ok(result)
    }

    /// Runs a step that no other step needs, and prints its result.
    pub(super) fn check(&mut self, what: &str, step: impl FnOnce() -> Result<()>) {
        if let Err(error) = self.run(what, step) {
            self.fail(what, &error);
        }
    }

    /// Prints and counts a failure.
    pub(super) fn fail(&mut self, what: &str, error: &Error) {
        self.n_failed += 1;
        self.line("FAILED", &format!("{what}: {error:#}"));
    }

    fn line(&self, result: &str, text: &str) {
        // A closed output does not stop the command.
        drop(writeln!(std::io::stdout().lock(), "{result} {}: {text}", self.client));
    }
}
