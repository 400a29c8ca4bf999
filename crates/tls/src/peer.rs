//! The clients of open connections that have certificates: their identities, and the end of their connections.
//!
//! A port checks once per second which certificates are about to expire, and verifies all chains again when a
//! CA file or a revocation list changes. Connections therefore need no timers of their own, and a clock that
//! jumps forward ends the connections that it should end.

use std::{
    collections::BTreeMap,
    io,
    ops::Bound,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::SetOnce;
use tokio_rustls::rustls::{
    self, CertificateError,
    pki_types::{CertificateDer, UnixTime},
    server::danger::ClientCertVerifier,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{
    client_verifier::{BadCertificate, refused},
    clock::CredentialClock,
    material::ClientCertificates,
    spiffe::{self, BadIdentity},
};

/// A connection ends this many seconds before its certificate expires, so that it never outlives the certificate.
const MARGIN_SECONDS: i64 = 2;
/// The largest random time by which a connection ends earlier, in seconds. Certificates that were issued together
/// expire together.
const JITTER_SECONDS_MAX: i64 = 300;
/// The number of connections for which the list of connections is locked at a time.
const STEP: usize = 256;

/// The identity of a client, from its verified certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The SPIFFE ID. It identifies the client, whatever other names the certificate has.
    pub spiffe_id: Option<String>,
    /// The DNS names in lower case, sorted, each once.
    pub dns: Vec<String>,
    /// The common name of the subject. `None` if it has several, or the port does not use common names.
    pub common_name: Option<String>,
    /// Whether the port identifies clients without a SPIFFE ID by the common name, instead of the DNS name.
    pub by_common_name: bool,
    /// The time at which the first certificate of the chain expires.
    pub not_after: SystemTime,
    /// The serial number in hexadecimal digits.
    pub serial: String,
    /// The configured name of the CAs of the port.
    pub ca: Arc<str>,
}

/// The reason why the certificate of a client no longer permits its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialEnd {
    /// The certificate is about to expire.
    Expired,
    /// The revocation list names the certificate.
    Revoked,
    /// The certificate is refused for another reason, usually because its CA is no longer in the CA file.
    Untrusted,
}

/// The client of an open connection, whose certificate the port has verified. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Peer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    identity: Arc<PeerIdentity>,
    chain: Box<[CertificateDer<'static>]>,
    end: SetOnce<CredentialEnd>,
    key: Key,
    peers: Weak<Peers>,
}

/// The Unix time at which a connection ends, and a number that makes the key unique.
type Key = (i64, u64);

/// The clients of a port.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    by_end: BTreeMap<Key, Weak<Shared>>,
    n_added: u64,
    /// A wall clock that jumps back extends no certificate.
    clock: CredentialClock,
}

impl Open {
    /// Returns the Unix time, given that of the wall clock.
    fn now(&self, wall: i64) -> i64 {
        let seconds = self.clock.seconds(u64::try_from(wall).unwrap_or(0));
        i64::try_from(seconds).unwrap_or(i64::MAX)
    }
}

// === impl CredentialEnd ===

impl CredentialEnd {
    /// All reasons, in the order of their discriminants.
    pub(crate) const ALL: [Self; 3] = [Self::Expired, Self::Revoked, Self::Untrusted];

    /// Returns the label of the metric.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Untrusted => "untrusted",
        }
    }

    /// Returns the explanation for the client.
    #[must_use]
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Expired => "the client certificate is about to expire; reconnect with a new one",
            Self::Revoked => "the client certificate is revoked; reconnect with a new one",
            Self::Untrusted => {
                "the client certificate is no longer accepted, because the CAs have changed; reconnect with a new one"
            }
        }
    }
}

// === impl Peer ===

impl Peer {
    /// Returns the identity.
    #[must_use]
    pub fn identity(&self) -> &Arc<PeerIdentity> {
        &self.0.identity
    }

    /// Waits until the certificate no longer permits the connection.
    pub async fn ended(&self) -> CredentialEnd {
        *self.0.end.wait().await
    }

    /// Verifies the certificate again. Returns the reason if the connection ends because of that.
    pub(crate) fn verify_again(&self, verifier: &dyn ClientCertVerifier) -> Option<CredentialEnd> {
        let (first, between) = self.0.chain.split_first()?;
        let error = verifier.verify_client_cert(first, between, UnixTime::now()).err()?;
        let end = match error {
            rustls::Error::InvalidCertificate(CertificateError::Revoked) => CredentialEnd::Revoked,
            _ => CredentialEnd::Untrusted,
        };
        self.end(end)
    }

