//! Names with dynamic parameters or constraints, as the cases write them.
//!
//! In a request, `A[env=prod]` is the name `A` with the dynamic parameter `env=prod`, and `A[]` is `A` without
//! parameters. In a state or a response, `A[env=prod]` is the variant of `A` for clients with this parameter, and
//! `A[!env]` the variant for clients without the parameter `env`.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_proto::{discovery::ResourceLocator, envoy_pool};
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};

const CONSTRAINTS: &str = "envoy.service.discovery.v3.DynamicParameterConstraints";

/// Splits a name into the name in the protocol and the text in brackets.
pub(crate) fn split(text: &str) -> (&str, Option<&str>) {
    match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((name, inside)) => (name, Some(inside)),
        None => (text, None),
    }
}

/// Splits names into plain names and locators. `full` adds the prefix of the case to a name.
pub(crate) fn requested(
    names: &[&str],
    full: impl Fn(&str) -> String,
) -> (Vec<String>, Vec<ResourceLocator>) {
    let (mut plain, mut located) = (Vec::new(), Vec::new());
    for text in names {
        match split(text) {
            (name, None) => plain.push(full(name)),
            (name, Some(inside)) => {
                let pairs = inside.split(',').filter_map(|pair| pair.split_once('='));
                let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
                let dynamic_parameters: BTreeMap<String, String> = pairs.collect();
                located.push(ResourceLocator { name: full(name), dynamic_parameters });
            }
        }
    }
    (plain, located)
}

/// Returns the constraints of a variant in JSON.
pub(crate) fn constraints(inside: &str) -> Value {
    match (inside.split_once('='), inside.strip_prefix('!')) {
        (Some((key, value)), _) => json!({"constraint": {"key": key, "value": value}}),
        (None, Some(key)) => json!({"notConstraints": {"constraint": {"key": key, "exists": {}}}}),
        (None, None) => json!({}),
    }
}

/// Returns the name of a variant in a response.
pub(crate) fn shown(name: &str, encoded: Option<&Bytes>) -> String {
    match encoded {
        None => name.to_owned(),
        Some(encoded) => format!("{name}[{}]", text(encoded)),
    }
}

fn text(encoded: &Bytes) -> String {
    let message = envoy_pool().get_message_by_name(CONSTRAINTS);
    let message = message.and_then(|kind| DynamicMessage::decode(kind, encoded.clone()).ok());
    let Some(json) = message.and_then(|message| serde_json::to_value(message).ok()) else {
        return "unreadable constraints".to_owned();
    };
    let (value, key) = (&json["constraint"]["value"], &json["constraint"]["key"]);
    let absent = &json["notConstraints"]["constraint"];
    match (key.as_str(), value.as_str(), absent["key"].as_str()) {
        (Some(key), Some(value), _) => format!("{key}={value}"),
        (_, _, Some(key)) if absent.get("exists").is_some() => format!("!{key}"),
        _ if json == json!({}) => String::new(),
        _ => json.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn constraints_are_shown_as_cases_write_them() {
        for inside in ["env=prod", "!env", ""] {
            let kind = envoy_pool().get_message_by_name(CONSTRAINTS).unwrap();
            let message = DynamicMessage::deserialize(kind, constraints(inside)).unwrap();
            let encoded = Bytes::from(message.encode_to_vec());
            assert_eq!(shown("A", Some(&encoded)), format!("A[{inside}]"));
        }
        assert_eq!(shown("A", None), "A");
    }

    #[test]
    fn names_with_brackets_are_locators() {
        let names = ["A", "B[env=prod,zone=x]", "*[]"];
        let (plain, located) = requested(&names, |name| format!("p-{name}"));
        assert_eq!(plain, ["p-A"]);
        let names: Vec<&str> = located.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["p-B", "p-*"]);
        assert_eq!(located[0].dynamic_parameters["zone"], "x");
        assert!(located[1].dynamic_parameters.is_empty());
    }
}
