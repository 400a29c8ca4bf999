//! The findings of a run, for people and for programs.

use std::{fmt, io::Write as _};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use crate::host::Host;

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// A measured value with its limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Gate {
    pub(crate) what: &'static str,
    pub(crate) found: String,
    pub(crate) limit: String,
    pub(crate) holds: bool,
}

/// The findings of a command.
#[derive(Debug)]
pub(crate) struct Findings {
    /// The text for people, without the gates.
    pub(crate) text: String,
    /// The data for programs, without the gates.
    pub(crate) data: serde_json::Value,
    pub(crate) gates: Vec<Gate>,
}

impl Gate {
    /// A gate that holds if nothing was found.
    pub(crate) fn none(what: &'static str, found: u64) -> Self {
        Self { what, found: found.to_string(), limit: "0".to_owned(), holds: found == 0 }
    }

    /// A gate that holds if the value is at most `limit`.
    pub(crate) fn at_most(what: &'static str, found: f64, limit: f64) -> Self {
        let (holds, found) = (found <= limit, format!("{found:.3}"));
        Self { what, found, limit: format!("at most {limit:.3}"), holds }
    }

    /// A gate that holds if the value is at least `limit`.
    pub(crate) fn at_least(what: &'static str, found: f64, limit: f64) -> Self {
        let (holds, found) = (found >= limit, format!("{found:.3}"));
        Self { what, found, limit: format!("at least {limit:.3}"), holds }
    }

    /// A gate that holds if the value is greater than `limit`.
    pub(crate) fn above(what: &'static str, found: f64, limit: f64) -> Self {
        let (holds, found) = (found > limit, format!("{found:.3}"));
        Self { what, found, limit: format!("above {limit:.3}"), holds }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "holds " } else { "BROKEN" };
        write!(f, "{verdict}  {}: {} ({})", self.what, self.found, self.limit)
    }
}

impl Findings {
    /// Prints the findings. Returns whether all gates hold.
    pub(crate) fn print(&self, format: Format, command: &str, host: &Host) -> Result<bool> {
        let holds = self.gates.iter().all(|gate| gate.holds);
        let mut out = std::io::stdout().lock();
        match format {
            Format::Json => {
                let report = json!({
                    "command": command,
                    "host": host,
                    "findings": self.data,
                    "gates": self.gates,
                    "holds": holds,
                });
                writeln!(out, "{report:#}")?;
            }
            Format::Text => {
                writeln!(out, "{command}\n{host}\n\n{}\n", self.text.trim_end())?;
                for gate in &self.gates {
                    writeln!(out, "{gate}")?;
                }
            }
        }
        Ok(holds)
    }
}

/// Prints progress to the standard error.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        // A closed standard error must not stop the run.
        drop(writeln!(std::io::stderr().lock(), $($arg)*));
    }};
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_holds_at_its_limit_and_not_beyond() {
        assert!(Gate::at_most("x", 1.25, 1.25).holds && !Gate::at_most("x", 1.26, 1.25).holds);
        assert!(Gate::above("x", 1.1, 1.0).holds && !Gate::above("x", 1.0, 1.0).holds);
        assert!(Gate::at_least("x", 3.0, 3.0).holds && !Gate::at_least("x", 2.9, 3.0).holds);
        assert!(!Gate::at_least("x", f64::NAN, 1.0).holds);
        assert!(!Gate::at_most("x", f64::NAN, 1.0).holds);
        assert!(Gate::none("x", 0).holds && !Gate::none("x", 1).holds);
        assert_eq!(Gate::none("lost", 2).to_string(), "BROKEN  lost: 2 (0)");
    }
}
