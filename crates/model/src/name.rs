//! Names: cheap to clone, and validated once, at construction.

use std::{
    borrow::{Borrow, Cow},
    fmt::{self, Write as _},
    sync::{Arc, LazyLock},
};

use crate::{
    constraints::Constraints,
    internal_name::{VARIANT, base_of, constraints_of, shown},
    private_key::has_private_key,
    structured_name::{RESOURCE_NAME_BYTES_MAX, canonical_name},
    types::KNOWN,
};

/// The type URL of the resources in a collection of MCP.
const MCP_RESOURCE_URL: &str = "type.googleapis.com/istio.mcp.v1alpha1.Resource";

/// The maximum length of a scope name in bytes.
pub const SCOPE_NAME_BYTES_MAX: usize = 512;

/// The reason why a name is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("the {what} is empty")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The name is longer than the limit.
    #[error("the {what} has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// The length of the name in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The name contains a character that names of its kind do not allow.
    #[error("the {what} {name:?} has the character {character:?}, which is not allowed there")]
    Character {
        /// The kind of name.
        what: &'static str,
        /// The complete name.
        name: String,
        /// The first character that is not allowed.
        character: char,
    },
    /// The name is invalid and contains a private key, which an error must not show.
    #[error("the {what} contains a private key in PEM form, which is not shown; give a name")]
    PrivateKey {
        /// The kind of name.
        what: &'static str,
    },
}

/// Shows a name as it is.
fn as_it_is(name: &str) -> Cow<'_, str> {
    name.into()
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $shown:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&$shown(&self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&$shown(&self.0), f)
            }
        }
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name_type! {
    /// The full type URL of a resource: `type.googleapis.com/` and the message name. Type URLs are
    /// compared exactly and case-sensitively (SVC-06).
    TypeUrl, as_it_is
}
name_type! {
    /// The name under which clients subscribe to a resource (SVC-22). Inside the server, it also
    /// identifies variants, and subscriptions with parameters (DYN-02).
    ResourceName, shown
}
name_type! {
    /// The name of a scope, such as `mesh`, `edge/eu` or `node/r7`.
    ScopeName, as_it_is
}

fn check_len(what: &'static str, name: &str, max: usize) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > max {
        return Err(NameError::TooLong { what, len: name.len(), max });
    }
    Ok(())
}

fn check_characters(
    what: &'static str,
    name: &str,
    allowed: impl Fn(char) -> bool,
) -> Result<(), NameError> {
    match name.chars().find(|c| !allowed(*c)) {
        Some(_) if has_private_key(name.as_bytes()) => Err(NameError::PrivateKey { what }),
        Some(character) => Err(NameError::Character { what, name: name.to_owned(), character }),
        None => Ok(()),
    }
}

impl TypeUrl {
    /// Validates a type URL that a client or an author wrote.
    ///
    /// # Errors
    /// Fails if the URL is empty, is longer than 512 bytes, or contains white space or control
    /// characters.
    pub fn new(url: &str) -> Result<Self, NameError> {
        const WHAT: &str = "type URL";
        if let Some(known) = Self::known(url) {
            return Ok(known);
        }
        check_len(WHAT, url, 512)?;
        check_characters(WHAT, url, |c| !c.is_whitespace() && !c.is_control())?;
        Ok(Self(url.into()))
    }

    /// Creates a type URL from one of the program's own tables, without validation.
    #[must_use]
    pub fn from_static(url: &'static str) -> Self {
        Self::known(url).unwrap_or_else(|| Self(url.into()))
    }

    /// Returns the shared copy of a known type URL. It needs no validation. Every resource names its own type and
    /// the types of its children, so known type URLs exist once in memory.
    fn known(url: &str) -> Option<Self> {
        static SHARED: LazyLock<Vec<TypeUrl>> =
            LazyLock::new(|| KNOWN.iter().map(|known| TypeUrl(known.url.into())).collect());
        SHARED.iter().find(|known| known.as_str() == url).cloned()
    }

