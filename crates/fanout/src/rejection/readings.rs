//! The readings of a text: the bytes that it stands for if it quotes them in a common encoding.

use std::ops::Range;

use smallvec::SmallVec;

/// The minimum length of a hexadecimal word that is also decoded from its second digit.
const LONG_WORD_DIGITS: usize = 10;
/// The minimum length of a run of base64 letters that is decoded.
const BASE64_RUN_MIN: usize = 7;

/// A byte of a reading, and its place in the text.
#[derive(Clone, Copy)]
pub(super) struct Byte {
    pub(super) value: u8,
    start: u32,
    end: u32,
}

impl Byte {
    fn new(value: u8, span: Range<usize>) -> Self {
        // Rejection texts have less than 4 GiB.
        let narrow = |at| u32::try_from(at).unwrap_or(u32::MAX);
        Self { value, start: narrow(span.start), end: narrow(span.end) }
    }
}

/// Consecutive bytes.
pub(super) type Run = Vec<Byte>;

/// Returns the place of a run, or of a part of one, in the text.
pub(super) fn span(run: &[Byte]) -> Range<usize> {
    let start = run.first().map_or(0, |first| first.start as usize);
    start..run.last().map_or(start, |last| last.end as usize)
}

/// The start of the groups of four base64 letters in a run of such letters.
#[derive(Clone, Copy)]
pub(super) enum Base64Start {
    /// At the first letter.
    First,
    /// At any letter: the run may be truncated, or follow other letters.
    Any,
}

/// All readings of a text. Their total length is at most a small multiple of the text's length.
pub(super) struct Readings {
    /// The text itself, without its escapes, and without whitespace.
    pub(super) literal: Vec<Run>,
    /// The bytes that the text may encode.
    pub(super) decoded: Vec<Run>,
}

pub(super) fn readings(text: &[u8], base64_start: Base64Start) -> Readings {
    let unescaped = unescaped(text);
    let plain: Run =
        unescaped.iter().filter(|byte| !byte.value.is_ascii_whitespace()).copied().collect();
    let mut decoded = numbers(&unescaped);
    decoded.extend(base64(&unescaped, base64_start));
    if text.contains(&b'%') {
        decoded.push(percent_decoded(&unescaped));
    }
    let mut literal = Vec::new();
    if plain.len() < unescaped.len() {
        literal.push(plain);
    }
    if text.contains(&b'\\') {
        let raw = text.iter().enumerate().map(|(at, byte)| Byte::new(*byte, at..at + 1));
        literal.push(raw.collect());
    }
    literal.push(unescaped);
    Readings { literal, decoded }
}

/// Returns the text with its escapes (C, Rust, Go, Python, JSON) decoded. Several backslashes count as
/// one, so that a text that was escaped more than once has the same reading.
pub(super) fn unescaped(text: &[u8]) -> Run {
    let mut run = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let (bytes, len) = match text[at] {
            b'\\' => escape(&text[at..]),
            byte => (SmallVec::from_slice(&[byte]), 1),
        };
        run.extend(bytes.into_iter().map(|byte| Byte::new(byte, at..at + len)));
        at += len;
    }
    run
}

/// Returns the bytes and the length of the escape at the start of `text`.
fn escape(text: &[u8]) -> (SmallVec<[u8; 4]>, usize) {
    let slashes = text.iter().take_while(|byte| **byte == b'\\').count();
    let rest = &text[slashes..];
    let number = |from: usize, digits_max: usize, radix: u32| {
        let digits = rest[from..].iter().take(digits_max);
        let digits = digits.map_while(|digit| char::from(*digit).to_digit(radix));
        digits.fold((0, from), |(number, end), digit| (number * radix + digit, end + 1))
    };
    let byte = |number: u32| SmallVec::from_slice(&[u8::try_from(number).unwrap_or(b' ')]);
    let (bytes, len) = match rest.first() {
        Some(b'n') => (byte(u32::from(b'\n')), 1),
        Some(b'r') => (byte(u32::from(b'\r')), 1),
        Some(b't') => (byte(u32::from(b'\t')), 1),
        Some(b'f' | b'v' | b'a' | b'b') => (byte(u32::from(b' ')), 1),
        Some(b'x' | b'X') => {
            let (value, end) = number(1, 2, 16);
            (byte(value), end)
        }
        Some(b'u') => {
            let (value, end) = number(1, 4, 16);
            let char = char::from_u32(value).unwrap_or(' ');
            (SmallVec::from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()), end)
        }
        Some(b'0'..=b'7') => {
            let (value, end) = number(0, 3, 8);
            (byte(value), end)
        }
        _ => (SmallVec::new(), 0),
    };
    (bytes, slashes + len)
}

