//! The scalars of YAML whose meaning depends on the reader.
//!
//! Envoy's loader reads scalars in its own way, before it knows the type of the field: `yes` is true, `0440` is octal,
//! and `1.20` is text. The reader of this crate follows YAML 1.2 of 2009. `import` reads as Envoy does. A manifest that
//! would mean something else to Envoy is refused.
//!
//! The reader keeps no scalar as it was written. A text with a scalar that may be ambiguous is therefore parsed again,
//! as a stream of events.

use std::{borrow::Cow, collections::BTreeSet, ops::Range};

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

use crate::{
    node::{EXACT_MAX, Node, shown},
    problem::Problem,
};

/// The first character of the key of an entry that Envoy ignores. Unicode reserves it for use inside a program.
const IGNORED: char = '\u{fdd0}';
/// The tag of such an entry.
const IGNORE: &str = "!ignore";

/// A scalar as its author wrote it.
struct Written<'t> {
    value: Cow<'t, str>,
    bytes: Range<usize>,
    position: (u32, u32),
    is_key: bool,
    /// Whether it is a key with an anchor, or an alias in place of a key. An alias has no value.
    is_shared_key: bool,
    is_plain: bool,
    /// The start of its tag.
    tag: Option<usize>,
}

impl Written<'_> {
    fn problem(&self, lines_before: u32, rule: String) -> Problem {
        let (line, column) = self.position;
        Problem { position: Some((lines_before + line, column)), rule, ..Problem::default() }
    }
}

/// Returns the scalars of a text, up to the first error of the parser.
fn scalars(text: &str) -> impl Iterator<Item = Written<'_>> {
    // Whether each open container is a map whose next part is a key. `None` is a list.
    let mut open: Vec<Option<bool>> = Vec::new();
    let events = Parser::new_from_str(text).map_while(Result::ok);
    events.filter_map(move |(event, span)| {
        if matches!(event, Event::MappingEnd | Event::SequenceEnd) {
            open.pop();
            return None;
        }
        let begins = matches!(
            event,
            Event::Scalar(..)
                | Event::Alias(..)
                | Event::MappingStart(..)
                | Event::SequenceStart(..)
        );
        let is_key = match open.last_mut() {
            Some(Some(is_key)) if begins => std::mem::replace(is_key, !*is_key),
            _ => false,
        };
        match event {
            Event::MappingStart(..) => open.push(Some(true)),
            Event::SequenceStart(..) => open.push(None),
            Event::Alias(..) if is_key => {
                return Some(Written {
                    value: Cow::Borrowed(""),
                    bytes: span.byte_range()?,
                    position: (to_u32(span.start.line()), to_u32(span.start.col() + 1)),
                    is_key,
                    is_shared_key: true,
                    is_plain: false,
                    tag: None,
                });
            }
            Event::Scalar(value, style, anchor, tag) => {
                let start = span.tag_start.unwrap_or(span.start);
                return Some(Written {
                    value,
                    bytes: span.byte_range()?,
                    position: (to_u32(span.start.line()), to_u32(span.start.col() + 1)),
                    is_key,
                    is_shared_key: is_key && anchor != 0,
                    is_plain: style == ScalarStyle::Plain,
                    tag: tag.and(start.byte_offset()),
                });
            }
            _ => {}
        }
        None
    })
}

fn to_u32(n: usize) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

/// The value that Envoy's loader reads in a plain scalar that is not null.
#[derive(Debug, PartialEq)]
enum Reading {
    Bool(bool),
    /// A whole number of 32 bits with its sign.
    Int(i64),
    Text(String),
}

impl Reading {
    fn of(plain: &str) -> Self {
        if let Some(value) = word(plain) {
            return Self::Bool(value);
        }
        match integer(plain) {
            Some(value) if i32::try_from(value).is_ok() => Self::Int(value),
            // A larger number becomes text in decimal digits.
            Some(value) => Self::Text(value.to_string()),
            None => Self::Text(plain.to_owned()),
        }
    }
}

/// Returns the value of a word for true or false: in lower case, in upper case, or with a capital letter.
fn word(plain: &str) -> Option<bool> {
    let lower = plain.to_ascii_lowercase();
    let value = match lower.as_str() {
        "true" | "yes" | "on" | "y" => true,
        "false" | "no" | "off" | "n" => false,
        _ => return None,
    };
    let rest = plain.get(1..)?;
    let is_upper = plain == lower.to_ascii_uppercase();
    (is_upper || rest == &lower[1..]).then_some(value)
}

/// Returns whether a text without quotes is true or false for Envoy alone.
fn is_doubtful_word(text: &str) -> bool {
    word(text).is_some() && !["true", "false"].iter().any(|clear| text.eq_ignore_ascii_case(clear))
}

