//! Rejection texts without secrets.
//!
//! Clients quote what they reject: Envoy's NACK text holds the whole resource as text, private key
//! included. A text is cleaned before anything keeps it: session state, logs, metrics, the admin API.
//!
//! Two defences, each of which is enough for the texts of known clients:
//! - Quoted resources (text format, JSON, Rust and Go debug output), PEM blocks and long base64 runs are
//!   recognized by their form and removed.
//! - The values of sensitive fields of the rejected response are searched for and removed: every run of
//!   8 bytes of a value, raw, escaped or in base64, across line breaks.
//!
//! Invariant: a text is not kept if its response is unknown or too large to search.

use std::{collections::HashMap, fmt, ops::Range, sync::Arc};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use chancery_model::TypeUrl;
use chancery_protocol::{ErrorDetail, Request, Session};
use chancery_view::Resources;

/// The replacement for a removed part.
const MARK: &str = "[redacted]";
/// The length of a run that is removed wherever it is found.
const RUN_BYTES: usize = 8;
/// The minimum length of such a run without its escapes and white space.
const PLAIN_RUN_BYTES: usize = 5;
/// The largest response that is searched for secrets, in bytes of its bodies: about 10 ms of work.
const BODIES_BYTES_MAX: usize = 4 << 20;
/// The length from which a run of base64 letters counts as key material.
const BASE64_RUN_MIN: usize = 40;
/// The length of a visible piece between two removed ones that is removed with them.
const GAP_BYTES_MAX: usize = 3;

/// Reports the values of the sensitive fields of a body.
type Find = dyn Fn(&TypeUrl, &[u8], &mut dyn FnMut(&[u8])) + Send + Sync;

/// Finds the values of sensitive fields in the body of a resource. Only a reader of Envoy's descriptors can
/// do this, so the program that starts the fan-out supplies it.
#[derive(Clone)]
pub struct SecretFinder(Arc<Find>);

impl SecretFinder {
    /// A finder that calls `find`.
    pub fn new(
        find: impl Fn(&TypeUrl, &[u8], &mut dyn FnMut(&[u8])) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(find))
    }

    /// A finder for resources without sensitive fields.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|_, _, _| ())
    }
}

impl fmt::Debug for SecretFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretFinder")
    }
}

/// Removes quoted resources and secrets from the text of a rejection, if `request` is one.
pub(crate) fn clean(request: &mut Request, session: &Session, finder: &SecretFinder) {
    let text = match error_detail(request) {
        Some(error) if !error.message.is_empty() => std::mem::take(&mut error.message),
        _ => return,
    };
    let cleaned = match session.answered_contents(request) {
        Some((type_url, contents)) => cleaned(&text, type_url, contents, finder),
        None => format!("{MARK}: the rejected response is no longer known"),
    };
    if let Some(error) = error_detail(request) {
        error.message = cleaned;
    }
}

fn error_detail(request: &mut Request) -> Option<&mut ErrorDetail> {
    match request {
        Request::Sotw(r) => r.error_detail.as_mut(),
        Request::Delta(r) => r.error_detail.as_mut(),
    }
}

/// The text of a rejection of a response of `contents` without quoted resources and secrets.
fn cleaned(text: &str, type_url: &TypeUrl, contents: &Resources, finder: &SecretFinder) -> String {
    let bytes: usize = contents.iter().map(|resource| resource.body().len()).sum();
    if bytes > BODIES_BYTES_MAX {
        return format!(
            "{MARK}: the rejected response has {bytes} bytes, too many to search for secrets that the text may quote"
        );
    }
    let mut hidden = vec![false; text.len()];
    hide_by_form(text, &mut hidden);
    let mut search = Search::new(text, hidden);
    for resource in contents.iter() {
        (finder.0)(type_url, &resource.body(), &mut |secret| search.hide(secret));
    }
    render(text, &search.hidden)
}

/// Hides quoted resources, PEM blocks and long base64 runs.
fn hide_by_form(text: &str, hidden: &mut [bool]) {
    let mut at = 0;
    while let Some(start) = dump_start(&text[at..]).map(|start| at + start) {
        // Some releases of Envoy give the cause after the resource.
        let end = text[start..].find(CHECKED).map_or(text.len(), |end| start + end);
        hidden[start..end].fill(true);
        at = end;
    }
    let mut from = 0;
    while let Some(start) = text[from..].find("-----BEGIN").map(|at| from + at) {
        let end = text[start + 10..].find("-----END").map(|at| start + 10 + at + 8);
        let end = end.map_or(text.len(), |end| {
            text[end..].find("-----").map_or(text.len(), |at| end + at + 5)
        });
        hidden[start..end].fill(true);
        from = end;
    }
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    let mut start = 0;
    for (at, byte) in text.bytes().chain([b' ']).enumerate() {
        if is_base64(byte) {
            continue;
        }
        let run = &text.as_bytes()[start..at];
        let has = |of: fn(&u8) -> bool| run.iter().any(of);
        let is_random = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
        if run.len() >= BASE64_RUN_MIN && is_random && has(u8::is_ascii_digit) {
            hidden[start..at].fill(true);
        }
        start = at + 1;
    }
}

