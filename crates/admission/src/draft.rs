//! Converts an encoded body to a draft: checks that it parses, and finds its name and its children.

use std::collections::BTreeSet;

use bytes::Bytes;
use chancery_model::{
    ResourceDraft, ResourceKey, ResourceName, StructuredName, TypeUrl, canonical_name,
    has_private_key, is_structured, types,
};
use prost_reflect::{FieldDescriptor, MessageDescriptor};

use crate::{
    collection,
    inspect::{self, Value, Visitor},
    node::named,
    problem::{Fault, Place, Problem},
    references::requested_chains,
    sensitive::{IS_KEY, KEY_MARK},
    wire,
};

/// The maximum length of a resource's body in bytes.
///
/// The strictest clients accept far smaller messages. The state stores offsets in 32 bits.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// Converts a body that an author encoded.
///
/// Checks that the body parses as the declared type (SVC-23), and keeps its bytes unchanged (SVC-18). The
/// body of an unknown type only needs to be an encoded message.
///
/// # Errors
/// If the body does not parse, or if the name is missing, invalid, or different from the one in the body.
pub fn draft_from_body(
    type_url: &TypeUrl,
    name: Option<&str>,
    body: Bytes,
) -> Result<ResourceDraft, Problem> {
    draft(type_url, name, body).map_err(|fault| {
        let resource = Some(label(type_url.as_str(), name));
        Place { resource, ..Place::default() }.problem(&fault.path, fault.rule)
    })
}

/// Returns the label of a resource in a message: `Cluster "web"`.
pub(crate) fn label(type_url: &str, name: Option<&str>) -> String {
    let type_url = if has_private_key(type_url.as_bytes()) { KEY_MARK } else { type_url };
    let short = type_url.rsplit(['/', '.']).next().unwrap_or(type_url);
    match name {
        Some(name) => format!("{short} {}", named(name)),
        None => short.to_owned(),
    }
}

pub(crate) fn draft(
    type_url: &TypeUrl,
    name: Option<&str>,
    body: Bytes,
) -> Result<ResourceDraft, Fault> {
    if body.len() > BODY_BYTES_MAX {
        let rule = format!("has {} bytes, at most {BODY_BYTES_MAX} are allowed", body.len());
        return Err(Fault::new(rule));
    }
    let message = message_of(type_url)?;
    let properties = types::properties(type_url);
    let mut name_field = properties.name_field;
    let mut found = Found { name_field, ..Found::default() };
    match &message {
        Some(message) => inspect::walk(message, &body, &mut found)?,
        None => inspect::check_unknown(&body).map_err(|fault| fault.within("value"))?,
    }
    if type_url.is_collection() {
        name_field = Some(collection::NAME_FIELD);
        let content;
        (found.name, content) = collection::name_and_type(&body).map_err(Fault::new)?;
        if content.is_empty() {
            return Err(Fault::new("is missing: it is the content of the resource").within("body"));
        }
    }
    let names = [name.unwrap_or_default(), found.name.as_str()];
    if names.iter().any(|name| has_private_key(name.as_bytes())) {
        return Err(Fault::new(IS_KEY).within(name_field.unwrap_or("name")));
    }
    let name = match (name_field, name) {
        (None, None) => return Err(Fault::new(NAME_MISSING)),
        (None, Some(name)) => name,
        (Some(field), given) => {
            let in_body = found.name.as_str();
            match given {
                given if in_body.is_empty() => return Err(empty_name(field, given)),
                Some(given) if canonical_name(given) != canonical_name(in_body) => {
                    let rule =
                        format!("the resource is named {given:?}, but its {field} is {in_body:?}");
                    return Err(Fault::new(rule).within("name"));
                }
                _ => in_body,
            }
        }
    };
    check_form(type_url, name)?;
    check_entries(&found.entries)?;
    let stored = stored_name(type_url, name);
    let name = stored.map_err(|rule| Fault::new(rule).within(name_field.unwrap_or("name")))?;
    let key = ResourceKey { type_url: type_url.clone(), name };
    if type_url.as_str() == types::LISTENER {
        found.chains = requested_chains(&key, &body);
    }
    let children = found.children(type_url, &key.name);
    Ok(ResourceDraft { children, ..ResourceDraft::new(key, body) })
}

