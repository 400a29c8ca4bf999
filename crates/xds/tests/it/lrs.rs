//! Load reports: settings out, reports in, and the limits of both.

use std::time::Duration;

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_load::{Clusters, Limits, LoadReports, Query, Settings};
use chancery_proto::{
    lrs::{
        ClusterStats, DroppedRequests, LoadStatsRequest, LoadStatsResponse, UpstreamLocalityStats,
    },
    node::{Locality, Node},
};
use prost::Message;
use tonic::Code;

use crate::support::*;

pub(crate) const LRS: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";
const LRS_V2: &str = "/envoy.service.load_stats.v2.LoadReportingService/StreamLoadStats";
const SENDS_ALL: &str = "envoy.lrs.supports_send_all_clusters";

pub(crate) type Lrs = Client<LoadStatsRequest, LoadStatsResponse>;

/// A server that asks for load reports.
pub(crate) struct Reporting {
    pub(crate) server: Server,
    reports: LoadReports,
}

impl Reporting {
    pub(crate) async fn start(clusters: &[&str]) -> Self {
        Self::with(clusters, chancery_xds::Config::default(), fanout_config()).await
    }

    async fn with(
        clusters: &[&str],
        config: chancery_xds::Config,
        fanout: chancery_fanout::Config,
    ) -> Self {
        let meter = Meter::start();
        let clusters = clusters.iter().map(|name| (*name).to_owned()).collect();
        let clusters = Clusters::from_list(clusters).unwrap();
        let settings = Settings { clusters, interval: Duration::from_secs(7), endpoints: false };
        let reports = LoadReports::new(settings, Limits::default()).unwrap();
        let config = chancery_xds::Config { load_reports: Some(reports.clone()), ..config };
        Self { server: Server::measured_with(meter, config, fanout).await, reports }
    }

    pub(crate) async fn open(&self) -> Lrs {
        Client::open(self.server.channel().await, LRS).await.unwrap()
    }

    async fn status(&self) -> pb::LoadStatus {
        let query =
            Query { cluster: String::new(), endpoints: true, clusters_max: 100, after: None };
        self.reports.show(query).await
    }

    /// Waits until this number of reports was accepted.
    async fn until_reports(&self, n: u64) -> pb::LoadStatus {
        until("the reports were accepted", async || self.status().await.reports == n).await;
        self.status().await
    }

    fn change(&self, clusters: &[&str]) {
        let clusters = clusters.iter().map(|name| (*name).to_owned()).collect();
        let clusters = Clusters::from_list(clusters).unwrap();
        self.reports.change(|settings| settings.clusters = clusters).unwrap();
    }
}

fn node_of(agent: &str, features: &[&str]) -> Option<Bytes> {
    let node = Node {
        id: "n1".into(),
        cluster: "test".into(),
        user_agent_name: agent.into(),
        client_features: features.iter().map(|one| (*one).to_owned()).collect(),
        ..Node::default()
    };
    Some(node.encode_to_vec().into())
}

/// Returns the first request of a client.
pub(crate) fn hello(agent: &str, features: &[&str]) -> LoadStatsRequest {
    LoadStatsRequest { node: node_of(agent, features), cluster_stats: vec![] }
}

fn stats(cluster: &str, succeeded: u64, in_progress: u64) -> ClusterStats {
    ClusterStats {
        cluster_name: cluster.into(),
        upstream_locality_stats: vec![UpstreamLocalityStats {
            locality: Some(Locality { zone: "z".into(), ..Locality::default() }),
            total_successful_requests: succeeded,
            total_requests_in_progress: in_progress,
            ..UpstreamLocalityStats::default()
        }],
        total_dropped_requests: 1,
        dropped_requests: vec![DroppedRequests { category: "lb".into(), dropped_count: 1 }],
        load_report_interval: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..ClusterStats::default()
    }
}

fn report(clusters: Vec<ClusterStats>) -> LoadStatsRequest {
    LoadStatsRequest { node: None, cluster_stats: clusters }
}

