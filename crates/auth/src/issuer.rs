//! The verification of the JSON Web Tokens of one issuer.

use std::sync::Arc;

use chancery_model::Principal;

use crate::{
    clock::date,
    error::{AuthError, Method, Reason},
    key_set::{Algorithm, Verdict},
    key_source::KeySource,
    kubernetes,
    settings::{IssuerKind, IssuerSettings, SettingsError},
    signed::{Claims, Signed},
};

/// The tolerance for the clock of an issuer that is ahead. It applies to the start of a token and not to its end, so
/// that no stream outlives its token.
const LEEWAY_SECONDS: u64 = 30;
/// The maximum time from the issue of a token to its end.
const LIFETIME_SECONDS_MAX: u64 = 24 * 3600;

/// An issuer and its keys.
#[derive(Debug)]
pub(crate) struct Issuer {
    pub(crate) settings: IssuerSettings,
    pub(crate) keys: Arc<KeySource>,
}

/// The result of the search for the key of a token.
#[derive(Debug)]
pub(crate) enum KeyCheck {
    /// The signature is valid, with the keys of this generation.
    Valid(u64),
    NoKeys,
    UnknownKey,
    Refused(AuthError),
}

impl Issuer {
    pub(crate) fn open(settings: &IssuerSettings) -> Result<Self, SettingsError> {
        let keys = Arc::new(KeySource::open(settings)?);
        Ok(Self { settings: settings.clone(), keys })
    }

    pub(crate) fn method(&self) -> Method {
        match self.settings.kind {
            IssuerKind::Jwt => Method::Jwt,
            IssuerKind::Kubernetes => Method::Kubernetes,
        }
    }

    fn refused(&self, reason: Reason, text: &str) -> AuthError {
        let name = &self.settings.name;
        AuthError::new(self.method(), reason, format!("the token of the issuer {name:?} {text}"))
    }

    /// Checks the algorithm and the signature.
    pub(crate) fn check_signature(&self, token: &Signed<'_>) -> KeyCheck {
        let allowed = |algorithm: &Algorithm| self.settings.algorithms.contains(algorithm);
        let Some(algorithm) = token.algorithm.parse().ok().filter(allowed) else {
            let names: Vec<&str> =
                self.settings.algorithms.iter().map(|algorithm| algorithm.name()).collect();
            let text = format!("uses another algorithm than {}", names.join(", "));
            return KeyCheck::Refused(self.refused(Reason::Algorithm, &text));
        };
        let Some((keys, generation)) = self.keys.keys() else { return KeyCheck::NoKeys };
        match keys.verify(&token.key, algorithm, token.message, &token.signature) {
            Verdict::Valid => KeyCheck::Valid(generation),
            Verdict::UnknownKey => KeyCheck::UnknownKey,
            Verdict::Invalid => {
                KeyCheck::Refused(self.refused(Reason::Signature, "has no valid signature"))
            }
        }
    }

    /// Returns the refusal of a token whose key is not in the set.
    pub(crate) fn without_key(&self, check: &KeyCheck) -> AuthError {
        match check {
            KeyCheck::NoKeys => self.refused(
                Reason::NoKeys,
                "cannot be verified: its key set (JWKS) has not been read yet; the log says why",
            ),
            _ => self.refused(
                Reason::UnknownKey,
                "is signed with a key that is not in its key set (JWKS)",
            ),
        }
    }

    /// Checks the claims of a token with a valid signature.
    pub(crate) fn check_claims(&self, claims: &Claims, now: u64) -> Result<Principal, AuthError> {
        let is_for_us = |name: &String| self.settings.audience.contains(name);
        if !claims.audience.iter().any(is_for_us) {
            let names = self.settings.audience.join(", ");
            let text = format!("is for another audience; request one for {names}");
            return Err(self.refused(Reason::Audience, &text));
        }
        self.check_expiry(claims.expires, now)?;
        self.check_begin(claims.begins(), now)?;
        let lifetime = claims.expires.saturating_sub(claims.issued);
        if lifetime > LIFETIME_SECONDS_MAX {
            let text = format!(
                "is valid for {lifetime} seconds; use tokens for at most {LIFETIME_SECONDS_MAX} seconds"
            );
            return Err(self.refused(Reason::Lifetime, &text));
        }
        match self.settings.kind {
            IssuerKind::Kubernetes => kubernetes::principal(&self.settings.name, claims),
            IssuerKind::Jwt => {
                Principal::jwt(&self.settings.name, &claims.subject).map_err(|error| {
                    self.refused(Reason::Claim, &format!("has no usable subject: {error}"))
                })
            }
        }
    }

    pub(crate) fn check_begin(&self, begins: u64, now: u64) -> Result<(), AuthError> {
        if begins <= now.saturating_add(LEEWAY_SECONDS) {
            Ok(())
        } else {
            let text =
                format!("is not valid before {} (iat, nbf); compare the clocks", date(begins));
            Err(self.refused(Reason::NotYetValid, &text))
        }
    }

    pub(crate) fn check_expiry(&self, expires: u64, now: u64) -> Result<(), AuthError> {
        if now < expires {
            Ok(())
        } else {
            let text = format!("expired at {}; get a new one", date(expires));
            Err(self.refused(Reason::Expired, &text))
        }
    }
}
