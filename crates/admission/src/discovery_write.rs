//! Writes files with one `DiscoveryResponse` each, for Envoy's filesystem subscriptions (FS-01, FS-02).

use bytes::Bytes;
use chancery_model::TypeUrl;
use chancery_proto::discovery::{Any, DiscoveryResponse};
use prost::Message;
use serde_json::{Value as Json, json};

use crate::{
    file_encoding::FileEncoding,
    render::{body_to_json, body_to_yaml},
    text_format,
};

/// Returns the content of a file with the given resources of one type. Equal resources give equal bytes. The
/// resources are bare `Any`s, without the wrappers of delta and TTL (FS-10, FS-15).
///
/// # Errors
/// If JSON or YAML cannot express a resource, because this release does not know all its fields.
pub fn write_discovery_response(
    encoding: FileEncoding,
    version: &str,
    type_url: &TypeUrl,
    resources: &[(impl AsRef<str>, Bytes)],
) -> Result<Vec<u8>, String> {
    let url = type_url.as_str();
    Ok(match encoding {
        FileEncoding::Binary => {
            let any = |value: &Bytes| Any { type_url: url.to_owned(), value: value.clone() };
            DiscoveryResponse {
                version_info: version.to_owned(),
                type_url: url.to_owned(),
                resources: resources.iter().map(|(_, body)| any(body)).collect(),
                ..DiscoveryResponse::default()
            }
            .encode_to_vec()
        }
        FileEncoding::Text => {
            let resources = resources.iter().map(|(_, body)| (url, body.as_ref()));
            text_format::write(version, url, resources).into_bytes()
        }
        FileEncoding::Json | FileEncoding::Yaml => {
            let bodies = resources.iter().map(|(name, body)| {
                shown(encoding, type_url, body).map_err(|why| {
                    let (extension, name) = (encoding.extension(), name.as_ref());
                    format!("{extension} cannot express {name:?}: {why}; use the encoding pb")
                })
            });
            let bodies = bodies.collect::<Result<Vec<Json>, String>>()?;
            let document = json!({"version_info": version, "type_url": url, "resources": bodies});
            match encoding {
                FileEncoding::Yaml => serde_saphyr::to_string(&document)
                    .map_err(|error| format!("cannot write YAML: {error}"))?
                    .into_bytes(),
                _ => format!("{document:#}\n").into_bytes(),
            }
        }
    })
}

/// Returns a resource as Envoy reads it from a file.
fn shown(encoding: FileEncoding, type_url: &TypeUrl, body: &[u8]) -> Result<Json, String> {
    let shown = if encoding == FileEncoding::Yaml {
        body_to_yaml(type_url, body)
            .map_err(|number| format!("Envoy reads the number {number} of its metadata as text"))?
    } else {
        body_to_json(type_url, body)
    };
    match inexpressible(&shown) {
        Some(why) => Err(why.to_owned()),
        None if encoding == FileEncoding::Yaml && has_next_line(&shown) => {
            Err("Envoy reads U+0085 as the end of a line".to_owned())
        }
        None => Ok(shown),
    }
}

/// Returns whether a text has U+0085.
fn has_next_line(shown: &Json) -> bool {
    match shown {
        Json::String(text) => text.contains('\u{85}'),
        Json::Array(items) => items.iter().any(has_next_line),
        Json::Object(fields) => {
            fields.iter().any(|(name, value)| name.contains('\u{85}') || has_next_line(value))
        }
        _ => false,
    }
}

/// Returns the reason why Envoy would reject the JSON of a resource.
fn inexpressible(shown: &Json) -> Option<&'static str> {
    match shown {
        Json::Array(items) => items.iter().find_map(inexpressible),
        Json::Object(fields) => {
            if fields.contains_key("@unknown_fields") {
                return Some("it has fields that this release does not know");
            }
            let message = fields.get("@type").and_then(Json::as_str);
            let name = message.and_then(|url| url.rsplit('/').next());
            let pool = chancery_proto::envoy_pool();
            if name.is_some_and(|name| pool.get_message_by_name(name).is_none()) {
                return Some("it has a message of a type that this release does not know");
            }
            fields.values().find_map(inexpressible)
        }
        _ => None,
    }
}
