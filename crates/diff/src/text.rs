//! The difference between two long texts, by their words.

use std::hash::Hash;

use similar::{Algorithm, ChangeTag, DiffOp, capture_diff_slices};

/// The maximum length of a text that is shown in full, in bytes.
const FULL_MAX: usize = 60;
/// The maximum number of differing words or lines that are compared with each other.
const WORDS_MAX: usize = 4000;
/// The minimum length of a text in Base64 that is not compared by words, and the number of its characters that are shown
/// from the first one that differs.
const ENCODED_MIN: usize = 120;
const ENCODED_SHOWN: usize = 24;
/// The number of equal bytes that are shown around a difference.
const CONTEXT: usize = 12;

/// Returns two texts without the words that are equal in both, if they are long. `…` stands for what is left out.
#[must_use]
pub fn words(before: &str, after: &str) -> (String, String) {
    if before.len().max(after.len()) <= FULL_MAX {
        return (before.to_owned(), after.to_owned());
    }
    if is_encoded(before) && is_encoded(after) {
        return encoded(before, after);
    }
    let (old, new) = (split(before), split(after));
    let prefix = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[prefix..], &new[prefix..]);
    let suffix = old_rest.iter().rev().zip(new_rest.iter().rev());
    let suffix = suffix.take_while(|(old, new)| old == new).count();
    let old_middle = &old_rest[..old_rest.len() - suffix];
    let new_middle = &new_rest[..new_rest.len() - suffix];
    let ops = if old_middle.len() + new_middle.len() <= WORDS_MAX {
        capture_diff_slices(Algorithm::Myers, old_middle, new_middle)
    } else {
        let (old_len, new_len) = (old_middle.len(), new_middle.len());
        vec![DiffOp::Replace { old_index: 0, old_len, new_index: 0, new_len }]
    };
    let head = old[..prefix].concat();
    let tail = old_rest[old_rest.len() - suffix..].concat();
    let (mut shown_old, mut shown_new) = (last(&head), last(&head));
    for (at, op) in ops.iter().enumerate() {
        let (old_range, new_range) = (op.old_range(), op.new_range());
        if let DiffOp::Equal { .. } = op {
            let equal = old_middle[old_range].concat();
            let kept = if at == 0 { last(&equal) } else { between(&equal) };
            shown_old.push_str(&kept);
            shown_new.push_str(&kept);
        } else {
            shown_old.push_str(&old_middle[old_range].concat());
            shown_new.push_str(&new_middle[new_range].concat());
        }
    }
    let tail = first(&tail);
    (shown_old + &tail, shown_new + &tail)
}

/// Returns whether a text is long Base64, which has no words.
fn is_encoded(text: &str) -> bool {
    let has = |is: fn(&u8) -> bool| text.as_bytes().iter().any(is);
    text.len() >= ENCODED_MIN
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte))
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_digit)
}

/// Returns the first differing characters of two ASCII texts that differ.
fn encoded(before: &str, after: &str) -> (String, String) {
    let same = before.bytes().zip(after.bytes()).take_while(|(old, new)| old == new).count();
    let head = last(&before[..same]);
    let shown = |text: &str| {
        let rest = &text[same..];
        let end = if rest.len() > ENCODED_SHOWN { "…" } else { "" };
        format!("{head}{}{end}", &rest[..rest.len().min(ENCODED_SHOWN)])
    };
    (shown(before), shown(after))
}

/// A line of a text that differs, or beside one.
pub(crate) type TextLine<'a> = (ChangeTag, &'a str);

/// Returns the lines that differ, each with one equal line around it. `None` stands for lines that are left out.
pub(crate) fn lines<'a>(before: &'a str, after: &'a str) -> Vec<Option<TextLine<'a>>> {
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    let (mut all, mut next_old, mut next_new) = (Vec::new(), 0, 0);
    let ends = common_lines(&old, &new).into_iter().chain([(old.len(), new.len())]);
    for (end_old, end_new) in ends {
        all.extend(old[next_old..end_old].iter().map(|line| (ChangeTag::Delete, *line)));
        all.extend(new[next_new..end_new].iter().map(|line| (ChangeTag::Insert, *line)));
        all.extend(new.get(end_new).map(|line| (ChangeTag::Equal, *line)));
        (next_old, next_new) = (end_old + 1, end_new + 1);
    }
    let is_change = |at: usize| all.get(at).is_some_and(|(tag, _)| *tag != ChangeTag::Equal);
    let (mut shown, mut next) = (Vec::new(), 0);
    for (at, (tag, line)) in all.iter().enumerate() {
        if is_change(at) || is_change(at + 1) || at > 0 && is_change(at - 1) {
            if next < at && !shown.is_empty() {
                shown.push(None);
            }
            shown.push(Some((*tag, line.trim_end_matches('\n'))));
            next = at + 1;
        }
    }
    shown
}

/// Returns the indexes of the lines that two texts have in common, in both.
#[must_use]
pub fn common_lines<T: Eq + Hash + Ord>(before: &[T], after: &[T]) -> Vec<(usize, usize)> {
    let (old, new) = (before.len(), after.len());
    let prefix = before.iter().zip(after).take_while(|(old, new)| old == new).count();
    let rest = before[prefix..].iter().rev().zip(after[prefix..].iter().rev());
    let suffix = rest.take_while(|(old, new)| old == new).count();
    let (old_middle, new_middle) = (&before[prefix..old - suffix], &after[prefix..new - suffix]);
    let mut common: Vec<(usize, usize)> = (0..prefix).map(|at| (at, at)).collect();
    if old_middle.len() + new_middle.len() <= WORDS_MAX {
        for op in capture_diff_slices(Algorithm::Myers, old_middle, new_middle) {
            if let DiffOp::Equal { old_index, new_index, len } = op {
                let (old, new) = (prefix + old_index, prefix + new_index);
                common.extend((0..len).map(|at| (old + at, new + at)));
            }
        }
    }
    common.extend((0..suffix).rev().map(|at| (old - 1 - at, new - 1 - at)));
    common
}

/// Splits a text into words, and the characters between words.
fn split(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut start = 0;
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut before: Option<char> = None;
    for (at, c) in text.char_indices() {
        if before.is_some_and(|before| !(is_of_word(before) && is_of_word(c))) {
            words.push(&text[start..at]);
            start = at;
        }
        before = Some(c);
    }
    if start < text.len() {
        words.push(&text[start..]);
    }
    words
}

/// Returns the end of a text.
fn last(text: &str) -> String {
    if text.len() <= CONTEXT + "…".len() {
        return text.to_owned();
    }
    format!("…{}", &text[text.ceil_char_boundary(text.len() - CONTEXT)..])
}

/// Returns the start of a text.
fn first(text: &str) -> String {
    if text.len() <= CONTEXT + "…".len() {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(CONTEXT)])
}

/// Returns the start and the end of a text.
fn between(text: &str) -> String {
    if text.len() <= 2 * CONTEXT + "…".len() {
        return text.to_owned();
    }
    let end = text.ceil_char_boundary(text.len() - CONTEXT);
    format!("{}…{}", &text[..text.floor_char_boundary(CONTEXT)], &text[end..])
}
