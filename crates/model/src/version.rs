//! Revisions, and the versions that clients see (SOTW-14 to -17, DELTA-51).

use std::{fmt, sync::Arc};

use crate::{ResourceName, hash::Tag};

/// A position in the replicated history. Revision 0 is the state before the first transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An identifier of one history of a cluster.
///
/// Two clusters have different incarnations, and so does one cluster before and after a restore.
/// The incarnation is chosen when the cluster is formed, and is committed to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(pub u32);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base36(u64::from(self.0)))
    }
}

/// The version of one resource: the revision that last changed it and a hash of its content.
///
/// The text form is `<revision in base 36>-<tag in hex>`. Versions are opaque to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    /// The revision of the transaction that last changed the resource.
    pub revision: Revision,
    /// A hash of everything that clients receive for the resource, except the version itself.
    pub tag: u32,
}

impl Version {
    /// Parses a version that a client reports.
    ///
    /// Returns `None` for text that Chancery never writes: the version of another server counts as
    /// a different version (DELTA-59).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (revision, tag) = text.split_once('-')?;
        let version = Self {
            revision: Revision(u64::from_str_radix(revision, 36).ok()?),
            tag: u32::from_str_radix(tag, 16).ok()?,
        };
        // Only the canonical spelling is valid.
        (version.to_string() == text).then_some(version)
    }

    /// Returns the revision in a version that a client reports: a [`Version`] or a [`CollectionVersion`].
    #[must_use]
    pub fn revision_of(text: &str) -> Option<Revision> {
        let of_collection = || CollectionVersion::parse(text).map(|of| of.version);
        Self::parse(text).or_else(of_collection).map(|version| version.revision)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", base36(self.revision.0), self.tag)
    }
}

/// The version of a resource of a collection, as sinks of MCP receive it.
///
/// The text form is `<version>-<incarnation>`. A sink that resumes lists such versions, possibly those of another
/// cluster (MCP-37).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectionVersion {
    /// The version of the resource.
    pub version: Version,
    /// The incarnation of the cluster that sends the version.
    pub incarnation: Incarnation,
}

impl CollectionVersion {
    /// Parses a version that a sink lists. Returns `None` for text that Chancery never writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (version, incarnation) = text.rsplit_once('-')?;
        let parsed = Self {
            version: Version::parse(version)?,
            incarnation: Incarnation(u32::from_str_radix(incarnation, 36).ok()?),
        };
        // Only the canonical spelling is valid.
        (parsed.incarnation.to_string() == incarnation).then_some(parsed)
    }
}

impl fmt::Display for CollectionVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.version, self.incarnation)
    }
}

/// The version of a type in a view: SotW `version_info` and delta `system_version_info`.
///
/// The text form is `<revision in base 36>-<incarnation>`, followed by `-<label>` if the author
/// gave a label. The text is never empty (SOTW-17), and a node's revision never decreases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeVersion {
    /// The last revision that may have changed the node's resources of the type.
    pub revision: Revision,
    /// The incarnation of the cluster whose history counts the revisions.
    pub incarnation: Incarnation,
    /// The label of the revision, if the author gave one.
    pub label: Option<Arc<str>>,
}

impl TypeVersion {
    /// Returns the revision of a type version that a client reports.
    ///
    /// Returns `None` if the version does not come from a cluster of this incarnation.
    #[must_use]
    pub fn revision_of(text: &str, incarnation: Incarnation) -> Option<Revision> {
        let (revision, rest) = text.split_once('-')?;
        let tag = rest.split('-').next().unwrap_or_default();
        let same_incarnation = tag == incarnation.to_string();
        u64::from_str_radix(revision, 36).ok().filter(|_| same_incarnation).map(Revision)
    }

    /// Returns the text of the incarnation in a type version that a server sent.
    #[must_use]
    pub fn incarnation_of(text: &str) -> Option<&str> {
        text.split('-').nth(1).filter(|incarnation| !incarnation.is_empty())
    }

    /// Returns the version of this state plus removed resources that the client still holds (ADS-08).
    ///
    /// Each set of such resources gives a different version, because two different contents never
    /// share a version (SOTW-15). `is_whole` means that the client subscribes to the whole state.
    #[must_use]
    pub fn holding<'a>(
        self,
        is_whole: bool,
        held: impl Iterator<Item = (&'a ResourceName, Version)>,
    ) -> Self {
        let tag = held.fold(Tag::default(), |tag, (name, version)| {
            tag.field(name.as_str().as_bytes()).field(version.to_string().as_bytes())
        });
        let part = if is_whole { "" } else { PART };
        Self { label: Some(format!("{HELD}{:08x}{part}", tag.finish()).into()), ..self }
    }

    /// Returns whether a version that a client reports is one that [`holding`](Self::holding) made of this version
    /// for the whole state, whatever the removed resources.
    #[must_use]
    pub fn is_held_in(&self, text: &str) -> bool {
        self.held_tag(text).is_some_and(|tag| tag.len() == TAG_DIGITS)
    }

    /// Does the same, also for a part of the state.
    #[must_use]
    pub fn is_held_in_part(&self, text: &str) -> bool {
        let tag = self.held_tag(text);
        tag.is_some_and(|tag| tag.strip_suffix(PART).unwrap_or(tag).len() == TAG_DIGITS)
    }

