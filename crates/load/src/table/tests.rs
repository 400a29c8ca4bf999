use chancery_admin_proto::v1 as pb;
use chancery_proto::{
    lrs::{
        Address, ClusterStats, DroppedRequests, EndpointLoadMetricStats, LoadStatsRequest,
        SocketAddress, UnnamedEndpointLoadMetricStats, UpstreamEndpointStats,
        UpstreamLocalityStats,
    },
    node,
};
use prost::Message;

use super::*;
use crate::{
    node_share::{Bytes as _, Owner},
    show::{self, Query},
};

fn report(clusters: Vec<ClusterStats>) -> Report {
    let request = LoadStatsRequest { node: None, cluster_stats: clusters };
    Report::new(request.encode_to_vec().into()).unwrap()
}

/// Returns a cluster with one locality and a period of 2 s.
fn cluster(name: &str, succeeded: u64, in_progress: u64) -> ClusterStats {
    ClusterStats {
        cluster_name: name.into(),
        upstream_locality_stats: vec![locality("z", succeeded, in_progress)],
        load_report_interval: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..ClusterStats::default()
    }
}

fn locality(zone: &str, succeeded: u64, in_progress: u64) -> UpstreamLocalityStats {
    UpstreamLocalityStats {
        locality: Some(node::Locality { zone: zone.into(), ..node::Locality::default() }),
        total_successful_requests: succeeded,
        total_requests_in_progress: in_progress,
        ..UpstreamLocalityStats::default()
    }
}

/// Returns a stream of a node of its own.
fn source(stream: u64) -> Source {
    Source { stream, owner: Owner(stream), node: format!("n{stream}").into() }
}

fn add(table: &mut Table, stream: u64, clusters: Vec<ClusterStats>) {
    table.add(&source(stream), &report(clusters), &Clusters::All, Instant::now()).unwrap();
}

fn shown(table: &Table) -> pb::LoadStatus {
    let query = Query { cluster: String::new(), endpoints: true, clusters_max: 1000, after: None };
    show::status(table, &query, Instant::now())
}

fn sums(table: &Table) -> Vec<(String, pb::LoadSum)> {
    let clusters = shown(table).clusters.into_iter();
    clusters.map(|one| (one.cluster_name, one.sum.unwrap())).collect()
}

fn omitted(table: &Table, kind: Kind) -> u64 {
    table.limits.omitted[kind as usize]
}

/// LRS-10, LRS-12: counters of all reports are added by cluster and service name.
#[tokio::test]
async fn counters_of_reports_are_added_by_cluster_and_service() {
    let mut table = Table::new(Limits::default());
    let of_service = |service: &str, n| ClusterStats {
        cluster_service_name: service.into(),
        total_dropped_requests: 3,
        dropped_requests: vec![DroppedRequests { category: "lb".into(), dropped_count: 2 }],
        ..cluster("a", n, 0)
    };
    add(&mut table, 1, vec![of_service("x", 5), of_service("y", 7)]);
    add(&mut table, 2, vec![of_service("x", 10)]);
    add(&mut table, 1, vec![of_service("x", 1)]);
    let clusters = shown(&table).clusters;
    let seen: Vec<_> = clusters
        .iter()
        .map(|one| {
            let sum = one.sum.as_ref().unwrap();
            (one.cluster_service_name.as_str(), sum.succeeded, sum.dropped, one.reports)
        })
        .collect();
    assert_eq!(seen, [("x", 16, 9, 3), ("y", 7, 3, 1)]);
    assert_eq!(clusters[0].dropped, [pb::DroppedLoad { category: "lb".into(), requests: 6 }]);
    assert_eq!(clusters[0].streams, 2);
    assert_eq!(table.totals.counts.succeeded, 23);
}

