//! Names: cheap to clone, checked once where they are made.

use std::{
    borrow::Borrow,
    fmt,
    sync::{Arc, LazyLock},
};

use crate::types;

/// Longest resource name accepted, in bytes.
pub const RESOURCE_NAME_BYTES_MAX: usize = 4096;
/// Longest scope name accepted, in bytes.
pub const SCOPE_NAME_BYTES_MAX: usize = 512;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("the {what} is empty")]
    Empty {
        /// What kind of name it is.
        what: &'static str,
    },
    /// The name is longer than the limit.
    #[error("the {what} has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// What kind of name it is.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The name has a character that is not allowed in it.
    #[error("the {what} {name:?} has the character {character:?}, which is not allowed there")]
    Character {
        /// What kind of name it is.
        what: &'static str,
        /// The whole name.
        name: String,
        /// The first character that is not allowed.
        character: char,
    },
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
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
    /// The full type URL of a resource, `type.googleapis.com/` and the message name. Compared
    /// exactly and case-sensitively (SVC-06).
    TypeUrl
}
name_type! {
    /// The name under which clients subscribe to a resource (SVC-22).
    ResourceName
}
name_type! {
    /// The name of a scope: `mesh`, `edge/eu`, `node/r7`.
    ScopeName
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

fn refuse_characters(
    what: &'static str,
    name: &str,
    allowed: impl Fn(char) -> bool,
) -> Result<(), NameError> {
    match name.chars().find(|c| !allowed(*c)) {
        Some(character) => Err(NameError::Character { what, name: name.to_owned(), character }),
        None => Ok(()),
    }
}

impl TypeUrl {
    /// Takes a type URL as a client or an author wrote it.
    ///
    /// # Errors
    /// If it is empty, longer than 512 bytes, or has white space or control characters.
    pub fn new(url: &str) -> Result<Self, NameError> {
        const WHAT: &str = "type URL";
        check_len(WHAT, url, 512)?;
        refuse_characters(WHAT, url, |c| !c.is_whitespace() && !c.is_control())?;
        Ok(Self::interned(url))
    }

    /// A type URL of the program's own tables.
    #[must_use]
    pub fn from_static(url: &'static str) -> Self {
        Self::interned(url)
    }

    /// Every resource names types, its own and those of its children: the known ones exist once.
    fn interned(url: &str) -> Self {
        static KNOWN: LazyLock<Vec<TypeUrl>> =
            LazyLock::new(|| types::KNOWN.iter().map(|known| TypeUrl(known.url.into())).collect());
        let known = KNOWN.iter().find(|known| known.as_str() == url);
        known.cloned().unwrap_or_else(|| Self(url.into()))
    }

    /// The message name: what follows the last `/`.
    #[must_use]
    pub fn message_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

impl ResourceName {
    /// Takes a resource name.
    ///
    /// # Errors
    /// If it is empty, longer than [`RESOURCE_NAME_BYTES_MAX`], or has control characters.
    pub fn new(name: &str) -> Result<Self, NameError> {
        const WHAT: &str = "resource name";
        check_len(WHAT, name, RESOURCE_NAME_BYTES_MAX)?;
        refuse_characters(WHAT, name, |c| !c.is_control())?;
        Ok(Self(name.into()))
    }

    /// Takes a name that a client asks for. It need not be one that a resource could have: then
    /// there is no such resource, which is no error of the stream (SOTW-110).
    ///
    /// # Errors
    /// If it is longer than [`RESOURCE_NAME_BYTES_MAX`].
    pub fn requested(name: &str) -> Result<Self, NameError> {
        if !name.is_empty() {
            check_len("resource name", name, RESOURCE_NAME_BYTES_MAX)?;
        }
        Ok(Self(name.into()))
    }
}

impl ScopeName {
    /// Takes a scope name: letters, digits and `. _ ~ : @ % / -`.
    ///
    /// # Errors
    /// If it is empty, longer than [`SCOPE_NAME_BYTES_MAX`], or has another character.
    pub fn new(name: &str) -> Result<Self, NameError> {
        const WHAT: &str = "scope name";
        check_len(WHAT, name, SCOPE_NAME_BYTES_MAX)?;
        refuse_characters(WHAT, name, |c| c == '/' || c == '%' || Self::is_literal(c))?;
        Ok(Self(name.into()))
    }

    /// Characters that a value put into a template keeps; any other is percent-encoded, `/` and
    /// `%` among them, so that a node can not name its way into another scope.
    pub(crate) fn is_literal(c: char) -> bool {
        c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '~' | ':' | '@' | '-')
    }
}
