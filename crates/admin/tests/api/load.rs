//! The load that clients report, over HTTP and gRPC.

use std::time::Duration;

use chancery_admin_proto::v1::{self as pb, load_service_client::LoadServiceClient};
use chancery_load::{Clusters, Report};
use chancery_proto::lrs::{ClusterStats, LoadStatsRequest, UpstreamLocalityStats};
use prost::Message;
use serde_json::json;
use tonic::Code;

use crate::support::Server;

fn report(clusters: &[(&str, u64)]) -> Report {
    let cluster = |(name, succeeded): &(&str, u64)| ClusterStats {
        cluster_name: (*name).to_owned(),
        upstream_locality_stats: vec![UpstreamLocalityStats {
            total_successful_requests: *succeeded,
            total_requests_in_progress: 3,
            ..UpstreamLocalityStats::default()
        }],
        load_report_interval: Some(prost_types::Duration { seconds: 4, nanos: 0 }),
        ..ClusterStats::default()
    };
    let cluster_stats = clusters.iter().map(cluster).collect();
    let request = LoadStatsRequest { node: None, cluster_stats };
    Report::new(request.encode_to_vec().into()).unwrap()
}

/// LRS-19: the answer has the reports of this replica, and says that it is complete.
#[tokio::test(flavor = "multi_thread")]
async fn load_is_shown_with_its_completeness() {
    let server = Server::start().await;
    let stream = server.reports.open("anonymous", "n");
    stream.report(report(&[("web", 10), ("cart", 2)])).await.unwrap();
    let load = server.done("GET", "/v1/load?cluster=w*", "").await;
    let [web] = &load["clusters"].as_array().unwrap()[..] else { panic!("{load}") };
    assert_eq!((&web["cluster_name"], &web["sum"]["succeeded"]), (&json!("web"), &json!(10)));
    assert_eq!((&web["sum"]["in_progress"], &web["streams"]), (&json!(3), &json!(1)));
    assert_eq!(web["sum"]["succeeded_per_second"], json!(2.5));
    assert_eq!(load["total"]["succeeded"], json!(12), "the total has all clusters: {load}");
    assert_eq!((&load["complete"], &load["replica_id"]), (&json!(true), &json!(1)));
    assert_eq!((&load["replicas_not_asked"], &load["reports"]), (&json!(0), &json!(1)));

    let load = server.done("GET", "/v1/load?limit=1", "").await;
    assert_eq!((&load["clusters_omitted"], &load["complete"]), (&json!(1), &json!(false)));
    let mut grpc = LoadServiceClient::new(server.router.clone());
    let load = grpc.get_load(pb::GetLoadRequest::default()).await.unwrap().into_inner();
    assert_eq!(load.clusters.len(), 2);
    let status = grpc.get_load(pb::GetLoadRequest { limit: 10_001, ..Default::default() }).await;
    assert_eq!(status.unwrap_err().code(), Code::InvalidArgument);
    drop(stream);
    server.stop().await;
}

/// LRS-07: settings change field by field, and invalid ones change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn settings_change_field_by_field() {
    let server = Server::start().await;
    let watch = server.reports.watch();
    let set =
        async |query: &str| server.done("POST", &format!("/v1/load/settings?{query}"), "").await;
    let settings = set("cluster=b&cluster=a").await;
    let expected = json!({"clusters": ["a", "b"], "interval_ms": 10_000, "endpoints": false});
    assert_eq!(settings, expected);
    assert!(watch.has_changed().unwrap());
    set("interval=1500ms&endpoints=true").await;
    let now = server.reports.settings();
    assert_eq!((now.interval, now.endpoints), (Duration::from_millis(1500), true));
    assert_eq!(now.clusters, Clusters::Named(vec!["a".into(), "b".into()]));
    for (query, text) in [
        ("interval=10ms", "the interval is 0.01 s; it must be from 1 s to 3600 s"),
        ("interval=2h", "the interval is 7200 s; it must be from 1 s to 3600 s"),
        (
            "cluster=*&cluster=a",
            "the list of clusters has \"*\", which means all clusters, and also",
        ),
        ("clusters=a", "unknown parameter \"clusters\""),
    ] {
        let uri = format!("/v1/load/settings?{query}");
        let (status, code, message) = server.refused("POST", &uri, "").await;
        assert_eq!((status, code.as_str()), (400, "INVALID_ARGUMENT"), "{query}");
        assert!(message.starts_with(text), "{message}");
    }
    assert_eq!(server.reports.settings(), now);
    set("cluster=").await;
    assert_eq!(server.reports.settings().clusters, Clusters::Named(vec![]));
    let mut grpc = LoadServiceClient::new(server.router.clone());
    let clusters = Some(pb::ClusterNames { names: vec!["*".into()] });
    let request = pb::SetLoadSettingsRequest { clusters, ..Default::default() };
    let settings = grpc.set_load_settings(request).await.unwrap().into_inner();
    assert_eq!((settings.clusters, settings.interval_ms), (vec!["*".to_owned()], 1500));
    server.stop().await;
}
