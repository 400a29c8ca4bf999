//! The JSON form of `DiscoveryRequest` (REST-02, REST-03).
//!
//! The reader builds a tree only for the values of the node, and counts each value before it stores
//! it. Resource names go into one buffer, in the wire format. Unknown fields are skipped (REST-06).

use std::{cell::Cell, fmt};

use bytes::{BufMut, BytesMut};
use chancery_proto::node::{BuildVersion, Locality, Node, SemanticVersion, UserAgentVersion};
use chancery_protocol::{ErrorDetail, NameList};
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The maximum size of `type_url` and of `version_info` in bytes.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// The number of the field in which a list of names is encoded.
const NAMES_FIELD: u32 = 1;

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
        match self.values.get() > max {
            true => Err(self.exceed(RequestError::NodeValues { max })),
            false => Ok(()),
        }
    }

    /// Counts a text of the node.
    fn count_text<E: Error>(&self, text: &str) -> Result<(), E> {
        self.bytes.set(self.bytes.get().saturating_add(text.len()));
        let max = self.limits.node_bytes_max;
        match self.bytes.get() > max {
            true => Err(self.exceed(RequestError::NodeLong { max })),
            false => Ok(()),
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
        request.names = NameList::encoded(names.bytes.freeze(), NAMES_FIELD, names.len);
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
        match len > max {
            true => Err(self.0.exceed(RequestError::TextLong { field, len, max })),
            false => Ok(text.to_owned()),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

/// The names of a request, encoded.
#[derive(Default)]
struct NameBuffer {
    bytes: BytesMut,
    len: usize,
}

/// The entries of a list of names.
#[derive(Clone, Copy)]
enum Entry {
    /// `resource_names`.
    Name,
    /// `resource_locators`. Only their names matter, because no resource has constraints on dynamic
    /// parameters.
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
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "name" => map.next_value_seed(NameSeed(reader, names))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
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
        let Limits { names_max, name_bytes_max, .. } = *reader.limits;
        let len = name.len();
        if len > name_bytes_max {
            return Err(reader.exceed(RequestError::NameLong { len, max: name_bytes_max }));
        }
        names.len += 1;
        if names.len > names_max {
            return Err(reader.exceed(RequestError::Names { max: names_max }));
        }
        let key = prost::encoding::WireType::LengthDelimited;
        prost::encoding::encode_key(NAMES_FIELD, key, &mut names.bytes);
        prost::encoding::encode_varint(len as u64, &mut names.bytes);
        names.bytes.put_slice(name.as_bytes());
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

/// The node.
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
    match number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        true => Ok(number as u32),
        false => Err("a number of 32 bits"),
    }
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
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        names_max: 3,
        name_bytes_max: 8,
        node_bytes_max: 200,
        node_values_max: 24,
        nack_message_bytes_max: 4,
    };

    fn read(json: &str) -> Result<PollRequest, RequestError> {
        parse(json.as_bytes(), &LIMITS)
    }

    /// REST-02, REST-03, REST-06: both spellings of the fields mean the same, `null` is the default, and
    /// unknown fields are ignored.
    #[test]
    fn both_spellings_are_read_and_unknown_fields_ignored() {
        let proto = r#"{
            "version_info": "1-7-0", "type_url": "t/x.Y", "resource_names": ["a", "b\u0020"],
            "response_nonce": "9", "resource_locators": [{"name": "x", "dynamic_parameters": {"k": "v"}}, {}], "later": {"deep": [1, {}]},
            "error_detail": {"code": 3, "message": "refused", "details": []},
            "node": {
                "id": "n", "cluster": "c", "extensions": [{"name": "e"}, {"name": "f"}],
                "locality": {"region": "r", "sub_zone": "s"},
                "metadata": {"a": {"b": [1, true, null]}, "c": "d"},
                "user_agent_name": "envoy",
                "user_agent_build_version": {"version": {"major_number": 1, "minor_number": "40"}},
                "client_features": ["f"], "dynamic_parameters": {}
            }
        }"#;
        let request = read(proto).unwrap();
        assert_eq!(request.version_info, "1-7-0");
        assert_eq!(request.type_url, "t/x.Y");
        // DYN-01: a locator means its name.
        assert_eq!(request.names.iter().collect::<Vec<_>>(), ["a", "b ", "x"]);
        let error = ErrorDetail { code: 3, message: "refu".into() };
        assert_eq!(request.error, Some(error), "the message is truncated");
        let node = request.node.as_ref().unwrap();
        assert_eq!((node.id.as_str(), node.cluster.as_str()), ("n", "c"));
        assert_eq!(node.locality.as_ref().unwrap().sub_zone, "s");
        assert_eq!(node.metadata.as_ref().unwrap().fields.len(), 2);
        assert_eq!(node.client_features, ["f"]);
        let version = SemanticVersion { major_number: 1, minor_number: 40, patch: 0 };
        let build = BuildVersion { version: Some(version) };
        assert_eq!(node.user_agent_version, Some(UserAgentVersion::Build(build)));
        let camel = [
            ("version_info", "versionInfo"),
            ("type_url", "typeUrl"),
            ("resource_names", "resourceNames"),
            ("error_detail", "errorDetail"),
            ("sub_zone", "subZone"),
            ("user_agent_name", "userAgentName"),
            ("user_agent_build_version", "userAgentBuildVersion"),
            ("major_number", "majorNumber"),
            ("minor_number", "minorNumber"),
            ("client_features", "clientFeatures"),
        ];
        let camel = camel.iter().fold(proto.to_owned(), |json, (snake, camel)| {
            assert!(json.contains(snake), "{snake}");
            json.replace(snake, camel)
        });
        assert_eq!(read(&camel).unwrap(), request);
        let empty =
            r#"{"version_info": null, "resource_names": null, "node": null, "error_detail": null}"#;
        assert_eq!(read(empty).unwrap(), PollRequest::default());
        assert_eq!(read("{}").unwrap(), PollRequest::default());
    }

    /// REST-20: what is not a request is an error that says where and what.
    #[test]
    fn malformed_requests_are_named() {
        for (json, text) in [
            ("", "EOF"),
            ("[]", "expected an object"),
            ("{} x", "trailing characters"),
            (r#"{"version_info": 1}"#, "expected a string for version_info"),
            (r#"{"resource_names": "a"}"#, "expected a list of strings"),
            (r#"{"resource_names": [1]}"#, "expected a string in resource_names"),
            (r#"{"node": []}"#, "expected an object for node"),
            (r#"{"node": {"id": 7}}"#, "node.id: expected a string"),
            (r#"{"node": {"metadata": 7}}"#, "node.metadata: expected an object"),
            (r#"{"node": {"client_features": "a"}}"#, "expected a list of strings"),
            (
                r#"{"node": {"user_agent_build_version": {"version": {"patch": -1}}}}"#,
                "expected a number of 32 bits",
            ),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(text), "{json}: {error}");
        }
        let wide = Limits { node_values_max: 1000, node_bytes_max: 1000, ..LIMITS };
        let deep = format!(r#"{{"node": {{"metadata": {}"#, r#"{"a":"#.repeat(200));
        let error = parse(deep.as_bytes(), &wide).unwrap_err().to_string();
        assert!(error.contains("recursion limit"), "{error}");
        let error = parse(b"{\"version_info\": \"\xff\"}", &LIMITS).unwrap_err().to_string();
        assert!(error.starts_with("the body is not a DiscoveryRequest in JSON: "), "{error}");
    }

    /// OPS-11, SOTW-52: each limit is enforced while the input is read.
    #[test]
    fn limits_are_enforced_while_reading() {
        let error = |json: &str| read(json).unwrap_err();
        assert_eq!(
            error(r#"{"resource_names": ["1", "2", "3", "4"]}"#),
            RequestError::Names { max: 3 }
        );
        assert_eq!(
            error(r#"{"resource_names": ["123456789"]}"#),
            RequestError::NameLong { len: 9, max: 8 }
        );
        let list = vec!["0"; 100].join(",");
        let values = format!(r#"{{"node": {{"metadata": {{"a": [{list}]}}}}}}"#);
        assert_eq!(error(&values), RequestError::NodeValues { max: 24 });
        let long = format!(r#"{{"node": {{"id": "{}"}}}}"#, "x".repeat(201));
        assert_eq!(error(&long), RequestError::NodeLong { max: 200 });
        let version = format!(r#"{{"version_info": "{}"}}"#, "x".repeat(5000));
        assert_eq!(
            error(&version),
            RequestError::TextLong { field: "version_info", len: 5000, max: 4096 }
        );
    }
}
