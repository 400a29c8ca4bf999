//! Keys of issuers, and the tokens that they sign.

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
        RsaKeyPair,
    },
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// A private key of an issuer of tokens.
#[derive(Debug)]
pub enum JwtKey {
    /// For ES256.
    Es256(EcdsaKeyPair),
    /// For RS256.
    Rs256(RsaKeyPair),
    /// For EdDSA.
    EdDsa(Ed25519KeyPair),
}

impl JwtKey {
    /// Creates a key for ES256.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn es256() -> Self {
        let pair = rcgen::KeyPair::generate().expect("the key is valid").serialize_der();
        Self::Es256(
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &pair)
                .expect("the key is valid"),
        )
    }

    /// Creates a key for RS256.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn rs256() -> Self {
        Self::Rs256(RsaKeyPair::generate(KeySize::Rsa2048).expect("the key is valid"))
    }

    /// Creates a key for EdDSA.
    ///
    /// # Panics
    /// If the system has no random numbers.
    #[must_use]
    pub fn ed_dsa() -> Self {
        Self::EdDsa(Ed25519KeyPair::generate().expect("the key is valid"))
    }

    /// Returns the name of the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Es256(_) => "ES256",
            Self::Rs256(_) => "RS256",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::Es256(pair) => pair
                .sign(&SystemRandom::new(), message)
                .expect("the key is valid")
                .as_ref()
                .to_vec(),
            Self::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let random = SystemRandom::new();
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .expect("the key is valid");
                signature
            }
            Self::EdDsa(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns the public key as an entry of a key set.
    #[must_use]
    pub fn public(&self, id: &str) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Es256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "alg": "ES256",
                    "x": encode(&point[1..33]), "y": encode(&point[33..])})
            }
            Self::Rs256(pair) => {
                // The key is a DER sequence of the modulus, with 256 bytes after a zero, and the exponent 65537.
                let der = pair.public_key().as_ref();
                json!({"kty": "RSA", "kid": id, "n": encode(&der[9..265]), "e": "AQAB"})
            }
            Self::EdDsa(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x})
            }
        }
    }

    /// Returns a token that is signed by the key with this ID.
    #[must_use]
    pub fn token(&self, id: &str, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": id, "typ": "JWT"}), claims)
    }

    /// Returns a signed token with a header.
    #[must_use]
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = jwt_message(header, claims);
        let signature = URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

/// Returns the part of a token that is signed.
#[must_use]
pub fn jwt_message(header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", encode(header), encode(claims))
}
