//! Tokens that Chancery has created: `chy_NAME_SECRET_CHECKSUM`.
//!
//! The secret has 256 random bits, so that one round of SHA-256 protects it. The replicas store only the digest.
//! The checksum finds typing errors, and lets scanners of source code recognize a token.

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chancery_model::{Identity, Principal, TokenDigest};

use crate::{
    clock::{date, time},
    credentials::{Proof, TokenLookup},
    error::{AuthError, Method, Reason},
};

/// The text at the start of each token.
pub(crate) const PREFIX: &str = "chy_";
const NAME_BYTES_MAX: usize = 64;
const SECRET_BYTES: usize = 32;
/// The length of the secret as text.
const SECRET_CHARS: usize = 43;
/// The length of the checksum as text.
const CHECKSUM_CHARS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A new token. The text is shown to its owner once, and never stored.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// The token.
    pub text: String,
    /// The digest, which the replicas store.
    pub digest: TokenDigest,
}

/// The reason why a token cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The name is invalid.
    #[error(
        "the token name {0:?} is invalid; use 1 to {NAME_BYTES_MAX} characters of a-z, 0-9 and '-'"
    )]
    Name(String),
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    Random,
}

/// Shows no token.
impl std::fmt::Debug for NewToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewToken").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// Creates a token with a random secret.
///
/// # Errors
/// Fails if the name is invalid, or the system has no random numbers.
pub fn new_token(name: &str) -> Result<NewToken, TokenError> {
    if !is_name(name) {
        return Err(TokenError::Name(name.chars().take(NAME_BYTES_MAX).collect()));
    }
    let mut secret = [0; SECRET_BYTES];
    rand::fill(&mut secret).map_err(|_| TokenError::Random)?;
    let body = format!("{PREFIX}{name}_{}", URL_SAFE_NO_PAD.encode(secret));
    let text = format!("{body}_{}", checksum(&body));
    let digest = digest_of(&text);
    Ok(NewToken { text, digest })
}

/// Returns the digest of a token.
#[must_use]
pub fn digest_of(token: &str) -> TokenDigest {
    TokenDigest(sha256(token))
}