    /// Returns the message name: the text after the last `/`.
    #[must_use]
    pub fn message_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Returns whether this is the name of a collection of MCP (MCP-11), such as
    /// `istio/networking/v1alpha3/virtualservices`, or `networking.istio.io/v1alpha3/VirtualService` in MCP over xDS.
    ///
    /// The last segment of the name contains no dot, in contrast to the message name of a type URL. If the name has
    /// two segments, the first contains no dot either, in contrast to the host of a type URL.
    #[must_use]
    pub fn is_collection(&self) -> bool {
        let Some((path, last)) = self.0.rsplit_once('/') else { return false };
        let has_all = !self.0.split('/').any(str::is_empty);
        has_all && !last.contains('.') && (path.contains('/') || !path.contains('.'))
    }

    /// Returns the type URL of the messages of this type: the type URL itself, or that of an
    /// `istio.mcp.v1alpha1.Resource` in a collection (MCP-06).
    #[must_use]
    pub fn message_url(&self) -> &str {
        if self.is_collection() { MCP_RESOURCE_URL } else { &self.0 }
    }

    /// Returns the type as people read it: the message name, or the whole name of a collection, whose last segment
    /// is the same in each version.
    #[must_use]
    pub fn shown_name(&self) -> &str {
        if self.is_collection() { &self.0 } else { self.message_name() }
    }

    /// Returns the last part of the message name: `Cluster`. The name of a collection stays whole.
    #[must_use]
    pub fn short_name(&self) -> &str {
        let name = self.shown_name();
        if self.is_collection() { name } else { name.rsplit('.').next().unwrap_or(name) }
    }

    /// Returns whether this is a collection that differs from another one only in its version, the segment before the
    /// last: `networking.istio.io/v1/VirtualService` and `networking.istio.io/v1alpha3/VirtualService`.
    #[must_use]
    pub fn is_other_version_of(&self, other: &Self) -> bool {
        let parts = self.kind_without_version();
        self != other && parts.is_some() && parts == other.kind_without_version()
    }

    /// Returns what comes before and after the version of a collection.
    fn kind_without_version(&self) -> Option<(&str, &str)> {
        let (path, kind) = self.0.rsplit_once('/').filter(|_| self.is_collection())?;
        let (group, _version) = path.rsplit_once('/')?;
        Some((group, kind))
    }
}

impl ResourceName {
    /// Validates a resource name.
    ///
    /// # Errors
    /// Fails if the name is empty, is longer than [`RESOURCE_NAME_BYTES_MAX`], or contains control
    /// characters.
    pub fn new(name: &str) -> Result<Self, NameError> {
        const WHAT: &str = "resource name";
        check_len(WHAT, name, RESOURCE_NAME_BYTES_MAX)?;
        check_characters(WHAT, name, |c| !c.is_control())?;
        Ok(Self(name.into()))
    }

    /// Validates a resource name that an author or operator wrote, and converts a structured name to
    /// its canonical form (XDSTP-03).
    ///
    /// # Errors
    /// Fails as [`ResourceName::new`] does.
    pub fn canonical(name: &str) -> Result<Self, NameError> {
        Self::new(&canonical_name(name))
    }

    /// Accepts a name that this crate built from a valid one.
    pub(crate) fn trusted(name: &str) -> Self {
        Self(name.into())
    }

    /// Accepts a resource name that a client requests, valid or not. A resource with an invalid name
    /// does not exist, and a request for one is not a stream error (SOTW-110).
    ///
    /// # Errors
    /// Fails if the name is longer than [`RESOURCE_NAME_BYTES_MAX`].
    pub fn requested(name: &str) -> Result<Self, NameError> {
        if !name.is_empty() {
            check_len("resource name", name, RESOURCE_NAME_BYTES_MAX)?;
        }
        Ok(Self(name.into()))
    }

    /// Returns the name of the variant with these constraints. Returns the name unchanged if the
    /// constraints match everything.
    #[must_use]
    pub fn variant(&self, constraints: &Constraints) -> Self {
        let constraints = constraints.clone().canonical();
        if constraints == Constraints::Always {
            return self.clone();
        }
        let mut text = format!("{}{VARIANT}", base_of(self.as_str()));
        for byte in constraints.encode() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self::trusted(&text)
    }

