//! Failed authentications by address. An address with too many of them is refused before its tokens are verified, so
//! that guesses cost almost nothing.

use std::net::{IpAddr, Ipv6Addr};

use tokio::time::Instant;

use crate::{
    error::{AuthError, Method, Reason},
    keyed_buckets::KeyedBuckets,
};

/// The number of failures per second that an address may have forever.
const PER_SECOND: u32 = 1;

/// The failed authentications of addresses.
#[derive(Debug)]
pub(crate) struct FailedAddresses {
    /// The number of failures after which an address is refused; 0 for no limit.
    max: u32,
    buckets: KeyedBuckets<IpAddr>,
}

impl FailedAddresses {
    pub(crate) fn new(max: u32) -> Self {
        Self { max, buckets: KeyedBuckets::default() }
    }

    /// Checks whether an address may try another token.
    ///
    /// # Errors
    /// Fails if it had too many failures.
    pub(crate) fn check(&self, address: Option<IpAddr>, method: Method) -> Result<(), AuthError> {
        let Some(address) = address.map(network) else { return Ok(()) };
        if self.max == 0 || !self.buckets.is_empty(&address, Instant::now()) {
            return Ok(());
        }
        let max = self.max;
        let text = format!(
            "the address {address} had more than {max} failed authentications (auth.failures_max); no token from it \
             is verified until it pauses; correct the token and wait"
        );
        Err(AuthError::new(method, Reason::TooManyFailures, text))
    }

    /// Counts a failure.
    pub(crate) fn count(&self, address: Option<IpAddr>) {
        if let Some(address) = address.filter(|_| self.max > 0) {
            self.buckets.take(&network(address), PER_SECOND, self.max, Instant::now());
        }
    }
}

/// Returns the address for which failures count: an IPv4 address, or the first 64 bits of an IPv6 address, which
/// belong to one subscriber.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn address_is_refused_after_failures_and_recovers() {
        let failures = FailedAddresses::new(3);
        let address = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        let check = |text| failures.check(address(text), Method::Token);
        for _ in 0..3 {
            check("192.0.2.1").unwrap();
            failures.count(address("192.0.2.1"));
        }
        let error = check("::ffff:192.0.2.1").unwrap_err();
        assert_eq!(error.reason(), "too_many_failures");
        assert!(error.to_string().contains("192.0.2.1 had more than 3 failed"), "{error}");
        check("192.0.2.2").unwrap();
        failures.check(None, Method::Token).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        check("192.0.2.1").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_of_a_v6_network_count_together() {
        let failures = FailedAddresses::new(1);
        failures.count(Some("2001:db8::1".parse().unwrap()));
        let check = |text: &str| failures.check(Some(text.parse().unwrap()), Method::Token);
        check("2001:db8::2").unwrap_err();
        check("2001:db8:0:1::2").unwrap();
        let off = FailedAddresses::new(0);
        off.count(Some("192.0.2.1".parse().unwrap()));
        off.check(Some("192.0.2.1".parse().unwrap()), Method::Token).unwrap();
    }
}
