//! The authentication of a stream or a call.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_model::{Identity, Principal};
use chancery_tls::CredentialClock;
use tokio::task::JoinSet;

use crate::{
    bearer, certificate,
    clock::{seconds, time},
    credentials::{Credentials, Proof, TokenLookup, TransportPeer},
    error::{AuthError, Method, Reason},
    failures::FailedAddresses,
    issuer::{Issuer, KeyCheck},
    known_tokens::KnownTokens,
    metrics::on_result,
    rates::IdentityRates,
    settings::{AuthSettings, SettingsError},
    signed::{self, Signed},
    static_token,
    verified::{Verified, VerifiedTokens},
};

/// The interval at which [`Authenticator::keep_fresh`] checks the key sets.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the clock of the machine is read.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

/// Authenticates callers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    issuers: Vec<Issuer>,
    verified: VerifiedTokens,
    clock: CredentialClock,
    failures: FailedAddresses,
    known: KnownTokens,
    rates: IdentityRates,
}

impl Authenticator {
    /// Opens the key sets of the issuers.
    ///
    /// # Errors
    /// Fails if a file is unusable.
    pub fn new(settings: &AuthSettings) -> Result<Self, SettingsError> {
        let issuers = settings.issuers.iter().map(Issuer::open).collect::<Result<_, _>>()?;
        let failures = FailedAddresses::new(settings.failures_max);
        let (verified, clock, known, rates) = Default::default();
        Ok(Self(Arc::new(Shared { issuers, verified, clock, failures, known, rates })))
    }

    /// Checks the files of all issuers, like a replica at its start. Returns all problems.
    #[must_use]
    pub fn check(settings: &AuthSettings) -> Vec<SettingsError> {
        settings.issuers.iter().filter_map(|issuer| Issuer::open(issuer).err()).collect()
    }

