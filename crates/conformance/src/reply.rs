//! A response of either variant, and the rules that every response must follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use chancery_proto::discovery::{
    Any, DeltaDiscoveryResponse, DiscoveryResponse, Resource, ResourceName,
};
use prost::Message as _;

use crate::{
    kind::Kind,
    located::shown,
    outcome::{Outcome, Stop, ensure, violation},
};

/// The wrapper of resources with a lifetime in SotW responses.
const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";

/// A resource of a response.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// The name without the prefix of the case.
    pub(crate) name: String,
    /// The generation of the sample that it holds, if it holds one.
    pub(crate) generation: Option<u32>,
    /// The version of the resource; empty in a SotW response.
    pub(crate) version: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) has_body: bool,
    /// Whether the body is in a wrapper, in a SotW response.
    is_wrapped: bool,
    /// Whether it is a variant with its constraints, which are part of the name.
    is_variant: bool,
    body_type: String,
}

/// A response.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) type_url: String,
    pub(crate) nonce: String,
    /// `version_info` or `system_version_info`.
    pub(crate) version: String,
    pub(crate) items: Vec<Item>,
    pub(crate) removed: Vec<String>,
    canary: bool,
    is_delta: bool,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label =
            Kind::of_url(&self.type_url).map_or(self.type_url.as_str(), |kind| kind.label());
        write!(f, "{label} [")?;
        for (at, item) in self.items.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            match (item.has_body, item.generation) {
                (false, _) => write!(f, "{space}{} without content", item.name)?,
                (true, Some(generation)) => write!(f, "{space}{}@{generation}", item.name)?,
                (true, None) => write!(f, "{space}{} with other content", item.name)?,
            }
        }
        write!(f, "]")?;
        if !self.removed.is_empty() {
            write!(f, " removed [{}]", self.removed.join(" "))?;
        }
        write!(f, " version={:?} nonce={:?}", self.version, self.nonce)
    }
}

fn item(prefix: &str, body: Option<&Any>) -> Item {
    let (url, value) = body.map_or(("", &[][..]), |any| (any.type_url.as_str(), &any.value));
    let identified = Kind::of_url(url).and_then(|kind| kind.identify(prefix, value));
    let (name, generation) = identified.unwrap_or_default();
    Item {
        name,
        generation,
        version: String::new(),
        aliases: Vec::new(),
        has_body: body.is_some(),
        is_wrapped: false,
        is_variant: false,
        body_type: url.to_owned(),
    }
}

fn wrapped(prefix: &str, resource: Resource) -> Item {
    let inner = item(prefix, resource.resource.as_ref());
    let short = |name: String| name.strip_prefix(prefix).map(str::to_owned).unwrap_or(name);
    let is_variant = resource.resource_name.is_some();
    let name = match resource.resource_name {
        Some(name) => variant_name(prefix, &name),
        None => short(resource.name),
    };
    Item {
        name,
        is_variant,
        version: resource.version,
        aliases: resource.aliases.into_iter().map(short).collect(),
        ..inner
    }
}

/// Returns the name of a variant without the prefix: `A[env=prod]`.
fn variant_name(prefix: &str, name: &ResourceName) -> String {
    let base = name.name.strip_prefix(prefix).unwrap_or(&name.name);
    shown(base, name.dynamic_parameter_constraints.as_ref())
}

impl Reply {
    pub(crate) fn sotw(prefix: &str, response: DiscoveryResponse) -> Self {
        let item = |any: &Any| {
            let resource = (any.type_url == WRAPPER).then(|| Resource::decode(any.value.clone()));
            match resource {
                Some(Ok(resource)) => Item { is_wrapped: true, ..wrapped(prefix, resource) },
                _ => item(prefix, Some(any)),
            }
        };
        Self {
            items: response.resources.iter().map(item).collect(),
            type_url: response.type_url,
            nonce: response.nonce,
            version: response.version_info,
            removed: Vec::new(),
            canary: response.canary,
            is_delta: false,
        }
    }

    pub(crate) fn delta(prefix: &str, response: DeltaDiscoveryResponse) -> Self {
        let short = |name: String| name.strip_prefix(prefix).map(str::to_owned).unwrap_or(name);
        Self {
            items: response.resources.into_iter().map(|it| wrapped(prefix, it)).collect(),
            type_url: response.type_url,
            nonce: response.nonce,
            version: response.system_version_info,
            removed: {
                let variants = response.removed_resource_names.iter();
                let variants = variants.map(|name| variant_name(prefix, name));
                response.removed_resources.into_iter().map(short).chain(variants).collect()
            },
            canary: false,
            is_delta: true,
        }
    }

