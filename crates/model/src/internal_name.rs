//! The internal names of variants, and of subscriptions with parameters.
//!
//! Inside the server, a name alone identifies a resource of a type. The name of a variant therefore
//! contains its constraints, after a control character that no published name can have (DYN-02).
//! Views, histories and sessions need no second key. A subscription with parameters has such a name,
//! too. Clients and operators never see or write these names.
//!
//! ```text
//! name                                        a resource without constraints; a plain subscription
//! name U+0001 <constraints in hexadecimal>    a variant
//! name U+0002 <key>=<value>&<key>=<value>     a subscription with parameters
//! ```

use std::{borrow::Cow, fmt::Write};

use bytes::BytesMut;

use crate::{Constraints, DynamicParameters, wire::put_len_field};

/// The character between a name and constraints.
pub(crate) const VARIANT: char = '\u{1}';
const PARAMETERS: char = '\u{2}';

/// Returns whether a name contains a character that only internal names have.
#[must_use]
pub fn has_internal_mark(name: &str) -> bool {
    name.bytes().any(|byte| byte == 1 || byte == 2)
}

/// Returns the name of a subscription with parameters.
#[must_use]
pub fn located_name(name: &str, parameters: &DynamicParameters) -> String {
    let mut text = name.to_owned();
    let mut separator = PARAMETERS;
    for (key, value) in parameters {
        text.push(separator);
        put_escaped(&mut text, key);
        text.push('=');
        put_escaped(&mut text, value);
        separator = '&';
    }
    text
}

/// Returns the published part of a name: without constraints and parameters.
#[must_use]
pub fn base_of(name: &str) -> &str {
    name.split([VARIANT, PARAMETERS]).next().unwrap_or(name)
}

/// Returns the published name of a subscription with parameters, or `None` for any other name.
#[must_use]
pub fn base_of_located(name: &str) -> Option<&str> {
    name.split_once(PARAMETERS).map(|(base, _)| base)
}

/// Returns the parameters of a subscription by its name, or `None` if it has none.
#[must_use]
pub fn parameters_of(name: &str) -> Option<DynamicParameters> {
    let (_, text) = name.split_once(PARAMETERS)?;
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    Some(pairs.map(|(key, value)| (unescaped(key), unescaped(value))).collect())
}

/// Returns the constraints in the name of a variant.
pub(crate) fn constraints_of(name: &str) -> Option<Constraints> {
    let (_, digits) = name.split_once(VARIANT)?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    Constraints::decode(&bytes?).ok()
}

/// Encodes `envoy.service.discovery.v3.ResourceName`. Plain names have no constraints.
#[must_use]
pub fn encode_resource_name(name: &str, constraints: Option<&Constraints>) -> BytesMut {
    let mut out = BytesMut::new();
    put_len_field(&mut out, 1, name.as_bytes());
    if let Some(constraints) = constraints {
        put_len_field(&mut out, 2, &constraints.encode());
    }
    out
}

/// Returns a name as people read it: the constraints or parameters are in brackets.
pub(crate) fn shown(name: &str) -> Cow<'_, str> {
    if let Some(constraints) = constraints_of(name) {
        return format!("{} [{constraints}]", base_of(name)).into();
    }
    match parameters_of(name) {
        Some(parameters) => {
            format!("{} [{}]", base_of(name), crate::show_parameters(&parameters)).into()
        }
        None => name.into(),
    }
}

/// Returns the number of bytes that a key or a value takes in the name of a subscription.
#[must_use]
pub fn escaped_len(text: &[u8]) -> usize {
    text.len() + 2 * text.iter().filter(|byte| is_escaped(**byte)).count()
}

fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'%' | b'&' | b'=') || byte.is_ascii_control()
}

/// Adds text without the characters that separate parameters.
fn put_escaped(out: &mut String, text: &str) {
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = if u8::try_from(c).is_ok_and(is_escaped) {
            write!(out, "%{:02x}", u32::from(c))
        } else {
            out.write_char(c)
        };
    }
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        out.extend(code.map(char::from));
        out.push_str(part.get(2..).unwrap_or_default());
    }
    out
}
