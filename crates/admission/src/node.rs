//! A document as a tree, before anything is known of its meaning.
//!
//! Not `serde_json::Value`: that one takes the last of two equal keys and turns a number that is none
//! into `null`, each without a word.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::sensitive;

/// JSON, or the part of YAML that is JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    Null,
    Bool(bool),
    Int(i64),
    /// Above what [`Node::Int`] holds.
    Uint(u64),
    /// Finite.
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the document, without equal keys.
    Map(Vec<(String, Node)>),
}

impl Node {
    /// The value of a key, if this is a map that has it.
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
}

/// What was found, for "expected …, found …".
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "the number {value}"),
            Self::Uint(value) => write!(f, "the number {value}"),
            Self::Float(value) => write!(f, "the number {value}"),
            Self::Text(value) => write!(f, "the text {}", shown(value)),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a map"),
        }
    }
}

/// A value in quotes, cut if it is long, so that a message stays a line. A private key is not shown.
pub(crate) fn shown(text: &str) -> String {
    quoted(text, 40)
}

/// A name, a key or a type in quotes, cut if it is longer than any real one.
pub(crate) fn named(text: &str) -> String {
    quoted(text, 250)
}

fn quoted(text: &str, letters_max: usize) -> String {
    if sensitive::has_private_key(text.as_bytes()) {
        return format!("{:?}", sensitive::KEY_MARK);
    }
    match text.char_indices().nth(letters_max) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// Values that a byte of input may stand for, by aliases.
const VALUES_PER_BYTE: usize = 8;
/// Values that aliases may add however short the input is: some milliseconds of work.
const VALUES_FLOOR: usize = 20_000;
/// Values that aliases may add however long it is.
const VALUES_MOST: usize = 1_000_000;
/// Bytes of text that aliases may add however short the input is.
const TEXT_FLOOR: usize = 1 << 20;
/// Bytes of text that aliases may add however long it is.
const TEXT_MOST: usize = 64 << 20;

/// What the trees of an input may still take beyond what its bytes stand for themselves. Aliases let a
/// short YAML document stand for a huge one; what it costs to read an input is in proportion to its
/// length all the same.
#[derive(Debug)]
pub(crate) struct Spare {
    values: usize,
    text: usize,
    /// Values that each file may add however short it is.
    floor: usize,
    /// Documents that the input may still have.
    pub(crate) documents: usize,
    /// Set when nobody waits for the result any longer.
    stop: Arc<AtomicBool>,
}

/// The maximum number of documents of an input.
pub(crate) const DOCUMENTS_MAX: usize = 100_000;

impl Spare {
    /// For an input of so many files, of so many bytes together.
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

    /// Whether nobody waits for the result any longer.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What a document of `len` bytes may take, one of `n_documents` of its file that have aliases: the
    /// shares of many short documents are no more together than that of a long one.
    pub(crate) fn share(&self, len: usize, n_documents: usize) -> Budget {
        let spare = len.saturating_mul(VALUES_PER_BYTE) + self.floor / n_documents.max(1);
        let (values, text) = (spare.min(self.values), self.text);
        // A document of no bytes is one value: nothing.
        let own = len + 1;
        let stop = Arc::clone(&self.stop);
        Budget { nodes: Cell::new(own + values), bytes: Cell::new(own + text), values, text, stop }
    }

    /// The document has been read.
    pub(crate) fn settle(&mut self, share: &Budget) {
        self.values -= share.values.saturating_sub(share.nodes.get());
        self.text -= share.text.saturating_sub(share.bytes.get());
    }
}

/// What the tree of one document may still take.
#[derive(Debug)]
pub(crate) struct Budget {
    nodes: Cell<usize>,
    bytes: Cell<usize>,
    /// How much of it aliases may add: values, and bytes of text.
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

/// The rule of a problem that ends work for which nobody waits.
pub(crate) const STOPPED: &str = "the caller no longer waits for the answer";

/// Reads a tree within a budget.
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
        f.write_str("a value that JSON has")
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
                "a number that is not finite is written \"NaN\", \"Infinity\" or \"-Infinity\"",
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
        while let Some(key) = map.next_key::<String>()? {
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
