//! The cost of admitting clusters: of the whole admission of a manifest, and of validation alone.
//!
//! A round measures every kind of cluster in turn, with distinct names. Times are CPU times of one thread.

use std::{io, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use chancery_admission::{
    Admitted, Manifest, Options as Admission, Validation, ValidationMode, admit_unless,
    body_to_json, fuzz,
};
use chancery_model::{ResourceDraft, ScopeName};

use crate::{
    report::Spread,
    stopwatch::{Stopwatch, Tally},
};

/// Measure the cost of admitting and validating clusters
///
/// Exits with 1 if `--check` is given and validation is slower than `--per-second-min`.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "admission", max_term_width = 100)]
pub struct Options {
    /// Number of clusters in a manifest
    #[arg(long, default_value_t = 2000)]
    clusters: usize,
    /// Number of rounds, in addition to one warm-up round
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    /// Exit with 1 if validation is slower than `--per-second-min`
    #[arg(long)]
    check: bool,
    /// Minimum number of clusters of each kind that one core validates per second
    #[arg(long, default_value_t = 20_000.0)]
    per_second_min: f64,
    /// The flag that `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The kinds of clusters. `NAME` stands for the name.
const KINDS: [(&str, &str); 3] = [
    ("EDS, TLS, HTTP/2, health checks, outlier detection", EDS),
    ("DNS, 3 endpoints, HTTP options", DNS),
    ("static, 24 endpoints", STATIC),
];

const EDS: &str = r#"
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: NAME
  type: EDS
  connect_timeout: 2s
  lb_policy: LEAST_REQUEST
  eds_cluster_config:
    eds_config: {ads: {}, resource_api_version: V3}
    service_name: NAME.default.svc
  circuit_breakers:
    thresholds:
    - {priority: DEFAULT, max_connections: 4096, max_pending_requests: 1024, max_requests: 8192, max_retries: 3}
  health_checks:
  - timeout: 1s
    interval: 10s
    unhealthy_threshold: 3
    healthy_threshold: 2
    http_health_check:
      path: /healthz
      expected_statuses: [{start: 200, end: 300}]
  outlier_detection: {consecutive_5xx: 5, interval: 10s, base_ejection_time: 30s, max_ejection_percent: 20}
  common_lb_config: {healthy_panic_threshold: {value: 25}}
  metadata:
    filter_metadata: {chancery: {team: payments, tier: "1"}}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      explicit_http_config: {http2_protocol_options: {max_concurrent_streams: 100}}
  transport_socket:
    name: envoy.transport_sockets.tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      sni: NAME.example.com
      common_tls_context:
        tls_certificate_sds_secret_configs:
        - {name: client, sds_config: {ads: {}, resource_api_version: V3}}
        validation_context:
          trusted_ca: {filename: /etc/ssl/ca.pem}
          match_typed_subject_alt_names:
          - {san_type: DNS, matcher: {exact: NAME.example.com}}
        alpn_protocols: [h2]
"#;

const DNS: &str = r#"
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: NAME
  type: STRICT_DNS
  connect_timeout: 0.25s
  lb_policy: ROUND_ROBIN
  dns_lookup_family: V4_ONLY
  load_assignment:
    cluster_name: NAME
    endpoints:
    - locality: {region: eu-central-1, zone: a}
      lb_endpoints:
      - endpoint: {address: {socket_address: {address: NAME-0.example.com, port_value: 8080}}}
      - endpoint: {address: {socket_address: {address: NAME-1.example.com, port_value: 8080}}}
    - locality: {region: eu-central-1, zone: b}
      lb_endpoints:
      - endpoint: {address: {socket_address: {address: NAME-2.example.com, port_value: 8080}}}
  typed_extension_protocol_options:
    envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
      "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
      common_http_protocol_options: {idle_timeout: 60s}
      explicit_http_config: {http_protocol_options: {}}
"#;

const STATIC: &str = r#"
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: NAME
  type: STATIC
  connect_timeout: 5s
  load_assignment:
    cluster_name: NAME
    endpoints:
    - lb_endpoints:
"#;

/// The measured ways through admission.
#[derive(Debug, Clone, Copy)]
struct Times {
    yaml: f64,
    json: f64,
    json_unvalidated: f64,
    validation: f64,
    five_profiles: f64,
}

/// The ways that have to be fast.
const VALIDATION: [&str; 2] = ["validation alone", "the same for five profiles"];

/// One of the times.
type Cost = fn(&Times) -> f64;

/// The input of one kind.
struct Input {
    yaml: Manifest,
    json: Manifest,
    drafts: Vec<ResourceDraft>,
}

/// Measures all kinds of clusters and prints a table. Returns whether the check passed, or was not requested.
///
/// # Errors
/// Fails if a number is 0, if a cluster is refused, or if the output cannot be written.
pub fn run(options: &Options, out: &mut (dyn io::Write + Send)) -> Result<bool> {
    ensure!(
        options.clusters > 0 && options.rounds > 0,
        "`--clusters` and `--rounds` must be at least 1"
    );
    on_large_stack(|| measure(options, out))
}

/// Runs a measurement on a thread that may read YAML. Admission reads it on a thread with a large stack, whose
/// CPU time would not count.
pub(crate) fn on_large_stack(measure: impl FnOnce() -> Result<bool> + Send) -> Result<bool> {
    let measure = || {
        fuzz::read_on_this_thread();
        measure()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, measure)?;
        thread.join().map_err(|_| anyhow!("the measuring thread failed"))?
    })
}

