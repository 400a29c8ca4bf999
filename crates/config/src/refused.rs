//! The problems of a configuration.
//!
//! Invariant: the work and the memory for a report have a bound, also for a file in which every line is wrong.

use super::ConfigError;

/// The maximum number of problems that are listed. Further problems are counted.
pub(crate) const PROBLEMS_MAX: usize = 100;

/// A rejected configuration.
#[derive(Debug, Default)]
pub struct Refused {
    /// The first problems.
    pub errors: Vec<ConfigError>,
    /// The number of problems that are not in `errors`.
    pub n_more: usize,
    /// Findings that are not errors.
    pub warnings: Vec<String>,
}

impl Refused {
    /// Adds a problem. Calls `error` only for a problem that is listed.
    pub(crate) fn add(&mut self, error: impl FnOnce() -> ConfigError) {
        if self.errors.len() < PROBLEMS_MAX { self.errors.push(error()) } else { self.n_more += 1 }
    }

    /// Returns the number of all problems.
    pub fn n_problems(&self) -> u64 {
        (self.errors.len() + self.n_more) as u64
    }

    /// Returns a line for each problem that is listed, and one about the others.
    pub fn lines(&self) -> Vec<String> {
        let more = match self.n_more {
            0 => None,
            1 => Some("the configuration has 1 more problem; correct those above first".to_owned()),
            n => {
                Some(format!("the configuration has {n} more problems; correct those above first"))
            }
        };
        self.errors.iter().map(ToString::to_string).chain(more).collect()
    }
}
