//! Support for the tests of several crates: counted skips, reserved ports, copies of directories,
//! certificates, signed tokens, processes, and waiting for a state.
//!
//! Linux only, like the product.

mod certificates;
mod copy;
mod jwt;
mod ports;
mod process;
mod skip;
mod wait;

pub use certificates::{Ca, Leaf, add_uri, expire_in};
pub use copy::copy_directory;
pub use jwt::{JwtKey, jwt_message};
pub use ports::{reserve_address, reserve_port};
pub use process::KillOnDrop;
pub use rcgen;
pub use skip::{Lack, skip};
pub use wait::{DEADLINE, eventually};
