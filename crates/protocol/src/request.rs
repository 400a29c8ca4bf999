//! Requests, reduced to the fields that the protocol needs.

use chancery_model::{Incarnation, Revision, TypeUrl, TypeVersion};

use crate::{NameList, VersionList};

/// The two variants of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Delta (incremental).
    Delta,
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

impl Request {
    /// Returns the newest revision that the client has seen, according to the request.
    ///
    /// For SotW, this is the revision in the version of the type. For delta, it is the newest
    /// revision among the resources that the client holds. Versions of resources do not identify
    /// the cluster that assigned them, so the result for delta is only a hint.
    #[must_use]
    pub fn newest_seen(&self, incarnation: Incarnation) -> Option<Revision> {
        match self {
            Self::Sotw(request) => TypeVersion::revision_of(&request.version_info, incarnation),
            Self::Delta(request) => request.initial_resource_versions.newest(),
        }
    }
}

/// A request of either variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// State of the world.
    Sotw(SotwRequest),
    /// Delta (incremental).
    Delta(DeltaRequest),
}
