//! The message types with their validation rules, compiled once from the descriptors.

use std::{
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use prost_reflect::{
    Cardinality, DescriptorPool, ExtensionDescriptor, FieldDescriptor, Kind, MessageDescriptor,
    OneofDescriptor,
};

use super::rules::FieldRules;

/// All message types of a pool.
pub(crate) struct Types {
    pub(crate) all: Vec<MessageType>,
    by_name: HashMap<String, usize>,
}

/// A message type with its rules.
pub(crate) struct MessageType {
    /// The full name.
    pub(crate) name: String,
    /// The fields in ascending order of number.
    pub(crate) fields: Vec<FieldType>,
    pub(crate) oneofs: Vec<Oneof>,
    /// The positions of the fields whose absence may violate a rule.
    pub(crate) checked_if_absent: Vec<usize>,
    /// The positions of the fields in the order of [`name_order`].
    by_name: Vec<usize>,
    /// The position of the type's checks in the table of `semantic`, which looks it up once.
    pub(crate) checks: OnceLock<usize>,
    /// The rules of the type are disabled.
    pub(crate) is_disabled: bool,
    /// Whether Envoy ignores the rules of the proto files in a message of the type. `None` means the same as
    /// in the message around it.
    pub(crate) is_unchecked: Option<bool>,
    pub(crate) form: MessageForm,
}

/// A oneof that is not the presence of a single field.
pub(crate) struct Oneof {
    pub(crate) name: String,
    pub(crate) required: bool,
    /// The positions of the fields of the oneof.
    pub(crate) members: Vec<usize>,
}

/// The role of a message type in validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageForm {
    Plain,
    Any,
    Duration,
    Timestamp,
    /// A wrapper of a scalar, for example `UInt32Value`.
    Wrapper,
    /// A type with free content: `Struct`, `Value` or `ListValue`. It is not decoded.
    Free,
}

/// A field with its rules.
pub(crate) struct FieldType {
    pub(crate) name: String,
    pub(crate) number: u32,
    pub(crate) kind: FieldKind,
    pub(crate) count: Count,
    /// The position of the field's oneof in the type.
    pub(crate) oneof: Option<usize>,
    pub(crate) rules: FieldRules,
    /// Envoy rejects the field unless its runtime re-enables it.
    pub(crate) is_disallowed: bool,
    /// Envoy rejects the value that an absent field stands for.
    pub(crate) is_default_disallowed: bool,
}

/// The number of values that a field can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// One value. The default stands for an absent value.
    One,
    /// One value or none.
    Optional,
    List,
    Map,
}

/// The kind of a field's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Signed,
    Zigzag,
    Unsigned,
    Bool,
    Fixed32,
    Sfixed32,
    Fixed64,
    Sfixed64,
    Float,
    Double,
    Text,
    Bytes,
    Enum(EnumType),
    /// A message, as the index of its type.
    Message(usize),
}

/// An enum with what the rules need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnumType {
    pub(crate) name: String,
    /// The numbers in ascending order, each with its name and whether Envoy rejects it by default.
    pub(crate) values: Vec<(i32, String, bool)>,
}

/// Returns the types of Envoy's API. The first call takes a few milliseconds.
pub(crate) fn types() -> &'static Types {
    static TYPES: LazyLock<Types> = LazyLock::new(|| Types::compile(chancery_proto::envoy_pool()));
    &TYPES
}

/// The extensions of options that hold rules. A pool without one of them has no such rules.
struct Extensions {
    field: Option<ExtensionDescriptor>,
    oneof: Option<ExtensionDescriptor>,
    disabled: Option<ExtensionDescriptor>,
    ignored: Option<ExtensionDescriptor>,
    disallowed: Option<ExtensionDescriptor>,
    disallowed_value: Option<ExtensionDescriptor>,
}

