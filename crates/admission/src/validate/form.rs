//! The well-known forms of text, such as host names and the values of headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A well-known form of text or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Email,
    Hostname,
    Ip,
    Ipv4,
    Ipv6,
    Uri,
    UriRef,
    /// A host name or an IP address.
    Address,
    Uuid,
    HeaderName {
        strict: bool,
    },
    HeaderValue {
        strict: bool,
    },
}

impl Form {
    /// Returns the ID of the rule.
    pub(crate) fn id(self) -> &'static str {
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

    /// Describes why a text does not have the form.
    pub(crate) fn sentence(self, text: &str) -> String {
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
