//! The JSON form of `DiscoveryRequest` (REST-02, REST-03).
//!
//! The reader builds a tree only for the values of the node, and counts each value before it stores
//! it. Resource names go into one buffer, in the wire format. Unknown fields are skipped (REST-06).

use std::{cell::Cell, fmt};

use bytes::BytesMut;
use chancery_model::{escaped_len, wire::put_len_field};
use chancery_proto::node::{
    BuildVersion, ContextParams, Locality, Node, SemanticVersion, UserAgentVersion,
};
use chancery_protocol::{ErrorDetail, NameList};
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The maximum size of `type_url` and of `version_info` in bytes.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// The number of the field in which a list of names is encoded.
const NAMES_FIELD: u8 = 1;

/// The limits for one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) names_max: usize,
    pub(crate) name_bytes_max: usize,
    pub(crate) node_bytes_max: usize,
    /// The maximum number of values in the node.
    pub(crate) node_values_max: usize,
    pub(crate) nack_message_bytes_max: usize,
}

/// The fields of a request that the server uses.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PollRequest {
    pub(crate) version_info: String,
    pub(crate) type_url: String,
    pub(crate) names: NameList,
    pub(crate) node: Option<Node>,
    pub(crate) error: Option<ErrorDetail>,
}

/// The reason why a request cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("the body is not a DiscoveryRequest in JSON: {0}")]
    Malformed(String),
    #[error("{field} has {len} bytes, at most {max} are allowed")]
    TextLong { field: &'static str, len: usize, max: usize },
    #[error("the request has more than {max} names (names_per_request_max)")]
    Names { max: usize },
    #[error("a resource name has {len} bytes, at most {max} are allowed (name_bytes_max)")]
    NameLong { len: usize, max: usize },
    #[error("the texts of the node have more than {max} bytes (node_bytes_max)")]
    NodeLong { max: usize },
    #[error("the node has more than {max} values (four times node_metadata_max)")]
    NodeValues { max: usize },
}

/// Reads a request.
pub(crate) fn parse(json: &[u8], limits: &Limits) -> Result<PollRequest, RequestError> {
    let reader =
        Reader { limits, exceeded: Cell::new(None), values: Cell::new(0), bytes: Cell::new(0) };
    let mut input = serde_json::Deserializer::from_slice(json);
    let read = RequestSeed(&reader).deserialize(&mut input);
    let read = read.and_then(|request| input.end().map(|()| request));
    read.map_err(|error| match reader.exceeded.take() {
        Some(exceeded) => exceeded,
        None => RequestError::Malformed(error.to_string()),
    })
}

/// The state that the parts of one request share.
struct Reader<'l> {
    limits: &'l Limits,
    exceeded: Cell<Option<RequestError>>,
    /// The number of values in the node.
    values: Cell<usize>,
    /// The number of bytes of the texts in the node.
    bytes: Cell<usize>,
}

impl Reader<'_> {
    fn exceed<E: Error>(&self, error: RequestError) -> E {
        let text = error.to_string();
        self.exceeded.set(Some(error));
        E::custom(text)
    }

    /// Counts a value of the node.
    fn count_value<E: Error>(&self) -> Result<(), E> {
        self.values.set(self.values.get() + 1);
        let max = self.limits.node_values_max;
        if self.values.get() > max {
            Err(self.exceed(RequestError::NodeValues { max }))
        } else {
            Ok(())
        }
    }

    /// Counts a text of the node.
    fn count_text<E: Error>(&self, text: &str) -> Result<(), E> {
        self.bytes.set(self.bytes.get().saturating_add(text.len()));
        let max = self.limits.node_bytes_max;
        if self.bytes.get() > max {
            Err(self.exceed(RequestError::NodeLong { max }))
        } else {
            Ok(())
        }
    }
}

/// Implements a seed whose value is optional: `null` is the default (proto3 JSON).
macro_rules! seed {
    ($seed:ident, $value:ty) => {
        impl<'de> DeserializeSeed<'de> for $seed<'_, '_> {
            type Value = $value;
            fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<$value, D::Error> {
                input.deserialize_any(self)
            }
        }
    };
}

struct RequestSeed<'r, 'l>(&'r Reader<'l>);
seed!(RequestSeed, PollRequest);

