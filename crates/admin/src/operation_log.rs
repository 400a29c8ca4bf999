//! The log line of each operation: who did what, and with which outcome.
//!
//! The fields are those of a record of the audit log. Texts of callers are recorded as values, which the log quotes
//! and escapes.

use chancery_audit::{Decision, Event};
use serde_json::Value;
use tracing::{debug, info};

use crate::write_trace::WriteTrace;

/// Writes the line of an operation that has ended. A dry run has no effect, so its line has the level debug.
pub(crate) fn log(event: &Event, is_dry_run: bool) {
    let number = |key: &str| event.details.get(key).and_then(Value::as_u64);
    let text = |key: &str| event.details.get(key).and_then(Value::as_str);
    let given = |text: &'static str| (!text.is_empty()).then_some(text);
    let of = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let source = event.source.map(|source| source.to_string());
    let trace = WriteTrace::current().map(|trace| trace.id());
    let (outcome, reason) = outcome(event.decision);
    macro_rules! line {
        ($level:ident) => {
            $level!(
                operation = event.verb,
                outcome,
                reason = given(reason),
                principal = event.principal.as_str(),
                source = source.as_deref(),
                scope = of(&event.target.scope),
                "type" = of(&event.target.type_name),
                name = of(&event.target.name),
                request_id = of(&event.request_id),
                author = text("author"),
                revision = number("revision"),
                changed = number("changed"),
                removed = number("removed"),
                trace_id = trace.as_deref(),
                "operation"
            )
        };
    }
    match is_dry_run {
        true => line!(debug),
        false => line!(info),
    }
}

fn outcome(decision: Decision) -> (&'static str, &'static str) {
    match decision {
        Decision::Pending => ("pending", ""),
        Decision::Allowed => ("allowed", ""),
        Decision::Refused(reason) => ("refused", reason),
        Decision::Failed(reason) => ("failed", reason),
        Decision::Unknown(reason) => ("unknown", reason),
    }
}