/// LRS-01, LRS-02, LRS-03, LRS-04, LRS-05: the first request is answered at once with the settings. A
/// client without support for all clusters receives the names of its clusters.
#[tokio::test]
async fn first_request_is_answered_with_the_settings() {
    let one = Reporting::start(&["*"]).await;
    one.server.put(CDS, &[("a", "1"), ("b", "1")]);
    let mut client = one.open().await;
    client.send(hello("envoy", &[SENDS_ALL])).await;
    let response = client.next().await;
    assert_eq!((response.send_all_clusters, response.clusters.len()), (true, 0));
    assert_eq!(response.load_reporting_interval.unwrap().seconds, 7);
    assert!(!response.report_endpoint_granularity);
    let mut other = one.open().await;
    other.send(hello("other", &[])).await;
    let response = other.next().await;
    assert_eq!(
        (response.send_all_clusters, &response.clusters[..]),
        (false, &["a", "b"].map(String::from)[..])
    );

    let named = Reporting::start(&["b", "c"]).await;
    for features in [&[SENDS_ALL][..], &[]] {
        let mut client = named.open().await;
        client.send(hello("envoy", features)).await;
        let response = client.next().await;
        assert_eq!(
            (response.send_all_clusters, &response.clusters[..]),
            (false, &["b", "c"].map(String::from)[..])
        );
    }
}

/// LRS-06, LRS-09, LRS-10, LRS-11, LRS-12: reports are added, with the node in each message or only in
/// the first one. No report is answered.
#[tokio::test]
async fn reports_are_added_and_not_answered() {
    let one = Reporting::start(&["*"]).await;
    let mut envoy = one.open().await;
    envoy.send(hello("envoy", &[SENDS_ALL])).await;
    envoy.next().await;
    let node = node_of("envoy", &[SENDS_ALL]);
    let with_node = LoadStatsRequest { node, ..report(vec![stats("a", 10, 2)]) };
    envoy.send(with_node).await;
    let mut grpc = one.open().await;
    grpc.send(hello("gRPC Go", &[SENDS_ALL])).await;
    grpc.next().await;
    grpc.send(report(vec![stats("a", 4, 1), stats("b", 6, 0)])).await;
    let status = one.until_reports(2).await;
    assert_eq!(status.streams, 2);
    let [a, b] = &status.clusters[..] else { panic!("{status:?}") };
    let sum = a.sum.as_ref().unwrap();
    assert_eq!(
        (a.cluster_name.as_str(), sum.succeeded, sum.in_progress, sum.dropped),
        ("a", 14, 3, 2)
    );
    assert!((sum.succeeded_per_second - 7.0).abs() < 1e-9, "{sum:?}");
    assert_eq!((a.localities[0].zone.as_str(), a.dropped[0].requests), ("z", 2));
    assert_eq!((b.cluster_name.as_str(), b.sum.as_ref().unwrap().succeeded), ("b", 6));
    let meter = &one.server.meter;
    let outcome = |outcome| meter.counter("chancery_load_requests_total", &[("outcome", outcome)]);
    assert_eq!((outcome("succeeded"), outcome("dropped")), (20, 3));
    assert_eq!(meter.gauge("chancery_load_requests_in_progress"), 3.0);

    // Further responses would arrive before the end of the stream.
    for mut client in [envoy, grpc] {
        client.requests = None;
        let left = tokio::time::timeout(PATIENCE, client.responses.message()).await.unwrap();
        assert_eq!(left.unwrap(), None, "a report was answered");
    }
    // LRS-13: the present values end with the streams, and the counters stay.
    until("the streams are freed", async || one.status().await.streams == 0).await;
    let status = one.status().await;
    let sum = status.clusters[0].sum.as_ref().unwrap();
    assert_eq!((sum.in_progress, sum.succeeded, sum.succeeded_per_second), (0, 14, 0.0));
    assert_eq!(meter.gauge("chancery_load_requests_in_progress"), 0.0);
    assert_eq!(meter.gauge("chancery_load_streams"), 0.0);
    one.server.until_no_stream().await;
}

