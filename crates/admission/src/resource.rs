//! Reads an entry of a manifest's `resources`: a plain resource, or one wrapped with data outside its body.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use bytes::Bytes;
use chancery_model::{
    Expectation, ResourceDraft, ResourceKey, ResourceName, TypeUrl, Version, has_private_key,
    is_structured, types,
};

use crate::{
    collection, constraints, draft,
    encode::{encode_any_parts, encode_fields},
    encoder::Encoder,
    keys::unknown_keys,
    node::{Node, shown},
    problem::Fault,
    sensitive::{self, IS_KEY},
    time, unchanged,
    yaml_scalars::Doubts,
};

/// The maximum number of aliases of a resource. Each client receives them with the resource.
const ALIASES_MAX: usize = 1000;
/// The maximum number of labels of a resource.
const LABELS_MAX: usize = 100;
/// The maximum length of a label's key and of its value in bytes.
const LABEL_BYTES_MAX: usize = 1024;

const WRAPPER_KEYS: [&str; 8] =
    ["resource", "name", "ttl", "labels", "aliases", "expect", constraints::KEY, unchanged::KEY];
/// The type of a wrapped resource in a `DiscoveryResponse`, and the keys that it may have. Its version has no
/// effect, because Chancery chooses the versions.
pub(crate) const DISCOVERY_RESOURCE: &str =
    "type.googleapis.com/envoy.service.discovery.v3.Resource";
const DISCOVERY_RESOURCE_KEYS: [&str; 6] =
    ["@type", "resource", "name", "ttl", "aliases", "version"];

/// A decoded entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) draft: ResourceDraft,
    /// The precondition on the resource, if there is one.
    pub(crate) expectation: Option<Expectation>,
    /// The version of the stored resource to keep. The draft then has no body.
    pub(crate) unchanged: Option<Version>,
}

/// Reads an entry, or returns all its faults. Adds the values that may be ambiguous to `doubts`.
pub(crate) fn read(node: &Node, doubts: &mut Doubts) -> Result<Entry, Vec<Fault>> {
    if is_discovery_resource(node) {
        return match node.get("resource") {
            Some(inner) => wrapped(node, inner, &DISCOVERY_RESOURCE_KEYS, doubts),
            None => Err(vec![
                Fault::new("has no content; only a heartbeat on a stream has none")
                    .within("resource"),
            ]),
        };
    }
    if node.get("@type").is_some() {
        return body(node, None, doubts).map(|draft| Entry {
            draft,
            expectation: None,
            unchanged: None,
        });
    }
    match (node, node.get("resource")) {
        (Node::Map(_), Some(inner)) => wrapped(node, inner, &WRAPPER_KEYS, doubts),
        (Node::Map(_), None) => Err(vec![Fault::new(
            "expected a resource with \"@type\", or {\"resource\": …}; found neither key",
        )]),
        _ => Err(vec![Fault::new(format!("expected a map, found {node}"))]),
    }
}

/// Returns whether an entry is a wrapped resource of a `DiscoveryResponse` (FS-15).
fn is_discovery_resource(node: &Node) -> bool {
    node.get("@type").and_then(Node::text) == Some(DISCOVERY_RESOURCE)
}

/// Returns the resource inside of an entry, which may be the entry itself.
pub(crate) fn inner(node: &Node) -> &Node {
    match node.get("resource") {
        Some(inner) if is_discovery_resource(node) || node.get("@type").is_none() => inner,
        _ => node,
    }
}

/// Returns the label of an entry in messages. It works for invalid entries too.
pub(crate) fn label(node: &Node) -> String {
    match type_and_name(node) {
        Some((url, name)) => draft::label(url, name),
        None => String::new(),
    }
}

/// Returns the key of an entry, also of an invalid one if its type and its name are valid.
pub(crate) fn key(node: &Node) -> Option<ResourceKey> {
    let (url, name) = type_and_name(node)?;
    let constraints = constraints::read(node, &mut Vec::new());
    Some(ResourceKey {
        type_url: TypeUrl::new(url).ok()?,
        name: ResourceName::canonical(name?).ok()?.variant(&constraints),
    })
}

fn type_and_name(node: &Node) -> Option<(&str, Option<&str>)> {
    let inner = inner(node);
    let url = inner.get("@type").and_then(Node::text)?;
    let field = TypeUrl::new(url).ok().and_then(|url| types::properties(&url).name_field);
    let in_body = match collection::message(url) {
        Some(_) => inner.get("metadata").and_then(|metadata| metadata.get("name")),
        None => inner.get(field.unwrap_or("name")).or_else(|| inner.get("clusterName")),
    };
    let name = if std::ptr::eq(inner, node) { in_body } else { node.get("name").or(in_body) };
    Some((url, name.and_then(Node::text)))
}

