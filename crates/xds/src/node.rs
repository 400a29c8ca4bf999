//! The node of a client: read once per stream, and again only when it changes.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use chancery_model::{
    Locality, Node,
    wire::{Fields, Token},
};
use chancery_proto::{istio::mcp::v1alpha1::SinkNode, node as proto};
use prost::Message;
use prost_types::{Struct, value::Kind};
use xxhash_rust::xxh3::xxh3_128;

/// The reason why a stream is rejected because of its node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NodeError {
    /// SOTW-06.
    #[error("the first request of a stream has to carry a node")]
    Missing,
    /// SOTW-06.
    #[error("node.id is empty; set it (--service-node in Envoy)")]
    NoId,
    /// MCP-25.
    #[error("sink_node.id is empty; set it in the first request of the stream")]
    NoSinkId,
    /// SOTW-03.
    #[error("node.{field} was {old:?} at the start of the stream and is {new:?} now")]
    Changed { field: &'static str, old: String, new: String },
    /// The bytes are not a valid `Node`.
    #[error("malformed node: {0}")]
    Malformed(prost::DecodeError),
    /// OPS-11.
    #[error("the node has {len} bytes, at most {max} are allowed (node_bytes_max)")]
    TooLong { len: usize, max: usize },
    /// OPS-11.
    #[error("node.metadata has more than {max} scalars (node_metadata_max)")]
    Metadata { max: usize },
    /// OPS-11.
    #[error("sink_node.annotations has more than {max} entries (node_metadata_max)")]
    Annotations { max: usize },
    /// OPS-11, L14.
    #[error(
        "node.metadata, node.client_features and node.dynamic_parameters have more than {max} values of \
         any kind (four times node_metadata_max)"
    )]
    Values { max: usize },
    /// L14: the key of each scalar is its whole path.
    #[error(
        "node.metadata takes more than {max} bytes with the path of each scalar written out (node_bytes_max)"
    )]
    Paths { max: usize },
}

/// The node of one stream.
#[derive(Debug)]
pub(crate) struct NodeReader {
    bytes_max: usize,
    metadata_max: usize,
    /// The hash of the last node. Envoy sends the same tens of kilobytes with every request, and the
    /// hash identifies them. A client that forges a collision only keeps its own old node.
    seen: u128,
    node: Option<Arc<Node>>,
}

impl NodeReader {
    pub(crate) fn new(bytes_max: usize, metadata_max: usize) -> Self {
        Self { bytes_max, metadata_max, seen: 0, node: None }
    }

    /// Returns the ID of the node; empty until a request has been read.
    pub(crate) fn id(&self) -> &str {
        self.node.as_ref().map_or("", |node| &node.id)
    }

    /// Reads the node of a request. Returns it only if it is new or has changed.
    pub(crate) fn read(&mut self, bytes: Option<Bytes>) -> Result<Option<Arc<Node>>, NodeError> {
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
            return match self.node {
                Some(_) => Ok(None),
                None => Err(NodeError::Missing),
            };
        };
        let (len, max) = (bytes.len(), self.bytes_max);
        if len > max {
            return Err(NodeError::TooLong { len, max });
        }
        let hash = xxh3_128(&bytes);
        if self.node.is_some() && self.seen == hash {
            return Ok(None);
        }
        let values_max = self.metadata_max.saturating_mul(4);
        check_values(&bytes, values_max)?;
        let node = proto::Node::decode(bytes).map_err(NodeError::Malformed)?;
        let mut metadata = Metadata::new(self.metadata_max, self.bytes_max);
        let node = to_model(node, &mut metadata)?;
        if node.id.is_empty() {
            return Err(NodeError::NoId);
        }
        if let Some(known) = &self.node {
            let same = |field, old: &String, new: &String| {
                if old == new {
                    Ok(())
                } else {
                    Err(NodeError::Changed { field, old: old.clone(), new: new.clone() })
                }
            };
            same("id", &known.id, &node.id)?;
            same("cluster", &known.cluster, &node.cluster)?;
            if **known == node {
                self.seen = hash;
                return Ok(None);
            }
        }
        let node = Arc::new(node);
        self.seen = hash;
        self.node = Some(Arc::clone(&node));
        Ok(Some(node))
    }

    /// Reads the node of a sink from the first request of its stream (MCP-25). The annotations are the metadata.
    pub(crate) fn read_sink(&mut self, bytes: Bytes) -> Result<Option<Arc<Node>>, NodeError> {
        if self.node.is_some() {
            return Ok(None);
        }
        let (len, max) = (bytes.len(), self.bytes_max);
        if len > max {
            return Err(NodeError::TooLong { len, max });
        }
        let mut fields = Fields::new(0, bytes.len());
        let mut n_annotations = 0;
        while let Ok(Some(token)) = fields.next(&bytes) {
            n_annotations += usize::from(matches!(token, Token::Bytes { field: 2, .. }));
        }
        if n_annotations > self.metadata_max {
            return Err(NodeError::Annotations { max: self.metadata_max });
        }
        let sink = SinkNode::decode(bytes).map_err(NodeError::Malformed)?;
        if sink.id.is_empty() {
            return Err(NodeError::NoSinkId);
        }
        let metadata = sink.annotations;
        let node = Arc::new(Node { id: sink.id, metadata, ..Node::default() });
        self.node = Some(Arc::clone(&node));
        Ok(Some(node))
    }
}

