//! Sets of public keys (JWK Set, RFC 7517), and the verification of signatures.

use std::{fmt, str::FromStr};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

/// The maximum size of a key set in bytes.
pub(crate) const SET_BYTES_MAX: usize = 1 << 20;
/// The maximum number of keys in a set.
const KEYS_MAX: usize = 100;
/// The minimum and the maximum size of an RSA modulus in bytes.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// An algorithm of signatures. `none` and symmetric algorithms do not exist here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RSA (PKCS 1) with SHA-256.
    Rs256,
    /// RSA (PKCS 1) with SHA-384.
    Rs384,
    /// RSA (PKCS 1) with SHA-512.
    Rs512,
    /// RSA (PSS) with SHA-256.
    Ps256,
    /// ECDSA over P-256.
    Es256,
    /// ECDSA over P-384.
    Es384,
    /// EdDSA over Curve25519.
    EdDsa,
}

/// A public key with its ID.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    id: String,
    /// The only algorithm for which the key is meant, if its set says so.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The public keys of an issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<Key>);

/// The result of the verification of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Valid,
    UnknownKey,
    Invalid,
}

// === impl Algorithm ===

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 7] =
        [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Es256, Self::Es384, Self::EdDsa];

    /// Returns the name in headers of tokens and in key sets.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{name:?} is not one of {names}")
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl KeySet ===

impl KeySet {
    /// Reads a key set. Keys that can verify no signature here are skipped.
    ///
    /// # Errors
    /// Returns the reason if the set is invalid, or has no usable key.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > SET_BYTES_MAX {
            return Err(format!("the key set has more than {SET_BYTES_MAX} bytes"));
        }
        let set: Value = serde_json::from_slice(bytes)
            .map_err(|_| "the key set is not valid JSON".to_owned())?;
        let keys = set.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or_else(|| "the key set has no list \"keys\"".to_owned())?;
        if keys.len() > KEYS_MAX {
            let n_keys = keys.len();
            return Err(format!("the key set has {n_keys} keys, at most {KEYS_MAX} are allowed"));
        }
        let usable: Vec<Key> = keys.iter().filter_map(Value::as_object).filter_map(key).collect();
        if usable.is_empty() {
            Err("the key set has no usable public key with an ID (kid)".to_owned())
        } else {
            Ok(Self(usable))
        }
    }

    /// Verifies a signature with the key of this ID.
    pub(crate) fn verify(
        &self,
        id: &str,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Verdict {
        let mut verdict = Verdict::UnknownKey;
        for key in self.0.iter().filter(|key| key.id == id) {
            if key.is_for(algorithm) && key.material.verify(algorithm, message, signature) {
                return Verdict::Valid;
            }
            verdict = Verdict::Invalid;
        }
        verdict
    }
}

impl Key {
    fn is_for(&self, algorithm: Algorithm) -> bool {
        self.algorithm.as_deref().is_none_or(|name| name == algorithm.name())
    }
}

impl Material {
    /// The kind of the key must be that of the algorithm: a token cannot choose how a key is used.
    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let fixed = |algorithm, point: &Vec<u8>| {
            UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Rsa { n, e }, algorithm) => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
                    Algorithm::Es256 | Algorithm::Es384 | Algorithm::EdDsa => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }
            (Self::P256(point), Algorithm::Es256) => fixed(&ECDSA_P256_SHA256_FIXED, point),
            (Self::P384(point), Algorithm::Es384) => fixed(&ECDSA_P384_SHA384_FIXED, point),
            (Self::Ed25519(point), Algorithm::EdDsa) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, signature).is_ok()
            }
            (Self::P256(_) | Self::P384(_) | Self::Ed25519(_), _) => false,
        }
    }
}

