//! The commands that connect to no server.

mod audit;
mod bootstrap;
mod completions;
mod config;
mod config_flags;
mod context;
mod dev;
mod lint;
mod man;
mod restore;
mod serve;

pub(crate) use audit::Audit;
pub(crate) use bootstrap::Bootstrap;
pub(crate) use completions::Completions;
pub(crate) use config::Config;
pub(crate) use context::ContextCommand;
pub(crate) use dev::Dev;
pub(crate) use lint::Lint;
pub(crate) use man::Man;
pub(crate) use restore::Restore;
pub(crate) use serve::Serve;
