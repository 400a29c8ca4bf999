//! The entries of exported resources.
//!
//! Each entry is read back before it is written. An entry that would not give the stored bytes, because it lacks secrets
//! or because JSON cannot express them, keeps the stored resource instead.

use std::sync::Arc;

use chancery_admin::json::JsonMessage;
use chancery_admin_proto::v1 as pb;
use chancery_admission::{Manifest, Options, admit_unless, is_shown_in_part};
use chancery_model::{ResourceDraft, ScopeName};
use serde_json::{Value, json};

use super::super::manifest::{Content, entry};
use crate::{failure::Failure, yaml::yaml};

/// Entries of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entries {
    /// The items of the list `resources`.
    pub(super) text: String,
    /// The number of entries that keep the stored resource.
    pub(super) kept: u64,
}

/// Returns the start of a document, before the first entry.
pub(super) fn head(scope: &str) -> Result<String, Failure> {
    Ok(yaml(&json!({ "scope": scope }))? + LIST)
}

/// The line before the entries.
const LIST: &str = "resources:\n";

/// Returns the entries of resources of one scope.
pub(super) fn entries(resources: &[pb::Resource]) -> Result<Entries, Failure> {
    let mut all: Vec<(&pb::Resource, Content)> =
        resources.iter().map(|one| (one, content_of(one))).collect();
    let mut text = text_of(&all)?;
    if !gives_what_is_stored(&all, &text)? {
        for one in &mut all {
            let is_same = gives_what_is_stored(&[*one], &text_of(&[*one])?)?;
            if !is_same && one.1 == Content::Published {
                one.1 = Content::Kept;
                if gives_what_is_stored(&[*one], &text_of(&[*one])?)? {
                    continue;
                }
            }
            if !is_same {
                let pb::Resource { scope, type_url, name, .. } = one.0;
                return Err(Failure::new(format_args!(
                    "cannot write {type_url} {name:?} of scope {scope:?} as a manifest: it would not be read back as it is; \
                     `chancery backup` keeps it"
                )));
            }
        }
        text = text_of(&all)?;
    }
    let kept = all.iter().filter(|(_, content)| *content == Content::Kept).count() as u64;
    Ok(Entries { text, kept })
}

fn content_of(resource: &pb::Resource) -> Content {
    if is_shown_in_part(&body(resource)) { Content::Kept } else { Content::Published }
}

fn body(resource: &pb::Resource) -> Value {
    resource.to_json()["body"].take()
}

fn text_of(resources: &[(&pb::Resource, Content)]) -> Result<String, Failure> {
    let entries: Vec<Value> =
        resources.iter().map(|(resource, content)| entry(resource, *content)).collect();
    let text = yaml(&json!({ "resources": entries }))?;
    text.strip_prefix(LIST)
        .map(str::to_owned)
        .ok_or_else(|| Failure::new("cannot write YAML: the list has another form than expected"))
}

/// Returns whether a manifest with these entries would change nothing.
fn gives_what_is_stored(
    resources: &[(&pb::Resource, Content)],
    text: &str,
) -> Result<bool, Failure> {
    let Some((first, _)) = resources.first() else { return Ok(true) };
    let scope = ScopeName::new(&first.scope).map_err(Failure::new)?;
    let content = head(&first.scope)? + text;
    let manifest = Manifest { file: "export.yaml".to_owned(), content };
    let Ok(admitted) = admit_unless(&[manifest], &Options::new(scope), &Arc::default()) else {
        return Ok(false);
    };
    let mut published = admitted.transaction.upserts.iter();
    let mut kept = admitted.unchanged.iter();
    let is_same = resources.iter().all(|(resource, content)| match content {
        Content::Published => published.next().is_some_and(|upsert| {
            let stored = resource.body.as_ref().map(|body| body.value.as_slice());
            stored == Some(upsert.draft.body.as_ref()) && has_properties(resource, &upsert.draft)
        }),
        Content::Kept => kept.next().is_some_and(|kept| {
            kept.difference(&body(resource)).is_none()
                && kept.version.to_string() == resource.version
                && has_properties(resource, &kept.draft)
        }),
    });
    Ok(is_same && published.next().is_none() && kept.next().is_none())
}

/// Returns whether a draft has the key of a stored resource, and its properties outside of the body.
fn has_properties(resource: &pb::Resource, draft: &ResourceDraft) -> bool {
    let ttl_ms = draft.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let variant = draft.key.name.constraints().map(|one| one.to_string()).unwrap_or_default();
    draft.key.type_url.as_str() == resource.type_url
        && draft.key.name.base() == resource.name
        && variant == resource.variant
        && draft.labels == resource.labels
        && ttl_ms == resource.ttl_ms
        && draft.aliases.iter().map(|alias| alias.as_str()).eq(&resource.aliases)
}

#[cfg(test)]
mod tests {
    use chancery_model::types;

    use super::*;

    fn cluster(name: &str, more: &[u8]) -> pb::Resource {
        let len = u8::try_from(name.len()).unwrap();
        let value = [b"\x0a", [len].as_slice(), name.as_bytes(), more].concat();
        pb::Resource {
            scope: "edge".into(),
            type_url: types::CLUSTER.into(),
            name: name.into(),
            version: "3-5e99b8ee".into(),
            body: Some(prost_types::Any { type_url: types::CLUSTER.into(), value }),
            ..pb::Resource::default()
        }
    }

    /// Fields out of their order: the canonical encoding has other bytes.
    fn reordered(name: &str) -> pb::Resource {
        let mut resource = cluster(name, b"");
        let body = resource.body.as_mut().unwrap();
        // The connect timeout, field 4, comes before the name.
        body.value = [b"\x22\x02\x08\x01".as_slice(), &body.value].concat();
        resource
    }

    #[test]
    fn resources_are_written_as_they_are_stored() {
        let mut labeled = cluster("b", b"\x22\x02\x08\x01");
        labeled.labels.insert("team".into(), "shop: #1".into());
        labeled.aliases.push("other".into());
        labeled.ttl_ms = 1500;
        let written = entries(&[cluster("a", b""), labeled]).unwrap();
        assert_eq!(written.kept, 0, "{}", written.text);
        assert!(written.text.contains("ttl: 1.500s"), "{}", written.text);
    }

    #[test]
    fn only_the_resource_that_json_cannot_express_keeps_the_stored_one() {
        let all = [cluster("a", b""), reordered("b"), cluster("c", b"")];
        let written = entries(&all).unwrap();
        assert_eq!(written.kept, 1, "{}", written.text);
        assert_eq!(written.text.matches("unchanged: 3-5e99b8ee").count(), 1, "{}", written.text);
        let unknown = cluster("d", b"\xfa\x7c\x01x");
        assert_eq!(entries(&[unknown]).unwrap().kept, 1);
    }
}
