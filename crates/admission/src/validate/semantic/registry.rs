//! The extensions of Envoy 1.40: the fields that choose an extension by a type, and the types that exist.
//!
//! Envoy finds an extension by the type of its configuration. It rejects a type without an extension of the
//! category that the field needs. The lists are those that a released build of Envoy 1.40 reports about itself.

use std::{collections::HashMap, sync::LazyLock};

use super::versions;
use crate::{
    node::named,
    validate::{
        findings::{Findings, Step},
        tree::Message,
        types::{Count, MessageForm, types},
    },
};

/// Each category in a line, followed by indented lines with the types of its extensions.
const FACTORIES: &str = include_str!("registry/factories.txt");
/// The fields that choose an extension: the type of the message, the field, and the categories. A category may
/// end in `*`. The category `*` stands for every type that is not bare JSON.
const POINTS: &str = include_str!("registry/points.txt");

/// The categories of each type of configuration.
static CATEGORIES: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let mut categories: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut category = "";
    for line in FACTORIES.lines() {
        match line.strip_prefix("  ") {
            Some(kind) => categories.entry(kind).or_default().push(category),
            None => category = line,
        }
    }
    categories
});

/// A field that chooses an extension, and the categories that it takes.
type Point = (&'static str, Vec<&'static str>);

/// The fields of each type of message.
static FIELDS: LazyLock<HashMap<&str, Vec<Point>>> = LazyLock::new(|| {
    let mut fields: HashMap<&str, Vec<Point>> = HashMap::new();
    for line in POINTS.lines() {
        let mut words = line.split(' ');
        if let (Some(kind), Some(field), Some(list)) = (words.next(), words.next(), words.next()) {
            fields.entry(kind).or_default().push((field, list.split(',').collect()));
        }
    }
    fields
});

/// Returns the types of messages that have a field for an extension.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    FIELDS.keys().copied()
}

/// Returns the types of the extensions in a package.
pub(super) fn kinds_in(package: &str) -> impl Iterator<Item = &'static str> {
    CATEGORIES
        .keys()
        .copied()
        .filter(move |kind| kind.strip_prefix(package).is_some_and(|rest| rest.starts_with('.')))
}

/// Each extension exists, and belongs to a category that its field takes.
pub(super) fn chosen<'m>(message: &'m Message<'_>, findings: &mut Findings<'m>) {
    // Envoy ignores an optional extension that it does not have.
    if message.bits("is_optional") != 0 {
        return;
    }
    for (name, categories) in FIELDS.get(message.kind.name.as_str()).into_iter().flatten() {
        let Some(field) = message.kind.fields.iter().find(|field| field.name == *name) else {
            continue;
        };
        let values = message.messages(name).enumerate();
        for (index, value) in values.filter(|(_, value)| value.bits("is_optional") == 0) {
            let check = |findings: &mut Findings<'m>| {
                if value.kind.form == MessageForm::Any {
                    configuration(value, categories, findings)
                } else {
                    if let Some(any) = value.message("typed_config") {
                        findings.field("typed_config", |f| configuration(any, categories, f));
                    }
                }
            };
            findings.field(&field.name, |findings| match field.count {
                Count::List => findings.at(Step::Index(index), check),
                _ => check(findings),
            });
        }
    }
}

/// Returns the type of an extension's configuration: of the content of an `Any`, or the one that a
/// `TypedStruct` names.
pub(super) fn kind_of<'a>(any: &Message<'a>) -> &'a str {
    let content = any.content.as_deref();
    let url = match content.map(|content| content.kind.name.as_str()) {
        Some("xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct") => {
            content.map_or("", |content| content.text("type_url"))
        }
        _ => any.text("type_url"),
    };
    url.rsplit('/').next().unwrap_or(url)
}

/// Returns whether Envoy has an extension with this type of configuration in one of the categories.
pub(super) fn exists(kind: &str, categories: &[&str]) -> bool {
    let own = CATEGORIES.get(kind);
    categories.iter().any(|category| match category.strip_suffix('*') {
        Some("") => own.is_some() || !kind.starts_with("google.protobuf.") && is_declared(kind),
        Some(prefix) => own.is_some_and(|own| own.iter().any(|own| own.starts_with(prefix))),
        None => own.is_some_and(|own| own.contains(category)),
    })
}

fn is_declared(kind: &str) -> bool {
    types().get(kind).is_some()
}

