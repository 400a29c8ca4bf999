//! Adapters: they tell a server what to publish.

mod chancery;
mod command;

use std::{future::Future, pin::Pin};

pub use chancery::Chancery;
pub use command::Command;

use crate::state::State;

/// The future of [`Adapter::publish`].
pub type Publishing<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// The side of the kit that tells a server what to publish.
pub trait Adapter: Send + Sync {
    /// Replaces everything that one node sees. The future completes when the server serves the state to new streams,
    /// or fails with the reason.
    ///
    /// The server applies the changes of all types together.
    fn publish<'a>(&'a self, state: &'a State) -> Publishing<'a>;

    /// Prepares the server for the first state. Fails if the adapter could not remove later what it creates.
    fn start(&self) -> Publishing<'_> {
        Box::pin(async { Ok(()) })
    }

    /// Returns the reason why the adapter can no longer publish anything.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Removes everything that was published and is still there, after the last case or an error.
    fn finish(&self) -> Publishing<'_> {
        Box::pin(async { Ok(()) })
    }
}
