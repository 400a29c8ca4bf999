//! Values with a unit, such as `5s` and `64MiB`.

use std::{fmt, str::FromStr, time::Duration};

use chancery_audit::duration_text;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration in milliseconds, seconds, minutes or hours: `250ms`, `10s`, `5m`, `1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(Duration);

/// A number of bytes: `4096`, `64KiB`, `3MiB`, `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(u64);

const SPAN_UNITS: [(&str, u64); 4] =
    [("ms", 1), ("s", 1000), ("m", 60 * 1000), ("h", 60 * 60 * 1000)];
const BYTE_UNITS: [(&str, u64); 4] =
    [("", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

impl Span {
    /// Creates a time of whole milliseconds.
    pub const fn new(duration: Duration) -> Self {
        Self(duration)
    }

    /// Creates a time of `n` seconds.
    pub const fn seconds(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }

    /// Returns the standard library's form.
    pub fn duration(self) -> Duration {
        self.0
    }

    /// Returns the time in milliseconds.
    pub fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl ByteSize {
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the number of bytes as a `usize`, capped at its maximum.
    pub fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// Returns the number of bytes as a `u32`, capped at its maximum. HTTP/2 windows have 32 bits.
    pub fn size_u32(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

/// Parses a number with a unit, without sign, fraction or space.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

impl FromStr for Span {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let millis =
            parse(text, &SPAN_UNITS).ok_or("is not a time such as 250ms, 10s, 5m or 1h")?;
        Ok(Self(Duration::from_millis(millis)))
    }
}

impl FromStr for ByteSize {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text, &BYTE_UNITS).map(Self).ok_or("is not a size such as 4096, 64KiB, 3MiB or 1GiB")
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&duration_text(self.0))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |(_, factor): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*factor);
        let (unit, factor) = BYTE_UNITS.iter().rev().find(is_whole).unwrap_or(&BYTE_UNITS[0]);
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text or a number, as in TOML.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Number(u64),
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer) {
            Ok(Written::Text(text)) => text.parse().map_err(de::Error::custom),
            _ => Err(de::Error::custom("is not a time such as 250ms, 10s, 5m or 1h")),
        }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer) {
            Ok(Written::Text(text)) => text.parse().map_err(de::Error::custom),
            Ok(Written::Number(bytes)) => Ok(Self(bytes)),
            Err(_) => Err(de::Error::custom("is not a size such as 4096, 64KiB, 3MiB or 1GiB")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_with_unit_parses_as_displayed() {
        for text in ["0s", "250ms", "1s", "90s", "5m", "1h"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["0", "1", "1000", "64KiB", "3MiB", "1GiB", "1025KiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_value_or_unit_is_rejected() {
        for text in ["", "5", "s", "-1s", "1.5s", "1 s", "1d", "99999999999999999999s"] {
            assert!(text.parse::<Span>().is_err(), "{text:?}");
        }
        for text in ["", "-1", "1kb", "1 MiB", "99999999999999999GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text:?}");
        }
    }
}
