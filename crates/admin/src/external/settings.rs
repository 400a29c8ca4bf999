//! The settings of the external validator.

use std::time::Duration;

use bytes::Bytes;
use chancery_model::TypeUrl;

/// The form of the input of the external validator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalInput {
    /// A bootstrap of Envoy in JSON, with the resources as static ones.
    #[default]
    Bootstrap,
    /// A manifest in JSON, with all resources.
    Manifest,
}

/// The external validator, as the operator configured it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalValidator {
    /// The program and its arguments. `{file}` stands for the path of the input, which is also the standard
    /// input.
    pub command: Vec<String>,
    /// The form of the input.
    pub input: ExternalInput,
    /// The maximum time of a run.
    pub timeout: Duration,
    /// The maximum data memory of each process of a run, in bytes.
    pub memory_max: u64,
    /// Whether a write is refused if the command does not check it.
    pub required: bool,
}

/// A resource of a write.
pub(super) type Resource = (TypeUrl, Bytes);
