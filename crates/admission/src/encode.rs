//! Encodes JSON as the canonical bytes of a message.
//!
//! Fields are in ascending order of number, and map entries in the order of their keys. A nested `Any`
//! follows the same rules. Equal content therefore gives equal bytes, regardless of the order of keys in
//! the document. The encoder uses no reflected messages, because their maps have a random order.
//!
//! The encoder follows the JSON mapping of proto3, and is stricter: it rejects unknown fields, unknown enum
//! values, and `null` in lists. It collects all faults of a message.

use std::cmp::Ordering;

use chancery_model::has_private_key;
use prost::Message as _;
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

use crate::{
    credentials,
    encoder::{Encoded, Encoder},
    inspect,
    node::{Node, named},
    problem::suggestion,
    scalar::{self, Scalar, base64_decoded, double},
    sensitive, time,
    type_suggestion::suggest_type,
    wellknown::{has_own_form, is_wrapper},
    wire::put_len,
};

/// The rule against bytes of a message in another encoding.
const NOT_BASE64: &str = "is not base64; the value is not shown, because it may contain a secret";

/// Encodes the body of a message.
pub(crate) fn encode_message<'n>(
    encoder: &mut Encoder<'n>,
    message: &MessageDescriptor,
    node: &'n Node,
) -> Encoded {
    let body = match message.full_name().strip_prefix("google.protobuf.") {
        Some(name) => encode_well_known(encoder, name, message, node),
        None => encode_fields(encoder, message, node),
    }?;
    let is_json = credentials::is_json(message) || credentials::is_typed_struct(message);
    if is_json && sensitive::message_has_mark(Some(message), &body) {
        return encoder.bare_fault(sensitive::IS_MARK);
    }
    Some(body)
}

/// Encodes the body of a message without a special JSON form. The key `@type` is not a field.
pub(crate) fn encode_fields<'n>(
    encoder: &mut Encoder<'n>,
    message: &MessageDescriptor,
    node: &'n Node,
) -> Encoded {
    let Node::Map(entries) = node else {
        let what = format!("a map ({})", message.name());
        return encoder.expected_messages(&what, message, node);
    };
    let mut is_good = true;
    let mut fields: Vec<(FieldDescriptor, &'n str, &'n Node)> = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        if key == "@type" {
            continue;
        }
        let found = message.get_field_by_name(key).or_else(|| message.get_field_by_json_name(key));
        match found {
            Some(field) if value.is_null() && !takes_null(&field) => {}
            Some(field) => fields.push((field, key, value)),
            None if encoder.skips_unknown => {}
            None => {
                is_good = false;
                if encoder.hides() {
                    unknown_field::<()>(encoder, message, key)
                } else {
                    encoder.within(key, |e| unknown_field(e, message, key))
                };
            }
        }
    }
    fields.sort_by_key(|(field, _, _)| field.number());
    is_good &= are_exclusive(encoder, &fields);
    // The name of a header decides whether the other fields are secret. Without a name, they may be.
    let name = fields.iter().find(|(field, ..)| field.number() == 1);
    let has_credential = credentials::has_named_value(message)
        && name.and_then(|(.., name)| name.text()).is_none_or(credentials::names_credential);
    let mut out = Vec::new();
    for (field, key, value) in &fields {
        let hides = credentials::is(field) || has_credential && field.number() != 1;
        let written =
            encoder.within(key, |e| e.hiding(hides, |e| encode_field(e, field, value, &mut out)));
        is_good &= written.is_some();
    }
    is_good.then_some(out)
}

fn unknown_field<T>(
    encoder: &mut Encoder<'_>,
    message: &MessageDescriptor,
    key: &str,
) -> Encoded<T> {
    if encoder.is_full() {
        // The search for a similar name would be in vain.
        return encoder.bare_fault(String::new());
    }
    let fields: Vec<FieldDescriptor> = message.fields().collect();
    let names: Vec<&str> = fields.iter().map(FieldDescriptor::name).collect();
    let hint = match suggestion(key, names.iter().copied()) {
        Some(meant) => format!("; did you mean {meant:?}?"),
        None if names.is_empty() => "; it has none".to_owned(),
        None if names.len() <= 12 => format!("; it has {}", names.join(", ")),
        None => String::new(),
    };
    encoder.bare_fault(format!("{} has no such field{hint}", message.name()))
}