/// LRS-12, LRS-13: present values are those of the last report of each open stream. A cluster that is
/// missing in a report keeps its requests in progress, and has no rate.
#[tokio::test]
async fn missing_cluster_keeps_requests_in_progress_until_the_stream_ends() {
    let mut table = Table::new(Limits::default());
    add(&mut table, 1, vec![cluster("a", 10, 4), cluster("b", 2, 1)]);
    add(&mut table, 2, vec![cluster("a", 20, 3)]);
    let now = |table: &Table| -> Vec<_> {
        let sums = sums(table).into_iter();
        sums.map(|(name, sum)| (name, sum.in_progress, sum.succeeded_per_second)).collect()
    };
    assert_eq!(now(&table), [("a".into(), 7, 15.0), ("b".into(), 1, 1.0)]);
    // The first stream reports only `b`: missing is not zero, but there were no requests.
    add(&mut table, 1, vec![cluster("b", 0, 0)]);
    assert_eq!(now(&table), [("a".into(), 7, 10.0), ("b".into(), 0, 0.0)]);
    table.end_stream(1);
    assert_eq!(now(&table), [("a".into(), 3, 10.0), ("b".into(), 0, 0.0)]);
    assert_eq!(sums(&table)[0].1.succeeded, 30, "counters stay");
    // A change of the settings: the second stream no longer reports `a`.
    let only_b = Clusters::Named(vec!["b".into()]);
    let late = report(vec![cluster("a", 5, 9)]);
    table.add(&source(2), &late, &only_b, Instant::now()).unwrap();
    assert_eq!(now(&table)[0], ("a".into(), 0, 0.0));
    assert_eq!(table.totals.gauges, Gauges::default());
    table.end_stream(2);
    let kept = table.clusters.n_bytes();
    assert_eq!(table.limits.budget.used, kept, "ended streams give back their bytes");
}

/// LRS-10: a cluster that occurs twice in a report has the requests in progress of both entries.
#[tokio::test]
async fn entries_of_one_cluster_in_a_report_are_added() {
    let mut table = Table::new(Limits::default());
    for _ in 0..2 {
        add(&mut table, 1, vec![cluster("c", 1, 3), cluster("c", 1, 4)]);
        assert_eq!(shown(&table).total.unwrap().in_progress, 7);
    }
    table.end_stream(1);
    let total = shown(&table).total.unwrap();
    assert_eq!((total.succeeded, total.in_progress), (4, 0));
}

/// Returns a locality with all fields.
fn full_locality() -> UpstreamLocalityStats {
    let metric = |name: &str, total| EndpointLoadMetricStats {
        metric_name: name.into(),
        num_requests_finished_with_metric: 2,
        total_metric_value: total,
    };
    let address = |ip: &str| Address {
        socket_address: Some(SocketAddress { address: ip.into(), port_value: 80 }),
        pipe: None,
    };
    let endpoint = |ip: &str| UpstreamEndpointStats {
        address: Some(address(ip)),
        total_successful_requests: 1,
        total_error_requests: 2,
        total_issued_requests: 4,
        load_metric_stats: vec![metric("queue", 0.5)],
        ..UpstreamEndpointStats::default()
    };
    UpstreamLocalityStats {
        locality: Some(node::Locality {
            region: "r".into(),
            zone: "z".into(),
            sub_zone: "s".into(),
        }),
        total_successful_requests: 1,
        total_requests_in_progress: 2,
        total_error_requests: 3,
        load_metric_stats: vec![metric("named_metrics.queue", 1.5), metric("nan", f64::NAN)],
        priority: 1,
        upstream_endpoint_stats: vec![endpoint("10.0.0.1"), endpoint("::1")],
        total_issued_requests: 8,
        total_active_connections: 9,
        total_new_connections: 10,
        total_fail_connections: 11,
        cpu_utilization: Some(UnnamedEndpointLoadMetricStats {
            num_requests_finished_with_metric: 4,
            total_metric_value: 2.0,
        }),
        mem_utilization: None,
        application_utilization: None,
    }
}

