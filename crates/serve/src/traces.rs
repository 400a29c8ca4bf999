//! The traces of writes (`[trace]`).

use chancery_config::{Config, endpoint_rule};
use chancery_model::without_credentials;
use chancery_store::Replica;
use chancery_trace::Tracer;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::Failure;

/// Starts the exporter of traces, if a receiver is configured.
pub(super) fn start(
    config: &Config,
    replica: &Replica,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Result<Tracer, Failure> {
    let Some(settings) = config.trace.settings(config.raft.replica_id) else {
        return Ok(Tracer::default());
    };
    if let Some(rule) = endpoint_rule(&settings.endpoint) {
        // `config check` has checked the key, so the value is that of a variable, which may be for other programs.
        warn!(
            address = without_credentials(&settings.endpoint),
            "no write is traced: the OTLP endpoint of the environment {rule}"
        );
        return Ok(Tracer::default());
    }
    let tracer = Tracer::start_exporter(&settings, tasks, stop.clone())
        .map_err(|error| Failure::new(format_args!("cannot start traces: {error}")))?;
    replica.remember_apply_times();
    info!(address = without_credentials(&settings.endpoint), "writes are traced");
    Ok(tracer)
}
