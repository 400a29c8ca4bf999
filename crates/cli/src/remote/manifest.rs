//! Conversion of resources to manifests: the output of `get -o yaml` can be applied again.

use std::collections::BTreeMap;

use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1 as pb;
use chancery_admission::is_shown_in_part;
use chancery_model::{TypeUrl, types};
use serde_json::{Map, Value, json};

use crate::{failure::Failure, yaml::yaml};

/// Creates a manifest with one document per scope.
pub(crate) fn manifest(resources: &[pb::Resource]) -> Result<String, Failure> {
    let mut scopes: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for resource in resources {
        scopes.entry(&resource.scope).or_default().push(entry(resource, Content::Published));
    }
    let documents: Result<Vec<String>, Failure> = scopes
        .into_iter()
        .map(|(scope, resources)| {
            // The scope and the resources are written separately, so that each document begins with
            // its scope.
            let scope = yaml(&json!({"scope": scope}))?;
            Ok(scope + &yaml(&json!({"resources": resources}))?)
        })
        .collect();
    Ok(documents?.join("---\n"))
}

/// The effect of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// The entry publishes its body, unless the body lacks secrets.
    Published,
    /// The entry keeps the stored resource.
    Kept,
}

/// Returns a resource as an entry of a manifest. The entry is the body, or a wrapper if the
/// resource has properties that the body does not contain. If the body lacks secrets, the entry keeps the stored
/// resource.
pub(super) fn entry(resource: &pb::Resource, content: Content) -> Value {
    let mut json = resource.to_json();
    let body = json["body"].take();
    let has_name = TypeUrl::new(&resource.type_url)
        .is_ok_and(|type_url| types::properties(&type_url).name_field.is_some());
    let mut wrapper = Map::new();
    if content == Content::Kept || is_shown_in_part(&body) {
        wrapper.insert("unchanged".to_owned(), json!(resource.version));
    }
    if !has_name {
        wrapper.insert("name".to_owned(), json!(resource.name));
    }
    if !resource.labels.is_empty() {
        wrapper.insert("labels".to_owned(), json!(resource.labels));
    }
    if !resource.aliases.is_empty() {
        wrapper.insert("aliases".to_owned(), json!(resource.aliases));
    }
    if resource.ttl_ms > 0 {
        let (seconds, millis) = (resource.ttl_ms / 1000, resource.ttl_ms % 1000);
        let ttl =
            if millis == 0 { format!("{seconds}s") } else { format!("{seconds}.{millis:03}s") };
        wrapper.insert("ttl".to_owned(), json!(ttl));
    }
    if resource.dynamic_parameter_constraints.is_some() {
        let key = "dynamic_parameter_constraints";
        wrapper.insert(key.to_owned(), json[key].take());
    }
    if wrapper.is_empty() {
        return body;
    }
    wrapper.insert("resource".to_owned(), body);
    Value::Object(wrapper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(scope: &str, name: &str) -> pb::Resource {
        pb::Resource {
            scope: scope.into(),
            type_url: types::CLUSTER.into(),
            name: name.into(),
            body: Some(prost_types::Any {
                type_url: types::CLUSTER.into(),
                value: [b"\x0a\x03".as_slice(), name.as_bytes()].concat(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn plain_resource_is_printed_as_body_and_scopes_as_documents() {
        let text = manifest(&[resource("a", "one"), resource("b", "two")]).unwrap();
        let documents: Vec<&str> = text.split("---\n").collect();
        assert_eq!(documents.len(), 2);
        assert!(documents[0].starts_with("scope: a\nresources:\n"), "{text}");
        assert!(documents[1].contains("name: two"), "{text}");
    }

    #[test]
    fn metadata_outside_of_the_body_is_printed_in_the_wrapper() {
        let mut resource = resource("a", "one");
        resource.ttl_ms = 1500;
        resource.labels.insert("team".into(), "shop".into());
        resource.aliases.push("other".into());
        let entry = entry(&resource, Content::Published);
        assert_eq!(entry["ttl"], "1.500s");
        assert_eq!(entry["labels"]["team"], "shop");
        assert_eq!(entry["aliases"][0], "other");
        assert_eq!(entry["resource"]["name"], "one");
        assert_eq!(entry.get("name"), None);
    }

    #[test]
    fn resource_with_a_secret_is_printed_with_the_version_that_it_keeps() {
        let mut resource = resource("a", "one");
        resource.version = "3-5e99b8ee".into();
        assert_eq!(entry(&resource, Content::Kept)["unchanged"], "3-5e99b8ee");
        assert_eq!(entry(&resource, Content::Published)["name"], "one");
        // A field that no release knows.
        let body = resource.body.as_mut().unwrap();
        body.value.extend_from_slice(b"\xfa\x7c\x01x");
        assert_eq!(entry(&resource, Content::Published)["unchanged"], "3-5e99b8ee");
    }

    #[test]
    fn resource_of_unknown_type_has_its_name_in_the_wrapper() {
        let mut resource = resource("a", "one");
        resource.type_url = "example.com/x.Y".into();
        assert_eq!(entry(&resource, Content::Published)["name"], "one");
    }
}
