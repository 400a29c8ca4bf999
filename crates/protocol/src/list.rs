//! The lists of a request: names, and the versions of resources that a client holds.
//!
//! A list from the wire remains in the bytes of its message. Reading it does not allocate, even
//! with many tiny entries.

use std::fmt;

use bytes::Bytes;
use chancery_model::{
    DynamicParameters, Revision, Version, base_of,
    wire::{Fields, Token},
};

/// The occurrences of one repeated field in a validated, encoded message.
#[derive(Clone, Default)]
struct Occurrences {
    /// The part of the message from the first to the last occurrence.
    bytes: Bytes,
    field: u32,
    len: usize,
}

/// The name that subscribes to the whole view (SOTW-60, DELTA-30).
pub(crate) const WILDCARD: &str = "*";

/// Returns whether a name subscribes to the whole view, with or without parameters.
pub(crate) fn is_wildcard(name: &str) -> bool {
    name.starts_with(WILDCARD) && base_of(name) == WILDCARD
}

/// The names in one list of a request.
#[derive(Clone)]
pub struct NameList(Names);

#[derive(Clone)]
enum Names {
    Owned(Vec<String>),
    Encoded(Box<EncodedNames>),
}

/// Plain names, and the names of resource locators.
#[derive(Clone)]
struct EncodedNames {
    plain: Occurrences,
    located: Occurrences,
    has_parameters: bool,
}

/// The names and versions of the resources that a delta client claims to hold. The last entry of a
/// name takes precedence.
#[derive(Clone)]
pub struct VersionList(Versions);

#[derive(Clone)]
enum Versions {
    Owned(Vec<(String, String)>),
    Encoded(Box<Encoded>),
}

#[derive(Clone)]
struct Encoded {
    entries: Occurrences,
    newest: Option<Revision>,
}

impl Occurrences {
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut fields = Fields::new(0, self.bytes.len());
        std::iter::from_fn(move || {
            loop {
                match fields.next(&self.bytes).ok()?? {
                    Token::Bytes { field, content } if field == self.field => return Some(content),
                    _ => {}
                }
            }
        })
    }
}

impl NameList {
    /// Creates a list from the strings in `field` of an encoded message, or of a part of the
    /// message with all `len` occurrences.
    ///
    /// The caller must have validated the message. A string that is not UTF-8 reads as empty.
    #[must_use]
    pub fn encoded(bytes: Bytes, field: u32, len: usize) -> Self {
        let (plain, located) = (Occurrences { bytes, field, len }, Occurrences::default());
        Self(Names::Encoded(Box::new(EncodedNames { plain, located, has_parameters: false })))
    }

    /// Adds the resource locators in `field` of an encoded message, or of a part of the message with all
    /// `len` occurrences. `has_parameters` says whether any of them has dynamic parameters.
    ///
    /// The caller must have validated the message.
    #[must_use]
    pub fn with_locators(
        mut self,
        bytes: Bytes,
        field: u32,
        len: usize,
        has_parameters: bool,
    ) -> Self {
        if let Names::Encoded(names) = &mut self.0 {
            names.located = Occurrences { bytes, field, len };
            names.has_parameters = has_parameters;
        }
        self
    }

    /// Returns whether the list has resource locators.
    pub(crate) fn has_locators(&self) -> bool {
        matches!(&self.0, Names::Encoded(names) if names.located.len > 0)
    }

    /// Returns whether any resource locator of the list has dynamic parameters.
    pub(crate) fn has_parameters(&self) -> bool {
        matches!(&self.0, Names::Encoded(names) if names.has_parameters)
    }

    /// Iterates over the names with their dynamic parameters, in the order of [`NameList::iter`].
    pub(crate) fn located(&self) -> impl Iterator<Item = (&str, DynamicParameters)> {
        let (owned, encoded) = match &self.0 {
            Names::Owned(names) => (Some(names.iter().map(String::as_str)), None),
            Names::Encoded(names) => (None, Some(names)),
        };
        let bare = |name| (name, DynamicParameters::new());
        let encoded = encoded.into_iter().flat_map(move |names| {
            names.plain.iter().map(text).map(bare).chain(names.located.iter().map(located))
        });
        owned.into_iter().flatten().map(bare).chain(encoded)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Names::Owned(names) => names.len(),
            Names::Encoded(names) => names.plain.len + names.located.len,
        }
    }

    /// Returns whether the list has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the list names nothing. Some clients send an empty name instead of an empty list.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.iter().all(str::is_empty)
    }

    /// Iterates over the names, in the order of the request. The names of locators come last.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let (owned, encoded) = match &self.0 {
            Names::Owned(names) => (Some(names.iter().map(String::as_str)), None),
            Names::Encoded(names) => {
                let located = names.located.iter().map(located_name);
                (None, Some(names.plain.iter().map(text).chain(located)))
            }
        };
        owned.into_iter().flatten().chain(encoded.into_iter().flatten())
    }

    /// Returns the last name that subscribes to the whole view, with its parameters.
    #[must_use]
    pub fn wildcard(&self) -> Option<&str> {
        self.iter().filter(|name| is_wildcard(name)).last()
    }

    /// Returns the number of bytes that an iteration over all names reads.
    pub(crate) fn n_bytes(&self) -> usize {
        match &self.0 {
            Names::Owned(names) => names.iter().map(String::len).sum(),
            Names::Encoded(names) => names.plain.bytes.len() + names.located.bytes.len(),
        }
    }

    /// Copies the names.
    #[must_use]
    pub fn to_vec(&self) -> Vec<String> {
        self.iter().map(str::to_owned).collect()
    }
}

