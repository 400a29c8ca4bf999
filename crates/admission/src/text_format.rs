//! Reads and writes a `DiscoveryResponse` in the protobuf text format.
//!
//! The reader of `prost-reflect` has no limits and does not tell where an error is. The text is therefore split
//! at the end of each outermost message, which bounds the nesting and gives an error its resource and line.
//! The writer sorts the entries of maps, so that equal content is equal text.

use std::fmt::Write;

use bytes::Bytes;
use chancery_proto::discovery::DiscoveryResponse;
use prost::Message;
use prost_reflect::{DynamicMessage, Kind, MapKey, MessageDescriptor, ReflectMessage, Value};

use crate::{
    inspect::DEPTH_MAX,
    problem::{Place, Problem},
    render,
    source::on_large_stack,
};

const RESPONSE: &str = "envoy.service.discovery.v3.DiscoveryResponse";

/// Reads a response.
pub(crate) fn read(place: &Place<'_>, text: &str) -> Result<DiscoveryResponse, Problem> {
    on_large_stack(|| read_here(place, text))
        .map_err(|problem| Problem { file: place.file.to_owned(), ..problem })?
}

fn read_here(place: &Place<'_>, text: &str) -> Result<DiscoveryResponse, Problem> {
    let broken = |rule: String| place.problem("", rule);
    let message = chancery_proto::envoy_pool().get_message_by_name(RESPONSE);
    let message = message.ok_or_else(|| broken("the descriptors are damaged".to_owned()))?;
    let mut response = DynamicMessage::new(message);
    let mut line = 1;
    for piece in pieces(text) {
        let n_resources = response
            .get_field_by_name("resources")
            .and_then(|list| list.as_list().map(<[Value]>::len))
            .unwrap_or_default();
        let blank = piece.text.len() - piece.text.trim_start().len();
        let first_line = line + lines(&piece.text[..blank]);
        line += lines(piece.text);
        let at = |rule: String| {
            let resource =
                piece.text.contains("resources").then(|| format!("resources[{n_resources}]"));
            let problem = Place { resource, ..place.clone() }.problem("", rule);
            Problem { position: Some((first_line, 1)), ..problem }
        };
        if piece.is_too_deep {
            return Err(at(format!("nested deeper than {DEPTH_MAX} messages")));
        }
        response.merge_text_format(piece.text).map_err(|error| {
            // The rest would quote the text, which may be a secret.
            let error = error.to_string();
            let rule = error.split(", but found").next().unwrap_or(&error);
            at(format!("not the protobuf text format: {rule}"))
        })?;
    }
    let encoded = Bytes::from(response.encode_to_vec());
    DiscoveryResponse::decode(encoded)
        .map_err(|error| broken(format!("not a DiscoveryResponse: {error}")))
}

fn lines(text: &str) -> u32 {
    u32::try_from(text.matches('\n').count()).unwrap_or(u32::MAX)
}

/// A part of a text that has whole fields of the response.
struct Piece<'a> {
    text: &'a str,
    is_too_deep: bool,
}

/// Splits after each bracket that closes an outermost value.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let bytes = text.as_bytes();
    let (mut pieces, mut start, mut at) = (Vec::new(), 0, 0);
    let (mut depth, mut deepest) = (0_usize, 0);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'#' => at += bytes[at..].iter().take_while(|byte| **byte != b'\n').count(),
            b'"' | b'\'' => at += string_len(&bytes[at..], byte),
            b'{' | b'<' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b'>' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    // A separator belongs to the value before it.
                    let rest = &bytes[at..];
                    let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                    if rest.get(blank).is_some_and(|byte| matches!(byte, b',' | b';')) {
                        at += blank + 1;
                    }
                    let is_too_deep = deepest > DEPTH_MAX;
                    pieces.push(Piece { text: &text[start..at], is_too_deep });
                    (start, deepest) = (at, 0);
                }
            }
            _ => {}
        }
    }
    pieces.push(Piece { text: &text[start..], is_too_deep: deepest > DEPTH_MAX });
    pieces
}

/// Returns the length of the rest of a string literal, with its end.
fn string_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 0;
    while let Some(&byte) = rest.get(at) {
        at += 1;
        match byte {
            b'\\' => at += 1,
            byte if byte == quote => break,
            _ => {}
        }
    }
    at.min(rest.len())
}

/// Writes a response with the given resources: their type URLs and bodies.
pub(crate) fn write<'a>(
    version: &str,
    type_url: &str,
    resources: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> String {
    let mut writer = Writer::default();
    writer.line(format_args!("version_info: {}", quoted(version.as_bytes())));
    for (resource_url, body) in resources {
        writer.block("resources", |writer| writer.any(resource_url, body, 0));
    }
    writer.line(format_args!("type_url: {}", quoted(type_url.as_bytes())));
    writer.out
}