    /// Reads the key sets again when they are due, and the clock of the machine. Ends only if the runtime does.
    pub async fn keep_fresh(self) {
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&self.0);
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(CLOCK_INTERVAL);
            loop {
                ticks.tick().await;
                // A wall clock that is not read regularly is not believed.
                let _ = shared.clock.seconds(seconds(SystemTime::now()));
            }
        });
        for issuer in &self.0.issuers {
            let keys = Arc::clone(&issuer.keys);
            // A server that does not answer delays no other issuer.
            tasks.spawn(async move {
                let mut ticks = tokio::time::interval(CHECK_INTERVAL);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    keys.keep_fresh().await;
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Returns the rates of identities, which all ports share.
    #[must_use]
    pub fn rates(&self) -> &IdentityRates {
        &self.0.rates
    }

    /// Returns the identity of a caller. A caller without a credential is anonymous. If a caller has a certificate and
    /// a bearer token, both must be valid, and the identity is that of the token.
    ///
    /// # Errors
    /// Fails if a credential is invalid. The text of the error is meant for the caller.
    pub async fn identify(
        &self,
        credentials: Credentials<'_>,
        now: SystemTime,
        tokens: &TokenLookup<'_>,
    ) -> Result<Proof, AuthError> {
        let now = self.0.clock.seconds(seconds(now));
        let outcome = self.prove(credentials, now, tokens).await;
        if outcome.as_ref().is_err_and(|error| !error.is_limited()) {
            self.0.failures.count(credentials.address);
        }
        on_result(credentials.port, outcome.as_ref().map(|(method, _)| *method));
        outcome.map(|(_, proof)| Proof { checked: Some(time(now)), ..proof })
    }

    async fn prove(
        &self,
        credentials: Credentials<'_>,
        now: u64,
        tokens: &TokenLookup<'_>,
    ) -> Result<(Method, Proof), AuthError> {
        bearer::refuse_in_url(credentials.query)?;
        let bearer = bearer::find(credentials.headers)?;
        if let Some(TransportPeer::Certificate(peer)) = credentials.peer {
            certificate::check(peer, now)?;
        }
        let principal_only = |principal| Proof::of(Identity { principal, token: None });
        Ok(match (bearer, credentials.peer) {
            (Some(text), _) if text.starts_with(static_token::PREFIX) => {
                (Method::Token, self.prove_static(text, now, tokens, credentials.address)?)
            }
            (Some(text), _) => self.prove_signed(text, now, credentials.address).await?,
            (None, Some(TransportPeer::Certificate(peer))) => {
                (Method::Certificate, principal_only(certificate::principal(peer)?))
            }
            (None, Some(TransportPeer::UnixUser(uid))) => {
                (Method::Unix, principal_only(Principal::unix(*uid)))
            }
            (None, None) => (Method::None, Proof::of(Identity::anonymous())),
        })
    }

    fn prove_static(
        &self,
        text: &str,
        now: u64,
        tokens: &TokenLookup<'_>,
        address: Option<IpAddr>,
    ) -> Result<Proof, AuthError> {
        let digest = static_token::sha256(text);
        // Valid clients may share an address with the one that fails, so tokens that were valid before are verified.
        if !self.0.known.contains(&digest) {
            self.0.failures.check(address, Method::Token)?;
        }
        let proof = static_token::prove(text, now, tokens);
        match &proof {
            Ok(_) => self.0.known.add(digest),
            Err(_) => self.0.known.remove(&digest),
        }
        proof
    }

    async fn prove_signed(
        &self,
        text: &str,
        now: u64,
        address: Option<IpAddr>,
    ) -> Result<(Method, Proof), AuthError> {
        let digest = static_token::sha256(text);
        if let Some(known) = self.0.verified.get(&digest) {
            let issuer = &self.0.issuers[known.issuer];
            if issuer.keys.generation() == known.keys {
                issuer.check_expiry(known.expires, now)?;
                issuer.check_begin(known.begins, now)?;
                return Ok((issuer.method(), proof(&known)));
            }
            self.0.verified.remove(&digest);
        }
        self.0.failures.check(address, Method::Jwt)?;
        let token = signed::parse(text)?;
        let (place, keys) = self.find_key(&token).await?;
        let issuer = &self.0.issuers[place];
        let principal = issuer.check_claims(&token.claims, now)?;
        let (begins, expires) = (token.claims.begins(), token.claims.expires);
        let verified = Verified { principal, begins, expires, issuer: place, keys };
        let proof = proof(&verified);
        self.0.verified.add(digest, verified);
        Ok((issuer.method(), proof))
    }

    /// Returns the place of the issuer that has signed a token, and the generation of its keys.
    async fn find_key(&self, token: &Signed<'_>) -> Result<(usize, u64), AuthError> {
        let all = self.0.issuers.iter().enumerate();
        let named = |issuer: &Issuer| issuer.settings.url == token.claims.issuer;
        let named: Vec<(usize, &Issuer)> = all.filter(|(_, issuer)| named(issuer)).collect();
        let found = match search(&named, token) {
            Err(NotFound { lacks_key: true, .. }) => {
                for (_, issuer) in &named {
                    issuer.keys.refresh_for_unknown_key().await;
                }
                search(&named, token)
            }
            found => found,
        };
        found.map_err(|not_found| not_found.error)
    }
}

/// The failure of the search for the key of a token.
#[derive(Debug)]
struct NotFound {
    error: AuthError,
    /// Whether a newer key set may contain the key.
    lacks_key: bool,
}

/// Searches the issuer that has signed a token. Several clusters may use the same URL with different keys.
fn search(issuers: &[(usize, &Issuer)], token: &Signed<'_>) -> Result<(usize, u64), NotFound> {
    let (mut refused, mut without_key) = (None, None);
    for (place, issuer) in issuers {
        match issuer.check_signature(token) {
            KeyCheck::Valid(keys) => return Ok((*place, keys)),
            KeyCheck::Refused(error) => refused = Some(error),
            check => without_key = Some(issuer.without_key(&check)),
        }
    }
    let lacks_key = without_key.is_some();
    // A wrong signature says more than a key that another issuer does not have.
    let error = refused.or(without_key).unwrap_or_else(|| {
        let text = "the issuer of the token (iss) is not configured; compare it with the URLs of the issuers";
        AuthError::new(Method::Jwt, Reason::Issuer, text)
    });
    Err(NotFound { error, lacks_key })
}

fn proof(verified: &Verified) -> Proof {
    let identity = Identity { principal: verified.principal.clone(), token: None };
    Proof { expires: Some(time(verified.expires)), ..Proof::of(identity) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// attack 34: a stream ends before its token expires, and streams with equal tokens do not end together.
    #[test]
    fn stream_ends_before_its_token_expires() {
        let ends = |expires, now| {
            let identity = Identity::anonymous();
            let proof = Proof { expires: Some(time(expires)), ..Proof::of(identity) };
            proof.ends_after(time(now)).map(|left| left.as_secs_f64())
        };
        let all: Vec<f64> = (0..100).filter_map(|_| ends(4600, 1000)).collect();
        assert!(all.iter().all(|left| (3539.0..=3599.0).contains(left)), "{all:?}");
        assert!(all.iter().any(|left| *left < 3560.0) && all.iter().any(|left| *left > 3580.0));
        assert_eq!(ends(1002, 1000).map(|left| (0.9..=1.0).contains(&left)), Some(true));
        assert_eq!(ends(1000, 1000), Some(0.0));
        assert_eq!(ends(900, 1000), Some(0.0));
        assert_eq!(Proof::of(Identity::anonymous()).ends_after(time(0)), None);
        let proof = Proof {
            expires: Some(time(4600)),
            checked: Some(time(4590)),
            ..Proof::of(Identity::anonymous())
        };
        let left = proof.ends_after(time(1000)).unwrap();
        assert!(left < Duration::from_secs(10), "a wall clock that is behind extends no stream");
    }
}
