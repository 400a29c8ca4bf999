//! Messages decoded for validation. Text and bytes are borrowed from the body.

use crate::wire::{Malformed, Raw, Reader};

use super::types::{Count, FieldKind, FieldType, MessageForm, MessageType, Types};

/// A decoded message.
pub(crate) struct Message<'a> {
    pub(crate) kind: &'a MessageType,
    /// The values in the order of their fields. Each has the position of its field in the type. A
    /// list has several values.
    values: Vec<(usize, Value<'a>)>,
    /// The content of an `Any` of a known type.
    pub(crate) content: Option<Box<Message<'a>>>,
    /// The number of the first field that the type does not have.
    pub(crate) unknown_field: Option<u32>,
}

/// A decoded value.
pub(crate) enum Value<'a> {
    /// The raw bits of a number.
    Bits(u64),
    /// Text, bytes, or a message that is not decoded.
    Bytes(&'a [u8]),
    Message(Message<'a>),
}

/// The depth at which protobuf readers stop. Admission rejects deeper messages before validation.
const DEPTH_MAX: usize = crate::inspect::DEPTH_MAX;

impl<'a> Message<'a> {
    /// Decodes a body. The caller has checked that the body parses.
    pub(crate) fn decode(
        types: &'a Types,
        kind: &'a MessageType,
        body: &'a [u8],
    ) -> Result<Self, Malformed> {
        let mut message = Self { kind, values: Vec::new(), content: None, unknown_field: None };
        message.merge(types, body, 0)?;
        message.finish(types, 0)?;
        Ok(message)
    }

    fn merge(&mut self, types: &'a Types, body: &'a [u8], depth: usize) -> Result<(), Malformed> {
        if depth >= DEPTH_MAX {
            return Err("nested too deeply");
        }
        let mut reader = Reader(body);
        while let Some((number, raw)) = reader.next()? {
            let Some(at) = self.kind.position(number) else {
                self.unknown_field.get_or_insert(number);
                continue;
            };
            let field = &self.kind.fields[at];
            match (&field.kind, raw) {
                (FieldKind::Message(inner), Raw::Len(bytes)) => {
                    let kind = &types.all[*inner];
                    if kind.form == MessageForm::Free {
                        self.put(at, Value::Bytes(bytes));
                        continue;
                    }
                    let mut message =
                        Self { kind, values: Vec::new(), content: None, unknown_field: None };
                    message.merge(types, bytes, depth + 1)?;
                    self.put(at, Value::Message(message));
                }
                (FieldKind::Text | FieldKind::Bytes, Raw::Len(bytes)) => {
                    self.put(at, Value::Bytes(bytes));
                }
                (_, Raw::Len(bytes)) => self.unpack(at, field, bytes)?,
                (_, Raw::Varint(bits)) => self.put(at, Value::Bits(bits)),
                (_, Raw::Fixed32(bytes)) => {
                    self.put(at, Value::Bits(u32::from_le_bytes(bytes).into()));
                }
                (_, Raw::Fixed64(bytes)) => self.put(at, Value::Bits(u64::from_le_bytes(bytes))),
                (_, Raw::Group) => {}
            }
        }
        Ok(())
    }

    fn put(&mut self, at: usize, value: Value<'a>) {
        self.values.push((at, value));
    }

    fn unpack(
        &mut self,
        at: usize,
        field: &'a FieldType,
        bytes: &'a [u8],
    ) -> Result<(), Malformed> {
        let mut reader = Reader(bytes);
        while !reader.0.is_empty() {
            let bits = match field.kind {
                FieldKind::Fixed32 | FieldKind::Sfixed32 | FieldKind::Float => {
                    u32::from_le_bytes(reader.take()?).into()
                }
                FieldKind::Fixed64 | FieldKind::Sfixed64 | FieldKind::Double => {
                    u64::from_le_bytes(reader.take()?)
                }
                _ => reader.varint()?,
            };
            self.put(at, Value::Bits(bits));
        }
        Ok(())
    }

    /// Orders the values and merges the values of each field, when all parts of the message are
    /// known. Then decodes the content of every `Any`.
    fn finish(&mut self, types: &'a Types, depth: usize) -> Result<(), Malformed> {
        self.keep_last_members();
        if !self.values.is_sorted_by_key(|(at, _)| *at) {
            self.values.sort_by_key(|(at, _)| *at);
        }
        let fields = &self.kind.fields;
        // The first of two equal neighbours stays, so it takes the value of the second one.
        self.values.dedup_by(|(at, later), (first_at, first)| {
            let is_list = matches!(fields[*at].count, Count::List | Count::Map);
            if is_list || at != first_at {
                return false;
            }
            match (first, later) {
                (Value::Message(first), Value::Message(later)) => {
                    first.values.append(&mut later.values);
                }
                (first, later) => std::mem::swap(first, later),
            }
            true
        });
        for (_, value) in &mut self.values {
            if let Value::Message(message) = value {
                message.finish(types, depth + 1)?;
            }
        }
        if self.kind.form != MessageForm::Any || depth >= DEPTH_MAX {
            return Ok(());
        }
        let url = self.text("type_url");
        let name = url.rsplit('/').next().unwrap_or(url);
        let Some(kind) = types.get(name).filter(|kind| kind.form != MessageForm::Free) else {
            return Ok(());
        };
        let body = self.bytes("value");
        let mut content = Self { kind, values: Vec::new(), content: None, unknown_field: None };
        content.merge(types, body, depth + 1)?;
        content.finish(types, depth + 1)?;
        self.content = Some(Box::new(content));
        Ok(())
    }

    /// Removes all members of a oneof but the last one.
    fn keep_last_members(&mut self) {
        let fields = &self.kind.fields;
        if self.values.len() < 2 {
            return;
        }
        for oneof in 0..self.kind.oneofs.len() {
            let is_member = |at: usize| fields[at].oneof == Some(oneof);
            let last = self.values.iter().rev().find(|(at, _)| is_member(*at)).map(|(at, _)| *at);
            if let Some(last) = last
                && self.values.iter().any(|(at, _)| is_member(*at) && *at != last)
            {
                self.values.retain(|(at, _)| !is_member(*at) || *at == last);
            }
        }
    }

    /// Returns the values of the field at a position.
    pub(crate) fn at(&self, position: usize) -> &[(usize, Value<'a>)] {
        let start = self.values.partition_point(|(at, _)| *at < position);
        let len = self.values[start..].iter().take_while(|(at, _)| *at == position).count();
        &self.values[start..start + len]
    }

    /// Returns the fields that have values, each with its position in the type.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (usize, &[(usize, Value<'a>)])> {
        let fields = self.values.chunk_by(|(a, _), (b, _)| a == b);
        fields.filter_map(|values| Some((values.first()?.0, values)))
    }

    /// Returns the values of the field with a name.
    pub(crate) fn values(&self, field: &str) -> impl Iterator<Item = &Value<'a>> {
        let position = self.kind.position_of(field);
        position.map_or(&[][..], |position| self.at(position)).iter().map(|(_, value)| value)
    }

    /// Returns whether the field has a value that is not the default.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.values(field).next().is_some()
    }

    /// Returns the bytes of a field; empty without a value.
    pub(crate) fn bytes(&self, field: &str) -> &'a [u8] {
        match self.values(field).next() {
            Some(Value::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }

    /// Returns the text of a field; empty without a value.
    pub(crate) fn text(&self, field: &str) -> &'a str {
        std::str::from_utf8(self.bytes(field)).unwrap_or_default()
    }

    /// Returns the texts of a list.
    pub(crate) fn texts(&self, field: &str) -> impl Iterator<Item = &'a str> {
        self.values(field).filter_map(|value| match value {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// Returns the raw bits of a number; 0 without a value.
    pub(crate) fn bits(&self, field: &str) -> u64 {
        match self.values(field).next() {
            Some(Value::Bits(bits)) => *bits,
            _ => 0,
        }
    }

    /// Returns the raw bits of the numbers of a list.
    pub(crate) fn numbers(&self, field: &str) -> impl Iterator<Item = u64> {
        self.values(field).filter_map(|value| match value {
            Value::Bits(bits) => Some(*bits),
            Value::Bytes(_) | Value::Message(_) => None,
        })
    }

    /// Returns the message of a field.
    pub(crate) fn message(&self, field: &str) -> Option<&Message<'a>> {
        self.messages(field).next()
    }

    /// Returns the messages of a list, or the entries of a map.
    pub(crate) fn messages(&self, field: &str) -> impl Iterator<Item = &Message<'a>> {
        self.values(field).filter_map(|value| match value {
            Value::Message(message) => Some(message),
            Value::Bits(_) | Value::Bytes(_) => None,
        })
    }

    /// Returns the value of a wrapper such as `UInt32Value`.
    pub(crate) fn wrapped(&self, field: &str) -> Option<u64> {
        self.message(field).map(|wrapper| wrapper.bits("value"))
    }

    /// Returns the content of an `Any` in a field, if its type is known.
    pub(crate) fn any(&self, field: &str) -> Option<&Message<'a>> {
        self.message(field)?.content.as_deref()
    }
}

/// Returns a duration or a timestamp in nanoseconds.
pub(crate) fn nanos(message: &Message<'_>) -> i128 {
    let part = |field| i128::from(i64::from_le_bytes(message.bits(field).to_le_bytes()));
    part("seconds") * 1_000_000_000 + part("nanos")
}

/// Returns nanoseconds as a duration in JSON's form.
pub(crate) fn seconds(nanos: i128) -> String {
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let fraction = format!("{:09}", nanos % 1_000_000_000);
    match fraction.trim_end_matches('0') {
        "" => format!("{sign}{}s", nanos / 1_000_000_000),
        fraction => format!("{sign}{}.{fraction}s", nanos / 1_000_000_000),
    }
}
