//! An incremental reader of protobuf's wire format that does not copy field contents.
//!
//! Discovery requests come from untrusted clients. The server counts and bounds them with this
//! reader before it builds anything from them. A caller may pause after any token and resume later.

/// The maximum nesting depth of groups. Protobuf libraries have the same limit.
const GROUPS_MAX: usize = 100;

/// The reason why bytes are not a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends inside a field.
    #[error("the message ends inside a field")]
    Truncated,
    /// A varint has more than 10 bytes or more than 64 bits.
    #[error("invalid varint")]
    Varint,
    /// A key has field number 0 or a field number of more than 29 bits.
    #[error("invalid field number {0}")]
    Number(u64),
    /// A key has a wire type that does not exist.
    #[error("invalid wire type {0}")]
    WireType(u8),
    /// A known field has the wire type of another kind of field.
    #[error("field {0} has the wrong wire type")]
    Kind(u32),
    /// An end-group tag has no matching start-group tag.
    #[error("an end-group tag has no matching start-group tag")]
    GroupEnd,
    /// Groups are nested too deeply.
    #[error("groups are nested more than {GROUPS_MAX} deep")]
    Recursion,
    /// A string is not UTF-8.
    #[error("field {0} is not valid UTF-8")]
    Utf8(u32),
}

/// One token of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A field that is a varint.
    Varint {
        /// The field number.
        field: u32,
        /// The number, as an unsigned integer of 64 bits.
        value: u64,
    },
    /// A field of 4 or 8 bytes.
    Fixed {
        /// The field number.
        field: u32,
    },
    /// A field with a length: a string, bytes, or a message.
    Bytes {
        /// The field number.
        field: u32,
        /// The content. It ends where the token ends.
        content: &'a [u8],
    },
    /// A part of a group. No discovery message uses groups.
    Group,
}

/// A resumable reader of the tokens of a message, or of a part of a message.
#[derive(Debug, Clone, Default)]
pub struct Fields {
    /// The offset of the next token.
    at: usize,
    /// The end of the message.
    end: usize,
    /// The field numbers of the open groups.
    groups: Vec<u32>,
}

impl Fields {
    /// Creates a reader of the bytes from offset `at` to offset `end`.
    #[must_use]
    pub fn new(at: usize, end: usize) -> Self {
        Self { at, end, groups: Vec::new() }
    }

    /// Returns the offset of the next token.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns the next token of `message`, or `None` at the end.
    ///
    /// # Errors
    /// Fails if the bytes are not a protobuf message.
    pub fn next<'a>(&mut self, message: &'a [u8]) -> Result<Option<Token<'a>>, WireError> {
        let message = message.get(..self.end).unwrap_or(message);
        if self.at >= message.len() {
            return if self.groups.is_empty() { Ok(None) } else { Err(WireError::Truncated) };
        }
        let key = self.varint(message)?;
        let field = u32::try_from(key >> 3).ok().filter(|n| (1..1 << 29).contains(n));
        let field = field.ok_or(WireError::Number(key >> 3))?;
        let token = match key.to_le_bytes()[0] & 7 {
            0 => Token::Varint { field, value: self.varint(message)? },
            1 => {
                self.take(message, 8)?;
                Token::Fixed { field }
            }
            2 => {
                let len = usize::try_from(self.varint(message)?).unwrap_or(usize::MAX);
                Token::Bytes { field, content: self.take(message, len)? }
            }
            3 if self.groups.len() == GROUPS_MAX => return Err(WireError::Recursion),
            3 => {
                self.groups.push(field);
                Token::Group
            }
            4 if self.groups.pop() == Some(field) => return Ok(Some(Token::Group)),
            4 => return Err(WireError::GroupEnd),
            5 => {
                self.take(message, 4)?;
                Token::Fixed { field }
            }
            other => return Err(WireError::WireType(other)),
        };
        Ok(Some(if self.groups.is_empty() { token } else { Token::Group }))
    }

    fn varint(&mut self, message: &[u8]) -> Result<u64, WireError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *message.get(self.at).ok_or(WireError::Truncated)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(WireError::Varint);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::Varint)
    }

    fn take<'a>(&mut self, message: &'a [u8], len: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(len).ok_or(WireError::Truncated)?;
        let content = message.get(self.at..end).ok_or(WireError::Truncated)?;
        self.at = end;
        Ok(content)
    }
}

/// Returns the text of a string field.
///
/// # Errors
/// Fails if the content is not UTF-8.
pub fn text(field: u32, content: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(content).map_err(|_| WireError::Utf8(field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(message: &[u8]) -> Result<Vec<Token<'_>>, WireError> {
        let mut fields = Fields::new(0, message.len());
        std::iter::from_fn(|| fields.next(message).transpose()).collect()
    }

    #[test]
    fn reader_accepts_every_wire_type() {
        let message =
            [0x08, 0x96, 0x01, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0x1a, 2, b'h', b'i', 0x25, 0, 0, 0, 0];
        let expected = [
            Token::Varint { field: 1, value: 150 },
            Token::Fixed { field: 2 },
            Token::Bytes { field: 3, content: b"hi" },
            Token::Fixed { field: 4 },
        ];
        assert_eq!(tokens(&message).unwrap(), expected);
    }

    #[test]
    fn reader_returns_group_contents_as_group_tokens() {
        // Group 5 contains a string and group 6.
        let message = [0x2b, 0x0a, 1, b'x', 0x33, 0x34, 0x2c, 0x08, 1];
        let tokens = tokens(&message).unwrap();
        assert_eq!(tokens[..5], [Token::Group; 5]);
        assert_eq!(tokens[5..], [Token::Varint { field: 1, value: 1 }]);
    }

    #[test]
    fn malformed_message_is_rejected() {
        let deep = [0x0b; GROUPS_MAX + 1];
        let cases: [(&[u8], WireError); 11] = [
            (&[0x0a], WireError::Truncated),
            (&[0x0a, 5, 1], WireError::Truncated),
            (
                &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
                WireError::Truncated,
            ),
            (&[0x08, 0x80], WireError::Truncated),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2], WireError::Varint),
            (&[0x02, 0], WireError::Number(0)),
            (&[0x0e], WireError::WireType(6)),
            (&[0x0c], WireError::GroupEnd),
            (&[0x0b, 0x14], WireError::GroupEnd),
            (&[0x0b], WireError::Truncated),
            (&deep, WireError::Recursion),
        ];
        for (message, error) in cases {
            assert_eq!(tokens(message), Err(error), "{message:02x?}");
        }
        assert_eq!(text(3, b"\xc3\x28"), Err(WireError::Utf8(3)));
    }
}
