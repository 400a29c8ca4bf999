//! Plugins, direct responses, upgrades and templates of routes.

use std::collections::HashSet;

use super::{common::repeated, path_template, pem};
use crate::{
    node::named,
    validate::{findings::Findings, tree::Message},
};

/// The default of `max_direct_response_body_size_bytes`.
const BODY_BYTES_MAX: u64 = 4096;

/// The plugins that routes use are defined, and the bodies of direct responses are small.
pub(super) fn definitions<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let plugins = config.messages("cluster_specifier_plugins");
    let plugins: HashSet<&str> = plugins
        .filter_map(|plugin| plugin.message("extension"))
        .map(|extension| extension.text("name"))
        .collect();
    let bytes_max = config.wrapped("max_direct_response_body_size_bytes").unwrap_or(BODY_BYTES_MAX);
    for (i, host) in config.messages("virtual_hosts").enumerate() {
        for (j, route) in host.messages("routes").enumerate() {
            let plugin =
                route.message("route").map_or("", |action| action.text("cluster_specifier_plugin"));
            let body = route.message("direct_response").and_then(|answer| answer.message("body"));
            let body = body.and_then(pem::inline);
            let body = body.filter(|(_, content)| content.len() as u64 > bytes_max);
            let is_unknown = !plugin.is_empty() && !plugins.contains(plugin);
            if !is_unknown && body.is_none() {
                continue;
            }
            let mut at_route = |check: &mut dyn FnMut(&mut Findings<'m>)| {
                findings.item("virtual_hosts", i, |findings| {
                    findings.item("routes", j, |findings| check(findings));
                });
            };
            if is_unknown {
                at_route(&mut |findings| {
                    findings.field("route", |findings| {
                        findings.field("cluster_specifier_plugin", |findings| {
                            let rule = format!(
                                "no item of cluster_specifier_plugins has the name {}",
                                named(plugin)
                            );
                            findings.refuse("route.unknown_plugin", rule);
                        });
                    });
                });
            }
            if let Some((_, content)) = body {
                at_route(&mut |findings| {
                    findings.field("direct_response", |findings| {
                        findings.field("body", |findings| {
                            let rule = format!(
                                "has {} bytes, but at most {bytes_max} are allowed",
                                content.len()
                            );
                            let fix = "raise max_direct_response_body_size_bytes of the RouteConfiguration";
                            findings.refuse_with_fix("route.body_size", rule, fix);
                        });
                    });
                });
            }
        }
    }
}

/// No type of upgrade occurs twice, and only those by CONNECT have a `connect_config`.
pub(super) fn upgrades<'m>(action: &'m Message<'_>, findings: &mut Findings<'m>) {
    let configs = || action.messages("upgrade_configs");
    let kind = |config: &Message<'_>| config.text("upgrade_type").to_ascii_lowercase();
    for (index, first) in repeated(configs().map(kind)) {
        findings.item("upgrade_configs", index, |findings| {
            let rule = format!("repeats the upgrade_type of upgrade_configs[{first}]");
            findings.refuse("route.duplicate_upgrade", rule);
        });
    }
    for (index, config) in configs().enumerate() {
        let is_connect = ["connect", "connect-udp"].contains(&kind(config).as_str());
        if config.has("connect_config") && !is_connect {
            findings.item("upgrade_configs", index, |findings| {
                findings.field("connect_config", |findings| {
                    let rule = "needs the upgrade_type CONNECT or CONNECT-UDP";
                    findings.refuse("route.connect_config", rule);
                });
            });
        }
    }
}

/// A virtual host has either routes or a matcher.
pub(super) fn host<'m>(host: &'m Message<'_>, findings: &mut Findings<'m>) {
    if host.has("matcher") && host.has("routes") {
        findings.field("matcher", |findings| {
            let rule = "cannot be combined with routes";
            findings.refuse_with_fix("virtual_host.matcher", rule, "remove one of the two");
        });
    }
}

const MATCH: &str = "envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig";
const REWRITE: &str = "envoy.extensions.path.rewrite.uri_template.v3.UriTemplateRewriteConfig";

/// Returns the content of an extension of a type.
fn extension<'m>(parent: &'m Message<'_>, field: &str, kind: &str) -> Option<&'m Message<'m>> {
    let content = parent.message(field)?.any("typed_config")?;
    (content.kind.name == kind).then_some(content)
}

/// A rewrite by a template inserts variables of the template that matches.
pub(super) fn templates<'m>(route: &'m Message<'_>, findings: &mut Findings<'m>) {
    let action = route.message("route");
    let Some(rewrite) = action.and_then(|it| extension(it, "path_rewrite_policy", REWRITE)) else {
        return;
    };
    let template =
        route.message("match").and_then(|criteria| extension(criteria, "path_match_policy", MATCH));
    let Ok(inserted) = path_template::inserted(rewrite.text("path_template_rewrite")) else {
        return;
    };
    let rule = match template {
        None => "needs a path_match_policy with a URI template in the match".to_owned(),
        Some(template) => match path_template::variables(template.text("path_template")) {
            Ok(known) => match inserted.iter().find(|name| !known.contains(*name)) {
                Some(name) => format!("the template of path_match_policy has no variable {name}"),
                None => return,
            },
            Err(_) => return,
        },
    };
    findings.field("route", |findings| {
        findings.field("path_rewrite_policy", |findings| {
            findings.refuse("route.rewrite_template", rule);
        });
    });
}

/// A template for matching is valid.
pub(super) fn match_template<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let template = config.text("path_template");
    if !template.is_empty()
        && let Err(rule) = path_template::variables(template)
    {
        findings.field("path_template", |findings| findings.refuse("route.path_template", rule));
    }
}

/// A template for rewriting is valid.
pub(super) fn rewrite_template<'m>(config: &'m Message<'_>, findings: &mut Findings<'m>) {
    let template = config.text("path_template_rewrite");
    if !template.is_empty()
        && let Err(rule) = path_template::inserted(template)
    {
        findings.field("path_template_rewrite", |findings| {
            findings.refuse("route.path_template", rule);
        });
    }
}

/// The domains of a virtual host that is discovered on demand come by a delta subscription.
pub(super) fn discovered_hosts<'m>(vhds: &'m Message<'_>, findings: &mut Findings<'m>) {
    /// The values of `api_type` for delta subscriptions.
    const DELTA: [u64; 2] = [3, 6];
    let Some(source) = vhds.message("config_source") else { return };
    let api = source.message("api_config_source");
    let is_delta = api.is_some_and(|api| DELTA.contains(&api.bits("api_type")));
    if !is_delta && !source.has("ads") {
        findings.field("config_source", |findings| {
            let rule = "must be ads or an api_config_source of type DELTA_GRPC";
            findings.refuse("vhds.source", rule);
        });
    }
}

/// A scope has routes, by name or inline.
pub(super) fn scope<'m>(scope: &'m Message<'_>, findings: &mut Findings<'m>) {
    let has_name = !scope.text("route_configuration_name").is_empty();
    if !has_name && !scope.has("route_configuration") {
        let rule = "needs route_configuration_name or route_configuration";
        findings.refuse("scoped_route.routes", rule);
    }
}
