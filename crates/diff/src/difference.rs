//! A difference and its place.

use std::{borrow::Cow, fmt};

use serde_json::Value;

use crate::yaml;

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference<'a> {
    /// The place of the difference.
    pub path: Path<'a>,
    /// The difference there.
    pub edit: Edit<'a>,
    /// The lines of the difference.
    pub(crate) shown: Shown<'a>,
}

/// The lines that show a difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shown<'a> {
    /// The lines of the difference itself.
    Own,
    /// The lines of another difference.
    Elsewhere,
    /// A line with the name of a new field, and the former name of its value.
    Renamed(&'a str),
    /// A line with an item that moved and has no key.
    Item(&'a Value),
    /// The whole values at the first `depth` segments of the path, before and after. All differences inside have the same.
    Whole { depth: usize, before: &'a Value, after: &'a Value },
}

/// The difference at a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Edit<'a> {
    /// The value is new.
    Added(&'a Value),
    /// The value is gone.
    Removed(&'a Value),
    /// Another value replaces the first one.
    Changed(&'a Value, &'a Value),
    /// The item of a list has another index, among the items that remain.
    Moved {
        /// The index before.
        from: usize,
        /// The index after.
        to: usize,
    },
}

/// A place in a value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Path<'a>(pub Vec<Segment<'a>>);

/// A step from a value to one of its parts.
#[derive(Debug, Clone, PartialEq)]
pub enum Segment<'a> {
    /// The field of an object.
    Field(&'a str),
    /// The item of a list.
    Item {
        /// The index: after the change, or before it if the item is gone.
        index: usize,
        /// The field by which the item was found and its value, if there is one.
        key: Option<(&'static str, Cow<'a, Value>)>,
    },
}

// === impl Difference ===

impl<'a> Difference<'a> {
    /// Creates a difference that its own lines show.
    #[must_use]
    pub fn new(path: Path<'a>, edit: Edit<'a>) -> Self {
        Self { path, edit, shown: Shown::Own }
    }
}

// === impl Edit ===

impl Edit<'_> {
    /// Returns the word for the kind of the difference.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Added(_) => "added",
            Self::Removed(_) => "removed",
            Self::Changed(..) => "changed",
            Self::Moved { .. } => "moved",
        }
    }
}

// === impl Path ===

impl fmt::Display for Path<'_> {
    /// Writes the path as `virtual_hosts[name=web].routes[2].match.prefix`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Field(name) if at == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
                Segment::Item { key: Some((field, value)), .. } if is_short(value) => {
                    write!(f, "[{field}={}]", yaml::flow(value))?;
                }
                Segment::Item { index, .. } => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Returns whether a key is short enough for a path.
fn is_short(key: &Value) -> bool {
    match key {
        Value::String(text) => text.len() <= 80,
        Value::Number(_) | Value::Bool(_) => true,
        _ => false,
    }
}