impl<'de> Visitor<'de> for RequestSeed<'_, '_> {
    type Value = PollRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PollRequest, A::Error> {
        let reader = self.0;
        let mut request = PollRequest::default();
        let mut names = NameBuffer::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "version_info" | "versionInfo" => {
                    request.version_info = map.next_value_seed(TextSeed(reader, "version_info"))?;
                }
                "type_url" | "typeUrl" => {
                    request.type_url = map.next_value_seed(TextSeed(reader, "type_url"))?;
                }
                "resource_names" | "resourceNames" => {
                    map.next_value_seed(NamesSeed(reader, &mut names, Entry::Name))?;
                }
                "resource_locators" | "resourceLocators" => {
                    map.next_value_seed(NamesSeed(reader, &mut names, Entry::Locator))?;
                }
                "node" => request.node = map.next_value_seed(NodeSeed(reader))?,
                "error_detail" | "errorDetail" => {
                    request.error = map.next_value_seed(ErrorSeed(reader))?;
                }
                // REST-11: the nonce is ignored.
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let NameBuffer { bytes, len, located, n_located, n_parameters } = names;
        request.names = NameList::encoded(bytes.freeze(), NAMES_FIELD.into(), len).with_locators(
            located.freeze(),
            NAMES_FIELD.into(),
            n_located,
            n_parameters > 0,
        );
        Ok(request)
    }
}

/// A text field of the request, by name.
struct TextSeed<'r, 'l>(&'r Reader<'l>, &'static str);
seed!(TextSeed, String);

impl Visitor<'_> for TextSeed<'_, '_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string for {}", self.1)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        let (field, len, max) = (self.1, text.len(), TEXT_BYTES_MAX);
        if len > max {
            Err(self.0.exceed(RequestError::TextLong { field, len, max }))
        } else {
            Ok(text.to_owned())
        }
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

/// The value of a dynamic parameter. In contrast to a field, the value of a map cannot be `null`.
struct ParameterSeed<'r, 'l>(&'r Reader<'l>);
seed!(ParameterSeed, String);

impl Visitor<'_> for ParameterSeed<'_, '_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string as the value of a dynamic parameter")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        TextSeed(self.0, "a dynamic parameter").visit_str(text)
    }
}

/// The names of a request, encoded.
#[derive(Default)]
struct NameBuffer {
    bytes: BytesMut,
    len: usize,
    /// The resource locators, encoded.
    located: BytesMut,
    n_located: usize,
    /// The number of dynamic parameters of all locators.
    n_parameters: usize,
}

impl NameBuffer {
    /// Returns an error if there are too many names and parameters.
    fn check_count<E: Error>(&self, reader: &Reader<'_>) -> Result<(), E> {
        let max = reader.limits.names_max;
        if self.len + self.n_located + self.n_parameters > max {
            Err(reader.exceed(RequestError::Names { max }))
        } else {
            Ok(())
        }
    }
}

/// The entries of a list of names.
#[derive(Clone, Copy)]
enum Entry {
    /// `resource_names`.
    Name,
    /// `resource_locators`.
    Locator,
}

/// A list of names, which are added to the buffer.
struct NamesSeed<'r, 'l, 'n>(&'r Reader<'l>, &'n mut NameBuffer, Entry);

impl<'de> DeserializeSeed<'de> for NamesSeed<'_, '_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NamesSeed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.2 {
            Entry::Name => "a list of strings for resource_names",
            Entry::Locator => "a list of objects for resource_locators",
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self(reader, names, entry) = self;
        while match entry {
            Entry::Name => list.next_element_seed(NameSeed(reader, names))?,
            Entry::Locator => list.next_element_seed(LocatorSeed(reader, names))?,
        }
        .is_some()
        {}
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A resource locator, whose name is added to the buffer.
struct LocatorSeed<'r, 'l, 'n>(&'r Reader<'l>, &'n mut NameBuffer);

impl<'de> DeserializeSeed<'de> for LocatorSeed<'_, '_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LocatorSeed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object in resource_locators")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(reader, names) = self;
        let mut locator = BytesMut::new();
        let mut bytes = 0;
        names.n_located += 1;
        names.check_count(reader)?;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "name" => {
                    let name = map.next_value_seed(TextSeed(reader, "a name"))?;
                    bytes += name.len();
                    check_locator(reader, bytes)?;
                    put_len_field(&mut locator, 1, name.as_bytes());
                }
                "dynamic_parameters" | "dynamicParameters" => {
                    let into = Parameters { reader, names, locator: &mut locator, bytes };
                    bytes = map.next_value_seed(into)?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        put_len_field(&mut names.located, NAMES_FIELD, &locator);
        Ok(())
    }
}

/// Returns an error if the texts of a locator are too long.
fn check_locator<E: Error>(reader: &Reader<'_>, bytes: usize) -> Result<(), E> {
    let (len, max) = (bytes, reader.limits.name_bytes_max);
    if len > max { Err(reader.exceed(RequestError::NameLong { len, max })) } else { Ok(()) }
}