    /// Ends the connection. Returns `None` if it is ending already.
    fn end(&self, end: CredentialEnd) -> Option<CredentialEnd> {
        self.0.end.set(end).is_ok().then_some(end)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(peers) = self.peers.upgrade() {
            peers.0.lock().by_end.remove(&self.key);
        }
    }
}

// === impl Peers ===

impl Peers {
    /// Adds the client with this chain of certificates, which is verified. Fails if its names cannot be read, which
    /// its verification excludes.
    pub(crate) fn add(
        self: &Arc<Self>,
        chain: &[CertificateDer<'static>],
        clients: &ClientCertificates,
        now: i64,
    ) -> io::Result<Peer> {
        let unreadable = |error| io::Error::other(refused(BadCertificate::Identity(error)));
        let first = chain.first().ok_or_else(|| io::Error::other("the chain is empty"))?;
        let names = spiffe::check(first).map_err(unreadable)?;
        let not_after = expiry(chain, now).map_err(unreadable)?;
        let identity = PeerIdentity {
            spiffe_id: names.spiffe_id,
            dns: names.dns,
            common_name: names.common_name.filter(|_| clients.by_common_name),
            by_common_name: clients.by_common_name,
            not_after: time(not_after),
            serial: names.serial,
            ca: Arc::clone(&clients.ca_name),
        };
        let mut open = self.0.lock();
        open.n_added += 1;
        let key = (ends_at(not_after, open.now(now)), open.n_added);
        let peer = Peer(Arc::new(Shared {
            identity: Arc::new(identity),
            chain: chain.into(),
            end: SetOnce::new(),
            key,
            peers: Arc::downgrade(self),
        }));
        open.by_end.insert(key, Arc::downgrade(&peer.0));
        Ok(peer)
    }

    /// Ends the connections whose certificates are about to expire.
    pub(crate) fn end_expired(&self, now: i64, count: impl Fn(CredentialEnd)) {
        let due = {
            let mut open = self.0.lock();
            let next = (open.now(now).saturating_add(1), 0);
            let later = open.by_end.split_off(&next);
            std::mem::replace(&mut open.by_end, later)
        };
        for peer in due.into_values().filter_map(|peer| peer.upgrade()) {
            Peer(peer).end(CredentialEnd::Expired).into_iter().for_each(&count);
        }
    }

    /// Verifies the certificates of all clients again, and ends the connections of those that are refused.
    pub(crate) fn verify_again(
        &self,
        verifier: &dyn ClientCertVerifier,
        count: impl Fn(CredentialEnd),
    ) {
        let (mut after, mut n_ended) = (Bound::Unbounded, 0_u64);
        loop {
            // The last reference to a peer must not be dropped under the lock, which its drop takes.
            let step: Vec<(Key, Weak<Shared>)> = {
                let open = self.0.lock();
                let rest = open.by_end.range((after, Bound::Unbounded));
                rest.take(STEP).map(|(key, peer)| (*key, Weak::clone(peer))).collect()
            };
            let Some((last, _)) = step.last() else { break };
            after = Bound::Excluded(*last);
            for peer in step.into_iter().filter_map(|(_, peer)| peer.upgrade()) {
                if let Some(end) = Peer(peer).verify_again(verifier) {
                    count(end);
                    n_ended += 1;
                }
            }
        }
        if n_ended > 0 {
            tracing::info!(
                connections = n_ended,
                "connections end: the changed CAs or revocation lists refuse the certificates of their clients"
            );
        }
    }
}

/// Returns the Unix time at which the first certificate of a verified chain expires. A certificate that had expired
/// before has no part in the verified path.
fn expiry(chain: &[CertificateDer<'static>], now: i64) -> Result<i64, BadIdentity> {
    let mut earliest = i64::MAX;
    for certificate in chain {
        let (_, certificate) = X509Certificate::from_der(certificate)
            .map_err(|error| BadIdentity::Unreadable(error.to_string()))?;
        let not_after = certificate.validity().not_after.timestamp();
        if not_after >= now {
            earliest = earliest.min(not_after);
        }
    }
    Ok(earliest)
}

/// Returns the time at which a connection ends: a random time before its certificate expires.
fn ends_at(not_after: i64, now: i64) -> i64 {
    let left = not_after.saturating_sub(now).max(0);
    let jitter = fastrand::i64(0..=(left / 10).min(JITTER_SECONDS_MAX));
    not_after.saturating_sub(MARGIN_SECONDS).saturating_sub(jitter)
}

fn time(seconds: i64) -> SystemTime {
    let since_1970 = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    SystemTime::UNIX_EPOCH.checked_add(since_1970).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
