//! A part of a bundle.

use serde_json::Value;

/// The maximum size of a part in bytes.
pub(super) const PART_BYTES_MAX: usize = 8 << 20;

/// A part of the archive.
#[derive(Clone)]
pub(super) struct Part {
    /// The name of its file.
    pub(super) name: String,
    /// The content, or the reason why it is missing.
    pub(super) content: Result<Vec<u8>, String>,
}

impl Part {
    pub(super) fn new(name: impl Into<String>, content: Result<Vec<u8>, String>) -> Self {
        Self { name: name.into(), content }
    }

    pub(super) fn json(name: impl Into<String>, value: Result<Value, String>) -> Self {
        Self::new(name, value.map(|value| format!("{value:#}\n").into_bytes()))
    }
}
