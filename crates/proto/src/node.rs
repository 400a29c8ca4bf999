//! `envoy.config.core.v3.Node`: who a client says it is.
//!
//! Only what assignments, limits and people look at; the 60 KB list of extensions that Envoy sends is
//! skipped, not kept. v2's `build_version` (5) is here because it is wire compatible.

use prost_types::Struct;

/// `envoy.config.core.v3.Locality`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Locality {
    /// Region.
    #[prost(string, tag = "1")]
    pub region: String,
    /// Zone.
    #[prost(string, tag = "2")]
    pub zone: String,
    /// Part of the zone.
    #[prost(string, tag = "3")]
    pub sub_zone: String,
}

/// `envoy.type.v3.SemanticVersion`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SemanticVersion {
    /// Major number.
    #[prost(uint32, tag = "1")]
    pub major_number: u32,
    /// Minor number.
    #[prost(uint32, tag = "2")]
    pub minor_number: u32,
    /// Patch.
    #[prost(uint32, tag = "3")]
    pub patch: u32,
}

/// `envoy.config.core.v3.BuildVersion`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BuildVersion {
    /// The release.
    #[prost(message, optional, tag = "1")]
    pub version: Option<SemanticVersion>,
}

/// `envoy.config.core.v3.Node`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Node {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The cluster that it is of.
    #[prost(string, tag = "2")]
    pub cluster: String,
    /// Anything its operator gave it.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
    /// Where it runs.
    #[prost(message, optional, tag = "4")]
    pub locality: Option<Locality>,
    /// v2 only: the version of the build.
    #[prost(string, tag = "5")]
    pub build_version: String,
    /// The program: `envoy`, `gRPC Go`.
    #[prost(string, tag = "6")]
    pub user_agent_name: String,
    /// Its version.
    #[prost(oneof = "UserAgentVersion", tags = "7, 8")]
    pub user_agent_version: Option<UserAgentVersion>,
    /// What it can do beyond the protocol.
    #[prost(string, repeated, tag = "10")]
    pub client_features: Vec<String>,
}

/// `Node.user_agent_version_type`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum UserAgentVersion {
    /// Free text.
    #[prost(string, tag = "7")]
    Text(String),
    /// A structured one.
    #[prost(message, tag = "8")]
    Build(BuildVersion),
}
