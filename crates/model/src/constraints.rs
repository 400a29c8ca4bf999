//! Constraints on dynamic parameters, which distinguish the variants of a resource (TP2).
//!
//! A client subscribes to a name with parameters, and receives the variant whose constraints match
//! them. The name and the constraints together identify a resource (DYN-02). Constraints therefore
//! have a canonical form: order and nesting of conditions do not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bytes::{BufMut, BytesMut};

use crate::wire::{Fields, Token, WireError, put_len_field, text};

mod variants;

pub use variants::{Conflict, VARIANTS_MAX, VariantsBudget, check_variants, example};

/// The maximum size of encoded constraints in bytes.
pub const CONSTRAINTS_BYTES_MAX: usize = 2048;
/// The maximum nesting depth of operators.
const DEPTH_MAX: usize = 16;
/// The maximum number of conditions and operators.
const NODES_MAX: usize = 128;

/// The reason why bytes are not constraints that a resource can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintsError {
    /// The bytes are not a protobuf message.
    #[error("malformed constraints: {0}")]
    Malformed(#[from] WireError),
    /// The constraints are larger than the limit.
    #[error("the constraints have {0} bytes, at most {CONSTRAINTS_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// The constraints are nested deeper than the limit.
    #[error("the constraints are nested more than {DEPTH_MAX} deep")]
    TooDeep,
    /// There are more conditions and operators than the limit.
    #[error("the constraints have more than {NODES_MAX} conditions and operators")]
    TooMany,
    /// A condition has no key.
    #[error("a constraint has no key")]
    NoKey,
    /// A condition has neither a value nor `exists`.
    #[error("the constraint on the key {0:?} has neither a value nor exists; give one of them")]
    NoCondition(String),
}

/// The dynamic parameters of a subscription, or of a node.
pub type DynamicParameters = BTreeMap<String, String>;

/// `envoy.service.discovery.v3.DynamicParameterConstraints`, in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Constraints {
    /// Matches everything (DYN-05).
    Always,
    /// Matches if the key has this value.
    Value {
        /// The key of the dynamic parameter.
        key: Box<str>,
        /// The value that it must have.
        value: Box<str>,
    },
    /// Matches if the key is present.
    Exists {
        /// The key of the dynamic parameter.
        key: Box<str>,
    },
    /// Matches if any of these match; an empty list matches nothing.
    Or(Vec<Constraints>),
    /// Matches if all of these match.
    And(Vec<Constraints>),
    /// Matches if this does not match.
    Not(Box<Constraints>),
}

impl Constraints {
    /// Returns whether the constraints match the parameters. Keys that the constraints do not mention do
    /// not matter (DYN-03).
    #[must_use]
    pub fn matches(&self, parameters: &DynamicParameters) -> bool {
        match self {
            Self::Always => true,
            Self::Value { key, value } => {
                parameters.get(&**key).is_some_and(|found| **found == **value)
            }
            Self::Exists { key } => parameters.contains_key(&**key),
            Self::Or(all) => all.iter().any(|one| one.matches(parameters)),
            Self::And(all) => all.iter().all(|one| one.matches(parameters)),
            Self::Not(inner) => !inner.matches(parameters),
        }
    }

    /// Returns the keys that the constraints mention.
    #[must_use]
    pub fn keys(&self) -> BTreeSet<&str> {
        self.values().into_keys().collect()
    }

    /// Returns the values that the constraints mention, by key.
    fn values(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let (mut out, mut open) = (BTreeMap::<&str, BTreeSet<&str>>::new(), vec![self]);
        while let Some(one) = open.pop() {
            match one {
                Self::Always => {}
                Self::Value { key, value } => {
                    out.entry(key).or_default().insert(value);
                }
                Self::Exists { key } => drop(out.entry(key).or_default()),
                Self::Or(all) | Self::And(all) => open.extend(all),
                Self::Not(inner) => open.push(inner),
            }
        }
        out
    }

