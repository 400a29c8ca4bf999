//! Differences as lines of YAML, with the fields and items around them.

use std::{fmt, ptr};

use serde_json::Value;
use similar::ChangeTag;

use crate::{
    difference::{Difference, Edit, Segment, Shown},
    text, yaml,
};

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
    /// An item has another place, or a field another name.
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

/// The maximum length of a key in a comment.
const NOTE_MAX: usize = 60;
/// The cost of a line, compared with that of a character.
const LINE_COST: usize = 24;

/// Returns differences as lines, at most `lines_max`.
#[must_use]
pub fn unified(differences: &[Difference<'_>], lines_max: usize) -> Unified {
    let mut writer = Writer { lines: Vec::new(), omitted: 0, lines_max };
    writer.differences(differences, &[]);
    Unified { lines: writer.lines, omitted: writer.omitted }
}

/// Returns the cost of reading differences after the line of `around`: [`LINE_COST`] for each line, and 1 for each
/// character except indentation.
pub(crate) fn cost(differences: &[Difference<'_>], around: &[Segment<'_>]) -> usize {
    let mut writer = Writer { lines: Vec::new(), omitted: 0, lines_max: usize::MAX };
    writer.differences(differences, around);
    let lines = writer.lines.iter();
    lines.map(|line| line.text.trim().chars().count() + LINE_COST).sum()
}

struct Writer {
    lines: Vec<Line>,
    omitted: usize,
    lines_max: usize,
}

// === impl Writer ===

impl Writer {
    /// Writes differences with the fields and items around them, except for those that are around the first line.
    fn differences<'p>(
        &mut self,
        differences: &'p [Difference<'_>],
        mut around: &'p [Segment<'p>],
    ) {
        let mut whole = None;
        for (at, difference) in differences.iter().enumerate() {
            let (mut path, mut edit) = (&difference.path.0[..], difference.edit);
            match difference.shown {
                Shown::Whole { before, .. } if whole.is_some_and(|it| ptr::eq(it, before)) => {
                    continue;
                }
                Shown::Whole { depth, before, after } => {
                    (path, edit) = (&path[..depth], Edit::Changed(before, after));
                    whole = Some(before);
                }
                Shown::Elsewhere => continue,
                _ => {}
            }
            let n_shared = around.iter().zip(path).take_while(|(a, b)| a == b).count();
            if let Edit::Moved { from, to } = edit {
                self.headings(path, n_shared, path.len().saturating_sub(1));
                let item = moved(path, difference.shown, differences.get(at + 1));
                let text = format!("{item}  # moved from {from} to {to}");
                self.push(Sign::Moved, indent(path, path.len().saturating_sub(1)), &[text]);
                around = path;
            } else {
                self.value(path, n_shared, edit, difference.shown);
                around = &path[..path.len().saturating_sub(1)];
            }
        }
    }

    /// Writes the fields and items around a value, and its lines before and after.
    fn value(&mut self, path: &[Segment<'_>], n_shared: usize, edit: Edit<'_>, shown: Shown<'_>) {
        let depth = path.len().saturating_sub(1);
        let (mut here, mut note) = (indent(path, depth), String::new());
        let mut head = match path.last() {
            Some(Segment::Field(name)) => format!("{}: ", yaml::string(name)),
            Some(Segment::Item { .. }) => "- ".to_owned(),
            None => String::new(),
        };
        let item = depth.checked_sub(1).filter(|item| *item >= n_shared);
        let mark = item.and_then(|item| mark(&path[item..]));
        match (item, mark, edit) {
            (Some(item), Some(mark), Edit::Changed(before, after))
                if one_line(&head, before, after).is_some() =>
            {
                self.headings(path, n_shared, item);
                (here, note, head) = (indent(path, item), mark, format!("- {head}"));
            }
            _ => self.headings(path, n_shared, depth),
        }
        match (edit, shown) {
            (Edit::Added(_), Shown::Renamed(name)) => {
                let name = yaml::string(name);
                let text = format!("{}  # renamed from {name}", head.trim_end());
                self.push(Sign::Moved, here, &[text]);
            }
            (Edit::Added(value), _) => self.push(Sign::Added, here, &yaml::block(&head, value)),
            (Edit::Removed(value), _) => self.push(Sign::Removed, here, &yaml::block(&head, value)),
            (Edit::Changed(before, after), _) => self.changed(here, &head, &note, before, after),
            (Edit::Moved { .. }, _) => {}
        }
    }

    /// Writes the fields and items of a path from one depth to another.
    fn headings(&mut self, path: &[Segment<'_>], from: usize, to: usize) {
        let mut depth = from;
        while depth < to {
            let (here, next) = (indent(path, depth), path.get(depth + 1));
            let text = match (mark(&path[depth..]), next) {
                (Some(note), Some(field)) if !note.is_empty() && depth + 1 < to => {
                    depth += 1;
                    format!("- {}{note}", place(field))
                }
                (Some(note), _) if note.is_empty() => self::note(&path[depth]),
                _ => place(&path[depth]),
            };
            self.push(Sign::Context, here, &[text]);
            depth += 1;
        }
    }

    fn changed(&mut self, here: usize, head: &str, note: &str, before: &Value, after: &Value) {
        if let Some((old, new)) = one_line(head, before, after) {
            self.push(Sign::Removed, here, &[format!("{old}{note}")]);
            self.push(Sign::Added, here, &[new]);
            return;
        }
        let (Value::String(old), Value::String(new)) = (before, after) else {
            self.push(Sign::Removed, here, &yaml::block(head, before));
            self.push(Sign::Added, here, &yaml::block(head, after));
            return;
        };
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

/// Returns the lines of two values, if each has only one.
fn one_line(head: &str, before: &Value, after: &Value) -> Option<(String, String)> {
    if let (Value::String(old), Value::String(new)) = (before, after) {
        let is_long = |text: &str| text.trim_end().contains('\n');
        if is_long(old) || is_long(new) {
            return None;
        }
        let (old, new) = text::words(old, new);
        return Some((
            format!("{head}{}", yaml::string(&old)),
            format!("{head}{}", yaml::string(&new)),
        ));
    }
    let one = |value| <[String; 1]>::try_from(yaml::block(head, value)).ok().map(|[line]| line);
    Some((one(before)?, one(after)?))
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

/// Returns the comment after the first field of an item, if the line of the item may also show that field. The comment
/// is empty if the field is the key of the item, and has the index if the item has no key.
fn mark(path: &[Segment<'_>]) -> Option<String> {
    let fields = path.iter().skip(1).map_while(|segment| match segment {
        Segment::Field(name) => Some(*name),
        Segment::Item { .. } => None,
    });
    let Segment::Item { index, key } = path.first()? else { return None };
    let mut fields = fields.peekable();
    fields.peek()?;
    match key {
        Some((key, _)) => key.split('.').zip(fields).all(|(a, b)| a == b).then(String::new),
        None => Some(format!("  # item {index}")),
    }
}

/// Returns the line of a field or an item around a difference.
fn place(segment: &Segment<'_>) -> String {
    match segment {
        Segment::Field(name) => format!("{}:", yaml::string(name)),
        Segment::Item { key: Some((field, key)), .. } if yaml::is_short(key) => {
            format!("- {}: {}", yaml::string(field), yaml::flow(key))
        }
        Segment::Item { .. } => note(segment),
    }
}

/// Returns the line of an item with its key, or else its index, as a comment.
fn note(item: &Segment<'_>) -> String {
    match item {
        Segment::Item { key: Some((field, key)), .. } => {
            let mut key = yaml::flow(key);
            if key.len() > NOTE_MAX {
                key.truncate(key.floor_char_boundary(NOTE_MAX));
                key.push('…');
            }
            format!("- # {}: {key}", yaml::string(field))
        }
        Segment::Item { index, .. } => format!("- # item {index}"),
        Segment::Field(name) => yaml::string(name),
    }
}

/// Returns the line of an item that moved. The path of the next difference may go on inside it.
fn moved(path: &[Segment<'_>], shown: Shown<'_>, next: Option<&Difference<'_>>) -> String {
    let depth = path.len().saturating_sub(1);
    let inside = next.map(|next| &next.path.0[..]).filter(|inside| inside.starts_with(path));
    match shown {
        _ if inside.and_then(|inside| mark(&inside[depth..])).is_some() => "-".to_owned(),
        Shown::Item(value) if yaml::is_short(value) => format!("- {}", yaml::flow(value)),
        _ => path.last().map(place).unwrap_or_default(),
    }
}
