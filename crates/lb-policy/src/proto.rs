//! The parts of Envoy's messages that decide the load balancing policy of a gRPC client.
//!
//! Field numbers are those of the Envoy API. All other fields are skipped on decoding. Programs with
//! their own Envoy types encode them and decode the bytes as these types.

use prost::Message;
use prost_types::{Any, Duration};

pub use prost_types;

/// `envoy.config.cluster.v3.LoadBalancingPolicy`: policies in order of preference.
#[derive(Clone, PartialEq, Message)]
pub struct LoadBalancingPolicy {
    /// The policies; a client uses the first that it supports.
    #[prost(message, repeated, tag = "1")]
    pub policies: Vec<Policy>,
}

/// `envoy.config.cluster.v3.LoadBalancingPolicy.Policy`.
#[derive(Clone, PartialEq, Message)]
pub struct Policy {
    /// The policy's type and configuration.
    #[prost(message, optional, tag = "4")]
    pub typed_extension_config: Option<TypedExtensionConfig>,
}

impl Policy {
    /// Creates a policy from its configuration message.
    pub fn new(typed_config: Any) -> Self {
        let typed_config = Some(typed_config);
        Self {
            typed_extension_config: Some(TypedExtensionConfig {
                name: String::new(),
                typed_config,
            }),
        }
    }
}

/// `envoy.config.core.v3.TypedExtensionConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct TypedExtensionConfig {
    /// A label without meaning for the conversion.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The configuration, whose type selects the converter.
    #[prost(message, optional, tag = "2")]
    pub typed_config: Option<Any>,
}

/// The parts of `envoy.config.cluster.v3.Cluster` that concern load balancing.
#[derive(Clone, PartialEq, Message)]
pub struct Cluster {
    /// The name of the cluster.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The discovery type, unless `cluster_type` is set; see [`Cluster::EDS`].
    #[prost(int32, tag = "2")]
    pub r#type: i32,
    /// The source and the name of the assignment of an EDS cluster.
    #[prost(message, optional, tag = "3")]
    pub eds_cluster_config: Option<EdsClusterConfig>,
    /// The legacy policy; see [`Cluster::ROUND_ROBIN`].
    #[prost(int32, tag = "6")]
    pub lb_policy: i32,
    /// The outlier detection of the endpoints.
    #[prost(message, optional, tag = "19")]
    pub outlier_detection: Option<OutlierDetection>,
    /// The configuration of the legacy policy `RING_HASH`.
    #[prost(message, optional, tag = "23")]
    pub ring_hash_lb_config: Option<RingHashLbConfig>,
    /// The endpoints of a cluster that does not use EDS.
    #[prost(message, optional, tag = "33")]
    pub load_assignment: Option<ClusterLoadAssignment>,
    /// The configuration of the legacy policy `LEAST_REQUEST`.
    #[prost(message, optional, tag = "37")]
    pub least_request_lb_config: Option<LeastRequestLbConfig>,
    /// A custom discovery type, such as `envoy.clusters.aggregate`.
    #[prost(message, optional, tag = "38")]
    pub cluster_type: Option<TypedExtensionConfig>,
    /// The policy of gRFC A52. It decides alone if it is present.
    #[prost(message, optional, tag = "41")]
    pub load_balancing_policy: Option<LoadBalancingPolicy>,
}

impl Cluster {
    /// The discovery type `LOGICAL_DNS`.
    pub const LOGICAL_DNS: i32 = 2;
    /// The discovery type `EDS`.
    pub const EDS: i32 = 3;
    /// The legacy policy `ROUND_ROBIN`.
    pub const ROUND_ROBIN: i32 = 0;
    /// The legacy policy `LEAST_REQUEST`.
    pub const LEAST_REQUEST: i32 = 1;
    /// The legacy policy `RING_HASH`.
    pub const RING_HASH: i32 = 2;

    /// Returns the name of the legacy policy, as the proto file spells it.
    pub fn lb_policy_name(&self) -> String {
        let name = match self.lb_policy {
            0 => "ROUND_ROBIN",
            1 => "LEAST_REQUEST",
            2 => "RING_HASH",
            3 => "RANDOM",
            5 => "MAGLEV",
            6 => "CLUSTER_PROVIDED",
            7 => "LOAD_BALANCING_POLICY_CONFIG",
            other => return other.to_string(),
        };
        name.to_owned()
    }
}

