//! Structured names: `xdstp://<authority>/<type>/<id>?<context parameters>#<directives>`.
//!
//! Names that differ only in the order of the parameters, or in percent-encoding, are equal. The state
//! and the sessions use the canonical form, in which Envoy writes such names (XDSTP-03, XDSTP-04). All
//! other names are plain text and stay unchanged.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// The maximum length of a resource name in bytes.
pub const RESOURCE_NAME_BYTES_MAX: usize = 4096;

/// The start of every structured name, in letters of any case.
const SCHEME: &str = "xdstp:";
/// The start of the keys of parameters that a client derives from its node (XDSTP-08).
pub(crate) const NODE_PARAMETER: &str = "xds.node.";
/// The id of a glob collection ends with this segment (XDSTP-15).
const GLOB: &str = "*";
/// The characters that are encoded in each component, besides those that are not visible ASCII
/// (XDSTP-04).
const IN_AUTHORITY: &[u8] = b"%/?#";
const IN_ID: &[u8] = b"%:?#[]";
const IN_PARAMETER: &[u8] = b"%#[]&=";

/// The reason why a structured name is malformed, or cannot be the name of a stored resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StructuredNameError {
    /// The name is longer than [`RESOURCE_NAME_BYTES_MAX`].
    #[error("the structured name has {0} bytes, at most {RESOURCE_NAME_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// The name does not begin with `xdstp://<authority>/`.
    #[error("a structured name has the form xdstp://<authority>/<type>/<id>")]
    Form,
    /// The scheme has upper-case letters. Envoy and other clients read such a name as plain text.
    #[error(
        "the structured name begins with {0:?}, which Envoy reads as a plain name; write xdstp: in \
             lower case"
    )]
    Scheme(String),
    /// The name has no resource type.
    #[error("the structured name has no resource type; write xdstp://<authority>/<type>/<id>")]
    NoType,
    /// The name has no id.
    #[error("the structured name has no id after its type {0:?}")]
    NoId(String),
    /// The id ends with `/`, so that the name of the member in its collection is empty.
    #[error("the id of the structured name ends with /; remove it, or write a name after it")]
    EmptySegment,
    /// A context parameter has a value but no key.
    #[error("the structured name has a context parameter without a key")]
    NoKey,
    /// The name has directives, which are for clients only (XDSTP-12).
    #[error("the structured name has directives (#{0}), which only clients use; remove them")]
    Directives(String),
    /// The name is that of a glob collection (XDSTP-02).
    #[error(
        "the structured name ends with /*, which names a collection; give the name of a member"
    )]
    Glob,
    /// The type in the name is not the type of the resource (XDSTP-06).
    #[error(
        "the structured name has the type {in_name:?}, but the resource has the type {expected:?}"
    )]
    Type {
        /// The type in the name.
        in_name: String,
        /// The message name of the resource's type.
        expected: String,
    },
    /// A key occurs twice (XDSTP-07).
    #[error("the structured name has the context parameter {0:?} twice; remove one of them")]
    Duplicate(String),
    /// The key of a parameter is reserved (XDSTP-08).
    #[error(
        "the context parameter {0:?} is reserved: a key begins with a letter or digit, and not with \
             `xds.`, except for `xds.node.` and `xds.resource.`; rename it"
    )]
    Reserved(String),
}

/// A parsed structured name in canonical form, without directives.
///
/// If the text that was parsed is canonical, the name borrows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StructuredName<'a> {
    text: Cow<'a, str>,
    type_start: usize,
    type_end: usize,
    /// The end of the id, at which the parameters start.
    id_end: usize,
}

/// Returns whether a name is to be parsed as a structured name.
#[must_use]
pub fn is_structured(name: &str) -> bool {
    split_scheme(name).is_some()
}

/// Splits the scheme from a structured name. The case of its letters does not matter (RFC 3986).
fn split_scheme(name: &str) -> Option<(&str, &str)> {
    let split = name.split_at_checked(SCHEME.len());
    split.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
}

/// Returns the canonical form of a name. Plain names and malformed structured names stay unchanged.
#[must_use]
pub fn canonical_name(name: &str) -> Cow<'_, str> {
    match is_structured(name).then(|| StructuredName::parse(name)) {
        Some(Ok(parsed)) => parsed.into_text(),
        Some(Err(_)) | None => Cow::Borrowed(name),
    }
}

