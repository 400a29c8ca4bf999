//! The ranges of the keys' values.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use toml::Value;

use super::units::{ByteSize, Span};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
/// Times are in milliseconds.
pub(super) const SECOND: u64 = 1000;
pub(super) const MINUTE: u64 = 60 * SECOND;
pub(super) const HOUR: u64 = 60 * MINUTE;

/// The range of a key's value. Values outside it are mistakes, such as a wrong unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bounds {
    unit: Unit,
    range: RangeInclusive<u64>,
    /// Whether the value may also be 0, which disables what the key limits.
    or_zero: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// The value is not a quantity. Its rules are in `rules.rs`.
    None,
    Count,
    Bytes,
    Milliseconds,
}

/// A value that is not a quantity.
pub(super) const FREE: Bounds = Bounds::new(Unit::None, 0, 0);

/// A number from `min` to `max`.
pub(super) const fn count(min: u64, max: u64) -> Bounds {
    Bounds::new(Unit::Count, min, max)
}

/// A size from `min` to `max` bytes.
pub(super) const fn bytes(min: u64, max: u64) -> Bounds {
    Bounds::new(Unit::Bytes, min, max)
}

/// A time from `min` to `max` milliseconds.
pub(super) const fn time(min: u64, max: u64) -> Bounds {
    Bounds::new(Unit::Milliseconds, min, max)
}

/// A key with its bounds and its description.
pub(super) type Key = (&'static str, Bounds, &'static str);

impl Bounds {
    const fn new(unit: Unit, min: u64, max: u64) -> Self {
        Self { unit, range: min..=max, or_zero: false }
    }

    pub(super) const fn or_zero(self) -> Self {
        Self { or_zero: true, ..self }
    }

    /// Returns whether a value of the right type is in the range.
    pub(super) fn allow(&self, value: &Value) -> bool {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let text = value.as_str();
        let quantity = match self.unit {
            Unit::None => return true,
            Unit::Count => number,
            Unit::Bytes => number.or_else(|| Some(text?.parse::<ByteSize>().ok()?.bytes())),
            Unit::Milliseconds => text.and_then(|text| Some(text.parse::<Span>().ok()?.millis())),
        };
        quantity
            .is_some_and(|quantity| self.range.contains(&quantity) || self.or_zero && quantity == 0)
    }

    /// Returns the range in words, or `None` for a value that is not a quantity.
    pub(super) fn range(&self) -> Option<String> {
        let (min, max) = (*self.range.start(), *self.range.end());
        let from_to = |min: &dyn Display, max: &dyn Display| format!("from {min} to {max}");
        let range = match self.unit {
            Unit::None => return None,
            Unit::Count => from_to(&min, &max),
            Unit::Bytes => from_to(&ByteSize::new(min), &ByteSize::new(max)),
            Unit::Milliseconds => from_to(&span(min), &span(max)),
        };
        let zero = if self.unit == Unit::Milliseconds { "0s" } else { "0" };
        Some(if self.or_zero { format!("{zero}, or {range}") } else { range })
    }

    /// Returns the least and the greatest value, other than 0.
    #[cfg(test)]
    pub(super) fn ends(&self) -> Option<[Value; 2]> {
        let value = |n: u64| match self.unit {
            Unit::Count => Value::Integer(i64::try_from(n).unwrap()),
            Unit::Bytes => Value::String(ByteSize::new(n).to_string()),
            _ => Value::String(span(n).to_string()),
        };
        (self.unit != Unit::None).then(|| [value(*self.range.start()), value(*self.range.end())])
    }
}

fn span(millis: u64) -> Span {
    Span::new(Duration::from_millis(millis))
}
