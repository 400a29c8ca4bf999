//! The rules of PGV on text and bytes.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::rules::{BytesRules, Form, TextRules};

/// A violated rule: its ID, and a sentence for people. The sentence does not show the value, which may
/// be a secret.
pub(crate) type Violation = (Cow<'static, str>, String);

/// Returns the rules that a text violates.
pub(crate) fn check_text(rules: &TextRules, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    if rules.ignore_empty && text.is_empty() {
        return found;
    }
    let mut check = |id: &'static str, holds: bool, say: &dyn Fn() -> String| {
        if !holds {
            found.push((id.into(), say()));
        }
    };
    if let Some(exact) = &rules.exact {
        check("string.const", text == exact, &|| format!("must be {exact:?}"));
    }
    if rules.len.iter().any(Option::is_some) {
        let n = text.chars().count() as u64;
        check_len(&mut check, STRING_LEN, n, rules.len, "character");
    }
    check_len(&mut check, STRING_BYTES, text.len() as u64, rules.bytes, "byte");
    if let Some(pattern) = &rules.pattern {
        let say = || format!("does not match the regular expression {pattern}");
        check("string.pattern", pattern.is_match(text), &say);
    }
    let (prefix, suffix) = (rules.prefix.as_str(), rules.suffix.as_str());
    let say = |what: &str, part: &str| format!("must {what} {part:?}");
    check("string.prefix", text.starts_with(prefix), &|| say("start with", prefix));
    check("string.suffix", text.ends_with(suffix), &|| say("end with", suffix));
    let part = rules.contains.as_str();
    check("string.contains", text.contains(part), &|| say("contain", part));
    let part = rules.not_contains.as_str();
    let holds = part.is_empty() || !text.contains(part);
    check("string.not_contains", holds, &|| say("not contain", part));
    let holds = rules.within.is_empty() || rules.within.iter().any(|known| known == text);
    check("string.in", holds, &|| format!("must be one of {}", listed(&rules.within)));
    let holds = !rules.without.iter().any(|bad| bad == text);
    check("string.not_in", holds, &|| format!("must be none of {}", listed(&rules.without)));
    if let Some(form) = rules.form {
        check(form.id(), form.holds(text), &|| form.sentence(text));
    }
    found
}

/// Returns the rules that bytes violate.
pub(crate) fn check_bytes(rules: &BytesRules, bytes: &[u8]) -> Vec<Violation> {
    let mut found = Vec::new();
    if rules.ignore_empty && bytes.is_empty() {
        return found;
    }
    let mut check = |id: &'static str, holds: bool, say: &dyn Fn() -> String| {
        if !holds {
            found.push((id.into(), say()));
        }
    };
    let other = || "has other bytes than the rule requires".to_owned();
    let contains =
        |part: &[u8]| part.is_empty() || bytes.windows(part.len()).any(|window| window == part);
    check_len(&mut check, BYTES_LEN, bytes.len() as u64, rules.len, "byte");
    check("bytes.const", rules.exact.as_ref().is_none_or(|exact| exact == bytes), &other);
    check("bytes.prefix", bytes.starts_with(&rules.prefix), &other);
    check("bytes.suffix", bytes.ends_with(&rules.suffix), &other);
    check("bytes.contains", contains(&rules.contains), &other);
    let is_in = |list: &[Vec<u8>]| list.iter().any(|item| item == bytes);
    check("bytes.in", rules.within.is_empty() || is_in(&rules.within), &other);
    check("bytes.not_in", !is_in(&rules.without), &other);
    if let Some(pattern) = &rules.pattern {
        let say = || format!("does not match the regular expression {pattern}");
        check("bytes.pattern", pattern.is_match(bytes), &say);
    }
    let lens: &[usize] = match rules.form {
        Some(Form::Ip) => &[4, 16],
        Some(Form::Ipv4) => &[4],
        Some(Form::Ipv6) => &[16],
        _ => return found,
    };
    let n = bytes.len();
    let say = || format!("has {n} bytes; an IP address has 4 or 16");
    check("bytes.ip", lens.contains(&n), &say);
    found
}

/// The IDs of the rules on the exact, minimum and maximum length.
const STRING_LEN: [&str; 3] = ["string.len", "string.min_len", "string.max_len"];
const STRING_BYTES: [&str; 3] = ["string.len_bytes", "string.min_bytes", "string.max_bytes"];
const BYTES_LEN: [&str; 3] = ["bytes.len", "bytes.min_len", "bytes.max_len"];

/// Records a rule that does not hold.
type Record<'a> = dyn FnMut(&'static str, bool, &dyn Fn() -> String) + 'a;

