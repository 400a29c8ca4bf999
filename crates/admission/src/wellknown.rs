//! Encodes the `google.protobuf` types with a special JSON form, and `Any`.

use chancery_model::has_private_key;
use prost::Message as _;
use prost_reflect::{Kind, MessageDescriptor};

use crate::{
    encode::{Encoded, Encoder},
    inspect,
    node::{Node, named},
    problem::suggestion,
    scalar::{Scalar, base64_decoded, double},
    sensitive, time,
    wire::put_len,
};

/// Returns whether the JSON form of a type is not a map of its fields. Inside an `Any`, the form is then
/// under the key `value`.
pub(crate) fn has_own_form(full_name: &str) -> bool {
    full_name.strip_prefix("google.protobuf.").is_some_and(|name| {
        is_wrapper(name)
            || matches!(
                name,
                "Any" | "Duration" | "Empty" | "ListValue" | "Struct" | "Timestamp" | "Value"
            )
    })
}

pub(crate) fn is_wrapper(name: &str) -> bool {
    matches!(
        name,
        "BoolValue"
            | "BytesValue"
            | "DoubleValue"
            | "FloatValue"
            | "Int32Value"
            | "Int64Value"
            | "StringValue"
            | "UInt32Value"
            | "UInt64Value"
    )
}

impl<'n> Encoder<'n> {
    /// Encodes the body of a `google.protobuf` message.
    pub(crate) fn well_known(
        &mut self,
        name: &str,
        message: &MessageDescriptor,
        node: &'n Node,
    ) -> Encoded {
        match name {
            "Any" => self.any(node),
            // Envoy's loader also accepts the fields of these messages.
            "Duration" | "Timestamp" if matches!(node, Node::Map(_)) => {
                let body = self.fields(message, node)?;
                let is_valid = prost_types::Duration::decode(&*body).is_ok_and(|fields| {
                    let check =
                        if name == "Duration" { time::is_duration } else { time::is_timestamp };
                    check(fields.seconds, fields.nanos)
                });
                if is_valid { Some(body) } else { self.fault("is out of range") }
            }
            "Duration" => self.moment(node, "a duration like \"1.5s\"", time::parse_duration),
            "Timestamp" => {
                self.moment(node, "a time like \"2026-01-31T12:00:00Z\"", time::parse_timestamp)
            }
            "Struct" => match node {
                Node::Map(entries) => self.struct_body(entries),
                _ => self.bare_fault(sensitive::hidden("expected a map")),
            },
            "ListValue" => match node {
                Node::List(items) => self.list_body(items),
                _ => self.expected("a list", node),
            },
            "Value" => {
                // "NaN" and "Infinity" are text here, like anything else in quotes.
                self.value_body(node)
            }
            name if is_wrapper(name) && matches!(node, Node::Map(_)) => self.fields(message, node),
            name if is_wrapper(name) => {
                let kind = message.get_field(1).map_or(Kind::Bytes, |field| field.kind());
                let scalar = self.scalar(&kind, node)?;
                let mut out = Vec::new();
                if !scalar.is_default() {
                    scalar.put_field(&mut out, 1);
                }
                Some(out)
            }
            _ => self.fields(message, node),
        }
    }

    /// Encodes a `Duration` or a `Timestamp`, which have the same fields.
    fn moment(
        &mut self,
        node: &'n Node,
        what: &str,
        parse: fn(&str) -> Option<(i64, i32)>,
    ) -> Encoded {
        let Some((seconds, nanos)) = node.text().and_then(parse) else {
            return self.expected(what, node);
        };
        let mut out = Vec::new();
        for (number, value) in [(1, seconds), (2, i64::from(nanos))] {
            if value != 0 {
                Scalar::Varint(u64::from_le_bytes(value.to_le_bytes())).put_field(&mut out, number);
            }
        }
        Some(out)
    }

