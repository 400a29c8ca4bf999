//! The errors that end a stream.

use chancery_model::NameError;

/// The kind of a [`ProtocolError`], from which a transport derives its status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request breaks a rule of the protocol.
    InvalidRequest,
    /// The request exceeds a limit.
    LimitExceeded,
}

/// A request after which the session cannot continue. A problem with a single resource never ends a
/// stream (SOTW-110).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A request without a type on an aggregated stream (SVC-09).
    #[error("type_url is empty; on an aggregated stream each request names its type")]
    TypeMissing,
    /// An invalid type URL.
    #[error("type_url: {0}")]
    Type(NameError),
    /// A request for another type on a stream of one type (SVC-08).
    #[error("type_url is {found:?}, but this method serves only {expected:?}")]
    TypeForeign {
        /// The type of the method.
        expected: String,
        /// The type of the request.
        found: String,
    },
    /// A request of another protocol than that of the stream.
    #[error("the request does not match the protocol (SotW, delta or MCP) of this stream")]
    Variant,
    /// A collection that is not served (MCP-26).
    #[error(
        "collection {0:?} is not served here: it is malformed, or not in xds.collections; request a collection such as \
         istio/networking/v1alpha3/virtualservices"
    )]
    Collection(String),
    /// More types than the limit.
    #[error("this stream asks for more than {max} types (types_max)")]
    TypesTooMany {
        /// The limit.
        max: usize,
    },
    /// More names than the limit (SOTW-52).
    #[error("this stream subscribes to {found} names, at most {max} are allowed (names_max)")]
    NamesTooMany {
        /// The number of names with this request.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A name over the length limit (SOTW-52).
    #[error("{0}")]
    Name(NameError),
}

impl ProtocolError {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TypeMissing
            | Self::Type(_)
            | Self::TypeForeign { .. }
            | Self::Variant
            | Self::Collection(_) => ErrorKind::InvalidRequest,
            Self::TypesTooMany { .. } | Self::NamesTooMany { .. } | Self::Name(_) => {
                ErrorKind::LimitExceeded
            }
        }
    }
}