    /// Validates a name from the store, which may be that of a variant.
    ///
    /// # Errors
    /// Fails if the name or its constraints are invalid.
    pub fn stored(name: &str) -> Result<Self, NameError> {
        let Some(constraints) = constraints_of(name) else { return Self::new(name) };
        let variant = Self::new(base_of(name))?.variant(&constraints);
        if variant.as_str() == name { Ok(variant) } else { Self::new(name) }
    }

    /// Returns the published name: without constraints and parameters.
    #[must_use]
    pub fn base(&self) -> &str {
        base_of(self.as_str())
    }

    /// Returns the published name.
    #[must_use]
    pub fn to_base(&self) -> Self {
        match self.base() {
            base if base.len() == self.as_str().len() => self.clone(),
            base => Self::trusted(base),
        }
    }

    /// Returns whether this is the name of a variant.
    #[must_use]
    pub fn is_variant(&self) -> bool {
        self.as_str().bytes().any(|byte| u32::from(byte) == u32::from(VARIANT))
    }

    /// Returns the constraints of a variant, or `None` for any other name.
    #[must_use]
    pub fn constraints(&self) -> Option<Constraints> {
        constraints_of(self.as_str())
    }
}

impl ScopeName {
    /// Validates a scope name: ASCII letters, digits and `. _ ~ : @ % / -`.
    ///
    /// # Errors
    /// Fails if the name is empty, is longer than [`SCOPE_NAME_BYTES_MAX`], or contains another
    /// character.
    pub fn new(name: &str) -> Result<Self, NameError> {
        const WHAT: &str = "scope name";
        check_len(WHAT, name, SCOPE_NAME_BYTES_MAX)?;
        check_characters(WHAT, name, |c| c == '/' || c == '%' || Self::is_literal(c))?;
        Ok(Self(name.into()))
    }

    /// Returns whether a template inserts this character of a node's value unchanged.
    ///
    /// All other characters are percent-encoded, including `/` and `%`. A node therefore cannot
    /// choose a value that names another scope.
    fn is_literal(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | ':' | '@' | '-')
    }

    /// Returns whether an encoded value of a node may have this byte.
    pub(crate) fn is_value_byte(byte: u8) -> bool {
        byte == b'%' || Self::is_literal(byte.into())
    }

    /// Encodes a value of a node as it is inserted into a template.
    pub(crate) fn encode_value(value: &str) -> Cow<'_, str> {
        if value.chars().all(Self::is_literal) {
            return value.into();
        }
        let mut text = String::with_capacity(value.len());
        let mut buffer = [0; 4];
        for c in value.chars() {
            if Self::is_literal(c) {
                text.push(c);
            } else {
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    text.push_str(&format!("%{byte:02X}"));
                }
            }
        }
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{has_internal_mark, located_name, parameters_of};

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    /// DYN-02: name and constraints together are the identity.
    #[test]
    fn variant_has_its_name_and_constraints() {
        let prod = Constraints::Value { key: "env".into(), value: "prod".into() };
        let variant = name("web").variant(&prod);
        assert_ne!(variant, name("web"));
        assert_eq!((variant.base(), variant.constraints()), ("web", Some(prod.clone())));
        assert!(variant.is_variant() && !name("web").is_variant());
        assert_eq!(variant.to_base(), name("web"));
        assert_eq!(name("web").variant(&Constraints::Always), name("web"));
        assert_eq!(variant.to_string(), "web [env=\"prod\"]");
        assert_eq!(ResourceName::stored(variant.as_str()), Ok(variant.clone()));
        assert!(ResourceName::new(variant.as_str()).is_err(), "no author can write it");
        for damaged in ["web\u{1}", "web\u{1}0", "web\u{1}zz", "web\u{1}+8", "\u{1}0a"] {
            assert!(ResourceName::stored(damaged).is_err(), "{damaged:?}");
        }
    }

    proptest! {
        /// DYN-12: equal names and parameters have equal internal names, and others differ.
        #[test]
        fn parameters_survive_their_encoding(
            pairs in proptest::collection::btree_map(".{0,6}", ".{0,6}", 1..4),
            base in "[a-z/%&=]{0,6}",
        ) {
            let text = located_name(&base, &pairs);
            prop_assert_eq!(base_of(&text), base.as_str());
            prop_assert_eq!(parameters_of(&text), Some(pairs));
            prop_assert!(has_internal_mark(&text));
        }
    }
}
