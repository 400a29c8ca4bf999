//! Finds quoted resources and key material in a rejection text by their form alone.

use super::readings::{Byte, numbers, span, unescaped};

/// The minimum length of a run of base64 letters of all kinds that counts as key material.
const BASE64_RUN_MIN: usize = 40;
/// The minimum length of a run that starts like a DER sequence or a JSON object, or follows the scheme
/// of an `Authorization` header.
const MARKED_RUN_MIN: usize = 16;
/// The minimum length of hexadecimal or decimal bytes that count as key material. A UUID is shorter. A
/// line of a dump with its offset is not.
const NUMBERS_MIN: usize = 20;
/// The maximum length of the text column behind a line of a dump.
const DUMP_TEXT_MAX: usize = 24;

/// The positions of a pattern in a text, for ascending positions. All calls together read the text once.
struct Occurrences<'a> {
    text: &'a str,
    pattern: &'static str,
    next: Option<usize>,
}

impl<'a> Occurrences<'a> {
    fn new(text: &'a str, pattern: &'static str) -> Self {
        Self { text, pattern, next: text.find(pattern) }
    }

    /// Returns the first position from `at` on. `at` is at least that of the previous call.
    fn at_or_after(&mut self, at: usize) -> Option<usize> {
        if self.next.is_some_and(|next| next < at) {
            self.next = self.text[at..].find(self.pattern).map(|next| at + next);
        }
        self.next
    }
}

/// Hides quoted resources and key material. The cost is linear in the length of the text.
pub(super) fn hide(text: &str, hidden: &mut [bool]) {
    let mut messages = Messages::new(text);
    let mut at = 0;
    while let Some(start) = messages.start(at) {
        // Some releases of Envoy write the cause after the resource.
        let end = messages.checked.at_or_after(start).unwrap_or(text.len());
        hidden[start..end].fill(true);
        at = end;
    }
    hide_keys(text, hidden);
}

/// Hides key material.
pub(super) fn hide_keys(text: &str, hidden: &mut [bool]) {
    hide_pem(text, hidden);
    let unescaped = unescaped(text.as_bytes());
    hide_base64(text, &unescaped, hidden);
    for run in numbers(&unescaped).iter().filter(|run| run.len() >= NUMBERS_MIN) {
        let span = span(run);
        let rest = &text.as_bytes()[span.end..];
        let column = if rest.starts_with(b"  ") {
            let column = rest.iter().take(DUMP_TEXT_MAX);
            column.take_while(|byte| !matches!(byte, b'\n' | b'\\')).count()
        } else {
            0
        };
        hidden[span.start..span.end + column].fill(true);
    }
    // A DER sequence with a long length, in escapes. Valid UTF-8 never has these bytes.
    let is_der = |pair: &[Byte]| pair[0].value == 0x30 && matches!(pair[1].value, 0x81 | 0x82);
    if let Some(at) = unescaped.windows(2).position(is_der) {
        hidden[span(&unescaped[at..])].fill(true);
    }
}

/// Hides PEM blocks. A truncated block extends to the end or from the beginning of the text.
fn hide_pem(text: &str, hidden: &mut [bool]) {
    const BEGIN: &str = "-----BEGIN";
    const END: &str = "-----END";
    let mut begins = Occurrences::new(text, BEGIN);
    let mut from = 0;
    loop {
        let rest = &text[from..];
        let end = rest.find(END).map(|at| at + END.len());
        let begin = begins.at_or_after(from).map(|at| at - from);
        let start = match (begin, end) {
            (None, None) => return,
            (Some(begin), end) if end.is_none_or(|end| begin < end) => begin,
            _ => 0,
        };
        let end = end.map_or(rest.len(), |end| {
            rest[end..].find("-----").map_or(rest.len(), |at| end + at + 5)
        });
        hidden[from + start..from + end].fill(true);
        from += end;
    }
}