/// Returns a whole number in decimal, octal (`0440`) or hexadecimal digits.
fn integer(plain: &str) -> Option<i64> {
    let (sign, digits) = match plain.strip_prefix(['-', '+']) {
        Some(digits) => (&plain[..1], digits),
        None => ("", plain),
    };
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_number.then(|| i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()).flatten()
}

fn is_null(plain: &str) -> bool {
    matches!(plain, "" | "~" | "null" | "Null" | "NULL")
}

/// Returns the text of a bootstrap with its scalars written so that this crate reads them as Envoy's loader does.
/// [`drop_ignored`] removes the entries that Envoy ignores.
///
/// # Errors
/// If a part would mean something else here: another tag than `!ignore`, or a merge key, which Envoy does not merge.
pub(crate) fn as_envoy_reads(text: &str) -> Result<String, Problem> {
    let (mut out, mut from, mut n_ignored) = (String::with_capacity(text.len()), 0, 0_usize);
    for scalar in scalars(text) {
        let new = match scalar.tag {
            _ if scalar.is_shared_key => return Err(scalar.problem(0, SHARED_KEY.to_owned())),
            Some(tag) if scalar.is_key && tag_text(text, tag) == IGNORE => {
                out.push_str(&text[from..tag]);
                from = scalar.bytes.start;
                n_ignored += 1;
                format!("\"{IGNORED}{n_ignored}\"")
            }
            Some(tag) => {
                let tag = tag_text(text, tag);
                let rule = if tag == "!" {
                    "Envoy reads a value with the tag ! as text; write the text in quotes"
                        .to_owned()
                } else {
                    let tag = shown(tag);
                    format!(
                        "Envoy ignores the tag {tag}; remove it, and put the value in quotes if it is text"
                    )
                };
                return Err(scalar.problem(0, rule));
            }
            None if scalar.value.starts_with(IGNORED) => {
                return Err(scalar.problem(0, "has the noncharacter U+FDD0".to_owned()));
            }
            None if scalar.is_key && scalar.is_plain && scalar.value == "<<" => {
                let rule =
                    "Envoy does not merge maps: it takes \"<<\" as a key; write the entries out";
                return Err(scalar.problem(0, rule.to_owned()));
            }
            None if scalar.is_key || !scalar.is_plain || is_null(&scalar.value) => continue,
            None => match Reading::of(&scalar.value) {
                Reading::Bool(value) => value.to_string(),
                Reading::Int(value) => value.to_string(),
                Reading::Text(value) => serde_json::Value::String(value).to_string(),
            },
        };
        out.push_str(&text[from..scalar.bytes.start]);
        out.push_str(&new);
        from = scalar.bytes.end;
    }
    out.push_str(&text[from..]);
    Ok(out)
}

/// Returns the tag that starts at an offset.
fn tag_text(text: &str, start: usize) -> &str {
    text[start..].split_whitespace().next().unwrap_or_default()
}

/// Removes the entries with a tag `!ignore`, which [`as_envoy_reads`] has marked.
pub(crate) fn drop_ignored(node: &mut Node) {
    match node {
        Node::Map(entries) => {
            entries.retain(|(key, _)| !key.starts_with(IGNORED));
            entries.iter_mut().for_each(|(_, value)| drop_ignored(value));
        }
        Node::List(items) => items.iter_mut().for_each(drop_ignored),
        _ => {}
    }
}

/// The rule that a shared key breaks. Envoy reads the key as text, and the other place by its type.
const SHARED_KEY: &str = "a key with an anchor, or an alias in place of a key, has different meanings for readers of \
                          YAML; write the text out in both places";

/// Returns the problem of the first key that has an anchor or is an alias.
pub(crate) fn shared_key(text: &str, lines_before: u32) -> Option<Problem> {
    if !may_have_anchor(text) {
        return None;
    }
    let shared = scalars(text).find(|scalar| scalar.is_shared_key)?;
    Some(shared.problem(lines_before, SHARED_KEY.to_owned()))
}

/// Returns whether a text may have an anchor.
fn may_have_anchor(text: &str) -> bool {
    let mut before = b' ';
    text.as_bytes().iter().any(|byte| {
        let begins = before.is_ascii_whitespace() || b"[{,:-?".contains(&before);
        before = *byte;
        begins && *byte == b'&'
    })
}

/// Returns the problem of the first number in a text that readers of YAML interpret differently, in any field.
/// The number is not shown, because it may be a secret.
pub(crate) fn ambiguous_number(text: &str, lines_before: u32) -> Option<Problem> {
    if !may_have_ambiguous_number(text) {
        return None;
    }
    let plain = |scalar: &Written<'_>| scalar.is_plain && !scalar.is_key && scalar.tag.is_none();
    scalars(text).filter(plain).find_map(|scalar| {
        let rule = ambiguity(scalar.value.trim_start_matches(['-', '+']))?;
        Some(scalar.problem(lines_before, rule.to_owned()))
    })
}