impl<'a> StructuredName<'a> {
    /// Parses a name and drops its directives.
    ///
    /// # Errors
    /// Fails if the name is malformed or too long.
    pub fn parse(name: &'a str) -> Result<Self, StructuredNameError> {
        // Parameters take many times their bytes while they are sorted.
        if name.len() > RESOURCE_NAME_BYTES_MAX {
            return Err(StructuredNameError::TooLong(name.len()));
        }
        let urn = name.split('#').next().unwrap_or_default();
        let (_, rest) = split_scheme(urn).unwrap_or_default();
        // C-core leaves out `//` if the authority is empty.
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_once('/').ok_or(StructuredNameError::Form)?,
            None => ("", rest.strip_prefix('/').ok_or(StructuredNameError::Form)?),
        };
        let (path, parameters) = path.split_once('?').unwrap_or((path, ""));
        let (type_name, id) = path.split_once('/').unwrap_or((path, ""));
        if authority.contains('?') {
            return Err(StructuredNameError::Form);
        }
        if type_name.is_empty() {
            return Err(StructuredNameError::NoType);
        }
        let mut text = String::with_capacity(urn.len());
        text.push_str("xdstp://");
        encode(&mut text, &decode(authority), IN_AUTHORITY);
        text.push('/');
        let type_start = text.len();
        // A valid type needs no encoding. An encoded character makes the name differ from the names of
        // all resources.
        encode(&mut text, type_name.as_bytes(), &[]);
        let type_end = text.len();
        if !id.is_empty() {
            text.push('/');
            encode(&mut text, &decode(id), IN_ID);
        }
        let id_end = text.len();
        let mut separator = '?';
        for parameter in canonical_parameters(parameters)? {
            text.push(separator);
            text.push_str(&parameter);
            separator = '&';
        }
        let text = if text == name { Cow::Borrowed(name) } else { Cow::Owned(text) };
        Ok(Self { text, type_start, type_end, id_end })
    }

    /// Checks the name of a resource that is to be stored, and parses it. `type_name` is the message
    /// name of the resource's type.
    ///
    /// # Errors
    /// Fails if the name is malformed, has a scheme in upper case, directives, duplicate or reserved
    /// parameters, or another type than the resource, or is the name of a glob collection.
    pub fn parse_stored(name: &'a str, type_name: &str) -> Result<Self, StructuredNameError> {
        if let Some((_, directives)) = name.split_once('#') {
            return Err(StructuredNameError::Directives(directives.to_owned()));
        }
        let parsed = Self::parse(name)?;
        if let Some((scheme, _)) = split_scheme(name).filter(|(scheme, _)| *scheme != SCHEME) {
            return Err(StructuredNameError::Scheme(scheme.to_owned()));
        }
        let in_name = parsed.type_name();
        if in_name != type_name {
            let (in_name, expected) = (in_name.to_owned(), type_name.to_owned());
            return Err(StructuredNameError::Type { in_name, expected });
        }
        if parsed.id().is_empty() {
            return Err(StructuredNameError::NoId(in_name.to_owned()));
        }
        if parsed.id().ends_with('/') {
            return Err(StructuredNameError::EmptySegment);
        }
        if parsed.is_glob() {
            return Err(StructuredNameError::Glob);
        }
        let mut keys = BTreeSet::new();
        let parameters = name.split_once('?').map_or("", |(_, parameters)| parameters);
        for (key, _) in pairs(parameters) {
            let text = String::from_utf8_lossy(&key).into_owned();
            if keys.contains(&key) {
                return Err(StructuredNameError::Duplicate(text));
            }
            if is_reserved(&text) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
                return Err(StructuredNameError::Reserved(text));
            }
            keys.insert(key);
        }
        Ok(parsed)
    }

    /// Returns the canonical name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the canonical name.
    #[must_use]
    pub fn into_text(self) -> Cow<'a, str> {
        self.text
    }

    /// Returns the authority, encoded; it may be empty (XDSTP-05).
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.text["xdstp://".len()..self.type_start - 1]
    }

    /// Returns the resource type, which is a message name.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.text[self.type_start..self.type_end]
    }

    /// Returns the id, encoded.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text[self.type_end..self.id_end].strip_prefix('/').unwrap_or_default()
    }

    /// Returns whether this is the name of a glob collection.
    #[must_use]
    pub fn is_glob(&self) -> bool {
        self.id().rsplit('/').next() == Some(GLOB)
    }

    /// Returns the canonical name up to the last segment of the id. The names of all members of a glob
    /// collection begin with that of the collection.
    #[must_use]
    pub fn parent(&self) -> &str {
        let last = self.id().rsplit('/').next().unwrap_or_default();
        &self.text[..self.id_end - last.len()]
    }

    /// Returns the encoded parameters, with the `?` before them, or empty text.
    #[must_use]
    pub fn parameters(&self) -> &str {
        &self.text[self.id_end..]
    }

    /// Returns the name of the glob collection to which a resource of this name belongs.
    #[must_use]
    pub fn collection(&self) -> String {
        [self.parent(), GLOB, self.parameters()].concat()
    }

    /// Returns whether this glob collection has a member of the given canonical name: parent path and
    /// parameters are equal (XDSTP-15).
    #[must_use]
    pub fn has_member(&self, name: &str) -> bool {
        let rest = name.strip_prefix(self.parent());
        let last = rest.and_then(|rest| rest.strip_suffix(self.parameters()));
        last.is_some_and(|last| !last.is_empty() && last != GLOB && !last.contains(['/', '?']))
    }
}

