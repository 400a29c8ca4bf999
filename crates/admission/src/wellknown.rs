//! The `google.protobuf` types with a special JSON form.

/// Returns whether the JSON form of a type is not a map of its fields. Inside an `Any`, the form is then
/// under the key `value`.
pub(crate) fn has_own_form(full_name: &str) -> bool {
    full_name.strip_prefix("google.protobuf.").is_some_and(|name| {
        is_wrapper(name)
            || matches!(
                name,
                "Any" | "Duration" | "Empty" | "ListValue" | "Struct" | "Timestamp" | "Value"
            )
    })
}

pub(crate) fn is_wrapper(name: &str) -> bool {
    matches!(
        name,
        "BoolValue"
            | "BytesValue"
            | "DoubleValue"
            | "FloatValue"
            | "Int32Value"
            | "Int64Value"
            | "StringValue"
            | "UInt32Value"
            | "UInt64Value"
    )
}
