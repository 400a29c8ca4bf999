//! Warnings about standard variables of OpenTelemetry that have no effect.

/// A variable that this program does not read.
struct Ignored {
    /// The end of the name.
    name: &'static str,
    /// The values that agree with the program, in lower case.
    accepted_values: &'static [&'static str],
    /// Why the variable has no effect, and what to do.
    reason: &'static str,
}

const fn ignored(
    name: &'static str,
    accepted_values: &'static [&'static str],
    reason: &'static str,
) -> Ignored {
    Ignored { name, accepted_values, reason }
}

/// The prefixes of variables for all signals, and for traces only.
const EXPORTER: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"];
/// Variables that exist with both prefixes.
const OF_EXPORTER: [Ignored; 8] = [
    ignored(
        "PROTOCOL",
        &["grpc"],
        "traces are sent over gRPC only; use the port of the receiver for gRPC (4317)",
    ),
    ignored(
        "HEADERS",
        &[],
        "traces are sent without headers; let an OpenTelemetry Collector add them",
    ),
    ignored("CERTIFICATE", &[], NO_TLS),
    ignored("CLIENT_CERTIFICATE", &[], NO_TLS),
    ignored("CLIENT_KEY", &[], NO_TLS),
    ignored("INSECURE", &["true"], NO_TLS),
    ignored("COMPRESSION", &["none"], "traces are sent uncompressed; remove the variable"),
    ignored("TIMEOUT", &[], "the receiver has 5 s to accept a batch; remove the variable"),
];
const NO_TLS: &str =
    "traces are sent unencrypted; use an OpenTelemetry Collector on the same host or network";
/// Further variables.
const OTHERS: [Ignored; 8] = [
    ignored("OTEL_TRACES_SAMPLER", &[], SAMPLER),
    ignored("OTEL_TRACES_SAMPLER_ARG", &[], SAMPLER),
    ignored(
        "OTEL_TRACES_EXPORTER",
        &["otlp"],
        "traces are sent over OTLP only; to send none, set OTEL_SDK_DISABLED to true",
    ),
    ignored(
        "OTEL_PROPAGATORS",
        &["tracecontext", "tracecontext,baggage"],
        "the header traceparent (W3C Trace Context) is used; remove the variable",
    ),
    ignored("OTEL_BSP_SCHEDULE_DELAY", &[], BATCHES),
    ignored("OTEL_BSP_EXPORT_TIMEOUT", &[], BATCHES),
    ignored("OTEL_BSP_MAX_QUEUE_SIZE", &["2048"], BATCHES),
    ignored("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &[], BATCHES),
];
const SAMPLER: &str = "the header traceparent or trace.sample_percent decides which writes are traced; set trace.sample_percent";
const BATCHES: &str = "the limits of batches are fixed; remove the variable";

/// Returns the warning about a variable that has no effect. Its value may be secret, and is not shown.
pub(crate) fn warning(name: &str, value: &str) -> Option<String> {
    let of_exporter = EXPORTER.iter().find_map(|start| name.strip_prefix(start));
    let found = OF_EXPORTER.iter().find(|ignored| of_exporter == Some(ignored.name));
    let found = found.or_else(|| OTHERS.iter().find(|ignored| name == ignored.name))?;
    let value = value.trim().to_lowercase();
    let has_no_effect = !value.is_empty() && !found.accepted_values.contains(&value.as_str());
    has_no_effect
        .then(|| format!("the environment variable {name} has no effect: {}", found.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_without_effect_is_reported_without_its_value() {
        for (name, value, reason) in [
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                "http/protobuf",
                "traces are sent over gRPC only; use the port of the receiver for gRPC (4317)",
            ),
            (
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                "authorization=secret",
                "traces are sent without headers; let an OpenTelemetry Collector add them",
            ),
            (
                "OTEL_TRACES_SAMPLER",
                "parentbased_traceidratio",
                "the header traceparent or trace.sample_percent decides which writes are traced; set trace.sample_percent",
            ),
            (
                "OTEL_TRACES_EXPORTER",
                "none",
                "traces are sent over OTLP only; to send none, set OTEL_SDK_DISABLED to true",
            ),
        ] {
            let expected = format!("the environment variable {name} has no effect: {reason}");
            assert_eq!(warning(name, value), Some(expected));
        }
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", ""),
            ("OTEL_PROPAGATORS", "tracecontext,baggage"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317"),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf"),
            ("OTEL_SERVICE_NAME", "mesh"),
            ("OTEL_METRICS_EXPORTER", "none"),
        ] {
            assert_eq!(warning(name, value), None, "{name}={value}");
        }
    }
}