    pub(crate) fn kind(&self) -> Option<Kind> {
        Kind::of_url(&self.type_url)
    }

    /// Returns whether the response is for this type and has no resource and no removal.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.removed.is_empty()
    }

    pub(crate) fn item(&self, name: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.name == name)
    }

    /// Fails unless the response holds exactly these resources, and no removals.
    pub(crate) fn exactly(
        &self,
        requirement: &str,
        kind: Kind,
        expected: &[(&str, u32)],
    ) -> Outcome {
        let found: BTreeMap<&str, Option<u32>> =
            self.items.iter().map(|item| (item.name.as_str(), item.generation)).collect();
        let wanted: BTreeMap<&str, Option<u32>> =
            expected.iter().map(|(name, generation)| (*name, Some(*generation))).collect();
        let holds = self.kind() == Some(kind) && found == wanted && self.removed.is_empty();
        ensure(requirement, holds, format!("a response {}", listed(kind, expected)), || {
            self.to_string()
        })
    }

    /// Fails unless the response removes exactly these names, and has no resources.
    pub(crate) fn removes(&self, requirement: &str, kind: Kind, names: &[&str]) -> Outcome {
        let found: BTreeSet<&str> = self.removed.iter().map(String::as_str).collect();
        let wanted: BTreeSet<&str> = names.iter().copied().collect();
        let holds = self.kind() == Some(kind) && found == wanted && self.items.is_empty();
        let expected = format!("a response {} [] removed [{}]", kind.label(), names.join(" "));
        ensure(requirement, holds, expected, || self.to_string())
    }

    /// Checks the rules that hold for every response. `nonces` are those of earlier responses of the stream, `asked`
    /// the types that the client has requested.
    pub(crate) fn check(&self, nonces: &BTreeSet<String>, asked: &BTreeSet<String>) -> Outcome {
        let shown = || self.to_string();
        let (nonce_rule, name_rule) =
            if self.is_delta { ("DELTA-10", "DELTA-47") } else { ("SOTW-10", "SOTW-74") };
        ensure(nonce_rule, !self.nonce.is_empty(), "a nonce in every response", shown)?;
        let is_new = !nonces.contains(&self.nonce);
        ensure(nonce_rule, is_new, "a nonce that no earlier response of the stream had", shown)?;
        let is_asked = asked.contains(&self.type_url);
        let types: Vec<&str> = asked.iter().map(String::as_str).collect();
        ensure("SVC-17", is_asked, format!("a type_url among {}", types.join(", ")), || {
            format!("type_url {:?}", self.type_url)
        })?;
        ensure("SVC-21", !self.canary, "canary is false", shown)?;
        if !self.is_delta {
            ensure("SOTW-17", !self.version.is_empty(), "a version_info in every response", shown)?;
        }
        let mut names = BTreeSet::new();
        let removed = self.removed.iter().map(String::as_str);
        for name in self.items.iter().map(|item| item.name.as_str()).chain(removed) {
            ensure(name_rule, names.insert(name), "each name at most once per response", shown)?;
        }
        self.items.iter().try_for_each(|item| self.check_item(item))
    }

    fn check_item(&self, item: &Item) -> Outcome {
        let shown = || self.to_string();
        if item.has_body {
            let holds = item.body_type == self.type_url;
            let expected = format!("resources of type {:?}", self.type_url);
            ensure("SVC-16", holds, expected, || {
                format!("a resource of type {:?}", item.body_type)
            })?;
        }
        if !self.is_delta {
            let is_plain = !item.is_wrapped || item.is_variant;
            return ensure("SOTW-113", is_plain, "resources without a wrapper", shown);
        }
        ensure("DELTA-51", !item.name.is_empty(), "a name in every resource", shown)?;
        if !item.has_body {
            // Only virtual hosts report in this form that they do not exist (DELTA-63).
            let holds = self.kind() == Some(Kind::Vhds);
            return ensure("DELTA-41", holds, "content in every resource", shown);
        }
        ensure("DELTA-51", !item.version.is_empty(), "a version in every resource", shown)
    }
}

/// Describes resources in the form in which responses are shown.
pub(crate) fn listed(kind: Kind, resources: &[(&str, u32)]) -> String {
    let all: Vec<String> =
        resources.iter().map(|(name, generation)| format!("{name}@{generation}")).collect();
    format!("{} [{}]", kind.label(), all.join(" "))
}

/// Fails with a response that should not have come.
pub(crate) fn unexpected<T>(requirement: &str, expected: &str, reply: &Reply) -> Result<T, Stop> {
    violation(requirement, expected, reply.to_string())
}
