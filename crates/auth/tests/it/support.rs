//! Keys, key sets and tokens for tests.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chancery_auth::{
    Algorithm, AuthError, AuthPort, AuthSettings, Authenticator, Credentials, IssuerKind,
    IssuerSettings, KeyLocation, Proof, TransportPeer,
};
use chancery_model::Token;
pub(crate) use chancery_testing::JwtKey as Key;
use chancery_testing::jwt_message as message;
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The time of most tests, in seconds since 1970.
pub(crate) const NOW: u64 = 1_700_000_000;
pub(crate) const ISSUER: &str = "https://idp.example";

pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Returns a token that is signed with a shared secret.
pub(crate) fn symmetric(secret: &[u8], header: &Value, claims: &Value) -> String {
    let message = message(header, claims);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Returns claims that are valid at [`NOW`].
pub(crate) fn claims() -> Value {
    json!({"iss": ISSUER, "sub": "alice", "aud": ["other", "chancery"], "iat": NOW - 10, "exp": NOW + 3600})
}

/// Returns valid claims of which one is different, or absent if the value is null.
pub(crate) fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

/// Returns the claims of a service account token.
pub(crate) fn account_claims(namespace: &str, account: &str) -> Value {
    let mut claims =
        claims_with("sub", format!("system:serviceaccount:{namespace}:{account}").into());
    claims["kubernetes.io"] = json!({"namespace": namespace, "serviceaccount": {"name": account, "uid": "1"},
        "pod": {"name": "p", "uid": "2"}});
    claims
}

/// An authenticator with one issuer whose keys are in a file.
pub(crate) struct Auth {
    pub(crate) dir: TempDir,
    pub(crate) authenticator: Authenticator,
}

impl Auth {
    pub(crate) fn new(kind: IssuerKind, keys: &[Value]) -> Self {
        Self::with(kind, keys, |_| ())
    }

    pub(crate) fn with(
        kind: IssuerKind,
        keys: &[Value],
        change: impl FnOnce(&mut AuthSettings),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys.json");
        std::fs::write(&file, json!({"keys": keys}).to_string()).unwrap();
        let mut settings =
            AuthSettings { issuers: vec![issuer("corp", kind, file)], failures_max: 0 };
        change(&mut settings);
        Self { dir, authenticator: Authenticator::new(&settings).unwrap() }
    }

    /// Returns the principal that a bearer token proves at [`NOW`], or the reason of the refusal.
    pub(crate) async fn principal(&self, token: &str) -> Result<String, &'static str> {
        self.principal_at(token, NOW).await
    }

    pub(crate) async fn principal_at(&self, token: &str, now: u64) -> Result<String, &'static str> {
        let headers = bearer(token);
        let proof = self.identify(&headers, None, now).await;
        proof.map(|proof| proof.identity.principal.to_string()).map_err(|error| {
            let part = token.get(token.len().saturating_sub(20)..).unwrap_or_default();
            assert!(part.is_empty() || !error.to_string().contains(part), "{error}");
            error.reason()
        })
    }

    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        peer: Option<&TransportPeer>,
        now: u64,
    ) -> Result<Proof, AuthError> {
        let credentials =
            Credentials { port: AuthPort::Admin, headers, query: None, peer, address: None };
        self.authenticator.identify(credentials, at(now), &|_| None::<Token>).await
    }
}

pub(crate) fn issuer(name: &str, kind: IssuerKind, file: PathBuf) -> IssuerSettings {
    IssuerSettings {
        name: name.to_owned(),
        kind,
        url: ISSUER.to_owned(),
        audience: vec!["chancery".to_owned()],
        algorithms: vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa],
        keys: KeyLocation::File(file),
    }
}

pub(crate) fn bearer(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}
