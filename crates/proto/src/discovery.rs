//! The transport messages of `envoy.service.discovery.v3` (Table 3 of the requirements).
//!
//! The decoder copies the strings of a request. Embedded payloads are slices of the request's bytes.
//! The field `node` stays encoded, because Envoy may send tens of kilobytes with each request and
//! only the first node counts (SOTW-02). [`node::Node`](crate::node::Node) decodes it. The decoder
//! skips all other fields (SVC-19). The v2 messages are wire compatible.

use std::collections::BTreeMap;

use bytes::Bytes;

/// `google.protobuf.Any`, with a shared payload.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Any {
    /// The type of the message in `value`.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `google.rpc.Status`: the reason why a client rejected a response.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// The gRPC status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The error text for people.
    #[prost(string, tag = "2")]
    pub message: String,
    /// The error details for programs.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// `ResourceLocator`: a name with parameters.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceLocator {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The dynamic parameters of the client, by key.
    #[prost(btree_map = "string, string", tag = "2")]
    pub dynamic_parameters: BTreeMap<String, String>,
}

/// `ControlPlane`: the server that sends a response (SVC-20).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ControlPlane {
    /// The id of the replica.
    #[prost(string, tag = "1")]
    pub identifier: String,
}

/// `ResourceName`. The constraints (field 2) stay encoded.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceName {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `DynamicParameterConstraints`, encoded.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub dynamic_parameter_constraints: Option<Bytes>,
}

/// `ResourceError`: the reason why one resource is unavailable.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ResourceError {
    /// The name of the resource.
    #[prost(message, optional, tag = "1")]
    pub resource_name: Option<ResourceName>,
    /// The reason.
    #[prost(message, optional, tag = "2")]
    pub error_detail: Option<Status>,
}

/// `DiscoveryRequest`: a SotW request of a client.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiscoveryRequest {
    /// The last version that the client accepted.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// `envoy.config.core.v3.Node`, encoded; absent in most requests.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub node: Option<Bytes>,
    /// The names of all resources of the type that the client requests. An empty list may request
    /// all resources.
    #[prost(string, repeated, tag = "3")]
    pub resource_names: Vec<String>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that this request answers.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// The error of a NACK; absent in other requests.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
    /// The requested names with parameters.
    #[prost(message, repeated, tag = "7")]
    pub resource_locators: Vec<ResourceLocator>,
}

/// `DiscoveryResponse`: a SotW response of the server.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DiscoveryResponse {
    /// The version of the type.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources, each wrapped in an `Any` of the type of the response.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Any>,
    /// The canary flag, always false because no client implements it (SVC-21).
    #[prost(bool, tag = "3")]
    pub canary: bool,
    /// The type, spelled as in the request (SVC-17).
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce, which identifies this response on its stream.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// The server that sends the response.
    #[prost(message, optional, tag = "6")]
    pub control_plane: Option<ControlPlane>,
    /// The errors of unavailable resources.
    #[prost(message, repeated, tag = "7")]
    pub resource_errors: Vec<ResourceError>,
}

/// `DeltaDiscoveryRequest`: a delta request of a client.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DeltaDiscoveryRequest {
    /// `envoy.config.core.v3.Node`, encoded; absent in most requests.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub node: Option<Bytes>,
    /// The type of the resources.
    #[prost(string, tag = "2")]
    pub type_url: String,
    /// The names to add to the subscription.
    #[prost(string, repeated, tag = "3")]
    pub resource_names_subscribe: Vec<String>,
    /// The names to remove from the subscription.
    #[prost(string, repeated, tag = "4")]
    pub resource_names_unsubscribe: Vec<String>,
    /// The versions by name of the resources that the client holds at the start of the stream.
    #[prost(btree_map = "string, string", tag = "5")]
    pub initial_resource_versions: BTreeMap<String, String>,
    /// The nonce of the response that this request answers.
    #[prost(string, tag = "6")]
    pub response_nonce: String,
    /// The error of a NACK; absent in other requests.
    #[prost(message, optional, tag = "7")]
    pub error_detail: Option<Status>,
    /// The names with parameters to add to the subscription.
    #[prost(message, repeated, tag = "8")]
    pub resource_locators_subscribe: Vec<ResourceLocator>,
    /// The names with parameters to remove from the subscription.
    #[prost(message, repeated, tag = "9")]
    pub resource_locators_unsubscribe: Vec<ResourceLocator>,
}

/// `DeltaDiscoveryResponse`: a delta response of the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeltaDiscoveryResponse {
    /// The version of the type, for debugging.
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    /// The new and changed resources.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<Resource>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce, which identifies this response on its stream.
    #[prost(string, tag = "5")]
    pub nonce: String,
    /// Names that are gone.
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: Vec<String>,
    /// The server that sends the response.
    #[prost(message, optional, tag = "7")]
    pub control_plane: Option<ControlPlane>,
    /// Names with constraints that are gone.
    #[prost(message, repeated, tag = "8")]
    pub removed_resource_names: Vec<ResourceName>,
    /// The errors of unavailable resources.
    #[prost(message, repeated, tag = "9")]
    pub resource_errors: Vec<ResourceError>,
}

/// `Resource`: one resource of a delta response.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    /// The version of the resource.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The payload. It is absent if the resource does not exist, or if the response only renews the
    /// lifetime.
    #[prost(message, optional, tag = "2")]
    pub resource: Option<Any>,
    /// The name of the resource.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The alternative names of the resource.
    #[prost(string, repeated, tag = "4")]
    pub aliases: Vec<String>,
    /// The lifetime of the resource at the client.
    #[prost(message, optional, tag = "6")]
    pub ttl: Option<prost_types::Duration>,
    /// The caching rule for xDS proxies.
    #[prost(message, optional, tag = "7")]
    pub cache_control: Option<CacheControl>,
    /// The name of the resource with its constraints.
    #[prost(message, optional, tag = "8")]
    pub resource_name: Option<ResourceName>,
    /// `envoy.config.core.v3.Metadata`, encoded.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub metadata: Option<Bytes>,
}

/// `Resource.CacheControl`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CacheControl {
    /// Whether xDS proxies must not cache the resource.
    #[prost(bool, tag = "1")]
    pub do_not_cache: bool,
}
