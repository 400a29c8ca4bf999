//! The configuration of a custom policy: a `google.protobuf.Struct` as JSON.

use prost::Message;
use prost_types::{Struct, Value, value::Kind};
use serde_json::{Map, Number, Value as Json};

use crate::{
    config::LbConfig,
    convert::{Context, decode, type_name},
    error::ConvertError,
    proto::TypedStruct,
};

/// The part of a `TypedStruct` that selects the policy.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeUrl {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
}

/// Converts a `TypedStruct`, unless the client has no policy of its name. The configuration of an
/// unknown policy is checked for its form, but may be nested to any depth.
pub(crate) fn convert(
    bytes: &[u8],
    context: &Context<'_>,
) -> Result<Option<LbConfig>, ConvertError> {
    let selector: TypeUrl = decode(bytes, context)?;
    let name = type_name(&selector.type_url);
    let decoded = decode::<TypedStruct>(bytes, context);
    if !context.has_policy(name) {
        return match decoded {
            Err(error) if !error.is_recursion_limit() => Err(error),
            _ => Ok(None),
        };
    }
    let value = decoded?.value.unwrap_or_default();
    let config = object(value).map_err(|error| error.under(&context.field("value")))?;
    Ok(Some(LbConfig { name: name.to_owned(), config: Json::Object(config) }))
}

pub(crate) fn object(value: Struct) -> Result<Map<String, Json>, ConvertError> {
    let fields = value.fields.into_iter();
    fields
        .map(|(key, value)| match json(value) {
            Ok(value) => Ok((key, value)),
            Err(error) => Err(error.under(&key)),
        })
        .collect()
}

/// Decoding has bounded the depth of the value, so that the recursion is bounded too.
fn json(value: Value) -> Result<Json, ConvertError> {
    Ok(match value.kind {
        Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => Json::Bool(value),
        Some(Kind::NumberValue(value)) => Json::Number(number(value)?),
        Some(Kind::StringValue(value)) => Json::String(value),
        Some(Kind::StructValue(value)) => Json::Object(object(value)?),
        Some(Kind::ListValue(list)) => {
            let values = list.values.into_iter().enumerate();
            let values: Result<_, ConvertError> = values
                .map(|(index, value)| {
                    json(value).map_err(|error| error.under(&format!("[{index}]")))
                })
                .collect();
            Json::Array(values?)
        }
        None => return Err(ConvertError::invalid("", "the value has no kind; write null")),
    })
}

/// The bound of integers that a double holds and an `i64` too.
const INTEGER_BOUND: f64 = 9_007_199_254_740_992.0;

/// Writes an integral double as an integer.
#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn number(value: f64) -> Result<Number, ConvertError> {
    if value.fract() == 0.0 && value.abs() <= INTEGER_BOUND {
        return Ok(Number::from(value as i64));
    }
    Number::from_f64(value)
        .ok_or_else(|| ConvertError::invalid("", format!("JSON has no number {value}")))
}
