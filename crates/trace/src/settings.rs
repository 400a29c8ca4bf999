//! The settings of traces.

/// The settings of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address of the receiver: `http://HOST:PORT`.
    pub endpoint: String,
    /// The percentage of writes that are traced. If the caller has a trace, the sampling flag of its trace decides instead.
    pub sample_percent: u8,
    /// The attributes of the process, such as `service.name`.
    pub resource: Vec<(String, String)>,
}
