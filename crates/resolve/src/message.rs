//! Access to the fields of a decoded message by name.

use std::borrow::Cow;

use bytes::Bytes;
use chancery_proto::envoy_pool;
use prost_reflect::{DynamicMessage, MapKey, ReflectMessage as _, Value};

/// A message. Fields that its type does not have, or that are not set, have no value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Msg<'a>(pub(crate) &'a DynamicMessage);

impl<'a> Msg<'a> {
    fn value(self, field: &str) -> Option<&'a Value> {
        match self.0.get_field_by_name(field)? {
            Cow::Borrowed(value) => Some(value),
            Cow::Owned(_) => None,
        }
    }

    /// Returns whether the field is set.
    pub(crate) fn has(self, field: &str) -> bool {
        self.0.has_field_by_name(field)
    }

    /// Returns a text; empty without a value.
    pub(crate) fn text(self, field: &str) -> &'a str {
        self.value(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the texts of a list.
    pub(crate) fn texts(self, field: &str) -> impl Iterator<Item = &'a str> {
        self.items(field).iter().filter_map(Value::as_str)
    }

    /// Returns a boolean; `false` without a value.
    pub(crate) fn flag(self, field: &str) -> bool {
        self.value(field).and_then(Value::as_bool).unwrap_or_default()
    }

    /// Returns an integer or the number of an enum value; 0 without a value.
    pub(crate) fn number(self, field: &str) -> i64 {
        self.value(field).map(number).unwrap_or_default()
    }

    /// Returns the integers of a list.
    pub(crate) fn numbers(self, field: &str) -> impl Iterator<Item = i64> {
        self.items(field).iter().map(number)
    }

    /// Returns the message of a field, if it is set.
    pub(crate) fn sub(self, field: &str) -> Option<Msg<'a>> {
        self.value(field).and_then(Value::as_message).map(Msg)
    }

    /// Returns the messages of a list.
    pub(crate) fn list(self, field: &str) -> impl Iterator<Item = Msg<'a>> {
        self.items(field).iter().filter_map(Value::as_message).map(Msg)
    }

    fn items(self, field: &str) -> &'a [Value] {
        self.value(field).and_then(Value::as_list).unwrap_or_default()
    }

    /// Returns the messages of a map with texts as keys, ordered by key.
    pub(crate) fn entries(self, field: &str) -> Vec<(&'a str, Msg<'a>)> {
        let map = self.value(field).and_then(Value::as_map);
        let entries = map.into_iter().flatten().filter_map(|(key, value)| match key {
            MapKey::String(key) => Some((key.as_str(), Msg(value.as_message()?))),
            _ => None,
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|(key, _)| *key);
        entries
    }

    /// Returns the number in a wrapper such as `UInt32Value`, if the field is set.
    pub(crate) fn wrapped(self, field: &str) -> Option<i64> {
        self.sub(field).map(|wrapper| wrapper.number("value"))
    }

    /// Returns the boolean in a `BoolValue`, if the field is set.
    pub(crate) fn wrapped_flag(self, field: &str) -> Option<bool> {
        self.sub(field).map(|wrapper| wrapper.flag("value"))
    }

    /// Returns the name of the field of a oneof that is set.
    pub(crate) fn member(self, oneof: &str) -> Option<String> {
        let descriptor = self.0.descriptor();
        let oneof = descriptor.oneofs().find(|one| one.name() == oneof)?;
        let mut fields = oneof.fields();
        fields.find(|field| self.0.has_field(field)).map(|field| field.name().to_owned())
    }

    /// Returns the content of an `Any`.
    pub(crate) fn any(self, field: &str) -> Option<Content> {
        let any = self.sub(field)?;
        let type_name = any.text("type_url").rsplit('/').next().unwrap_or_default().to_owned();
        let value = any.value("value").and_then(Value::as_bytes).cloned().unwrap_or_default();
        let message = decode(&type_name, value).ok();
        Some(Content { type_name, message })
    }

    /// Returns the content of a `TypedExtensionConfig` in a field.
    pub(crate) fn extension(self, field: &str) -> Option<Content> {
        self.sub(field)?.any("typed_config")
    }
}

fn number(value: &Value) -> i64 {
    match value {
        Value::I32(n) | Value::EnumNumber(n) => i64::from(*n),
        Value::I64(n) => *n,
        Value::U32(n) => i64::from(*n),
        Value::U64(n) => i64::try_from(*n).unwrap_or(i64::MAX),
        _ => 0,
    }
}

/// The content of an `Any`.
#[derive(Debug)]
pub(crate) struct Content {
    /// The full name of the type.
    pub(crate) type_name: String,
    message: Option<DynamicMessage>,
}

impl Content {
    /// Returns the message, if the type is known and the message is valid.
    pub(crate) fn message(&self) -> Option<Msg<'_>> {
        self.message.as_ref().map(Msg)
    }

    /// Returns the message, if it has this type.
    pub(crate) fn of_type(&self, name: &str) -> Option<Msg<'_>> {
        self.message().filter(|_| self.type_name == name)
    }

    /// Returns the last part of the name of the type.
    pub(crate) fn short_name(&self) -> &str {
        self.type_name.rsplit('.').next().unwrap_or_default()
    }
}

/// Decodes a message of a type of the Envoy API.
pub(crate) fn decode(type_name: &str, body: Bytes) -> Result<DynamicMessage, String> {
    let descriptor = envoy_pool().get_message_by_name(type_name);
    let descriptor = descriptor.ok_or_else(|| format!("the type {type_name} is unknown"))?;
    DynamicMessage::decode(descriptor, body).map_err(|error| format!("it does not decode: {error}"))
}
