//! Thin xDS clients, and a load test for the fleet of any xDS server.
//!
//! Many clients fit in one thread, and none decodes what it receives: [`scan`] reads the few fields that an answer needs.
//! [`run`](run::run) connects a fleet ([`Plan`]), writes at given times, measures when each client has each write, and
//! compares all clients with new ones at the end.

mod client;
mod compare;
mod correctness;
mod html;
mod marker;
mod measures;
mod names;
mod plan;
mod report;
mod run;
pub mod scan;
mod state;
pub mod stream;
mod writer;

pub use compare::compare;
pub use correctness::Correctness;
pub use html::html;
pub use plan::{ClientKind, Phase, Plan, Protocol, SCENARIOS};
pub use report::{Generator, Percentiles, PhaseReport, Report, Second};
pub use run::{Identities, Settings, run};
pub use writer::{CommandWriter, Writer};
