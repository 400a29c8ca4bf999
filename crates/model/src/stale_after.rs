//! The time after which a client marks endpoints as stale: `policy.endpoint_stale_after` of a
//! `ClusterLoadAssignment` (CLI-E-34).
//!
//! The value is part of the body, and no format on disk repeats it.

use std::time::Duration;

use crate::{
    TypeUrl,
    wire::{Fields, Token},
};

/// The message name without its package, which v2 and v3 share.
const MESSAGE: &str = ".ClusterLoadAssignment";
/// The field of the policy in the message, and that of the time in the policy.
const POLICY: u32 = 4;
const STALE_AFTER: u32 = 4;

/// Returns the time after which the endpoints of a resource are stale. `None` if they never are, and for
/// other types.
pub(crate) fn stale_after(type_url: &TypeUrl, body: &[u8]) -> Option<Duration> {
    if !type_url.as_str().ends_with(MESSAGE) {
        return None;
    }
    let policies = fields(body).filter_map(|token| content_of(token, POLICY));
    let times = policies.flat_map(fields).filter_map(|token| content_of(token, STALE_AFTER));
    let (mut seconds, mut nanos) = (0, 0);
    for token in times.flat_map(fields) {
        match token {
            Token::Varint { field: 1, value } => seconds = value,
            Token::Varint { field: 2, value } => nanos = value,
            _ => {}
        }
    }
    // A negative number has a large value on the wire.
    let seconds = i64::try_from(seconds).ok()?.unsigned_abs();
    let time = Duration::new(seconds, u32::try_from(nanos).ok().filter(|n| *n < 1_000_000_000)?);
    (time > Duration::ZERO).then_some(time)
}

/// Iterates over the fields of a message, up to the first malformed one.
fn fields(message: &[u8]) -> impl Iterator<Item = Token<'_>> {
    let mut fields = Fields::new(0, message.len());
    std::iter::from_fn(move || fields.next(message).ok().flatten())
}

fn content_of(token: Token<'_>, number: u32) -> Option<&[u8]> {
    match token {
        Token::Bytes { field, content } if field == number => Some(content),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types;

    fn of(type_url: &'static str, body: &[u8]) -> Option<Duration> {
        stale_after(&TypeUrl::from_static(type_url), body)
    }

    /// CLI-E-34: the time is read from the policy of endpoints, and of no other type.
    #[test]
    fn time_is_read_from_the_policy_of_endpoints() {
        let endpoints = |body: &[u8]| of(types::ENDPOINT, body);
        // cluster_name, an empty locality, and the policy with an overprovisioning factor.
        let body = [0x0a, 1, b'x', 0x12, 0, 0x22, 11, 0x1a, 2, 8, 100, 0x22, 5, 8, 3, 16, 232, 7];
        assert_eq!(endpoints(&body), Some(Duration::new(3, 1000)));
        assert_eq!(
            of("type.googleapis.com/envoy.api.v2.ClusterLoadAssignment", &body),
            endpoints(&body)
        );
        assert_eq!(of(types::CLUSTER, &body), None);
        assert_eq!(endpoints(&[0x22, 2, 0x22, 0]), None, "no limit");
        let negative = [0x22, 13, 0x22, 11, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(endpoints(&negative), None);
        for end in 0..body.len() {
            let _no_panic = endpoints(&body[..end]);
        }
        assert_eq!(endpoints(&[0x22, 4, 0x22, 2, 8, 3, 0xff]), Some(Duration::from_secs(3)));
    }
}