/// Checks that a structured name in a body is canonical (XDSTP-03). Envoy identifies listeners and clusters by the names
/// in their bodies, and the server removes resources by their canonical names.
pub(crate) fn check_spelling(draft: &ResourceDraft) -> Result<(), Fault> {
    let ResourceKey { type_url, name } = &draft.key;
    if !is_structured(name.as_str()) {
        return Ok(());
    }
    let Some(name_field) = types::properties(type_url).name_field else { return Ok(()) };
    let message = message_of(type_url)?;
    let field = message.and_then(|message| message.get_field_by_name(name_field));
    let in_body = field.and_then(|field| wire::last_text(&draft.body, field.number()));
    match in_body {
        Some(in_body) if in_body != name.as_str() => {
            let rule = format!(
                "{in_body:?} is not the canonical form of the name, so clients could keep the resource after its removal"
            );
            let fix = format!("write {:?}", name.as_str());
            Err(Fault { fix, ..Fault::new(rule).within(name_field) })
        }
        _ => Ok(()),
    }
}

/// Validates a name or an alias. A structured name is stored in its canonical form (XDSTP-02).
pub(crate) fn stored_name(type_url: &TypeUrl, name: &str) -> Result<ResourceName, String> {
    if !is_structured(name) {
        return ResourceName::new(name).map_err(|error| error.to_string());
    }
    // The limits apply to both forms.
    ResourceName::new(name).map_err(|error| error.to_string())?;
    let parsed = StructuredName::parse_stored(name, type_url.message_name())
        .map_err(|error| error.to_string())?;
    ResourceName::new(parsed.as_str()).map_err(|error| error.to_string())
}

/// Returns the descriptor of a type; `None` if it is unknown. A known type has exactly one type URL (SVC-06).
fn message_of(type_url: &TypeUrl) -> Result<Option<MessageDescriptor>, Fault> {
    let name = type_url.message_name();
    if let Some(message) = collection::message(type_url.as_str()) {
        return Ok(Some(message));
    }
    let message = chancery_proto::envoy_pool().get_message_by_name(name);
    let expected = format!("type.googleapis.com/{name}");
    if message.is_some() && type_url.as_str() != expected {
        let rule = format!("the type URL of {name} is {expected:?}");
        return Err(Fault::new(rule).within("@type"));
    }
    Ok(message)
}

/// Returns the fault of a body with an empty name. `given` is the name outside the body.
pub(crate) fn empty_name(field: &str, given: Option<&str>) -> Fault {
    let rule = match given {
        Some(given) => format!("is empty, but the resource is named {given:?}"),
        None => "is empty: it is the name of the resource".to_owned(),
    };
    Fault::new(rule).within(field)
}

/// Checks the name of a virtual host, which has two parts (DELTA-60), and that of a resource in a collection.
fn check_form(type_url: &TypeUrl, name: &str) -> Result<(), Fault> {
    if type_url.is_collection() {
        let checked = collection::check_name(type_url, name);
        return checked.map_err(|rule| Fault::new(rule).within(collection::NAME_FIELD));
    }
    let is_pair = name.rsplit_once('/').is_some_and(|(a, b)| !a.is_empty() && !b.is_empty());
    if type_url.as_str() == types::VIRTUAL_HOST && !is_pair {
        let rule = format!("{name:?} is not <route configuration>/<host>");
        return Err(Fault::new(rule).within("name"));
    }
    Ok(())
}

/// Checks the names of the inline entries of a list collection (XDSTP-13).
fn check_entries(names: &[String]) -> Result<(), Fault> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.~:".contains(c);
    let mut seen = BTreeSet::new();
    for name in names.iter().filter(|name| !name.is_empty()) {
        let rule = match name.chars().find(|c| !is_allowed(*c)) {
            Some(c) => format!(
                "the entry {name:?} has the character {c:?}; letters, digits and _-.~: are allowed"
            ),
            None if seen.insert(name) => continue,
            None => format!("two entries have the name {name:?}"),
        };
        return Err(Fault::new(rule).within("entries"));
    }
    Ok(())
}

/// The number of `EDS` in `Cluster.type`.
const EDS: u64 = 3;

/// The rule for a body of a type without a known field for its name.
const NAME_MISSING: &str =
    "the name is missing: this type has no known name field; give {\"resource\": …, \"name\": …}";

