//! Requests, as far as the protocol looks at them.

use chancery_model::{Incarnation, Revision, TypeUrl, TypeVersion};

use crate::{NameList, VersionList};

/// The two variants of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

/// What a stream was opened for, which its method says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamKind {
    /// The variant.
    pub protocol: Protocol,
    /// The one type of the stream; `None` for an aggregated one.
    pub type_url: Option<TypeUrl>,
}

/// `google.rpc.Status` in a NACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorDetail {
    /// The code. Its value decides nothing: that there is an error does (SOTW-20).
    pub code: i32,
    /// The text, for people only (SOTW-30).
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
    /// `error_detail`: present in a NACK and only there.
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
    /// `initial_resource_versions`: name and version of what the client holds.
    pub initial_resource_versions: VersionList,
    /// `response_nonce`.
    pub response_nonce: String,
    /// `error_detail`: present in a NACK and only there.
    pub error_detail: Option<ErrorDetail>,
}

impl Request {
    /// The newest revision that the client has seen something of, as far as the request tells: of the type
    /// in SotW, of the resources it holds in delta. The versions of resources do not say which cluster gave
    /// them, so that this is a hint, and no proof.
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
    /// Incremental.
    Delta(DeltaRequest),
}
