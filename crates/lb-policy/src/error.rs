//! The error of a conversion: the place in the input, and the reason.

use std::fmt;

/// The reason why gRPC clients reject a load balancing policy, with the place in the input.
///
/// `Display` formats one line, such as `policies[0].RingHash.hash_function: …`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertError {
    /// The path of the field. Fields of messages in an `Any` follow the short name of the message.
    /// Fields of the converted JSON follow the name of the gRPC policy.
    pub path: String,
    /// The rule that the field violates.
    pub reason: Reason,
}

/// The kinds of conversion errors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// No entry of a list of policies has a type that the client supports.
    NoSupportedPolicy {
        /// The types of the entries, in order.
        types: Vec<String>,
    },
    /// The policies are nested too deeply.
    TooDeep {
        /// The maximum number of levels.
        max: usize,
    },
    /// The bytes of a message are malformed or too long.
    Malformed(String),
    /// A converter rejects a value of the xDS message.
    Invalid(String),
    /// The LB policy registry of the client rejects the converted configuration.
    Config(String),
}

/// The maximum number of types that an error message lists.
const TYPES_SHOWN_MAX: usize = 10;

impl ConvertError {
    /// Creates an error of a converter for an invalid value.
    pub fn invalid(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: Reason::Invalid(reason.into()) }
    }

    pub(crate) fn config(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: Reason::Config(reason.into()) }
    }

    /// Puts a field in front of the path.
    pub(crate) fn under(self, parent: &str) -> Self {
        let path = if self.path.is_empty() { parent.to_owned() } else { join(parent, &self.path) };
        Self { path, ..self }
    }

    /// Returns whether decoding stopped at the maximum depth of a message.
    pub(crate) fn is_recursion_limit(&self) -> bool {
        // prost shows the kind of an error only as text.
        matches!(&self.reason, Reason::Malformed(text) if text.ends_with("recursion limit reached"))
    }
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        match &self.reason {
            Reason::NoSupportedPolicy { types } if types.is_empty() => {
                f.write_str("the list of policies is empty; add a policy that gRPC supports")
            }
            Reason::NoSupportedPolicy { types } => {
                let shown: Vec<&str> =
                    types.iter().take(TYPES_SHOWN_MAX).map(String::as_str).collect();
                write!(f, "gRPC supports none of the policies: {}", shown.join(", "))?;
                match types.len().saturating_sub(TYPES_SHOWN_MAX) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Reason::TooDeep { max } => write!(f, "more than {max} levels of nested policies"),
            Reason::Malformed(text) | Reason::Invalid(text) | Reason::Config(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for ConvertError {}

/// Joins two parts of a path.
pub(crate) fn join(parent: &str, field: &str) -> String {
    match (parent, field.starts_with('[')) {
        ("", _) => field.to_owned(),
        (_, true) => format!("{parent}{field}"),
        (_, false) => format!("{parent}.{field}"),
    }
}
