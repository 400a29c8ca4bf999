//! The reasons for rejections.

/// The code of a NACK for invalid content.
const INVALID_ARGUMENT: i32 = 3;
/// The code of a NACK for a held deletion (FAILED_PRECONDITION). No other NACK has it.
pub(crate) const HELD: i32 = 9;
/// The code of a NACK for an unknown collection.
pub(super) const UNIMPLEMENTED: i32 = 12;

/// The reason why a message is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The gRPC code.
    pub code: i32,
    /// The reason.
    pub text: String,
}

// === impl Failure ===

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self { code: INVALID_ARGUMENT, text: text.into() }
    }
}
