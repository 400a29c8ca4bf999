//! Reads files with one `DiscoveryResponse` each, the input of Envoy's filesystem subscriptions (FS-17).
//!
//! In JSON and YAML, such a file has the form of a manifest with further keys. The other two encodings are
//! converted to a manifest. A resource of the wire format keeps its bytes (SVC-18). The length of a file and
//! the nesting of its messages are bounded before anything is decoded.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use chancery_model::TypeUrl;
use chancery_proto::discovery::{Any, DiscoveryResponse, Resource};
use prost::Message;
use serde_json::{Value as Json, json};

use crate::{
    collection,
    file_encoding::FileEncoding,
    manifest::Manifest,
    problem::{Place, Problem},
    render::body_to_json,
    resource::DISCOVERY_RESOURCE,
    text_format, time,
    wellknown::has_own_form,
};

/// The maximum length of a file in the wire format or the text format, in bytes.
pub const DISCOVERY_FILE_BYTES_MAX: usize = 64 << 20;

/// Converts the content of a file to a manifest. The text of a JSON or YAML file stays as it is.
///
/// # Errors
/// If the content is not text, exceeds a limit, or is not one `DiscoveryResponse`.
pub fn manifest_of_file(
    file: &str,
    encoding: FileEncoding,
    content: Vec<u8>,
) -> Result<Manifest, Problem> {
    let place = Place { file, ..Place::default() };
    let content = match encoding {
        FileEncoding::Json | FileEncoding::Yaml => text(&place, content)?,
        FileEncoding::Binary => {
            check_length(&place, &content)?;
            let response = DiscoveryResponse::decode(Bytes::from(content)).map_err(|error| {
                place.problem("", format!("not a DiscoveryResponse in the wire format: {error}"))
            })?;
            manifest(&place, &response, resource_with_bytes)?
        }
        FileEncoding::Text => {
            check_length(&place, &content)?;
            let response = text_format::read(&place, &text(&place, content)?)?;
            // The reader of the text format encodes maps in a random order.
            manifest(&place, &response, resource_with_fields)?
        }
    };
    Ok(Manifest { file: file.to_owned(), content })
}

fn text(place: &Place<'_>, content: Vec<u8>) -> Result<String, Problem> {
    String::from_utf8(content).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        place.problem("", format!("byte {at} is not UTF-8 text"))
    })
}

fn check_length(place: &Place<'_>, content: &[u8]) -> Result<(), Problem> {
    match content.len() {
        0..=DISCOVERY_FILE_BYTES_MAX => Ok(()),
        len => {
            let rule = format!("has {len} bytes, at most {DISCOVERY_FILE_BYTES_MAX} are allowed");
            Err(place.problem("", rule))
        }
    }
}

/// Returns the text of a manifest. An empty response is rejected: it is the content of a file that is being
/// written, and with `Prune` it would remove a whole scope.
fn manifest(
    place: &Place<'_>,
    response: &DiscoveryResponse,
    resource: fn(&TypeUrl, &Bytes) -> Json,
) -> Result<String, Problem> {
    if *response == DiscoveryResponse::default() {
        return Err(place.problem("", "the file is empty; a DiscoveryResponse is expected"));
    }
    let mut resources = Vec::with_capacity(response.resources.len());
    for (index, Any { type_url, value }) in response.resources.iter().enumerate() {
        let refuse = |field: &str, rule: String| {
            let resource = Some(format!("resources[{index}]"));
            Place { resource, ..place.clone() }.problem(field, rule)
        };
        let bare = |type_url: &str, value: &Bytes| {
            let type_url = TypeUrl::new(type_url);
            let type_url = type_url.map_err(|error| refuse("type_url", error.to_string()))?;
            Ok(resource(&type_url, value))
        };
        if type_url != DISCOVERY_RESOURCE {
            resources.push(bare(type_url, value)?);
            continue;
        }
        let wrapped = Resource::decode(value.clone()).map_err(|error| {
            refuse("value", format!("not a Resource in the wire format: {error}"))
        })?;
        let body = wrapped.resource.as_ref();
        let body = body.map(|body| bare(&body.type_url, &body.value)).transpose()?;
        resources.push(wrapper(&wrapped, body));
    }
    let DiscoveryResponse { version_info, type_url, .. } = response;
    let document =
        json!({"version_info": version_info, "type_url": type_url, "resources": resources});
    Ok(document.to_string())
}

/// Returns a wrapped resource (FS-15) as a manifest's entry. Fields that admission rejects are kept.
fn wrapper(wrapped: &Resource, body: Option<Json>) -> Json {
    let Resource { name, aliases, ttl, cache_control, resource_name, metadata, .. } = wrapped;
    let mut entry = serde_json::Map::new();
    let mut put = |key: &str, value: Json| entry.insert(key.to_owned(), value);
    put("@type", json!(DISCOVERY_RESOURCE));
    body.map(|body| put("resource", body));
    if !name.is_empty() {
        put("name", json!(name));
    }
    if !aliases.is_empty() {
        put("aliases", json!(aliases));
    }
    // A duration out of its range is shown as its parts, which admission rejects.
    ttl.map(|ttl| {
        let text = time::print_duration(ttl.seconds, ttl.nanos);
        put("ttl", json!(text.unwrap_or_else(|| format!("{} s and {} ns", ttl.seconds, ttl.nanos))))
    });
    for (key, is_given) in [
        ("cache_control", cache_control.is_some()),
        ("resource_name", resource_name.is_some()),
        ("metadata", metadata.is_some()),
    ] {
        if is_given {
            put(key, Json::Null);
        }
    }
    Json::Object(entry)
}

/// Returns a resource as a manifest's entry with its bytes, if the type allows this form.
fn resource_with_bytes(type_url: &TypeUrl, body: &Bytes) -> Json {
    let message = chancery_proto::envoy_pool().get_message_by_name(type_url.message_name());
    let takes_bytes = message.is_none_or(|message| {
        let name = message.full_name();
        let has_no_bytes = has_own_form(name) || name == collection::RESOURCE;
        !has_no_bytes && message.get_field_by_name("value").is_none()
    });
    let takes_bytes = takes_bytes && !type_url.is_collection();
    if takes_bytes {
        json!({"@type": type_url.as_str(), "value": STANDARD.encode(body)})
    } else {
        body_to_json(type_url, body)
    }
}

fn resource_with_fields(type_url: &TypeUrl, body: &Bytes) -> Json {
    body_to_json(type_url, body)
}