pub(crate) fn sha256(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

/// Authenticates a static token, by a search for its digest. The time of the search tells nothing about the secrets of
/// tokens, because a caller cannot choose digests.
///
/// # Errors
/// Fails if the token is malformed, unknown or expired.
pub(crate) fn prove(text: &str, now: u64, tokens: &TokenLookup<'_>) -> Result<Proof, AuthError> {
    let refused = |reason, text: String| Err(AuthError::new(Method::Token, reason, text));
    let Some(name) = name_in(text) else {
        let text = "the token is damaged: its form or its checksum is wrong; copy all of it";
        return refused(Reason::Malformed, text.to_owned());
    };
    let digest = digest_of(text);
    let token = tokens(&digest).filter(|token| *token.name == *name);
    let Some(token) = token else {
        let text = format!(
            "the token {name:?} is unknown: it was deleted, replaced, or created in another cluster; create a new one"
        );
        return refused(Reason::UnknownToken, text);
    };
    let expires = token.expires_ms / 1000;
    if now >= expires {
        let text = format!("the token {name:?} expired at {}; create a new one", date(expires));
        return refused(Reason::Expired, text);
    }
    let principal = Principal::token(name)
        .map_err(|error| AuthError::new(Method::Token, Reason::Malformed, error.to_string()))?;
    let identity = Identity { principal, token: Some(digest) };
    Ok(Proof { expires: Some(time(expires)), ..Proof::of(identity) })
}

/// Returns the name in a token, if the form and the checksum are right. The secret may contain `_`.
fn name_in(text: &str) -> Option<&str> {
    let (name, rest) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_long = rest.is_ascii() && rest.len() == SECRET_CHARS + 1 + CHECKSUM_CHARS;
    if !is_name(name) || !is_long || rest.as_bytes()[SECRET_CHARS] != b'_' {
        return None;
    }
    let body = &text[..text.len() - CHECKSUM_CHARS - 1];
    let is_whole = rest[SECRET_CHARS + 1..] == checksum(body);
    let secret = URL_SAFE_NO_PAD.decode(&rest[..SECRET_CHARS]).ok()?;
    (is_whole && secret.len() == SECRET_BYTES).then_some(name)
}

fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Returns the CRC-32 (IEEE) of a text, in base 62.
fn checksum(text: &str) -> String {
    let mut crc = u32::MAX;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let polynomial = if crc & 1 == 1 { 0xEDB8_8320 } else { 0 };
            crc = (crc >> 1) ^ polynomial;
        }
    }
    let mut rest = !crc;
    let mut digits = [0; CHECKSUM_CHARS];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use chancery_model::{Revision, Token};

    use super::*;

    fn stored(name: &str, digest: TokenDigest, expires_ms: u64) -> Token {
        Token { name: name.into(), digest, created_ms: 0, expires_ms, revision: Revision(1) }
    }

    fn reason(text: &str, now: u64, token: &Token) -> Result<String, &'static str> {
        let lookup = |digest: &TokenDigest| (*digest == token.digest).then(|| token.clone());
        let proof = prove(text, now, &lookup).map_err(|error| {
            let secret = text.len().checked_sub(50).and_then(|at| text.get(at..at + 40));
            let secret = secret.unwrap_or("none");
            assert!(!error.to_string().contains(secret), "{error}");
            error.reason()
        })?;
        assert_eq!(proof.identity.token, Some(token.digest));
        assert_eq!(proof.expires, Some(time(token.expires_ms / 1000)));
        Ok(proof.identity.principal.to_string())
    }

    #[test]
    fn checksum_is_crc_32_in_base_62() {
        // CRC-32("123456789") is 0xCBF43926 = 3,421,780,262.
        assert_eq!(checksum("123456789"), "3jZRME");
        assert_eq!(checksum(""), "000000");
    }

    #[test]
    fn new_token_proves_its_name_until_it_expires() {
        for name in ["ci", "a", "x-1", &"n".repeat(64)] {
            let NewToken { text, digest } = new_token(name).unwrap();
            assert_eq!(text.len(), 4 + name.len() + 1 + 43 + 1 + 6);
            let token = stored(name, digest, 5_000);
            assert_eq!(reason(&text, 4, &token), Ok(format!("token:{name}")));
            assert_eq!(reason(&text, 5, &token), Err("expired"));
        }
        assert_ne!(new_token("ci").unwrap().digest, new_token("ci").unwrap().digest);
        for name in ["", "A", "a_b", "é", "a b", &"n".repeat(65)] {
            assert!(new_token(name).is_err(), "{name:?}");
        }
    }

    /// attack 38: the right name with another secret. The form is checked before the search, and each check costs one
    /// round of SHA-256.
    #[test]
    fn token_with_wrong_secret_or_form_is_refused() {
        let NewToken { text, digest } = new_token("ci").unwrap();
        let token = stored("ci", digest, u64::MAX);
        assert_eq!(reason(&new_token("ci").unwrap().text, 1, &token), Err("unknown_token"));
        assert_eq!(reason(&text, 1, &stored("other", digest, u64::MAX)), Err("unknown_token"));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            let changed = String::from_utf8(bytes).unwrap();
            assert_eq!(reason(&changed, 1, &token), Err("malformed"), "{at}");
            assert_eq!(reason(&text[..at], 1, &token), Err("malformed"), "{at}");
        }
        assert_eq!(reason(&format!("{text}x"), 1, &token), Err("malformed"));
    }

    #[test]
    fn new_token_is_not_shown_in_logs() {
        let new = new_token("ci").unwrap();
        assert!(!format!("{new:?}").contains(&new.text[10..20]));
    }
}
