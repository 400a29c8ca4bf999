//! Reads a report without building it: each part is a slice of the message.

use std::time::Duration;

use bytes::Bytes;
use chancery_model::wire::{Fields, Token, WireError, text};
use chancery_proto::{lrs, node::Locality};
use prost::Message;

/// The maximum number of parts of a report: clusters, localities, endpoints, metrics and categories of
/// dropped requests.
const PARTS_MAX: usize = 65_536;

/// The number of bytes from which a report is large.
const LARGE_BYTES: usize = 4 << 10;

/// The reason why a report is rejected. It ends only its stream (LRS-18).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The bytes are not a `LoadStatsRequest`.
    #[error("malformed load report: {part}: {error}")]
    Malformed {
        /// The part of the report.
        part: &'static str,
        /// The error.
        error: String,
    },
    /// The report has too many parts.
    #[error(
        "a load report has more than {PARTS_MAX} clusters, localities, endpoints, metrics and categories \
         together"
    )]
    TooMany,
}

impl ReportError {
    fn of(part: &'static str) -> impl Fn(WireError) -> Self {
        move |error| Self::Malformed { part, error: error.to_string() }
    }

    fn leaf(part: &'static str) -> impl Fn(prost::DecodeError) -> Self {
        move |error| Self::Malformed { part, error: error.to_string() }
    }
}

/// A checked message of a client.
#[derive(Debug, Clone)]
pub struct Report {
    message: Bytes,
    node: Option<Bytes>,
    /// The number of bytes outside the node.
    len: usize,
}

impl Report {
    /// Reads a `LoadStatsRequest`. Checks only its outer structure: the node, and the places of the
    /// clusters.
    ///
    /// # Errors
    /// Fails if the message is malformed, or has too many parts.
    pub fn new(message: Bytes) -> Result<Self, ReportError> {
        const PART: &str = "LoadStatsRequest";
        let (mut node, mut n_fields, mut len) = (None, 0_usize, message.len());
        for token in tokens(&message) {
            n_fields += 1;
            if n_fields > PARTS_MAX {
                return Err(ReportError::TooMany);
            }
            match token.map_err(ReportError::of(PART))? {
                Token::Bytes { field: 1, content } => {
                    len = len.saturating_sub(content.len());
                    node = Some(message.slice_ref(content));
                }
                Token::Bytes { .. } => {}
                other => expect_unknown(&other, &[1, 2]).map_err(ReportError::of(PART))?,
            }
        }
        Ok(Self { message, node, len })
    }

    /// Returns the encoded node, if the message has one (LRS-06).
    #[must_use]
    pub fn node(&self) -> Option<Bytes> {
        self.node.clone()
    }