fn measure(options: &Options, out: &mut dyn io::Write) -> Result<bool> {
    let Options { clusters, rounds, .. } = options;
    let watch = Stopwatch::calibrated();
    let inputs = KINDS.iter().map(|(_, text)| input(text, *clusters));
    let inputs = inputs.collect::<Result<Vec<Input>>>()?;
    let mut samples: Vec<Vec<Times>> = vec![Vec::new(); inputs.len()];
    for round in 0..=*rounds {
        for (input, samples) in inputs.iter().zip(&mut samples) {
            let times = input.times(watch)?;
            // The first round is the warm-up.
            if round > 0 {
                samples.push(times);
            }
        }
    }
    writeln!(
        out,
        "median (quartiles) of {rounds} rounds with {clusters} clusters each; CPU time per cluster, in us"
    )?;
    let mut holds = true;
    for (((name, _), input), samples) in KINDS.iter().zip(&inputs).zip(&samples) {
        let bytes: usize = input.drafts.iter().map(|draft| draft.body.len()).sum();
        writeln!(out, "\n{name}; {} bytes encoded", bytes / clusters)?;
        let ways: [(&str, Cost); 5] = [
            ("admission of YAML", |times| times.yaml),
            ("admission of JSON", |times| times.json),
            ("the same without validation", |times| times.json_unvalidated),
            (VALIDATION[0], |times| times.validation),
            (VALIDATION[1], |times| times.five_profiles),
        ];
        for (way, of) in ways {
            let spread =
                Spread::of(&samples.iter().map(of).collect::<Vec<f64>>()).context("no rounds")?;
            let per_second = 1e9 / spread.median;
            writeln!(
                out,
                "  {way:<28} {:>8.1} ({:.1} to {:.1}); {per_second:.0} clusters/s",
                spread.median / 1e3,
                spread.low / 1e3,
                spread.high / 1e3
            )?;
            if VALIDATION.contains(&way) && per_second < options.per_second_min {
                holds = false;
                writeln!(out, "TOO SLOW  {name}: below {} clusters/s", options.per_second_min)?;
            }
        }
    }
    Ok(holds || !options.check)
}

/// Returns a number of clusters of one kind, as YAML, as JSON and encoded.
fn input(text: &str, n: usize) -> Result<Input> {
    let mut cluster = text.to_owned();
    if text == STATIC {
        for at in 0..24 {
            let address = format!("{{address: 10.0.0.{at}, port_value: 8080}}");
            cluster.push_str(&format!(
                "      - endpoint: {{address: {{socket_address: {address}}}}}\n"
            ));
        }
    }
    let clusters = (0..n).map(|n| cluster.replace("NAME", &format!("cluster-{n:07}")));
    let yaml = format!("resources:{}", clusters.collect::<String>());
    let yaml = Manifest { file: "clusters.yaml".to_owned(), content: yaml };
    let drafts = admit(&yaml, ValidationMode::Enforce)?;
    let resources = drafts.iter().map(|draft| body_to_json(&draft.key.type_url, &draft.body));
    let json = serde_json::json!({"resources": resources.collect::<Vec<_>>()}).to_string();
    Ok(Input { yaml, json: Manifest { file: "clusters.json".to_owned(), content: json }, drafts })
}

impl Input {
    fn times(&self, watch: Stopwatch) -> Result<Times> {
        let admission = |manifest: &Manifest, mode: ValidationMode| {
            let mut tally = Tally::default();
            let drafts = watch.time(&mut tally, self.drafts.len(), || admit(manifest, mode))?;
            ensure!(drafts.len() == self.drafts.len(), "{} clusters were admitted", drafts.len());
            tally.per_op().context("no clusters")
        };
        let mut tally = Tally::default();
        let n = watch.time(&mut tally, self.drafts.len(), || {
            self.drafts.iter().map(fuzz::n_findings).sum::<usize>()
        });
        ensure!(n == 0, "the clusters have {n} findings");
        let mut all = Tally::default();
        watch.time(&mut all, self.drafts.len(), || {
            self.drafts.iter().map(fuzz::n_findings_for_all).sum::<usize>()
        });
        Ok(Times {
            yaml: admission(&self.yaml, ValidationMode::Enforce)?,
            json: admission(&self.json, ValidationMode::Enforce)?,
            json_unvalidated: admission(&self.json, ValidationMode::Off)?,
            validation: tally.per_op().context("no clusters")?,
            five_profiles: all.per_op().context("no clusters")?,
        })
    }
}

/// Reads the resources of a manifest.
pub(crate) fn admit(manifest: &Manifest, mode: ValidationMode) -> Result<Vec<ResourceDraft>> {
    let options = Admission {
        validation: Validation::of(mode),
        ..Admission::new(ScopeName::new("default")?)
    };
    match admit_unless(std::slice::from_ref(manifest), &options, &std::sync::Arc::default()) {
        Ok(Admitted { transaction, .. }) => {
            Ok(transaction.upserts.into_iter().map(|upsert| upsert.draft).collect())
        }
        Err(problems) => {
            let text = problems.first().map(ToString::to_string).unwrap_or_default();
            Err(anyhow!("a cluster was refused: {text}"))
        }
    }
}