/// Returns whether no field occurs under both of its names, and no oneof has two fields.
fn are_exclusive<'n>(
    encoder: &mut Encoder<'n>,
    fields: &[(FieldDescriptor, &'n str, &'n Node)],
) -> bool {
    let before = encoder.n_faults();
    for pair in fields.windows(2) {
        if pair[0].0.number() == pair[1].0.number() {
            let rule = format!("{:?} and {:?} are the same field", pair[0].1, pair[1].1);
            encoder.bare_fault::<()>(rule);
        }
    }
    let mut chosen: Vec<(String, &str)> = Vec::new();
    for (field, key, _) in fields {
        let Some(oneof) = field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) else {
            continue;
        };
        match chosen.iter().find(|(name, _)| name == oneof.name()) {
            Some((_, other)) => {
                let rule = format!(
                    "{other:?} and {key:?} exclude each other: give one of {}",
                    oneof.name()
                );
                encoder.bare_fault::<()>(rule);
            }
            None => chosen.push((oneof.name().to_owned(), key)),
        }
    }
    encoder.n_faults() == before
}

/// Writes a field with its key. Writes nothing for a default value without presence.
fn encode_field<'n>(
    encoder: &mut Encoder<'n>,
    field: &FieldDescriptor,
    node: &'n Node,
    out: &mut Vec<u8>,
) -> Encoded<()> {
    let number = field.number();
    if field.is_map() {
        return encode_map(encoder, field, node, out);
    }
    if field.is_list() {
        return encode_list(encoder, field, node, out);
    }
    match field.kind() {
        Kind::Message(message) => {
            let body = encoder.deeper(1, |e| encode_message(e, &message, node))?;
            put_len(out, number, &body);
        }
        kind => {
            let scalar = encode_scalar(encoder, &kind, node)?;
            if field.supports_presence() || !scalar.is_default() {
                scalar.put_field(out, number);
            }
        }
    }
    Some(())
}

fn encode_scalar<'n>(
    encoder: &mut Encoder<'n>,
    kind: &Kind,
    node: &'n Node,
) -> Encoded<Scalar<'n>> {
    let read = scalar::read(kind, node);
    let is_mark = match (kind, node.text(), &read) {
        (Kind::Bytes, Some(sensitive::MARK | sensitive::KEY_MARK), _) => true,
        (Kind::Bytes | Kind::String, _, Ok(Scalar::Bytes(value))) => {
            sensitive::is_mark(value, encoder.hides())
        }
        _ => false,
    };
    if is_mark {
        return encoder.bare_fault(sensitive::IS_MARK);
    }
    match read {
        Err(_) if encoder.hides() => {
            let what = scalar::describe(kind);
            encoder.bare_fault(sensitive::hidden(&format!("expected {what}")))
        }
        read => encoder.noted(read),
    }
}

fn encode_list<'n>(
    encoder: &mut Encoder<'n>,
    field: &FieldDescriptor,
    node: &'n Node,
    out: &mut Vec<u8>,
) -> Encoded<()> {
    // Like Envoy's loader, the encoder accepts a single value as a list of one item.
    let items = match node {
        Node::List(items) => items,
        one => std::slice::from_ref(one),
    };
    let (number, kind) = (field.number(), field.kind());
    let mut is_good = true;
    let mut packed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let written = encoder.at_index(index, |e| {
            if item.is_null() && !takes_null(field) {
                return e.bare_fault("a list cannot hold null");
            }
            match &kind {
                Kind::Message(message) => {
                    put_len(out, number, &e.deeper(1, |e| encode_message(e, message, item))?);
                }
                kind if field.is_packed() => encode_scalar(e, kind, item)?.put_value(&mut packed),
                kind => encode_scalar(e, kind, item)?.put_field(out, number),
            }
            Some(())
        });
        is_good &= written.is_some();
    }
    if !packed.is_empty() {
        put_len(out, number, &packed);
    }
    is_good.then_some(())
}

