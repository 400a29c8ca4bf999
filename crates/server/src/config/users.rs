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

/// Returns a text without the users and the passwords of its addresses: of URLs, and of `USER:PASSWORD@HOST`.
pub(super) fn without_user(text: &str) -> String {
    let ends_address = |c: char| c.is_whitespace() || "\"',[]{}".contains(c);
    let words = text.split_inclusive(ends_address).map(|word| match word.rsplit_once('@') {
        Some((user, host)) if user.contains(':') && !user.contains('/') => {
            format!("{REDACTED}@{host}")
        }
        _ => word.to_owned(),
    });
    without_users(&words.collect::<String>())
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
            ("[\"1=a:1\", \"2=u:p@b:2\"]", "[\"1=a:1\", \"[redacted]@b:2\"]"),
            ("{ address = \"u:p@h:1\", n = 1 }", "{ address = \"[redacted]@h:1\", n = 1 }"),
            ("\"http://u:p@h\" is not https", "\"http://[redacted]@h\" is not https"),
        ] {
            assert_eq!(without_user(value), expected);
        }
    }
}
