//! The comparison of two values.

use std::{collections::HashMap, slice};

use serde_json::{Map, Value};

use crate::{
    difference::{Difference, Edit, Path, Segment, Shown},
    list, unified, yaml,
};

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
        let Some((_, mut around)) = self.path.split_last() else { return };
        if is_own || !yaml::is_short(before) || !yaml::is_short(after) {
            return;
        }
        let whole = Shown::Whole { depth, before, after };
        let path = Path(self.path.clone());
        let whole = Difference { path, edit: Edit::Changed(before, after), shown: whole };
        // The first difference in an item also shows which item it is.
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