/// LRS-07, LRS-08: Envoy receives changed settings on its stream. The streams of other clients end with
/// OK, because grpc-go reads only the first response. Equal settings change nothing.
#[tokio::test]
async fn changed_settings_take_effect_on_open_streams() {
    let one = Reporting::start(&["*"]).await;
    let (mut envoy, mut grpc) = (one.open().await, one.open().await);
    envoy.send(hello("envoy", &[SENDS_ALL])).await;
    grpc.send(hello("gRPC Go", &[SENDS_ALL])).await;
    for client in [&mut envoy, &mut grpc] {
        assert!(client.next().await.send_all_clusters);
    }
    envoy.send(report(vec![stats("a", 1, 5), stats("b", 1, 6)])).await;
    one.until_reports(1).await;
    one.change(&["*"]);
    one.change(&["b"]);
    let response = envoy.next().await;
    assert_eq!(
        (response.send_all_clusters, &response.clusters[..]),
        (false, &["b".to_owned()][..])
    );
    let end = grpc.end().await;
    assert_eq!(end.code(), Code::Ok);
    let mut again = one.open().await;
    again.send(hello("gRPC Go", &[SENDS_ALL])).await;
    assert_eq!(again.next().await.clusters, ["b"]);
    // The present values of a cluster that is no longer reported end with the next report.
    envoy.send(report(vec![])).await;
    let status = one.until_reports(2).await;
    let in_progress = |place: usize| status.clusters[place].sum.as_ref().unwrap().in_progress;
    assert_eq!((in_progress(0), in_progress(1)), (0, 6));
}

/// LRS-18: a malformed report ends only its stream, and nothing of it counts.
#[tokio::test]
async fn malformed_report_ends_only_its_stream() {
    let one = Reporting::start(&["*"]).await;
    let client = http2(&one.server).await;
    let mut good = call_on(client.clone(), grpc(LRS).body(()).unwrap()).await;
    let bad = |client| async { call_on(client, grpc(LRS).body(()).unwrap()).await };
    let start = framed(0, &hello("envoy", &[SENDS_ALL]).encode_to_vec());
    good.send.send_data(start.clone(), false).unwrap();
    let no_node = framed(0, &report(vec![stats("a", 1, 1)]).encode_to_vec());
    let other_node = LoadStatsRequest { node: node("n2"), cluster_stats: vec![] };
    for (bytes, code, text) in [
        (framed(0, &[0x12, 5, 1]), 3, "malformed load report: LoadStatsRequest: the message ends"),
        (no_node, 3, "the first request of a stream has to carry a node"),
        (
            [start.clone(), framed(0, &[0x12, 2, 0x08, 1])].concat().into(),
            3,
            "malformed load report: cluster_stats: field 1 has the wrong wire type",
        ),
        (
            [start.clone(), framed(0, &other_node.encode_to_vec())].concat().into(),
            3,
            "node.id was \"n1\" at the start of the stream and is \"n2\" now",
        ),
        (framed(0, &[0x12, 0].repeat(70_000)), 8, "a load report has more than 65536 clusters"),
    ] {
        let mut stream = bad(client.clone()).await;
        stream.send_all(bytes).await;
        let (ended, message) = stream.status().await;
        assert_eq!((ended, message.starts_with(text)), (code, true), "{message}");
    }
    let counted =
        one.server.meter.counter("chancery_load_reports_total", &[("result", "rejected")]);
    assert_eq!((counted, one.server.hits("report_parts")), (5, 1));
    let more = framed(0, &report(vec![stats("a", 1, 1)]).encode_to_vec());
    good.send.send_data(more, false).unwrap();
    assert_eq!(one.until_reports(1).await.clusters.len(), 1);
}

