//! The pages of the console, as HTML.
//!
//! Each page is a function of messages of the admin API. This crate reads nothing and decides nothing: the admin crate
//! calls the operations, which check the rights, and passes on the answers.
//!
//! Invariants:
//! - `maud` escapes all text of others: names, messages and labels. Only the static files are not escaped.
//! - A page refers to nothing outside of its origin, and has no inline script or style.
//! - A page works without scripts. The script only repeats what a reload shows.

pub mod actions;
mod assets;
pub mod cluster;
pub mod fleet;
mod graph;
pub mod history;
pub mod load;
pub mod mcp;
pub mod node;
pub mod nodes;
mod page;
mod parts;
pub mod problems;
pub mod resolve;
pub mod resource;
pub mod resources;
pub mod sign_in;
mod text;

pub use assets::{Asset, asset};
pub use maud::Markup;
pub use page::{Live, Page, Section, Viewer, failed, foreign_link};
pub use parts::Part;
pub use text::address;
