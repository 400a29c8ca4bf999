//! The form of a signed JSON Web Token (JWS compact serialization, RFC 7515 and 7519): three parts between dots.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::{
    clock::SECONDS_END,
    error::{AuthError, Method, Reason},
};

/// The maximum length of a text in a token.
const TEXT_BYTES_MAX: usize = 1024;

/// A token whose form is right. Nothing in it is verified.
#[derive(Debug, Clone)]
pub(crate) struct Signed<'a> {
    pub(crate) algorithm: String,
    pub(crate) key: String,
    pub(crate) claims: Claims,
    pub(crate) message: &'a [u8],
    pub(crate) signature: Vec<u8>,
}

/// The claims of a token.
#[derive(Debug, Clone)]
pub(crate) struct Claims {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    pub(crate) audience: Vec<String>,
    pub(crate) expires: u64,
    pub(crate) issued: u64,
    pub(crate) not_before: Option<u64>,
    pub(crate) kubernetes: Option<Value>,
}

impl Claims {
    /// Returns the Unix time from which the token is valid.
    pub(crate) fn begins(&self) -> u64 {
        self.issued.max(self.not_before.unwrap_or(0))
    }
}

/// The header. Parameters that point to keys (`jku`, `x5u`, `jwk`) are ignored, as all others.
#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

/// The claims before their check. A claim that occurs twice is an error.
#[derive(Debug, Deserialize)]
struct RawClaims {
    iss: Option<Value>,
    sub: Option<Value>,
    aud: Option<Value>,
    exp: Option<Value>,
    iat: Option<Value>,
    nbf: Option<Value>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Value>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    serde::de::IgnoredAny::deserialize(deserializer).map(|_| true)
}

fn refused(reason: Reason, text: impl Into<String>) -> AuthError {
    AuthError::new(Method::Jwt, reason, text)
}

fn malformed() -> AuthError {
    let text = "the bearer token is neither a token of Chancery nor a valid JSON Web Token";
    AuthError::new(Method::Bearer, Reason::Malformed, text)
}

/// Parses a token without verifying it.
///
/// # Errors
/// Fails if the form is wrong, or a required claim is missing.
pub(crate) fn parse(text: &str) -> Result<Signed<'_>, AuthError> {
    let (message, signature) = text.rsplit_once('.').ok_or_else(malformed)?;
    let (header, claims) = message.split_once('.').ok_or_else(malformed)?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed());
    // A further dot, as in encrypted tokens, is not in the alphabet.
    let (header, claims, signature) = (decode(header)?, decode(claims)?, decode(signature)?);
    let header: Header = serde_json::from_slice(&header).map_err(|_| malformed())?;
    if header.crit {
        return Err(refused(
            Reason::Header,
            "the token has critical header parameters (crit), which are not supported",
        ));
    }
    if let Some(kind) = &header.typ {
        let kind = kind.strip_prefix("application/").unwrap_or(kind);
        if !kind.eq_ignore_ascii_case("jwt") && !kind.eq_ignore_ascii_case("at+jwt") {
            return Err(refused(
                Reason::Header,
                "the token has another type (typ) than JWT and at+jwt",
            ));
        }
    }
    let key = header.kid.filter(|id| !id.is_empty() && id.len() <= TEXT_BYTES_MAX);
    let key =
        key.ok_or_else(|| refused(Reason::Header, "the token does not name its key (kid)"))?;
    let claims: RawClaims = serde_json::from_slice(&claims).map_err(|_| malformed())?;
    Ok(Signed {
        algorithm: header.alg,
        key,
        claims: claims.check()?,
        message: message.as_bytes(),
        signature,
    })
}

impl RawClaims {
    fn check(self) -> Result<Claims, AuthError> {
        Ok(Claims {
            issuer: text("iss", self.iss)?,
            subject: text("sub", self.sub)?,
            audience: audience(self.aud)?,
            expires: seconds("exp", self.exp)?,
            issued: seconds("iat", self.iat)?,
            not_before: self.nbf.map(|time| seconds("nbf", Some(time))).transpose()?,
            kubernetes: self.kubernetes,
        })
    }
}

fn missing(name: &str) -> AuthError {
    refused(Reason::Claim, format!("the token has no claim `{name}`"))
}

fn wrong(name: &str, rule: &str) -> AuthError {
    refused(Reason::Claim, format!("the claim `{name}` of the token is not {rule}"))
}

fn text(name: &str, value: Option<Value>) -> Result<String, AuthError> {
    match value.ok_or_else(|| missing(name))? {
        Value::String(text) if !text.is_empty() && text.len() <= TEXT_BYTES_MAX => Ok(text),
        _ => Err(wrong(name, "a text of 1 to 1024 bytes")),
    }
}

fn audience(value: Option<Value>) -> Result<Vec<String>, AuthError> {
    match value.ok_or_else(|| missing("aud"))? {
        Value::String(one) => Ok(vec![one]),
        Value::Array(all) => {
            let texts = all.into_iter().map(|value| match value {
                Value::String(text) => Ok(text),
                _ => Err(wrong("aud", "a text or a list of texts")),
            });
            texts.collect()
        }
        _ => Err(wrong("aud", "a text or a list of texts")),
    }
}

