//! Short ways to write policies and expected results.

use chancery_lb_policy::{
    ConvertError, LbConfig, Registry,
    proto::{
        LoadBalancingPolicy, Policy, TypedStruct, WrrLocality,
        prost_types::{Any, ListValue, Struct, Value as ProtoValue, value::Kind},
    },
    types,
};
use prost::Message;
use serde_json::Value;

/// A type that no gRPC client supports.
pub(crate) const MAGLEV: &str = "envoy.extensions.load_balancing_policies.maglev.v3.Maglev";

/// Creates a list of policies.
pub(crate) fn list(policies: impl IntoIterator<Item = Any>) -> LoadBalancingPolicy {
    LoadBalancingPolicy { policies: policies.into_iter().map(Policy::new).collect() }
}

/// Packs a message under the usual prefix.
pub(crate) fn any(type_name: &str, message: &impl Message) -> Any {
    bytes(type_name, message.encode_to_vec())
}

/// Packs bytes under the usual prefix.
pub(crate) fn bytes(type_name: &str, value: impl Into<Vec<u8>>) -> Any {
    Any { type_url: format!("type.googleapis.com/{type_name}"), value: value.into() }
}

/// A policy that every client supports.
pub(crate) fn round_robin() -> Any {
    bytes(types::ROUND_ROBIN, [])
}

/// Puts policies below a `WrrLocality`.
pub(crate) fn wrr_locality(children: impl IntoIterator<Item = Any>) -> Any {
    let message = WrrLocality { endpoint_picking_policy: Some(list(children)) };
    any(types::WRR_LOCALITY, &message)
}

/// Creates a `xds.type.v3.TypedStruct`.
pub(crate) fn typed_struct(type_url: &str, value: &Value) -> Any {
    any(types::TYPED_STRUCT, &typed_struct_message(type_url, value))
}

/// Creates the message of a `TypedStruct`.
pub(crate) fn typed_struct_message(type_url: &str, value: &Value) -> TypedStruct {
    let Some(Kind::StructValue(value)) = proto(value).kind else { panic!("{value} is no object") };
    TypedStruct { type_url: type_url.to_owned(), value: Some(value) }
}

/// Returns a JSON value as a protobuf message.
pub(crate) fn proto(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(value) => Kind::NumberValue(value.as_f64().unwrap()),
        Value::String(value) => Kind::StringValue(value.clone()),
        Value::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(proto).collect() })
        }
        Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(key, value)| (key.clone(), proto(value))).collect(),
        }),
    };
    ProtoValue { kind: Some(kind) }
}

/// Converts with all policies of gRPC and the custom policy `myorg.Custom`.
pub(crate) fn convert(policies: impl IntoIterator<Item = Any>) -> Result<LbConfig, ConvertError> {
    Registry::default().with_policy("myorg.Custom").convert(&list(policies))
}

/// Returns the JSON text of a policy that converts.
pub(crate) fn json(policies: impl IntoIterator<Item = Any>) -> String {
    convert(policies).unwrap().to_string()
}

/// Returns the message of the error of a policy.
pub(crate) fn error(policies: impl IntoIterator<Item = Any>) -> String {
    convert(policies).unwrap_err().to_string()
}
