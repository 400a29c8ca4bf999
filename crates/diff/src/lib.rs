//! The difference between two configurations, as people describe it.
//!
//! [`diff`] compares two JSON values by structure. It matches the items of lists by a key that identifies them, such as
//! `name` or `address`, and else by their content, never by index alone. An item in another place is moved, not removed
//! and added. [`unified`] shows the differences as lines of YAML, and [`words`] shows two long texts by their words.
//!
//! The work is O(n log n) in the size of the values, except for parts with a fixed bound.

#![forbid(unsafe_code)]

mod list;
mod text;
mod unified;
mod yaml;

use std::{borrow::Cow, fmt};

use serde_json::Value;

pub use crate::{
    text::{common_lines, words},
    unified::{Line, Sign, Unified, unified},
    yaml::field_lines,
};

/// One difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference<'a> {
    /// The place of the difference.
    pub path: Path<'a>,
    /// The difference there.
    pub edit: Edit<'a>,
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

/// Returns the differences between two values, in the order of the second one.
#[must_use]
pub fn diff<'a>(before: &'a Value, after: &'a Value) -> Vec<Difference<'a>> {
    let mut differences = Differences { path: Vec::new(), found: Vec::new() };
    differences.compare(before, after);
    differences.found
}

struct Differences<'a> {
    path: Vec<Segment<'a>>,
    found: Vec<Difference<'a>>,
}

// === impl Differences ===

impl<'a> Differences<'a> {
    fn compare(&mut self, before: &'a Value, after: &'a Value) {
        match (before, after) {
            (Value::Object(old), Value::Object(new)) => {
                let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
                names.sort();
                names.dedup();
                for name in names {
                    self.path.push(Segment::Field(name));
                    self.compare_parts(old.get(name), new.get(name));
                    self.path.pop();
                }
            }
            (Value::Array(old), Value::Array(new)) => self.compare_lists(old, new),
            _ if before == after => {}
            _ => self.found(Edit::Changed(before, after)),
        }
    }

    fn compare_parts(&mut self, before: Option<&'a Value>, after: Option<&'a Value>) {
        match (before, after) {
            (Some(before), Some(after)) => self.compare(before, after),
            (None, Some(after)) => self.found(Edit::Added(after)),
            (Some(before), None) => self.found(Edit::Removed(before)),
            (None, None) => {}
        }
    }

    fn compare_lists(&mut self, old: &'a [Value], new: &'a [Value]) {
        if old == new {
            return;
        }
        let matched = list::match_items(old, new);
        for pair in &matched.pairs {
            let (index, shown) = match (pair.before, pair.after) {
                (before, Some(after)) => (after, before.map_or(&new[after], |before| &old[before])),
                (Some(before), None) => (before, &old[before]),
                (None, None) => continue,
            };
            let key = matched.key.and_then(|key| Some((key, list::key_of(shown, key)?)));
            self.path.push(Segment::Item { index, key });
            if let (true, Some(from), Some(to)) = (pair.is_moved, pair.before, pair.after) {
                self.found(Edit::Moved { from, to });
            }
            let (before, after) = (pair.before.map(|at| &old[at]), pair.after.map(|at| &new[at]));
            self.compare_parts(before, after);
            self.path.pop();
        }
    }

    fn found(&mut self, edit: Edit<'a>) {
        self.found.push(Difference { path: Path(self.path.clone()), edit });
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

#[cfg(test)]
mod tests;
