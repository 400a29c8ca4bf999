//! `envoy.config.core.v3.Node`: the identity that a client reports.
//!
//! The messages have only the fields that assignments, limits and people use. The decoder skips
//! Envoy's list of extensions, which has about 60 KB. `build_version` (5) of v2 is wire compatible
//! and therefore present.

use std::collections::BTreeMap;

use prost_types::Struct;

/// `envoy.config.core.v3.Locality`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Locality {
    /// The region, such as `eu-west-1`.
    #[prost(string, tag = "1")]
    pub region: String,
    /// The zone in the region.
    #[prost(string, tag = "2")]
    pub zone: String,
    /// The part of the zone.
    #[prost(string, tag = "3")]
    pub sub_zone: String,
}

/// `envoy.type.v3.SemanticVersion`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SemanticVersion {
    /// The major version number.
    #[prost(uint32, tag = "1")]
    pub major_number: u32,
    /// The minor version number.
    #[prost(uint32, tag = "2")]
    pub minor_number: u32,
    /// The patch number.
    #[prost(uint32, tag = "3")]
    pub patch: u32,
}

/// `envoy.config.core.v3.BuildVersion`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BuildVersion {
    /// The version of the release.
    #[prost(message, optional, tag = "1")]
    pub version: Option<SemanticVersion>,
}

/// `xds.core.v3.ContextParams`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ContextParams {
    /// The context parameters of a structured name, by key.
    #[prost(btree_map = "string, string", tag = "1")]
    pub params: BTreeMap<String, String>,
}

/// `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// The id of the node.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The cluster of the node.
    #[prost(string, tag = "2")]
    pub cluster: String,
    /// The metadata that the node's operator configured.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
    /// The location of the node.
    #[prost(message, optional, tag = "4")]
    pub locality: Option<Locality>,
    /// The version of the build, in v2 only.
    #[prost(string, tag = "5")]
    pub build_version: String,
    /// The name of the client program, such as `envoy` or `gRPC Go`.
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    /// The version of the client program.
    #[prost(oneof = "UserAgentVersion", tags = "7, 8")]
    pub user_agent_version: Option<UserAgentVersion>,
    /// The optional features that the client supports.
    #[prost(string, repeated, tag = "10")]
    pub client_features: Vec<String>,
    /// The dynamic parameters by type URL.
    #[prost(btree_map = "string, message", tag = "12")]
    pub dynamic_parameters: BTreeMap<String, ContextParams>,
}

/// `Node.user_agent_version_type`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum UserAgentVersion {
    /// A version as free text.
    #[prost(string, tag = "7")]
    Text(String),
    /// A structured version.
    #[prost(message, tag = "8")]
    Build(BuildVersion),
}