/// Converts the node of a poll, within the same limits (REST-07).
pub(crate) fn of_poll(
    node: proto::Node,
    bytes_max: usize,
    metadata_max: usize,
) -> Result<Node, NodeError> {
    let node = to_model(node, &mut Metadata::new(metadata_max, bytes_max))?;
    if node.id.is_empty() { Err(NodeError::NoId) } else { Ok(node) }
}

/// Counts the values of metadata and features that decoding would build, before it builds any. Bytes
/// that are not a valid node are left to the decoder.
fn check_values(node: &[u8], max: usize) -> Result<(), NodeError> {
    /// The fields that contain messages: of a struct, its entry, a value, and a list.
    const DEEPER: [&[u32]; 4] = [&[1], &[2], &[5, 6], &[1]];
    const DEPTH_MAX: usize = 400;
    let mut values = 0;
    let mut outer = Fields::new(0, node.len());
    while let Ok(Some(token)) = outer.next(node) {
        let Token::Bytes { field, content } = token else { continue };
        match field {
            10 => values += 1,
            12 => values += parameters_in(content, max),
            3 => {
                let start = outer.at() - content.len();
                let mut open = vec![(0, Fields::new(start, outer.at()))];
                while let Some((kind, fields)) = open.last_mut() {
                    let Ok(Some(token)) = fields.next(node) else {
                        open.pop();
                        continue;
                    };
                    let (kind, end) = (*kind, fields.at());
                    let Token::Bytes { field, content } = token else { continue };
                    if !DEEPER[kind].contains(&field) || open.len() > DEPTH_MAX {
                        continue;
                    }
                    // A struct contains entries, an entry a value, a value a struct or a list, and a
                    // list values.
                    let inner = match (kind, field) {
                        (0, _) => 1,
                        (1, _) | (3, _) => 2,
                        (_, 5) => 0,
                        _ => 3,
                    };
                    values += usize::from(kind == 0 || kind == 3);
                    if values > max {
                        return Err(NodeError::Values { max });
                    }
                    open.push((inner, Fields::new(end - content.len(), end)));
                }
            }
            _ => {}
        }
        if values > max {
            return Err(NodeError::Values { max });
        }
    }
    Ok(())
}

/// Counts the entry of a type in `dynamic_parameters`, and its parameters, up to more than `max`.
fn parameters_in(entry: &[u8], max: usize) -> usize {
    let mut n = 1;
    let mut in_entry = Fields::new(0, entry.len());
    while let Ok(Some(token)) = in_entry.next(entry) {
        let Token::Bytes { field: 2, content } = token else { continue };
        let mut parameters = Fields::new(0, content.len());
        while n <= max && parameters.next(content).is_ok_and(|token| token.is_some()) {
            n += 1;
        }
    }
    n
}

/// The scalars of a node's metadata by their paths, within bounds.
struct Metadata {
    scalars: BTreeMap<String, String>,
    scalars_max: usize,
    bytes: usize,
    bytes_max: usize,
}

fn to_model(node: proto::Node, metadata: &mut Metadata) -> Result<Node, NodeError> {
    let user_agent = user_agent(&node);
    if let Some(fields) = node.metadata {
        metadata.flatten("", fields)?;
    }
    let locality = node.locality.map(|locality| Locality {
        region: locality.region,
        zone: locality.zone,
        sub_zone: locality.sub_zone,
    });
    Ok(Node {
        id: node.id,
        cluster: node.cluster,
        locality: locality.unwrap_or_default(),
        metadata: std::mem::take(&mut metadata.scalars),
        user_agent,
        client_features: node.client_features,
        dynamic_parameters: node
            .dynamic_parameters
            .into_iter()
            .map(|(type_url, parameters)| (type_url, parameters.params))
            .collect(),
    })
}