/// Returns a time. Issuers may use fractions of seconds, which are cut off.
fn seconds(name: &str, value: Option<Value>) -> Result<u64, AuthError> {
    let value = value.ok_or_else(|| missing(name))?;
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    let in_range = |seconds: &f64| (0.0..SECONDS_END as f64).contains(seconds);
    let seconds = value.as_f64().filter(in_range);
    let seconds = seconds.ok_or_else(|| wrong(name, "a number of seconds since 1970"))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
    Ok(seconds as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"alg":"ES256","kid":"k"}"#;
    const CLAIMS: &str = r#"{"iss":"i","sub":"s","aud":"a","exp":9,"iat":1}"#;

    fn token(header: &str, claims: &str) -> String {
        let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.c2ln", encode(header), encode(claims))
    }

    fn reason(header: &str, claims: &str) -> &'static str {
        let token = token(header, claims);
        let error = parse(&token).unwrap_err();
        assert!(!error.to_string().contains(&token), "{error}");
        error.reason()
    }

    #[test]
    fn token_of_the_right_form_is_parsed() {
        let token = token(HEADER, CLAIMS);
        let signed = parse(&token).unwrap();
        assert_eq!((&*signed.algorithm, &*signed.key), ("ES256", "k"));
        assert_eq!(signed.signature, b"sig");
        assert_eq!(signed.message, token.rsplit_once('.').unwrap().0.as_bytes());
        assert_eq!((signed.claims.expires, signed.claims.not_before), (9, None));
        assert_eq!(signed.claims.audience, ["a"]);
    }

    #[test]
    fn text_of_another_form_is_malformed() {
        let good = token(HEADER, CLAIMS);
        let padded = good.replacen('.', "=.", 1);
        let four = format!("{good}.c2ln");
        for text in ["", "a", "a.b", "a.b.c", "..", "...", &padded, &four, "é.é.é"] {
            assert_eq!(parse(text).unwrap_err().reason(), "malformed", "{text}");
        }
        for header in
            ["{}", "[]", "7", r#"{"alg":7,"kid":"k"}"#, r#"{"alg":"a","alg":"b","kid":"k"}"#]
        {
            assert_eq!(reason(header, CLAIMS), "malformed", "{header}");
        }
        let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
        for claims in ["", "[]", "null", r#"{"exp":1,"exp":2}"#, &deep] {
            assert_eq!(reason(HEADER, claims), "malformed", "{claims}");
        }
    }

    /// attack 31: `crit` is refused, and the parameters that point to keys are ignored.
    #[test]
    fn header_parameters_are_checked_or_ignored() {
        for header in [
            r#"{"alg":"ES256","kid":"k","crit":["exp"]}"#,
            r#"{"alg":"ES256","kid":"k","crit":null}"#,
            r#"{"alg":"ES256","kid":"k","typ":"JWE"}"#,
            r#"{"alg":"ES256","kid":"k","typ":"secevent+jwt"}"#,
            r#"{"alg":"ES256"}"#,
            r#"{"alg":"ES256","kid":""}"#,
        ] {
            assert_eq!(reason(header, CLAIMS), "header", "{header}");
        }
        for header in [
            r#"{"alg":"ES256","kid":"k","jku":"https://evil","x5u":"https://evil","jwk":{"kty":"oct"}}"#,
            r#"{"alg":"ES256","kid":"k","typ":"jwt"}"#,
            r#"{"alg":"ES256","kid":"k","typ":"application/at+JWT"}"#,
        ] {
            assert!(parse(&token(header, CLAIMS)).is_ok(), "{header}");
        }
    }

    /// attack 28: no `exp`, `exp` as a text. A malformed claim is not an absent one.
    #[test]
    fn missing_or_malformed_claim_is_refused() {
        for name in ["iss", "sub", "aud", "exp", "iat"] {
            let mut claims: Value = serde_json::from_str(CLAIMS).unwrap();
            for value in ["null", "\"\"", "{}", "true", "[7]", "-1", "1e300"] {
                claims[name] = serde_json::from_str(value).unwrap();
                let is_empty_audience = name == "aud" && value == "\"\"";
                if !is_empty_audience {
                    assert_eq!(reason(HEADER, &claims.to_string()), "claim", "{name} {value}");
                }
            }
            claims.as_object_mut().unwrap().remove(name);
            assert_eq!(reason(HEADER, &claims.to_string()), "claim", "{name}");
        }
        let mut claims: Value = serde_json::from_str(CLAIMS).unwrap();
        claims["exp"] = "9".into();
        assert_eq!(reason(HEADER, &claims.to_string()), "claim");
        claims["exp"] = 9.5.into();
        claims["nbf"] = "soon".into();
        assert_eq!(reason(HEADER, &claims.to_string()), "claim");
    }
}