    /// Returns the number of conditions and operators.
    fn n_nodes(&self) -> usize {
        match self {
            Self::Always | Self::Value { .. } | Self::Exists { .. } => 1,
            Self::Or(all) | Self::And(all) => 1 + all.iter().map(Self::n_nodes).sum::<usize>(),
            Self::Not(inner) => 1 + inner.n_nodes(),
        }
    }

    /// Converts to the canonical form: lists are flat, sorted and without duplicates, a list of one is
    /// its only element, and there is no double negation.
    #[must_use]
    pub fn canonical(self) -> Self {
        match self {
            Self::Not(inner) => match inner.canonical() {
                Self::Not(twice) => *twice,
                other => Self::Not(Box::new(other)),
            },
            Self::And(all) => {
                let flat = flatten(all, |one| match one {
                    Self::And(inner) => Ok(inner),
                    other => Err(other),
                });
                let mut flat: Vec<Self> =
                    flat.into_iter().filter(|one| *one != Self::Always).collect();
                match flat.len() {
                    0 => Self::Always,
                    1 => flat.remove(0),
                    _ => Self::And(flat),
                }
            }
            Self::Or(all) => {
                let mut flat = flatten(all, |one| match one {
                    Self::Or(inner) => Ok(inner),
                    other => Err(other),
                });
                if flat.len() == 1 { flat.remove(0) } else { Self::Or(flat) }
            }
            leaf => leaf,
        }
    }

    /// Decodes `DynamicParameterConstraints`, in canonical form.
    ///
    /// # Errors
    /// Fails if the bytes are malformed or exceed a limit, or if a condition is incomplete.
    pub fn decode(bytes: &[u8]) -> Result<Self, ConstraintsError> {
        if bytes.len() > CONSTRAINTS_BYTES_MAX {
            return Err(ConstraintsError::TooLong(bytes.len()));
        }
        Ok(decode(bytes, DEPTH_MAX, &mut 0)?.canonical())
    }

    /// Encodes the constraints. Equal constraints have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        self.put(&mut out);
        out.to_vec()
    }

    fn put(&self, out: &mut BytesMut) {
        let list = |all: &[Self]| {
            let mut inner = BytesMut::new();
            all.iter().for_each(|one| put_len_field(&mut inner, 1, &one.encode()));
            inner
        };
        match self {
            Self::Always => {}
            Self::Value { key, value } => {
                let mut inner = BytesMut::new();
                put_len_field(&mut inner, 1, key.as_bytes());
                put_len_field(&mut inner, 2, value.as_bytes());
                put_len_field(out, 1, &inner);
            }
            Self::Exists { key } => {
                let mut inner = BytesMut::new();
                put_len_field(&mut inner, 1, key.as_bytes());
                inner.put_slice(&[3 << 3 | 2, 0]);
                put_len_field(out, 1, &inner);
            }
            Self::Or(all) => put_len_field(out, 2, &list(all)),
            Self::And(all) => put_len_field(out, 3, &list(all)),
            Self::Not(inner) => put_len_field(out, 4, &inner.encode()),
        }
    }
}

/// Decodes one message. Of several members of a oneof, the last one takes precedence.
fn decode(bytes: &[u8], depth: usize, nodes: &mut usize) -> Result<Constraints, ConstraintsError> {
    *nodes += 1;
    if *nodes > NODES_MAX {
        return Err(ConstraintsError::TooMany);
    }
    let Some(depth) = depth.checked_sub(1) else { return Err(ConstraintsError::TooDeep) };
    let mut found = Constraints::Always;
    let mut fields = Fields::new(0, bytes.len());
    while let Some(token) = fields.next(bytes)? {
        found = match token {
            Token::Bytes { field: 1, content } => single(content)?,
            Token::Bytes { field: 2, content } => Constraints::Or(list(content, depth, nodes)?),
            Token::Bytes { field: 3, content } => Constraints::And(list(content, depth, nodes)?),
            Token::Bytes { field: 4, content } => {
                Constraints::Not(Box::new(decode(content, depth, nodes)?))
            }
            Token::Varint { field: field @ 1..=4, .. } | Token::Fixed { field: field @ 1..=4 } => {
                return Err(WireError::Kind(field).into());
            }
            _ => found,
        }
    }
    Ok(found)
}