#[derive(Default)]
struct Writer {
    out: String,
    indent: usize,
}

impl Writer {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{:indent$}{text}", "", indent = self.indent);
    }

    fn block(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        self.line(format_args!("{name} {{"));
        self.indent += 2;
        write(self);
        self.indent -= 2;
        self.line(format_args!("}}"));
    }

    /// Writes an `Any`: with its fields, or with its bytes if the type or a field is unknown.
    fn any(&mut self, type_url: &str, body: &[u8], depth: usize) {
        match known(type_url, body).filter(|_| depth < DEPTH_MAX) {
            Some(message) => {
                self.block(&format!("[{type_url}]"), |writer| writer.fields(&message, depth + 1));
            }
            None => {
                self.line(format_args!("type_url: {}", quoted(type_url.as_bytes())));
                self.line(format_args!("value: {}", quoted(body)));
            }
        }
    }

    fn fields(&mut self, message: &DynamicMessage, depth: usize) {
        if message.descriptor().full_name() == "google.protobuf.Any" {
            let field = |number| message.get_field_by_number(number);
            if let (Some(url), Some(body)) = (field(1), field(2))
                && let (Some(url), Some(body)) = (url.as_str(), body.as_bytes())
            {
                return self.any(url, body, depth);
            }
        }
        for (field, value) in message.fields() {
            match value {
                Value::List(items) => {
                    items.iter().for_each(|it| self.field(field.name(), &field.kind(), it, depth))
                }
                Value::Map(entries) => {
                    let Kind::Message(entry) = field.kind() else { continue };
                    let kind = entry.map_entry_value_field().kind();
                    let mut entries: Vec<_> = entries.iter().collect();
                    entries.sort_by_cached_key(|(key, _)| key_text(key));
                    for (key, value) in entries {
                        self.block(field.name(), |writer| {
                            writer.line(format_args!("key: {}", key_text(key)));
                            writer.field("value", &kind, value, depth);
                        });
                    }
                }
                value => self.field(field.name(), &field.kind(), value, depth),
            }
        }
    }

    fn field(&mut self, name: &str, kind: &Kind, value: &Value, depth: usize) {
        match value {
            Value::Message(message) => {
                self.block(name, |writer| writer.fields(message, depth + 1));
            }
            Value::String(text) => self.line(format_args!("{name}: {}", quoted(text.as_bytes()))),
            Value::Bytes(bytes) => self.line(format_args!("{name}: {}", quoted(bytes))),
            Value::Bool(value) => self.line(format_args!("{name}: {value}")),
            Value::I32(value) => self.line(format_args!("{name}: {value}")),
            Value::I64(value) => self.line(format_args!("{name}: {value}")),
            Value::U32(value) => self.line(format_args!("{name}: {value}")),
            Value::U64(value) => self.line(format_args!("{name}: {value}")),
            // Readers convert the digits to a double first, so the digits are those of the double.
            Value::F32(value) => self.line(format_args!("{name}: {}", f64::from(*value))),
            Value::F64(value) => self.line(format_args!("{name}: {value}")),
            Value::EnumNumber(number) => {
                let known = match kind {
                    Kind::Enum(kind) => kind.get_value(*number),
                    _ => None,
                };
                match known {
                    Some(value) => self.line(format_args!("{name}: {}", value.name())),
                    None => self.line(format_args!("{name}: {number}")),
                }
            }
            // A list has lists and maps neither as items nor as values.
            Value::List(_) | Value::Map(_) => {}
        }
    }
}

/// Decodes a body if the type and all its fields are known.
fn known(type_url: &str, body: &[u8]) -> Option<DynamicMessage> {
    let (prefix, name) = type_url.rsplit_once('/')?;
    let is_word = |word: &str| {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        word.starts_with(first) && word.chars().all(|c| first(c) || c.is_ascii_digit())
    };
    let message: MessageDescriptor = chancery_proto::envoy_pool().get_message_by_name(name)?;
    let decoded = prefix
        .split('.')
        .all(is_word)
        .then(|| DynamicMessage::decode(message, body).ok())
        .flatten()?;
    has_only_known_fields(&decoded).then_some(decoded)
}

fn has_only_known_fields(message: &DynamicMessage) -> bool {
    fn is_known(value: &Value) -> bool {
        match value {
            Value::Message(message) => has_only_known_fields(message),
            Value::List(items) => items.iter().all(is_known),
            Value::Map(entries) => entries.values().all(is_known),
            _ => true,
        }
    }
    message.unknown_fields().next().is_none() && message.fields().all(|(_, value)| is_known(value))
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::String(value) => quoted(value.as_bytes()),
        other => render::key_text(other),
    }
}

/// Returns a string literal. All bytes but printable ASCII are escaped.
fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b'\n' => out.push_str("\\n"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push('"');
    out
}
