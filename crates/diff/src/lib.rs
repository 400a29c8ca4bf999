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

use std::{borrow::Cow, collections::HashMap, fmt, slice};

use serde_json::{Map, Value};

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
    /// The lines of the difference.
    pub(crate) shown: Shown<'a>,
}

/// The lines that show a difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shown<'a> {
    /// Its own lines.
    Own,
    /// The lines of another difference.
    Elsewhere,
    /// Those of a field with the value that the field of this name had.
    Renamed(&'a str),
    /// Those of an item that moved. It has no key.
    Item(&'a Value),
    /// Those of two values: all parts of the value at the first `depth` segments of the path, before and after.
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

/// Returns the differences between two values, in the order of the second one.
#[must_use]
pub fn diff<'a>(before: &'a Value, after: &'a Value) -> Vec<Difference<'a>> {
    let mut differences = Differences { path: Vec::new(), found: Vec::new() };
    differences.compare(before, after, None);
    differences.found
}

struct Differences<'a> {
    path: Vec<Segment<'a>>,
    found: Vec<Difference<'a>>,
}

// === impl Differences ===

impl<'a> Differences<'a> {
    /// Compares two values. `key` is the field by which an item was found, and comes first.
    fn compare(&mut self, before: &'a Value, after: &'a Value, key: Option<&str>) {
        match (before, after) {
            (Value::Object(old), Value::Object(new)) => self.compare_objects(old, new, key),
            (Value::Array(old), Value::Array(new)) => self.compare_lists(old, new),
            _ if before == after => {}
            _ => self.found(Edit::Changed(before, after)),
        }
    }

    fn compare_objects(
        &mut self,
        old: &'a Map<String, Value>,
        new: &'a Map<String, Value>,
        key: Option<&str>,
    ) {
        let first = self.found.len();
        let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
        names.sort_by_key(|name| (Some(name.as_str()) != key, *name));
        names.dedup();
        for name in names {
            self.path.push(Segment::Field(name));
            self.compare_parts(old.get(name), new.get(name), None);
            self.path.pop();
        }
        self.find_renamed(first);
    }

    /// Shows a field that is gone and a new one with the same long value as one line.
    fn find_renamed(&mut self, first: usize) {
        let depth = self.path.len() + 1;
        let mut gone: HashMap<&'a Value, Vec<usize>> = HashMap::new();
        for (at, difference) in self.found.iter().enumerate().skip(first).rev() {
            match difference.edit {
                Edit::Removed(old) if difference.path.0.len() == depth && !yaml::is_short(old) => {
                    gone.entry(old).or_default().push(at);
                }
                _ => {}
            }
        }
        if gone.is_empty() {
            return;
        }
        for at in first..self.found.len() {
            let Difference { path, edit: Edit::Added(new), .. } = &self.found[at] else { continue };
            let is_field = path.0.len() == depth;
            let Some(old) = gone.get_mut(new).filter(|_| is_field).and_then(Vec::pop) else {
                continue;
            };
            if let Some(Segment::Field(name)) = self.found[old].path.0.last() {
                self.found[at].shown = Shown::Renamed(name);
                self.found[old].shown = Shown::Elsewhere;
            }
        }
    }

    /// Shows two short values as a whole, if this is shorter than their differences since the first one.
    fn show_whole(&mut self, first: usize, before: &'a Value, after: &'a Value) {
        let (depth, inside) = (self.path.len(), &self.found[first..]);
        let is_own = inside.first().is_none_or(|difference| difference.path.0.len() == depth);
        if depth == 0 || is_own || !yaml::is_short(before) || !yaml::is_short(after) {
            return;
        }
        let whole = Shown::Whole { depth, before, after };
        let path = Path(self.path.clone());
        let whole = Difference { path, edit: Edit::Changed(before, after), shown: whole };
        // The first difference in an item also shows which item it is.
        let mut around = &self.path[..depth - 1];
        let last = first.checked_sub(1).map(|last| &self.found[last].path.0);
        if let (false, [outer @ .., Segment::Item { .. }]) =
            (last.is_some_and(|last| last.starts_with(around)), around)
        {
            around = outer;
        }
        if unified::cost(slice::from_ref(&whole), around) < unified::cost(inside, around) {
            self.found[first..].iter_mut().for_each(|inside| inside.shown = whole.shown);
        }
    }

    fn compare_parts(
        &mut self,
        before: Option<&'a Value>,
        after: Option<&'a Value>,
        key: Option<&str>,
    ) {
        let first = self.found.len();
        match (before, after) {
            (Some(before), Some(after)) => {
                self.compare(before, after, key);
                self.show_whole(first, before, after);
            }
            (None, Some(after)) => self.found(Edit::Added(after)),
            (Some(before), None) => self.found(Edit::Removed(before)),
            (None, None) => {}
        }
    }

    fn compare_lists(&mut self, old: &'a [Value], new: &'a [Value]) {
        if old == new {
            return;
        }
        for pair in &list::match_items(old, new) {
            let (index, shown) = match (pair.before, pair.after) {
                (before, Some(after)) => (after, before.map_or(&new[after], |before| &old[before])),
                (Some(before), None) => (before, &old[before]),
                (None, None) => continue,
            };
            let key = pair.key.and_then(|key| Some((key, list::key_of(shown, key)?)));
            self.path.push(Segment::Item { index, key });
            let (before, after) = (pair.before.map(|at| &old[at]), pair.after.map(|at| &new[at]));
            match (pair.before, pair.after) {
                (Some(from), Some(to)) if pair.is_moved => {
                    self.found(Edit::Moved { from, to });
                    if let (None, Some(moved)) = (pair.key, self.found.last_mut()) {
                        moved.shown = Shown::Item(shown);
                    }
                    self.compare(&old[from], &new[to], pair.key);
                }
                _ => self.compare_parts(before, after, pair.key),
            }
            self.path.pop();
        }
    }

    fn found(&mut self, edit: Edit<'a>) {
        self.found.push(Difference::new(Path(self.path.clone()), edit));
    }
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

#[cfg(test)]
mod tests;
