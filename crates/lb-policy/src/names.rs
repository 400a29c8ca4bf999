//! The type names of xDS policies, and the names of gRPC policies.

/// The message type of each converter (Table 4 of the requirements).
pub mod types {
    /// `ring_hash_experimental`.
    pub const RING_HASH: &str = "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash";
    /// The type of `round_robin` in gRPC.
    pub const ROUND_ROBIN: &str =
        "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin";
    /// `xds_wrr_locality_experimental`.
    pub const WRR_LOCALITY: &str =
        "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality";
    /// `least_request_experimental`.
    pub const LEAST_REQUEST: &str =
        "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest";
    /// The type of `weighted_round_robin` in gRPC.
    pub const WEIGHTED_ROUND_ROBIN: &str = "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin";
    /// The type of `pick_first` in gRPC.
    pub const PICK_FIRST: &str = "envoy.extensions.load_balancing_policies.pick_first.v3.PickFirst";
    /// `random_subsetting_experimental`.
    pub const RANDOM_SUBSETTING: &str =
        "envoy.extensions.load_balancing_policies.random_subsetting.v3.RandomSubsetting";
    /// A custom policy.
    pub const TYPED_STRUCT: &str = "xds.type.v3.TypedStruct";
    /// A custom policy, under the older name of the message.
    pub const UDPA_TYPED_STRUCT: &str = "udpa.type.v1.TypedStruct";
}

/// The policy that picks endpoints by hash.
pub const RING_HASH: &str = "ring_hash_experimental";
/// The policy that picks endpoints in turn.
pub const ROUND_ROBIN: &str = "round_robin";
/// The policy that generates a `weighted_target_experimental` from the localities.
pub const WRR_LOCALITY: &str = "xds_wrr_locality_experimental";
/// The policy that picks the endpoint with the fewest requests.
pub const LEAST_REQUEST: &str = "least_request_experimental";
/// The policy that weighs endpoints by their load reports.
pub const WEIGHTED_ROUND_ROBIN: &str = "weighted_round_robin";
/// The policy that uses one endpoint.
pub const PICK_FIRST: &str = "pick_first";
/// The policy that selects a subset of the endpoints.
pub const RANDOM_SUBSETTING: &str = "random_subsetting_experimental";
/// The policy that distributes requests over targets by weight.
pub const WEIGHTED_TARGET: &str = "weighted_target_experimental";
/// The policy that uses the first child that works.
pub const PRIORITY: &str = "priority_experimental";
/// The policy that ejects endpoints that fail.
pub const OUTLIER_DETECTION: &str = "outlier_detection_experimental";
/// The policy that drops and counts requests of a cluster.
pub const CLUSTER_IMPL: &str = "xds_cluster_impl_experimental";
/// The policy that has a child for each cluster.
pub const CLUSTER_MANAGER: &str = "xds_cluster_manager_experimental";
/// The policy that watches a cluster.
pub const CDS: &str = "cds_experimental";
/// The policy of stateful sessions.
pub const OVERRIDE_HOST: &str = "override_host_experimental";
/// The policy that asks a route lookup service.
pub const RLS: &str = "rls_experimental";
