//! A span, and its form in OTLP.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1::{self as otlp, span::SpanKind, status::StatusCode},
};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    /// A string, such as the name of a scope.
    Text(String),
    /// A whole number without a sign.
    Number(u64),
}

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The handling of a request.
    Server,
    /// A part of the handling of a request.
    Internal,
}

/// A part of a trace that has ended.
#[derive(Debug, Clone)]
pub struct Span {
    /// The name, from a closed set.
    pub name: &'static str,
    /// Whether the span is the handling of a request, or a part of it.
    pub kind: Kind,
    /// The wall-clock time at which the part began.
    pub start: SystemTime,
    /// The wall-clock time at which the part ended.
    pub end: SystemTime,
    /// The attributes, whose names are from a closed set.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// The reason if the part failed.
    pub error: Option<String>,
}

impl Span {
    /// Creates a part of a request without attributes.
    #[must_use]
    pub fn internal(name: &'static str, start: SystemTime, end: SystemTime) -> Self {
        Self { name, kind: Kind::Internal, start, end, attributes: Vec::new(), error: None }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Attribute>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }
}

/// The position of a span in its trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    pub(crate) parent: Option<[u8; 8]>,
}

/// Returns a span in the form of OTLP.
pub(crate) fn to_otlp(place: Place, span: Span) -> otlp::Span {
    let kind = match span.kind {
        Kind::Server => SpanKind::Server,
        Kind::Internal => SpanKind::Internal,
    };
    let status = span.error.map(|message| otlp::Status { message, code: StatusCode::Error.into() });
    otlp::Span {
        trace_id: place.trace_id.to_vec(),
        span_id: place.span_id.to_vec(),
        parent_span_id: place.parent.map(|id| id.to_vec()).unwrap_or_default(),
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        // A clock that was set back must not make a span end before its start.
        end_time_unix_nano: nanos(span.end.max(span.start)),
        attributes: span.attributes.into_iter().map(|(key, value)| pair(key, value)).collect(),
        status,
        ..otlp::Span::default()
    }
}

pub(crate) fn pair(key: &str, value: Attribute) -> KeyValue {
    let value = match value {
        Attribute::Text(text) => any_value::Value::StringValue(text),
        Attribute::Number(n) => any_value::Value::IntValue(i64::try_from(n).unwrap_or(i64::MAX)),
    };
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}