/// LRS-11, LRS-14, LRS-17: localities, utilization, custom metrics and endpoints are kept.
#[tokio::test]
async fn localities_metrics_and_endpoints_are_kept() {
    let mut table = Table::new(Limits::default());
    let localities = vec![full_locality(), locality("other", 1, 0)];
    add(
        &mut table,
        1,
        vec![ClusterStats { upstream_locality_stats: localities, ..cluster("a", 0, 0) }],
    );
    let clusters = shown(&table).clusters;
    let [first, second] = &clusters[0].localities[..] else { panic!("{clusters:?}") };
    assert_eq!((first.zone.as_str(), second.zone.as_str()), ("other", "z"));
    let place = (second.region.as_str(), second.sub_zone.as_str(), second.priority);
    assert_eq!(place, ("r", "s", 1));
    assert_eq!(
        second.sum,
        Some(pb::LoadSum {
            issued: 8,
            succeeded: 1,
            failed: 3,
            new_connections: 10,
            failed_connections: 11,
            in_progress: 2,
            active_connections: 9,
            issued_per_second: 4.0,
            succeeded_per_second: 0.5,
            failed_per_second: 1.5,
            dropped: 0,
            dropped_per_second: 0.0,
        })
    );
    let metrics: Vec<_> =
        second.metrics.iter().map(|one| (one.name.as_str(), one.requests, one.total)).collect();
    let expected = [("cpu_utilization", 4, 2.0), ("named_metrics.queue", 2, 1.5), ("nan", 0, 0.0)];
    assert_eq!(metrics, expected);
    let endpoints: Vec<_> = second
        .endpoints
        .iter()
        .map(|one| (one.address.as_str(), one.issued, one.succeeded, one.failed))
        .collect();
    assert_eq!(endpoints, [("10.0.0.1:80", 4, 1, 2), ("[::1]:80", 4, 1, 2)]);
    assert_eq!(second.endpoints[0].metrics[0].name, "queue");
    assert_eq!(omitted(&table, Kind::Value), 1);
}

/// LRS-18: what exceeds a limit is counted and not kept. Its parents still have it in their sums.
#[tokio::test]
async fn items_over_a_limit_are_counted_and_not_kept() {
    let limits = Limits {
        clusters_max: 4,
        localities_max: 4,
        endpoints_max: 4,
        metrics_max: 4,
        categories_max: 4,
        name_bytes_max: 8,
        ..Limits::default()
    };
    let mut table = Table::new(limits);
    let names = ["a", "b", "c"];
    let metrics = || {
        let metric = |name: &str| EndpointLoadMetricStats {
            metric_name: name.into(),
            ..EndpointLoadMetricStats::default()
        };
        names.map(metric).to_vec()
    };
    let endpoint = |path: &str| UpstreamEndpointStats {
        address: Some(Address {
            socket_address: None,
            pipe: Some(chancery_proto::lrs::Pipe { path: path.into() }),
        }),
        ..UpstreamEndpointStats::default()
    };
    let locality = |zone: &str| UpstreamLocalityStats {
        load_metric_stats: metrics(),
        upstream_endpoint_stats: names.map(endpoint).to_vec(),
        ..locality(zone, 1, 1)
    };
    let category = |name: &str| DroppedRequests { category: name.into(), dropped_count: 1 };
    let cluster = |name: &str| ClusterStats {
        upstream_locality_stats: names.map(locality).to_vec(),
        dropped_requests: names.map(category).to_vec(),
        ..cluster(name, 0, 0)
    };
    add(&mut table, 1, names.map(cluster).to_vec());
    add(&mut table, 1, vec![cluster("a name that is too long")]);
    assert_eq!(table.clusters.len(), 2);
    let of = |kind| omitted(&table, kind);
    assert_eq!((of(Kind::Cluster), of(Kind::Locality), of(Kind::Category)), (2, 2, 2));
    assert_eq!((of(Kind::Endpoint), of(Kind::Metric)), (4, 4));
    assert_eq!(table.totals.counts.succeeded, 12, "the totals have all reports");
    let sum = sums(&table)[0].1;
    assert_eq!((sum.succeeded, sum.in_progress), (3, 2), "the cluster has all localities");
}

