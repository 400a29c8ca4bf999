//! Rejection texts without secrets.
//!
//! Clients quote resources that they reject. Envoy's NACK text contains the whole resource as text,
//! including a private key. The fan-out removes secrets from the text before it reaches session state,
//! logs, metrics or the admin API.
//!
//! There are two defenses. Each is sufficient for the texts of known clients:
//! - Quoted resources (text format, JSON, Rust and Go debug output) and key material (PEM blocks, JSON
//!   web tokens, long runs of base64, hexadecimal or decimal bytes) are recognized by their form and
//!   removed.
//! - The text is searched for the secret values of the rejected response and of other unanswered
//!   responses of the stream. Found values are removed. [`readings`] has the encodings in which a client
//!   may quote them.
//!
//! The second defense does not know values that the client accepted earlier: only their form protects
//! them.
//!
//! Invariants:
//! - A text is discarded if its response is unknown or too large to search.
//! - The cost is linear in the lengths of the text and of the responses. Clients choose the text. Cleaning that may
//!   take a shard too long is large work ([`crate::offload`]).

use std::{collections::HashSet, fmt, sync::Arc};

use chancery_model::{Resource, TypeUrl};
use chancery_protocol::{Request, Session};
use chancery_view::Resources;

use readings::{Base64Start, Byte, Readings, readings, span};

mod form;
mod readings;

/// The replacement for a removed part.
const MARK: &str = "[redacted]";
/// The minimum length of a secret that is searched for in parts.
const LONG_SECRET_BYTES: usize = 8;
/// The length of such a part. A client that quotes eight characters of a secret in base64, or with
/// escapes and line breaks between them, quotes at least this many bytes.
const PART_BYTES: usize = 5;
/// The length below which a secret is hidden only where it stands alone.
const WORD_BYTES: usize = 4;
/// The maximum size of the responses that are searched for secrets, in bytes of their bodies.
const BODIES_BYTES_MAX: usize = 4 << 20;
/// The maximum total length of the secrets to search for. The search takes some milliseconds.
const SECRETS_BYTES_MAX: usize = 512 << 10;
/// The length of the end that a truncated text loses. The transport truncates a text before secrets are
/// searched for, so the text may end inside a secret. At most seven bytes of a known secret then have no
/// match, and 19 bytes of an unknown key have no recognizable form. A byte takes up to six characters.
const TRUNCATED_BYTES: usize = 128;
/// The cost of a byte of the text in names, at most: if the response has secrets of all lengths.
const NAMES_PER_TEXT_BYTE: usize = 4;
/// The number of bytes of bodies that are searched for secrets in the time that one name takes.
const BODY_BYTES_PER_NAME: usize = 16;
/// The maximum length of a visible piece between two removed pieces that is removed with them.
const GAP_BYTES_MAX: usize = 3;

/// A function that reports the values of the sensitive fields of a body.
type Find = dyn Fn(&TypeUrl, &[u8], &mut dyn FnMut(&[u8])) + Send + Sync;

/// Finds the values of sensitive fields in the body of a resource. This requires Envoy's descriptors,
/// so the program that starts the fan-out supplies it.
#[derive(Clone)]
pub struct SecretFinder(Arc<Find>);

impl SecretFinder {
    /// Creates a finder that calls `find`.
    pub fn new(
        find: impl Fn(&TypeUrl, &[u8], &mut dyn FnMut(&[u8])) + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(find))
    }

    /// Creates a finder for resources without sensitive fields.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|_, _, _| ())
    }

    /// Removes the secrets of the resources and other key material from what a program says about them. Quoted
    /// resources stay. Returns `None` if the resources have too many secrets to search for.
    #[must_use]
    pub fn without_secrets<'a>(
        &self,
        text: &str,
        resources: impl IntoIterator<Item = (&'a TypeUrl, &'a [u8])>,
    ) -> Option<String> {
        let mut search = Search::new(text);
        for (type_url, body) in resources {
            (self.0)(type_url, body, &mut |secret| search.add(secret));
            if search.secrets_bytes > SECRETS_BYTES_MAX {
                return None;
            }
        }
        let mut hidden = search.finish();
        form::hide_keys(text, &mut hidden);
        Some(render(text, &hidden))
    }
}

impl fmt::Debug for SecretFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretFinder")
    }
}