impl Types {
    /// Compiles the rules of all messages of a pool.
    pub(crate) fn compile(pool: &DescriptorPool) -> Self {
        let find = |name| pool.get_extension_by_name(name);
        let extensions = Extensions {
            field: find("validate.rules"),
            oneof: find("validate.required"),
            disabled: find("validate.disabled"),
            ignored: find("validate.ignored"),
            disallowed: find("envoy.annotations.disallowed_by_default"),
            disallowed_value: find("envoy.annotations.disallowed_by_default_enum"),
        };
        let messages: Vec<MessageDescriptor> = pool.all_messages().collect();
        let by_name: HashMap<String, usize> = (0..)
            .zip(&messages)
            .map(|(at, message)| (message.full_name().to_owned(), at))
            .collect();
        let all = messages.iter().map(|message| extensions.message(message, &by_name)).collect();
        Self { all, by_name }
    }

    /// Returns the type with a full name.
    pub(crate) fn get(&self, name: &str) -> Option<&MessageType> {
        self.by_name.get(name).map(|at| &self.all[*at])
    }
}

impl MessageType {
    /// Returns the position of the field with a number. The fields of most messages are numbered
    /// from 1 without many gaps.
    pub(crate) fn position(&self, number: u32) -> Option<usize> {
        self.fields.binary_search_by_key(&number, |field| field.number).ok()
    }

    /// Returns the position of the field with a name.
    pub(crate) fn position_of(&self, name: &str) -> Option<usize> {
        let order = |at: &usize| name_order(&self.fields[*at].name);
        let found = self.by_name.binary_search_by_key(&name_order(name), order);
        found.ok().map(|found| self.by_name[found])
    }
}

/// The sort key of a field name. Names of different lengths are compared without reading them.
fn name_order(name: &str) -> (usize, &str) {
    (name.len(), name)
}

impl FieldType {
    /// Returns whether the field must be present. A member of a oneof is required only where it is chosen.
    pub(crate) fn is_required(&self) -> bool {
        self.rules.required && self.oneof.is_none()
    }

    /// Returns whether the rules do not apply to an absent value.
    pub(crate) fn is_absent_free(&self) -> bool {
        self.count == Count::Optional || self.oneof.is_some()
    }

    /// Returns whether the absence of the field may violate a rule.
    fn is_checked_if_absent(&self) -> bool {
        self.is_required()
            || self.is_default_disallowed
            || (self.rules.rule.is_some() && !self.is_absent_free())
    }
}

fn is_set(
    options: &prost_reflect::DynamicMessage,
    extension: Option<&ExtensionDescriptor>,
) -> bool {
    extension.is_some_and(|extension| options.get_extension(extension).as_bool() == Some(true))
}

impl Extensions {
    fn message(
        &self,
        message: &MessageDescriptor,
        by_name: &HashMap<String, usize>,
    ) -> MessageType {
        let options = message.options();
        let is_disabled =
            is_set(&options, self.disabled.as_ref()) || is_set(&options, self.ignored.as_ref());
        let oneof = |oneof: OneofDescriptor| Oneof {
            name: oneof.name().to_owned(),
            required: is_set(&oneof.options(), self.oneof.as_ref()),
            members: Vec::new(),
        };
        let mut oneofs: Vec<Oneof> =
            message.oneofs().filter(|oneof| !oneof.is_synthetic()).map(oneof).collect();
        let mut fields: Vec<FieldType> =
            message.fields().map(|field| self.field(&field, &oneofs, by_name)).collect();
        fields.sort_by_key(|field| field.number);
        for (at, field) in fields.iter().enumerate() {
            if let Some(oneof) = field.oneof {
                oneofs[oneof].members.push(at);
            }
        }
        let mut by_name: Vec<usize> = (0..fields.len()).collect();
        by_name.sort_by_key(|at| name_order(&fields[*at].name));
        let is_checked = |at: &usize| fields[*at].is_checked_if_absent();
        MessageType {
            name: message.full_name().to_owned(),
            checked_if_absent: (0..fields.len()).filter(is_checked).collect(),
            by_name,
            checks: OnceLock::new(),
            fields,
            oneofs,
            is_disabled,
            is_unchecked: is_unchecked(message.full_name()),
            form: form(message.full_name()),
        }
    }