fn encode_map<'n>(
    encoder: &mut Encoder<'n>,
    field: &FieldDescriptor,
    node: &'n Node,
    out: &mut Vec<u8>,
) -> Encoded<()> {
    let Kind::Message(entry) = field.kind() else {
        return encoder.fault("a map field without an entry type: the descriptors are damaged");
    };
    let Node::Map(entries) = node else {
        return encoder.expected_messages("a map", &entry, node);
    };
    let has_named_values = credentials::has_named_value(&entry);
    let (key_kind, value_field) =
        (entry.map_entry_key_field().kind(), entry.map_entry_value_field());
    let mut is_good = true;
    let mut encoded = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        let entry = encoder.at_key(name, |e| {
            let key = e.noted(scalar::read_key(&key_kind, name));
            if value.is_null() && !takes_null(&value_field) {
                return e.bare_fault("a map cannot hold null");
            }
            let value = match value_field.kind() {
                // The map entry is a message too, which adds a level.
                Kind::Message(message) => {
                    e.deeper(2, |e| encode_message(e, &message, value)).map(Scalar::from_body)
                }
                kind => {
                    let hides = has_named_values && credentials::names_credential(name);
                    e.hiding(hides, |e| encode_scalar(e, &kind, value))
                }
            };
            Some((key?, value?))
        });
        is_good &= entry.is_some();
        encoded.extend(entry);
    }
    encoded.sort_by(|(a, _), (b, _)| a.compare_keys(b));
    if encoded.windows(2).any(|pair| pair[0].0.compare_keys(&pair[1].0) == Ordering::Equal) {
        return encoder.fault("two keys of the map are the same");
    }
    for (key, value) in &encoded {
        let mut entry = Vec::new();
        key.put_field(&mut entry, 1);
        value.put_field(&mut entry, 2);
        put_len(out, field.number(), &entry);
    }
    is_good.then_some(())
}

/// Encodes the body of a `google.protobuf` message.
fn encode_well_known<'n>(
    encoder: &mut Encoder<'n>,
    name: &str,
    message: &MessageDescriptor,
    node: &'n Node,
) -> Encoded {
    match name {
        "Any" => encode_any(encoder, node),
        // Envoy's loader also accepts the fields of these messages.
        "Duration" | "Timestamp" if matches!(node, Node::Map(_)) => {
            let body = encode_fields(encoder, message, node)?;
            let is_valid = prost_types::Duration::decode(&*body).is_ok_and(|fields| {
                let check = if name == "Duration" { time::is_duration } else { time::is_timestamp };
                check(fields.seconds, fields.nanos)
            });
            if is_valid { Some(body) } else { encoder.fault("is out of range") }
        }
        "Duration" => {
            encode_moment(encoder, node, "a duration like \"1.5s\"", time::parse_duration)
        }
        "Timestamp" => encode_moment(
            encoder,
            node,
            "a time like \"2026-01-31T12:00:00Z\"",
            time::parse_timestamp,
        ),
        "Struct" => match node {
            Node::Map(entries) => encode_struct(encoder, entries),
            _ => encoder.bare_fault(sensitive::hidden("expected a map")),
        },
        "ListValue" => match node {
            Node::List(items) => encode_list_value(encoder, items),
            _ => encoder.expected("a list", node),
        },
        "Value" => {
            // "NaN" and "Infinity" are text here, like anything else in quotes.
            encode_value(encoder, node)
        }
        name if is_wrapper(name) && matches!(node, Node::Map(_)) => {
            encode_fields(encoder, message, node)
        }
        name if is_wrapper(name) => {
            let kind = message.get_field(1).map_or(Kind::Bytes, |field| field.kind());
            let scalar = encode_scalar(encoder, &kind, node)?;
            let mut out = Vec::new();
            if !scalar.is_default() {
                scalar.put_field(&mut out, 1);
            }
            Some(out)
        }
        _ => encode_fields(encoder, message, node),
    }
}