/// `envoy.config.cluster.v3.Cluster.EdsClusterConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct EdsClusterConfig {
    /// The name of the assignment; empty for the name of the cluster.
    #[prost(string, tag = "2")]
    pub service_name: String,
}

/// `envoy.config.cluster.v3.Cluster.RingHashLbConfig`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct RingHashLbConfig {
    /// The minimum number of entries of the ring.
    #[prost(message, optional, tag = "1")]
    pub minimum_ring_size: Option<u64>,
    /// The hash function: 0 is `XX_HASH`, unlike in [`RingHash`].
    #[prost(int32, tag = "3")]
    pub hash_function: i32,
    /// The maximum number of entries of the ring.
    #[prost(message, optional, tag = "4")]
    pub maximum_ring_size: Option<u64>,
}

/// `envoy.config.cluster.v3.Cluster.LeastRequestLbConfig`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LeastRequestLbConfig {
    /// The number of endpoints that are compared.
    #[prost(message, optional, tag = "1")]
    pub choice_count: Option<u32>,
}

/// `envoy.extensions.clusters.aggregate.v3.ClusterConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct AggregateClusterConfig {
    /// The names of the underlying clusters in order of priority.
    #[prost(string, repeated, tag = "1")]
    pub clusters: Vec<String>,
}

/// The fields of `envoy.config.cluster.v3.OutlierDetection` that gRPC uses.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "the Envoy API documents the fields")]
pub struct OutlierDetection {
    #[prost(message, optional, tag = "2")]
    pub interval: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub base_ejection_time: Option<Duration>,
    #[prost(message, optional, tag = "4")]
    pub max_ejection_percent: Option<u32>,
    #[prost(message, optional, tag = "6")]
    pub enforcing_success_rate: Option<u32>,
    #[prost(message, optional, tag = "7")]
    pub success_rate_minimum_hosts: Option<u32>,
    #[prost(message, optional, tag = "8")]
    pub success_rate_request_volume: Option<u32>,
    #[prost(message, optional, tag = "9")]
    pub success_rate_stdev_factor: Option<u32>,
    #[prost(message, optional, tag = "16")]
    pub failure_percentage_threshold: Option<u32>,
    #[prost(message, optional, tag = "17")]
    pub enforcing_failure_percentage: Option<u32>,
    #[prost(message, optional, tag = "19")]
    pub failure_percentage_minimum_hosts: Option<u32>,
    #[prost(message, optional, tag = "20")]
    pub failure_percentage_request_volume: Option<u32>,
    #[prost(message, optional, tag = "21")]
    pub max_ejection_time: Option<Duration>,
}

/// The parts of `envoy.config.endpoint.v3.ClusterLoadAssignment` that concern load balancing.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterLoadAssignment {
    /// The name of the assignment.
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    /// The localities with their endpoints.
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<LocalityLbEndpoints>,
}

/// `envoy.config.endpoint.v3.LocalityLbEndpoints`.
#[derive(Clone, PartialEq, Message)]
pub struct LocalityLbEndpoints {
    /// The location of the endpoints.
    #[prost(message, optional, tag = "1")]
    pub locality: Option<Locality>,
    /// The endpoints of the locality.
    #[prost(message, repeated, tag = "2")]
    pub lb_endpoints: Vec<LbEndpoint>,
    /// The weight of the locality in its priority.
    #[prost(message, optional, tag = "3")]
    pub load_balancing_weight: Option<u32>,
    /// The priority; 0 is the highest.
    #[prost(uint32, tag = "5")]
    pub priority: u32,
}

/// `envoy.config.core.v3.Locality`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
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

impl Locality {
    /// Returns the key in the form of gRFC A52: `Locality{region=…,zone=…,subZone=…}`.
    pub fn key(&self) -> String {
        let Self { region, zone, sub_zone } = self;
        format!("Locality{{region={region},zone={zone},subZone={sub_zone}}}")
    }
}