/// The dynamic parameters of a locator, which are added to it. The value is the length of its texts.
struct Parameters<'r, 'l, 'n> {
    reader: &'r Reader<'l>,
    names: &'n mut NameBuffer,
    locator: &'n mut BytesMut,
    bytes: usize,
}

impl<'de> DeserializeSeed<'de> for Parameters<'_, '_, '_> {
    type Value = usize;
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<usize, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Parameters<'_, '_, '_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings for dynamic_parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        let Self { reader, names, locator, mut bytes } = self;
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(ParameterSeed(reader))?;
            names.n_parameters += 1;
            names.check_count(reader)?;
            bytes += 2 + escaped_len(key.as_bytes()) + escaped_len(value.as_bytes());
            check_locator(reader, bytes)?;
            let mut entry = BytesMut::new();
            put_len_field(&mut entry, 1, key.as_bytes());
            put_len_field(&mut entry, 2, value.as_bytes());
            put_len_field(locator, 2, &entry);
        }
        Ok(bytes)
    }

    fn visit_unit<E: Error>(self) -> Result<usize, E> {
        Ok(self.bytes)
    }
}

/// One name, which is added to the buffer.
struct NameSeed<'r, 'l, 'n>(&'r Reader<'l>, &'n mut NameBuffer);

impl<'de> DeserializeSeed<'de> for NameSeed<'_, '_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string in resource_names")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(), E> {
        let Self(reader, names) = self;
        let name_bytes_max = reader.limits.name_bytes_max;
        let len = name.len();
        if len > name_bytes_max {
            return Err(reader.exceed(RequestError::NameLong { len, max: name_bytes_max }));
        }
        names.len += 1;
        names.check_count(reader)?;
        put_len_field(&mut names.bytes, NAMES_FIELD, name.as_bytes());
        Ok(())
    }
}

/// `error_detail`.
struct ErrorSeed<'r, 'l>(&'r Reader<'l>);
seed!(ErrorSeed, Option<ErrorDetail>);

impl<'de> Visitor<'de> for ErrorSeed<'_, '_> {
    type Value = Option<ErrorDetail>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object for error_detail")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<ErrorDetail>, A::Error> {
        let mut detail = ErrorDetail { code: 0, message: String::new() };
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "code" => detail.code = map.next_value::<Option<i32>>()?.unwrap_or_default(),
                "message" => {
                    let text = map.next_value::<Option<String>>()?.unwrap_or_default();
                    let max = self.0.limits.nack_message_bytes_max;
                    text[..text.floor_char_boundary(max)].clone_into(&mut detail.message);
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Some(detail))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<ErrorDetail>, E> {
        Ok(None)
    }
}

struct NodeSeed<'r, 'l>(&'r Reader<'l>);
seed!(NodeSeed, Option<Node>);

impl<'de> Visitor<'de> for NodeSeed<'_, '_> {
    type Value = Option<Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object for node")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Node>, A::Error> {
        let reader = self.0;
        let mut node = Node::default();
        while let Some(key) = map.next_key::<String>()? {
            let key = key.as_str();
            if !matches!(
                key,
                "id" | "cluster"
                    | "metadata"
                    | "locality"
                    | "build_version"
                    | "buildVersion"
                    | "user_agent_name"
                    | "userAgentName"
                    | "user_agent_version"
                    | "userAgentVersion"
                    | "user_agent_build_version"
                    | "userAgentBuildVersion"
                    | "client_features"
                    | "clientFeatures"
                    | "dynamic_parameters"
                    | "dynamicParameters"
            ) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value_seed(ValueSeed(reader))?;
            set(&mut node, key, value).map_err(|expected| {
                A::Error::custom(format_args!("node.{key}: expected {expected}"))
            })?;
        }
        Ok(Some(node))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Node>, E> {
        Ok(None)
    }
}

