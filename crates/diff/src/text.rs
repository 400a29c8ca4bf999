//! The difference between two long texts, by their words.

use similar::{Algorithm, ChangeTag, DiffOp, TextDiff, capture_diff_slices};

/// The maximum length of a text that is shown in full, in bytes.
const FULL_MAX: usize = 60;
/// The maximum number of differing words or lines that are compared with each other.
const WORDS_MAX: usize = 4000;
/// The number of equal bytes that are shown around a difference.
const CONTEXT: usize = 12;

/// Returns two texts without the words that are equal in both, if they are long. `…` stands for what is left out.
#[must_use]
pub fn words(before: &str, after: &str) -> (String, String) {
    if before.len().max(after.len()) <= FULL_MAX {
        return (before.to_owned(), after.to_owned());
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

/// A line of a text that differs, or beside one.
pub(crate) type TextLine<'a> = (ChangeTag, &'a str);

/// Returns the lines that differ, each with one equal line around it. `None` stands for lines that are left out.
pub(crate) fn lines<'a>(before: &'a str, after: &'a str) -> Vec<Option<TextLine<'a>>> {
    let compared = TextDiff::configure().diff_lines(before, after);
    let mut shown = Vec::new();
    for (at, group) in compared.grouped_ops(1).iter().enumerate() {
        if at > 0 {
            shown.push(None);
        }
        for change in group.iter().flat_map(|op| compared.iter_changes(op)) {
            shown.push(Some((change.tag(), change.value().trim_end_matches('\n'))));
        }
    }
    shown
}

/// Returns the indexes of the lines that two texts have in common, in both.
#[must_use]
pub fn common_lines(before: &[String], after: &[String]) -> Vec<(usize, usize)> {
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