/// LRS-19: reports change nothing in the replicated state.
#[tokio::test]
async fn reports_leave_the_replicated_state_unchanged() {
    let one = Reporting::start(&["*"]).await;
    one.server.put(CDS, &[("a", "1")]);
    let before = one.server.revision();
    let mut client = one.open().await;
    client.send(hello("envoy", &[SENDS_ALL])).await;
    client.next().await;
    client.send(report(vec![stats("a", 1, 1)])).await;
    one.until_reports(1).await;
    assert_eq!(one.server.revision(), before);
}

/// LRS-20: a server without load reports answers every attempt with UNIMPLEMENTED.
#[tokio::test]
async fn switched_off_service_is_unimplemented_and_tolerates_retries() {
    let server = Server::start().await;
    server.put(CDS, &[("a", "1")]);
    let client = http2(&server).await;
    // The last one has a delay.
    for _ in 0..6 {
        let stream = call_on(client.clone(), grpc(LRS).body(()).unwrap()).await;
        let (code, text) = stream.status().await;
        assert_eq!((code, text.contains("is not served here")), (12, true), "{text}");
    }
    let mut discovery = server.delta(DELTA_ADS).await;
    discovery.subscribe(CDS, &[]).await;
    assert_eq!(names(&discovery.next().await), ["a"]);
}

/// LRS-01, LRS-22: the service of v2 is served when the services of v2 are.
#[tokio::test]
async fn v2_service_is_served_on_request() {
    let v2 = chancery_xds::Config { v2_services: true, ..chancery_xds::Config::default() };
    for (config, is_served) in [(v2, true), (chancery_xds::Config::default(), false)] {
        let one = Reporting::with(&["*"], config, fanout_config()).await;
        let opened = Lrs::open(one.server.channel().await, LRS_V2).await;
        assert_eq!(opened.is_ok(), is_served);
        if let Ok(mut client) = opened {
            client.send(hello("envoy", &[SENDS_ALL])).await;
            assert!(client.next().await.send_all_clusters);
            client.send(report(vec![stats("a", 1, 1)])).await;
            one.until_reports(1).await;
        }
    }
}

/// OPS-11: a stream of load reports counts as a stream, for the replica and for its connection.
#[tokio::test]
async fn stream_of_reports_counts_as_a_stream() {
    let config =
        chancery_xds::Config { streams_per_connection_max: 2, ..chancery_xds::Config::default() };
    let fanout = chancery_fanout::Config { streams_max: 3, ..fanout_config() };
    let one = Reporting::with(&["*"], config, fanout).await;
    let open = |client| async { call_on(client, grpc(LRS).body(()).unwrap()).await };
    let (first, second) = (http2(&one.server).await, http2(&one.server).await);
    let _a = open(first.clone()).await;
    let b = open(first.clone()).await;
    let (code, text) = open(first.clone()).await.status().await;
    assert_eq!((code, text.contains("streams_per_connection_max")), (8, true), "{text}");
    let _c = open(second.clone()).await;
    let (code, text) = open(second.clone()).await.status().await;
    assert_eq!((code, text.contains("streams_max")), (8, true), "{text}");
    drop(b);
    until("the place is free", async || one.server.fanout.n_streams() == 2).await;
    let _d = open(second).await;
    assert_eq!(one.server.fanout.n_streams(), 3);
}

/// OPS-15, SOTW-111: a drain ends streams of reports with UNAVAILABLE, a half-close and a client's
/// timeout as on other streams.
#[tokio::test]
async fn streams_of_reports_end_like_other_streams() {
    let one = Reporting::start(&["*"]).await;
    let mut closed = one.open().await;
    closed.send(hello("gRPC Go", &[SENDS_ALL])).await;
    closed.requests = None;
    assert!(closed.next().await.send_all_clusters, "a half-close comes after the response");
    assert_eq!(closed.end().await.code(), Code::Ok);
    let timeout = grpc(LRS).header("grpc-timeout", "50m").body(()).unwrap();
    let (code, _) = call(&one.server, timeout).await.status().await;
    assert_eq!(code, Code::DeadlineExceeded as i32);
    let (mut silent, mut open) = (one.open().await, one.open().await);
    open.send(hello("envoy", &[SENDS_ALL])).await;
    open.next().await;
    one.server.drain.cancel();
    for client in [&mut silent, &mut open] {
        let end = client.end().await;
        assert_eq!((end.code(), end.message().contains("draining")), (Code::Unavailable, true));
    }
}

