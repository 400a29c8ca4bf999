//! The transport messages of `envoy.service.discovery.v3` (Table 3 of the requirements).
//!
//! Strings of a request are copied, as prost does; every message and payload inside one is a slice of
//! the request's bytes. `node` stays undecoded: Envoy puts tens of kilobytes of it into each request
//! and only the first one counts (SOTW-02); [`node::Node`](crate::node::Node) reads it. Fields that
//! are not here are skipped (SVC-19). The v2 messages are wire compatible.

use std::collections::BTreeMap;

use bytes::Bytes;

/// `google.protobuf.Any`, with a payload that is shared.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Any {
    /// What `value` is.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `google.rpc.Status`: why a client rejected a response.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// A gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
    /// More, for programs.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// `ResourceLocator`: a name with parameters.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceLocator {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The parameters.
    #[prost(btree_map = "string, string", tag = "2")]
    pub dynamic_parameters: BTreeMap<String, String>,
}

/// `ControlPlane`: who answers (SVC-20).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControlPlane {
    /// An id of this replica.
    #[prost(string, tag = "1")]
    pub identifier: String,
}

/// `ResourceName`. Its constraints (2) stay undecoded.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceName {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `DynamicParameterConstraints`, encoded.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub dynamic_parameter_constraints: Option<Bytes>,
}

/// `ResourceError`: why one resource can not be had.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceError {
    /// Which.
    #[prost(message, optional, tag = "1")]
    pub resource_name: Option<ResourceName>,
    /// Why.
    #[prost(message, optional, tag = "2")]
    pub error_detail: Option<Status>,
}

/// `DiscoveryRequest`: SotW, from the client.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiscoveryRequest {
    /// The version last accepted.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// `envoy.config.core.v3.Node`, encoded; absent in most requests.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub node: Option<Bytes>,
    /// Everything the client wants of the type; empty may mean all.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// The type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that this one answers.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Present in a NACK, and only there.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
    /// Names with parameters.
    #[prost(message, repeated, tag = "7")]
    pub resource_locators: Vec<ResourceLocator>,
}

/// `DiscoveryResponse`: SotW, from the server.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version of the type.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// Not implemented by anyone; stays false (SVC-21).
    #[prost(bool, tag = "3")]
    pub canary: bool,
    /// The type, as the request named it (SVC-17).
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Names this response on its stream.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Who answers.
    #[prost(message, optional, tag = "6")]
    pub control_plane: Option<ControlPlane>,
    /// Resources that can not be had.
    #[prost(message, repeated, tag = "7")]
    pub resource_errors: Vec<ResourceError>,
}

/// `DeltaDiscoveryRequest`: delta, from the client.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeltaDiscoveryRequest {
    /// `envoy.config.core.v3.Node`, encoded; absent in most requests.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub node: Option<Bytes>,
    /// The type.
    #[prost(string, tag = "2")]
    pub type_url: String,
    /// Names to add.
    #[prost(string, repeated, tag = "3")]
    pub resource_names_subscribe: Vec<String>,
    /// Names to drop.
    #[prost(string, repeated, tag = "4")]
    pub resource_names_unsubscribe: Vec<String>,
    /// What the client holds already, at the start of a stream: name → version.
    #[prost(btree_map = "string, string", tag = "5")]
    pub initial_resource_versions: BTreeMap<String, String>,
    /// The nonce of the response that this one answers.
    #[prost(string, tag = "6")]
    pub response_nonce: String,
    /// Present in a NACK, and only there.
    #[prost(message, optional, tag = "7")]
    pub error_detail: Option<Status>,
    /// Names with parameters to add.
    #[prost(message, repeated, tag = "8")]
    pub resource_locators_subscribe: Vec<ResourceLocator>,
    /// Names with parameters to drop.
    #[prost(message, repeated, tag = "9")]
    pub resource_locators_unsubscribe: Vec<ResourceLocator>,
}

/// `DeltaDiscoveryResponse`: delta, from the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeltaDiscoveryResponse {
    /// The version of the type; for people.
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    /// New and changed resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Resource>,
    /// The type.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// Names this response on its stream.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Names that are gone.
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: Vec<String>,
    /// Who answers.
    #[prost(message, optional, tag = "7")]
    pub control_plane: Option<ControlPlane>,
    /// Names with constraints that are gone.
    #[prost(message, repeated, tag = "8")]
    pub removed_resource_names: Vec<ResourceName>,
    /// Resources that can not be had.
    #[prost(message, repeated, tag = "9")]
    pub resource_errors: Vec<ResourceError>,
}

/// `Resource`: one of a delta response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    /// Its version.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The payload; absent where only the lifetime is renewed or the name does not exist.
    #[prost(message, optional, tag = "2")]
    pub resource: Option<Any>,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Other names of it.
    #[prost(string, repeated, tag = "4")]
    pub aliases: Vec<String>,
    /// Lifetime at the client.
    #[prost(message, optional, tag = "6")]
    pub ttl: Option<prost_types::Duration>,
    /// Whether it may be cached.
    #[prost(message, optional, tag = "7")]
    pub cache_control: Option<CacheControl>,
    /// Its name with constraints.
    #[prost(message, optional, tag = "8")]
    pub resource_name: Option<ResourceName>,
    /// `envoy.config.core.v3.Metadata`, encoded.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub metadata: Option<Bytes>,
}

/// `Resource.CacheControl`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CacheControl {
    /// True if proxies between may not keep it.
    #[prost(bool, tag = "1")]
    pub do_not_cache: bool,
}
