//! The properties that the operator configures for types that are not in the table.

use std::{collections::BTreeSet, sync::OnceLock};

use super::{
    KNOWN, Properties, V2,
    table::{BASE, BY_NAME},
};
use crate::TypeUrl;

static CONFIGURED: OnceLock<Vec<Properties>> = OnceLock::new();

/// The configuration of one type.
#[derive(Debug, Clone)]
pub struct Configured {
    /// The type URL, or the name of a collection.
    pub type_url: TypeUrl,
    /// Whether an empty first list, or `*`, subscribes to the whole view (SOTW-68, DELTA-38).
    pub wildcard: bool,
    /// Whether each SotW response has all subscribed resources, and an empty response means that there are none
    /// (SOTW-70).
    pub full_state: bool,
}

/// Checks the configuration of types.
///
/// # Errors
/// Returns the reason if a type is in the table of known types, or occurs twice.
pub fn check_configured(types: &[Configured]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for url in types.iter().map(|configured| configured.type_url.as_str()) {
        if KNOWN.iter().chain(&V2).chain(&BY_NAME).any(|known| known.url == url) {
            return Err(format!(
                "{url} is a known type, whose properties cannot change; remove it"
            ));
        }
        if !seen.insert(url) {
            return Err(format!("{url} occurs twice"));
        }
    }
    Ok(())
}

/// Configures types, once per process and before any type is served.
///
/// # Errors
/// Returns the reason if [`check_configured`] fails, or if types are already configured.
pub fn configure(types: &[Configured]) -> Result<(), String> {
    check_configured(types)?;
    let of = |configured: &Configured| {
        let Configured { type_url, wildcard, full_state } = configured;
        // The properties of a type are static. There are few, and they exist as long as the process.
        let url = Box::leak(type_url.as_str().into());
        let (wildcard, full_state) = (*wildcard, *full_state);
        Properties { url, wildcard, full_state, answer_empty: wildcard || full_state, ..BASE }
    };
    let all = types.iter().map(of).collect();
    CONFIGURED.set(all).map_err(|_| "types are already configured".to_owned())
}

/// Returns the properties of the configured types.
pub(super) fn all() -> &'static [Properties] {
    CONFIGURED.get().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CLUSTER, properties};

    /// SOTW-68, DELTA-38: which types accept a wildcard is a setting of each type.
    #[test]
    fn unknown_type_has_its_configured_properties() {
        let of = |url: &'static str| Configured {
            type_url: TypeUrl::from_static(url),
            wildcard: false,
            full_state: false,
        };
        let own = "type.googleapis.com/example.Own";
        let error = configure(&[of(CLUSTER)]).unwrap_err();
        assert!(error.contains("cannot change"), "{error}");
        let error = configure(&[of(own), of(own)]).unwrap_err();
        assert!(error.contains("twice"), "{error}");
        let before = properties(&TypeUrl::from_static(own));
        assert!(before.wildcard && before.full_state && before.answer_empty);
        let wild = "type.googleapis.com/example.Wild";
        configure(&[of(own), Configured { wildcard: true, ..of(wild) }]).unwrap();
        assert!(properties(&TypeUrl::from_static(wild)).answer_empty, "a wildcard is answered");
        let after = properties(&TypeUrl::from_static(own));
        assert!(!after.wildcard && !after.full_state && !after.answer_empty);
        assert!(properties(&TypeUrl::from_static("a.b/c.D")).wildcard);
        assert!(configure(&[]).unwrap_err().contains("already"));
    }
}