    /// Returns the end of a version that [`holding`](Self::holding) made of this version.
    fn held_tag<'a>(&self, text: &'a str) -> Option<&'a str> {
        let state = Self { label: None, ..self.clone() }.to_string();
        text.strip_prefix(&state)?.strip_prefix('-')?.strip_prefix(HELD)
    }
}

impl fmt::Display for TypeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", base36(self.revision.0), self.incarnation)?;
        match &self.label {
            Some(label) => write!(f, "-{label}"),
            None => Ok(()),
        }
    }
}

/// The start of the label of a version that [`TypeVersion::holding`] made.
const HELD: &str = "held-";
/// The end of such a label, if the client subscribes to a part of the state.
const PART: &str = "-part";
/// The number of digits between them.
const TAG_DIGITS: usize = 8;

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

fn base36(mut n: u64) -> String {
    let mut out = Vec::with_capacity(13);
    loop {
        out.push(char::from(DIGITS[usize::try_from(n % 36).unwrap_or(0)]));
        n /= 36;
        if n == 0 {
            return out.into_iter().rev().collect();
        }
    }
}

impl Revision {
    /// Returns the number of digits of a revision in a version.
    pub(crate) fn n_digits(self) -> usize {
        std::iter::successors(Some(self.0), |n| (*n >= 36).then(|| n / 36)).count()
    }

    /// Writes the last digits of a revision in a version, as many as `out` has bytes.
    pub(crate) fn write_digits(self, out: &mut [u8]) {
        let mut n = self.0;
        for digit in out.iter_mut().rev() {
            *digit = DIGITS[usize::try_from(n % 36).unwrap_or(0)];
            n /= 36;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_digits_are_those_of_the_version() {
        for n in [0, 1, 35, 36, 1295, 1296, 1_000_000, u64::MAX] {
            let mut digits = vec![b'?'; Revision(n).n_digits()];
            Revision(n).write_digits(&mut digits);
            assert_eq!(digits, base36(n).as_bytes());
        }
    }

    #[test]
    fn version_parses_its_canonical_spelling_only() {
        for (revision, tag) in [(0, 0), (1, 1), (35, 0xdead_beef), (36, 7), (u64::MAX, u32::MAX)] {
            let version = Version { revision: Revision(revision), tag };
            assert_eq!(Version::parse(&version.to_string()), Some(version));
        }
        for text in
            ["", "-", "1", "1-", "-1", "1-g", "01-00000000", "1-1", "Z-00000001", "1-00000001-x"]
        {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn collection_version_parses_its_canonical_spelling_only() {
        for incarnation in [0, 35, 36, u32::MAX].map(Incarnation) {
            let version = Version { revision: Revision(37), tag: 0xdead_beef };
            let of_collection = CollectionVersion { version, incarnation };
            let text = of_collection.to_string();
            assert_eq!(CollectionVersion::parse(&text), Some(of_collection));
            assert_eq!(Version::revision_of(&text), Some(Revision(37)));
            assert_eq!(Version::parse(&text), None);
        }
        assert_eq!(Version::revision_of("11-deadbeef"), Some(Revision(37)));
        for text in ["", "11-deadbeef", "11-deadbeef-", "11-deadbeef-Z", "11-deadbeef-01", "1-1-1"]
        {
            assert_eq!(CollectionVersion::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn type_version_ends_with_its_label() {
        let mut version =
            TypeVersion { revision: Revision(37), incarnation: Incarnation(36), label: None };
        assert_eq!(TypeVersion::incarnation_of(&version.to_string()), Some("10"));
        assert_eq!(TypeVersion::incarnation_of("v1"), None);
        assert_eq!(version.to_string(), "11-10");
        version.label = Some("4fe1".into());
        assert_eq!(version.to_string(), "11-10-4fe1");
        let revision = |text: &str| TypeVersion::revision_of(text, Incarnation(36));
        assert_eq!(revision("11-10-4fe1"), Some(Revision(37)));
        assert_eq!(revision("11-10"), Some(Revision(37)));
        let plain = TypeVersion { label: None, ..version.clone() };
        let name = ResourceName::new("a").unwrap();
        let own = Version { revision: Revision(1), tag: 1 };
        let held = |is_whole| version.clone().holding(is_whole, [(&name, own)].into_iter());
        let (held, part) = (held(true).to_string(), held(false).to_string());
        assert!(version.is_held_in(&held) && plain.is_held_in(&held), "{held}");
        assert!(!version.is_held_in(&part), "{part}");
        assert!(version.is_held_in_part(&held) && plain.is_held_in_part(&part), "{part}");
        for other in [
            "11-10",
            "11-10-4fe1",
            "11-10-held-",
            "11-10-held--part",
            "11-11-held-01234567",
            "",
            "11-10held-",
        ] {
            assert!(!version.is_held_in(other) && !version.is_held_in_part(other), "{other:?}");
        }
        let later = TypeVersion { revision: Revision(38), ..version };
        assert!(!later.is_held_in(&held) && !later.is_held_in_part(&part));
        for foreign in ["11-11", "", "11", "-10", "x y-10", "11-"] {
            assert_eq!(revision(foreign), None, "{foreign:?}");
        }
    }
}