/// The text that Envoy writes before the rule of its proto files that a resource breaks.
const CHECKED: &str = "Proto constraint validation failed (";

/// The start of a quoted message. Text after the message cannot be told apart from it.
fn dump_start(text: &str) -> Option<usize> {
    // Envoy's and protobuf's own marks.
    let marked = text.find("goo.gle/debug");
    let checked = text.find(CHECKED).and_then(|at| {
        let rest = &text[at + CHECKED.len()..];
        let end = at + CHECKED.len() + rest.find("): ")? + 3;
        (end < text.len()).then_some(end)
    });
    let formed = (0..text.len()).find(|at| begins_message(text.as_bytes(), *at));
    marked.into_iter().chain(checked).chain(formed).min()
}

/// Whether a message in text format, JSON or debug output begins at `at`: `name {`, `name: {`, `name: "`,
/// `{"name"`, `{name:`, `&{Name:`.
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
    let begins_word = text[at].is_ascii_alphabetic() && (at == 0 || !is_word(&text[at - 1]));
    let Some(end) = word_end(at).filter(|_| begins_word) else { return false };
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

/// A text in which secrets are searched for.
struct Search<'a> {
    text: &'a [u8],
    /// The text without escapes and white space.
    plain: Plain,
    /// The places of each run, as ranges of the text.
    runs: HashMap<u64, Vec<Range<usize>>>,
    /// One bit for each hash of a run: most runs of a secret are not in the text.
    filter: Box<[u64; 1024]>,
    hidden: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(text: &'a str, hidden: Vec<bool>) -> Self {
        let text = text.as_bytes();
        let plain = Plain::new(text, WhiteSpace::Dropped);
        let mut runs: HashMap<u64, Vec<Range<usize>>> = HashMap::new();
        let mut filter = Box::new([0; 1024]);
        let mut add = |window: &[u8], place: Range<usize>| {
            let run = run(window);
            let (word, bit) = slot(run);
            filter[word] |= bit;
            runs.entry(run).or_default().push(place);
        };
        for (at, window) in text.windows(RUN_BYTES).enumerate() {
            add(window, at..at + RUN_BYTES);
        }
        for variant in [&Plain::new(text, WhiteSpace::Kept), &plain] {
            for (at, window) in variant.bytes.windows(PLAIN_RUN_BYTES).enumerate() {
                add(window, variant.place(at, PLAIN_RUN_BYTES));
            }
        }
        Self { text, plain, runs, filter, hidden }
    }

    /// Hides a secret, in each form in which a client may quote it.
    fn hide(&mut self, secret: &[u8]) {
        let unescaped = Plain::new(secret, WhiteSpace::Kept).bytes;
        let plain = Plain::new(secret, WhiteSpace::Dropped).bytes;
        let base64 = STANDARD_NO_PAD.encode(secret).into_bytes();
        let base64_of_urls = URL_SAFE_NO_PAD.encode(secret).into_bytes();
        for form in [secret, &unescaped, &plain, &base64, &base64_of_urls] {
            self.hide_form(form);
        }
    }

    fn hide_form(&mut self, form: &[u8]) {
        if form.len() < RUN_BYTES {
            return self.hide_short(form);
        }
        for window in form.windows(RUN_BYTES).chain(form.windows(PLAIN_RUN_BYTES)) {
            let run = run(window);
            let (word, bit) = slot(run);
            if self.filter[word] & bit == 0 {
                continue;
            }
            for place in self.runs.remove(&run).into_iter().flatten() {
                self.hidden[place].fill(true);
            }
        }
    }

    /// Hides a value that is shorter than a run: very short ones only where they stand alone.
    fn hide_short(&mut self, form: &[u8]) {
        if form.is_empty() {
            return;
        }
        let stands = |around: &[u8], at: usize| {
            let is_letter = |at: Option<usize>| {
                at.and_then(|at| around.get(at)).is_some_and(u8::is_ascii_alphanumeric)
            };
            form.len() >= RUN_BYTES / 2
                || !(is_letter(at.checked_sub(1)) || is_letter(Some(at + form.len())))
        };
        for (at, window) in self.text.windows(form.len()).enumerate() {
            if window == form && stands(self.text, at) {
                self.hidden[at..at + form.len()].fill(true);
            }
        }
        for (at, window) in self.plain.bytes.windows(form.len()).enumerate() {
            if window == form && form.len() >= RUN_BYTES / 2 {
                self.hidden[self.plain.place(at, form.len())].fill(true);
            }
        }
    }
}