/// `envoy.config.endpoint.v3.LbEndpoint`.
#[derive(Clone, PartialEq, Message)]
pub struct LbEndpoint {
    /// The endpoint and its address.
    #[prost(message, optional, tag = "1")]
    pub endpoint: Option<Endpoint>,
    /// The health: 0 is `UNKNOWN`, 1 `HEALTHY`, 3 `DRAINING`.
    #[prost(int32, tag = "2")]
    pub health_status: i32,
    /// The weight of the endpoint in its locality.
    #[prost(message, optional, tag = "4")]
    pub load_balancing_weight: Option<u32>,
}

/// `envoy.config.endpoint.v3.Endpoint`.
#[derive(Clone, PartialEq, Message)]
pub struct Endpoint {
    /// The address to which clients connect.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
}

/// `envoy.config.core.v3.Address`.
#[derive(Clone, PartialEq, Message)]
pub struct Address {
    /// The only kind of address that gRPC uses.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Message)]
pub struct SocketAddress {
    /// The IP address, or the host name of a DNS cluster.
    #[prost(string, tag = "2")]
    pub address: String,
    /// The TCP or UDP port.
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}

/// `envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash`.
#[derive(Clone, PartialEq, Message)]
pub struct RingHash {
    /// The hash function: 0 is `DEFAULT_HASH`, 1 `XX_HASH`, 2 `MURMUR_HASH_2`.
    #[prost(int32, tag = "1")]
    pub hash_function: i32,
    /// The minimum number of entries of the ring.
    #[prost(message, optional, tag = "2")]
    pub minimum_ring_size: Option<u64>,
    /// The maximum number of entries of the ring.
    #[prost(message, optional, tag = "3")]
    pub maximum_ring_size: Option<u64>,
}

/// `envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality`.
#[derive(Clone, PartialEq, Message)]
pub struct WrrLocality {
    /// The policy inside each locality.
    #[prost(message, optional, tag = "1")]
    pub endpoint_picking_policy: Option<LoadBalancingPolicy>,
}

/// `envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct LeastRequest {
    /// The number of endpoints that are compared.
    #[prost(message, optional, tag = "1")]
    pub choice_count: Option<u32>,
}

/// `envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin`.
#[derive(Clone, PartialEq, Message)]
#[expect(missing_docs, reason = "the Envoy API documents the fields")]
pub struct ClientSideWeightedRoundRobin {
    #[prost(message, optional, tag = "1")]
    pub enable_oob_load_report: Option<bool>,
    #[prost(message, optional, tag = "2")]
    pub oob_reporting_period: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    pub blackout_period: Option<Duration>,
    #[prost(message, optional, tag = "4")]
    pub weight_expiration_period: Option<Duration>,
    #[prost(message, optional, tag = "5")]
    pub weight_update_period: Option<Duration>,
    #[prost(message, optional, tag = "6")]
    pub error_utilization_penalty: Option<f32>,
    #[prost(string, repeated, tag = "7")]
    pub metric_names_for_computing_utilization: Vec<String>,
}

/// `envoy.extensions.load_balancing_policies.pick_first.v3.PickFirst`.
#[derive(Clone, PartialEq, Message)]
pub struct PickFirst {
    /// Whether the client shuffles the addresses.
    #[prost(bool, tag = "1")]
    pub shuffle_address_list: bool,
}

/// `envoy.extensions.load_balancing_policies.random_subsetting.v3.RandomSubsetting`.
#[derive(Clone, PartialEq, Message)]
pub struct RandomSubsetting {
    /// The number of endpoints of the subset.
    #[prost(message, optional, tag = "1")]
    pub subset_size: Option<u32>,
    /// The policy over the subset.
    #[prost(message, optional, tag = "2")]
    pub child_policy: Option<LoadBalancingPolicy>,
}

/// `xds.type.v3.TypedStruct` and `udpa.type.v1.TypedStruct`: the configuration of a custom policy.
#[derive(Clone, PartialEq, Message)]
pub struct TypedStruct {
    /// The name of the policy after the last `/`.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The configuration.
    #[prost(message, optional, tag = "2")]
    pub value: Option<prost_types::Struct>,
}