/// Returns the cost of [`clean`] in names ([`INLINE_NAMES_MAX`](crate::turn::budget::INLINE_NAMES_MAX)). Counting stops above
/// `max`.
pub(crate) fn cost(request: &Request, session: &Session, max: usize) -> usize {
    let Some((_, answered)) = session.answered_contents(request) else { return 0 };
    let mut cost = cost_of_text(request);
    if cost == 0 {
        return 0;
    }
    let others = session.unanswered_contents().map(|(_, contents)| contents);
    for resource in [answered].into_iter().chain(others).flat_map(Resources::iter) {
        if cost > max {
            break;
        }
        cost += 1 + resource.body_len() / BODY_BYTES_PER_NAME;
    }
    cost
}

/// Returns the part of [`cost`] that the text causes.
pub(crate) fn cost_of_text(request: &Request) -> usize {
    request.error_detail().map_or(0, |error| error.message.len() * NAMES_PER_TEXT_BYTE)
}

/// Removes quoted resources and secrets from the text of a rejection, if `request` is one.
pub(crate) fn clean(request: &mut Request, session: &Session, finder: &SecretFinder) {
    let text = match request.error_detail_mut() {
        Some(error) if !error.message.is_empty() => std::mem::take(&mut error.message),
        _ => return,
    };
    let mut cleaned = match session.answered_contents(request) {
        Some(answered) => cleaned(&text, answered, session.unanswered_contents(), finder),
        None => format!("{MARK}: the rejected response is no longer known"),
    };
    // The transport has truncated the text between characters, of up to four bytes.
    if text.len() + 3 >= session.nack_message_bytes_max() {
        cleaned
            .truncate(cleaned.floor_char_boundary(cleaned.len().saturating_sub(TRUNCATED_BYTES)));
    }
    if let Some(error) = request.error_detail_mut() {
        error.message = cleaned;
    }
}

/// Returns the text of a rejection of the `answered` response without quoted resources and secrets. The
/// secrets of the `others` are searched for as far as the limits allow.
pub(crate) fn cleaned<'a>(
    text: &str,
    answered: (&TypeUrl, &'a Resources),
    others: impl Iterator<Item = (&'a TypeUrl, &'a Resources)>,
    finder: &SecretFinder,
) -> String {
    let mut search = Search::new(text);
    let mut bodies_bytes = 0;
    let mut seen = HashSet::new();
    let mut secrets_of = |type_url: &TypeUrl, resource: &Arc<Resource>| {
        if seen.insert(Arc::as_ptr(resource)) {
            // The session sends only opened resources.
            let body = resource.body().unwrap_or_default();
            bodies_bytes += body.len();
            if bodies_bytes <= BODIES_BYTES_MAX {
                (finder.0)(type_url, &body, &mut |secret| search.add(secret));
            }
        }
        bodies_bytes <= BODIES_BYTES_MAX && search.secrets_bytes <= SECRETS_BYTES_MAX
    };
    let (type_url, contents) = answered;
    if !contents.iter().all(|resource| secrets_of(type_url, resource)) {
        return format!(
            "{MARK}: the rejected response has more than {BODIES_BYTES_MAX} bytes, or \
             {SECRETS_BYTES_MAX} bytes of secrets, too many to search the text for them"
        );
    }
    for (type_url, contents) in others {
        if !contents.iter().all(|resource| secrets_of(type_url, resource)) {
            break;
        }
    }
    let mut hidden = search.finish();
    form::hide(text, &mut hidden);
    render(text, &hidden)
}

/// A text in which secrets are searched for.
///
/// The secrets are compared with a filter of the parts of the text, which lets few of them pass. At the end, the text
/// is compared with the parts that passed. The memory is thus a small multiple of the text's length.
struct Search<'a> {
    text: &'a str,
    /// The readings of the text. Computed when the first secret is searched for.
    readings: Option<Readings>,
    /// The parts of secrets that may be in the text, by length.
    wanted: [Option<Wanted>; LONG_SECRET_BYTES],
    secrets_bytes: usize,
}

