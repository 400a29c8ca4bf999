//! The node of a client as Envoy's message.

use bytes::Bytes;
use chancery_model::{Node, TypeUrl};
use chancery_proto::node::{self as proto, UserAgentVersion};
use prost::Message;
use prost_types::{Struct, Value, value::Kind};

/// The type of the metadata of a node.
const STRUCT: &str = "type.googleapis.com/google.protobuf.Struct";

/// Returns the approximate size of a node.
pub(crate) fn n_bytes(node: &Node) -> usize {
    let metadata = node.metadata.iter().map(|(path, text)| path.len() + text.len() + 16);
    let features = node.client_features.iter().map(|feature| feature.len() + 2);
    let parameters = node.dynamic_parameters.iter().map(|(type_url, all)| {
        type_url.len() + all.iter().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>()
    });
    let parts = metadata.chain(features).chain(parameters);
    node.id.len() + node.cluster.len() + parts.sum::<usize>()
}

/// Converts a node. The server keeps the scalars of the metadata as text, and omits lists.
pub(crate) fn show(node: &Node) -> proto::Node {
    let locality = &node.locality;
    let (name, version) = match node.user_agent.rsplit_once('/') {
        Some((name, version)) => (name, Some(UserAgentVersion::Text(version.to_owned()))),
        None => (node.user_agent.as_str(), None),
    };
    proto::Node {
        id: node.id.clone(),
        cluster: node.cluster.clone(),
        metadata: (!node.metadata.is_empty()).then(|| metadata(node)),
        locality: Some(proto::Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            sub_zone: locality.sub_zone.clone(),
        }),
        build_version: String::new(),
        user_agent_name: name.to_owned(),
        user_agent_version: version,
        client_features: node.client_features.clone(),
        dynamic_parameters: node
            .dynamic_parameters
            .iter()
            .map(|(url, all)| (url.clone(), proto::ContextParams { params: all.clone() }))
            .collect(),
    }
}

/// Builds a struct from the paths of its scalars, without the values of credentials (CSDS-14).
fn metadata(node: &Node) -> Struct {
    let mut all = Struct::default();
    for (path, text) in &node.metadata {
        let text = Value { kind: Some(Kind::StringValue(text.clone())) };
        if let Some(text) = insert(&mut all, path, text) {
            // A part of the path is a scalar, because a key contains a dot.
            all.fields.insert(path.clone(), text);
        }
    }
    let encoded = Bytes::from(all.encode_to_vec());
    let redacted = chancery_admission::redacted(&TypeUrl::from_static(STRUCT), &encoded);
    // Redaction keeps the form of the message.
    Struct::decode(redacted).unwrap_or_default()
}

/// Adds a value under a path. Returns the value if the path leads through a scalar.
fn insert(mut fields: &mut Struct, path: &str, text: Value) -> Option<Value> {
    let mut rest = path;
    while let Some((key, after)) = rest.split_once('.') {
        let empty = || Value { kind: Some(Kind::StructValue(Struct::default())) };
        match &mut fields.fields.entry(key.to_owned()).or_insert_with(empty).kind {
            Some(Kind::StructValue(inner)) => (fields, rest) = (inner, after),
            _ => return Some(text),
        }
    }
    fields.fields.insert(rest.to_owned(), text);
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// CSDS-14: credentials in the metadata of a node are replaced as in a resource.
    #[test]
    fn credentials_in_metadata_are_replaced() {
        let key = "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n";
        let pairs = [("db.password", "hush"), ("token", "hush"), ("team", "shop"), ("pem", key)];
        let pairs = pairs.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let node = Node { metadata: BTreeMap::from(pairs), ..Node::default() };
        let shown = format!("{:?}", show(&node).metadata);
        assert!(!shown.contains("hush") && !shown.contains("MC4CAQ"), "{shown}");
        assert!(shown.contains("[redacted]") && shown.contains("shop"), "{shown}");
    }

    /// CSDS-05: the client's node has its identity and its metadata.
    #[test]
    fn metadata_is_nested_as_the_client_sent_it() {
        let pairs = [("a", "1"), ("a.b", "2"), ("c.d.e", "x"), ("c.d.f", "true")];
        let pairs = pairs.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let node = Node {
            id: "n".to_owned(),
            metadata: BTreeMap::from(pairs),
            user_agent: "envoy/1.40.0".to_owned(),
            ..Node::default()
        };
        let shown = show(&node);
        let text = |value: &Value| match &value.kind {
            Some(Kind::StringValue(text)) => text.clone(),
            other => panic!("{other:?}"),
        };
        let fields = &shown.metadata.as_ref().unwrap().fields;
        assert_eq!((text(&fields["a"]), text(&fields["a.b"])), ("1".to_owned(), "2".to_owned()));
        let Some(Kind::StructValue(c)) = &fields["c"].kind else { panic!("{fields:?}") };
        let Some(Kind::StructValue(d)) = &c.fields["d"].kind else { panic!("{fields:?}") };
        assert_eq!((text(&d.fields["e"]), text(&d.fields["f"])), ("x".into(), "true".into()));
        assert_eq!(shown.user_agent_name, "envoy");
        let version = UserAgentVersion::Text("1.40.0".to_owned());
        assert_eq!(shown.user_agent_version, Some(version));
        assert!(n_bytes(&node) > 20);
    }
}
