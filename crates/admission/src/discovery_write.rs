//! Writes files with one `DiscoveryResponse` each, for Envoy's filesystem subscriptions (FS-01, FS-02).

use bytes::Bytes;
use chancery_model::TypeUrl;
use chancery_proto::discovery::{Any, DiscoveryResponse};
use prost::Message;
use serde_json::{Value as Json, json};

use crate::{file_encoding::FileEncoding, render::body_to_json, text_format};

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
                let shown = body_to_json(type_url, body);
                match inexpressible(&shown) {
                    None => Ok(shown),
                    Some(why) => Err(format!(
                        "{} cannot express {:?}: {why}; use the encoding pb",
                        encoding.extension(),
                        name.as_ref()
                    )),
                }
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
