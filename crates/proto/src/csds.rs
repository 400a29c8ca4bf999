//! `envoy.service.status.v3`: the messages of the client status discovery service (CSDS).
//!
//! The requests have the matchers that the server implements. The decoder skips the content of the
//! others, but not their presence, so that the server can reject them. The responses have the fields
//! that a management server fills (CSDS-05 to -08).

use bytes::Bytes;

use crate::{discovery::Any, node::Node};

/// The full name of the service.
pub const SERVICE: &str = "envoy.service.status.v3.ClientStatusDiscoveryService";

/// `ClientStatusRequest`: the question for the clients that matchers select.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientStatusRequest {
    /// The clients that the request selects: those that any matcher matches.
    #[prost(message, repeated, tag = "1")]
    pub node_matchers: Vec<NodeMatcher>,
    /// `envoy.config.core.v3.Node` of the caller, encoded. The server ignores it.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub node: Option<Bytes>,
    /// Whether the response has no resource contents.
    #[prost(bool, tag = "3")]
    pub exclude_resource_contents: bool,
}

/// `envoy.type.matcher.v3.NodeMatcher`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeMatcher {
    /// The matcher of `Node.id`.
    #[prost(message, optional, tag = "1")]
    pub node_id: Option<StringMatcher>,
    /// The matchers of `Node.metadata`. All of them must match.
    #[prost(message, repeated, tag = "2")]
    pub node_metadatas: Vec<StructMatcher>,
}

/// `envoy.type.matcher.v3.StringMatcher`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StringMatcher {
    /// The comparison to make.
    #[prost(oneof = "StringPattern", tags = "1, 2, 3, 5, 7, 8")]
    pub pattern: Option<StringPattern>,
    /// Whether the case of ASCII letters is ignored.
    #[prost(bool, tag = "6")]
    pub ignore_case: bool,
}

/// `StringMatcher.match_pattern`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum StringPattern {
    /// The whole text.
    #[prost(string, tag = "1")]
    Exact(String),
    /// The begin of the text.
    #[prost(string, tag = "2")]
    Prefix(String),
    /// The end of the text.
    #[prost(string, tag = "3")]
    Suffix(String),
    /// `RegexMatcher`, encoded.
    #[prost(bytes = "bytes", tag = "5")]
    SafeRegex(Bytes),
    /// A part of the text.
    #[prost(string, tag = "7")]
    Contains(String),
    /// `xds.core.v3.TypedExtensionConfig`, encoded.
    #[prost(bytes = "bytes", tag = "8")]
    Custom(Bytes),
}

/// `envoy.type.matcher.v3.StructMatcher`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StructMatcher {
    /// The path to the value.
    #[prost(message, repeated, tag = "2")]
    pub path: Vec<PathSegment>,
    /// The matcher of the value.
    #[prost(message, optional, tag = "3")]
    pub value: Option<ValueMatcher>,
}

/// `StructMatcher.PathSegment`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PathSegment {
    /// The key of a field.
    #[prost(string, tag = "1")]
    pub key: String,
}

/// `envoy.type.matcher.v3.ValueMatcher`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueMatcher {
    /// The comparison to make.
    #[prost(oneof = "ValuePattern", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub pattern: Option<ValuePattern>,
}

/// `ValueMatcher.match_pattern`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ValuePattern {
    /// `NullMatch`, encoded.
    #[prost(bytes = "bytes", tag = "1")]
    Null(Bytes),
    /// A number.
    #[prost(message, tag = "2")]
    Double(DoubleMatcher),
    /// A text that matches this matcher.
    #[prost(message, tag = "3")]
    String(StringMatcher),
    /// A boolean value.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// Whether the value is present.
    #[prost(bool, tag = "5")]
    Present(bool),
    /// `ListMatcher`, encoded.
    #[prost(bytes = "bytes", tag = "6")]
    List(Bytes),
    /// Any of several matchers.
    #[prost(message, tag = "7")]
    Or(OrMatcher),
}

/// `envoy.type.matcher.v3.OrMatcher`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OrMatcher {
    /// The matchers, of which one must match.
    #[prost(message, repeated, tag = "1")]
    pub value_matchers: Vec<ValueMatcher>,
}

/// `envoy.type.matcher.v3.DoubleMatcher`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct DoubleMatcher {
    /// The comparison to make.
    #[prost(oneof = "DoublePattern", tags = "1, 2")]
    pub pattern: Option<DoublePattern>,
}

/// `DoubleMatcher.match_pattern`.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub enum DoublePattern {
    /// A number inside of this range.
    #[prost(message, tag = "1")]
    Range(DoubleRange),
    /// A number.
    #[prost(double, tag = "2")]
    Exact(f64),
}

/// `envoy.type.v3.DoubleRange`: from `start`, and less than `end`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct DoubleRange {
    /// The first number of the range.
    #[prost(double, tag = "1")]
    pub start: f64,
    /// The first number after the range.
    #[prost(double, tag = "2")]
    pub end: f64,
}

/// `ClientStatusResponse`: the states of the selected clients.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientStatusResponse {
    /// The selected clients.
    #[prost(message, repeated, tag = "1")]
    pub config: Vec<ClientConfig>,
}

/// `ClientConfig`: one client, or one stream of a client.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClientConfig {
    /// The node of the client.
    #[prost(message, optional, tag = "1")]
    pub node: Option<Node>,
    /// The resources.
    #[prost(message, repeated, tag = "3")]
    pub generic_xds_configs: Vec<GenericXdsConfig>,
    /// The stream of the client.
    #[prost(string, tag = "4")]
    pub client_scope: String,
}

/// `ClientConfig.GenericXdsConfig`: one resource of a client. `client_status` (7) is never set,
/// because only clients know it (CSDS-08).
#[derive(Clone, PartialEq, prost::Message)]
pub struct GenericXdsConfig {
    /// The type of the resource.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The name of the resource.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The version under which the client knows the resource (CSDS-10).
    #[prost(string, tag = "3")]
    pub version_info: String,
    /// The content of the resource.
    #[prost(message, optional, tag = "4")]
    pub xds_config: Option<Any>,
    /// The time at which the resource was last sent, if it is known.
    #[prost(message, optional, tag = "5")]
    pub last_updated: Option<prost_types::Timestamp>,
    /// The state of the resource.
    #[prost(enumeration = "ConfigStatus", tag = "6")]
    pub config_status: i32,
    /// The rejection, if the client rejects the resource, or the error that the client is sent for a
    /// name that does not exist.
    #[prost(message, optional, tag = "8")]
    pub error_state: Option<UpdateFailureState>,
}

/// `envoy.admin.v3.UpdateFailureState`: the rejection of a resource. Its content is in
/// [`GenericXdsConfig::xds_config`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UpdateFailureState {
    /// The time of the rejection.
    #[prost(message, optional, tag = "2")]
    pub last_update_attempt: Option<prost_types::Timestamp>,
    /// The client's message.
    #[prost(string, tag = "3")]
    pub details: String,
    /// The rejected version.
    #[prost(string, tag = "4")]
    pub version_info: String,
}

/// `ConfigStatus`: the state of a resource, as a management server knows it (CSDS-07).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ConfigStatus {
    /// There is no information. The client subscribes to a name that does not exist (CSDS-12).
    Unknown = 0,
    /// The resource was sent and acknowledged.
    Synced = 1,
    /// The resource was not sent.
    NotSent = 2,
    /// The resource was sent and not answered.
    Stale = 3,
    /// The client has rejected the resource.
    Error = 4,
}
