//! Why a stream is ended.

use chancery_model::NameError;

/// The gRPC status code that belongs to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// `INVALID_ARGUMENT`.
    InvalidArgument,
    /// `RESOURCE_EXHAUSTED`.
    ResourceExhausted,
}

/// A request that no session can go on after. Trouble with one resource is never one (SOTW-110).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An aggregated stream has a request without type (SVC-09).
    #[error("type_url is empty; on an aggregated stream each request names its type")]
    TypeMissing,
    /// A type URL that could not be one.
    #[error("type_url: {0}")]
    Type(NameError),
    /// A stream of one type has a request for another (SVC-08).
    #[error("type_url is {found:?}, but this method serves only {expected:?}")]
    TypeForeign {
        /// The type of the method.
        expected: String,
        /// The type of the request.
        found: String,
    },
    /// A delta request on a SotW stream or the reverse.
    #[error("the request is not of the protocol variant of this stream")]
    Variant,
    /// Too many types.
    #[error("this stream asks for more than {max} types (types_max)")]
    TypesTooMany {
        /// The limit.
        max: usize,
    },
    /// Too many names (SOTW-52).
    #[error("this stream subscribes to {found} names, at most {max} are allowed (names_max)")]
    NamesTooMany {
        /// How many it would be.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A name over the limit (SOTW-52).
    #[error("{0}")]
    Name(NameError),
}

impl ProtocolError {
    /// The gRPC status code.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TypeMissing | Self::Type(_) | Self::TypeForeign { .. } | Self::Variant => {
                ErrorCode::InvalidArgument
            }
            Self::TypesTooMany { .. } | Self::NamesTooMany { .. } | Self::Name(_) => {
                ErrorCode::ResourceExhausted
            }
        }
    }
}
