//! The chain of records: sequence numbers and hashes.

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The version of the format of a record.
const FORMAT_VERSION: u32 = 1;

/// The SHA-256 hash of a line, without its line break.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Returns the hash of a line.
    pub(crate) fn of(line: &[u8]) -> Self {
        let mut hash = Self::default();
        hash.0.copy_from_slice(digest(&SHA256, line).as_ref());
        hash
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hash = Self::default();
        hex::decode_to_slice(text, &mut hash.0)?;
        Ok(hash)
    }
}

/// A record of a chain: its sequence number, and the hash of its line. The text form is `SEQ:HASH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The sequence number.
    pub seq: u64,
    /// The hash of the line.
    pub hash: Hash,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

/// A text is not a head.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not SEQ:HASH with a SHA-256 hash of 64 hexadecimal digits")]
pub struct HeadError(String);

impl FromStr for Head {
    type Err = HeadError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once(':').and_then(|(seq, hash)| {
            Some(Self { seq: seq.parse().ok()?, hash: hash.parse().ok()? })
        });
        parsed.ok_or_else(|| HeadError(text.to_owned()))
    }
}

/// The end of a chain, to which the next record is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The sequence number of the next record. The first record has 1.
    pub(crate) next_seq: u64,
    /// The hash of the last line, and zeros before the first one.
    prev: Hash,
}

/// The keys of a record that form the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    v: u32,
    pub(crate) seq: u64,
    prev: String,
}

/// The reason why a line is no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("the line is not a record: {0}")]
    Json(String),
    #[error("the record has format version {0}, but this program supports only version 1")]
    Version(u32),
    #[error("`prev` is not a SHA-256 hash: {0:?}")]
    Hash(String),
}

impl Link {
    /// Reads the chain keys of a line, without its line break.
    pub(crate) fn read(line: &[u8]) -> Result<(Self, Hash), LinkError> {
        let link: Self =
            serde_json::from_slice(line).map_err(|error| LinkError::Json(error.to_string()))?;
        if link.v != FORMAT_VERSION {
            return Err(LinkError::Version(link.v));
        }
        let prev = link.prev.parse().map_err(|_| LinkError::Hash(link.prev.clone()))?;
        Ok((link, prev))
    }
}

impl Chain {
    /// The chain without records.
    pub(crate) const EMPTY: Self = Self { next_seq: 1, prev: Hash([0; 32]) };

    /// Returns the chain whose last record is this line with this sequence number.
    pub(crate) fn after(seq: u64, line: &[u8]) -> Self {
        Self { next_seq: seq.saturating_add(1), prev: Hash::of(line) }
    }

    /// Returns the line of the next record, with its line break. `body` is a JSON object with the other keys.
    pub(crate) fn line(&self, body: &str) -> Vec<u8> {
        let Self { next_seq, prev } = self;
        let rest = body.strip_prefix('{').unwrap_or(body);
        format!("{{\"v\":{FORMAT_VERSION},\"seq\":{next_seq},\"prev\":\"{prev}\",{rest}\n")
            .into_bytes()
    }

    /// Appends a line that [`Self::line`] returned.
    pub(crate) fn append(&mut self, line: &[u8]) {
        *self = Self::after(self.next_seq, line.strip_suffix(b"\n").unwrap_or(line));
    }

    /// Returns the last record, or `None` if the chain has no records.
    pub(crate) fn head(&self) -> Option<Head> {
        let seq = self.next_seq.checked_sub(1).filter(|seq| *seq > 0)?;
        Some(Head { seq, hash: self.prev })
    }

    /// Returns whether a record follows on this chain.
    pub(crate) fn precedes(&self, seq: u64, prev: Hash) -> bool {
        self.next_seq == seq && self.prev == prev
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format of the first release is readable forever.
    #[test]
    fn line_format_of_first_release_is_unchanged() {
        let mut chain = Chain::EMPTY;
        let first = chain.line(r#"{"verb":"start"}"#);
        let zeros = "0".repeat(64);
        let expected = format!("{{\"v\":1,\"seq\":1,\"prev\":\"{zeros}\",\"verb\":\"start\"}}\n");
        assert_eq!(String::from_utf8(first.clone()).unwrap(), expected);
        chain.append(&first);
        assert_eq!(
            chain.head().unwrap().to_string(),
            format!("1:{}", Hash::of(expected.trim_end().as_bytes()))
        );
        let second = chain.line(r#"{"verb":"stop"}"#);
        let (link, prev) = Link::read(second.trim_ascii_end()).unwrap();
        assert!(chain.precedes(link.seq, prev));
        assert_eq!(
            Hash::of(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn text_that_is_no_record_or_head_is_rejected() {
        for line in [&b"{}"[..], b"", b"[]", b"{\"v\":1,\"seq\":-1,\"prev\":\"\"}"] {
            assert!(matches!(Link::read(line), Err(LinkError::Json(_))), "{line:?}");
        }
        let newer = br#"{"v":2,"seq":1,"prev":"00"}"#;
        assert_eq!(Link::read(newer), Err(LinkError::Version(2)));
        let short = br#"{"v":1,"seq":1,"prev":"00"}"#;
        assert_eq!(Link::read(short), Err(LinkError::Hash("00".to_owned())));
        let head = format!("7:{}", "ab".repeat(32));
        assert_eq!(head.parse::<Head>().unwrap().to_string(), head);
        for text in ["7", "7:ab", "x:00", ""] {
            text.parse::<Head>().unwrap_err();
        }
    }
}