/// Returns the encoded parameters in the order in which Envoy writes them. The last value of a key
/// counts (XDSTP-07).
fn canonical_parameters(text: &str) -> Result<Vec<String>, StructuredNameError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let by_key: BTreeMap<Vec<u8>, Vec<u8>> = pairs(text).collect();
    if by_key.contains_key(b"".as_slice()) {
        return Err(StructuredNameError::NoKey);
    }
    let mut all: Vec<String> =
        by_key.into_iter().map(|(key, value)| parameter(&key, &value)).collect();
    all.sort_unstable();
    Ok(all)
}

fn parameter(key: &[u8], value: &[u8]) -> String {
    let mut text = String::with_capacity(key.len() + 1 + value.len());
    encode(&mut text, key, IN_PARAMETER);
    text.push('=');
    encode(&mut text, value, IN_PARAMETER);
    text
}

/// Returns whether the name space of a key is reserved. Clients add parameters of their node and of the
/// resource, which the names of resources must repeat.
fn is_reserved(key: &str) -> bool {
    let is_made_by_clients = [NODE_PARAMETER, "xds.resource."]
        .into_iter()
        .any(|start| key.strip_prefix(start).is_some_and(|rest| !rest.is_empty()));
    key.starts_with("xds.") && !is_made_by_clients
}

/// Iterates over the decoded keys and values.
fn pairs(text: &str) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    })
}

