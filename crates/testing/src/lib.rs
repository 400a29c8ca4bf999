//! Support for the tests of several crates: counted skips and reserved ports.
//!
//! Linux only, like the product.

mod ports;
mod skip;

pub use ports::{reserve_address, reserve_port};
pub use skip::{Lack, skip};
