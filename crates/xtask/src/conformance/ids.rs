//! The IDs of requirements, and their forms in doc comments.

use std::fmt;

/// The families of requirements in the order of the page: prefix, title. A longer prefix precedes a
/// prefix with which it starts.
pub(super) const FAMILIES: &[(&str, &str)] = &[
    ("SVC", "Services, types and messages"),
    ("SOTW", "State of the world"),
    ("DELTA", "Incremental"),
    ("ADS", "Aggregated streams: order and warming"),
    ("REST", "REST-JSON polling"),
    ("FS", "Files"),
    ("TTL", "Lifetimes of resources"),
    ("XDSTP", "Structured names"),
    ("ERR", "Resource errors"),
    ("DYN", "Dynamic parameters"),
    ("CLI-E", "Behavior of Envoy"),
    ("CLI-G", "Behavior of gRPC clients"),
    ("CSDS", "Client status"),
    ("LRS", "Load reports"),
    ("OPS", "Operation of a server"),
    ("LB", "Load balancing policies of gRPC"),
    ("GRPCV", "Resources that gRPC clients accept"),
    ("MCP", "Mesh Configuration Protocol"),
];

/// The ID of a requirement: family and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) family: usize,
    pub(super) number: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = FAMILIES.get(self.family).map_or("?", |(prefix, _)| prefix);
        write!(f, "{prefix}-{:02}", self.number)
    }
}

/// Returns all IDs in a text: `DELTA-21`, and the short forms `SOTW-14, -15` and `SOTW-14 to -17`.
pub(super) fn ids(text: &str) -> Vec<Id> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((at, family)) = next_family(rest) {
        let before = rest[..at].chars().next_back();
        let prefix_len = FAMILIES[family].0.len();
        let is_word_start = !before.is_some_and(|c| c.is_alphanumeric() || c == '-');
        rest = &rest[at + prefix_len..];
        if !is_word_start {
            continue;
        }
        let Some((mut number, mut tail)) = hyphen_number(rest) else { continue };
        found.push(Id { family, number });
        while let Some((is_range, next, after)) = short_form(tail) {
            let from = if is_range && number < next { number + 1 } else { next };
            found.extend((from..=next).map(|number| Id { family, number }));
            (number, tail) = (next, after);
        }
        rest = tail;
    }
    found
}

/// Parses a text that consists of one ID.
pub(super) fn exact(text: &str) -> Option<Id> {
    match ids(text).as_slice() {
        [id] if id.to_string() == text => Some(*id),
        _ => None,
    }
}

/// Returns the ID at the start of a function name: `delta_21_resumes_without_resend`.
pub(super) fn in_name(name: &str) -> Option<Id> {
    FAMILIES.iter().enumerate().find_map(|(family, (prefix, _))| {
        let prefix = prefix.to_lowercase().replace('-', "_");
        let rest = name.strip_prefix(&prefix)?.strip_prefix('_')?;
        let number = rest.split('_').next()?.parse().ok()?;
        Some(Id { family, number })
    })
}

/// Returns the position and the family of the first prefix in `text`.
fn next_family(text: &str) -> Option<(usize, usize)> {
    FAMILIES
        .iter()
        .enumerate()
        .filter_map(|(family, (prefix, _))| Some((text.find(prefix)?, family)))
        .min()
}

/// Parses the number of `-21…` or `21…`, and returns the rest of the text.
fn hyphen_number(text: &str) -> Option<(u32, &str)> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().ok()?;
    Some((number, &text[end..]))
}

/// Parses `, -15…`, ` and -15…` or ` to -17…`: whether it is a range, the number, and the rest.
fn short_form(text: &str) -> Option<(bool, u32, &str)> {
    let forms = [(", ", false), (" and ", false), (", and ", false), (" to ", true), ("/", false)];
    forms.into_iter().find_map(|(separator, is_range)| {
        let rest = text.strip_prefix(separator)?;
        if !rest.starts_with('-') {
            return None;
        }
        let (number, after) = hyphen_number(rest)?;
        Some((is_range, number, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        ids(text).iter().map(Id::to_string).collect()
    }

    #[test]
    fn ids_are_parsed_in_all_forms() {
        assert_eq!(shown("DELTA-21: an ack"), ["DELTA-21"]);
        assert_eq!(shown("CLI-E-07, CLI-G-3 and OPS-4."), ["CLI-E-07", "CLI-G-03", "OPS-04"]);
        assert_eq!(shown("SOTW-14 to -16, ADS-11"), ["SOTW-14", "SOTW-15", "SOTW-16", "ADS-11"]);
        assert_eq!(shown("SOTW-68, -70, -73"), ["SOTW-68", "SOTW-70", "SOTW-73"]);
    }

    #[test]
    fn text_that_resembles_an_id_is_ignored() {
        assert!(shown("LADS-11 and X-SVC-03 and ADS alone, SVC-x").is_empty());
    }

    #[test]
    fn exact_accepts_only_the_canonical_form() {
        assert_eq!(exact("SVC-03").map(|id| id.to_string()).as_deref(), Some("SVC-03"));
        for text in ["SVC-3", "SVC-03:", "SVC", "SVC-03, -04", "TAP-01"] {
            assert_eq!(exact(text), None, "{text}");
        }
    }

    #[test]
    fn id_is_parsed_from_start_of_function_name() {
        assert_eq!(in_name("cli_e_07_is_survived").map(|id| id.number), Some(7));
        assert_eq!(in_name("ads_are_ordered"), None);
    }
}
