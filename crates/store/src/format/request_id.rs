//! The IDs of write requests.

use std::{fmt, io, str::FromStr};

use crate::format::identity::fill_random;

/// The ID of a write request: 16 random bytes. It distinguishes a retry from another write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

impl RequestId {
    /// Returns a new random ID.
    ///
    /// # Errors
    /// Fails if the operating system has no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        fill_random(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// The error for a text that is not a request ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it must be 32 hexadecimal digits")]
pub struct RequestIdError;

impl FromStr for RequestId {
    type Err = RequestIdError;

    /// Parses 32 hexadecimal digits, as [`fmt::Display`] writes them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `from_str_radix` accepts a sign; request IDs do not.
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(RequestIdError);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| RequestIdError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_id_text_round_trips() {
        let id = RequestId::random().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(
            "00000000000000000000000000000Aff".parse::<RequestId>().unwrap().0[14..],
            [10, 255]
        );
        let signed = format!("+{}", "0".repeat(31));
        for text in ["", "0", "0x000000000000000000000000000000", signed.as_str()] {
            assert_eq!(text.parse::<RequestId>(), Err(RequestIdError), "{text:?}");
        }
    }
}
