//! Custom policies.

use chancery_lb_policy::{
    proto::{
        TypedStruct,
        prost_types::{Struct, Value, value::Kind},
    },
    types,
};
use serde_json::json;

use crate::support::{
    any, bytes, convert, error, json, round_robin, typed_struct, typed_struct_message,
};

/// LB-24: the name is the text after the last `/`, and an empty name is unknown.
#[test]
fn name_is_the_end_of_the_type_url() {
    for url in
        ["type.googleapis.com/myorg.Custom", "myorg.Custom", "/myorg.Custom", "a/b/myorg.Custom"]
    {
        assert_eq!(json([typed_struct(url, &json!({}))]), r#"[{"myorg.Custom":{}}]"#);
    }
    for url in ["", "/", "myorg.Custom/", "myorg.custom", "x.myorg.Custom"] {
        assert_eq!(json([typed_struct(url, &json!({})), round_robin()]), r#"[{"round_robin":{}}]"#);
    }
}

/// LB-07: an unknown name is skipped, in either form of the message.
#[test]
fn custom_policy_that_the_client_lacks_is_skipped() {
    let message = typed_struct_message("x/myorg.Other", &json!({ "a": 1 }));
    for name in [types::TYPED_STRUCT, types::UDPA_TYPED_STRUCT] {
        let policies = [any(name, &message), round_robin()];
        assert_eq!(json(policies), r#"[{"round_robin":{}}]"#);
    }
    // A message that does not parse is an error, also with an unknown name.
    let broken = bytes(types::TYPED_STRUCT, *b"\x0a\x01x\x12\x05\x0a");
    assert!(convert([broken, round_robin()]).is_err());
}

/// LB-25: the configuration is in the field `value`.
#[test]
fn configuration_is_in_the_field_value() {
    // type_url = "myorg.Custom", value = { "a": 1 }
    let mut message = b"\x0a\x0cmyorg.Custom".to_vec();
    message.extend(b"\x12\x10\x0a\x0e\x0a\x01a\x12\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x3f");
    assert_eq!(
        json([bytes(types::TYPED_STRUCT, message.clone())]),
        r#"[{"myorg.Custom":{"a":1}}]"#
    );
    assert_eq!(json([bytes(types::UDPA_TYPED_STRUCT, message)]), r#"[{"myorg.Custom":{"a":1}}]"#);
    let without = TypedStruct { type_url: "myorg.Custom".to_owned(), value: None };
    assert_eq!(json([any(types::TYPED_STRUCT, &without)]), r#"[{"myorg.Custom":{}}]"#);
}

/// LB-26: the configuration is copied, with integral numbers as integers.
#[test]
fn configuration_is_copied() {
    let config = json!({
        "null": null, "bool": true, "text": "é\n", "list": [[], [null, [1, {}]]], "object": { "": {} },
        "numbers": [0, -1, 2.5, 4_294_967_296_i64, 1e300, -9_007_199_254_740_992_i64],
    });
    let converted = convert([typed_struct("x/myorg.Custom", &config)]).unwrap();
    assert_eq!(converted.config, config);
    for (number, text) in [(2.0, "2"), (-0.0, "0"), (1e15, "1000000000000000"), (0.1, "0.1")] {
        let config = typed_struct("myorg.Custom", &json!({ "n": number }));
        assert_eq!(json([config]), format!(r#"[{{"myorg.Custom":{{"n":{text}}}}}]"#));
    }
    for (kind, rule) in [
        (Some(Kind::NumberValue(f64::NAN)), "JSON has no number NaN"),
        (None, "the value has no kind; write null"),
    ] {
        let fields = [("a".to_owned(), Value { kind })].into_iter().collect();
        let value = Some(Struct { fields });
        let message = TypedStruct { type_url: "myorg.Custom".to_owned(), value };
        assert_eq!(
            error([any(types::TYPED_STRUCT, &message)]),
            format!("policies[0].TypedStruct.value.a: {rule}")
        );
    }
}

/// LB-27: a policy of gRPC can be named too, and its configuration is checked.
#[test]
fn built_in_policy_can_be_named() {
    assert_eq!(json([typed_struct("x/round_robin", &json!({}))]), r#"[{"round_robin":{}}]"#);
    let config = json!({ "choiceCount": 1 });
    let text = error([typed_struct("x/least_request_experimental", &config), round_robin()]);
    assert!(text.starts_with("least_request_experimental.choiceCount: "), "{text}");
}
