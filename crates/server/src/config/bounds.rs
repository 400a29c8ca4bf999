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
    pub(super) unit: Unit,
    pub(super) range: RangeInclusive<u64>,
    /// Whether the value may also be 0, which disables what the key limits.
    pub(super) or_zero: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
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

/// A field of the tables in a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) form: Form,
    pub(super) is_required: bool,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Texts,
    Listen,
    Flag,
    Count,
}

/// A field that every table needs.
pub(super) const fn required(name: &'static str, form: Form) -> Field {
    Field { name, form, is_required: true }
}

/// A field with a default.
pub(super) const fn optional(name: &'static str, form: Form) -> Field {
    Field { name, form, is_required: false }
}

/// A value that is not a quantity.
pub(super) const FREE: Bounds = Bounds::new(Unit::None, 0, 0);

/// An address to listen on.
pub(super) const LISTEN: Bounds = Bounds::new(Unit::Listen, 0, 0);

/// One of a few words.
pub(super) const fn words(words: &'static [&'static str]) -> Bounds {
    Bounds::new(Unit::Words(words), 0, 0)
}

/// A list of tables.
pub(super) const fn tables(fields: &'static [Field]) -> Bounds {
    Bounds::new(Unit::Tables(fields), 0, 0)
}

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
            Unit::None | Unit::Words(_) | Unit::Listen | Unit::Tables(_) => return true,
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
            Unit::None | Unit::Words(_) | Unit::Listen | Unit::Tables(_) => return None,
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
        self.range().map(|_| [value(*self.range.start()), value(*self.range.end())])
    }
}

fn span(millis: u64) -> Span {
    Span::new(Duration::from_millis(millis))
}