fn wrapped(
    node: &Node,
    inner: &Node,
    keys: &[&'static str],
    doubts: &mut Doubts,
) -> Result<Entry, Vec<Fault>> {
    let mut faults = Vec::new();
    if is_discovery_resource(inner) {
        let rule = "is another wrapper of a resource; write the resource itself";
        return Err(vec![Fault::new(rule).within("resource")]);
    }
    unknown_keys(node, keys, &mut faults);
    let name = match node.get("name") {
        None => None,
        Some(Node::Text(name)) => Some(name.as_str()),
        Some(other) => {
            faults.push(Fault::new(format!("expected text, found {other}")).within("name"));
            None
        }
    };
    let ttl = node.get("ttl").and_then(|node| {
        ttl(node).map_err(|rule| faults.push(Fault::new(rule).within("ttl"))).ok()
    });
    let labels = labels(node.get("labels"), &mut faults);
    let aliases = aliases(node.get("aliases"), &mut faults);
    let expectation = node.get("expect").and_then(|node| {
        expectation(node).map_err(|rule| faults.push(Fault::new(rule).within("expect"))).ok()
    });
    let unchanged = node.get(unchanged::KEY).map(|node| {
        unchanged::version(node)
            .map_err(|rule| faults.push(Fault::new(rule).within(unchanged::KEY)))
    });
    let constraints = constraints::read(node, &mut faults);
    let draft = match unchanged {
        Some(_) => key_only(node),
        None => body(inner, name, doubts),
    };
    match draft {
        Ok(draft) => {
            let key = constraints::variant_key(draft.key, &constraints, &aliases, &mut faults);
            let draft = ResourceDraft { key, ..draft };
            if draft.key.type_url.is_collection() && !aliases.is_empty() {
                let rule = "are not possible in a collection of MCP; publish another resource";
                faults.push(Fault::new(rule).within("aliases"));
            }
            let aliases = stored_aliases(&draft.key.type_url, aliases, &mut faults);
            if faults.is_empty() {
                let draft = ResourceDraft { ttl, labels, aliases, ..draft };
                Ok(Entry { draft, expectation, unchanged: unchanged.and_then(Result::ok) })
            } else {
                Err(faults)
            }
        }
        Err(inner) => {
            faults.extend(inner);
            Err(faults)
        }
    }
}

/// Returns the draft of an entry that keeps a stored resource: only its key.
fn key_only(entry: &Node) -> Result<ResourceDraft, Vec<Fault>> {
    let Some((type_url, Some(name))) = type_and_name(entry) else {
        let fault = Fault::new("needs a resource with \"@type\" and a name");
        return Err(vec![fault.within(unchanged::KEY)]);
    };
    let fault = |text: String| vec![Fault::new(text)];
    let type_url = TypeUrl::new(type_url).map_err(|error| fault(error.to_string()))?;
    let name = ResourceName::canonical(name).map_err(|error| fault(error.to_string()))?;
    Ok(ResourceDraft::new(ResourceKey { type_url, name }, Bytes::new()))
}

fn body(node: &Node, name: Option<&str>, doubts: &mut Doubts) -> Result<ResourceDraft, Vec<Fault>> {
    let mut encoder = Encoder::new(chancery_proto::envoy_pool());
    let url = node.get("@type").and_then(Node::text);
    let in_collection = url.and_then(|url| Some((url, collection::message(url)?)));
    let parts = match in_collection {
        Some((url, message)) => encode_fields(&mut encoder, &message, node).map(|body| (url, body)),
        None => encode_any_parts(&mut encoder, node),
    };
    doubts.merge(std::mem::take(&mut encoder.doubts));
    let Some((url, body)) = parts else {
        let mut faults = encoder.into_faults();
        faults.extend(missing_name(node, name));
        return Err(faults);
    };
    let type_url =
        TypeUrl::new(url).map_err(|e| vec![Fault::new(e.to_string()).within("@type")])?;
    let draft = draft::draft(&type_url, name, Bytes::from(body)).map_err(|fault| vec![fault])?;
    draft::check_spelling(&draft).map_err(|fault| vec![fault])?;
    // The encoder finds the marks in fields. The rest are in places without a path, such as the key of a map.
    if sensitive::has_mark(&type_url, &draft.body) {
        Err(vec![Fault::new(sensitive::IS_MARK)])
    } else {
        Ok(draft)
    }
}

/// Returns the fault of a body without a name. A body with other faults has no draft, which would have
/// this fault.
fn missing_name(node: &Node, name: Option<&str>) -> Option<Fault> {
    empty_name_field(node).map(|field| draft::empty_name(field, name))
}

/// Returns the field for the name of a resource, if neither the body nor the wrapper has a name.
pub(crate) fn absent_name(entry: &Node) -> Option<&'static str> {
    let inner = inner(entry);
    let is_wrapped = !std::ptr::eq(inner, entry);
    let is_named = is_wrapped && entry.get("name").is_some_and(|name| name.text() != Some(""));
    empty_name_field(inner).filter(|_| !is_named)
}

