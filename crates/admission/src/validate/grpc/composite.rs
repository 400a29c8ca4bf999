//! The composite filter (GRPCV-73, gRFC A103). Clients have it only as an experiment.

use super::rules::{ALL, At, Rules};
use crate::validate::tree::{Message, Value};

const ACTION: &str = "envoy.extensions.filters.http.composite.v3.ExecuteFilterAction";
/// The maximum depth of filters in composite filters.
const DEPTH_MAX: usize = 8;

/// Reports filters that are nested too deeply. Clients without gRFC A103 ignore an optional composite filter.
pub(super) fn check(filter: &Message<'_>, at: &At<'_>, rules: &mut Rules) {
    let depth = depth(filter);
    if depth > DEPTH_MAX {
        let rule = format!(
            "gRPC clients with gRFC A103 reject filters that are nested {depth} deep; the maximum is {DEPTH_MAX}"
        );
        rules.note(at, ALL, "grpc.composite", rule);
    }
}

/// Returns the number of composite filters around the innermost filter. The depth of messages is bounded.
fn depth(message: &Message<'_>) -> usize {
    let own = usize::from(message.kind.name == ACTION);
    let fields = message.fields().flat_map(|(_, values)| values);
    let inner = fields.filter_map(|(_, value)| match value {
        Value::Message(inner) => Some(inner),
        Value::Bits(_) | Value::Bytes(_) => None,
    });
    own + inner.chain(message.content.as_deref()).map(depth).max().unwrap_or(0)
}