    fn any(&mut self, node: &'n Node) -> Encoded {
        // An `Any` that is set but empty. Envoy's `FilterConfig` uses it.
        if matches!(node, Node::Map(entries) if entries.is_empty()) {
            return Some(Vec::new());
        }
        let (url, body) = self.deeper(1, |e| e.any_parts(node))?;
        let mut out = Vec::with_capacity(body.len() + url.len() + 8);
        put_len(&mut out, 1, url.as_bytes());
        if !body.is_empty() {
            put_len(&mut out, 2, &body);
        }
        Some(out)
    }

    /// Returns the type URL and the body of an `Any` or of a resource.
    pub(crate) fn any_parts(&mut self, node: &'n Node) -> Encoded<(&'n str, Vec<u8>)> {
        let Node::Map(entries) = node else {
            return self.expected("a map with \"@type\"", node);
        };
        let url = match node.get("@type") {
            Some(Node::Text(url)) => url,
            Some(other) => return self.within("@type", |e| e.expected("a type URL", other)),
            None => return self.fault("\"@type\" is missing"),
        };
        if has_private_key(url.as_bytes()) {
            return self.within("@type", |e| e.bare_fault(sensitive::IS_KEY));
        }
        let name = match inspect::message_name(self.pool, url) {
            Ok(name) => name,
            Err(rule) => return self.within("@type", |e| e.fault(rule)),
        };
        let message = self.pool.get_message_by_name(name);
        // The value of `{"@type": …, "value": …}` without other keys.
        let only_value = match entries.as_slice() {
            [(_, _), (_, _)] => node.get("value"),
            _ => None,
        };
        let body = match (message, only_value) {
            (Some(message), value) if has_own_form(message.full_name()) => {
                self.own_form(&message, entries, value)?
            }
            (Some(message), Some(Node::Text(text)))
                if message.get_field_by_name("value").is_none() =>
            {
                self.within("value", |e| {
                    let body = e.base64(text)?;
                    let found = inspect::check(&message, &body);
                    e.noted(found.map_err(|fault| {
                        format!("not an encoded {}: {}", message.name(), fault.in_words())
                    }))?;
                    Some(body)
                })?
            }
            (Some(message), _) => self.fields(&message, node)?,
            (None, Some(value)) => self.within("value", |e| match value {
                Node::Text(text) => e.base64(text),
                _ => e.expected("base64 text, because the type is unknown", value),
            })?,
            (None, None) => return self.unknown_type(url, name),
        };
        Some((url, body))
    }

    fn own_form(
        &mut self,
        message: &MessageDescriptor,
        entries: &'n [(String, Node)],
        value: Option<&'n Node>,
    ) -> Encoded {
        match (entries, value) {
            (_, Some(value)) => self.within("value", |e| e.message(message, value)),
            ([_], None) if message.name() == "Empty" => Some(Vec::new()),
            _ => self.fault(format!(
                "a {} is written {{\"@type\": …, \"value\": …}}, with no other keys",
                message.name()
            )),
        }
    }

    fn unknown_type<T>(&mut self, url: &str, name: &str) -> Encoded<T> {
        let prefix = url.strip_suffix(name).unwrap_or_default();
        let meant = suggest_type(self.pool, name);
        let hint = match meant {
            Some(meant) => format!("did you mean \"{prefix}{meant}\"?"),
            None => {
                "write an unknown type as {\"@type\": …, \"value\": <base64 of the encoded message>}"
                    .to_owned()
            }
        };
        self.within("@type", |e| e.fault(format!("unknown type {}; {hint}", named(name))))
    }
}

fn suggest_type(pool: &prost_reflect::DescriptorPool, name: &str) -> Option<String> {
    let names: Vec<String> = pool
        .all_messages()
        .map(|message| message.full_name().to_owned())
        .filter(|known| known.len().abs_diff(name.len()) <= 2)
        .collect();
    // Long names share most of their letters, so only the last parts are compared.
    let tail = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let head = |name: &str| name.rsplit_once('.').map(|(head, _)| head.to_owned());
    let same_package: Vec<(String, &String)> = names
        .iter()
        .filter(|known| head(known) == head(name))
        .map(|known| (tail(known), known))
        .collect();
    match suggestion(&tail(name), same_package.iter().map(|(tail, _)| tail.as_str())) {
        Some(meant) => {
            same_package.iter().find(|(tail, _)| tail == meant).map(|(_, known)| (*known).clone())
        }
        None => in_other_package(pool, name),
    }
}

