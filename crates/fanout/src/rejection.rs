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
//! Invariant: a text is discarded if its response is unknown or too large to search.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    ops::Range,
    sync::Arc,
};

use chancery_model::{Resource, TypeUrl};
use chancery_protocol::{Request, Session};
use chancery_view::Resources;
use smallvec::SmallVec;

use readings::{Base64Start, Byte, Readings, place, readings};

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
            (self.0)(type_url, body, &mut |secret| search.hide(secret));
            if search.secrets_bytes > SECRETS_BYTES_MAX {
                return None;
            }
        }
        form::hide_keys(text, &mut search.hidden);
        Some(render(text, &search.hidden))
    }
}

impl fmt::Debug for SecretFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretFinder")
    }
}

/// Removes quoted resources and secrets from the text of a rejection, if `request` is one.
/// `text_bytes_max` is the size to which the transport has truncated the text.
pub(crate) fn clean(
    request: &mut Request,
    session: &Session,
    finder: &SecretFinder,
    text_bytes_max: usize,
) {
    let text = match request.error_detail_mut() {
        Some(error) if !error.message.is_empty() => std::mem::take(&mut error.message),
        _ => return,
    };
    let mut cleaned = match session.answered_contents(request) {
        Some(answered) => cleaned(&text, answered, session.unanswered_contents(), finder),
        None => format!("{MARK}: the rejected response is no longer known"),
    };
    // The text is cut between characters, of up to four bytes.
    if text.len() + 3 >= text_bytes_max {
        cleaned
            .truncate(cleaned.floor_char_boundary(cleaned.len().saturating_sub(TRUNCATED_BYTES)));
    }
    if let Some(error) = request.error_detail_mut() {
        error.message = cleaned;
    }
}

/// Returns the text of a rejection of the `answered` response without quoted resources and secrets. The
/// secrets of the `others` are searched for as far as the limits allow.
fn cleaned<'a>(
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
                (finder.0)(type_url, &body, &mut |secret| search.hide(secret));
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
    form::hide(text, &mut search.hidden);
    render(text, &search.hidden)
}

/// A text in which secrets are searched for.
struct Search<'a> {
    text: &'a str,
    /// The parts of the readings of the text, by length. Computed when the first secret is searched
    /// for.
    parts: [Option<Parts>; LONG_SECRET_BYTES],
    secrets_bytes: usize,
    hidden: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(text: &'a str) -> Self {
        let hidden = vec![false; text.len()];
        Self { text, parts: Default::default(), secrets_bytes: 0, hidden }
    }

    /// Hides a secret in each form in which a client may quote it.
    fn hide(&mut self, secret: &[u8]) {
        self.secrets_bytes += secret.len();
        if self.secrets_bytes > SECRETS_BYTES_MAX {
            return;
        }
        let Readings { literal, mut decoded } = readings(secret, Base64Start::First);
        decoded.retain(|reading| reading.len() >= LONG_SECRET_BYTES);
        for reading in literal.into_iter().chain(decoded) {
            let is_long = reading.len() >= LONG_SECRET_BYTES;
            let len = if is_long { PART_BYTES } else { reading.len() };
            if len == 0 {
                continue;
            }
            let parts = self.parts[len].get_or_insert_with(|| Parts::new(self.text, len));
            for part in reading.windows(len) {
                for place in parts.take(part) {
                    self.hidden[place].fill(true);
                }
            }
        }
    }
}

/// The places of all parts of one length in a text.
struct Parts {
    places: HashMap<u64, SmallVec<[Range<usize>; 1]>>,
    /// A filter with one bit for each hash of a part. Most parts of a secret are not in the text.
    filter: Vec<u64>,
}

impl Parts {
    /// The binary logarithm of the number of bits of the filter.
    const FILTER_BITS_LOG: u32 = 18;

    fn new(text: &str, len: usize) -> Self {
        let filter = vec![0; 1 << (Self::FILTER_BITS_LOG - 6)];
        let mut parts = Self { places: HashMap::new(), filter };
        let Readings { literal, decoded } = readings(text.as_bytes(), Base64Start::Any);
        for reading in &literal {
            let is_letter =
                |byte: Option<&Byte>| byte.is_some_and(|byte| byte.value.is_ascii_alphanumeric());
            for (at, part) in reading.windows(len).enumerate() {
                let before = at.checked_sub(1).and_then(|at| reading.get(at));
                let is_alone = !is_letter(before) && !is_letter(reading.get(at + len));
                if len >= WORD_BYTES || is_alone {
                    parts.add(part);
                }
            }
        }
        for reading in decoded.iter().filter(|_| len >= WORD_BYTES) {
            reading.windows(len).for_each(|part| parts.add(part));
        }
        parts
    }

    fn add(&mut self, part: &[Byte]) {
        let key = key(part);
        let (word, bit) = Self::slot(key);
        self.filter[word] |= bit;
        self.places.entry(key).or_default().push(place(part));
    }

    /// Removes and returns the places of a part.
    fn take(&mut self, part: &[Byte]) -> SmallVec<[Range<usize>; 1]> {
        let key = key(part);
        let (word, bit) = Self::slot(key);
        match self.filter[word] & bit {
            0 => SmallVec::new(),
            _ => self.places.remove(&key).unwrap_or_default(),
        }
    }

    /// Returns the word and the bit of a part in the filter.
    fn slot(key: u64) -> (usize, u64) {
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - Self::FILTER_BITS_LOG);
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
