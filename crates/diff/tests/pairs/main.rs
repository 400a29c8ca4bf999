//! Differences of manifests, compared with the shortest readable ones, which people wrote by hand before the tool ran.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its pairs fails")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use chancery_diff::{Difference, Edit, Line, Segment, Sign, diff, unified};
use serde_json::Value;

/// The maximum length of the tool's difference, in percent of the length of the handwritten difference.
const LONGER_MAX: usize = 120;
/// The length of a line beside its characters.
const LINE_LENGTH: usize = 20;

/// A pair of manifests.
struct Pair {
    title: String,
    before: Value,
    after: Value,
    shortest: Vec<Line>,
}

/// The issue: "for each the shortest readable difference is written down by hand first, and the tool's is no longer
/// than 1.2 times that." Two lengths count: the number of lines with a sign, and the length of all lines with the fields
/// and items around them. The latter is the number of characters without indentation, plus [`LINE_LENGTH`] for
/// each line. A reader prefers one short line to two lines, but two short lines to a very long line.
#[test]
fn differences_are_at_most_a_fifth_longer_than_the_shortest_readable_ones() {
    let pairs = pairs();
    assert!(pairs.len() >= 60, "{} pairs", pairs.len());
    let mut failures = String::new();
    for Pair { title, before, after, shortest } in &pairs {
        let shown = unified(&diff(before, after), usize::MAX).lines;
        let (tool, hand) = (lengths(&shown), lengths(shortest));
        if tool.iter().zip(hand).any(|(tool, hand)| tool * 100 > hand * LONGER_MAX) {
            let text: String = shown.iter().map(|line| format!("{line}\n")).collect();
            failures += &format!("{title}: {tool:?} instead of {hand:?}\n{text}");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// A difference that leaves something out is shorter, but wrong.
#[test]
fn differences_turn_each_manifest_into_the_next_one() {
    for (title, before, after) in combined(&pairs()) {
        let differences = diff(before, after);
        let applied = apply(before, &differences.iter().collect::<Vec<_>>(), 0);
        assert_eq!(&applied, after, "{title}");
    }
}

/// The lines of each side are YAML, and parts of the manifest of this side.
#[test]
fn lines_are_parts_of_both_manifests() {
    let pairs = pairs();
    for Pair { title, before, after, shortest } in &pairs {
        check_sides(&format!("{title}, by hand"), shortest, before, after);
    }
    for (title, before, after) in combined(&pairs) {
        let shown = unified(&diff(before, after), usize::MAX).lines;
        check_sides(&title, &shown, before, after);
    }
}

/// Returns the manifests of each pair, and manifests of different pairs, which have less in common.
fn combined(pairs: &[Pair]) -> Vec<(String, &Value, &Value)> {
    let both = |distance: usize| {
        let others = pairs.iter().cycle().skip(distance);
        pairs.iter().zip(others).map(move |(one, other)| {
            (format!("{} → {}", one.title, other.title), &one.before, &other.after)
        })
    };
    [0, 1, 2, 3, 31].into_iter().flat_map(both).collect()
}

fn check_sides(title: &str, lines: &[Line], before: &Value, after: &Value) {
    for (sign, whole) in [(Sign::Removed, before), (Sign::Added, after)] {
        let part = side(lines, sign);
        let read: Option<Value> = serde_saphyr::from_str(&part)
            .unwrap_or_else(|error| panic!("{title}: {error}\n{part}"));
        assert!(read.is_none_or(|read| is_part(&read, whole)), "{title}:\n{part}");
    }
}

/// Returns the number of lines with a sign, and the length of all lines.
fn lengths(lines: &[Line]) -> [usize; 2] {
    let signed = lines.iter().filter(|line| line.sign != Sign::Context);
    let all = lines.iter().map(|line| line.text.trim().chars().count() + LINE_LENGTH);
    [signed.count(), all.sum()]
}

/// Reads the pairs: each is a title after `===`, a manifest, another one after `--- after`, and the difference.
fn pairs() -> Vec<Pair> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pairs");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_text = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "txt");
    let mut files: Vec<_> = files.filter(is_text).collect();
    files.sort();
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
    let pairs = texts.flat_map(|text| {
        let pairs = text.split("=== ").filter(|pair| !pair.is_empty());
        pairs.map(read_pair).collect::<Vec<_>>()
    });
    pairs.collect()
}

fn read_pair(text: &str) -> Pair {
    let (title, rest) = text.split_once('\n').unwrap();
    let (before, rest) = rest.split_once("--- after\n").expect(title);
    let (after, shortest) = rest.split_once("--- shortest\n").expect(title);
    let read = |yaml: &str| -> Value {
        let value: Value =
            serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{title}: {error}\n{yaml}"));
        expand(&value, 0).remove(0)
    };
    let line = |line: &str| {
        let sign = match line.chars().next() {
            Some('-') => Sign::Removed,
            Some('+') => Sign::Added,
            Some('~') => Sign::Moved,
            _ => Sign::Context,
        };
        Line { sign, text: line[2..].to_owned() }
    };
    Pair {
        title: title.to_owned(),
        before: read(before),
        after: read(after),
        shortest: shortest.lines().filter(|line| !line.is_empty()).map(line).collect(),
    }
}

/// Expands `{$each: [from, to], $of: item}` to items, and `{$text: [texts]}` to one text. In an item, `%n` is its number,
/// and `%h` and `%l` are the number divided by 250 and the rest.
fn expand(value: &Value, n: u64) -> Vec<Value> {
    match value {
        Value::Object(fields) if fields.contains_key("$each") => {
            let bound = |at: usize| fields["$each"][at].as_u64().unwrap();
            (bound(0)..bound(1)).flat_map(|n| expand(&fields["$of"], n)).collect()
        }
        Value::Object(fields) if fields.contains_key("$text") => {
            let texts = fields["$text"].as_array().unwrap().iter().flat_map(|text| expand(text, n));
            let text: String = texts.map(|text| text.as_str().unwrap().to_owned()).collect();
            vec![Value::from(text)]
        }
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| (name.clone(), expand(value, n).remove(0)));
            vec![Value::Object(fields.collect())]
        }
        Value::Array(items) => vec![items.iter().flat_map(|item| expand(item, n)).collect()],
        Value::String(text) => {
            let numbers = [("%n", n), ("%h", n / 250), ("%l", n % 250)];
            let expanded = numbers
                .iter()
                .fold(text.clone(), |text, (mark, n)| text.replace(mark, &n.to_string()));
            vec![Value::from(expanded)]
        }
        other => vec![other.clone()],
    }
}