    /// Returns whether the message reports no cluster. The first message of a stream does not.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clusters().next().is_none()
    }

    /// Returns whether the report must not be read on a thread that serves streams.
    pub(crate) fn is_large(&self) -> bool {
        self.len >= LARGE_BYTES
    }

    /// Checks all parts.
    pub(crate) fn check(&self) -> Result<(), ReportError> {
        let mut left = PARTS_MAX;
        let mut count = || {
            let rest = left.checked_sub(1).ok_or(ReportError::TooMany)?;
            left = rest;
            Ok::<(), ReportError>(())
        };
        for cluster in self.clusters() {
            count()?;
            let cluster = cluster?;
            for dropped in cluster.dropped() {
                count()?;
                dropped?;
            }
            for locality in cluster.localities() {
                count()?;
                let locality = locality?;
                for metric in locality.metrics() {
                    count()?;
                    metric?;
                }
                for endpoint in locality.endpoints() {
                    count()?;
                    for metric in endpoint?.metrics() {
                        count()?;
                        metric?;
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn clusters(&self) -> impl Iterator<Item = Result<ClusterPart<'_>, ReportError>> {
        messages(&self.message, 2, "cluster_stats").map(|content| ClusterPart::read(content?))
    }
}

/// `ClusterStats` (LRS-10).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClusterPart<'a> {
    pub(crate) name: &'a str,
    pub(crate) service: &'a str,
    pub(crate) dropped: u64,
    /// The length of the period; zero if it is unknown.
    pub(crate) period: Duration,
    content: &'a [u8],
}

impl<'a> ClusterPart<'a> {
    fn read(content: &'a [u8]) -> Result<Self, ReportError> {
        const PART: &str = "cluster_stats";
        let error = ReportError::of(PART);
        let mut part = Self { content, ..Self::default() };
        for token in tokens(content) {
            match token.map_err(&error)? {
                Token::Bytes { field: 1, content } => {
                    part.name = text(1, content).map_err(&error)?;
                }
                Token::Bytes { field: 6, content } => {
                    part.service = text(6, content).map_err(&error)?;
                }
                Token::Bytes { field: 4, content } => {
                    let period = prost_types::Duration::decode(content);
                    let period = period.map_err(ReportError::leaf("load_report_interval"))?;
                    // A negative period is unknown, too.
                    part.period = Duration::try_from(period).unwrap_or_default();
                }
                Token::Varint { field: 3, value } => part.dropped = value,
                Token::Bytes { field: 2 | 5, .. } => {}
                other => expect_unknown(&other, &[1, 2, 3, 4, 5, 6]).map_err(&error)?,
            }
        }
        Ok(part)
    }

    pub(crate) fn localities(
        self,
    ) -> impl Iterator<Item = Result<LocalityPart<'a>, ReportError>> + use<'a> {
        let contents = messages(self.content, 2, "upstream_locality_stats");
        contents.map(|content| LocalityPart::read(content?))
    }

    pub(crate) fn dropped(
        self,
    ) -> impl Iterator<Item = Result<lrs::DroppedRequests, ReportError>> + use<'a> {
        leaves(self.content, 5, "dropped_requests")
    }
}

/// `UpstreamLocalityStats` (LRS-11).
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalityPart<'a> {
    pub(crate) locality: Locality,
    pub(crate) priority: u32,
    pub(crate) issued: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    pub(crate) in_progress: u64,
    pub(crate) active_connections: u64,
    pub(crate) new_connections: u64,
    pub(crate) failed_connections: u64,
    /// The utilization of CPU, of memory, and as the application defines it.
    pub(crate) utilization: [Option<lrs::UnnamedEndpointLoadMetricStats>; 3],
    content: &'a [u8],
}

impl<'a> LocalityPart<'a> {
    fn read(content: &'a [u8]) -> Result<Self, ReportError> {
        const PART: &str = "upstream_locality_stats";
        let error = ReportError::of(PART);
        let mut part = Self { content, ..Self::default() };
        for token in tokens(content) {
            match token.map_err(&error)? {
                Token::Varint { field, value } => match field {
                    2 => part.succeeded = value,
                    3 => part.in_progress = value,
                    4 => part.failed = value,
                    6 => part.priority = u32::try_from(value).unwrap_or(u32::MAX),
                    8 => part.issued = value,
                    9 => part.active_connections = value,
                    10 => part.new_connections = value,
                    11 => part.failed_connections = value,
                    other => expect_unknown(
                        &Token::Varint { field: other, value },
                        &[1, 5, 7, 12, 13, 14],
                    )
                    .map_err(&error)?,
                },
                Token::Bytes { field: 1, content } => {
                    part.locality =
                        Locality::decode(content).map_err(ReportError::leaf("locality"))?;
                }
                Token::Bytes { field: field @ (12..=14), content } => {
                    let metric = lrs::UnnamedEndpointLoadMetricStats::decode(content);
                    let metric = metric.map_err(ReportError::leaf("utilization"))?;
                    let place = usize::try_from(field - 12).unwrap_or_default();
                    part.utilization[place] = Some(metric);
                }
                Token::Bytes { field: 5 | 7, .. } => {}
                other => expect_unknown(&other, &[2, 3, 4, 6, 8, 9, 10, 11]).map_err(&error)?,
            }
        }
        Ok(part)
    }

