//! Tests of whole storage: several modules together, on a directory.

mod ahead;
mod conformance;
mod durability;
mod joining;
mod opening;
mod persister;
mod state;