fn run(window: &[u8]) -> u64 {
    window.iter().fold(1, |run, byte| run << 8 | u64::from(*byte))
}

/// The word and the bit of a run in the filter.
fn slot(run: u64) -> (usize, u64) {
    let hash = run.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = usize::try_from(hash >> 54).unwrap_or_default();
    (word, 1 << (hash >> 48 & 63))
}

/// The treatment of white space.
#[derive(Clone, Copy, PartialEq)]
enum WhiteSpace {
    Kept,
    Dropped,
}

/// Bytes without escapes, and where each comes from.
struct Plain {
    bytes: Vec<u8>,
    origin: Vec<Range<usize>>,
}

impl Plain {
    /// The place of `len` bytes from `at` in the original.
    fn place(&self, at: usize, len: usize) -> Range<usize> {
        self.origin[at].start..self.origin[at + len - 1].end
    }

    /// Several backslashes count as one, so that a text that was escaped more than once reads the same.
    fn new(text: &[u8], white_space: WhiteSpace) -> Self {
        let mut plain = Self { bytes: Vec::with_capacity(text.len()), origin: Vec::new() };
        let mut at = 0;
        while at < text.len() {
            let start = at;
            let mut bytes = [0; 4];
            let mut len = 0;
            if text[at] == b'\\' {
                while text.get(at) == Some(&b'\\') {
                    at += 1;
                }
                let digits = |from: usize, max: usize, is: fn(&u8) -> bool| {
                    text[from.min(text.len())..]
                        .iter()
                        .take(max)
                        .take_while(|byte| is(byte))
                        .count()
                };
                let number = |range: Range<usize>, radix| {
                    let digits =
                        text.get(range).and_then(|digits| std::str::from_utf8(digits).ok());
                    digits.and_then(|digits| u32::from_str_radix(digits, radix).ok())
                };
                let is_octal: fn(&u8) -> bool = |byte| (b'0'..=b'7').contains(byte);
                let mut byte = |value: Option<u32>| {
                    bytes[0] = value.and_then(|value| u8::try_from(value).ok()).unwrap_or(b' ');
                    len = 1;
                };
                match text.get(at) {
                    Some(letter @ (b'n' | b'r' | b't' | b'f' | b'v' | b'a' | b'b')) => {
                        bytes[0] = match letter {
                            b'n' => b'\n',
                            b'r' => b'\r',
                            b't' => b'\t',
                            _ => b' ',
                        };
                        (len, at) = (1, at + 1);
                    }
                    Some(b'x' | b'X') => {
                        let n = digits(at + 1, 2, u8::is_ascii_hexdigit);
                        byte(number(at + 1..at + 1 + n, 16));
                        at += 1 + n;
                    }
                    Some(b'u') => {
                        let n = digits(at + 1, 4, u8::is_ascii_hexdigit);
                        let char = number(at + 1..at + 1 + n, 16).and_then(char::from_u32);
                        len = char.map_or(0, |char| char.encode_utf8(&mut bytes).len());
                        at += 1 + n;
                    }
                    Some(digit) if is_octal(digit) => {
                        let n = digits(at, 3, is_octal);
                        byte(number(at..at + n, 8));
                        at += n;
                    }
                    _ => {}
                }
            } else {
                bytes[0] = text[at];
                len = 1;
                at += 1;
            }
            for byte in &bytes[..len] {
                if white_space == WhiteSpace::Kept || !byte.is_ascii_whitespace() {
                    plain.bytes.push(*byte);
                    plain.origin.push(start..at);
                }
            }
        }
        plain
    }
}

/// The text with each hidden piece replaced by the mark.
fn render(text: &str, hidden: &[bool]) -> String {
    let mut hides = Vec::with_capacity(text.len());
    for (at, char) in text.char_indices() {
        let is_hidden = hidden[at..at + char.len_utf8()].contains(&true);
        hides.push((char, is_hidden));
    }
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some((char, is_hidden)) = hides.get(at).copied() {
        if !is_hidden {
            out.push(char);
            at += 1;
            continue;
        }
        out.push_str(MARK);
        loop {
            at += hides[at..].iter().take_while(|(_, is_hidden)| *is_hidden).count();
            let gap = hides[at..].iter().take_while(|(_, is_hidden)| !*is_hidden).count();
            if gap > GAP_BYTES_MAX || at + gap >= hides.len() {
                break;
            }
            at += gap;
        }
    }
    out
}

#[cfg(test)]
mod tests;