/// The maximum length of a user agent in bytes. Those of all known clients are shorter.
const USER_AGENT_BYTES_MAX: usize = 256;

/// Returns `name/version`, or the part that is present, without the words after [`USER_AGENT_BYTES_MAX`].
fn user_agent(node: &proto::Node) -> String {
    let version = match &node.user_agent_version {
        Some(proto::UserAgentVersion::Text(text)) => text.clone(),
        Some(proto::UserAgentVersion::Build(build)) => {
            let number = |v: &proto::SemanticVersion| {
                format!("{}.{}.{}", v.major_number, v.minor_number, v.patch)
            };
            build.version.as_ref().map(number).unwrap_or_default()
        }
        None => node.build_version.clone(),
    };
    let mut text = match (node.user_agent_name.as_str(), version.as_str()) {
        (name, "") => name.to_owned(),
        ("", version) => version.to_owned(),
        (name, version) => format!("{name}/{version}"),
    };
    if text.len() > USER_AGENT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(USER_AGENT_BYTES_MAX));
        // A part of a version would be another version.
        text.truncate(text.rfind([' ', '/']).unwrap_or(text.len()));
    }
    text
}

impl Metadata {
    fn new(scalars_max: usize, bytes_max: usize) -> Self {
        Self { scalars: BTreeMap::new(), scalars_max, bytes: 0, bytes_max }
    }

    /// Adds the scalars of a struct. Depth is bounded by the protobuf decoder's recursion limit.
    fn flatten(&mut self, prefix: &str, fields: Struct) -> Result<(), NodeError> {
        for (key, value) in fields.fields {
            self.bytes += prefix.len() + key.len();
            if self.bytes > self.bytes_max {
                return Err(NodeError::Paths { max: self.bytes_max });
            }
            let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            let text = match value.kind {
                Some(Kind::StringValue(text)) => text,
                Some(Kind::BoolValue(value)) => value.to_string(),
                Some(Kind::NumberValue(number)) => decimal(number),
                Some(Kind::StructValue(fields)) => {
                    self.flatten(&path, fields)?;
                    continue;
                }
                Some(Kind::NullValue(_) | Kind::ListValue(_)) | None => continue,
            };
            if self.scalars.len() >= self.scalars_max {
                return Err(NodeError::Metadata { max: self.scalars_max });
            }
            self.scalars.entry(path).or_insert(text);
        }
        Ok(())
    }
}

/// Formats a number in plain decimal notation: `3`, `0.5`, never `3.0`, `-0` or `1e3`.
fn decimal(number: f64) -> String {
    if number == 0.0 { "0".to_owned() } else { number.to_string() }
}

#[cfg(test)]
mod tests {
    use prost_types::Value;

    use super::*;

    fn reader() -> NodeReader {
        NodeReader::new(1024, 8)
    }

    fn node(id: &str, cluster: &str) -> proto::Node {
        proto::Node { id: id.into(), cluster: cluster.into(), ..proto::Node::default() }
    }

    fn bytes(node: &proto::Node) -> Option<Bytes> {
        Some(node.encode_to_vec().into())
    }

    fn value(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }

    fn fields(all: impl IntoIterator<Item = (&'static str, Value)>) -> Struct {
        Struct { fields: all.into_iter().map(|(key, value)| (key.into(), value)).collect() }
    }

    /// SOTW-06, SOTW-02: a node is required once per stream.
    #[test]
    fn first_request_without_node_id_is_rejected() {
        assert_eq!(reader().read(None), Err(NodeError::Missing));
        assert_eq!(reader().read(Some(Bytes::new())), Err(NodeError::Missing));
        assert_eq!(reader().read(bytes(&node("", "c"))), Err(NodeError::NoId));
        let mut reader = reader();
        assert_eq!(reader.read(bytes(&node("a", "c"))).unwrap().unwrap().id, "a");
        assert_eq!(reader.read(None), Ok(None));
        assert_eq!(reader.read(bytes(&node("a", "c"))), Ok(None));
    }

    /// SOTW-03: a different id or cluster is rejected; different metadata is adopted.
    #[test]
    fn node_may_change_metadata_but_not_identity() {
        let mut reader = reader();
        reader.read(bytes(&node("a", "c"))).unwrap().unwrap();
        let error = reader.read(bytes(&node("b", "c"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "node.id was \"a\" at the start of the stream and is \"b\" now"
        );
        assert!(matches!(
            reader.read(bytes(&node("a", "d"))),
            Err(NodeError::Changed { field: "cluster", .. })
        ));
        let mut changed = node("a", "c");
        changed.metadata = Some(fields([("mesh", value(Kind::StringValue("m1".into())))]));
        let adopted = reader.read(bytes(&changed)).unwrap().unwrap();
        assert_eq!(adopted.metadata["mesh"], "m1");
        assert_eq!(reader.read(bytes(&changed)), Ok(None));
    }

    #[test]
    fn metadata_is_flattened_to_scalars() {
        let mut node = node("a", "c");
        let inner = fields([
            ("s", value(Kind::StringValue("x".into()))),
            ("b", value(Kind::BoolValue(true))),
            ("list", value(Kind::ListValue(prost_types::ListValue::default()))),
            ("null", value(Kind::NullValue(0))),
        ]);
        node.metadata = Some(fields([
            ("a", value(Kind::StructValue(inner))),
            ("i", value(Kind::NumberValue(3.0))),
            ("f", value(Kind::NumberValue(0.5))),
            ("z", value(Kind::NumberValue(-0.0))),
            ("big", value(Kind::NumberValue(1e15))),
        ]));
        let read = reader().read(bytes(&node)).unwrap().unwrap();
        let pairs: Vec<String> = read.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(pairs, ["a.b=true", "a.s=x", "big=1000000000000000", "f=0.5", "i=3", "z=0"]);
    }

    #[test]
    fn oversized_node_is_rejected() {
        let long = node(&"x".repeat(2000), "");
        assert!(matches!(reader().read(bytes(&long)), Err(NodeError::TooLong { .. })));
        let mut wide = node("a", "");
        let all = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        wide.metadata = Some(fields(all.map(|key| (key, value(Kind::BoolValue(true))))));
        assert_eq!(reader().read(bytes(&wide)), Err(NodeError::Metadata { max: 8 }));
        let garbage = Some(Bytes::from_static(&[0xff; 7]));
        assert!(matches!(reader().read(garbage), Err(NodeError::Malformed(_))));
    }

    /// L14: the values that the decoder would build are counted before it builds them.
    #[test]
    fn unused_metadata_values_are_bounded_before_decoding() {
        let list = |n: usize| {
            let values = vec![value(Kind::BoolValue(true)); n];
            value(Kind::ListValue(prost_types::ListValue { values }))
        };
        let with = |n| {
            let inner = value(Kind::StructValue(fields([("list", list(n))])));
            let metadata = Some(fields([("a", inner), ("null", value(Kind::NullValue(0)))]));
            bytes(&proto::Node { metadata, ..node("a", "") })
        };
        // Three entries in addition to the list's values: 32 in all.
        assert!(reader().read(with(29)).is_ok());
        assert_eq!(reader().read(with(30)), Err(NodeError::Values { max: 32 }));
        let features = |n| {
            let client_features = vec![String::new(); n];
            bytes(&proto::Node { client_features, ..node("a", "") })
        };
        assert!(reader().read(features(32)).is_ok());
        assert_eq!(reader().read(features(33)), Err(NodeError::Values { max: 32 }));
    }

    /// L14: one long key above many scalars gives each of them a long path.
    #[test]
    fn total_length_of_metadata_paths_is_bounded() {
        let scalars = fields(["b", "c", "d"].map(|key| (key, value(Kind::BoolValue(true)))));
        let with = |len: usize| {
            let all = [("x".repeat(len), value(Kind::StructValue(scalars.clone())))];
            let metadata = Some(Struct { fields: all.into() });
            bytes(&proto::Node { metadata, ..node("a", "") })
        };
        assert!(reader().read(with(255)).is_ok());
        assert_eq!(reader().read(with(256)), Err(NodeError::Paths { max: 1024 }));
    }

    #[test]
    fn the_user_agent_is_name_and_version() {
        let mut node = node("a", "");
        node.user_agent_name = "envoy".into();
        let version = proto::SemanticVersion { major_number: 1, minor_number: 40, patch: 2 };
        node.user_agent_version =
            Some(proto::UserAgentVersion::Build(proto::BuildVersion { version: Some(version) }));
        let read =
            |node: &proto::Node| reader().read(bytes(node)).unwrap().unwrap().user_agent.clone();
        assert_eq!(read(&node), "envoy/1.40.2");
        node.user_agent_name = "é".repeat(126);
        assert_eq!(read(&node), node.user_agent_name, "the version does not fit");
        node.user_agent_name = "n".repeat(1000);
        assert_eq!(read(&node), "n".repeat(256));
    }
}
