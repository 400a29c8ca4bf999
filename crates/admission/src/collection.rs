//! Resources in collections of MCP: the message of their bodies, and the form of their names.
//!
//! In a manifest, `@type` is the collection, and the other keys are the fields `metadata` and `body` of an
//! `istio.mcp.v1alpha1.Resource` (MCP-12).

use std::{collections::HashMap, sync::LazyLock};

use chancery_model::{TypeUrl, has_private_key};
use chancery_proto::{envoy_pool, istio::mcp::v1alpha1 as pb};
use prost::Message;
use prost_reflect::MessageDescriptor;

/// The name of the message of the resources in a collection.
pub(crate) const RESOURCE: &str = "istio.mcp.v1alpha1.Resource";

/// The field for the name of a resource.
pub(crate) const NAME_FIELD: &str = "metadata.name";

/// Returns the message of the resources in a collection; `None` if the text names no collection, or contains a private
/// key.
pub(crate) fn message(type_url: &str) -> Option<MessageDescriptor> {
    let type_url = TypeUrl::new(type_url).ok()?;
    let is_collection = type_url.is_collection() && !has_private_key(type_url.as_str().as_bytes());
    is_collection.then(|| envoy_pool().get_message_by_name(RESOURCE)).flatten()
}

/// Returns the name of a resource and the type of its content, which is empty without content. An error says why the
/// resource is malformed.
pub(crate) fn name_and_type(resource: &[u8]) -> Result<(String, String), String> {
    let resource = pb::Resource::decode(resource).map_err(|error| error.to_string())?;
    let name = resource.metadata.map(|metadata| metadata.name).unwrap_or_default();
    Ok((name, resource.body.map(|body| body.type_url).unwrap_or_default()))
}

/// Checks the form of a name (MCP-13). In a collection `group/version/Kind`, which istiod requests, a name has two
/// segments. Returns the rule that the name breaks.
pub(crate) fn check_name(collection: &TypeUrl, name: &str) -> Result<(), String> {
    let mut segments = name.strip_prefix('/').unwrap_or(name).split('/');
    if segments.any(str::is_empty) {
        return Err(format!("{name:?} has an empty segment; names look like \"namespace/name\""));
    }
    if kind_of_istiod(collection).is_some() && name.split('/').count() != 2 {
        Err(format!(
            "{name:?} is not \"namespace/name\" (or \"/name\" without a namespace); istiod rejects other names in a \
             collection group/version/Kind"
        ))
    } else {
        Ok(())
    }
}

/// Returns the last segment of a collection `group/version/Kind`, which istiod requests.
pub(crate) fn kind_of_istiod(collection: &TypeUrl) -> Option<&str> {
    let segments: Vec<&str> = collection.as_str().split('/').collect();
    if let [_, _, kind] = segments[..] { Some(kind) } else { None }
}

/// Returns the full name of the message that istiod expects in a collection `group/version/Kind`. `None` means that this
/// release does not know the kind.
pub(crate) fn message_of_istiod(collection: &TypeUrl) -> Option<&'static str> {
    static BY_KIND: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
        let messages = envoy_pool().all_messages().filter(|it| it.parent_message().is_none());
        let of_istio = messages.filter_map(|message| {
            let package = message.package_name().strip_prefix("istio.")?;
            let (group, _version) = package.split_once('.')?;
            Some((format!("{group}.istio.io/{}", message.name()), message.full_name().to_owned()))
        });
        of_istio.collect()
    });
    let (group, kind) = (collection.as_str().split('/').next()?, kind_of_istiod(collection)?);
    BY_KIND.get(&format!("{group}/{kind}")).map(String::as_str)
}
