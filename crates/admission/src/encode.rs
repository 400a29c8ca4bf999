//! Encodes JSON as the canonical bytes of a message.
//!
//! Fields are in ascending order of number, and map entries in the order of their keys. A nested `Any`
//! follows the same rules. Equal content therefore gives equal bytes, regardless of the order of keys in
//! the document. The encoder uses no reflected messages, because their maps have a random order.
//!
//! The encoder follows the JSON mapping of proto3, and is stricter: it rejects unknown fields, unknown enum
//! values, and `null` in lists. It collects all faults of a message.

use std::{cmp::Ordering, fmt::Write};

use chancery_model::has_private_key;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

use crate::{
    credentials, inspect,
    node::{Node, named},
    problem::{Fault, suggestion},
    scalar::{self, Scalar},
    sensitive,
    wire::{WireType, put_key, put_len, put_varint},
    yaml_scalars::Doubts,
};

/// The maximum number of faults that are kept of one resource.
const FAULTS_MAX: usize = 20;

/// A step from a message to a part of it.
#[derive(Clone, Copy)]
enum Step<'n> {
    Field(&'n str),
    Index(usize),
    Key(&'n str),
}

/// Encodes one resource.
pub(crate) struct Encoder<'n> {
    pub(crate) pool: &'static DescriptorPool,
    path: Vec<Step<'n>>,
    /// The number of messages around the current one.
    depth: usize,
    /// Whether the current field is sensitive or inside a sensitive field. Faults then hide the content.
    hides: bool,
    /// Ignores fields that a message does not have.
    pub(crate) skips_unknown: bool,
    pub(crate) doubts: Doubts,
    faults: Vec<Fault>,
}

/// The bytes of a value; `None` if it has faults, which the encoder has recorded.
pub(crate) type Encoded<T = Vec<u8>> = Option<T>;

impl<'n> Encoder<'n> {
    pub(crate) fn new(pool: &'static DescriptorPool) -> Self {
        Self {
            pool,
            path: Vec::new(),
            depth: 0,
            hides: false,
            skips_unknown: false,
            doubts: Doubts::default(),
            faults: Vec::new(),
        }
    }

    /// Returns the recorded faults.
    pub(crate) fn into_faults(self) -> Vec<Fault> {
        self.faults
    }

    /// Records a fault. `rule` may show the content, and is replaced if the content is sensitive.
    pub(crate) fn fault<T>(&mut self, rule: impl Into<String>) -> Encoded<T> {
        if self.hides {
            self.bare_fault(sensitive::hidden("is not a valid value of the field"))
        } else {
            self.bare_fault(rule)
        }
    }

    /// Records a fault whose rule does not show the content.
    pub(crate) fn bare_fault<T>(&mut self, rule: impl Into<String>) -> Encoded<T> {
        if self.faults.len() < FAULTS_MAX {
            let mut path = String::new();
            for step in &self.path {
                let dot = if path.is_empty() { "" } else { "." };
                // Writing to a string cannot fail.
                let _ = match step {
                    Step::Field(name) if has_private_key(name.as_bytes()) => {
                        write!(path, "{dot}{}", sensitive::KEY_MARK)
                    }
                    Step::Field(name) => write!(path, "{dot}{name}"),
                    Step::Index(index) => write!(path, "[{index}]"),
                    Step::Key(key) => write!(path, "[{}]", named(key)),
                };
            }
            self.faults.push(Fault { path, ..Fault::new(rule) });
        }
        None
    }

    pub(crate) fn expected<T>(&mut self, what: &str, found: &Node) -> Encoded<T> {
        if self.hides {
            self.bare_fault(sensitive::hidden(&format!("expected {what}")))
        } else {
            self.bare_fault(format!("expected {what}, found {found}"))
        }
    }

    /// Like [`Self::expected`], in place of one or more messages that may hold a secret.
    fn expected_messages<T>(
        &mut self,
        what: &str,
        message: &MessageDescriptor,
        found: &Node,
    ) -> Encoded<T> {
        if credentials::is_near(message) {
            self.bare_fault(sensitive::hidden(&format!("expected {what}")))
        } else {
            self.expected(what, found)
        }
    }

    /// Encodes a part that is nested `levels` messages deeper.
    pub(crate) fn deeper<T>(
        &mut self,
        levels: usize,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        if self.depth + levels >= inspect::DEPTH_MAX {
            return self.bare_fault(inspect::too_deep());
        }
        self.depth += levels;
        let encoded = encode(self);
        self.depth -= levels;
        encoded
    }

    /// Records the fault of a function that does not know its path.
    pub(crate) fn noted<T>(&mut self, result: Result<T, String>) -> Encoded<T> {
        match result {
            Ok(value) => Some(value),
            Err(rule) => self.fault(rule),
        }
    }