/// LRS-18: the memory for sums and for the present values of streams is bounded.
#[tokio::test]
async fn bytes_of_all_sums_are_bounded() {
    let bytes_max = 20_000;
    let mut table = Table::new(Limits { bytes_max, ..Limits::default() });
    for stream in 0..500 {
        add(&mut table, stream, vec![cluster("same", 1, 1), cluster(&format!("c{stream}"), 1, 1)]);
        assert!(table.limits.budget.used <= bytes_max);
    }
    assert!(table.clusters.len() < 100, "{}", table.clusters.len());
    assert!(omitted(&table, Kind::Cluster) > 400 && omitted(&table, Kind::Stream) > 300);
    assert_eq!(sums(&table).last().unwrap().1.succeeded, 500, "known clusters still count");
    assert_eq!(table.totals.counts.succeeded, 1000);
    for stream in 0..500 {
        table.end_stream(stream);
    }
    assert_eq!(table.totals.gauges, Gauges::default());
    assert_eq!(table.limits.budget.used, table.clusters.n_bytes());
}

/// LRS-18: a node that reports ever new names leaves room for others, whatever the limit. This also holds
/// for the next streams of the node, and for several such nodes.
#[tokio::test(start_paused = true)]
async fn one_node_cannot_fill_the_sums() {
    let flood = |of: usize| -> Vec<ClusterStats> {
        (0..400).map(|n| cluster(&format!("flood {of} {n}"), 1, 1)).collect()
    };
    for limits in [
        Limits { clusters_max: 100, ..Limits::default() },
        Limits { bytes_max: 100_000, ..Limits::default() },
    ] {
        let mut table = Table::new(limits);
        for stream in 0..10 {
            // Two nodes, with several streams each. Every second stream stays open.
            let source = Source { stream, ..source(stream % 2) };
            let report = report(flood(usize::try_from(stream).unwrap()));
            table.add(&source, &report, &Clusters::All, Instant::now()).unwrap();
            if stream % 4 < 2 {
                table.end_stream(stream);
            }
        }
        let omitted_before = omitted(&table, Kind::Cluster);
        assert!(omitted_before > 3000 && table.limits.n_over_share > 3000, "{omitted_before}");
        let own = || -> Vec<ClusterStats> {
            (0..10).map(|n| cluster(&format!("web {n}"), 7, 1)).collect()
        };
        add(&mut table, 100, own());
        assert_eq!(omitted(&table, Kind::Cluster), omitted_before, "the clusters are kept");
        let sums = sums(&table);
        let kept: Vec<_> = sums.iter().filter(|(name, _)| name.starts_with("web")).collect();
        assert_eq!(kept.len(), 10);
        assert!(kept.iter().all(|(_, sum)| (sum.succeeded, sum.in_progress) == (7, 1)), "{kept:?}");
    }
}

/// LRS-18: a node that adds localities, endpoints and metrics to the cluster of another node leaves room for
/// those of that node.
#[tokio::test]
async fn one_node_cannot_fill_the_cluster_of_another() {
    let limits = Limits { localities_max: 10, endpoints_max: 10, ..Limits::default() };
    let mut table = Table::new(limits);
    let endpoint = |n: usize| UpstreamEndpointStats {
        address: Some(Address {
            socket_address: None,
            pipe: Some(chancery_proto::lrs::Pipe { path: format!("/p{n}") }),
        }),
        ..UpstreamEndpointStats::default()
    };
    let with = |localities: Vec<UpstreamLocalityStats>| {
        vec![ClusterStats { upstream_locality_stats: localities, ..cluster("web", 0, 0) }]
    };
    let busy = UpstreamLocalityStats {
        upstream_endpoint_stats: (0..20).map(endpoint).collect(),
        ..locality("z", 1, 0)
    };
    let flood = (0..20).map(|n| locality(&format!("flood {n}"), 1, 0)).chain([busy]);
    add(&mut table, 1, with(vec![locality("z", 1, 0)]));
    add(&mut table, 2, with(flood.collect()));
    let own = UpstreamLocalityStats {
        upstream_endpoint_stats: vec![endpoint(100)],
        ..locality("z", 1, 0)
    };
    let before = (omitted(&table, Kind::Locality), omitted(&table, Kind::Endpoint));
    assert_eq!(before, (16, 15));
    add(&mut table, 1, with(vec![own, locality("y", 1, 0)]));
    assert_eq!((omitted(&table, Kind::Locality), omitted(&table, Kind::Endpoint)), before);
    assert_eq!(shown(&table).clusters[0].localities.len(), 6);
}