/// Returns the text with percent-encoding such as `%2B` decoded.
fn percent_decoded(text: &[Byte]) -> Run {
    let mut run = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let decoded = match rest {
            [percent, high, low, ..] if percent.value == b'%' => hex_byte(&[*high, *low]),
            _ => None,
        };
        match decoded {
            Some(byte) => {
                run.push(Byte { start: first.start, ..byte });
                rest = &rest[3..];
            }
            None => {
                run.push(*first);
                rest = tail;
            }
        }
    }
    run
}

/// Returns the byte of one or two hexadecimal digits.
fn hex_byte(digits: &[Byte]) -> Option<Byte> {
    let mut value = 0;
    for digit in digits {
        value = value << 4 | char::from(digit.value).to_digit(16)?;
    }
    Some(Byte::new(u8::try_from(value).ok()?, span(digits)))
}

/// Returns the byte of a decimal number. Java's bytes have a sign.
fn decimal_byte(digits: &[Byte], is_negative: bool) -> Option<Byte> {
    let mut value = 0_u8;
    for digit in digits {
        let digit = char::from(digit.value).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(u8::try_from(digit).ok()?)?;
    }
    let value = if is_negative { value.wrapping_neg() } else { value };
    Some(Byte::new(value, span(digits)))
}

/// The current run, and the completed runs.
#[derive(Default)]
struct Runs {
    open: Run,
    ended: Vec<Run>,
}

impl Runs {
    fn end(&mut self) {
        if !self.open.is_empty() {
            self.ended.push(std::mem::take(&mut self.open));
        }
    }
}

/// Returns bytes that are written as numbers with only separators between them: hexadecimal (`3082`,
/// `30:82`, `<Buffer 30 82>`, `0x30, 0x82`, `%30%82`, lines of a dump) or decimal (`[48 130]`, `[48,
/// -126]`).
pub(super) fn numbers(text: &[Byte]) -> Vec<Run> {
    let (mut hex, mut decimal) = (Runs::default(), Runs::default());
    let mut at = 0;
    while at < text.len() {
        let len = text[at..].iter().take_while(|byte| byte.value.is_ascii_alphanumeric()).count();
        if len == 0 {
            // Dots and slashes separate the parts of addresses and paths.
            let separates =
                |byte: u8| byte.is_ascii_whitespace() || b",:;%-_<>[](){}&#=\"'`\\".contains(&byte);
            if !separates(text[at].value) {
                hex.end();
                decimal.end();
            }
            at += 1;
            continue;
        }
        let word = &text[at..at + len];
        match decimal_byte(word, ends_with_sign(&text[..at])) {
            Some(byte) => decimal.open.push(byte),
            None => decimal.end(),
        }
        at += len;
        push_hex(word, &mut hex);
    }
    hex.end();
    decimal.end();
    hex.ended.append(&mut decimal.ended);
    hex.ended
}

/// Returns whether the text ends with the sign of a number, rather than with a hyphen between two
/// words.
fn ends_with_sign(text: &[Byte]) -> bool {
    matches!(text, [.., before, minus] if minus.value == b'-' && !before.value.is_ascii_alphanumeric())
}

/// Decodes a word of letters and digits as hexadecimal bytes.
fn push_hex(word: &[Byte], hex: &mut Runs) {
    let bytes = |digits: &[Byte]| digits.chunks(2).map(hex_byte).collect::<Option<Run>>();
    let digits = match word {
        [zero, x, digits @ ..] if zero.value == b'0' && x.value | 0x20 == b'x' => digits,
        word => word,
    };
    let is_aligned = digits.len() == 1 || digits.len() % 2 == 0;
    let aligned = if is_aligned { bytes(digits) } else { None };
    match aligned {
        Some(bytes) => hex.open.extend(bytes),
        None => hex.end(),
    }
    // A long run of digits may be part of a longer word, and its first digit the second half of a byte.
    for run in word.split(|byte| !byte.value.is_ascii_hexdigit()) {
        if run.len() >= LONG_WORD_DIGITS {
            hex.ended.extend([0, 1].iter().filter_map(|skipped| bytes(&run[*skipped..])));
        }
    }
}

/// Returns the decoded runs of base64 letters of both alphabets.
fn base64(text: &[Byte], start: Base64Start) -> Vec<Run> {
    let phases = match start {
        Base64Start::First => 1,
        Base64Start::Any => 4,
    };
    let runs = text.split(|byte| sextet(byte.value).is_none());
    runs.filter(|run| run.len() >= BASE64_RUN_MIN)
        .flat_map(|run| (0..phases).map(move |phase| base64_decoded(&run[phase..])))
        .collect()
}

fn base64_decoded(letters: &[Byte]) -> Run {
    let mut run = Vec::with_capacity(letters.len() * 3 / 4);
    for group in letters.chunks(4) {
        for (n, pair) in group.windows(2).enumerate() {
            let [high, low] = [0, 1].map(|at| sextet(pair[at].value).unwrap_or_default());
            let value = high << (2 * n + 2) | low >> (4 - 2 * n);
            run.push(Byte::new(value, span(pair)));
        }
    }
    run
}

/// Returns the six bits of a base64 letter.
fn sextet(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}
