//! The audit log of a replica: who asked for what, from where, and what was decided.
//!
//! [`Audit`] takes an [`Event`], applies the policy, and passes the record to each sink: a file, the standard
//! output, or syslog. Records are JSON lines. Each has a sequence number and the SHA-256 hash of the previous
//! line. [`verify`] checks this chain.
//!
//! Invariants:
//! - A record is one line of printable characters, whatever a client sends.
//! - Each sink has its own chain and its own thread. A sink that is slow or broken does not delay the others.
//! - The queue of a sink is bounded. In mode `async`, a record that finds it full is dropped, and a later
//!   record tells the number of dropped ones. In mode `strict`, [`Audit::record`] fails.
//! - A file is never overwritten. Its chain continues after a restart. An incomplete last line is moved to a
//!   file beside it.
//! - An unusable policy file never replaces a usable policy.
//! - This crate adds nothing to an event. Callers pass only texts that may be public.

mod audit;
mod chain;
mod client_limit;
mod event;
mod file_output;
mod flood_limit;
mod line;
mod metrics;
mod policy;
mod policy_file;
mod recovery;
mod rotation;
mod settings;
mod stdout_output;
mod syslog_output;
mod tail;
mod time;
mod verify;
mod worker;

pub use audit::{Audit, AuditError, NotTaken};
pub use chain::{Hash, Head, HeadError};
pub use event::{Decision, Event, Port, Target, source_text};
pub use line::truncated;
pub use metrics::METRICS;
pub use policy_file::{PolicyError, check_policy_file};
pub use rotation::Rotation;
pub use settings::{Mode, Settings, SinkSettings, SinkSettingsError};
pub use tail::{Follow, TailRecord, last_records};
pub use time::{duration_text, timestamp};
pub use verify::{Problem, ProblemKind, Range, Report, VerifyError, verify};