/// The findings of a walk through a body.
#[derive(Default)]
struct Found {
    name_field: Option<&'static str>,
    name: String,
    /// `Cluster.type`; also [`EDS`] if `cluster_type` names it.
    discovery_type: u64,
    /// `Cluster.eds_cluster_config.service_name`.
    service_name: String,
    /// The names of requested filter chains.
    chains: Vec<String>,
    /// The names of requested route configurations.
    routes: Vec<String>,
    /// The names of requested secrets.
    secrets: Vec<String>,
    /// The names of lists of endpoints.
    endpoint_lists: Vec<String>,
    /// The names of the inline entries of a list collection.
    entries: Vec<String>,
    /// The name of the last filter.
    filter: String,
    /// The names of filters with requested configurations.
    extensions: Vec<String>,
}

impl Visitor for Found {
    fn value(
        &mut self,
        message: &MessageDescriptor,
        field: &FieldDescriptor,
        depth: usize,
        value: Value<'_>,
    ) {
        match value {
            Value::Text(text) => {
                if depth == 0 && self.name_field == Some(field.name()) {
                    text.clone_into(&mut self.name);
                }
                match (field.name(), message.full_name()) {
                    (
                        "route_config_name",
                        "envoy.extensions.filters.network.http_connection_manager.v3.Rds",
                    )
                    | (
                        "route_configuration_name",
                        "envoy.config.route.v3.ScopedRouteConfiguration",
                    ) => self.routes.push(text.to_owned()),
                    ("name", "envoy.config.cluster.v3.Cluster.CustomClusterType")
                        if text == "envoy.cluster.eds" =>
                    {
                        self.discovery_type = EDS;
                    }
                    ("service_name", "envoy.config.cluster.v3.Cluster.EdsClusterConfig") => {
                        text.clone_into(&mut self.service_name);
                    }
                    ("name", "envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig") => {
                        self.secrets.push(text.to_owned())
                    }
                    (
                        "leds_collection_name",
                        "envoy.config.endpoint.v3.LedsClusterLocalityConfig",
                    ) if !text.split(['?', '#']).next().is_some_and(|id| id.ends_with("/*")) => {
                        self.endpoint_lists.push(text.to_owned());
                    }
                    ("name", "xds.core.v3.CollectionEntry.InlineEntry") if depth == 2 => {
                        self.entries.push(text.to_owned());
                    }
                    (
                        "name",
                        "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"
                        | "envoy.config.listener.v3.Filter"
                        | "envoy.config.listener.v3.ListenerFilter",
                    ) => text.clone_into(&mut self.filter),
                    ("type_urls", "envoy.config.core.v3.ExtensionConfigSource") => {
                        self.extensions.push(self.filter.clone());
                    }
                    _ => {}
                }
            }
            Value::Number(number) => {
                if depth == 0 && field.full_name() == "envoy.config.cluster.v3.Cluster.type" {
                    self.discovery_type = number;
                }
            }
        }
    }
}

impl Found {
    /// Returns the resources that a client requests because it has this one: by type, sorted, without
    /// duplicates.
    fn children(self, type_url: &TypeUrl, name: &ResourceName) -> Vec<ResourceKey> {
        let (first, names) = match type_url.as_str() {
            types::CLUSTER if self.discovery_type == EDS => {
                let service = self.service_name;
                let is_own = service.is_empty();
                (types::ENDPOINT, vec![if is_own { name.as_str().to_owned() } else { service }])
            }
            types::CLUSTER => (types::ENDPOINT, Vec::new()),
            types::LISTENER | types::FILTER_CHAIN => (types::ROUTE, self.routes),
            types::SCOPED_ROUTE => return keys(types::ROUTE, self.routes).collect(),
            types::ENDPOINT => {
                return keys(types::LOCALITY_ENDPOINTS, self.endpoint_lists).collect();
            }
            _ => return Vec::new(),
        };
        keys(types::FILTER_CHAIN, self.chains)
            .chain(keys(first, names))
            .chain(keys(types::SECRET, self.secrets))
            .chain(keys(types::EXTENSION, self.extensions))
            .collect()
    }
}

/// Returns the keys of `names`, sorted, without duplicates. Skips invalid names, because no such resource can
/// exist.
fn keys(type_url: &'static str, mut names: Vec<String>) -> impl Iterator<Item = ResourceKey> {
    names.sort_unstable();
    names.dedup();
    let type_url = TypeUrl::from_static(type_url);
    let names = names.into_iter().filter_map(|name| ResourceName::canonical(&name).ok());
    names.map(move |name| ResourceKey { type_url: type_url.clone(), name })
}