impl VersionList {
    /// Creates a list from the map entries in `field` of an encoded message, or of a part of the
    /// message with all `len` occurrences. `newest` is the newest revision among the versions of
    /// the list.
    ///
    /// The caller must have validated the message.
    #[must_use]
    pub fn encoded(bytes: Bytes, field: u32, len: usize, newest: Option<Revision>) -> Self {
        let entries = Occurrences { bytes, field, len };
        Self(Versions::Encoded(Box::new(Encoded { entries, newest })))
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Versions::Owned(entries) => entries.len(),
            Versions::Encoded(encoded) => encoded.entries.len,
        }
    }

    /// Returns whether the list has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the names and versions, in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let (owned, encoded) = match &self.0 {
            Versions::Owned(entries) => {
                (Some(entries.iter().map(|(name, version)| (&**name, &**version))), None)
            }
            Versions::Encoded(encoded) => (None, Some(encoded.entries.iter().map(entry))),
        };
        owned.into_iter().flatten().chain(encoded.into_iter().flatten())
    }

    /// Returns the number of bytes that an iteration over all entries reads.
    pub(crate) fn n_bytes(&self) -> usize {
        match &self.0 {
            Versions::Owned(entries) => entries.iter().map(|(name, v)| name.len() + v.len()).sum(),
            Versions::Encoded(encoded) => encoded.entries.bytes.len(),
        }
    }

    /// Copies the names and versions.
    #[must_use]
    pub fn to_vec(&self) -> Vec<(String, String)> {
        self.iter().map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
    }

    /// Returns the newest revision among the versions that Chancery could have written.
    pub(crate) fn newest(&self) -> Option<Revision> {
        match &self.0 {
            Versions::Owned(entries) => {
                entries.iter().filter_map(|(_, text)| Version::revision_of(text)).max()
            }
            Versions::Encoded(encoded) => encoded.newest,
        }
    }
}

/// Returns the name of an encoded resource locator. If the field occurs more than once, the last
/// occurrence takes precedence.
fn located_name(content: &[u8]) -> &str {
    let mut name = "";
    let mut fields = Fields::new(0, content.len());
    while let Ok(Some(token)) = fields.next(content) {
        if let Token::Bytes { field: 1, content } = token {
            name = text(content);
        }
    }
    name
}

/// Returns the name and the dynamic parameters of an encoded resource locator. Of equal keys, the last
/// entry takes precedence.
fn located(content: &[u8]) -> (&str, DynamicParameters) {
    let mut parameters = DynamicParameters::new();
    let mut fields = Fields::new(0, content.len());
    while let Ok(Some(token)) = fields.next(content) {
        if let Token::Bytes { field: 2, content } = token {
            let (key, value) = entry(content);
            parameters.insert(key.to_owned(), value.to_owned());
        }
    }
    (located_name(content), parameters)
}

/// Returns the key and the value of an encoded map entry. If a field occurs more than once, the
/// last occurrence takes precedence.
fn entry(content: &[u8]) -> (&str, &str) {
    let (mut key, mut value) = ("", "");
    let mut fields = Fields::new(0, content.len());
    while let Ok(Some(token)) = fields.next(content) {
        match token {
            Token::Bytes { field: 1, content } => key = text(content),
            Token::Bytes { field: 2, content } => value = text(content),
            _ => {}
        }
    }
    (key, value)
}

fn text(content: &[u8]) -> &str {
    std::str::from_utf8(content).unwrap_or_default()
}

impl Default for NameList {
    fn default() -> Self {
        Self(Names::Owned(Vec::new()))
    }
}

impl From<Vec<String>> for NameList {
    fn from(names: Vec<String>) -> Self {
        Self(Names::Owned(names))
    }
}

impl FromIterator<String> for NameList {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Self(Names::Owned(names.into_iter().collect()))
    }
}

impl PartialEq for NameList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for NameList {}

impl fmt::Debug for NameList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Default for VersionList {
    fn default() -> Self {
        Self(Versions::Owned(Vec::new()))
    }
}

impl From<Vec<(String, String)>> for VersionList {
    fn from(entries: Vec<(String, String)>) -> Self {
        Self(Versions::Owned(entries))
    }
}

impl FromIterator<(String, String)> for VersionList {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(entries: I) -> Self {
        Self(Versions::Owned(entries.into_iter().collect()))
    }
}

impl PartialEq for VersionList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for VersionList {}

impl fmt::Debug for VersionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
