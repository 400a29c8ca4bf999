//! The node whose view is mirrored, as the flags describe it.

use bytes::Bytes;
use chancery_proto::node::{Locality, Node, UserAgentVersion};
use clap::Args;
use prost::Message;
use prost_types::{ListValue, NullValue, Struct, Value, value::Kind};
use serde_json::Value as Json;

use super::super::client::VERSION;

/// The flags that describe the node.
#[derive(Debug, Args)]
pub(crate) struct NodeFlags {
    /// ID of the node whose view is mirrored
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) node: String,
    /// Cluster of the node, for assignments that match it [default: none]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Metadata of the node as a JSON object, for assignments that match it [default: none]
    #[arg(long, value_name = "JSON", value_parser = metadata)]
    metadata: Option<Struct>,
    /// Locality of the node, for assignments that match it [default: none]
    #[arg(long, value_name = "REGION[/ZONE[/SUB_ZONE]]")]
    locality: Option<String>,
}

impl NodeFlags {
    /// Returns the encoded node.
    pub(super) fn encode(&self) -> Bytes {
        let locality = self.locality.as_deref().map(|text| {
            let mut parts = text.splitn(3, '/').map(str::to_owned);
            let mut part = || parts.next().unwrap_or_default();
            Locality { region: part(), zone: part(), sub_zone: part() }
        });
        let node = Node {
            id: self.node.clone(),
            cluster: self.cluster.clone().unwrap_or_default(),
            metadata: self.metadata.clone(),
            locality,
            user_agent_name: "chancery-mirror".to_owned(),
            user_agent_version: Some(UserAgentVersion::Text(VERSION.to_owned())),
            ..Node::default()
        };
        Bytes::from(node.encode_to_vec())
    }
}

fn metadata(text: &str) -> Result<Struct, String> {
    match serde_json::from_str(text) {
        Ok(Json::Object(fields)) => Ok(structure(fields)),
        Ok(_) => Err("expected a JSON object, such as {\"team\": \"shop\"}".to_owned()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

fn structure(fields: serde_json::Map<String, Json>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, json)| (name, value(json))).collect() }
}

fn value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(NullValue::NullValue.into()),
        Json::Bool(value) => Kind::BoolValue(value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => {
            Kind::ListValue(ListValue { values: items.into_iter().map(value).collect() })
        }
        Json::Object(fields) => Kind::StructValue(structure(fields)),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_a_json_object() {
        let parsed =
            metadata(r#"{"team": "shop", "n": 1.5, "nested": {"list": [true, null]}}"#).unwrap();
        assert_eq!(parsed.fields["team"].kind, Some(Kind::StringValue("shop".into())));
        assert_eq!(parsed.fields["n"].kind, Some(Kind::NumberValue(1.5)));
        assert!(matches!(parsed.fields["nested"].kind, Some(Kind::StructValue(_))));
        assert!(metadata("[1]").unwrap_err().contains("expected a JSON object"));
        assert!(metadata("{").unwrap_err().starts_with("not JSON: "));
        assert!(metadata(&"[".repeat(100_000)).is_err());
    }
}
