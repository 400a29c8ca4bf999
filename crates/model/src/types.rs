//! Finds the properties of a resource type.
//!
//! The core stores and serves any type URL. A type that is not in the table has the properties [`UNKNOWN`], unless the
//! operator configures others.

mod configured;
mod exclusion;
mod table;
mod v2;

use table::BY_NAME;

pub use configured::{Configured, check_configured, configure};
pub use exclusion::Exclusion;
pub use table::{
    AGGREGATED, CLUSTER, ENDPOINT, EXTENSION, FILTER_CHAIN, KNOWN, LISTENER, LOCALITY_ENDPOINT,
    LOCALITY_ENDPOINTS, Properties, ROUTE, RUNTIME, SCOPED_ROUTE, SECRET, Service, UNKNOWN,
    VIRTUAL_HOST,
};

pub use v2::{AGGREGATED_V2, V2};

use crate::{TypeUrl, has_private_key};

/// Returns the properties of a type. If neither the table nor the configuration lists the type, returns [`UNKNOWN`].
#[must_use]
pub fn properties(type_url: &TypeUrl) -> &'static Properties {
    let mut all = KNOWN.iter().chain(&V2).chain(&BY_NAME).chain(configured::all());
    all.find(|known| known.url == type_url.as_str()).unwrap_or(&UNKNOWN)
}

/// Returns whether resources of a type are secrets (SDS), also of v2.
#[must_use]
pub fn is_secret(type_url: &TypeUrl) -> bool {
    type_url.as_str() == SECRET || type_url.as_str() == v2::SECRET
}

/// Resolves an alias (`cds`) or a full type URL, with or without `type.googleapis.com/`.
///
/// # Errors
/// Fails if `text` is neither an alias nor a type URL. The error text lists the aliases.
pub fn by_alias(text: &str) -> Result<TypeUrl, String> {
    if let Some(known) = KNOWN.iter().find(|known| known.aliases.contains(&text)) {
        return Ok(TypeUrl::from_static(known.url));
    }
    let url = match text {
        _ if text.contains('/') || has_private_key(text.as_bytes()) => text.to_owned(),
        _ if text.contains('.') => format!("type.googleapis.com/{text}"),
        _ => {
            let known: Vec<&str> = KNOWN.iter().map(|known| known.aliases[0]).collect();
            let known = known.join(", ");
            return Err(match nearest_alias(text) {
                Some(near) => format!(
                    "unknown resource type {text:?}; did you mean {near:?}? (give a full type URL or one of {known})"
                ),
                None => {
                    format!(
                        "unknown resource type {text:?}; give a full type URL or one of {known}"
                    )
                }
            });
        }
    };
    TypeUrl::new(&url).map_err(|error| error.to_string())
}

/// Returns the alias that is closest to a word, if one is close.
fn nearest_alias(text: &str) -> Option<&'static str> {
    // A third of the letters may differ.
    let most = (text.len() / 3).clamp(1, 3);
    let aliases = KNOWN.iter().flat_map(|known| known.aliases.iter().copied());
    let near = aliases.filter(|alias| alias.len().abs_diff(text.len()) <= most);
    let near = near.map(|alias| (strsim::osa_distance(text, alias), alias));
    near.filter(|(edits, _)| *edits <= most).min().map(|(_, alias)| alias)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn type_table_is_consistent() {
        let mut aliases = BTreeSet::new();
        for (position, known) in KNOWN.iter().enumerate() {
            assert_eq!(usize::from(known.order), position, "{}: sorted by order", known.url);
            assert!(known.aliases.iter().all(|alias| aliases.insert(*alias)), "{}", known.url);
            let others = known.referrers.iter().chain(known.parents).chain(known.retried_after);
            for other in others.chain(known.after).chain(known.behind) {
                assert!(KNOWN.iter().any(|k| k.url == *other), "{other}");
                assert_ne!(*other, known.url);
            }
            for earlier in known.after.iter().chain(known.behind) {
                let earlier = properties(&TypeUrl::from_static(earlier));
                assert!(earlier.order < known.order, "{} waits for a later type", known.url);
            }
        }
    }

    /// SVC-04, SVC-15: a type of v2 has the properties of its successor, and refers only to types of v2.
    #[test]
    fn v2_types_behave_like_their_successors() {
        for old in &V2 {
            let of_service = |known: &&Properties| {
                let delta = |properties: &Properties| properties.service.as_ref().map(|s| s.delta);
                delta(known) == delta(old)
            };
            let new = KNOWN.iter().find(of_service).unwrap();
            let rules = |one: &Properties| {
                (one.full_state, one.wildcard, one.answer_empty, one.order, one.announce_removal)
            };
            assert_eq!(rules(old), rules(new), "{}", old.url);
            assert_eq!(old.absent_as_alias, new.absent_as_alias, "{}", old.url);
            assert_eq!(old.exclusion, new.exclusion, "{}", old.url);
            assert_eq!(old.service.as_ref().unwrap().sotw, new.service.as_ref().unwrap().sotw);
            let kinds = |one: &Properties| {
                let without = |types: &[&str]| {
                    types.iter().filter(|t| ![EXTENSION, FILTER_CHAIN].contains(*t)).count()
                };
                [one.referrers, one.parents, one.after, one.behind, one.retried_after].map(without)
            };
            assert_eq!(kinds(old), kinds(new), "{}", old.url);
            let others = old.referrers.iter().chain(old.parents).chain(old.after).chain(old.behind);
            let others = others.chain(old.retried_after);
            for other in others {
                assert!(V2.iter().any(|known| known.url == *other), "{other}");
            }
            assert_eq!(properties(&TypeUrl::from_static(old.url)).url, old.url);
        }
    }

    #[test]
    fn type_resolves_by_alias_and_by_url() {
        assert_eq!(by_alias("cds").unwrap().as_str(), CLUSTER);
        assert_eq!(by_alias(CLUSTER).unwrap().as_str(), CLUSTER);
        assert_eq!(by_alias("envoy.config.cluster.v3.Cluster").unwrap().as_str(), CLUSTER);
        assert_eq!(by_alias("x.y/a.B").unwrap().as_str(), "x.y/a.B");
        assert!(by_alias("clutser").unwrap_err().contains("one of cluster, endpoint"));
    }
}
