//! The identity that a client reports.

use std::collections::BTreeMap;

use crate::DynamicParameters;

/// The location of a node (`envoy.config.core.v3.Locality`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Locality {
    /// The region, such as `eu-west-1`.
    pub region: String,
    /// The zone in the region.
    pub zone: String,
    /// The part of the zone.
    pub sub_zone: String,
}

/// The parts of an xDS client's identity that assignments and people use
/// (`envoy.config.core.v3.Node`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Node {
    /// `Node.id`.
    pub id: String,
    /// `Node.cluster`.
    pub cluster: String,
    /// `Node.locality`.
    pub locality: Locality,
    /// The scalars of `Node.metadata` by path: `{a: {b: 1}}` becomes `a.b` → `1`. Lists are omitted.
    pub metadata: BTreeMap<String, String>,
    /// `Node.user_agent_name` and the user agent's version, for display.
    pub user_agent: String,
    /// `Node.client_features`.
    pub client_features: Vec<String>,
    /// `Node.dynamic_parameters`: the parameters of plain names, by type URL (DYN-11).
    pub dynamic_parameters: BTreeMap<String, DynamicParameters>,
}
