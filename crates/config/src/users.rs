//! Users and passwords in addresses, which no text of the program shows.

use chancery_model::{Principal, without_credentials};

/// Returns a text without the credentials of its addresses: of URLs, and of `USER:PASSWORD@HOST`. Principals such as
/// `jwt:corp/anna@example.com` stay.
pub(crate) fn without_user(text: &str) -> String {
    let ends_address = |c: char| c.is_whitespace() || c == '"' || c == '\'';
    let words = text.split_inclusive(ends_address).map(|word| match word.rsplit_once('@') {
        Some((user, host)) if user.contains(':') && !user.contains("://") => {
            // The user of an address may be called like a kind of principals, such as `token`.
            let is_principal =
                user.contains('/') && Principal::new(word.trim_end_matches(ends_address)).is_ok();
            if is_principal { word.to_owned() } else { format!("[redacted]@{host}") }
        }
        _ => word.to_owned(),
    });
    without_credentials(&words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_are_removed_from_addresses() {
        for (value, expected) in [
            ("\"u:p@h:1\"", "\"[redacted]@h:1\""),
            ("u:p@h", "[redacted]@h"),
            ("\"u:pa/ss@h:1\"", "\"[redacted]@h:1\""),
            ("u:p,a[s]{s}@h", "[redacted]@h"),
            ("http://u:pa/ss@h:1", "http://[redacted]@h:1"),
            ("\"jwt:corp/anna@h\"", "\"jwt:corp/anna@h\""),
            ("anna@h", "anna@h"),
            ("\"token:s@h:1\"", "\"[redacted]@h:1\""),
            ("jwt:s@h:1", "[redacted]@h:1"),
            ("[\"1=a:1\", \"2=u:p@b:2\"]", "[\"1=a:1\", \"[redacted]@b:2\"]"),
            ("{ address = \"u:p@h:1\", n = 1 }", "{ address = \"[redacted]@h:1\", n = 1 }"),
            ("\"http://u:p@h\" is not https", "\"http://[redacted]@h\" is not https"),
        ] {
            assert_eq!(without_user(value), expected);
        }
    }
}
