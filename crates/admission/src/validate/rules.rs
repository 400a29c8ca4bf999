//! The rules of protoc-gen-validate (PGV) on fields, read from the options of the descriptors.

use prost_reflect::{DynamicMessage, ExtensionDescriptor, FieldDescriptor, ReflectMessage, Value};
use regex::Regex;

use super::form::Form;

/// The rules on one field.
#[derive(Debug, Default)]
pub(crate) struct FieldRules {
    /// The field must be present.
    pub(crate) required: bool,
    /// The content of the message is not checked.
    pub(crate) skip: bool,
    pub(crate) rule: Option<Rule>,
}

/// The rules on the value of a field.
#[derive(Debug)]
pub(crate) enum Rule {
    /// The kind of number is the first part of the rule's ID: `uint32.lte`.
    Int(&'static str, Bounds<i128>),
    Float(&'static str, Bounds<f64>),
    Bool(bool),
    Text(Box<TextRules>),
    Bytes(Box<BytesRules>),
    Enum(EnumRules),
    Repeated(Box<RepeatedRules>),
    Map(Box<MapRules>),
    Any(AnyRules),
    /// Bounds in nanoseconds.
    Duration(Bounds<i128>),
    /// Bounds in nanoseconds since the epoch.
    Timestamp(Bounds<i128>),
}

/// The bounds of an ordered value.
#[derive(Debug)]
pub(crate) struct Bounds<T> {
    pub(crate) exact: Option<T>,
    pub(crate) lt: Option<T>,
    pub(crate) lte: Option<T>,
    pub(crate) gt: Option<T>,
    pub(crate) gte: Option<T>,
    pub(crate) within: Vec<T>,
    pub(crate) without: Vec<T>,
    pub(crate) ignore_empty: bool,
}

/// The rules on text.
#[derive(Debug, Default)]
pub(crate) struct TextRules {
    pub(crate) exact: Option<String>,
    /// The exact, minimum and maximum number of characters.
    pub(crate) len: [Option<u64>; 3],
    /// The exact, minimum and maximum number of bytes.
    pub(crate) bytes: [Option<u64>; 3],
    pub(crate) pattern: Option<Regex>,
    pub(crate) prefix: String,
    pub(crate) suffix: String,
    pub(crate) contains: String,
    pub(crate) not_contains: String,
    pub(crate) within: Vec<String>,
    pub(crate) without: Vec<String>,
    pub(crate) form: Option<Form>,
    pub(crate) ignore_empty: bool,
}

/// The rules on bytes.
#[derive(Debug, Default)]
pub(crate) struct BytesRules {
    pub(crate) exact: Option<Vec<u8>>,
    /// The exact, minimum and maximum length.
    pub(crate) len: [Option<u64>; 3],
    pub(crate) pattern: Option<regex::bytes::Regex>,
    pub(crate) prefix: Vec<u8>,
    pub(crate) suffix: Vec<u8>,
    pub(crate) contains: Vec<u8>,
    pub(crate) within: Vec<Vec<u8>>,
    pub(crate) without: Vec<Vec<u8>>,
    pub(crate) form: Option<Form>,
    pub(crate) ignore_empty: bool,
}

/// The rules on a value of an enum.
#[derive(Debug, Default)]
pub(crate) struct EnumRules {
    pub(crate) exact: Option<i32>,
    pub(crate) defined_only: bool,
    pub(crate) within: Vec<i32>,
    pub(crate) without: Vec<i32>,
}

/// The rules on a list.
#[derive(Debug, Default)]
pub(crate) struct RepeatedRules {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
    pub(crate) unique: bool,
    pub(crate) items: FieldRules,
    pub(crate) ignore_empty: bool,
}

/// The rules on a map.
#[derive(Debug, Default)]
pub(crate) struct MapRules {
    pub(crate) min: Option<u64>,
    pub(crate) max: Option<u64>,
    pub(crate) keys: FieldRules,
    pub(crate) values: FieldRules,
    pub(crate) ignore_empty: bool,
}

/// The rules on the type URL of an `Any`.
#[derive(Debug, Default)]
pub(crate) struct AnyRules {
    pub(crate) within: Vec<String>,
    pub(crate) without: Vec<String>,
}

impl FieldRules {
    /// Returns the rules of a field; `None` if it has none.
    pub(crate) fn of(field: &FieldDescriptor, extension: &ExtensionDescriptor) -> Option<Self> {
        let options = field.options();
        if !options.has_extension(extension) {
            return None;
        }
        options.get_extension(extension).as_message().map(Self::from_message)
    }

    /// Reads a message `validate.FieldRules`.
    pub(crate) fn from_message(rules: &DynamicMessage) -> Self {
        Self::read(&Options(rules))
    }

    fn read(rules: &Options<'_>) -> Self {
        let mut read = Self::default();
        rules.with("message", |message| {
            read.required = message.is("required");
            read.skip = message.is("skip");
        });
        for kind in INT_KINDS {
            rules.with(kind, |bounds| read.rule = Some(Rule::Int(kind, bounds.bounds(int))));
        }
        for kind in ["float", "double"] {
            rules.with(kind, |bounds| read.rule = Some(Rule::Float(kind, bounds.bounds(float))));
        }
        rules.with("bool", |rule| read.rule = rule.get("const", Value::as_bool).map(Rule::Bool));
        rules.with("string", |rule| read.rule = Some(Rule::Text(Box::new(rule.text_rules()))));
        rules.with("bytes", |rule| read.rule = Some(Rule::Bytes(Box::new(rule.bytes_rules()))));
        rules.with("enum", |rule| {
            read.rule = Some(Rule::Enum(EnumRules {
                exact: rule.get("const", Value::as_i32),
                defined_only: rule.is("defined_only"),
                within: rule.list("in", Value::as_i32),
                without: rule.list("not_in", Value::as_i32),
            }));
        });
        rules.with("repeated", |rule| {
            read.rule = Some(Rule::Repeated(Box::new(RepeatedRules {
                min: rule.get("min_items", Value::as_u64),
                max: rule.get("max_items", Value::as_u64),
                unique: rule.is("unique"),
                items: rule.nested("items"),
                ignore_empty: rule.is("ignore_empty"),
            })));
        });
        rules.with("map", |rule| {
            read.rule = Some(Rule::Map(Box::new(MapRules {
                min: rule.get("min_pairs", Value::as_u64),
                max: rule.get("max_pairs", Value::as_u64),
                keys: rule.nested("keys"),
                values: rule.nested("values"),
                ignore_empty: rule.is("ignore_empty"),
            })));
        });
        rules.with("any", |rule| {
            read.required |= rule.is("required");
            let (within, without) = (rule.list("in", text), rule.list("not_in", text));
            read.rule = Some(Rule::Any(AnyRules { within, without }));
        });
        rules.with("duration", |rule| {
            read.required |= rule.is("required");
            read.rule = Some(Rule::Duration(rule.bounds(nanos)));
        });
        rules.with("timestamp", |rule| {
            read.required |= rule.is("required");
            read.rule = Some(Rule::Timestamp(rule.bounds(nanos)));
        });
        read
    }
}

#[cfg(test)]
impl FieldRules {
    /// Returns whether the rules have a regular expression, on the value or on its items or keys.
    pub(crate) fn has_pattern(&self) -> bool {
        match &self.rule {
            Some(Rule::Text(rules)) => rules.pattern.is_some(),
            Some(Rule::Bytes(rules)) => rules.pattern.is_some(),
            Some(Rule::Repeated(rules)) => rules.items.has_pattern(),
            Some(Rule::Map(rules)) => rules.keys.has_pattern() || rules.values.has_pattern(),
            _ => false,
        }
    }
}

/// The kinds of integers, as their rules are named.
const INT_KINDS: [&str; 10] = [
    "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64",
];

fn int(value: &Value) -> Option<i128> {
    match value {
        Value::I32(value) => Some((*value).into()),
        Value::I64(value) => Some((*value).into()),
        Value::U32(value) => Some((*value).into()),
        Value::U64(value) => Some((*value).into()),
        _ => None,
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::F32(value) => Some((*value).into()),
        Value::F64(value) => Some(*value),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn octets(value: &Value) -> Option<Vec<u8>> {
    value.as_bytes().map(|bytes| bytes.to_vec())
}

/// Returns a duration or a timestamp in nanoseconds.
fn nanos(value: &Value) -> Option<i128> {
    let message = value.as_message()?;
    let field = |number| message.get_field_by_number(number).and_then(|value| int(&value));
    Some(field(1)? * 1_000_000_000 + field(2)?)
}

/// A message of `validate.proto`.
struct Options<'a>(&'a DynamicMessage);

impl Options<'_> {
    fn with(&self, name: &str, read: impl FnOnce(&Options<'_>)) {
        if self.0.has_field_by_name(name)
            && let Some(value) = self.0.get_field_by_name(name)
            && let Some(message) = value.as_message()
        {
            read(&Options(message));
        }
    }

    fn get<T>(&self, name: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let value = self.0.has_field_by_name(name).then(|| self.0.get_field_by_name(name));
        read(value.flatten()?.as_ref())
    }

    fn is(&self, name: &str) -> bool {
        self.get(name, Value::as_bool).unwrap_or(false)
    }

    fn list<T>(&self, name: &str, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let value = self.0.get_field_by_name(name);
        let items = value.as_ref().and_then(|value| value.as_list()).unwrap_or_default();
        items.iter().filter_map(read).collect()
    }

    fn nested(&self, name: &str) -> FieldRules {
        let mut rules = FieldRules::default();
        self.with(name, |nested| rules = FieldRules::read(nested));
        rules
    }

    fn bounds<T>(&self, read: impl Fn(&Value) -> Option<T> + Copy) -> Bounds<T> {
        // The rules of times have no `ignore_empty`.
        let is_number = self.0.descriptor().get_field_by_name("ignore_empty").is_some();
        Bounds {
            exact: self.get("const", read),
            lt: self.get("lt", read),
            lte: self.get("lte", read),
            gt: self.get("gt", read),
            gte: self.get("gte", read),
            within: self.list("in", read),
            without: self.list("not_in", read),
            ignore_empty: is_number && self.is("ignore_empty"),
        }
    }

    fn texts(&self, name: &str) -> String {
        self.get(name, text).unwrap_or_default()
    }

    fn text_rules(&self) -> TextRules {
        let limit = |name| self.get(name, Value::as_u64);
        let pattern = self.get("pattern", text);
        // The pool contains only patterns that the library accepts, which a test checks.
        let pattern = pattern.and_then(|pattern| Regex::new(&pattern).ok());
        TextRules {
            exact: self.get("const", text),
            len: [limit("len"), limit("min_len"), limit("max_len")],
            bytes: [limit("len_bytes"), limit("min_bytes"), limit("max_bytes")],
            pattern,
            prefix: self.texts("prefix"),
            suffix: self.texts("suffix"),
            contains: self.texts("contains"),
            not_contains: self.texts("not_contains"),
            within: self.list("in", text),
            without: self.list("not_in", text),
            form: self.form(),
            ignore_empty: self.is("ignore_empty"),
        }
    }

    fn form(&self) -> Option<Form> {
        const FORMS: [(&str, Form); 9] = [
            ("email", Form::Email),
            ("hostname", Form::Hostname),
            ("ip", Form::Ip),
            ("ipv4", Form::Ipv4),
            ("ipv6", Form::Ipv6),
            ("uri", Form::Uri),
            ("uri_ref", Form::UriRef),
            ("address", Form::Address),
            ("uuid", Form::Uuid),
        ];
        let strict = self.get("strict", Value::as_bool).unwrap_or(true);
        match self.get("well_known_regex", Value::as_enum_number) {
            Some(1) => Some(Form::HeaderName { strict }),
            Some(2) => Some(Form::HeaderValue { strict }),
            _ => FORMS.iter().find(|(name, _)| self.is(name)).map(|(_, form)| *form),
        }
    }

    fn bytes_rules(&self) -> BytesRules {
        let limit = |name| self.get(name, Value::as_u64);
        let pattern = self.get("pattern", text);
        BytesRules {
            exact: self.get("const", octets),
            len: [limit("len"), limit("min_len"), limit("max_len")],
            pattern: pattern.and_then(|pattern| regex::bytes::Regex::new(&pattern).ok()),
            prefix: self.get("prefix", octets).unwrap_or_default(),
            suffix: self.get("suffix", octets).unwrap_or_default(),
            contains: self.get("contains", octets).unwrap_or_default(),
            within: self.list("in", octets),
            without: self.list("not_in", octets),
            form: self.form(),
            ignore_empty: self.is("ignore_empty"),
        }
    }
}
