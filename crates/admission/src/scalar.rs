//! Converts scalars from JSON to their wire format.

use std::{borrow::Cow, cmp::Ordering};

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use prost_reflect::{EnumDescriptor, Kind};

use crate::{
    node::{EXACT_MAX, Node, shown},
    problem::suggestion,
    wire::{WireType, put_key, put_varint},
};

/// An encoded scalar.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar<'n> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
    Bytes(Cow<'n, [u8]>),
}

impl Scalar<'_> {
    /// Creates a scalar from the body of a message, which is encoded like bytes.
    pub(crate) fn from_body(body: Vec<u8>) -> Self {
        Self::Bytes(Cow::Owned(body))
    }

    /// Returns whether the value is zero or empty. Minus zero is not zero.
    pub(crate) fn is_default(&self) -> bool {
        match self {
            Self::Varint(value) => *value == 0,
            Self::Fixed32(value) => *value == [0; 4],
            Self::Fixed64(value) => *value == [0; 8],
            Self::Bytes(value) => value.is_empty(),
        }
    }

    /// Compares map keys. Any order suffices if it never changes.
    pub(crate) fn compare_keys(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Varint(a), Self::Varint(b)) => a.cmp(b),
            (Self::Fixed32(a), Self::Fixed32(b)) => a.cmp(b),
            (Self::Fixed64(a), Self::Fixed64(b)) => a.cmp(b),
            (Self::Bytes(a), Self::Bytes(b)) => a.cmp(b),
            // All keys of a map have the same kind.
            _ => Ordering::Equal,
        }
    }

    /// Writes the value with its key.
    pub(crate) fn put_field(&self, out: &mut Vec<u8>, number: u32) {
        let wire_type = match self {
            Self::Bytes(_) => WireType::Len,
            Self::Varint(_) => WireType::Varint,
            Self::Fixed32(_) => WireType::Fixed32,
            Self::Fixed64(_) => WireType::Fixed64,
        };
        put_key(out, number, wire_type);
        self.put_value(out);
    }

    /// Writes the value without its key.
    pub(crate) fn put_value(&self, out: &mut Vec<u8>) {
        match self {
            Self::Varint(value) => put_varint(out, *value),
            Self::Fixed32(value) => out.extend_from_slice(value),
            Self::Fixed64(value) => out.extend_from_slice(value),
            Self::Bytes(value) => {
                put_varint(out, value.len() as u64);
                out.extend_from_slice(value);
            }
        }
    }
}

type Read<'n> = Result<Scalar<'n>, String>;

fn expected<T>(what: &str, found: &Node) -> Result<T, String> {
    Err(format!("expected {what}, found {found}"))
}

/// Reads a value of any kind except a message.
pub(crate) fn read<'n>(kind: &Kind, node: &'n Node) -> Read<'n> {
    Ok(match kind {
        Kind::Bool => match node {
            Node::Bool(value) => Scalar::Varint((*value).into()),
            Node::Text(text) => match boolean(text) {
                Some(value) => Scalar::Varint(value.into()),
                None => return expected("true or false", node),
            },
            _ => return expected("true or false", node),
        },
        Kind::Int32 => Scalar::Varint(sign_extended(integer::<i32>(node)?.into())),
        Kind::Int64 => Scalar::Varint(sign_extended(integer(node)?)),
        Kind::Sint32 => Scalar::Varint(zigzag(integer::<i32>(node)?.into())),
        Kind::Sint64 => Scalar::Varint(zigzag(integer(node)?)),
        Kind::Sfixed32 => Scalar::Fixed32(integer::<i32>(node)?.to_le_bytes()),
        Kind::Sfixed64 => Scalar::Fixed64(integer::<i64>(node)?.to_le_bytes()),
        Kind::Uint32 => Scalar::Varint(integer::<u32>(node)?.into()),
        Kind::Uint64 => Scalar::Varint(integer(node)?),
        Kind::Fixed32 => Scalar::Fixed32(integer::<u32>(node)?.to_le_bytes()),
        Kind::Fixed64 => Scalar::Fixed64(integer::<u64>(node)?.to_le_bytes()),
        Kind::Float => Scalar::Fixed32(single(node)?.to_le_bytes()),
        Kind::Double => Scalar::Fixed64(double(node)?.to_le_bytes()),
        Kind::String => match node {
            Node::Text(text) => Scalar::Bytes(Cow::Borrowed(text.as_bytes())),
            Node::Bool(_) | Node::Int(_) | Node::Uint(_) | Node::Float(_) => {
                return expected("text", node).map_err(|rule: String| rule + "; put it in quotes");
            }
            _ => return expected("text", node),
        },
        Kind::Bytes => match node {
            Node::Text(text) => Scalar::Bytes(Cow::Owned(base64_decoded(text)?)),
            _ => return expected("base64 text", node),
        },
        Kind::Enum(kind) => Scalar::Varint(sign_extended(enum_number(kind, node)?.into())),
        Kind::Message(message) => return expected(&format!("a map ({})", message.name()), node),
    })
}

