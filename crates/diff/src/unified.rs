//! Differences as lines of YAML, with the fields and items around them.

use std::fmt;

use serde_json::Value;
use similar::ChangeTag;

use crate::{Difference, Edit, Segment, text, yaml};

/// A line of a difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Whether the line is old, new, or only says where the difference is.
    pub sign: Sign,
    /// The line with its indentation.
    pub text: String,
}

/// The sign before a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The line is a place: the values before and after have it.
    Context,
    /// Only the value before has the line.
    Removed,
    /// Only the value after has the line.
    Added,
    /// An item has another place.
    Moved,
}

/// The lines of differences.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unified {
    /// The first lines.
    pub lines: Vec<Line>,
    /// The number of further lines.
    pub omitted: usize,
}

// === impl Line ===

impl fmt::Display for Line {
    /// Writes the line after its sign and a space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.sign {
            Sign::Context => ' ',
            Sign::Removed => '-',
            Sign::Added => '+',
            Sign::Moved => '~',
        };
        write!(f, "{sign} {}", self.text)
    }
}

/// Returns differences as lines, at most `lines_max`.
#[must_use]
pub fn unified(differences: &[Difference<'_>], lines_max: usize) -> Unified {
    let mut writer = Writer { lines: Vec::new(), omitted: 0, lines_max };
    let mut around: &[Segment<'_>] = &[];
    for difference in differences {
        let path = &difference.path.0;
        let n_shared = around.iter().zip(path).take_while(|(a, b)| a == b).count();
        around = writer.difference(path, n_shared, difference.edit);
    }
    Unified { lines: writer.lines, omitted: writer.omitted }
}

struct Writer {
    lines: Vec<Line>,
    omitted: usize,
    lines_max: usize,
}

// === impl Writer ===

impl Writer {
    /// Writes a difference after the fields and items around it, except for the first `n_shared`. Returns what is
    /// around the next line.
    fn difference<'p, 'a>(
        &mut self,
        path: &'p [Segment<'a>],
        n_shared: usize,
        edit: Edit<'_>,
    ) -> &'p [Segment<'a>] {
        let n_around = match edit {
            Edit::Moved { .. } => path.len(),
            _ => path.len().saturating_sub(1),
        };
        for depth in n_shared..n_around.min(path.len().saturating_sub(1)) {
            self.push(Sign::Context, indent(path, depth), &[place(&path[depth])]);
        }
        let (depth, last) = (path.len().saturating_sub(1), path.last());
        let here = indent(path, depth);
        let head = match last {
            Some(Segment::Field(name)) => format!("{}: ", yaml::string(name)),
            Some(Segment::Item { .. }) => "- ".to_owned(),
            None => String::new(),
        };
        match edit {
            Edit::Added(value) => self.push(Sign::Added, here, &yaml::block(&head, value)),
            Edit::Removed(value) => self.push(Sign::Removed, here, &yaml::block(&head, value)),
            Edit::Changed(before, after) => self.changed(here, &head, before, after),
            Edit::Moved { from, to } => {
                let item = last.map(place).unwrap_or_default();
                let text = format!("{item}  # moved from {from} to {to}");
                self.push(Sign::Moved, here, &[text]);
            }
        }
        &path[..n_around]
    }

    fn changed(&mut self, here: usize, head: &str, before: &Value, after: &Value) {
        let (Value::String(old), Value::String(new)) = (before, after) else {
            self.push(Sign::Removed, here, &yaml::block(head, before));
            self.push(Sign::Added, here, &yaml::block(head, after));
            return;
        };
        if old.trim_end().contains('\n') || new.trim_end().contains('\n') {
            self.push(Sign::Context, here, &[format!("{head}{}", yaml::literal(new))]);
            for line in text::lines(old, new) {
                let (sign, text) = match line {
                    None => (Sign::Context, "…"),
                    Some((ChangeTag::Equal, text)) => (Sign::Context, text),
                    Some((ChangeTag::Delete, text)) => (Sign::Removed, text),
                    Some((ChangeTag::Insert, text)) => (Sign::Added, text),
                };
                self.push(sign, here + 2, &[text.to_owned()]);
            }
            return;
        }
        let (old, new) = text::words(old, new);
        self.push(Sign::Removed, here, &[format!("{head}{}", yaml::string(&old))]);
        self.push(Sign::Added, here, &[format!("{head}{}", yaml::string(&new))]);
    }

    fn push(&mut self, sign: Sign, indent: usize, lines: &[String]) {
        for line in lines {
            if self.lines.len() < self.lines_max {
                self.lines.push(Line { sign, text: format!("{:indent$}{line}", "") });
            } else {
                self.omitted += 1;
            }
        }
    }
}

/// Returns the number of spaces before a field or an item: two for each field or item around it, except that items have
/// the indentation of the field of their list.
fn indent(path: &[Segment<'_>], depth: usize) -> usize {
    path[..depth.min(path.len())]
        .iter()
        .enumerate()
        .filter(|(at, segment)| {
            let holds_items = matches!(path.get(at + 1), Some(Segment::Item { .. }));
            !(matches!(segment, Segment::Field(_)) && holds_items)
        })
        .count()
        * 2
}

/// Returns the line of a field or an item around a difference.
fn place(segment: &Segment<'_>) -> String {
    match segment {
        Segment::Field(name) => format!("{}:", yaml::string(name)),
        Segment::Item { key: Some((field, value)), .. } => {
            let value = yaml::flow(value);
            format!("- {}: {value}", yaml::string(field))
        }
        Segment::Item { index, .. } => format!("- # item {index}"),
    }
}
