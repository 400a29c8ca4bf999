//! Variables of the environment that set nothing, and what they may have been meant to be.

use std::collections::BTreeSet;

use strsim::levenshtein;

/// What every variable of this program begins with.
pub(super) const PREFIX: &str = "CHANCERY_";
/// Variables that are not keys: of the command line, of the tests, and of the tools that measure.
const OTHERS: [&str; 5] =
    ["CHANCERY_LOG", "CHANCERY_SERVER", "CHANCERY_CONFIG", "CHANCERY_BIN", "CHANCERY_CLIENTS"];
const OF_TESTS: &str = "CHANCERY_TEST_";

/// Whether a variable looks like one of this program, however it is spelled.
pub(super) fn is_ours(name: &str) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// What to say of a variable that is not among those of the `keys`, which are in capitals; nothing, if the
/// program knows it all the same. It is no error: Kubernetes sets variables such as `CHANCERY_XDS_PORT` of
/// its own accord.
pub(super) fn warning(name: &str, keys: &[&str]) -> Option<String> {
    if OTHERS.contains(&name) || name.starts_with(OF_TESTS) {
        return None;
    }
    let near = near(name, keys);
    let meant = if near.is_empty() { "" } else { ": perhaps it was to be " };
    Some(format!("the environment variable {name} sets no key{meant}{}", near.join(" or ")))
}

/// Variables that are nearly, or but for their section, the one that was given.
fn near<'a>(name: &str, keys: &[&'a str]) -> Vec<&'a str> {
    let upper = name.to_uppercase();
    let Some(given) = upper.strip_prefix(PREFIX) else { return Vec::new() };
    // The fewer letters there are, the fewer may be wrong.
    let mut least = (given.len() / 4).clamp(1, 3);
    let mut near = BTreeSet::new();
    for known in keys.iter().copied().chain(OTHERS) {
        let rest = known.strip_prefix(PREFIX).unwrap_or(known);
        let key = rest.split_once('_').map_or(rest, |(_, key)| key);
        let edits = levenshtein(given, rest).min(levenshtein(given, key));
        if edits < least {
            near.clear();
            least = edits;
        }
        if edits == least {
            near.insert(known);
        }
    }
    near.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_sets_nothing_is_told_with_what_is_near() {
        let keys = [
            "CHANCERY_ADMIN_ADDRESS",
            "CHANCERY_RAFT_JOIN",
            "CHANCERY_RAFT_REPLICA_ID",
            "CHANCERY_STORE_DATA_DIR",
            "CHANCERY_XDS_ADDRESS",
        ];
        for (name, meant) in [
            ("CHANCERY_JOIN", ": perhaps it was to be CHANCERY_RAFT_JOIN"),
            ("CHANCERY_RAFTT_JOIN", ": perhaps it was to be CHANCERY_RAFT_JOIN"),
            ("CHANCERY_RAFT_JOINS", ": perhaps it was to be CHANCERY_RAFT_JOIN"),
            ("chancery_raft_join", ": perhaps it was to be CHANCERY_RAFT_JOIN"),
            ("CHANCERY_REPLICA_ID", ": perhaps it was to be CHANCERY_RAFT_REPLICA_ID"),
            ("CHANCERY_DATA_DIR", ": perhaps it was to be CHANCERY_STORE_DATA_DIR"),
            ("CHANCERY_SERVERS", ": perhaps it was to be CHANCERY_SERVER"),
            ("Chancery_Log", ": perhaps it was to be CHANCERY_LOG"),
            (
                "CHANCERY_ADDRESS",
                ": perhaps it was to be CHANCERY_ADMIN_ADDRESS or CHANCERY_XDS_ADDRESS",
            ),
            ("CHANCERY_XDS_SERVICE_HOST", ""),
            ("CHANCERY_", ""),
            ("CHANCERY_É", ""),
        ] {
            assert!(is_ours(name), "{name}");
            let expected = format!("the environment variable {name} sets no key{meant}");
            assert_eq!(warning(name, &keys), Some(expected));
        }
        for name in ["CHANCERY_SERVER", "CHANCERY_CONFIG", "CHANCERY_BIN", "CHANCERY_TEST_SEED"] {
            assert_eq!(warning(name, &keys), None);
        }
        for name in ["", "CHANCERY", "MY_CHANCERY_JOIN", "CHANCERYé_JOIN"] {
            assert!(!is_ours(name), "{name}");
        }
    }
}
