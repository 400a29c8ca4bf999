//! The messages of load reports.

use chancery_proto::{
    lrs::{
        Address, ClusterStats, DroppedRequests, EndpointLoadMetricStats, LoadStatsRequest,
        LoadStatsResponse, Pipe, SocketAddress, UnnamedEndpointLoadMetricStats,
        UpstreamEndpointStats, UpstreamLocalityStats,
    },
    node::Locality,
};
use serde_json::json;

use crate::{NODE, check};

/// Returns a cluster with all fields.
fn full_cluster() -> ClusterStats {
    let metric = EndpointLoadMetricStats {
        metric_name: "named_metrics.q".into(),
        num_requests_finished_with_metric: 3,
        total_metric_value: 1.5,
    };
    let unnamed = |total| UnnamedEndpointLoadMetricStats {
        num_requests_finished_with_metric: 2,
        total_metric_value: total,
    };
    let endpoint = |address| UpstreamEndpointStats {
        address: Some(address),
        total_successful_requests: 1,
        total_requests_in_progress: 2,
        total_error_requests: 3,
        load_metric_stats: vec![metric.clone()],
        total_issued_requests: 4,
    };
    let socket = SocketAddress { address: "10.0.0.1".into(), port_value: 80 };
    let endpoints = vec![
        endpoint(Address { socket_address: Some(socket), pipe: None }),
        endpoint(Address { socket_address: None, pipe: Some(Pipe { path: "/s".into() }) }),
    ];
    let locality = UpstreamLocalityStats {
        locality: Some(Locality { region: "r".into(), zone: "z".into(), sub_zone: "s".into() }),
        total_successful_requests: 2,
        total_requests_in_progress: 3,
        total_error_requests: 4,
        load_metric_stats: vec![metric.clone()],
        priority: 6,
        upstream_endpoint_stats: endpoints,
        total_issued_requests: 8,
        total_active_connections: 9,
        total_new_connections: 10,
        total_fail_connections: 11,
        cpu_utilization: Some(unnamed(0.5)),
        mem_utilization: Some(unnamed(0.25)),
        application_utilization: Some(unnamed(0.75)),
    };
    ClusterStats {
        cluster_name: "c".into(),
        upstream_locality_stats: vec![locality],
        total_dropped_requests: 5,
        load_report_interval: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        dropped_requests: vec![DroppedRequests { category: "lb".into(), dropped_count: 7 }],
        cluster_service_name: "s".into(),
    }
}

/// LRS-10, LRS-11, LRS-14, LRS-17: a report has the names and numbers of the API.
#[test]
fn load_report_matches_descriptors() {
    let metric = json!({
        "metric_name": "named_metrics.q", "num_requests_finished_with_metric": "3", "total_metric_value": 1.5,
    });
    let unnamed =
        |total: f64| json!({"num_requests_finished_with_metric": "2", "total_metric_value": total});
    let endpoint = |address: serde_json::Value| {
        json!({
            "address": address, "total_successful_requests": "1", "total_requests_in_progress": "2",
            "total_error_requests": "3", "load_metric_stats": [metric], "total_issued_requests": "4",
        })
    };
    let endpoints = [
        endpoint(json!({"socket_address": {"address": "10.0.0.1", "port_value": 80}})),
        endpoint(json!({"pipe": {"path": "/s"}})),
    ];
    let locality = json!({
        "locality": {"region": "r", "zone": "z", "sub_zone": "s"}, "total_successful_requests": "2",
        "total_requests_in_progress": "3", "total_error_requests": "4", "load_metric_stats": [metric],
        "priority": 6, "upstream_endpoint_stats": endpoints, "total_issued_requests": "8",
        "total_active_connections": "9", "total_new_connections": "10", "total_fail_connections": "11",
        "cpu_utilization": unnamed(0.5), "mem_utilization": unnamed(0.25),
        "application_utilization": unnamed(0.75),
    });
    let request = LoadStatsRequest { node: Some(NODE.into()), cluster_stats: vec![full_cluster()] };
    check(
        "envoy.service.load_stats.v3.LoadStatsRequest",
        &request,
        &json!({"node": {"id": "n"}, "cluster_stats": [{
            "cluster_name": "c", "upstream_locality_stats": [locality], "total_dropped_requests": "5",
            "load_report_interval": "2s", "cluster_service_name": "s",
            "dropped_requests": [{"category": "lb", "dropped_count": "7"}],
        }]}),
    );
}

/// LRS-02: a response has the names and numbers of the API.
#[test]
fn load_settings_match_descriptors() {
    check(
        "envoy.service.load_stats.v3.LoadStatsResponse",
        &LoadStatsResponse {
            clusters: vec!["a".into()],
            load_reporting_interval: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
            report_endpoint_granularity: true,
            send_all_clusters: true,
        },
        &json!({
            "clusters": ["a"], "load_reporting_interval": "10s", "report_endpoint_granularity": true,
            "send_all_clusters": true,
        }),
    );
}