/// Returns the known message of the same name whose package begins with the most segments of `name`, if there is only one
/// such message.
fn in_other_package(pool: &prost_reflect::DescriptorPool, name: &str) -> Option<String> {
    let last = name.rsplit('.').next()?;
    let n_common = |known: &str| {
        known.split('.').zip(name.split('.')).take_while(|(known, given)| known == given).count()
    };
    let messages = pool.all_messages().filter(|message| message.name() == last);
    let same_name = messages.map(|message| (n_common(message.full_name()), message));
    let mut same_root: Vec<_> = same_name.filter(|(n, _)| *n > 0).collect();
    same_root.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    match same_root.as_slice() {
        [(_, meant)] => Some(meant.full_name().to_owned()),
        [(n, meant), (next, _), ..] if n > next => Some(meant.full_name().to_owned()),
        _ => None,
    }
}

/// The rule against bytes of a message in another encoding.
const NOT_BASE64: &str = "is not base64; the value is not shown, because it may contain a secret";

impl<'n> Encoder<'n> {
    /// Decodes the bytes of a message. They may contain secrets.
    fn base64(&mut self, text: &str) -> Encoded {
        let is_mark =
            |text: &[u8]| [sensitive::MARK, sensitive::KEY_MARK].map(str::as_bytes).contains(&text);
        match base64_decoded(text) {
            _ if is_mark(text.as_bytes()) => self.bare_fault(sensitive::IS_MARK),
            Ok(body) if is_mark(&body) => self.bare_fault(sensitive::IS_MARK),
            Ok(body) => Some(body),
            Err(_) => self.bare_fault(NOT_BASE64),
        }
    }

    /// Encodes a `Struct`, with its entries sorted by key.
    fn struct_body(&mut self, entries: &'n [(String, Node)]) -> Encoded {
        let mut sorted: Vec<&'n (String, Node)> = entries.iter().collect();
        sorted.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
        let mut out = Vec::new();
        let mut is_good = true;
        for (key, value) in sorted {
            // The map entry is a message too, which adds a level.
            let value = self.at_key(key, |e| e.deeper(2, |e| e.value_body(value)));
            is_good &= value.is_some();
            let Some(value) = value else { continue };
            let mut entry = Vec::new();
            put_len(&mut entry, 1, key.as_bytes());
            put_len(&mut entry, 2, &value);
            put_len(&mut out, 1, &entry);
        }
        is_good.then_some(out)
    }

    fn list_body(&mut self, items: &'n [Node]) -> Encoded {
        let mut out = Vec::new();
        let mut is_good = true;
        for (index, item) in items.iter().enumerate() {
            match self.at_index(index, |e| e.deeper(1, |e| e.value_body(item))) {
                Some(value) => put_len(&mut out, 1, &value),
                None => is_good = false,
            }
        }
        is_good.then_some(out)
    }

    fn value_body(&mut self, node: &'n Node) -> Encoded {
        self.doubts.note(node);
        let mut out = Vec::new();
        match node {
            Node::Null => Scalar::Varint(0).put_field(&mut out, 1),
            Node::Bool(value) => Scalar::Varint((*value).into()).put_field(&mut out, 4),
            Node::Text(text) => put_len(&mut out, 3, text.as_bytes()),
            Node::Map(entries) => {
                put_len(&mut out, 5, &self.deeper(1, |e| e.struct_body(entries))?);
            }
            Node::List(items) => put_len(&mut out, 6, &self.deeper(1, |e| e.list_body(items))?),
            Node::Int(_) | Node::Uint(_) | Node::Float(_) => {
                let number = self.noted(double(node))?;
                Scalar::Fixed64(number.to_le_bytes()).put_field(&mut out, 2);
            }
        }
        Some(out)
    }
}
