//! Who a client says it is.

use std::collections::BTreeMap;

/// Where a node runs (`envoy.config.core.v3.Locality`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Locality {
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Part of the zone.
    pub sub_zone: String,
}

/// An xDS client's identity, as far as assignments look at it (`envoy.config.core.v3.Node`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// `Node.id`.
    pub id: String,
    /// `Node.cluster`.
    pub cluster: String,
    /// `Node.locality`.
    pub locality: Locality,
    /// The scalars of `Node.metadata`, by their path: `{a: {b: 1}}` is `a.b` → `1`. Lists are left out.
    pub metadata: BTreeMap<String, String>,
    /// `Node.user_agent_name` and its version, for people.
    pub user_agent: String,
    /// `Node.client_features`.
    pub client_features: Vec<String>,
}