/// Applies differences, whose paths begin with `depth` segments of this value, to it.
fn apply(value: &Value, differences: &[&Difference<'_>], depth: usize) -> Value {
    let inside = |difference: &&&Difference<'_>| difference.path.0.len() > depth;
    if let Some(whole) = differences.iter().find(|difference| !inside(difference)) {
        let Edit::Changed(old, new) = whole.edit else { panic!("{whole:?} at a value") };
        assert_eq!((old, differences.len()), (value, 1));
        return new.clone();
    }
    match value {
        _ if differences.is_empty() => value.clone(),
        Value::Object(fields) => {
            let mut fields = fields.clone();
            let mut by_name: BTreeMap<&str, Vec<&Difference<'_>>> = BTreeMap::new();
            for difference in differences {
                let Segment::Field(name) = difference.path.0[depth] else { panic!("not a field") };
                by_name.entry(name).or_default().push(difference);
            }
            for (name, inside) in by_name {
                let is_here = inside[0].path.0.len() == depth + 1;
                match inside[0].edit {
                    Edit::Added(new) if is_here => {
                        assert_eq!(fields.insert(name.to_owned(), new.clone()), None);
                    }
                    Edit::Removed(old) if is_here => {
                        assert_eq!(fields.remove(name).as_ref(), Some(old));
                    }
                    _ => {
                        let changed = apply(&fields[name], &inside, depth + 1);
                        fields.insert(name.to_owned(), changed);
                    }
                }
            }
            Value::Object(fields)
        }
        Value::Array(items) => Value::Array(apply_to_items(items, differences, depth)),
        other => panic!("{other} has no parts"),
    }
}

fn apply_to_items(items: &[Value], differences: &[&Difference<'_>], depth: usize) -> Vec<Value> {
    let mut left: Vec<Option<&Value>> = items.iter().map(Some).collect();
    let mut placed: BTreeMap<usize, Value> = BTreeMap::new();
    let mut inside: BTreeMap<usize, Vec<&Difference<'_>>> = BTreeMap::new();
    for difference in differences {
        let Segment::Item { index, .. } = difference.path.0[depth] else { panic!("not an item") };
        let is_here = difference.path.0.len() == depth + 1;
        match difference.edit {
            Edit::Removed(old) if is_here => assert_eq!(left[index].take(), Some(old)),
            Edit::Added(new) if is_here => assert_eq!(placed.insert(index, new.clone()), None),
            Edit::Moved { from, to } if is_here => {
                let item = left[from].take().expect("no item moves twice");
                assert_eq!((placed.insert(to, item.clone()), to), (None, index));
            }
            _ => inside.entry(index).or_default().push(difference),
        }
    }
    let mut left = left.into_iter().flatten();
    let mut result: Vec<Value> = Vec::new();
    while let Some(item) = placed.remove(&result.len()).or_else(|| left.next().cloned()) {
        let inside = inside.remove(&result.len()).unwrap_or_default();
        result.push(apply(&item, &inside, depth + 1));
    }
    assert!(placed.is_empty() && inside.is_empty(), "{placed:?} {inside:?}");
    result
}

/// Returns the lines of one side: those of its sign, and those of both sides.
fn side(lines: &[Line], of: Sign) -> String {
    let shown = lines.iter().filter(|line| [of, Sign::Context, Sign::Moved].contains(&line.sign));
    let shown = shown.map(|line| match line.text.split_once(":  # renamed from ") {
        Some((name, old)) if of == Sign::Removed => {
            format!("{:indent$}{old}:\n", "", indent = name.len() - name.trim_start().len())
        }
        _ => format!("{}\n", line.text),
    });
    shown.collect()
}

/// Returns whether a value is part of another one: `null` is part of each value, and `…` stands for any text.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Null, _) => true,
        (Value::Object(fields), whole) => fields.iter().all(|(name, part)| {
            whole
                .get(name)
                .or_else(|| whole.pointer(&format!("/{}", name.replace('.', "/"))))
                .is_some_and(|whole| {
                    is_part(part, whole) || part.as_str().is_some_and(|part| is_socket(part, whole))
                })
        }),
        (Value::Array(parts), Value::Array(items)) => {
            let mut next = 0;
            parts.iter().all(|part| {
                let from_next = (next..items.len()).chain(0..next);
                let found = from_next.into_iter().find(|at| is_part(part, &items[*at]));
                next = found.map_or(0, |at| at + 1);
                found.is_some()
            })
        }
        (Value::String(part), Value::String(whole)) => {
            let mut rest = whole.as_str();
            part.split('…')
                .flat_map(|part| part.split('\n'))
                .all(|part| rest.find(part).map(|at| rest = &rest[at + part.len()..]).is_some())
        }
        _ => part == whole,
    }
}

/// Returns whether a text is the IP address and port of a socket address.
fn is_socket(text: &str, address: &Value) -> bool {
    let socket = &address["socket_address"];
    text == format!("{}:{}", socket["address"].as_str().unwrap_or_default(), socket["port_value"])
}
