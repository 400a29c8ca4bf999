//! The content of a `TypedStruct`: JSON that is read as the type that it names.

use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};

use super::{
    tree::Message,
    types::{MessageForm, types},
};
use crate::{encode::encode_message, encoder::Encoder, node::Node, problem::Fault};

/// Returns whether a message is a `TypedStruct`.
pub(super) fn is(message: &Message<'_>) -> bool {
    ["xds.type.v3.TypedStruct", "udpa.type.v1.TypedStruct"].contains(&message.kind.name.as_str())
}

/// The name of a type and the encoded content, or the faults of the content.
type Encoded<'m> = Result<(&'m str, Vec<u8>), Vec<Fault>>;

/// Encodes the content as the type that it names, whose name comes first. Like Envoy, it ignores fields that the type
/// does not have. `None` stands for a type that is unknown or free.
pub(super) fn encoded<'m>(message: &'m Message<'_>) -> Option<Encoded<'m>> {
    let url = message.text("type_url");
    let name = url.rsplit('/').next().unwrap_or(url);
    let pool = chancery_proto::envoy_pool();
    let descriptor = pool.get_message_by_name(name)?;
    let content = Struct::decode(message.bytes("value")).ok()?;
    if types().get(name)?.form != MessageForm::Plain {
        return None;
    }
    let node = map(content);
    let mut encoder = Encoder::new(pool);
    encoder.skips_unknown = true;
    let body = encoder.within("value", |encoder| encode_message(encoder, &descriptor, &node));
    Some(body.map(|body| (name, body)).ok_or_else(|| {
        let with_id = |fault| Fault { id: "typed_struct".into(), ..fault };
        encoder.into_faults().into_iter().map(with_id).collect()
    }))
}

fn map(content: Struct) -> Node {
    Node::Map(content.fields.into_iter().map(|(key, value)| (key, node(value))).collect())
}

fn node(value: Value) -> Node {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Node::Null,
        Some(Kind::BoolValue(value)) => Node::Bool(value),
        Some(Kind::NumberValue(value)) => Node::Float(value),
        Some(Kind::StringValue(value)) => Node::Text(value),
        Some(Kind::ListValue(list)) => Node::List(list.values.into_iter().map(node).collect()),
        Some(Kind::StructValue(content)) => map(content),
    }
}
