//! The table of all cases.

mod ads;
mod delta;
mod delta_wildcard;
mod dynamic;
mod harness;
mod rest;
mod row;
mod services;
mod sotw;
mod sotw_changes;
mod sotw_wildcard;

use crate::case::Case;
use row::of;

/// Returns all cases.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = harness::cases();
    cases.extend(services::cases());
    cases.extend(of("sotw", sotw::ROWS));
    cases.extend(of("sotw", sotw_changes::ROWS));
    cases.extend(of("sotw", sotw_wildcard::ROWS));
    cases.extend(of("delta", delta::ROWS));
    cases.extend(of("delta", delta_wildcard::ROWS));
    cases.extend(dynamic::cases());
    cases.extend(of("ads", ads::ROWS));
    cases.extend(of("rest", rest::ROWS));
    cases
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The 98 scenarios of the open test harness: its outlines, with its examples, on its variants.
    #[test]
    fn scenarios_of_the_harness_are_complete() {
        let harness = all().into_iter().filter(|case| case.name.starts_with("harness/"));
        assert_eq!(harness.count(), 98);
    }

    #[test]
    fn cases_have_unique_names_and_cite_requirements_that_exist() {
        let file =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../xtask/src/conformance/requirements.txt");
        let text = std::fs::read_to_string(file).unwrap();
        let known: BTreeSet<&str> =
            text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let mut names = BTreeSet::new();
        for case in all() {
            assert!(names.insert(case.name.clone()), "{} is there twice", case.name);
            assert!(!case.requirements.is_empty() && case.shows.ends_with('.'), "{}", case.name);
            for id in case.requirements {
                assert!(known.contains(id), "{}: {id} is not a requirement", case.name);
            }
        }
    }
}