/// Encodes a `Duration` or a `Timestamp`, which have the same fields.
fn encode_moment<'n>(
    encoder: &mut Encoder<'n>,
    node: &'n Node,
    what: &str,
    parse: fn(&str) -> Option<(i64, i32)>,
) -> Encoded {
    let Some((seconds, nanos)) = node.text().and_then(parse) else {
        return encoder.expected(what, node);
    };
    let mut out = Vec::new();
    for (number, value) in [(1, seconds), (2, i64::from(nanos))] {
        if value != 0 {
            Scalar::Varint(u64::from_le_bytes(value.to_le_bytes())).put_field(&mut out, number);
        }
    }
    Some(out)
}

fn encode_any<'n>(encoder: &mut Encoder<'n>, node: &'n Node) -> Encoded {
    // An `Any` that is set but empty. Envoy's `FilterConfig` uses it.
    if matches!(node, Node::Map(entries) if entries.is_empty()) {
        return Some(Vec::new());
    }
    let (url, body) = encoder.deeper(1, |e| encode_any_parts(e, node))?;
    let mut out = Vec::with_capacity(body.len() + url.len() + 8);
    put_len(&mut out, 1, url.as_bytes());
    if !body.is_empty() {
        put_len(&mut out, 2, &body);
    }
    Some(out)
}

/// Returns the type URL and the body of an `Any` or of a resource.
pub(crate) fn encode_any_parts<'n>(
    encoder: &mut Encoder<'n>,
    node: &'n Node,
) -> Encoded<(&'n str, Vec<u8>)> {
    let Node::Map(entries) = node else {
        return encoder.expected("a map with \"@type\"", node);
    };
    let url = match node.get("@type") {
        Some(Node::Text(url)) => url,
        Some(other) => return encoder.within("@type", |e| e.expected("a type URL", other)),
        None => return encoder.fault("\"@type\" is missing"),
    };
    if has_private_key(url.as_bytes()) {
        return encoder.within("@type", |e| e.bare_fault(sensitive::IS_KEY));
    }
    let name = match inspect::message_name(encoder.pool, url) {
        Ok(name) => name,
        Err(rule) => return encoder.within("@type", |e| e.fault(rule)),
    };
    let message = encoder.pool.get_message_by_name(name);
    // The value of `{"@type": …, "value": …}` without other keys.
    let only_value = match entries.as_slice() {
        [(_, _), (_, _)] => node.get("value"),
        _ => None,
    };
    let body = match (message, only_value) {
        (Some(message), value) if has_own_form(message.full_name()) => {
            encode_own_form(encoder, &message, entries, value)?
        }
        (Some(message), Some(Node::Text(text))) if message.get_field_by_name("value").is_none() => {
            encoder.within("value", |e| {
                let body = decode_base64(e, text)?;
                let found = inspect::check(&message, &body);
                e.noted(found.map_err(|fault| {
                    format!("not an encoded {}: {}", message.name(), fault.in_words())
                }))?;
                Some(body)
            })?
        }
        (Some(message), _) => encode_fields(encoder, &message, node)?,
        (None, Some(value)) => encoder.within("value", |e| match value {
            Node::Text(text) => decode_base64(e, text),
            _ => e.expected("base64 text, because the type is unknown", value),
        })?,
        (None, None) => return unknown_type(encoder, url, name),
    };
    Some((url, body))
}

fn encode_own_form<'n>(
    encoder: &mut Encoder<'n>,
    message: &MessageDescriptor,
    entries: &'n [(String, Node)],
    value: Option<&'n Node>,
) -> Encoded {
    match (entries, value) {
        (_, Some(value)) => encoder.within("value", |e| encode_message(e, message, value)),
        ([_], None) if message.name() == "Empty" => Some(Vec::new()),
        _ => encoder.fault(format!(
            "a {} is written {{\"@type\": …, \"value\": …}}, with no other keys",
            message.name()
        )),
    }
}