fn list(
    bytes: &[u8],
    depth: usize,
    nodes: &mut usize,
) -> Result<Vec<Constraints>, ConstraintsError> {
    let mut all = Vec::new();
    let mut fields = Fields::new(0, bytes.len());
    while let Some(token) = fields.next(bytes)? {
        if let Token::Bytes { field: 1, content } = token {
            all.push(decode(content, depth, nodes)?);
        }
    }
    Ok(all)
}

/// Decodes a `SingleConstraint`.
fn single(bytes: &[u8]) -> Result<Constraints, ConstraintsError> {
    let (mut key, mut condition) = ("", None);
    let mut fields = Fields::new(0, bytes.len());
    while let Some(token) = fields.next(bytes)? {
        match token {
            Token::Bytes { field: 1, content } => key = text(1, content)?,
            Token::Bytes { field: 2, content } => condition = Some(Some(text(2, content)?)),
            Token::Bytes { field: 3, .. } => condition = Some(None),
            _ => {}
        }
    }
    if key.is_empty() {
        return Err(ConstraintsError::NoKey);
    }
    match condition {
        Some(Some(value)) => Ok(Constraints::Value { key: key.into(), value: value.into() }),
        Some(None) => Ok(Constraints::Exists { key: key.into() }),
        None => Err(ConstraintsError::NoCondition(key.to_owned())),
    }
}

/// Returns the canonical elements of a list, sorted and without duplicates. An element can itself be a list
/// of the same kind, such as an `and` inside an `and`. For such an element, `inner` returns its elements,
/// which replace it.
fn flatten(
    all: Vec<Constraints>,
    inner: impl Fn(Constraints) -> Result<Vec<Constraints>, Constraints>,
) -> Vec<Constraints> {
    let mut flat = BTreeSet::new();
    for one in all {
        match inner(one.canonical()) {
            Ok(elements) => flat.extend(elements),
            Err(other) => drop(flat.insert(other)),
        }
    }
    flat.into_iter().collect()
}

/// Shows the constraints to people: `env="prod" and not version="v1"`.
impl fmt::Display for Constraints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Self], between: &str| {
            for (n, one) in all.iter().enumerate() {
                f.write_str(if n == 0 { "" } else { between })?;
                one.put_operand(f)?;
            }
            Ok(())
        };
        match self {
            Self::Always => f.write_str("always"),
            Self::Value { key, value } => write!(f, "{}={value:?}", key.escape_debug()),
            Self::Exists { key } => write!(f, "{} exists", key.escape_debug()),
            Self::Or(all) if all.is_empty() => f.write_str("never"),
            Self::Or(all) => list(f, all, " or "),
            Self::And(all) => list(f, all, " and "),
            Self::Not(inner) => {
                f.write_str("not ")?;
                inner.put_operand(f)
            }
        }
    }
}

impl Constraints {
    fn put_operand(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Or(all) if !all.is_empty() => write!(f, "({self})"),
            Self::And(_) => write!(f, "({self})"),
            _ => write!(f, "{self}"),
        }
    }
}

/// Shows parameters to people: `env="prod", version="v1"`.
#[must_use]
pub fn show_parameters(parameters: &DynamicParameters) -> String {
    let shown = parameters.iter().map(|(key, value)| format!("{}={value:?}", key.escape_debug()));
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() { "no parameters".to_owned() } else { shown.join(", ") }
}

#[cfg(test)]
mod tests;
