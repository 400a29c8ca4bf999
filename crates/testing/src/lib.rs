//! Support for the tests of several crates: counted skips, reserved ports, copies of directories,
//! certificates, signed tokens.
//!
//! Linux only, like the product.

mod certificates;
mod copy;
mod jwt;
mod ports;
mod skip;

pub use certificates::{Ca, Leaf, add_uri, expire_in};
pub use copy::copy_directory;
pub use jwt::{JwtKey, jwt_message};
pub use ports::{reserve_address, reserve_port};
pub use rcgen;
pub use skip::{Lack, skip};
