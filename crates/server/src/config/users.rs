//! Users and passwords in addresses, which no text of the program shows.

/// The text that replaces a user and a password.
const REDACTED: &str = "[redacted]";

/// Returns a text without the users and the passwords of its URLs.
pub(crate) fn without_users(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || "/?#\"'".contains(c));
        let (authority, after) = after.split_at(end.unwrap_or(after.len()));
        match authority.rsplit_once('@') {
            Some((_, host)) => out.extend([REDACTED, "@", host]),
            None => out.push_str(authority),
        }
        rest = after;
    }
    out + rest
}

/// Returns a value without the user and the password of an address: a URL, or `USER:PASSWORD@HOST`.
pub(super) fn without_user(value: &str) -> String {
    let (start, rest) = value.split_at(value.len() - value.trim_start_matches('"').len());
    match rest.rsplit_once('@') {
        Some((user, host))
            if user.contains(':') && !user.contains(|c: char| c.is_whitespace() || c == '/') =>
        {
            format!("{start}{REDACTED}@{host}")
        }
        _ => without_users(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_removed_from_addresses() {
        for (text, expected) in [
            ("a = \"http://u:p@h:1/x@y\"", "a = \"http://[redacted]@h:1/x@y\""),
            ("http://u:p@a, https://v@w@b", "http://[redacted]@a, https://[redacted]@b"),
            ("http://h:1 a@b", "http://h:1 a@b"),
        ] {
            assert_eq!(without_users(text), expected);
        }
        for (value, expected) in [
            ("\"u:p@h:1\"", "\"[redacted]@h:1\""),
            ("u:p@h", "[redacted]@h"),
            ("http://u:p@h:1", "http://[redacted]@h:1"),
            ("jwt:corp/anna@h", "jwt:corp/anna@h"),
            ("anna@h", "anna@h"),
        ] {
            assert_eq!(without_user(value), expected);
        }
    }
}