/// Returns a key of a set, if it can verify signatures here. A key whose private half is published proves nothing.
fn key(members: &Map<String, Value>) -> Option<Key> {
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    let id = text("kid").filter(|id| !id.is_empty())?;
    if members.contains_key("d") {
        tracing::error!(kid = ?id, "a key set publishes a private key; its tokens are refused, replace the key");
        return None;
    }
    if members.contains_key("use") && text("use") != Some("sig") {
        return None;
    }
    if let Some(uses) = members.get("key_ops") {
        let uses = uses.as_array()?;
        uses.iter().any(|name| name == "verify").then_some(())?;
    }
    let algorithm = match members.get("alg") {
        None => None,
        Some(name) => Some(name.as_str()?.to_owned()),
    };
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
    let point = |len: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        (x.len() == len && y.len() == len).then(|| [vec![4], x, y].concat())
    };
    let material = match (text("kty")?, text("crv")) {
        ("RSA", _) => {
            let (n, e) = (bytes("n")?, bytes("e")?);
            let n: Vec<u8> = n.into_iter().skip_while(|byte| *byte == 0).collect();
            RSA_BYTES.contains(&n.len()).then_some(Material::Rsa { n, e })?
        }
        ("EC", Some("P-256")) => Material::P256(point(32)?),
        ("EC", Some("P-384")) => Material::P384(point(48)?),
        ("OKP", Some("Ed25519")) => {
            Material::Ed25519(bytes("x").filter(|bytes| bytes.len() == 32)?)
        }
        _ => return None,
    };
    Some(Key { id: id.to_owned(), algorithm, material })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        KeySet::parse(json.as_bytes()).unwrap_err()
    }

    /// attack 30: garbage, an empty set, too many keys, too many bytes.
    #[test]
    fn unusable_key_set_is_refused() {
        assert_eq!(refusal("x"), "the key set is not valid JSON");
        assert_eq!(refusal("[]"), "the key set has no list \"keys\"");
        let none = "the key set has no usable public key with an ID (kid)";
        assert_eq!(refusal(r#"{"keys":[]}"#), none);
        let many = format!(r#"{{"keys":[{}]}}"#, vec!["{}"; 101].join(","));
        assert_eq!(refusal(&many), "the key set has 101 keys, at most 100 are allowed");
        let long = " ".repeat(SET_BYTES_MAX + 1);
        assert_eq!(refusal(&long), "the key set has more than 1048576 bytes");
        let x = URL_SAFE_NO_PAD.encode([1; 32]);
        let n = URL_SAFE_NO_PAD.encode([1; 128]);
        for key in [
            format!(r#"{{"kty":"oct","kid":"a","k":"{x}"}}"#),
            format!(r#"{{"kty":"RSA","kid":"a","n":"{n}","e":"AQAB"}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":""}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a","d":"{x}"}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a","use":"enc"}}"#),
            format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a","key_ops":["sign"]}}"#),
            format!(r#"{{"kty":"OKP","crv":"X25519","x":"{x}","kid":"a"}}"#),
            format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"AA","kid":"a"}}"#),
        ] {
            assert_eq!(refusal(&format!(r#"{{"keys":[{key}]}}"#)), none, "{key}");
        }
    }

    #[test]
    fn unusable_keys_of_a_set_are_skipped() {
        let x = URL_SAFE_NO_PAD.encode([1; 32]);
        let good = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}","kid":"a","use":"sig"}}"#);
        let set = format!(r#"{{"keys":[7,{{"kty":"new"}},{good}]}}"#);
        let set = KeySet::parse(set.as_bytes()).unwrap();
        assert_eq!(set.verify("b", Algorithm::EdDsa, b"", b""), Verdict::UnknownKey);
        assert_eq!(set.verify("a", Algorithm::EdDsa, b"", &[0; 64]), Verdict::Invalid);
    }

    #[test]
    fn symmetric_algorithms_have_no_name() {
        for name in ["none", "None", "HS256", "HS512", "rs256", ""] {
            assert!(name.parse::<Algorithm>().is_err(), "{name}");
        }
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
    }
}
