//! `/metrics` shows exactly the metrics that the tables describe, from the start of the process.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use chancery_metrics::MetricKind;
use chancery_model::types::CLUSTER;
use chancery_proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Status,
};
use prost::Message;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming, transport::Channel};

use crate::support::{DEADLINE, Server, clusters, http_get};

const SOTW: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The kind and the help of each metric, by name.
type Families = BTreeMap<String, (String, String)>;

/// The result of one `GET /metrics`.
struct Scrape {
    families: Families,
    /// The values by name and labels, as in the text.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn of(server: &Server) -> Self {
        let (status, body) = http_get(&server.admin, "/metrics");
        assert_eq!(status, 200, "{body}");
        let mut scrape = Self { families: Families::new(), samples: BTreeMap::new() };
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                scrape.families.entry(name.to_owned()).or_default().1 = help.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                scrape.families.entry(name.to_owned()).or_default().0 = kind.to_owned();
            } else if let Some((sample, value)) = line.rsplit_once(' ') {
                scrape.samples.insert(sample.to_owned(), value.parse().unwrap());
            }
        }
        scrape
    }

    /// Returns the sum of all samples with this name, over all labels.
    fn sum(&self, name: &str) -> f64 {
        let own = self.samples.iter().filter(|(sample, _)| {
            sample.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        });
        own.map(|(_, value)| value).sum()
    }

    /// Returns the names of the families that have samples.
    fn sampled(&self) -> BTreeSet<&str> {
        let family = |sample: &str| {
            let name = sample.split('{').next().unwrap_or_default().to_owned();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s));
            let base = base.filter(|base| self.families.contains_key(*base)).map(str::to_owned);
            base.unwrap_or(name)
        };
        let names: BTreeSet<String> = self.samples.keys().map(|sample| family(sample)).collect();
        self.families.keys().map(String::as_str).filter(|name| names.contains(*name)).collect()
    }
}

/// The metrics of the process, whose table the binary does not export.
const PROCESS: [(&str, &str, &str); 7] = [
    ("process_cpu_seconds_total", "counter", "CPU time of all threads, in user and system mode"),
    ("process_resident_memory_bytes", "gauge", "Resident memory"),
    ("process_virtual_memory_bytes", "gauge", "Virtual memory"),
    ("process_open_fds", "gauge", "Open file descriptors"),
    ("process_max_fds", "gauge", "The limit of open file descriptors"),
    ("process_start_time_seconds", "gauge", "The start of the process, in seconds since 1970"),
    ("process_threads", "gauge", "Threads of the process"),
];

/// Returns the metrics of all tables of the binary's crates.
fn described() -> Families {
    let of = |kind: MetricKind| match kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram => "histogram",
    };
    let tables = [
        chancery_fanout::METRICS,
        chancery_xds::METRICS,
        chancery_admin::METRICS,
        chancery_audit::METRICS,
        chancery_load::METRICS,
        chancery_mcp::METRICS,
        chancery_store::METRICS,
        chancery_tls::METRICS,
        chancery_auth::METRICS,
        chancery_secrets::METRICS,
        chancery_trace::METRICS,
        chancery_metrics::METRICS,
    ];
    let mut all: Families = tables
        .into_iter()
        .flatten()
        .map(|metric| {
            (metric.name.to_owned(), (of(metric.kind).to_owned(), metric.help.to_owned()))
        })
        .collect();
    let build = (
        "gauge".to_owned(),
        "Always 1; the labels are the version, the revision of the source and the compiler of the program".to_owned(),
    );
    all.insert("chancery_build_info".to_owned(), build);
    let dropped = (
        "counter".to_owned(),
        "Lines of the log that were lost, because standard error did not accept them in time"
            .to_owned(),
    );
    all.insert("chancery_log_lines_dropped_total".to_owned(), dropped);
    let process =
        PROCESS.map(|(name, kind, help)| (name.to_owned(), (kind.to_owned(), help.to_owned())));
    all.extend(process);
    all
}

/// A stream of one client.
struct Client<Q, R> {
    requests: tokio::sync::mpsc::Sender<Q>,
    responses: Streaming<R>,
}

impl<Q: Message + 'static, R: Message + Default + 'static> Client<Q, R> {
    async fn open(server: &Server, path: &'static str, first: Q) -> Self {
        let endpoint = Channel::from_shared(format!("http://{}", server.xds)).unwrap();
        let mut grpc = tonic::client::Grpc::new(endpoint.connect().await.unwrap());
        grpc.ready().await.unwrap();
        let (requests, receiver) = tokio::sync::mpsc::channel(8);
        requests.send(first).await.unwrap();
        let stream = tonic::Request::new(ReceiverStream::new(receiver));
        let path = http::uri::PathAndQuery::from_static(path);
        let codec = tonic_prost::ProstCodec::<Q, R>::default();
        let responses = grpc.streaming(stream, path, codec).await.unwrap().into_inner();
        Self { requests, responses }
    }