    fn field(
        &self,
        field: &FieldDescriptor,
        oneofs: &[Oneof],
        by_name: &HashMap<String, usize>,
    ) -> FieldType {
        let count = match field.cardinality() {
            Cardinality::Repeated if field.is_map() => Count::Map,
            Cardinality::Repeated => Count::List,
            _ if field.supports_presence() => Count::Optional,
            _ => Count::One,
        };
        let oneof = field.containing_oneof();
        let oneof = oneof.and_then(|own| oneofs.iter().position(|oneof| oneof.name == own.name()));
        let rules = self.field.as_ref().and_then(|rules| FieldRules::of(field, rules));
        let kind = self.kind(&field.kind(), by_name);
        let is_default_disallowed = match &kind {
            FieldKind::Enum(kind) => kind.values.iter().any(|(n, _, is_bad)| *n == 0 && *is_bad),
            _ => false,
        };
        FieldType {
            name: field.name().to_owned(),
            number: field.number(),
            kind,
            is_default_disallowed: is_default_disallowed && count == Count::One,
            count,
            oneof,
            rules: rules.unwrap_or_default(),
            is_disallowed: is_set(&field.options(), self.disallowed.as_ref()),
        }
    }

    fn kind(&self, kind: &Kind, by_name: &HashMap<String, usize>) -> FieldKind {
        match kind {
            Kind::Int32 | Kind::Int64 => FieldKind::Signed,
            Kind::Sint32 | Kind::Sint64 => FieldKind::Zigzag,
            Kind::Uint32 | Kind::Uint64 => FieldKind::Unsigned,
            Kind::Bool => FieldKind::Bool,
            Kind::Fixed32 => FieldKind::Fixed32,
            Kind::Sfixed32 => FieldKind::Sfixed32,
            Kind::Fixed64 => FieldKind::Fixed64,
            Kind::Sfixed64 => FieldKind::Sfixed64,
            Kind::Float => FieldKind::Float,
            Kind::Double => FieldKind::Double,
            Kind::String => FieldKind::Text,
            Kind::Bytes => FieldKind::Bytes,
            Kind::Enum(kind) => {
                let value = |value: prost_reflect::EnumValueDescriptor| {
                    let is_bad = is_set(&value.options(), self.disallowed_value.as_ref());
                    (value.number(), value.name().to_owned(), is_bad)
                };
                let mut values: Vec<_> = kind.values().map(value).collect();
                values.sort();
                FieldKind::Enum(EnumType { name: kind.name().to_owned(), values })
            }
            // Every message of a pool is in the list of its messages.
            Kind::Message(message) => match by_name.get(message.full_name()) {
                Some(at) => FieldKind::Message(*at),
                None => FieldKind::Bytes,
            },
        }
    }
}

/// Returns whether Envoy converts a configuration without checking its rules: of name resolvers, of priorities for
/// retries, and of all load balancing policies but `override_host`.
fn is_unchecked(full_name: &str) -> Option<bool> {
    let name = full_name.strip_prefix("envoy.extensions.")?;
    let is_action = name.ends_with(".transport_socket.v3.TransportSocketNameAction");
    if is_action || name.starts_with("network.dns_resolver.") || name.starts_with("retry.priority.")
    {
        return Some(true);
    }
    match name.strip_prefix("load_balancing_policies.")?.split('.').next() {
        Some("common") => None,
        Some("override_host") => Some(false),
        _ => Some(true),
    }
}

fn form(full_name: &str) -> MessageForm {
    match full_name.strip_prefix("google.protobuf.") {
        Some("Any") => MessageForm::Any,
        Some("Duration") => MessageForm::Duration,
        Some("Timestamp") => MessageForm::Timestamp,
        Some("Struct" | "Value" | "ListValue") => MessageForm::Free,
        Some(name) if name.ends_with("Value") => MessageForm::Wrapper,
        _ => MessageForm::Plain,
    }
}