/// Decodes `%` and two hexadecimal digits. Any other `%` stays.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match value.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// Encodes the reserved bytes, and those that Envoy encodes everywhere: control characters, `~`, and
/// all that is not ASCII.
fn encode(out: &mut String, bytes: &[u8], reserved: &[u8]) {
    for byte in bytes {
        match byte {
            b' '..b'~' if !reserved.contains(byte) => out.push(char::from(*byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const C: &str = "xdstp://a/envoy.config.cluster.v3.Cluster";

    fn canonical(name: &str) -> String {
        StructuredName::parse(name).unwrap().into_text().into_owned()
    }

    fn stored(name: &str) -> Result<(), StructuredNameError> {
        StructuredName::parse_stored(name, "envoy.config.cluster.v3.Cluster").map(drop)
    }

    /// XDSTP-01, XDSTP-05: the parts of a name, of which the authority may be empty.
    #[test]
    fn structured_name_has_authority_type_id_and_parameters() {
        let name = StructuredName::parse("xdstp://a:1/t.T/x/y?k=v&l=#entry=z").unwrap();
        let parts = (name.authority(), name.type_name(), name.id(), name.parameters());
        assert_eq!(parts, ("a:1", "t.T", "x/y", "?k=v&l="));
        assert_eq!(name.as_str(), "xdstp://a:1/t.T/x/y?k=v&l=");
        assert!(is_structured(name.as_str()) && !is_structured("xdst://a/t.T/x"));
        let name = StructuredName::parse("xdstp:///t.T/x").unwrap();
        assert_eq!((name.authority(), name.type_name(), name.id()), ("", "t.T", "x"));
        assert!(matches!(name.into_text(), Cow::Borrowed(_)), "canonical text is not copied");
        assert_eq!(canonical("xdstp:/t.T/x?k=v"), "xdstp:///t.T/x?k=v");
        for malformed in ["xdstp:", "xdstp:t.T/x", "xdstp://a", "xdstp://a?b/t.T/x"] {
            assert_eq!(StructuredName::parse(malformed), Err(StructuredNameError::Form));
        }
        assert_eq!(StructuredName::parse("xdstp://a/"), Err(StructuredNameError::NoType));
        assert_eq!(StructuredName::parse("xdstp://a/t.T/x?=v"), Err(StructuredNameError::NoKey));
    }

    /// XDSTP-02, XDSTP-03: the case of the scheme distinguishes no names, but a stored name has it in lower
    /// case, because some clients compare it by case.
    #[test]
    fn scheme_in_upper_case_is_read_but_not_stored() {
        let upper = "XDSTP://a/envoy.config.cluster.v3.Cluster/x";
        assert!(is_structured(upper) && is_structured("xDsTp:") && !is_structured("XDSTQ://a"));
        assert_eq!(canonical(upper), format!("{C}/x"));
        let glob = format!("XdsTp{}/*", &C[5..]);
        assert!(StructuredName::parse(&glob).unwrap().has_member(&format!("{C}/x")));
        assert_eq!(stored(upper), Err(StructuredNameError::Scheme("XDSTP:".to_owned())));
        assert_eq!(stored(&canonical(upper)), Ok(()));
    }

    /// XDSTP-03, XDSTP-07, XDSTP-09: the order of parameters does not matter, but their presence does.
    /// The last value of a key counts.
    #[test]
    fn parameter_order_does_not_distinguish_names() {
        assert_eq!(canonical("xdstp://a/t.T/x?l=2&k=1"), "xdstp://a/t.T/x?k=1&l=2");
        assert_eq!(canonical("xdstp://a/t.T/x?k=1&k=2&"), "xdstp://a/t.T/x?k=2");
        assert_eq!(canonical("xdstp://a/t.T/x?k"), "xdstp://a/t.T/x?k=");
        assert_eq!(canonical("xdstp://a/t.T/x?"), "xdstp://a/t.T/x");
        assert_ne!(canonical("xdstp://a/t.T/x?k=1"), canonical("xdstp://a/t.T/x"));
        // Envoy sorts the encoded pairs, and `1` sorts before `=`.
        assert_eq!(canonical("xdstp://a/t.T/x?k=v&k1=v"), "xdstp://a/t.T/x?k1=v&k=v");
    }

    /// XDSTP-04: each component has its own set of reserved characters, as in Envoy.
    #[test]
    fn percent_encoding_does_not_distinguish_names() {
        assert_eq!(canonical("xdstp://%61%2f%3A/t.T/x"), "xdstp://a%2F:/t.T/x");
        assert_eq!(canonical("xdstp://a/t.T/h:80/[%7e]%2f%26"), "xdstp://a/t.T/h%3A80/%5B%7E%5D/&");
        assert_eq!(canonical("xdstp://a/t.T/x?%6b=:%3d/?"), "xdstp://a/t.T/x?k=:%3D/?");
        assert_eq!(canonical("xdstp://a/t.T/ä%zz%"), "xdstp://a/t.T/%C3%A4%25zz%25");
        assert_eq!(canonical("xdstp://a/t.T/%41%c3%A4#alt=b"), "xdstp://a/t.T/A%C3%A4");
    }

    /// XDSTP-02, XDSTP-06, XDSTP-07, XDSTP-08, XDSTP-12: names that no stored resource may have.
    #[test]
    fn stored_name_has_no_directives_glob_or_foreign_type() {
        use StructuredNameError::{
            Directives, Duplicate, EmptySegment, Glob, NoId, Reserved, Type,
        };
        let name = |rest: &str| stored(&format!("{C}{rest}"));
        assert_eq!(name("/x?b=2&a=1"), Ok(()));
        assert_eq!(name("/x?xds.resource.listening_address=h"), Ok(()));
        assert_eq!(name("/x#alt=y"), Err(Directives("alt=y".to_owned())));
        assert_eq!(name("/x/*"), Err(Glob));
        assert_eq!(name("/x/"), Err(EmptySegment));
        assert_eq!(name("/x/?a=1"), Err(EmptySegment));
        assert_eq!(name("/%2A?a=1"), Err(Glob));
        assert_eq!(name("/"), Err(NoId("envoy.config.cluster.v3.Cluster".to_owned())));
        assert_eq!(name("/x?a=1&%61=2"), Err(Duplicate("a".to_owned())));
        assert_eq!(name("/x?xds.node.cluster=edge&xds.node.id=n"), Ok(()));
        for reserved in ["xds.node", "xds.node.", "xds.nodes.id", "xds.", "~a", ".b"] {
            assert_eq!(name(&format!("/x?{reserved}=1")), Err(Reserved(reserved.to_owned())));
        }
        let (in_name, expected) = ("t.T".to_owned(), "envoy.config.cluster.v3.Cluster".to_owned());
        assert_eq!(stored("xdstp://a/t.T/x"), Err(Type { in_name, expected }));
    }

    /// L14: a name that cannot exist is rejected before its parameters are decoded and sorted.
    #[test]
    fn name_over_the_limit_is_not_parsed() {
        let name = |n_bytes: usize| format!("{C}/x?{}", "k&".repeat(n_bytes))[..n_bytes].to_owned();
        assert!(StructuredName::parse(&name(RESOURCE_NAME_BYTES_MAX)).is_ok());
        let long = name(RESOURCE_NAME_BYTES_MAX + 1);
        assert_eq!(StructuredName::parse(&long), Err(StructuredNameError::TooLong(4097)));
        assert_eq!(canonical_name(&long), long);
    }

    /// XDSTP-15: a glob collection has the names with its parent path and its parameters.
    #[test]
    fn glob_has_members_of_one_level_with_equal_parameters() {
        let member = |name: &str| {
            let name = canonical(name);
            StructuredName::parse(&name).unwrap().collection()
        };
        assert_eq!(member("xdstp://a/t.T/x/y?k=1"), "xdstp://a/t.T/x/*?k=1");
        assert_eq!(member("xdstp://a/t.T/x"), "xdstp://a/t.T/*");
        let glob = StructuredName::parse("xdstp://a/t.T/x/*?k=1").unwrap();
        assert!(glob.is_glob());
        assert!(glob.has_member("xdstp://a/t.T/x/y?k=1"));
        for other in ["x/y", "x/y/z?k=1", "x?k=1", "x/?k=1", "x/y?k=2", "x/y?j=1&k=1", "x/*?k=1"] {
            let other = format!("xdstp://a/t.T/{other}");
            assert!(!glob.has_member(&other), "{other}");
        }
        let plain = StructuredName::parse("xdstp://a/t.T/x/*").unwrap();
        assert!(plain.has_member("xdstp://a/t.T/x/y"));
        assert!(!plain.has_member("xdstp://a/t.T/x/y?k=1"));
        assert!(!StructuredName::parse("xdstp://a/t.T/*x").unwrap().is_glob());
    }

    proptest! {
        /// XDSTP-03: parsing never panics, and the canonical form is a fixed point.
        #[test]
        fn canonical_form_is_idempotent(
            rest in "(//[a%/?#*:]{0,4}/[t.]{0,3}/)?[-a/*%0-9A-F?&=#:~\\[\\]é \u{0}]{0,40}",
        ) {
            let name = format!("xdstp:{rest}");
            let once = canonical_name(&name).into_owned();
            if let Ok(parsed) = StructuredName::parse(&name) {
                prop_assert_eq!(parsed.as_str(), once.as_str());
                let again = StructuredName::parse(&once).unwrap();
                prop_assert_eq!(&again, &parsed);
                prop_assert!(matches!(again.text, Cow::Borrowed(_)));
                prop_assert!(once.bytes().all(|byte| (b' '..b'~').contains(&byte)));
                prop_assert!(!once.contains('#'));
                if !parsed.is_glob() && !parsed.id().is_empty() && !parsed.id().ends_with('/') {
                    let collection = parsed.collection();
                    let glob = StructuredName::parse(&collection).unwrap();
                    prop_assert!(glob.is_glob() && glob.has_member(&once), "{} {}", once, collection);
                }
            } else {
                prop_assert_eq!(once, name);
            }
        }

        /// Any text can be parsed and checked without a panic.
        #[test]
        fn arbitrary_names_do_not_panic(name in ".{0,60}") {
            let _canonical = canonical_name(&name);
            let _stored = stored(&name);
            let _stored = stored(&format!("xdstp://{name}"));
        }
    }
}
