//! Support for the tests of several crates: counted skips, reserved ports, copies of directories.
//!
//! Linux only, like the product.

mod copy;
mod ports;
mod skip;

pub use copy::copy_directory;
pub use ports::{reserve_address, reserve_port};
pub use skip::{Lack, skip};
