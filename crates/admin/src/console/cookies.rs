//! The cookies of the console.
//!
//! Browsers send them only to paths of the console, never with a request that another site caused, and never show them to
//! scripts.

use http::{HeaderMap, HeaderValue, header};

/// The cookie with the bearer token.
pub(super) const TOKEN: &str = "chancery_token";
/// The cookie with the value that each form repeats.
pub(super) const CSRF: &str = "chancery_csrf";
/// The maximum size of a token in bytes. Browsers keep cookies of at most 4096 bytes with their name and attributes.
pub(super) const TOKEN_BYTES_MAX: usize = 3800;

/// Returns the value of a cookie. Several cookies of one name contradict each other.
pub(super) fn find<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut found = all.flat_map(|line| line.split(';')).filter_map(|pair| {
        let (known, value) = pair.trim().split_once('=')?;
        (known == name).then_some(value)
    });
    let first = found.next();
    first.filter(|_| found.next().is_none())
}

/// Returns whether a text has only the characters of a bearer token (RFC 6750), all of which a cookie may have.
pub(super) fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    !text.is_empty() && text.len() <= TOKEN_BYTES_MAX && text.bytes().all(is_allowed)
}

/// Returns the header that sets a cookie until the browser closes.
pub(super) fn set(name: &str, value: &str, is_secure: bool) -> Option<HeaderValue> {
    header_value(name, value, is_secure, "")
}

/// Returns the header that removes a cookie.
pub(super) fn remove(name: &str, is_secure: bool) -> Option<HeaderValue> {
    header_value(name, "", is_secure, "; Max-Age=0")
}

fn header_value(name: &str, value: &str, is_secure: bool, age: &str) -> Option<HeaderValue> {
    let secure = if is_secure { "; Secure" } else { "" };
    let text = format!("{name}={value}; Path=/ui; HttpOnly; SameSite=Strict{secure}{age}");
    let mut header = HeaderValue::from_str(&text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_found_among_others_and_only_once() {
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=1; chancery_csrf=x=y;b=2"));
        assert_eq!(find(&headers, CSRF), Some("x=y"));
        assert_eq!(find(&headers, TOKEN), None);
        headers.append(header::COOKIE, HeaderValue::from_static("chancery_csrf=z"));
        assert_eq!(find(&headers, CSRF), None);
    }

    #[test]
    fn cookies_are_hidden_from_scripts_and_other_sites() {
        let text = |value: Option<HeaderValue>| value.unwrap().to_str().unwrap().to_owned();
        let expected = "chancery_token=abc; Path=/ui; HttpOnly; SameSite=Strict; Secure";
        assert_eq!(text(set(TOKEN, "abc", true)), expected);
        assert!(!text(set(TOKEN, "abc", false)).contains("Secure"));
        assert!(text(remove(TOKEN, true)).ends_with("; Max-Age=0"));
        for bad in ["", "a b", "a;b", "a\nb", "é", &"a".repeat(TOKEN_BYTES_MAX + 1)] {
            assert!(!is_token(bad), "{bad}");
        }
        assert!(is_token("eyJhbGciOi.J9-_~+/=="));
    }
}