/// LRS-18: clusters that no client reports make room for others.
#[tokio::test(start_paused = true)]
async fn outdated_clusters_make_room_for_others() {
    let mut table = Table::new(Limits { clusters_max: 3, ..Limits::default() });
    add(&mut table, 1, vec![cluster("open", 1, 1)]);
    add(&mut table, 2, vec![cluster("old", 1, 1)]);
    table.end_stream(2);
    add(&mut table, 3, vec![cluster("new", 1, 1)]);
    assert_eq!(omitted(&table, Kind::Cluster), 1);
    tokio::time::advance(OUTDATED_AFTER + SWEEP_INTERVAL).await;
    add(&mut table, 3, vec![cluster("new", 1, 1)]);
    let names: Vec<_> = sums(&table).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["new", "open"]);
    table.end_stream(1);
    table.end_stream(3);
    assert_eq!(table.limits.budget.used, table.clusters.n_bytes());
}

/// LRS-18: nothing of a malformed report counts, and unknown fields are skipped.
#[tokio::test]
async fn malformed_report_counts_nothing() {
    let mut table = Table::new(Limits::default());
    let good = LoadStatsRequest { node: None, cluster_stats: vec![cluster("a", 1, 1)] };
    let mut bytes = good.encode_to_vec();
    // A second cluster whose locality is cut off.
    bytes.extend([0x12, 3, 0x12, 5, 0]);
    let report = Report::new(bytes.into()).unwrap();
    let error = table.add(&source(1), &report, &Clusters::All, Instant::now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "malformed load report: cluster_stats: the message ends inside a field"
    );
    assert_eq!((table.clusters.len(), table.totals), (0, Totals::default()));
    for (bytes, part) in [
        (&[0x12_u8, 2, 0x08, 1][..], "cluster_stats: field 1 has the wrong wire type"),
        (&[0x12, 3, 0x0a, 1, 0xff], "cluster_stats: field 1 is not valid UTF-8"),
        (&[0x12, 4, 0x12, 2, 0x08, 1], "upstream_locality_stats: field 1 has the wrong"),
        (&[0x12, 5, 0x12, 3, 0x12, 1, 0], "upstream_locality_stats: field 2 has the wrong"),
        (&[0x12, 6, 0x12, 4, 0x3a, 2, 0x08, 1], "upstream_endpoint_stats: field 1 has"),
        (&[0x12, 3, 0x22, 1, 0xff], "load_report_interval: "),
    ] {
        let report = Report::new(bytes.to_vec().into()).unwrap();
        let error =
            table.add(&source(1), &report, &Clusters::All, Instant::now()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("malformed load report: {part}")), "{error}");
    }
    let error = Report::new(vec![0x08_u8, 1].into()).unwrap_err().to_string();
    assert!(error.contains("LoadStatsRequest: field 1 has the wrong wire type"), "{error}");
    let unknown = [0x12, 7, 0x0a, 1, b'u', 0x7a, 2, b'h', b'i', 0x98, 1, 1];
    table
        .add(
            &source(1),
            &Report::new(unknown.to_vec().into()).unwrap(),
            &Clusters::All,
            Instant::now(),
        )
        .unwrap();
    assert_eq!(sums(&table)[0].0, "u");
}

/// LRS-18: a report with too many parts is rejected before any of it counts.
#[tokio::test]
async fn report_with_too_many_parts_is_rejected() {
    let mut table = Table::new(Limits::default());
    let parts = |n: usize| {
        let localities = vec![UpstreamLocalityStats::default(); n];
        report(vec![ClusterStats { upstream_locality_stats: localities, ..cluster("a", 0, 0) }])
    };
    assert_eq!(table.add(&source(1), &parts(65_535), &Clusters::All, Instant::now()), Ok(()));
    assert_eq!(
        table.add(&source(1), &parts(65_536), &Clusters::All, Instant::now()),
        Err(ReportError::TooMany)
    );
    assert_eq!(table.totals.n_reports, 1);
    let many = [0x12, 0].repeat(65_537);
    assert_eq!(Report::new(many.into()).unwrap_err(), ReportError::TooMany);
}
