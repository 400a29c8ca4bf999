//! Retry policies (GRPCV-31).

use super::rules::{
    ALL, At, CPP, DURATION, GO, JAVA, NODE, Rules, is_duration, is_duration_of_java,
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