/// T1, T6: a client that sends reports too fast, or too large ones, is rejected. Others still report.
#[tokio::test]
async fn flood_of_reports_ends_its_stream() {
    let one = Reporting::start(&["*"]).await;
    let mut good = one.open().await;
    good.send(hello("envoy", &[SENDS_ALL])).await;
    good.next().await;
    let start = framed(0, &hello("envoy", &[SENDS_ALL]).encode_to_vec());
    let mut flood = call(&one.server, grpc(LRS).body(()).unwrap()).await;
    flood.send_all(start.clone()).await;
    let more = framed(0, &report(vec![stats("a", 1, 1)]).encode_to_vec());
    flood.send_all(more.repeat(1000).into()).await;
    let (code, text) = flood.status().await;
    assert_eq!((code, text.as_str()), (8, "more than 10 load reports per second"));
    let accepted = one.status().await.reports;
    assert!((90..200).contains(&accepted), "{accepted}");

    let mut large = call(&one.server, grpc(LRS).body(()).unwrap()).await;
    large.send_all(framed(0, &vec![0; (4 << 20) + 1])).await;
    let (code, text) = large.status().await;
    let expected = "a load report of 4194305 bytes exceeds the limit of 4194304 bytes";
    assert_eq!((code, text.as_str()), (8, expected));
    assert_eq!((one.server.hits("reports_per_second"), one.server.hits("report_bytes")), (1, 1));
    good.send(report(vec![stats("b", 1, 1)])).await;
    one.until_reports(accepted + 1).await;
}

/// T1: a client that does not read its responses still reports, and at most one response waits for it.
#[tokio::test]
async fn client_that_reads_nothing_still_reports() {
    let one = Reporting::start(&["*"]).await;
    // A window of 0 bytes: the client takes no data.
    let mut frames = Frames::start_with(&one.server, &[(4, 0)]).await;
    let path = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", LRS),
        header(":authority", "chancery"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat();
    let start = framed(0, &hello("envoy", &[SENDS_ALL]).encode_to_vec());
    frames.send(&frame(HEADERS, END_HEADERS, 1, &path)).await;
    frames.send(&frame(DATA, 0, 1, &start)).await;
    until("the stream is open", async || one.status().await.streams == 1).await;
    for n in 0..200 {
        one.change(&[&format!("c{n}")]);
        tokio::task::yield_now().await;
    }
    let more = framed(0, &report(vec![stats("c199", 1, 1)]).encode_to_vec());
    frames.send(&frame(DATA, 0, 1, &more)).await;
    assert_eq!(one.until_reports(1).await.clusters.len(), 1);
    // When the client reads again, it receives the first response and the newest settings, and
    // perhaps one that was sent between.
    frames.send(&frame(WINDOW_UPDATE, 0, 1, &(1_u32 << 20).to_be_bytes())).await;
    let mut responses = Vec::new();
    while responses.last().is_none_or(|last: &LoadStatsResponse| last.clusters != ["c199"]) {
        let data = frames.until(DATA).await.payload;
        let mut left = &data[..];
        while let Some((prefix, rest)) = left.split_at_checked(5) {
            let len = usize::from(prefix[4]) + 256 * usize::from(prefix[3]);
            responses.push(LoadStatsResponse::decode(&rest[..len]).unwrap());
            left = &rest[len..];
        }
    }
    assert!(responses.len() <= 3, "{responses:?}");
}
