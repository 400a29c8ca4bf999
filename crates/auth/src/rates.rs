//! The limits of an identity per second, which its access rules set, on this replica.

use chancery_model::{IdentityQuota, Principal};
use tokio::time::Instant;

use crate::keyed_buckets::KeyedBuckets;

/// The rates of identities whose access rules limit them.
#[derive(Debug, Default)]
pub struct IdentityRates {
    requests: KeyedBuckets<Principal>,
    writes: KeyedBuckets<Principal>,
}

/// An identity sends more per second than its access rules allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the identity {principal} sends more than {max} {what} per second on this replica (quota.{key} of its access \
     rule); wait and try again"
)]
pub struct RateExceeded {
    /// The identity.
    pub principal: Principal,
    /// The key of the limit, which is also the reason in metrics.
    pub key: &'static str,
    /// The limit.
    pub max: u32,
    what: &'static str,
}

impl RateExceeded {
    /// The keys of all limits.
    pub const KEYS: [&str; 2] = ["requests_per_second", "writes_per_second"];
}

impl IdentityRates {
    /// Counts a request.
    ///
    /// # Errors
    /// Fails if the identity has sent too many.
    pub fn request(
        &self,
        principal: &Principal,
        quota: &IdentityQuota,
    ) -> Result<(), RateExceeded> {
        let limit = (RateExceeded::KEYS[0], "requests", quota.requests_per_second);
        take(&self.requests, principal, limit)
    }

    /// Counts a write.
    ///
    /// # Errors
    /// Fails if the identity has sent too many.
    pub fn write(&self, principal: &Principal, quota: &IdentityQuota) -> Result<(), RateExceeded> {
        let limit = (RateExceeded::KEYS[1], "writes", quota.writes_per_second);
        take(&self.writes, principal, limit)
    }
}

fn take(
    buckets: &KeyedBuckets<Principal>,
    principal: &Principal,
    (key, what, max): (&'static str, &'static str, Option<u32>),
) -> Result<(), RateExceeded> {
    match max {
        // The burst is what the limit allows within a second.
        Some(max) if !buckets.take(principal, max, max, Instant::now()) => {
            Err(RateExceeded { principal: principal.clone(), key, max, what })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusal_says_key_value_and_limit() {
        let rates = IdentityRates::default();
        let principal = Principal::token("ci").unwrap();
        let quota = IdentityQuota { writes_per_second: Some(2), ..IdentityQuota::default() };
        assert_eq!(rates.write(&principal, &quota), Ok(()));
        assert_eq!(rates.write(&principal, &quota), Ok(()));
        let text = rates.write(&principal, &quota).unwrap_err().to_string();
        assert_eq!(
            text,
            "the identity token:ci sends more than 2 writes per second on this replica \
             (quota.writes_per_second of its access rule); wait and try again"
        );
        assert_eq!(rates.request(&principal, &quota), Ok(()), "requests have no limit");
        tokio::time::advance(std::time::Duration::from_millis(500)).await;
        assert_eq!(rates.write(&principal, &quota), Ok(()));
    }
}
