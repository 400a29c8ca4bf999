//! Credentials in URLs, which no text of the program shows.

/// The text that replaces a credential.
const REDACTED: &str = "[redacted]";

/// Returns a text with users, passwords and queries removed from its URLs, because they may be credentials.
///
/// A URL ends at white space. Its user ends at the last `@`, because a password may contain any other character. The
/// function may therefore remove more than credentials. A credential may remain only if it contains white space.
#[must_use]
pub fn without_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let (url, after) = after.split_at(after.find(char::is_whitespace).unwrap_or(after.len()));
        push_url(&mut out, url);
        rest = after;
    }
    out + rest
}

/// Appends the part of a URL after its scheme.
fn push_url(out: &mut String, url: &str) {
    let starts_query = |c| matches!(c, '?' | '#');
    let host = match url.rsplit_once('@') {
        // The `@` may be a part of the query.
        Some((user, rest)) if user.contains(starts_query) => {
            return out.extend([REDACTED, closing(rest)]);
        }
        Some((_, host)) => {
            out.extend([REDACTED, "@"]);
            host
        }
        None => url,
    };
    match host.find(starts_query) {
        Some(at) => out.extend([&host[..=at], REDACTED, closing(&host[at..])]),
        None => out.push_str(host),
    }
}

/// Returns what follows a URL in quotes or in a list.
fn closing(end_of_url: &str) -> &str {
    let closes = |c| matches!(c, '"' | '\'' | ',' | ';' | ']' | '}' | ')');
    &end_of_url[end_of_url.trim_end_matches(closes).len()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_loses_its_user_its_password_and_its_query() {
        for (text, expected) in [
            ("a = \"http://u:p@h:1/x\"", "a = \"http://[redacted]@h:1/x\""),
            ("http://u:p@a, https://v@w@b", "http://[redacted]@a, https://[redacted]@b"),
            ("http://h:1/x a@b", "http://h:1/x a@b"),
            ("https://h/k?a=b#c is", "https://h/k?[redacted] is"),
            ("'https://h/k?a\"secret'", "'https://h/k?[redacted]'"),
            ("\"https://h/k?a=b\", \"c\"", "\"https://h/k?[redacted]\", \"c\""),
            ("u:p@h", "u:p@h"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
    }

    /// A password may contain every character that ends an authority, in violation of RFC 3986.
    #[test]
    fn password_that_is_not_escaped_is_not_shown() {
        for password in
            ["pa/ss", "pa?ss", "pa#ss", "pa\"ss", "pa'ss", "pa@s/s", "/", "pa,ss", "http://pass"]
        {
            for (url, host) in [("https://u:P@h:1/k", "@h:1/k"), ("https://u:P@h?q", "@h")] {
                let text = format!("url = \"{}\", n = 1", url.replace('P', password));
                let shown = without_credentials(&text);
                let is_hidden =
                    !shown.contains("pa") && !shown.contains("ss") && !shown.contains("u:");
                assert!(is_hidden && shown.ends_with("\", n = 1"), "{text}: {shown}");
                let may_be_query = password.contains(['?', '#']);
                assert_eq!(shown.contains(host), !may_be_query, "{text}: {shown}");
            }
        }
        let shown = without_credentials("https://h/k?mail=a@b&key=secret");
        assert_eq!(shown, "https://[redacted]");
    }
}