    async fn next(&mut self) -> Result<Option<R>, tonic::Status> {
        tokio::time::timeout(DEADLINE, self.responses.message()).await.expect("a response in time")
    }
}

fn node(id: &str) -> Option<prost::bytes::Bytes> {
    let node = chancery_proto::node::Node { id: id.into(), ..Default::default() };
    Some(node.encode_to_vec().into())
}

/// Runs clients of both protocol variants: one accepts everything, one rejects, and one exceeds a
/// limit.
async fn play(server: &Server) {
    let type_url = || CLUSTER.to_owned();
    let first = DiscoveryRequest { type_url: type_url(), node: node("s"), ..Default::default() };
    let mut sotw: Client<_, DiscoveryResponse> = Client::open(server, SOTW, first).await;
    let first =
        DeltaDiscoveryRequest { type_url: type_url(), node: node("d"), ..Default::default() };
    let mut delta: Client<_, DeltaDiscoveryResponse> = Client::open(server, DELTA, first).await;

    let response = sotw.next().await.unwrap().unwrap();
    let ack = DiscoveryRequest {
        type_url: type_url(),
        response_nonce: response.nonce,
        version_info: response.version_info,
        ..Default::default()
    };
    sotw.requests.send(ack).await.unwrap();
    let response = delta.next().await.unwrap().unwrap();
    let nack = DeltaDiscoveryRequest {
        type_url: type_url(),
        response_nonce: response.nonce,
        error_detail: Some(Status { code: 13, message: "no".to_owned(), ..Default::default() }),
        ..Default::default()
    };
    delta.requests.send(nack).await.unwrap();

    let first = DeltaDiscoveryRequest {
        type_url: type_url(),
        node: node("l"),
        resource_names_subscribe: vec!["x".repeat(1 << 20)],
        ..Default::default()
    };
    let mut limited: Client<_, DeltaDiscoveryResponse> = Client::open(server, DELTA, first).await;
    let status = limited.next().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");

    // The first two clients are still connected. One of them has rejected its resources.
    let expected = [
        ("chancery_xds_acks_total{type=\"cluster\"}", 1.0),
        ("chancery_xds_nacks_total{type=\"cluster\"}", 1.0),
        ("chancery_xds_rejecting_streams", 1.0),
        ("chancery_xds_nodes{state=\"rejected\"}", 1.0),
        ("chancery_xds_nodes{state=\"synced\"}", 1.0),
        ("chancery_xds_nodes{state=\"unassigned\"}", 0.0),
        ("chancery_xds_streams{protocol=\"sotw\",type=\"aggregated\"}", 1.0),
        ("chancery_xds_streams{protocol=\"delta\",type=\"aggregated\"}", 1.0),
        ("chancery_xds_limits_hit_total{limit=\"name_bytes\"}", 1.0),
        ("chancery_xds_requests_by_kind_total{kind=\"nack\"}", 1.0),
        ("chancery_xds_suppressed_resends_total{reason=\"rejected\"}", 1.0),
    ];
    let start = Instant::now();
    loop {
        let scrape = Scrape::of(server);
        let wrong: Vec<_> = expected
            .iter()
            .map(|(sample, value)| (sample, value, scrape.samples.get(*sample)))
            .filter(|(_, value, found)| *found != Some(*value))
            .collect();
        if wrong.is_empty() {
            return;
        }
        assert!(start.elapsed() < DEADLINE, "expected and found: {wrong:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The configuration of a server whose metrics include those of a source and of an issuer.
const SOURCE_AND_ISSUER: [(&str, &str); 2] = [
    (
        "CHANCERY_MCP_SOURCES",
        "[{name = 'pilot', address = '127.0.0.1:9', scope = 'mesh', collections = ['a/b/c']}]",
    ),
    (
        "CHANCERY_AUTH_ISSUERS",
        "[{name = 'corp', url = 'https://idp', jwks_url = 'http://127.0.0.1:9/keys'}]",
    ),
];

/// Returns the names and labels that rules of Prometheus select.
fn selected(rules: &str) -> Vec<(&str, Vec<(&str, &str)>)> {
    let rest = rules.match_indices("chancery_").map(|(at, _)| &rules[at..]);
    rest.map(|rest| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap()];
        let labels = rest[name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let labels = labels.map_or("", |(labels, _)| labels).split(',');
        let labels = labels.filter(|label| !label.is_empty() && !label.contains("!="));
        let labels = labels.map(|label| {
            let (key, value) = label.split_once('=').unwrap();
            (key, value.trim_start_matches('~').trim_matches('"'))
        });
        (name, labels.collect())
    })
    .collect()
}

/// Compares the metrics of the process and of its runtimes with what the system shows.
fn check_process(server: &Server, scrape: &Scrape) {
    let dir = format!("/proc/{}", server.child.id());
    let threads = std::fs::read_dir(format!("{dir}/task")).unwrap().count();
    let files = std::fs::read_dir(format!("{dir}/fd")).unwrap().count();
    for (name, now) in [("process_threads", threads), ("process_open_fds", files)] {
        // Threads and connections of the clients may have ended since.
        let shown = scrape.sum(name);
        assert!(
            (shown - f64::from(u32::try_from(now).unwrap())).abs() < 20.0,
            "{name}: {shown}, now {now}"
        );
    }
    let memory = scrape.sum("process_resident_memory_bytes");
    assert!((8e6..2e9).contains(&memory), "{memory} bytes");
    assert!(scrape.sum("process_open_fds") < scrape.sum("process_max_fds"));
    for runtime in ["chancery", "chancery-admin", "chancery-opening", "chancery-raft"] {
        let value = |metric: &str| {
            let sample = format!("chancery_runtime_{metric}{{runtime=\"{runtime}\"}}");
            *scrape.samples.get(&sample).unwrap_or_else(|| panic!("no sample {sample}"))
        };
        assert!(value("workers") >= 1.0, "{runtime}");
        assert!(value("busy_seconds_total") > 0.0, "{runtime}");
    }
    let tasks = scrape.sum("chancery_runtime_alive_tasks");
    assert!((4.0..10_000.0).contains(&tasks), "{tasks} tasks");
    let build =
        scrape.samples.keys().find(|sample| sample.starts_with("chancery_build_info{")).unwrap();
    for label in ["version=\"", "revision=\"", "rustc=\"1."] {
        assert!(build.contains(label), "{build}");
    }
}

/// An alert rule that selects nothing would never fire.
#[test]
fn every_alert_rule_selects_a_metric() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_with(&directory.path().join("data"), &SOURCE_AND_ISSUER);
    let scrape = Scrape::of(&server);
    let mixin = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/mixin");
    let read = |name: &str| std::fs::read_to_string(format!("{mixin}/{name}")).unwrap();
    let rules = read("alerts.yaml") + &read("recording.yaml");
    let selected = selected(&rules);
    assert!(selected.len() > 60, "{selected:?}");
    for (name, labels) in selected {
        let of_name = scrape.samples.keys().filter(|sample| sample.split('{').next() == Some(name));
        let of_name: Vec<&String> = of_name.collect();
        assert!(!of_name.is_empty(), "no sample of {name}");
        for (key, values) in labels {
            // Prometheus 3 writes numbers in another form, such as 5[.]0.
            for value in values.split('|').filter(|value| !value.contains('[')) {
                let label = format!("{key}=\"{value}\"");
                let found = of_name.iter().any(|sample| sample.contains(&label));
                assert!(found, "no sample of {name} has {label}");
            }
        }
    }
}

/// Each metric of a table exists from the start with its kind and its help, so that alerts see 0
/// instead of no data. Every metric that appears later is in a table, too.
#[test]
fn scraped_metrics_match_the_described_tables() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start_with(&directory.path().join("data"), &SOURCE_AND_ISSUER);
    let described = described();
    let check = |scrape: &Scrape| {
        let names: BTreeSet<&str> = described.keys().map(String::as_str).collect();
        let sampled = scrape.sampled();
        let missing: Vec<_> = names.difference(&sampled).collect();
        assert!(missing.is_empty(), "described but not exported: {missing:?}");
        for (name, shown) in &scrape.families {
            assert_eq!(Some(shown), described.get(name), "{name}");
        }
        for sample in scrape.samples.keys() {
            let known = names.iter().any(|name| sample.starts_with(name));
            assert!(known, "no table has {sample}");
        }
    };
    check(&Scrape::of(&server));

    server.json(&["apply", "-f", "-"], &clusters(&["a", "b"], "1s"));
    let refused = server.run_with_input(&["apply", "-f", "-"], "resources: 1");
    assert_eq!(refused.code, 1, "{refused:?}");
    server.json(&["delete", "cluster", "b"], "");
    server.json(&["nodes"], "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(&server));
    drop(runtime);

    // A scrape includes all samples of histograms up to then.
    let scrape = Scrape::of(&server);
    check(&scrape);
    for moved in [
        "chancery_admin_writes_total",
        "chancery_admin_write_seconds_count",
        "chancery_store_commits_total",
        "chancery_store_fsyncs_total",
        "chancery_xds_connections_total",
        "chancery_xds_requests_total",
        "chancery_xds_request_bytes_total",
        "chancery_xds_pushes_total",
        "chancery_xds_pushed_bytes_total",
        "chancery_xds_response_bytes_count",
        "chancery_xds_ack_seconds_count",
        "chancery_xds_first_sync_seconds_count",
        "chancery_xds_commit_seconds_count",
        "chancery_xds_inbox_wait_seconds_count",
        "chancery_xds_queue_wait_seconds_count",
        "chancery_xds_shard_turn_seconds_sum",
        "process_cpu_seconds_total",
    ] {
        assert!(scrape.sum(moved) > 0.0, "{moved} is still 0");
    }
    check_process(&server, &scrape);
}
