//! The settings of traces.

/// The settings of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address of the receiver: `http://HOST:PORT`.
    pub endpoint: String,
    /// The share of writes that are traced, in percent. The decision of a caller with a trace comes first.
    pub sample_percent: u8,
    /// The attributes of the process, such as `service.name`.
    pub resource: Vec<(String, String)>,
}