/// Returns what is ambiguous about a number without its sign.
fn ambiguity(digits: &str) -> Option<&'static str> {
    let are = |digits: &str, radix| {
        let mut digits = digits.chars().filter(|c| *c != '_').peekable();
        digits.peek().is_some() && digits.all(|c| c.is_digit(radix))
    };
    let (prefix, rest) = digits.split_at_checked(2)?;
    let has_prefix = match prefix {
        "0o" | "0O" => are(rest, 8),
        "0b" | "0B" => are(rest, 2),
        _ => {
            digits.contains('_')
                && digits.starts_with(|c: char| c.is_ascii_digit())
                && are(digits, 10)
        }
    };
    if has_prefix {
        return Some(
            "a number in this form is text for Envoy; write decimal digits, or put it in quotes if it is text",
        );
    }
    (digits.starts_with('0') && are(digits, 10)).then_some(
        "a number with a leading zero is octal for Envoy, and decimal for others; write decimal digits without the \
         zero, or put it in quotes if it is text",
    )
}

/// Returns whether a text may have a number with a leading zero, or with `_` between digits.
fn may_have_ambiguous_number(text: &str) -> bool {
    let mut before = b' ';
    text.as_bytes().windows(2).any(|pair| {
        let begins = !before.is_ascii_alphanumeric() && before != b'.';
        before = pair[0];
        let is_prefix = pair[1].is_ascii_digit() || b"oObB".contains(&pair[1]);
        begins && pair[0] == b'0' && is_prefix || pair[0].is_ascii_digit() && pair[1] == b'_'
    })
}

/// The values in `Struct` fields of a document that may mean something else to Envoy, depending on how they are
/// written.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    /// The bits of numbers with a point or an exponent.
    numbers: BTreeSet<u64>,
    words: BTreeSet<String>,
}

impl Doubts {
    /// Notes a value of a `Struct`.
    pub(crate) fn note(&mut self, node: &Node) {
        match node {
            Node::Float(value) => drop(self.numbers.insert(value.to_bits())),
            Node::Text(text) if is_doubtful_word(text) => drop(self.words.insert(text.clone())),
            _ => {}
        }
    }

    /// Notes every value of the metadata with which an assignment compares that of a node.
    pub(crate) fn note_assignment(&mut self, assignment: &Node) {
        let metadata = assignment.get("match").and_then(|node| node.get("metadata"));
        let mut open = Vec::from_iter(metadata);
        while let Some(node) = open.pop() {
            match node {
                Node::Map(entries) => open.extend(entries.iter().map(|(_, value)| value)),
                Node::List(items) => open.extend(items),
                value => self.note(value),
            }
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.numbers.extend(other.numbers);
        self.words.extend(other.words);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.words.is_empty()
    }

    /// Returns the problem of the first such value that is written without quotes. The value is the same wherever it
    /// occurs, so one outside of a `Struct` is refused too if it is written alike.
    pub(crate) fn problem(&self, text: &str, lines_before: u32) -> Option<Problem> {
        let plain =
            |scalar: &Written<'_>| scalar.is_plain && !scalar.is_key && scalar.tag.is_none();
        scalars(text).filter(plain).find_map(|scalar| {
            let written = &*scalar.value;
            if self.words.contains(written) {
                let value = word(written)?;
                let rule = format!("{written} is {value} for Envoy, and text here; write {value}, or {written:?} in quotes");
                return Some(scalar.problem(lines_before, rule));
            }
            let value: f64 = written.parse().ok()?;
            let is_doubtful = self.numbers.contains(&value.to_bits()) && !is_canonical(written, value);
            // The number is not shown, because it may be a secret.
            let rule = "the value is text for Envoy, and a number here; put it in quotes if it is text, or write \
                        the number in its shortest form (1.2 for 1.20)";
            is_doubtful.then(|| scalar.problem(lines_before, rule.to_owned()))
        })
    }
}

/// Returns whether a number is written as Chancery writes it. It writes whole numbers without a point, so that none of
/// them gets here, except large ones and minus zero.
fn is_canonical(written: &str, value: f64) -> bool {
    let is_small_whole = value.fract() == 0.0 && value != 0.0 && value.abs() <= EXACT_MAX;
    let as_yaml = || serde_saphyr::to_string(&value).is_ok_and(|yaml| yaml.trim_end() == written);
    let as_json =
        || serde_json::Number::from_f64(value).is_some_and(|json| json.to_string() == written);
    !is_small_whole && written != "0.0" && (as_yaml() || as_json())
}