    pub(crate) fn within<T>(
        &mut self,
        field: &'n str,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.at(Step::Field(field), encode)
    }

    pub(crate) fn at_key<T>(
        &mut self,
        key: &'n str,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.at(Step::Key(if self.hides { "…" } else { key }), encode)
    }

    pub(crate) fn at_index<T>(
        &mut self,
        index: usize,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.at(Step::Index(index), encode)
    }

    fn at<T>(
        &mut self,
        step: Step<'n>,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        self.path.push(step);
        let encoded = encode(self);
        self.path.pop();
        encoded
    }

    /// Encodes the body of a message.
    pub(crate) fn message(&mut self, message: &MessageDescriptor, node: &'n Node) -> Encoded {
        let body = match message.full_name().strip_prefix("google.protobuf.") {
            Some(name) => self.well_known(name, message, node),
            None => self.fields(message, node),
        }?;
        let is_json = credentials::is_json(message) || credentials::is_typed_struct(message);
        if is_json && sensitive::message_has_mark(Some(message), &body) {
            return self.bare_fault(sensitive::IS_MARK);
        }
        Some(body)
    }

    /// Encodes the body of a message without a special JSON form. The key `@type` is not a field.
    pub(crate) fn fields(&mut self, message: &MessageDescriptor, node: &'n Node) -> Encoded {
        let Node::Map(entries) = node else {
            let what = format!("a map ({})", message.name());
            return self.expected_messages(&what, message, node);
        };
        let mut is_good = true;
        let mut fields: Vec<(FieldDescriptor, &'n str, &'n Node)> =
            Vec::with_capacity(entries.len());
        for (key, value) in entries {
            if key == "@type" {
                continue;
            }
            let found =
                message.get_field_by_name(key).or_else(|| message.get_field_by_json_name(key));
            match found {
                Some(field) if value.is_null() && !takes_null(&field) => {}
                Some(field) => fields.push((field, key, value)),
                None if self.skips_unknown => {}
                None => {
                    is_good = false;
                    if self.hides {
                        self.unknown_field::<()>(message, key)
                    } else {
                        self.within(key, |e| e.unknown_field(message, key))
                    };
                }
            }
        }
        fields.sort_by_key(|(field, _, _)| field.number());
        is_good &= self.exclusive(&fields);
        // The name of a header decides whether the other fields are secret. Without a name, they may be.
        let name = fields.iter().find(|(field, ..)| field.number() == 1);
        let has_credential = credentials::has_named_value(message)
            && name.and_then(|(.., name)| name.text()).is_none_or(credentials::names_credential);
        let mut out = Vec::new();
        for (field, key, value) in &fields {
            let hides = credentials::is(field) || has_credential && field.number() != 1;
            let written =
                self.within(key, |e| e.hiding(hides, |e| e.field(field, value, &mut out)));
            is_good &= written.is_some();
        }
        is_good.then_some(out)
    }

    /// Encodes a part whose content is not shown if `hides`.
    fn hiding<T>(
        &mut self,
        hides: bool,
        encode: impl FnOnce(&mut Self) -> Encoded<T>,
    ) -> Encoded<T> {
        let hid = self.hides;
        self.hides |= hides;
        let encoded = encode(self);
        self.hides = hid;
        encoded
    }

    fn unknown_field<T>(&mut self, message: &MessageDescriptor, key: &str) -> Encoded<T> {
        if self.faults.len() >= FAULTS_MAX {
            // The search for a similar name would be in vain.
            return self.bare_fault(String::new());
        }
        let fields: Vec<FieldDescriptor> = message.fields().collect();
        let names: Vec<&str> = fields.iter().map(FieldDescriptor::name).collect();
        let hint = match suggestion(key, names.iter().copied()) {
            Some(meant) => format!("; did you mean {meant:?}?"),
            None if names.is_empty() => "; it has none".to_owned(),
            None if names.len() <= 12 => format!("; it has {}", names.join(", ")),
            None => String::new(),
        };
        self.bare_fault(format!("{} has no such field{hint}", message.name()))
    }

