//! The bearer token of a call: where it is, and of which kind.

use http::{HeaderMap, header::AUTHORIZATION};

use crate::error::{AuthError, Method, Reason};

/// The maximum length of a bearer token in bytes.
pub(crate) const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Returns the bearer token of a call, if it has one.
///
/// # Errors
/// Fails if the call has another credential, or several.
pub(crate) fn find(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    let refused = |reason, text: &str| Err(AuthError::new(Method::Bearer, reason, text));
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return refused(
            Reason::Several,
            "the call has several authorization headers; send exactly one",
        );
    }
    if value.len() > TOKEN_BYTES_MAX {
        return refused(
            Reason::TooLong,
            "the authorization header has more than 16384 bytes; use a shorter token",
        );
    }
    let Ok(value) = value.to_str() else {
        return refused(Reason::Malformed, "the authorization header is not ASCII");
    };
    let (scheme, token) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return refused(
            Reason::Scheme,
            "the scheme of the authorization header is not Bearer; send `authorization: Bearer TOKEN`",
        );
    }
    let token = token.trim_start();
    let is_token_char = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    if token.is_empty() || !token.bytes().all(is_token_char) {
        return refused(Reason::Malformed, "the authorization header contains no valid token");
    }
    Ok(Some(token))
}

/// Refuses a call with a token in its URL, which logs and proxies show.
///
/// # Errors
/// Fails if the query contains a token.
pub(crate) fn refuse_in_url(query: Option<&str>) -> Result<(), AuthError> {
    let is_token = |parameter: &str| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        name.eq_ignore_ascii_case("access_token") || value.starts_with("chy_")
    };
    if query.is_some_and(|query| query.split('&').any(is_token)) {
        Err(AuthError::new(
            Method::Bearer,
            Reason::InUrl,
            "the URL contains a token, which logs may show; send it in the authorization header, and replace the token",
        ))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn found(values: &[&str]) -> Result<Option<String>, &'static str> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        find(&headers).map(|token| token.map(str::to_owned)).map_err(|error| error.reason())
    }

    /// attack 26: two headers, another scheme, no token and a huge token. The scheme is case-insensitive.
    #[test]
    fn only_one_bearer_token_is_accepted() {
        assert_eq!(found(&[]), Ok(None));
        for value in ["Bearer a.b-c_~+/=", "bearer a.b-c_~+/=", "BEARER  a.b-c_~+/= "] {
            assert_eq!(found(&[value]), Ok(Some("a.b-c_~+/=".to_owned())), "{value}");
        }
        assert_eq!(found(&["Bearer a", "Bearer a"]), Err("several"));
        for value in ["Basic YTpi", "", "a", "Bearera", "Digest a", "é a"] {
            let expected = if value.is_ascii() { "scheme" } else { "malformed" };
            assert_eq!(found(&[value]), Err(expected), "{value}");
        }
        for value in ["Bearer", "Bearer ", "Bearer a b", "Bearer a,b", "Bearer a\tb"] {
            assert_eq!(found(&[value]), Err("malformed"), "{value:?}");
        }
        let longest = "x".repeat(TOKEN_BYTES_MAX - 7);
        assert_eq!(found(&[&format!("Bearer {longest}")]), Ok(Some(longest.clone())));
        assert_eq!(found(&[&format!("Bearer {longest}x")]), Err("too_long"));
        assert_eq!(found(&[&format!("Bearer {}", longest.repeat(4))]), Err("too_long"));
    }

    /// attack 39: a token in a URL is refused, and not shown.
    #[test]
    fn token_in_url_is_refused() {
        for query in ["access_token=a", "a=b&Access_Token=x", "q=chy_ci_secret", "access_token"] {
            let error = refuse_in_url(Some(query)).unwrap_err();
            assert_eq!(error.reason(), "in_url");
            assert!(!error.to_string().contains("secret"));
        }
        for query in [None, Some(""), Some("scope=chy&limit=2")] {
            assert_eq!(refuse_in_url(query), Ok(()));
        }
    }
}
