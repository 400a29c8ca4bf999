//! The encodings of files with one `DiscoveryResponse` each, as Envoy's filesystem subscriptions read them.

/// The encoding of a file with a `DiscoveryResponse`. Envoy chooses it by the extension of the file name
/// (FS-02, FS-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileEncoding {
    /// JSON with the extension `.json`.
    Json,
    /// YAML with the extension `.yaml`. Envoy may not know `.yml`, which is accepted as input.
    Yaml,
    /// The wire format with the extension `.pb`.
    Binary,
    /// The protobuf text format with the extension `.pb_text`.
    Text,
}

impl FileEncoding {
    /// Returns the encoding of a file with this extension; `None` for the extension of other files.
    #[must_use]
    pub fn of_extension(extension: &str) -> Option<Self> {
        match extension {
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "pb" => Some(Self::Binary),
            "pb_text" => Some(Self::Text),
            _ => None,
        }
    }

    /// Returns the extension by which Envoy recognizes the encoding.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Binary => "pb",
            Self::Text => "pb_text",
        }
    }
}
