//! The names of the mirrored files.

use std::fmt::Write;

use chancery_model::types;
use xxhash_rust::xxh3::xxh3_128;

/// The maximum length of a file name without its extension. File systems allow 255 bytes, and the temporary
/// file needs some more.
const BYTES_MAX: usize = 200;
/// The length of the readable part of a name that would be too long.
const HEAD_BYTES: usize = 160;

/// Returns the short name of a type after its discovery service, such as `cds` or `eds`.
pub(super) fn short(type_url: &str) -> Option<&'static str> {
    let known = types::KNOWN.iter().find(|known| known.url == type_url)?;
    known.aliases.get(1).copied()
}

/// Returns the file name of a resource, without its extension. Percent-encodes all bytes except
/// letters, digits, `_`, `-`, and `.` after the start, so that the name cannot contain a directory.
/// A long name ends in `~` and a hash.
pub(in crate::remote) fn file_name(resource: &str) -> String {
    let mut name = String::with_capacity(resource.len());
    for (index, byte) in resource.bytes().enumerate() {
        match byte {
            b'.' if index > 0 => name.push('.'),
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'-' => name.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(name, "%{byte:02X}");
            }
        }
    }
    if name.is_empty() || name.len() > BYTES_MAX {
        // All characters are ASCII.
        name.truncate(HEAD_BYTES);
        let _ = write!(name, "~{:032x}", xxh3_128(resource.as_bytes()));
    }
    name
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    #[test]
    fn file_name_is_safe_and_bounded_and_tells_resources_apart() {
        let long = "é".repeat(500);
        let longer = format!("{long}x");
        let names = [
            "",
            ".",
            "..",
            "../../etc/passwd",
            "/etc/passwd",
            ".hidden",
            "a/b",
            "a%2Fb",
            "a\\b",
            "web",
            "Web",
            "v1.2_x-y",
            "xdstp://a/b?c=d#e",
            "a~b",
            "日本",
            "a\0b",
            long.as_str(),
            longer.as_str(),
        ];
        let mut seen = BTreeSet::new();
        for name in names {
            let file = file_name(name);
            assert!((1..=BYTES_MAX).contains(&file.len()), "{file}");
            assert!(
                file.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-%~".contains(&b)),
                "{file}"
            );
            assert!(!file.starts_with('.'), "{file}");
            assert_eq!(Path::new("d").join(&file).parent(), Some(Path::new("d")), "{file}");
            assert!(seen.insert(file), "{name:?} shares its file");
        }
        assert_eq!(file_name("web.v1"), "web.v1");
        assert_eq!(file_name("../a b"), "%2E.%2Fa%20b");
    }

    #[test]
    fn types_have_the_names_of_their_subscriptions() {
        let shorts =
            [types::CLUSTER, types::LISTENER, types::ROUTE, types::ENDPOINT, types::SECRET];
        assert_eq!(shorts.map(|url| short(url).unwrap()), ["cds", "lds", "rds", "eds", "sds"]);
        assert_eq!(short(types::SCOPED_ROUTE), Some("srds"));
        assert_eq!(short(types::EXTENSION), Some("ecds"));
        assert_eq!(short("type.googleapis.com/acme.Thing"), None);
    }
}