fn check_len(
    check: &mut Record<'_>,
    ids: [&'static str; 3],
    n: u64,
    [exact, min, max]: [Option<u64>; 3],
    unit: &str,
) {
    let count = |n: u64| if n == 1 { format!("1 {unit}") } else { format!("{n} {unit}s") };
    if let Some(exact) = exact {
        check(ids[0], n == exact, &|| format!("has {}, but must have {exact}", count(n)));
    }
    if let Some(min) = min {
        check(ids[1], n >= min, &|| match (n, min) {
            (0, 1) => "is empty or missing, but is required".to_owned(),
            _ => format!("has {}, but must have at least {min}", count(n)),
        });
    }
    if let Some(max) = max {
        check(ids[2], n <= max, &|| format!("has {}, but may have at most {max}", count(n)));
    }
}

fn listed(items: &[String]) -> String {
    items.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", ")
}

impl Form {
    fn id(self) -> &'static str {
        match self {
            Self::Email => "string.email",
            Self::Hostname => "string.hostname",
            Self::Ip => "string.ip",
            Self::Ipv4 => "string.ipv4",
            Self::Ipv6 => "string.ipv6",
            Self::Uri => "string.uri",
            Self::UriRef => "string.uri_ref",
            Self::Address => "string.address",
            Self::Uuid => "string.uuid",
            Self::HeaderName { .. } | Self::HeaderValue { .. } => "string.well_known_regex",
        }
    }

    /// Returns whether a text has the form.
    pub(crate) fn holds(self, text: &str) -> bool {
        match self {
            Self::Email => text.rsplit_once('@').is_some_and(|(user, host)| {
                !user.is_empty() && user.len() <= 64 && text.len() <= 254 && is_hostname(host)
            }),
            Self::Hostname => is_hostname(text),
            Self::Ip => text.parse::<IpAddr>().is_ok(),
            Self::Ipv4 => text.parse::<Ipv4Addr>().is_ok(),
            Self::Ipv6 => text.parse::<Ipv6Addr>().is_ok(),
            Self::Uri => is_uri_reference(text) && has_scheme(text),
            Self::UriRef => is_uri_reference(text),
            Self::Address => text.parse::<IpAddr>().is_ok() || is_hostname(text),
            Self::Uuid => {
                let is_dash = |at| matches!(at, 8 | 13 | 18 | 23);
                text.len() == 36
                    && text.bytes().enumerate().all(|(at, byte)| {
                        if is_dash(at) { byte == b'-' } else { byte.is_ascii_hexdigit() }
                    })
            }
            Self::HeaderName { strict: true } => {
                let name = text.strip_prefix(':').unwrap_or(text);
                !name.is_empty() && name.bytes().all(is_header_name_byte)
            }
            Self::HeaderValue { strict: true } => {
                text.bytes().all(|byte| byte == b'\t' || byte >= 0x20 && byte != 0x7f)
            }
            Self::HeaderName { strict: false } | Self::HeaderValue { strict: false } => {
                !has_line_break(text)
            }
        }
    }

    fn sentence(self, text: &str) -> String {
        let what = match self {
            Self::Email => "an email address",
            Self::Hostname => "a host name",
            Self::Ip => "an IP address",
            Self::Ipv4 => "an IPv4 address",
            Self::Ipv6 => "an IPv6 address",
            Self::Uri => "a URI with a scheme",
            Self::UriRef => "a URI reference",
            Self::Address => "a host name or an IP address",
            Self::Uuid => "a UUID",
            Self::HeaderName { .. } => "a header name",
            Self::HeaderValue { .. } => "a header value",
        };
        match self {
            Self::HeaderName { .. } if text.is_empty() => {
                "is empty or missing, but is required".to_owned()
            }
            Self::HeaderName { strict } | Self::HeaderValue { strict } => {
                let is_good = |c: &char| match self {
                    Self::HeaderName { .. } if strict => {
                        u8::try_from(*c).is_ok_and(is_header_name_byte)
                    }
                    _ => !c.is_control(),
                };
                match text.chars().find(|c| !is_good(c)) {
                    Some(c) => format!("is not {what}: it contains {c:?}"),
                    None => format!("is not {what}"),
                }
            }
            _ => format!("is not {what}"),
        }
    }
}

fn has_line_break(text: &str) -> bool {
    text.contains(['\0', '\n', '\r'])
}

/// The characters of PGV's expression for header names. `+-.` in it is a range, which includes `,`.
fn is_header_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+,-.^_|~`".contains(&byte)
}

/// Returns whether a text has only characters of URIs (RFC 3986).
fn is_uri_reference(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=%".contains(c);
    text.chars().all(allowed)
}

fn has_scheme(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

fn is_hostname(text: &str) -> bool {
    let host = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.len() <= 253 && host.split('.').all(is_label)
}
