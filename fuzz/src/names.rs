//! Resource names of clients and authors, plain and structured.

use chancery_model::{
    Glob, ResourceName, StructuredName, TypeUrl, canonical_name, is_structured, types::CLUSTER,
};
use chancery_protocol::{Config, PollContent, PollNames};

/// The maximum number of names of an input.
const NAMES_MAX: usize = 16;
/// The length of an input for each further name, in bytes.
const NAME_BYTES: usize = 256;
/// The maximum length of a pattern and of a text whose match is checked, in bytes. The check is slow.
const PATTERN_BYTES_MAX: usize = 32;

/// Reads the lines of the input as names, as a poll does, and each name as that of a stored resource.
pub(crate) fn read(input: &[u8], decoded: &dyn Fn()) {
    let Ok(input) = std::str::from_utf8(input) else { return };
    let names: Vec<&str> = input.lines().take(NAMES_MAX.max(input.len() / NAME_BYTES)).collect();
    let type_url = TypeUrl::from_static(CLUSTER);
    let all = names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let read = PollNames::new(&type_url, &Config::default(), all.into());
    let canonical = names.iter().map(|name| canonical_name(name)).collect::<Vec<_>>();
    decoded();
    for (name, canonical) in names.iter().zip(&canonical) {
        one(name, canonical);
    }
    for pair in names.windows(2) {
        collection(pair[0], pair[1]);
        let (pattern, text) = (pair[0].as_bytes(), pair[1].as_bytes());
        let is_match = Glob::new(pair[0]).matches(pair[1]);
        if pattern.len().max(text.len()) <= PATTERN_BYTES_MAX {
            assert_eq!(is_match, matches(pattern, text), "{pair:?}");
        }
    }
    if let Ok(names) = read {
        spelling(&names);
    }
}

/// Checks the canonical form of a name.
fn one(name: &str, canonical: &str) {
    let parsed = is_structured(name).then(|| StructuredName::parse(name).ok()).flatten();
    let Some(parsed) = parsed else {
        assert_eq!(canonical, name, "other names stay unchanged");
        return;
    };
    assert_eq!(parsed.as_str(), canonical);
    assert_eq!(StructuredName::parse(canonical).as_ref(), Ok(&parsed), "the form is canonical");
    assert!(canonical.bytes().all(|byte| (b' '..b'~').contains(&byte) && byte != b'#'));
    let parts = [parsed.authority(), parsed.type_name(), parsed.id(), parsed.parameters()];
    assert!(canonical.len() >= "xdstp:///".len() + parts.iter().map(|it| it.len()).sum::<usize>());
    if let Ok(stored) = StructuredName::parse_stored(name, parsed.type_name()) {
        assert_eq!(stored, parsed);
        let collection = stored.collection();
        let glob = StructuredName::parse(&collection).expect("the name of a collection is valid");
        assert!(glob.is_glob() && glob.has_member(canonical), "{collection}");
        if let Ok(key) = ResourceName::new(name) {
            assert_eq!(
                ResourceName::canonical(key.as_str()).map(|it| it.as_str() == canonical),
                Ok(true)
            );
        }
    }
}

/// Checks whether the second name is a member of the collection that the first one names.
fn collection(glob: &str, name: &str) {
    let (Ok(glob), Ok(name)) = (StructuredName::parse(glob), StructuredName::parse(name)) else {
        return;
    };
    let is_stored = StructuredName::parse_stored(name.as_str(), name.type_name()).is_ok();
    if glob.is_glob() && is_stored {
        assert_eq!(glob.has_member(name.as_str()), name.collection() == glob.as_str());
    }
}

/// Checks that the names of an answer are spelled as the client spells them. A client that spells a name in two
/// ways gets one of them.
fn spelling(names: &PollNames) {
    let missing: Vec<String> = names.names.iter().map(str::to_owned).collect();
    let content = PollContent::Named { resources: Vec::new(), missing: missing.clone() };
    let PollContent::Named { missing: spelled, .. } = names.spelled(content) else { return };
    assert_eq!(spelled.len(), missing.len());
    for (spelled, name) in spelled.iter().zip(&missing) {
        // A name that cannot exist here begins with another character.
        let is_known = !name.starts_with('\0');
        assert!(!is_known || canonical_name(spelled) == *name, "{spelled:?} is not {name:?}");
    }
}

/// Returns whether a pattern matches a text, from the definition of `*`: any text, also empty.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Whether the pattern so far matches the first bytes of the text, by their number.
    let mut row = vec![false; text.len() + 1];
    row[0] = true;
    for byte in pattern {
        if *byte == b'*' {
            let first = row.iter().position(|is_match| *is_match).unwrap_or(row.len());
            row[first..].fill(true);
        } else {
            for at in (0..text.len()).rev() {
                row[at + 1] = row[at] && text[at] == *byte;
            }
            row[0] = false;
        }
    }
    row[text.len()]
}