/// Checks that Envoy has an extension of one of the categories for a configuration.
pub(super) fn configuration<'m>(
    any: &'m Message<'_>,
    categories: &[&str],
    findings: &mut Findings<'m>,
) {
    let kind = kind_of(any);
    // An action of a matcher may be text.
    let is_text = categories == ["*"] && kind == "google.protobuf.StringValue";
    if is_text || exists(kind, categories) {
        return versions::extension(kind, categories, findings);
    }
    let category = match categories {
        ["*"] => String::new(),
        _ => format!(" of the category {}", categories.join(" or ")),
    };
    if kind.is_empty() {
        let rule = format!("names no type, but an extension{category} is required");
        return findings.refuse("extension.unknown", rule);
    }
    let is_api = ["envoy.", "google.protobuf.", "xds.", "udpa."]
        .iter()
        .any(|prefix| kind.starts_with(prefix));
    match (is_declared(kind), is_api) {
        // An operator who declares a type with a descriptor set has built Envoy with the extension.
        (true, false) => {}
        (true, true) if kind.starts_with("envoy.extensions.") && !CATEGORIES.contains_key(kind) => {
            let rule = format!("released builds of Envoy 1.40 have no extension of type {kind}");
            findings.warn("extension.not_built", rule);
        }
        (true, true) => {
            let rule = format!("{kind} is not an extension{category}");
            findings.refuse("extension.category", rule);
        }
        (false, _) => {
            let rule = format!("no extension has the type {}", named(kind));
            let near = CATEGORIES.iter().filter(|(_, own)| {
                let is_in = |category: &&str| own.contains(category);
                categories.iter().any(is_in)
            });
            let fix = match findings.suggestion(kind, near.map(|(kind, _)| *kind)) {
                Some(meant) => format!("did you mean {meant}?"),
                None => "if your build of Envoy has it, add its descriptors to xds.descriptor_sets"
                    .to_owned(),
            };
            findings.refuse_with_fix("extension.unknown", rule, fix);
        }
    }
}

/// The filters of a parent by the type of the parent.
const FILTER_CATEGORIES: [(&str, &[&str]); 3] = [
    ("envoy.config.listener.v3.Filter", &["envoy.filters.network"]),
    (
        "envoy.config.listener.v3.ListenerFilter",
        &["envoy.filters.listener", "envoy.filters.udp_listener"],
    ),
    (super::common::HTTP_FILTER, &["envoy.filters.http", "envoy.filters.http.upstream"]),
];

/// A filter that is discovered has known types, and a default configuration of one of them.
pub(super) fn discovery<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    let Some(source) = filter.message("config_discovery") else { return };
    let parent = filter.kind.name.as_str();
    let Some((_, categories)) = FILTER_CATEGORIES.iter().find(|(kind, _)| *kind == parent) else {
        return;
    };
    let own = |url: &'m str| url.rsplit('/').next().unwrap_or(url);
    findings.field("config_discovery", |findings| {
        for (index, url) in source.texts("type_urls").enumerate() {
            let kind = own(url);
            if !exists(kind, categories) && (!is_declared(kind) || CATEGORIES.contains_key(kind)) {
                findings.item("type_urls", index, |findings| {
                    let rule = format!(
                        "no extension of the category {} has the type {}",
                        categories[0],
                        named(kind)
                    );
                    findings.refuse("ecds.type_url", rule);
                });
            }
        }
        match source.message("default_config") {
            Some(any) => {
                let kind = kind_of(any);
                if !kind.is_empty() && !source.texts("type_urls").any(|url| own(url) == kind) {
                    findings.field("default_config", |findings| {
                        let rule = format!("its type {kind} is not one of type_urls");
                        findings.refuse_with_fix("ecds.default_type", rule, "add it to type_urls");
                    });
                }
            }
            None if source.bits("apply_default_config_without_warming") != 0 => {
                findings.field("default_config", |findings| {
                    let rule = "is required with apply_default_config_without_warming, but missing";
                    findings.refuse("ecds.no_default", rule);
                });
            }
            None => {}
        }
    });
}

/// A resource for a filter that is discovered has a filter's type.
pub(super) fn resource<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    const FILTERS: [&str; 6] = [
        "envoy.filters.http",
        "envoy.filters.http.upstream",
        "envoy.filters.network",
        "envoy.filters.listener",
        "envoy.filters.udp_listener",
        "envoy.filters.udp.session",
    ];
    if findings.is_resource()
        && let Some(any) = config.message("typed_config")
    {
        findings.field("typed_config", |findings| configuration(any, &FILTERS, findings));
    }
}