fn unknown_type<T>(encoder: &mut Encoder<'_>, url: &str, name: &str) -> Encoded<T> {
    let prefix = url.strip_suffix(name).unwrap_or_default();
    let meant = suggest_type(encoder.pool, name);
    let hint = match meant {
        Some(meant) => format!("did you mean \"{prefix}{meant}\"?"),
        None => {
            "write an unknown type as {\"@type\": …, \"value\": <base64 of the encoded message>}"
                .to_owned()
        }
    };
    encoder.within("@type", |e| e.fault(format!("unknown type {}; {hint}", named(name))))
}

/// Decodes the bytes of a message. They may contain secrets.
fn decode_base64(encoder: &mut Encoder<'_>, text: &str) -> Encoded {
    let is_mark =
        |text: &[u8]| [sensitive::MARK, sensitive::KEY_MARK].map(str::as_bytes).contains(&text);
    match base64_decoded(text) {
        _ if is_mark(text.as_bytes()) => encoder.bare_fault(sensitive::IS_MARK),
        Ok(body) if is_mark(&body) => encoder.bare_fault(sensitive::IS_MARK),
        Ok(body) => Some(body),
        Err(_) => encoder.bare_fault(NOT_BASE64),
    }
}

/// Encodes a `Struct`, with its entries sorted by key.
fn encode_struct<'n>(encoder: &mut Encoder<'n>, entries: &'n [(String, Node)]) -> Encoded {
    let mut sorted: Vec<&'n (String, Node)> = entries.iter().collect();
    sorted.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    let mut out = Vec::new();
    let mut is_good = true;
    for (key, value) in sorted {
        // The map entry is a message too, which adds a level.
        let value = encoder.at_key(key, |e| e.deeper(2, |e| encode_value(e, value)));
        is_good &= value.is_some();
        let Some(value) = value else { continue };
        let mut entry = Vec::new();
        put_len(&mut entry, 1, key.as_bytes());
        put_len(&mut entry, 2, &value);
        put_len(&mut out, 1, &entry);
    }
    is_good.then_some(out)
}

fn encode_list_value<'n>(encoder: &mut Encoder<'n>, items: &'n [Node]) -> Encoded {
    let mut out = Vec::new();
    let mut is_good = true;
    for (index, item) in items.iter().enumerate() {
        match encoder.at_index(index, |e| e.deeper(1, |e| encode_value(e, item))) {
            Some(value) => put_len(&mut out, 1, &value),
            None => is_good = false,
        }
    }
    is_good.then_some(out)
}

fn encode_value<'n>(encoder: &mut Encoder<'n>, node: &'n Node) -> Encoded {
    encoder.doubts.note(node);
    let mut out = Vec::new();
    match node {
        Node::Null => Scalar::Varint(0).put_field(&mut out, 1),
        Node::Bool(value) => Scalar::Varint((*value).into()).put_field(&mut out, 4),
        Node::Text(text) => put_len(&mut out, 3, text.as_bytes()),
        Node::Map(entries) => {
            put_len(&mut out, 5, &encoder.deeper(1, |e| encode_struct(e, entries))?);
        }
        Node::List(items) => {
            put_len(&mut out, 6, &encoder.deeper(1, |e| encode_list_value(e, items))?)
        }
        Node::Int(_) | Node::Uint(_) | Node::Float(_) => {
            let number = encoder.noted(double(node))?;
            Scalar::Fixed64(number.to_le_bytes()).put_field(&mut out, 2);
        }
    }
    Some(out)
}

/// Returns whether `null` is a value of the field, and not its absence.
fn takes_null(field: &FieldDescriptor) -> bool {
    match field.kind() {
        Kind::Message(message) => message.full_name() == "google.protobuf.Value",
        Kind::Enum(kind) => kind.full_name() == "google.protobuf.NullValue",
        _ => false,
    }
}