/// Returns the value of a text in a boolean field. Envoy's loader accepts these words in any case.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// Describes the values of a kind, for people.
pub(crate) fn describe(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "text".to_owned(),
        Kind::Bytes => "base64 text".to_owned(),
        Kind::Float | Kind::Double => "a number".to_owned(),
        Kind::Enum(kind) => format!("a value of {}", kind.name()),
        Kind::Message(message) => format!("a map ({})", message.name()),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => i32::RANGE.to_owned(),
        Kind::Uint32 | Kind::Fixed32 => u32::RANGE.to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => i64::RANGE.to_owned(),
        Kind::Uint64 | Kind::Fixed64 => u64::RANGE.to_owned(),
    }
}

/// Reads the key of a map entry. JSON keys are always text.
pub(crate) fn read_key(kind: &Kind, key: &str) -> Result<Scalar<'static>, String> {
    let node = match (kind, key) {
        (Kind::Bool, "true") => Node::Bool(true),
        (Kind::Bool, "false") => Node::Bool(false),
        _ => Node::Text(key.to_owned()),
    };
    Ok(match read(kind, &node)? {
        Scalar::Bytes(bytes) => Scalar::Bytes(Cow::Owned(bytes.into_owned())),
        Scalar::Varint(value) => Scalar::Varint(value),
        Scalar::Fixed32(value) => Scalar::Fixed32(value),
        Scalar::Fixed64(value) => Scalar::Fixed64(value),
    })
}

/// Returns the value as an unsigned varint. A negative value takes ten bytes.
fn sign_extended(value: i64) -> u64 {
    u64::from_le_bytes(value.to_le_bytes())
}

fn zigzag(value: i64) -> u64 {
    sign_extended((value << 1) ^ (value >> 63))
}

/// Returns the exact integer in a number or a text.
fn whole(node: &Node) -> Option<i128> {
    match node {
        Node::Int(value) => Some((*value).into()),
        Node::Uint(value) => Some((*value).into()),
        Node::Float(value) => from_float(*value),
        Node::Text(text) if text.len() <= 40 => match text.parse() {
            Ok(value) => Some(value),
            Err(_) => number_text(text).and_then(from_float),
        },
        _ => None,
    }
}

/// Returns the value of a number with a point or an exponent, if it is whole and surely not rounded.
pub(crate) fn from_float(value: f64) -> Option<i128> {
    (value.abs() <= EXACT_MAX).then(|| whole_float(value)).flatten()
}

/// Returns the exact value of a float without a fraction.
fn whole_float(value: f64) -> Option<i128> {
    // The decimal form without digits after the point is exact, and has no exponent.
    (value.fract() == 0.0).then(|| format!("{value:.0}").parse().ok()).flatten()
}

/// Parses a number in digits, also one such as `.5`. Rejects `inf` and `nan`, which the standard library accepts.
fn number_text(text: &str) -> Option<f64> {
    let is_number = text.contains(|c: char| c.is_ascii_digit());
    text.parse().ok().filter(|value: &f64| is_number && value.is_finite())
}

/// The integers of a kind, with a description for people.
trait Integer: TryFrom<i128> {
    const RANGE: &'static str;
}
impl Integer for i32 {
    const RANGE: &'static str = "a whole number from -2147483648 to 2147483647";
}
impl Integer for u32 {
    const RANGE: &'static str = "a whole number from 0 to 4294967295";
}
impl Integer for i64 {
    const RANGE: &'static str = "a 64-bit integer";
}
impl Integer for u64 {
    const RANGE: &'static str = "a non-negative 64-bit integer";
}

