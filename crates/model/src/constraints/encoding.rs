//! The protobuf form of constraints, within bounds.

use bytes::{BufMut, BytesMut};

use super::Constraints;
use crate::wire::{Fields, Token, WireError, put_len_field, text};

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

impl Constraints {
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
