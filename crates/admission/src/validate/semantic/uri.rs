//! URIs with a scheme and a host.

use crate::{node::shown, validate::findings::Findings};

/// Returns whether a URI has a scheme, a host, and no invalid port.
pub(super) fn is_absolute(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once("://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_port_valid = match host.rsplit_once(':') {
        Some((_, port)) if !port.contains(']') => port.is_empty() || port.parse::<u16>().is_ok(),
        _ => true,
    };
    !scheme.is_empty() && !host.is_empty() && is_port_valid
}

/// Records that a text is not an absolute URI.
pub(super) fn refuse(uri: &str, findings: &mut Findings<'_>) {
    let rule = format!("{} is not a URI with a scheme and a host", shown(uri));
    findings.refuse_with_fix("uri.absolute", rule, "write https://host/path");
}