fn integer<T: Integer>(node: &Node) -> Result<T, String> {
    match whole(node).map(T::try_from) {
        Some(Ok(value)) => Ok(value),
        _ => match node {
            Node::Float(value) if value.abs() > EXACT_MAX => {
                expected(&format!("{} in digits only", T::RANGE), node)
            }
            _ => expected(T::RANGE, node),
        },
    }
}

/// Returns `nearest` if it is the whole number that the node contains, or if that is not a whole number
/// in digits. A fraction is rounded, as everywhere. A whole number is often an identifier.
fn exact(node: &Node, nearest: f64) -> Result<f64, String> {
    let given: Option<i128> = match node {
        Node::Int(value) => Some((*value).into()),
        Node::Uint(value) => Some((*value).into()),
        Node::Text(text) if text.len() <= 40 => text.parse().ok(),
        _ => None,
    };
    let stored = whole_float(nearest);
    match (given, stored) {
        // The number is not shown, because it may be a secret.
        (Some(given), Some(stored)) if given != stored => Err(
            "the whole number would be rounded, because the field holds a floating-point number; \
             write a number that the field can represent exactly, or text in quotes where the field \
             accepts text"
                .to_owned(),
        ),
        _ => Ok(nearest),
    }
}

pub(crate) fn double(node: &Node) -> Result<f64, String> {
    let value = match node {
        Node::Int(value) => number_text(&value.to_string()),
        Node::Uint(value) => number_text(&value.to_string()),
        Node::Float(value) => Some(*value),
        Node::Text(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            text => number_text(text),
        },
        _ => None,
    };
    value.map_or_else(|| expected("a number", node), |value| exact(node, value))
}

fn single(node: &Node) -> Result<f32, String> {
    let value = double(node)?;
    // Through text, which gives the nearest number: the standard library has no checked conversion.
    let single: f32 = value.to_string().parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && single.is_infinite() {
        return expected("a number in the range of a 32-bit float", node);
    }
    exact(node, single.into())?;
    Ok(single)
}

fn enum_number(kind: &EnumDescriptor, node: &Node) -> Result<i32, String> {
    if kind.full_name() == "google.protobuf.NullValue" && node.is_null() {
        return Ok(0);
    }
    let found = match node {
        Node::Text(name) => match enum_value(kind, name) {
            Some(number) => return Ok(number),
            None => format!("has no value {}", shown(name)),
        },
        Node::Int(_) | Node::Uint(_) | Node::Float(_) => {
            let number = whole(node).and_then(|number| i32::try_from(number).ok());
            match number.filter(|number| kind.get_value(*number).is_some()) {
                Some(number) => return Ok(number),
                None => format!("has no value for {node}"),
            }
        }
        _ => return expected(&format!("a value of {}", kind.name()), node),
    };
    let values: Vec<String> = kind.values().map(|value| value.name().to_owned()).collect();
    let meant = node
        .text()
        .and_then(|name| suggestion(&name.to_uppercase(), values.iter().map(String::as_str)));
    Err(match meant {
        Some(meant) => format!("{} {found}; did you mean {meant}?", kind.name()),
        None if values.len() <= 12 => {
            format!("{} {found}; it has {}", kind.name(), values.join(", "))
        }
        None => format!("{} {found}", kind.name()),
    })
}

/// Returns the number of the value with a name, or with a number as text. Like Envoy's loader, it accepts names in
/// any case, but no hyphen in place of an underscore.
fn enum_value(kind: &EnumDescriptor, name: &str) -> Option<i32> {
    if let Some(value) = kind.get_value_by_name(name) {
        return Some(value.number());
    }
    if let Ok(number) = name.parse() {
        return kind.get_value(number).map(|value| value.number());
    }
    let mut near = kind.values().filter(|value| value.name().eq_ignore_ascii_case(name));
    let number = near.next()?.number();
    near.all(|other| other.number() == number).then_some(number)
}

/// Decodes base64 as the JSON mapping accepts it: standard or URL-safe alphabet, with or without padding.
pub(crate) fn base64_decoded(text: &str) -> Result<Vec<u8>, String> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let is_url_safe = text.contains(['-', '_']);
    let alphabet = if is_url_safe { &URL_SAFE } else { &STANDARD };
    GeneralPurpose::new(alphabet, config)
        .decode(text)
        .map_err(|_| format!("{} is not base64", shown(text)))
}
