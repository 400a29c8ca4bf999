//! Resources whose clusters are not all in their fields: a header, a plugin or an unknown extension names them.

use chancery_model::ResourceKey;
use chancery_proto::envoy_pool;
use prost_reflect::{FieldDescriptor, MessageDescriptor};

use crate::{
    credentials::ANY,
    inspect::{self, Value, Visitor},
};

/// The fields that let a client choose clusters by something else than their names, with what chooses.
const CHOICES: [(&str, &str); 2] =
    [("cluster_header", "a header"), ("cluster_specifier_plugin", "a plugin")];

/// The messages inside an `Any` that choose clusters by code.
const PROGRAMS: [&str; 2] = [
    "envoy.extensions.router.cluster_specifiers.dynamic_modules.v3.DynamicModuleClusterSpecifier",
    "envoy.extensions.router.cluster_specifiers.lua.v3.LuaConfig",
];

/// The messages inside an `Any` whose content is free.
const FREE: [&str; 2] = ["udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct"];

/// Returns by what a resource selects clusters that none of its references names, such as `a header`; `None` if it
/// does not.
#[must_use]
pub fn cluster_choice(key: &ResourceKey, body: &[u8]) -> Option<&'static str> {
    let message = envoy_pool().get_message_by_name(key.type_url.message_name())?;
    let mut search = Search { found: None };
    // A stored body has passed admission, so that it parses.
    drop(inspect::walk(&message, body, &mut search));
    search.found
}

struct Search {
    found: Option<&'static str>,
}

impl Visitor for Search {
    fn value(
        &mut self,
        message: &MessageDescriptor,
        field: &FieldDescriptor,
        _: usize,
        value: Value<'_>,
    ) {
        let Value::Text(text) = value else { return };
        if self.found.is_some() || text.is_empty() {
            return;
        }
        let choice = CHOICES.iter().find(|(name, _)| *name == field.name());
        self.found = choice.map(|(_, by)| *by);
        if message.full_name() == ANY && field.name() == "type_url" {
            let name = text.rsplit('/').next().unwrap_or(text);
            if PROGRAMS.contains(&name) {
                self.found = Some("a program");
            } else if FREE.contains(&name) || envoy_pool().get_message_by_name(name).is_none() {
                self.found = Some("an extension of an unknown type");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_model::{ScopeName, types};

    use super::*;
    use crate::{Manifest, Options, admit};

    /// Returns the choice of a route configuration with this action.
    fn choice(action: &str) -> Option<&'static str> {
        let content = format!(
            "resources: [{{'@type': {}, name: main, virtual_hosts: [{{name: all, domains: ['*'], routes: [{{match: \
             {{prefix: /}}, {action}}}]}}]}}]",
            types::ROUTE
        );
        let manifest = Manifest { file: "a.yaml".to_owned(), content };
        let options = Options::new(ScopeName::new("default").unwrap());
        let draft = admit(&[manifest], &options).unwrap().upserts.remove(0).draft;
        cluster_choice(&draft.key, &draft.body)
    }

    #[test]
    fn choice_of_clusters_is_found_in_headers_plugins_programs_and_unknown_extensions() {
        let inline = |extension: &str| {
            format!(
                "route: {{inline_cluster_specifier_plugin: {{extension: {{name: x, typed_config: {extension}}}}}}}"
            )
        };
        let lua = "{'@type': type.googleapis.com/envoy.extensions.router.cluster_specifiers.lua.v3.LuaConfig, \
                   source_code: {inline_string: x}}";
        let matcher = "{'@type': type.googleapis.com/envoy.extensions.router.cluster_specifiers.matcher.v3.ClusterAction, \
                       cluster: web}";
        let free = "{'@type': type.googleapis.com/xds.type.v3.TypedStruct, type_url: type.googleapis.com/own.Filter}";
        let unknown = "{'@type': type.googleapis.com/own.Filter, value: ''}";
        let filter = |config: &str| {
            format!("route: {{cluster: web}}, typed_per_filter_config: {{own: {config}}}")
        };
        for (action, expected) in [
            ("route: {cluster: web}".to_owned(), None),
            ("route: {cluster_header: x-cluster}".to_owned(), Some("a header")),
            (
                "route: {weighted_clusters: {clusters: [{cluster_header: x, weight: 1}]}}"
                    .to_owned(),
                Some("a header"),
            ),
            (inline(lua), Some("a program")),
            (inline(matcher), None),
            (filter(free), Some("an extension of an unknown type")),
            (filter(unknown), Some("an extension of an unknown type")),
        ] {
            assert_eq!(choice(&action), expected, "{action}");
        }
    }

    #[test]
    fn names_of_messages_and_fields_exist() {
        for name in PROGRAMS.iter().chain(&FREE) {
            assert!(envoy_pool().get_message_by_name(name).is_some(), "{name}");
        }
        let action = envoy_pool().get_message_by_name("envoy.config.route.v3.RouteAction").unwrap();
        for (name, _) in CHOICES {
            assert!(action.get_field_by_name(name).is_some(), "{name}");
        }
    }
}
