//! The commands that connect to a replica.

mod access;
mod apply;
mod assignments;
mod backup;
mod checked_clients;
mod client;
mod cluster;
mod command;
mod conformance;
mod connector;
mod delete;
mod describe;
mod explain;
mod get;
mod history;
mod import;
pub(super) mod input;
mod lb_policy;
mod left_out;
mod load;
mod manifest;
mod mcp;
mod mirror;
mod node;
mod nodes;
mod only_name;
mod parameters;
mod read;
mod references;
mod stream;
mod tokens;
mod version;
mod write;

pub(crate) use command::Command;
pub(crate) use connector::TlsFlags;
