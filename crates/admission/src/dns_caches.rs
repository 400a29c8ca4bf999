//! The caches of forward proxies. All forward proxies of an Envoy share the caches, by their names.

use chancery_model::{ResourceDraft, types};
use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use crate::inspect::DEPTH_MAX;

const CACHE: &str = "envoy.extensions.common.dynamic_forward_proxy.v3.DnsCacheConfig";
/// A part of the names of all filters and clusters with a cache. The bodies of others are not decoded.
const MARK: &[u8] = b"dynamic_forward_proxy";

/// A cache: the path of its settings, its name, and its settings.
#[derive(Debug)]
pub(crate) struct DnsCache {
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) settings: DynamicMessage,
}

/// Returns the caches in a listener or a cluster.
pub(crate) fn dns_caches(draft: &ResourceDraft) -> Vec<DnsCache> {
    let type_url = &draft.key.type_url;
    let mut found = Vec::new();
    if ![types::LISTENER, types::CLUSTER].contains(&type_url.as_str())
        || !draft.body.windows(MARK.len()).any(|part| part == MARK)
    {
        return found;
    }
    let pool = chancery_proto::envoy_pool();
    let kind = pool.get_message_by_name(type_url.message_name());
    let decode = |kind| DynamicMessage::decode(kind, draft.body.as_ref()).ok();
    if let Some(message) = kind.and_then(decode) {
        collect(&message, String::new(), 0, &mut found);
    }
    found
}

fn collect(message: &DynamicMessage, path: String, depth: usize, found: &mut Vec<DnsCache>) {
    if depth > DEPTH_MAX {
        return;
    }
    let kind = message.descriptor();
    if kind.full_name() == CACHE {
        let name = message.get_field_by_name("name");
        let name = name.and_then(|name| Some(name.as_str()?.to_owned())).unwrap_or_default();
        return found.push(DnsCache { path, name, settings: message.clone() });
    }
    if let Some(content) = (kind.full_name() == "google.protobuf.Any").then(|| content(message)) {
        return content.iter().for_each(|content| collect(content, path.clone(), depth + 1, found));
    }
    for (field, value) in message.fields() {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", field.name());
        match value {
            Value::Message(inner) => collect(inner, path, depth + 1, found),
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    if let Value::Message(inner) = item {
                        collect(inner, format!("{path}[{index}]"), depth + 1, found);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Decodes the content of an `Any` of a known type.
fn content(any: &DynamicMessage) -> Option<DynamicMessage> {
    let type_url = any.get_field_by_name("type_url")?;
    let name = type_url.as_str()?.rsplit('/').next()?;
    let kind = chancery_proto::envoy_pool().get_message_by_name(name)?;
    let value = any.get_field_by_name("value")?;
    DynamicMessage::decode(kind, value.as_bytes()?.as_ref()).ok()
}