/// Returns the field for the name of a resource, if the body has no name.
fn empty_name_field(node: &Node) -> Option<&'static str> {
    let type_url = TypeUrl::new(node.get("@type").and_then(Node::text)?).ok()?;
    let field = types::properties(&type_url).name_field?;
    let Node::Map(entries) = node else { return None };
    let message = chancery_proto::envoy_pool().get_message_by_name(type_url.message_name())?;
    let json_name = message.get_field_by_name(field)?.json_name().to_owned();
    let is_name = |key: &str| key == field || key == json_name || key == "value";
    let is_empty = |value: &Node| value.is_null() || value.text() == Some("");
    let is_given = entries.iter().any(|(key, value)| is_name(key) && !is_empty(value));
    (!is_given).then_some(field)
}

/// Reads the precondition on a resource.
fn expectation(node: &Node) -> Result<Expectation, String> {
    match node.text() {
        Some("absent") => return Ok(Expectation::Absent),
        Some("present") => return Ok(Expectation::Present),
        _ => {}
    }
    unchanged::wanted_version(node).map(Expectation::Version).ok_or_else(|| {
        format!(
            "expected absent, present or a version like \"1-5e99b8ee\", as `chancery get` shows it; \
             found {node}"
        )
    })
}

/// The minimum TTL, because the unit of TTLs elsewhere is a millisecond.
const TTL_MIN: Duration = Duration::from_millis(1);

/// Reads the TTL, after which a client removes a resource without a heartbeat (TTL-01).
fn ttl(node: &Node) -> Result<Duration, String> {
    let Some((seconds, nanos)) = node.text().and_then(time::parse_duration) else {
        return Err(format!("expected a duration like \"30s\", found {node}"));
    };
    match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(seconds), Ok(nanos)) if Duration::new(seconds, nanos) >= TTL_MIN => {
            Ok(Duration::new(seconds, nanos))
        }
        _ => Err(format!("expected at least a millisecond (\"0.001s\"), found {node}")),
    }
}

fn too_many(n: usize, most: usize) -> Fault {
    Fault::new(format!("has {n} entries, at most {most} are allowed"))
}

fn labels(node: Option<&Node>, faults: &mut Vec<Fault>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    match node {
        None => {}
        Some(Node::Map(entries)) if entries.len() > LABELS_MAX => {
            faults.push(too_many(entries.len(), LABELS_MAX).within("labels"));
        }
        Some(Node::Map(entries)) => {
            for (key, value) in entries {
                match value {
                    _ if has_private_key(key.as_bytes()) || value.has_private_key() => {
                        let fault = Fault::new(IS_KEY);
                        faults.push(fault.within(&format!("labels[{}]", shown(key))));
                    }
                    Node::Text(value) if key.len().max(value.len()) <= LABEL_BYTES_MAX => {
                        labels.insert(key.clone(), value.clone());
                    }
                    Node::Text(_) => {
                        let rule = format!("is longer than {LABEL_BYTES_MAX} bytes");
                        faults.push(Fault::new(rule).within(&format!("labels[{}]", shown(key))));
                    }
                    other => {
                        let rule = format!("expected text, found {other}");
                        faults.push(Fault::new(rule).within(&format!("labels[{}]", shown(key))));
                    }
                }
            }
        }
        Some(other) => {
            faults.push(Fault::new(format!("expected a map, found {other}")).within("labels"));
        }
    }
    labels
}

fn aliases(node: Option<&Node>, faults: &mut Vec<Fault>) -> Vec<ResourceName> {
    let mut aliases: Vec<ResourceName> = Vec::new();
    let items = match node {
        None => return aliases,
        Some(Node::List(items)) if items.len() > ALIASES_MAX => {
            faults.push(too_many(items.len(), ALIASES_MAX).within("aliases"));
            return aliases;
        }
        Some(Node::List(items)) => items,
        Some(other) => {
            faults.push(Fault::new(format!("expected a list, found {other}")).within("aliases"));
            return aliases;
        }
    };
    for (index, item) in items.iter().enumerate() {
        let rule: Cow<'_, str> = match item {
            Node::Text(alias) if has_private_key(alias.as_bytes()) => IS_KEY.into(),
            Node::Text(alias) => match ResourceName::new(alias) {
                Ok(alias) if aliases.contains(&alias) => "is given twice".into(),
                Ok(alias) => {
                    aliases.push(alias);
                    continue;
                }
                Err(error) => error.to_string().into(),
            },
            other => format!("expected text, found {other}").into(),
        };
        faults.push(Fault::new(rule).within(&format!("aliases[{index}]")));
    }
    aliases
}

/// Converts the structured names among the aliases to their canonical form.
fn stored_aliases(
    type_url: &TypeUrl,
    aliases: Vec<ResourceName>,
    faults: &mut Vec<Fault>,
) -> Vec<ResourceName> {
    let stored = |(index, alias): (usize, ResourceName)| {
        if is_structured(alias.as_str()) {
            draft::stored_name(type_url, alias.as_str())
                .map_err(|rule| faults.push(Fault::new(rule).within(&format!("aliases[{index}]"))))
                .ok()
        } else {
            Some(alias)
        }
    };
    aliases.into_iter().enumerate().filter_map(stored).collect()
}
