//! The ranges of the keys' values.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use toml::Value;

use super::{
    entry::Field,
    units::{ByteSize, Span},
};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// Times are in milliseconds.
pub(crate) const SECOND: u64 = 1000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;

/// The range of a key's value. Values outside it are mistakes, such as a wrong unit.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) unit: Unit,
    pub(crate) range: RangeInclusive<u64>,
    /// Whether the value may also be 0, which disables what the key limits.
    pub(crate) or_zero: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    /// The value is not a quantity. Its rules are in `rules.rs`.
    None,
    /// One of these words. The rule is in `rules.rs` or in the type of the key.
    Words(&'static [&'static str]),
    /// An address to listen on.
    Listen,
    /// A list of tables with these fields.
    Tables(&'static [Field]),
    Count,
    Bytes,
    Milliseconds,
}

/// A value that is not a quantity.
pub(crate) const FREE: Bounds = Bounds::new(Unit::None, 0, 0);

/// An address to listen on.
pub(crate) const LISTEN: Bounds = Bounds::new(Unit::Listen, 0, 0);

/// One of a few words.
pub(crate) const fn words(words: &'static [&'static str]) -> Bounds {
    Bounds::new(Unit::Words(words), 0, 0)
}

/// A list of tables.
pub(crate) const fn tables(fields: &'static [Field]) -> Bounds {
    Bounds::new(Unit::Tables(fields), 0, 0)
}

/// A number from `min` to `max`.
pub(crate) const fn count(min: u64, max: u64) -> Bounds {
    Bounds::new(Unit::Count, min, max)
}

/// A size from `min` to `max` bytes.
pub(crate) const fn bytes(min: u64, max: u64) -> Bounds {
    Bounds::new(Unit::Bytes, min, max)
}

/// A time from `min` to `max` milliseconds.
pub(crate) const fn time(min: u64, max: u64) -> Bounds {
    Bounds::new(Unit::Milliseconds, min, max)
}

impl Bounds {
    const fn new(unit: Unit, min: u64, max: u64) -> Self {
        Self { unit, range: min..=max, or_zero: false }
    }

    pub(crate) const fn or_zero(self) -> Self {
        Self { or_zero: true, ..self }
    }

    /// Returns whether a value of the right type is in the range.
    pub(crate) fn allow(&self, value: &Value) -> bool {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let text = value.as_str();
        let quantity = match self.unit {
            Unit::None | Unit::Words(_) | Unit::Listen | Unit::Tables(_) => return true,
            Unit::Count => number,
            Unit::Bytes => number.or_else(|| Some(text?.parse::<ByteSize>().ok()?.bytes())),
            Unit::Milliseconds => text.and_then(|text| Some(text.parse::<Span>().ok()?.millis())),
        };
        quantity
            .is_some_and(|quantity| self.range.contains(&quantity) || self.or_zero && quantity == 0)
    }

    /// Returns the range in words, or `None` for a value that is not a quantity.
    pub(crate) fn range(&self) -> Option<String> {
        let (min, max) = (*self.range.start(), *self.range.end());
        let from_to = |min: &dyn Display, max: &dyn Display| format!("from {min} to {max}");
        let range = match self.unit {
            Unit::None | Unit::Words(_) | Unit::Listen | Unit::Tables(_) => return None,
            Unit::Count => from_to(&min, &max),
            Unit::Bytes => from_to(&ByteSize::new(min), &ByteSize::new(max)),
            Unit::Milliseconds => from_to(&span(min), &span(max)),
        };
        let zero = if matches!(self.unit, Unit::Milliseconds) { "0s" } else { "0" };
        Some(if self.or_zero { format!("{zero}, or {range}") } else { range })
    }

    /// Returns the least and the greatest value, other than 0.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> Option<[Value; 2]> {
        let value = |n: u64| match self.unit {
            Unit::Count => Value::Integer(i64::try_from(n).unwrap()),
            Unit::Bytes => Value::String(ByteSize::new(n).to_string()),
            _ => Value::String(span(n).to_string()),
        };
        self.range().map(|_| [value(*self.range.start()), value(*self.range.end())])
    }
}

fn span(millis: u64) -> Span {
    Span::new(Duration::from_millis(millis))
}