    pub(crate) fn metrics(
        &self,
    ) -> impl Iterator<Item = Result<lrs::EndpointLoadMetricStats, ReportError>> + use<'a> {
        leaves(self.content, 5, "load_metric_stats")
    }

    pub(crate) fn endpoints(
        &self,
    ) -> impl Iterator<Item = Result<EndpointPart<'a>, ReportError>> + use<'a> {
        let contents = messages(self.content, 7, "upstream_endpoint_stats");
        contents.map(|content| EndpointPart::read(content?))
    }
}

/// `UpstreamEndpointStats` (LRS-17).
#[derive(Debug, Clone, Default)]
pub(crate) struct EndpointPart<'a> {
    /// The address as text.
    pub(crate) address: String,
    pub(crate) issued: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    content: &'a [u8],
}

impl<'a> EndpointPart<'a> {
    fn read(content: &'a [u8]) -> Result<Self, ReportError> {
        const PART: &str = "upstream_endpoint_stats";
        let error = ReportError::of(PART);
        let mut part = Self { content, ..Self::default() };
        for token in tokens(content) {
            match token.map_err(&error)? {
                Token::Varint { field, value } => match field {
                    2 => part.succeeded = value,
                    4 => part.failed = value,
                    7 => part.issued = value,
                    other => expect_unknown(&Token::Varint { field: other, value }, &[1, 5])
                        .map_err(&error)?,
                },
                Token::Bytes { field: 1, content } => {
                    let address = lrs::Address::decode(content);
                    part.address = shown(address.map_err(ReportError::leaf("address"))?);
                }
                Token::Bytes { field: 5, .. } => {}
                other => expect_unknown(&other, &[2, 3, 4, 7]).map_err(&error)?,
            }
        }
        Ok(part)
    }

    pub(crate) fn metrics(
        &self,
    ) -> impl Iterator<Item = Result<lrs::EndpointLoadMetricStats, ReportError>> + use<'a> {
        leaves(self.content, 5, "load_metric_stats")
    }
}

/// Returns `address:port`, the path of a socket, or an empty text.
fn shown(address: lrs::Address) -> String {
    match (address.socket_address, address.pipe) {
        (Some(socket), _) if socket.address.contains(':') => {
            format!("[{}]:{}", socket.address, socket.port_value)
        }
        (Some(socket), _) => format!("{}:{}", socket.address, socket.port_value),
        (None, pipe) => pipe.map(|pipe| pipe.path).unwrap_or_default(),
    }
}

fn tokens(content: &[u8]) -> impl Iterator<Item = Result<Token<'_>, WireError>> {
    let mut fields = Fields::new(0, content.len());
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let token = fields.next(content).transpose();
        is_over = !matches!(token, Some(Ok(_)));
        token
    })
}

/// Returns the contents of a repeated message field.
fn messages<'a>(
    content: &'a [u8],
    field: u32,
    part: &'static str,
) -> impl Iterator<Item = Result<&'a [u8], ReportError>> + use<'a> {
    tokens(content).filter_map(move |token| match token {
        Ok(Token::Bytes { field: found, content }) if found == field => Some(Ok(content)),
        Ok(_) => None,
        Err(error) => Some(Err(ReportError::of(part)(error))),
    })
}

/// Returns the decoded messages of a repeated field without lists.
fn leaves<'a, M: Message + Default>(
    content: &'a [u8],
    field: u32,
    part: &'static str,
) -> impl Iterator<Item = Result<M, ReportError>> + use<'a, M> {
    messages(content, field, part)
        .map(move |content| M::decode(content?).map_err(ReportError::leaf(part)))
}

/// Fails if the token is one of these fields, which have another wire type.
fn expect_unknown(token: &Token<'_>, known: &[u32]) -> Result<(), WireError> {
    match token {
        Token::Varint { field, .. } | Token::Fixed { field } | Token::Bytes { field, .. }
            if known.contains(field) =>
        {
            Err(WireError::Kind(*field))
        }
        _ => Ok(()),
    }
}
