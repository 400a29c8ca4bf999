//! The untyped tree of a document.
//!
//! It differs from `serde_json::Value`, which silently takes the last of two equal keys, and silently
//! converts non-finite numbers to `null`.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use chancery_model::has_private_key;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::credentials::KEY_MARK;

/// A value of JSON, or of the part of YAML that JSON can express.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above the range of [`Node::Int`].
    Uint(u64),
    /// A finite number.
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// The entries in the order of the document, without duplicate keys.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// Returns the value of a key if this is a map with that key.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Map(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns whether a text or key in the tree contains a private key.
    pub(crate) fn has_private_key(&self) -> bool {
        match self {
            Self::Text(text) => has_private_key(text.as_bytes()),
            Self::List(items) => items.iter().any(Self::has_private_key),
            Self::Map(entries) => entries
                .iter()
                .any(|(key, value)| has_private_key(key.as_bytes()) || value.has_private_key()),
            _ => false,
        }
    }
}

/// The greatest number below which a double holds every whole number.
pub(crate) const EXACT_MAX: f64 = 9_007_199_254_740_991.0;

/// The rule for a map with a key that is `null`, `~` or empty.
const NULL_KEY: &str = "a key of a map is null or missing; put it in quotes if it is text";

/// Describes a value, for "expected …, found …".
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "the number {value}"),
            Self::Uint(value) => write!(f, "the number {value}"),
            // Digits of a large number would look exact, although the reader has rounded it.
            Self::Float(value) if value.abs() > EXACT_MAX => write!(f, "the number {value:e}"),
            Self::Float(value) => write!(f, "the number {value}"),
            Self::Text(value) => write!(f, "the text {}", shown(value)),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a map"),
        }
    }
}

/// Quotes a value, truncated so that a message stays one line. Hides private keys.
pub(crate) fn shown(text: &str) -> String {
    quoted(text, 40)
}

/// Quotes a name, a key or a type, truncated if it is longer than any real one. Hides private keys.
pub(crate) fn named(text: &str) -> String {
    quoted(text, 250)
}

fn quoted(text: &str, letters_max: usize) -> String {
    if has_private_key(text.as_bytes()) {
        return format!("{:?}", KEY_MARK);
    }
    match text.char_indices().nth(letters_max) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// The number of values that aliases may add for each byte of input.
const VALUES_PER_BYTE: usize = 8;
/// The number of values that aliases may add to the shortest input. Reading them takes a few milliseconds.
const VALUES_FLOOR: usize = 20_000;
/// The maximum number of values that aliases may add to any input.
const VALUES_MOST: usize = 1_000_000;
/// The number of bytes of text that aliases may add to the shortest input.
const TEXT_FLOOR: usize = 1 << 20;
/// The maximum number of bytes of text that aliases may add to any input.
const TEXT_MOST: usize = 64 << 20;

/// The number of values and bytes that aliases may still add to the trees of an input.
///
/// Aliases let a short YAML document expand to a huge one. With this limit, the cost of an input is
/// proportional to its length.
#[derive(Debug)]
pub(crate) struct InputBudget {
    values: usize,
    text: usize,
    /// The number of values that aliases may add to the shortest file.
    floor: usize,
    /// The number of documents that the input may still have.
    documents: usize,
    /// Set when the caller no longer waits for the result.
    stop: Arc<AtomicBool>,
}

/// The maximum number of documents of an input.
pub(crate) const DOCUMENTS_MAX: usize = 100_000;

impl InputBudget {
    /// Creates the limits of an input with `n_files` files and `len` bytes in total.
    pub(crate) fn for_input(n_files: usize, len: usize, stop: &Arc<AtomicBool>) -> Self {
        let most = len.saturating_mul(VALUES_PER_BYTE);
        Self {
            values: most.clamp(VALUES_FLOOR, VALUES_MOST),
            text: most.clamp(TEXT_FLOOR, TEXT_MOST),
            floor: VALUES_FLOOR / n_files.max(1),
            documents: DOCUMENTS_MAX,
            stop: Arc::clone(stop),
        }
    }

    /// Returns the number of documents that the input may still have.
    pub(crate) fn documents_left(&self) -> usize {
        self.documents
    }

    /// Subtracts the documents of a file, at most those that are left.
    pub(crate) fn take_documents(&mut self, n: usize) {
        self.documents -= n;
    }

    /// Returns whether the caller no longer waits for the result.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the budget of a document with `len` bytes. `n_documents` is the number of documents with
    /// aliases in its file. Many short documents together get no more than one long document.
    pub(crate) fn share(&self, len: usize, n_documents: usize) -> Budget {
        let spare = len.saturating_mul(VALUES_PER_BYTE) + self.floor / n_documents.max(1);
        let (values, text) = (spare.min(self.values), self.text);
        // A document without bytes is one value, null.
        let own = len + 1;
        let stop = Arc::clone(&self.stop);
        Budget { nodes: Cell::new(own + values), bytes: Cell::new(own + text), values, text, stop }
    }

    /// Subtracts what a document used from the limits of the input.
    pub(crate) fn settle(&mut self, share: &Budget) {
        self.values -= share.values.saturating_sub(share.nodes.get());
        self.text -= share.text.saturating_sub(share.bytes.get());
    }
}

/// The remaining budget of one document's tree.
#[derive(Debug)]
pub(crate) struct Budget {
    nodes: Cell<usize>,
    bytes: Cell<usize>,
    /// The values and the bytes of text that aliases may add, as a part of the budget.
    pub(crate) values: usize,
    pub(crate) text: usize,
    stop: Arc<AtomicBool>,
}

impl Budget {
    fn node<E: Error>(&self) -> Result<(), E> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(E::custom(STOPPED));
        }
        let left = self.nodes.get().checked_sub(1);
        self.nodes.set(left.ok_or_else(|| E::custom("the aliases expand to too many values"))?);
        Ok(())
    }

    fn text<E: Error>(&self, text: &str) -> Result<(), E> {
        let left = self.bytes.get().checked_sub(text.len());
        self.bytes.set(left.ok_or_else(|| E::custom("the aliases expand to too much text"))?);
        Ok(())
    }
}

/// The rule of the problem that ends the work when the caller no longer waits.
pub(crate) const STOPPED: &str = "the caller no longer waits for the answer";

/// Deserializes a tree within a budget.
#[derive(Clone, Copy)]
pub(crate) struct NodeSeed<'b>(pub(crate) &'b Budget);

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        self.0.node()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(i64::try_from(value).map_or(Node::Uint(value), Node::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        if value.is_finite() {
            Ok(Node::Float(value))
        } else {
            Err(E::custom(
                "a non-finite number must be written as \"NaN\", \"Infinity\" or \"-Infinity\"",
            ))
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        self.0.text(value)?;
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Node, E> {
        self.0.text(&value)?;
        Ok(Node::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element_seed(self)? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        while let Some(key) = map.next_key::<Option<String>>()? {
            let key = key.ok_or_else(|| A::Error::custom(NULL_KEY))?;
            self.0.text(&key)?;
            entries.push((key, map.next_value_seed(self)?));
        }
        let mut keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(A::Error::custom(format_args!(
                "the key {} is given twice",
                named(pair[0])
            )));
        }
        Ok(Node::Map(entries))
    }
}
