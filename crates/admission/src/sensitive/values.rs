//! The values of a body, and what replaces the secret ones.

use chancery_model::has_private_key;

use crate::credentials::{KEY_MARK, MARK};

/// Takes a secret value and its mark, and returns what replaces the value.
pub(super) type Replace<'a> = dyn FnMut(&[u8], &'static str) -> Option<&'static str> + 'a;

/// The reason why values are secret.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Secrecy {
    /// The fields of the values decide.
    ByField,
    /// A message around the values is secret.
    Inherited,
}

/// The replacement of secret values.
pub(super) struct Values<'a> {
    /// Whether the body contains a private key. The walk then reads all fields.
    has_key: bool,
    replace: &'a mut Replace<'a>,
}

impl<'a> Values<'a> {
    /// Creates the replacement of the secret values of a body.
    pub(super) fn new(body: &[u8], replace: &'a mut Replace<'a>) -> Self {
        Self { has_key: has_private_key(body), replace }
    }

    /// Returns whether the body contains a private key.
    pub(super) fn has_key(&self) -> bool {
        self.has_key
    }

    /// Returns the replacement for a value that is text or bytes.
    pub(super) fn replacement(&mut self, value: &[u8], secrecy: Secrecy) -> Option<&'static str> {
        let mark = match secrecy {
            Secrecy::Inherited => MARK,
            Secrecy::ByField if self.has_key && has_private_key(value) => KEY_MARK,
            Secrecy::ByField => return None,
        };
        (self.replace)(value, mark)
    }
}
