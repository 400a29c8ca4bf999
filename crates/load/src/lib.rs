//! Load reports of clients (LRS): which clusters a replica asks for, and the sums of the reports.
//!
//! [`LoadReports`] belongs to one replica. Reports are not replicated (LRS-19). A [`Reporter`] belongs to one
//! stream.
//!
//! Invariants:
//! - Reading a report allocates nothing that grows with it. A report is checked whole before any of it
//!   counts.
//! - The sums have a bounded size ([`Limits`]). What does not fit is counted.
//! - Only one report at a time changes the sums, in the order of arrival. A large one does so on a
//!   blocking thread, so it delays only other reports.

#[doc(hidden)]
pub mod fuzz;
mod metrics;
mod node_share;
mod report;
mod reporter;
mod settings;
mod show;
mod stats;
mod streams;
mod sum_limits;
mod table;

pub use metrics::METRICS;
pub use node_share::Limits;
pub use report::{Report, ReportError};
pub use reporter::{LoadReports, Reporter};
pub use settings::{Clusters, INTERVAL_MAX, INTERVAL_MIN, Settings, SettingsError};
pub use show::{Query, show_settings};
