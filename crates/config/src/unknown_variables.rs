//! Warnings about unknown environment variables, with suggestions.

use std::collections::BTreeSet;

use strsim::levenshtein;

/// The prefix of all variables of this program.
pub(crate) const PREFIX: &str = "CHANCERY_";
/// Variables that are not keys. They belong to the command line, the tests and the measuring tools.
const OTHERS: [&str; 13] = [
    "CHANCERY_LOG",
    "CHANCERY_SERVER",
    "CHANCERY_CONTEXT",
    "CHANCERY_CONTEXTS",
    "CHANCERY_TOKEN",
    "CHANCERY_TOKEN_FILE",
    "CHANCERY_CA_CERT",
    "CHANCERY_CERT",
    "CHANCERY_CERT_KEY",
    "CHANCERY_CONFIG",
    "CHANCERY_BIN",
    "CHANCERY_CLIENTS",
    "CHANCERY_RESTARTS",
];
const OF_TESTS: &str = "CHANCERY_TEST_";

/// Returns whether a variable has the prefix of this program, in upper or lower case.
pub(crate) fn is_ours(name: &str) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// Returns the warning about a variable that is not in `keys`, or `None` if the program knows the
/// variable. `keys` are in upper case. An unknown variable is not an error, because Kubernetes sets
/// variables such as `CHANCERY_XDS_PORT` by itself.
pub(crate) fn warning(name: &str, keys: &[&str]) -> Option<String> {
    if OTHERS.contains(&name) || name.starts_with(OF_TESTS) {
        return None;
    }
    let near = near(name, keys);
    let hint = if near.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", near.join(" or "))
    };
    Some(format!("the environment variable {name} sets no key{hint}"))
}

/// Returns the known variables with the smallest edit distance to `name`, with or without their
/// section.
fn near<'a>(name: &str, keys: &[&'a str]) -> Vec<&'a str> {
    let upper = name.to_uppercase();
    let Some(given) = upper.strip_prefix(PREFIX) else { return Vec::new() };
    // Shorter names allow fewer edits.
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
    fn unknown_variable_is_reported_with_similar_names() {
        let keys = [
            "CHANCERY_ADMIN_ADDRESS",
            "CHANCERY_RAFT_JOIN",
            "CHANCERY_RAFT_REPLICA_ID",
            "CHANCERY_STORE_DATA_DIR",
            "CHANCERY_XDS_ADDRESS",
        ];
        for (name, meant) in [
            ("CHANCERY_JOIN", "; did you mean CHANCERY_RAFT_JOIN?"),
            ("CHANCERY_RAFTT_JOIN", "; did you mean CHANCERY_RAFT_JOIN?"),
            ("CHANCERY_RAFT_JOINS", "; did you mean CHANCERY_RAFT_JOIN?"),
            ("chancery_raft_join", "; did you mean CHANCERY_RAFT_JOIN?"),
            ("CHANCERY_REPLICA_ID", "; did you mean CHANCERY_RAFT_REPLICA_ID?"),
            ("CHANCERY_DATA_DIR", "; did you mean CHANCERY_STORE_DATA_DIR?"),
            ("CHANCERY_SERVERS", "; did you mean CHANCERY_SERVER?"),
            ("Chancery_Log", "; did you mean CHANCERY_LOG?"),
            ("CHANCERY_ADDRESS", "; did you mean CHANCERY_ADMIN_ADDRESS or CHANCERY_XDS_ADDRESS?"),
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