    /// Returns whether no field occurs under both of its names, and no oneof has two fields.
    fn exclusive(&mut self, fields: &[(FieldDescriptor, &'n str, &'n Node)]) -> bool {
        let before = self.faults.len();
        for pair in fields.windows(2) {
            if pair[0].0.number() == pair[1].0.number() {
                let rule = format!("{:?} and {:?} are the same field", pair[0].1, pair[1].1);
                self.bare_fault::<()>(rule);
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
                    self.bare_fault::<()>(rule);
                }
                None => chosen.push((oneof.name().to_owned(), key)),
            }
        }
        self.faults.len() == before
    }

    /// Writes a field with its key. Writes nothing for a default value without presence.
    fn field(&mut self, field: &FieldDescriptor, node: &'n Node, out: &mut Vec<u8>) -> Encoded<()> {
        let number = field.number();
        if field.is_map() {
            return self.map(field, node, out);
        }
        if field.is_list() {
            return self.list(field, node, out);
        }
        match field.kind() {
            Kind::Message(message) => {
                let body = self.deeper(1, |e| e.message(&message, node))?;
                put_len(out, number, &body);
            }
            kind => {
                let scalar = self.scalar(&kind, node)?;
                if field.supports_presence() || !scalar.is_default() {
                    scalar.put_field(out, number);
                }
            }
        }
        Some(())
    }

    pub(crate) fn scalar(&mut self, kind: &Kind, node: &'n Node) -> Encoded<Scalar<'n>> {
        let read = scalar::read(kind, node);
        let is_mark = match (kind, node.text(), &read) {
            (Kind::Bytes, Some(sensitive::MARK | sensitive::KEY_MARK), _) => true,
            (Kind::Bytes | Kind::String, _, Ok(Scalar::Bytes(value))) => {
                sensitive::is_mark(value, self.hides)
            }
            _ => false,
        };
        if is_mark {
            return self.bare_fault(sensitive::IS_MARK);
        }
        match read {
            Err(_) if self.hides => {
                let what = scalar::describe(kind);
                self.bare_fault(sensitive::hidden(&format!("expected {what}")))
            }
            read => self.noted(read),
        }
    }

    fn list(&mut self, field: &FieldDescriptor, node: &'n Node, out: &mut Vec<u8>) -> Encoded<()> {
        // Like Envoy's loader, the encoder accepts a single value as a list of one item.
        let items = match node {
            Node::List(items) => items,
            one => std::slice::from_ref(one),
        };
        let (number, kind) = (field.number(), field.kind());
        let mut is_good = true;
        let mut packed = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let written = self.at_index(index, |e| {
                if item.is_null() && !takes_null(field) {
                    return e.bare_fault("a list cannot hold null");
                }
                match &kind {
                    Kind::Message(message) => {
                        put_len(out, number, &e.deeper(1, |e| e.message(message, item))?);
                    }
                    kind if field.is_packed() => e.scalar(kind, item)?.put_value(&mut packed),
                    kind => e.scalar(kind, item)?.put_field(out, number),
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

    fn map(&mut self, field: &FieldDescriptor, node: &'n Node, out: &mut Vec<u8>) -> Encoded<()> {
        let Kind::Message(entry) = field.kind() else {
            return self.fault("a map field without an entry type: the descriptors are damaged");
        };
        let Node::Map(entries) = node else {
            return self.expected_messages("a map", &entry, node);
        };
        let has_named_values = credentials::has_named_value(&entry);
        let (key_kind, value_field) =
            (entry.map_entry_key_field().kind(), entry.map_entry_value_field());
        let mut is_good = true;
        let mut encoded = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            let entry = self.at_key(name, |e| {
                let key = e.noted(scalar::read_key(&key_kind, name));
                if value.is_null() && !takes_null(&value_field) {
                    return e.bare_fault("a map cannot hold null");
                }
                let value = match value_field.kind() {
                    // The map entry is a message too, which adds a level.
                    Kind::Message(message) => {
                        e.deeper(2, |e| e.message(&message, value)).map(Scalar::from_body)
                    }
                    kind => {
                        let hides = has_named_values && credentials::names_credential(name);
                        e.hiding(hides, |e| e.scalar(&kind, value))
                    }
                };
                Some((key?, value?))
            });
            is_good &= entry.is_some();
            encoded.extend(entry);
        }
        encoded.sort_by(|(a, _), (b, _)| a.compare_keys(b));
        if encoded.windows(2).any(|pair| pair[0].0.compare_keys(&pair[1].0) == Ordering::Equal) {
            return self.fault("two keys of the map are the same");
        }
        for (key, value) in &encoded {
            let mut entry = Vec::new();
            key.put_field(&mut entry, 1);
            value.put_field(&mut entry, 2);
            put_len(out, field.number(), &entry);
        }
        is_good.then_some(())
    }
}

/// Returns whether `null` is a value of the field, and not its absence.
fn takes_null(field: &FieldDescriptor) -> bool {
    match field.kind() {
        Kind::Message(message) => message.full_name() == "google.protobuf.Value",
        Kind::Enum(kind) => kind.full_name() == "google.protobuf.NullValue",
        _ => false,
    }
}

impl Scalar<'_> {
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

    fn put_value(&self, out: &mut Vec<u8>) {
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
