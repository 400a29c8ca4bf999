//! Transactions: their effects, and the application of prepared ones.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod apply;
mod prepared;
