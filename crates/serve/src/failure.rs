//! The failure of a replica.

use std::fmt;

/// The reason for which a replica does not start, or ends although nobody stops it: one line for an operator.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    pub(crate) fn new(reason: impl fmt::Display) -> Self {
        Self(reason.to_string().replace('\n', "; "))
    }
}