/// Sets a field of the node. Returns what was expected if the value has the wrong type.
fn set(node: &mut Node, key: &str, value: Value) -> Result<(), &'static str> {
    match key {
        "id" => node.id = text(value)?,
        "cluster" => node.cluster = text(value)?,
        "metadata" => node.metadata = fields(value)?,
        "locality" => {
            node.locality = match fields(value)? {
                Some(mut locality) => Some(Locality {
                    region: text(take(&mut locality, &["region"]))?,
                    zone: text(take(&mut locality, &["zone"]))?,
                    sub_zone: text(take(&mut locality, &["sub_zone", "subZone"]))?,
                }),
                None => None,
            };
        }
        "build_version" | "buildVersion" => node.build_version = text(value)?,
        "user_agent_name" | "userAgentName" => node.user_agent_name = text(value)?,
        "user_agent_version" | "userAgentVersion" => {
            node.user_agent_version = Some(UserAgentVersion::Text(text(value)?));
        }
        "user_agent_build_version" | "userAgentBuildVersion" => {
            let Some(mut build) = fields(value)? else { return Ok(()) };
            let version = match fields(take(&mut build, &["version"]))? {
                Some(mut version) => Some(SemanticVersion {
                    major_number: number(take(&mut version, &["major_number", "majorNumber"]))?,
                    minor_number: number(take(&mut version, &["minor_number", "minorNumber"]))?,
                    patch: number(take(&mut version, &["patch"]))?,
                }),
                None => None,
            };
            node.user_agent_version = Some(UserAgentVersion::Build(BuildVersion { version }));
        }
        "dynamic_parameters" | "dynamicParameters" => {
            for (type_url, value) in fields(value)?.unwrap_or_default().fields {
                let mut all = fields(value)?.unwrap_or_default();
                let all = fields(take(&mut all, &["params"]))?.unwrap_or_default().fields;
                let param = |(key, value): (String, Value)| match value.kind {
                    Some(Kind::StringValue(value)) => Ok((key, value)),
                    _ => Err("strings as the values of dynamic parameters"),
                };
                let params = all.into_iter().map(param).collect::<Result<_, _>>()?;
                node.dynamic_parameters.insert(type_url, ContextParams { params });
            }
        }
        _ => {
            let features = match value.kind {
                Some(Kind::ListValue(list)) => list.values,
                Some(Kind::NullValue(_)) | None => Vec::new(),
                Some(_) => return Err("a list of strings"),
            };
            node.client_features = features.into_iter().map(text).collect::<Result<_, _>>()?;
        }
    }
    Ok(())
}

fn take(fields: &mut Struct, names: &[&str]) -> Value {
    names.iter().find_map(|name| fields.fields.remove(*name)).unwrap_or_default()
}

fn text(value: Value) -> Result<String, &'static str> {
    match value.kind {
        Some(Kind::StringValue(text)) => Ok(text),
        Some(Kind::NullValue(_)) | None => Ok(String::new()),
        Some(_) => Err("a string"),
    }
}

fn fields(value: Value) -> Result<Option<Struct>, &'static str> {
    match value.kind {
        Some(Kind::StructValue(fields)) => Ok(Some(fields)),
        Some(Kind::NullValue(_)) | None => Ok(None),
        Some(_) => Err("an object"),
    }
}

fn number(value: Value) -> Result<u32, &'static str> {
    let number = match value.kind {
        Some(Kind::NumberValue(number)) => number,
        // Proto3 JSON accepts numbers as strings.
        Some(Kind::StringValue(text)) => text.parse().map_err(|_| "a number")?,
        Some(Kind::NullValue(_)) | None => 0.0,
        Some(_) => return Err("a number"),
    };
    if number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number) {
        return Err("a number of 32 bits");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    let number = number as u32;
    Ok(number)
}

/// Any JSON value inside the node. The depth is bounded by the JSON parser.
struct ValueSeed<'r, 'l>(&'r Reader<'l>);
seed!(ValueSeed, Value);

impl<'de> Visitor<'de> for ValueSeed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.scalar(Kind::NullValue(0))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(Kind::BoolValue(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.scalar(Kind::NumberValue(value))
    }

    #[expect(clippy::cast_precision_loss, reason = "a Struct has doubles only")]
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(Kind::NumberValue(value as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "a Struct has doubles only")]
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(Kind::NumberValue(value as f64))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.0.count_text(text)?;
        self.scalar(Kind::StringValue(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.0.count_value()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(ValueSeed(self.0))? {
            values.push(value);
        }
        Ok(Value { kind: Some(Kind::ListValue(ListValue { values })) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.0.count_value()?;
        let mut fields = Struct::default();
        while let Some(key) = map.next_key::<String>()? {
            self.0.count_text(&key)?;
            let value = map.next_value_seed(ValueSeed(self.0))?;
            fields.fields.insert(key, value);
        }
        Ok(Value { kind: Some(Kind::StructValue(fields)) })
    }
}

impl ValueSeed<'_, '_> {
    fn scalar<E: Error>(self, kind: Kind) -> Result<Value, E> {
        self.0.count_value()?;
        Ok(Value { kind: Some(kind) })
    }
}

#[cfg(test)]
mod tests;
