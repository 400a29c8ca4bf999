//! The metrics of the process: their recorder, and the buckets of histograms.

use std::time::Duration;

use chancery_metrics::{Metric, MetricKind};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;

use super::{log_writer, process_metrics};
use crate::Failure;

/// The version of this program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The revision of the source of this program. `cargo xtask build` sets it for the optimized program.
const REVISION: &str = match option_env!("CHANCERY_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
/// The version of the compiler of this program, from the build script.
const RUSTC: &str = env!("CHANCERY_RUSTC");
/// The metrics of the binary itself.
const METRICS: &[Metric] = &[
    Metric::new(
        "chancery_build_info",
        MetricKind::Gauge,
        "Always 1; the labels are the version, the revision of the source and the compiler of the program",
    ),
    Metric::new(
        "chancery_log_lines_dropped_total",
        MetricKind::Counter,
        "Lines of the log that were lost, because standard error did not accept them in time",
    ),
];
/// The interval at which histograms process their samples, whether or not anybody reads the
/// metrics.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// The upper bounds of histogram buckets for times, in seconds. They range from an fsync on a fast
/// disk to the time that a client waits.
const SECONDS: [f64; 18] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];
/// The upper bounds of histogram buckets for sizes, in bytes. One bound is the default message
/// limit of gRPC clients. Full states are larger.
const BYTES: [f64; 10] = [
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Starts recording.
///
/// # Errors
/// If another recorder is installed.
pub(super) fn start() -> Result<PrometheusHandle, Failure> {
    let fail = |error| Failure::new(format_args!("cannot start metrics: {error}"));
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), &BYTES)
        })
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| fail(error.to_string()))?;
    chancery_metrics::describe(METRICS);
    chancery_tls::register_metrics();
    chancery_auth::register_metrics();
    chancery_secrets::register_metrics();
    chancery_trace::register_metrics();
    metrics::gauge!(
        "chancery_build_info", "version" => VERSION, "revision" => REVISION, "rustc" => RUSTC
    )
    .set(1.0);
    metrics::counter!(log_writer::DROPPED).increment(0);
    Ok(handle)
}

/// Returns all metrics in Prometheus' text format.
pub(super) fn render(metrics: &PrometheusHandle) -> String {
    let mut text = metrics.render();
    chancery_metrics::append_samples(
        &mut text,
        process_metrics::METRICS,
        &process_metrics::samples(),
    );
    let runtimes = chancery_metrics::runtime_samples();
    chancery_metrics::append_samples(&mut text, chancery_metrics::METRICS, &runtimes);
    text
}

/// Processes the samples of histograms until `stop`.
pub(super) async fn run_upkeep(metrics: PrometheusHandle, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(METRICS_UPKEEP);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => metrics.run_upkeep(),
        }
    }
}
