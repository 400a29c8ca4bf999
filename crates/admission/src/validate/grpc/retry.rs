//! Retry policies (GRPCV-31).

use super::rules::{
    ALL, At, CPP, DURATION, GO, JAVA, NODE, Rules, SIGNED_MAX, is_duration, is_duration_of_java,
};
use crate::validate::tree::{Message, nanos};

const ID: &str = "grpc.retry";
/// Returns a duration in milliseconds as Node reads it: in 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "Node truncates it")]
fn millis_of_node(duration: &Message<'_>) -> i32 {
    (nanos(duration) / 1_000_000) as i32
}

pub(super) fn check(policy: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    if policy.wrapped("num_retries") == Some(0) {
        let reason = "num_retries is 0, but must be at least 1";
        let fix = "remove the retry policy";
        rules.refuse(&at.field("num_retries"), ALL - JAVA, ID, reason, fix);
    }
    attempts(policy, at, rules);
    let Some(backoff) = policy.message("retry_back_off") else { return };
    let at = at.field("retry_back_off");
    let Some(base) = backoff.message("base_interval") else {
        return rules.refuse(&at.field("base_interval"), ALL, ID, "base_interval is required", "");
    };
    let in_nanos = nanos(base);
    let clients = CPP.when(!is_duration(base))
        | GO.when(in_nanos <= 0)
        | JAVA.when(in_nanos <= 0 || !is_duration_of_java(base))
        | NODE.when(millis_of_node(base) <= 0);
    let reason = "the interval must be longer than 0s, and from 0.001s to 2147483.647s for Node";
    rules.refuse(&at.field("base_interval"), clients, ID, reason, "");
    let Some(max) = backoff.message("max_interval") else { return };
    let clients = CPP.when(!is_duration(max)) | JAVA.when(!is_duration_of_java(max));
    rules.refuse(&at.field("max_interval"), clients, ID, DURATION, "");
    if nanos(max) <= 0 {
        let reason = "the interval must be longer than 0s";
        rules.refuse(&at.field("max_interval"), GO, ID, reason, "");
    }
    let clients =
        JAVA.when(nanos(max) < in_nanos) | NODE.when(millis_of_node(max) < millis_of_node(base));
    let reason = "the interval is shorter than base_interval";
    rules.refuse(&at.field("max_interval"), clients, ID, reason, "");
}

/// The statuses for which Java retries.
const STATUSES: [&str; 5] =
    ["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"];

/// Java counts attempts with 32 bits and a sign, and fails each RPC if there are fewer than 2.
fn attempts(policy: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let retries_on = |name: &str| {
        STATUSES.contains(&name.trim().to_ascii_lowercase().replace('_', "-").as_str())
    };
    let has_status = policy.text("retry_on").split(',').any(retries_on);
    let n = policy.wrapped("num_retries").unwrap_or(1);
    if has_status && (n == 0 || n >= SIGNED_MAX) {
        let effect =
            format!("every RPC fails, because {n} retries are not 1 to {}", SIGNED_MAX - 1);
        let fix = "remove the retry policy, or set num_retries to at least 1";
        rules.effect(&at.field("num_retries"), JAVA, "grpc.effect.retries", effect, fix);
    }
}
