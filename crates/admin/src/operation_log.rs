//! The log line of each operation: who did what, and with which outcome.
//!
//! The fields are those of a record of the audit log. Texts of callers are truncated, and recorded as values, which the
//! log quotes and escapes.
//!
//! Invariant: requests that change nothing write a limited number of lines per second.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use chancery_audit::{Decision, Event, source_text, truncated};
use chancery_fanout::RateLimitedLog;
use parking_lot::Mutex;
use serde_json::Value;
use tracing::{Level, debug, enabled, info};

use crate::write_trace::WriteTrace;

/// The lines of operations that were refused or have failed. The process has one log.
static REFUSALS: Mutex<RateLimitedLog> = Mutex::new(RateLimitedLog::new());
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Writes the line of an operation that has ended. A dry run has no effect, so its line has the level debug.
pub(crate) fn log(event: &Event, is_dry_run: bool, trace: Option<&WriteTrace>) {
    if is_dry_run && !enabled!(Level::DEBUG) {
        return;
    }
    let left_out = take(event.decision, &mut REFUSALS.lock(), START.elapsed());
    if let Some(left_out) = left_out {
        write(event, is_dry_run, left_out, trace);
    }
}

/// Returns `None` if a line must not be written, or else the number of lines left out since the last one. An operation
/// that has changed something, or may have, always has a line.
fn take(decision: Decision, refusals: &mut RateLimitedLog, now: Duration) -> Option<u64> {
    match decision {
        Decision::Refused(_) | Decision::Failed(_) => refusals.take(now.as_secs()),
        Decision::Pending | Decision::Allowed | Decision::Unknown(_) => Some(0),
    }
}

fn write(event: &Event, is_dry_run: bool, left_out: u64, trace: Option<&WriteTrace>) {
    let number = |key: &str| event.details.get(key).and_then(Value::as_u64);
    let text = |key: &str| event.details.get(key).and_then(Value::as_str).map(truncated);
    let given = |text: &'static str| (!text.is_empty()).then_some(text);
    let of = |text: &str| (!text.is_empty()).then(|| truncated(text));
    let source = event.source.map(source_text);
    let several = &event.target.scopes;
    let scopes = (!several.is_empty()).then(|| truncated(&several.join(",")));
    let trace = trace.map(WriteTrace::id);
    let (outcome, reason) = outcome(event.decision);
    macro_rules! line {
        ($level:ident) => {
            $level!(
                operation = event.verb,
                outcome,
                reason = given(reason),
                principal = truncated(&event.principal),
                source = source.as_deref(),
                scope = of(&event.target.scope),
                scopes = scopes.as_deref(),
                "type" = of(&event.target.type_name),
                name = of(&event.target.name),
                request_id = of(&event.request_id),
                author = text("author"),
                revision = number("revision"),
                changed = number("changed"),
                removed = number("removed"),
                trace_id = trace.as_deref(),
                left_out = (left_out > 0).then_some(left_out),
                "operation"
            )
        };
    }
    if is_dry_run { line!(debug) } else { line!(info) }
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

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Read as _},
        sync::Arc,
    };

    use chancery_audit::{Port, Target};

    use super::*;

    #[test]
    fn line_of_an_operation_with_long_texts_is_short() {
        let long = "\u{1}".repeat(10_000_000);
        let (type_name, name, scopes) = (long.clone(), long.clone(), vec![long.clone()]);
        let target = Target { scope: long.clone(), scopes, type_name, name };
        let event = Event::new(Port::Admin, "delete").detail("author", long.clone());
        let event = Event { principal: long.clone(), request_id: long, target, ..event };
        let (mut lines, writer) = io::pipe().unwrap();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(writer));
        let subscriber = subscriber.finish();
        tracing::subscriber::with_default(subscriber, || write(&event, false, 7, None));
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        assert!(text.len() < 20_000, "{} bytes", text.len());
        assert!(text.contains("(10000000 bytes)") && text.ends_with(" left_out=7\n"));
    }

    #[test]
    fn refused_operations_write_a_few_lines_per_second_and_committed_ones_always() {
        let mut log = RateLimitedLog::new();
        let second = Duration::from_secs;
        let mut written = |decision, at, n: usize| {
            (0..n).filter_map(|_| take(decision, &mut log, second(at))).collect::<Vec<_>>()
        };
        assert_eq!(written(Decision::Refused("input"), 1, 600).len(), 10);
        assert_eq!(written(Decision::Allowed, 1, 600), [0; 600]);
        assert_eq!(written(Decision::Unknown("abandoned"), 1, 2), [0; 2]);
        assert_eq!(written(Decision::Failed("internal"), 2, 2), [590, 0]);
    }
}