impl<'a> Search<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, readings: None, wanted: Default::default(), secrets_bytes: 0 }
    }

    /// Searches for a secret in each form in which a client may quote it.
    fn add(&mut self, secret: &[u8]) {
        self.secrets_bytes += secret.len();
        if self.secrets_bytes > SECRETS_BYTES_MAX {
            return;
        }
        let text = self.readings.get_or_insert_with(|| {
            let text = self.text.as_bytes();
            readings(text, Base64Start::Any)
        });
        let Readings { literal, mut decoded } = readings(secret, Base64Start::First);
        decoded.retain(|reading| reading.len() >= LONG_SECRET_BYTES);
        for reading in literal.into_iter().chain(decoded) {
            let is_long = reading.len() >= LONG_SECRET_BYTES;
            let len = if is_long { PART_BYTES } else { reading.len() };
            if len > 0 {
                let wanted = self.wanted[len].get_or_insert_with(|| Wanted::new(text, len));
                reading.windows(len).for_each(|part| wanted.add(key(part)));
            }
        }
    }

    /// Returns which bytes of the text are hidden.
    fn finish(self) -> Vec<bool> {
        let mut hidden = vec![false; self.text.len()];
        let wanted = self.wanted.into_iter().enumerate();
        for (len, Wanted { keys, .. }) in wanted.filter_map(|(len, one)| Some((len, one?))) {
            let mut filter = Filter::new(keys.len());
            keys.iter().for_each(|key| filter.add(*key));
            for part in self.readings.iter().flat_map(|readings| parts(readings, len)) {
                let key = key(part);
                if filter.may_have(key) && keys.contains(&key) {
                    hidden[span(part)].fill(true);
                }
            }
        }
        hidden
    }
}

/// Returns the parts of one length that a secret may match.
fn parts(readings: &Readings, len: usize) -> impl Iterator<Item = &[Byte]> {
    let is_letter =
        |byte: Option<&Byte>| byte.is_some_and(|byte| byte.value.is_ascii_alphanumeric());
    let literal = readings.literal.iter().flat_map(move |reading| {
        let parts = reading.windows(len).enumerate();
        parts.filter_map(move |(at, part)| {
            let before = at.checked_sub(1).and_then(|at| reading.get(at));
            let is_alone = || !is_letter(before) && !is_letter(reading.get(at + len));
            (len >= WORD_BYTES || is_alone()).then_some(part)
        })
    });
    let decoded = readings.decoded.iter().filter(move |_| len >= WORD_BYTES);
    literal.chain(decoded.flat_map(move |reading| reading.windows(len)))
}

/// The parts of secrets that may be in a text, of one length.
struct Wanted {
    in_text: Filter,
    keys: HashSet<u64>,
}

impl Wanted {
    fn new(text: &Readings, len: usize) -> Self {
        let n_bytes = text.literal.iter().chain(&text.decoded).map(Vec::len).sum();
        let mut in_text = Filter::new(n_bytes);
        parts(text, len).for_each(|part| in_text.add(key(part)));
        Self { in_text, keys: HashSet::new() }
    }

    fn add(&mut self, key: u64) {
        if self.in_text.may_have(key) {
            self.keys.insert(key);
        }
    }
}

/// A set of hashes of parts, with one bit for each hash.
struct Filter {
    bits: Vec<u64>,
    /// The binary logarithm of the number of bits.
    bits_log: u32,
}

impl Filter {
    /// The number of bits for each part.
    const BITS_PER_PART: usize = 8;

    /// Creates an empty filter for `n` parts.
    fn new(n: usize) -> Self {
        let n_bits = (n * Self::BITS_PER_PART).next_power_of_two().max(64);
        Self { bits: vec![0; n_bits / 64], bits_log: n_bits.ilog2() }
    }

    fn add(&mut self, key: u64) {
        let (word, bit) = self.slot(key);
        self.bits[word] |= bit;
    }

    /// Returns whether a part may have been added.
    fn may_have(&self, key: u64) -> bool {
        let (word, bit) = self.slot(key);
        self.bits[word] & bit != 0
    }

    /// Returns the word and the bit of a part.
    fn slot(&self, key: u64) -> (usize, u64) {
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - self.bits_log);
        (usize::try_from(hash >> 6).unwrap_or_default(), 1 << (hash & 63))
    }
}

/// Returns a number that identifies a part of less than eight bytes.
fn key(part: &[Byte]) -> u64 {
    part.iter().fold(1, |key, byte| key << 8 | u64::from(byte.value))
}

/// Returns the text with each hidden piece replaced by the mark.
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
