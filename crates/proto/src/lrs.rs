//! `envoy.service.load_stats.v3`: the messages of the load reporting service (LRS).
//!
//! The v2 messages are wire compatible. The server reads reports with `chancery_load`, which builds only
//! the small messages at the leaves.

use bytes::Bytes;

use crate::node::Locality;

/// The full name of the service.
pub const SERVICE: &str = "envoy.service.load_stats.v3.LoadReportingService";

/// The full name of the service of v2.
pub const SERVICE_V2: &str = "envoy.service.load_stats.v2.LoadReportingService";

/// The only method of the service.
pub const METHOD: &str = "StreamLoadStats";

/// `LoadStatsRequest`: the first message of a client, or a report.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LoadStatsRequest {
    /// `envoy.config.core.v3.Node`, encoded; absent in the reports of gRPC clients (LRS-06).
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub node: Option<Bytes>,
    /// The load of each reported cluster.
    #[prost(message, repeated, tag = "2")]
    pub cluster_stats: Vec<ClusterStats>,
}

/// `LoadStatsResponse`: the clusters to report, and how.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LoadStatsResponse {
    /// The names of the clusters; empty with `send_all_clusters`.
    #[prost(string, repeated, tag = "1")]
    pub clusters: Vec<String>,
    /// The interval of the reports.
    #[prost(message, optional, tag = "2")]
    pub load_reporting_interval: Option<prost_types::Duration>,
    /// Whether reports contain the load of each endpoint.
    #[prost(bool, tag = "3")]
    pub report_endpoint_granularity: bool,
    /// Whether the client reports all clusters that it has.
    #[prost(bool, tag = "4")]
    pub send_all_clusters: bool,
}

/// `envoy.config.endpoint.v3.ClusterStats`: the load of one cluster in one period.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClusterStats {
    /// The name of the cluster.
    #[prost(string, tag = "1")]
    pub cluster_name: String,
    /// The load of each locality.
    #[prost(message, repeated, tag = "2")]
    pub upstream_locality_stats: Vec<UpstreamLocalityStats>,
    /// The number of requests that the client dropped.
    #[prost(uint64, tag = "3")]
    pub total_dropped_requests: u64,
    /// The length of the period.
    #[prost(message, optional, tag = "4")]
    pub load_report_interval: Option<prost_types::Duration>,
    /// The dropped requests of each category.
    #[prost(message, repeated, tag = "5")]
    pub dropped_requests: Vec<DroppedRequests>,
    /// The name under which the client requests the endpoints of the cluster.
    #[prost(string, tag = "6")]
    pub cluster_service_name: String,
}

/// `ClusterStats.DroppedRequests`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DroppedRequests {
    /// The category of the drop policy in the assignment, such as `lb`.
    #[prost(string, tag = "1")]
    pub category: String,
    /// The number of dropped requests.
    #[prost(uint64, tag = "2")]
    pub dropped_count: u64,
}

/// `envoy.config.endpoint.v3.UpstreamLocalityStats`: the load of one locality in one period.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpstreamLocalityStats {
    /// The location of the endpoints that received the requests.
    #[prost(message, optional, tag = "1")]
    pub locality: Option<Locality>,
    /// The number of requests that succeeded.
    #[prost(uint64, tag = "2")]
    pub total_successful_requests: u64,
    /// The number of unfinished requests at the end of the period.
    #[prost(uint64, tag = "3")]
    pub total_requests_in_progress: u64,
    /// The number of requests that failed.
    #[prost(uint64, tag = "4")]
    pub total_error_requests: u64,
    /// Custom metrics.
    #[prost(message, repeated, tag = "5")]
    pub load_metric_stats: Vec<EndpointLoadMetricStats>,
    /// The priority of the locality.
    #[prost(uint32, tag = "6")]
    pub priority: u32,
    /// The load of each endpoint.
    #[prost(message, repeated, tag = "7")]
    pub upstream_endpoint_stats: Vec<UpstreamEndpointStats>,
    /// The number of requests that were started.
    #[prost(uint64, tag = "8")]
    pub total_issued_requests: u64,
    /// The number of open connections at the end of the period.
    #[prost(uint64, tag = "9")]
    pub total_active_connections: u64,
    /// The number of connections that were opened.
    #[prost(uint64, tag = "10")]
    pub total_new_connections: u64,
    /// The number of connections that could not be opened.
    #[prost(uint64, tag = "11")]
    pub total_fail_connections: u64,
    /// The CPU utilization of the endpoints.
    #[prost(message, optional, tag = "12")]
    pub cpu_utilization: Option<UnnamedEndpointLoadMetricStats>,
    /// The memory utilization of the endpoints.
    #[prost(message, optional, tag = "13")]
    pub mem_utilization: Option<UnnamedEndpointLoadMetricStats>,
    /// The utilization of the endpoints as the application defines it.
    #[prost(message, optional, tag = "14")]
    pub application_utilization: Option<UnnamedEndpointLoadMetricStats>,
}

/// `envoy.config.endpoint.v3.UpstreamEndpointStats`: the load of one endpoint in one period. The decoder
/// skips its metadata.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpstreamEndpointStats {
    /// The address of the endpoint.
    #[prost(message, optional, tag = "1")]
    pub address: Option<Address>,
    /// The number of requests that succeeded.
    #[prost(uint64, tag = "2")]
    pub total_successful_requests: u64,
    /// The number of unfinished requests at the end of the period.
    #[prost(uint64, tag = "3")]
    pub total_requests_in_progress: u64,
    /// The number of requests that failed.
    #[prost(uint64, tag = "4")]
    pub total_error_requests: u64,
    /// Custom metrics.
    #[prost(message, repeated, tag = "5")]
    pub load_metric_stats: Vec<EndpointLoadMetricStats>,
    /// The number of requests that were started.
    #[prost(uint64, tag = "7")]
    pub total_issued_requests: u64,
}

/// `EndpointLoadMetricStats`: a custom metric.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EndpointLoadMetricStats {
    /// The name of the metric.
    #[prost(string, tag = "1")]
    pub metric_name: String,
    /// The number of requests that finished with the metric.
    #[prost(uint64, tag = "2")]
    pub num_requests_finished_with_metric: u64,
    /// The sum of the values over these requests.
    #[prost(double, tag = "3")]
    pub total_metric_value: f64,
}

/// `UnnamedEndpointLoadMetricStats`: a metric whose name is that of its field.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct UnnamedEndpointLoadMetricStats {
    /// The number of requests that finished with the metric.
    #[prost(uint64, tag = "1")]
    pub num_requests_finished_with_metric: u64,
    /// The sum of the values over these requests.
    #[prost(double, tag = "2")]
    pub total_metric_value: f64,
}

/// `envoy.config.core.v3.Address`, as far as endpoints in reports have it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Address {
    /// An IP address or host name with a port.
    #[prost(message, optional, tag = "1")]
    pub socket_address: Option<SocketAddress>,
    /// A Unix domain socket.
    #[prost(message, optional, tag = "2")]
    pub pipe: Option<Pipe>,
}

/// `envoy.config.core.v3.SocketAddress`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SocketAddress {
    /// The IP address or host name.
    #[prost(string, tag = "2")]
    pub address: String,
    /// The TCP or UDP port.
    #[prost(uint32, tag = "3")]
    pub port_value: u32,
}

/// `envoy.config.core.v3.Pipe`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Pipe {
    /// The path of the UNIX socket.
    #[prost(string, tag = "1")]
    pub path: String,
}
