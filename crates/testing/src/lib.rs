//! What the tests of several crates share: skips that are counted, and ports that stay reserved.
//!
//! Linux only, like the product.

mod ports;
mod skip;

pub use ports::{reserve_address, reserve_port};
pub use skip::{Lack, skip};