/// Hides keys and tokens in base64.
fn hide_base64(text: &str, unescaped: &[Byte], hidden: &mut [bool]) {
    let is_letter =
        |byte: &Byte| byte.value.is_ascii_alphanumeric() || b"+/=-_".contains(&byte.value);
    let is_line_end = |gap: &[Byte]| {
        gap.iter().all(|byte| byte.value.is_ascii_whitespace())
            && gap.iter().any(|byte| byte.value == b'\n')
    };
    let (mut is_token, mut is_key) = (false, false);
    let mut end = 0;
    while end < unescaped.len() {
        let gap = unescaped[end..].iter().take_while(|byte| !is_letter(byte)).count();
        let start = end + gap;
        let gap = &unescaped[end..start];
        end = start + unescaped[start..].iter().take_while(|byte| is_letter(byte)).count();
        let run = &unescaped[start..end];
        let has = |of: fn(&u8) -> bool| run.iter().any(|byte| of(&byte.value));
        let is_random = || {
            has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
        };
        let starts_with = |mark: &[u8; 3]| {
            run.len() >= MARKED_RUN_MIN && run.iter().zip(mark).all(|(byte, it)| byte.value == *it)
        };
        let before = &text[..span(run).start];
        let follows_scheme = run.len() >= MARKED_RUN_MIN
            && ["earer ", "asic "].iter().any(|scheme| before.ends_with(scheme));
        // A JSON web token has dots between its parts.
        is_token = starts_with(b"eyJ") || is_token && matches!(gap, [dot] if dot.value == b'.');
        is_key = starts_with(b"MII")
            || run.len() >= BASE64_RUN_MIN && is_random()
            || is_key && is_line_end(gap);
        if is_token || is_key || follows_scheme {
            hidden[span(run)].fill(true);
        }
    }
}

/// The text that Envoy writes before the violated rule of its proto files.
const CHECKED: &str = "Proto constraint validation failed (";
/// The text between the violated rule and the message.
const RULE_END: &str = "): ";

/// The quoted messages of a text, in ascending order.
struct Messages<'a> {
    text: &'a str,
    /// The marks of Envoy and protobuf.
    marked: Occurrences<'a>,
    checked: Occurrences<'a>,
    /// The ends of violated rules.
    rule_ends: Occurrences<'a>,
    /// The first position, from the last call on, at which a message begins by its form.
    formed: Option<usize>,
}

impl<'a> Messages<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            marked: Occurrences::new(text, "goo.gle/debug"),
            checked: Occurrences::new(text, CHECKED),
            rule_ends: Occurrences::new(text, RULE_END),
            formed: formed_from(text, 0),
        }
    }

    /// Returns the start of the first message from `at` on, which is at least that of the previous call. Text after
    /// the message is indistinguishable from it.
    fn start(&mut self, at: usize) -> Option<usize> {
        let marked = self.marked.at_or_after(at);
        let checked = self.checked.at_or_after(at).and_then(|at| {
            let end = self.rule_ends.at_or_after(at + CHECKED.len())? + RULE_END.len();
            (end < self.text.len()).then_some(end)
        });
        if self.formed.is_some_and(|formed| formed < at) {
            self.formed = formed_from(self.text, at);
        }
        marked.into_iter().chain(checked).chain(self.formed).min()
    }
}

/// Returns the first position from `from` on at which a message begins by its form.
fn formed_from(text: &str, from: usize) -> Option<usize> {
    (from..text.len()).find(|at| begins_message(text.as_bytes(), *at))
}

/// Returns whether the rule that a required oneof violates starts at `at`: `field: "name", reason: `. It resembles a
/// message, but no message has a comma there.
fn begins_violation(text: &[u8], at: usize) -> bool {
    let Some(rest) = text[at..].strip_prefix(b"field: \"") else { return false };
    let is_name = |byte: &&u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || **byte == b'_';
    let name = rest.iter().take_while(is_name).count();
    rest[name..].starts_with(b"\", reason: ")
}

/// Returns whether a message in text format, JSON or debug output starts at `at`: `name {`, `name: {`,
/// `name: "`, `{"name"`, `{name:`, `&{Name:`.
fn begins_message(text: &[u8], at: usize) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let skip = |mut at: usize| {
        while text.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        at
    };
    let word_end = |start: usize| {
        let len = text[start..].iter().take_while(|byte| is_word(byte)).count();
        (len > 0).then_some(start + len)
    };
    let is_open = |at: usize| {
        let inner = skip(at + 1);
        match text.get(inner) {
            Some(b'"' | b'\'' | b'\\' | b'[') => true,
            _ => word_end(inner).is_some_and(|end| {
                matches!(text.get(skip(end)), Some(b':' | b'{')) && !text[inner].is_ascii_digit()
            }),
        }
    };
    if text[at] == b'{' {
        return is_open(at);
    }
    // Checked before the end of the word is searched for, so that each word is read once.
    let begins_word = text[at].is_ascii_alphabetic() && (at == 0 || !is_word(&text[at - 1]));
    if !begins_word {
        return false;
    }
    let Some(end) = word_end(at) else { return false };
    if begins_violation(text, at) {
        return false;
    }
    let next = skip(end);
    match text.get(next) {
        Some(b'{') => is_open(next),
        Some(b':') => match text.get(skip(next + 1)) {
            Some(b'"') => true,
            Some(b'\\') => text.get(skip(next + 1) + 1) == Some(&b'"'),
            Some(b'{') => is_open(skip(next + 1)),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests;
