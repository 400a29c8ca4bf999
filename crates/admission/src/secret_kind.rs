//! The kinds of secrets. Envoy treats a secret of another kind as empty.

use crate::{references::FieldPath, wire::last};

/// The fields of `Secret` with its content, by number.
const KINDS: [(u32, &str); 4] = [
    (2, "tls_certificate"),
    (3, "session_ticket_keys"),
    (4, "validation_context"),
    (5, "generic_secret"),
];

/// Returns the kind of a secret, which is the name of a field; `None` for a secret without content.
#[must_use]
pub fn secret_kind(secret: &[u8]) -> Option<&'static str> {
    KINDS.iter().find(|(number, _)| last(secret, *number).is_some()).map(|(_, kind)| *kind)
}

/// Returns the kind of secret that a reference needs.
#[must_use]
pub fn needed_secret_kind(field: &FieldPath<'_>) -> &'static str {
    let path = field.whole();
    let named = |(_, kind): &&(u32, &str)| path.contains(&format!("{kind}_sds_secret_config"));
    KINDS.iter().find(named).map_or("generic_secret", |(_, kind)| *kind)
}
