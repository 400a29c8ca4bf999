//! Requests, reduced to the fields that the protocol needs.

use chancery_model::{Incarnation, Revision, TypeUrl, TypeVersion};

use crate::{NameList, VersionList};

/// The protocol of a stream: one of the two variants of xDS, or MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Delta (incremental).
    Delta,
    /// The Mesh Configuration Protocol: the client is a sink of collections (MCP-01).
    Mcp,
}

impl Protocol {
    /// Returns the name of the protocol for people: `sotw`, `delta` or `mcp`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sotw => "sotw",
            Self::Delta => "delta",
            Self::Mcp => "mcp",
        }
    }
}

/// The variant and type of a stream, given by its gRPC method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamKind {
    /// The variant.
    pub protocol: Protocol,
    /// The type of the stream; `None` for an aggregated stream.
    pub type_url: Option<TypeUrl>,
}

/// `google.rpc.Status` in a NACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorDetail {
    /// The code. Any code means a NACK, even 0 (SOTW-20).
    pub code: i32,
    /// The text, which is informational only (SOTW-30).
    pub message: String,
}

/// `envoy.service.discovery.v3.DiscoveryRequest`, without the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SotwRequest {
    /// `type_url`; may be empty on a stream of one type (SVC-07).
    pub type_url: String,
    /// `version_info`.
    pub version_info: String,
    /// `resource_names`: the whole subscription (SOTW-40).
    pub resource_names: NameList,
    /// `response_nonce`.
    pub response_nonce: String,
    /// `error_detail`: present only in a NACK.
    pub error_detail: Option<ErrorDetail>,
}

/// `envoy.service.discovery.v3.DeltaDiscoveryRequest`, without the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeltaRequest {
    /// `type_url`; may be empty on a stream of one type (SVC-07).
    pub type_url: String,
    /// `resource_names_subscribe`.
    pub subscribe: NameList,
    /// `resource_names_unsubscribe`.
    pub unsubscribe: NameList,
    /// `initial_resource_versions`: the names and versions of the resources that the client holds.
    pub initial_resource_versions: VersionList,
    /// `response_nonce`.
    pub response_nonce: String,
    /// `error_detail`: present only in a NACK.
    pub error_detail: Option<ErrorDetail>,
}

/// `istio.mcp.v1alpha1.RequestResources`, without the node of the sink.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct McpRequest {
    /// `collection`.
    pub collection: String,
    /// `initial_resource_versions`: the names and versions of the resources that the sink holds.
    pub initial_resource_versions: VersionList,
    /// `response_nonce`.
    pub response_nonce: String,
    /// `error_detail`: a NACK if there is a nonce (MCP-20).
    pub error_detail: Option<ErrorDetail>,
    /// `incremental`: whether the sink accepts an incremental response to this request.
    pub incremental: bool,
}

impl Request {
    /// Returns the protocol of the request.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Sotw(_) => Protocol::Sotw,
            Self::Delta(_) => Protocol::Delta,
            Self::Mcp(_) => Protocol::Mcp,
        }
    }

    /// Returns whether a name of the request is a resource locator.
    pub(crate) fn has_locators(&self) -> bool {
        match self {
            Self::Sotw(request) => request.resource_names.has_locators(),
            Self::Delta(request) => {
                request.subscribe.has_locators() || request.unsubscribe.has_locators()
            }
            Self::Mcp(_) => false,
        }
    }

    /// Returns the type URL or the collection.
    #[must_use]
    pub fn type_url(&self) -> &str {
        match self {
            Self::Sotw(request) => &request.type_url,
            Self::Delta(request) => &request.type_url,
            Self::Mcp(request) => &request.collection,
        }
    }

    /// Returns the nonce of the response that the request answers; empty if it answers none.
    #[must_use]
    pub fn response_nonce(&self) -> &str {
        match self {
            Self::Sotw(request) => &request.response_nonce,
            Self::Delta(request) => &request.response_nonce,
            Self::Mcp(request) => &request.response_nonce,
        }
    }

    /// Returns the error of a NACK.
    #[must_use]
    pub fn error_detail(&self) -> Option<&ErrorDetail> {
        match self {
            Self::Sotw(request) => request.error_detail.as_ref(),
            Self::Delta(request) => request.error_detail.as_ref(),
            Self::Mcp(request) => request.error_detail.as_ref(),
        }
    }

    /// Returns the error of a NACK.
    pub fn error_detail_mut(&mut self) -> Option<&mut ErrorDetail> {
        match self {
            Self::Sotw(request) => request.error_detail.as_mut(),
            Self::Delta(request) => request.error_detail.as_mut(),
            Self::Mcp(request) => request.error_detail.as_mut(),
        }
    }

    /// Returns the newest revision that the client has seen, according to the request.
    ///
    /// For SotW, this is the revision in the version of the type. For delta and MCP, it is the newest
    /// revision among the resources that the client holds. Versions of resources do not identify
    /// the cluster that assigned them, so the result for delta and MCP is only a hint.
    #[must_use]
    pub fn newest_seen(&self, incarnation: Incarnation) -> Option<Revision> {
        match self {
            Self::Sotw(request) => TypeVersion::revision_of(&request.version_info, incarnation),
            Self::Delta(request) => request.initial_resource_versions.newest(),
            Self::Mcp(request) => request.initial_resource_versions.newest(),
        }
    }
}

/// A request of one of the protocols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// State of the world.
    Sotw(SotwRequest),
    /// Delta (incremental).
    Delta(DeltaRequest),
    /// The Mesh Configuration Protocol.
    Mcp(McpRequest),
}
