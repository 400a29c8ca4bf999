//! Matchers (`xds.type.matcher.v3.Matcher`), whose place decides which inputs and actions they take.

use super::{matcher_inputs::CEL_INPUT, registry};
use crate::{
    node::named,
    validate::{
        findings::{Findings, Step},
        tree::Message,
    },
};

/// The inputs and actions of a place.
struct Place {
    /// Types, or categories of extensions.
    inputs: &'static [&'static str],
    actions: &'static [&'static str],
    /// A match may keep matching.
    keeps_matching: bool,
}

/// Every input.
const ANY: &[&str] = &["*"];

const ROUTES: Place = Place {
    inputs: &[
        "envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
        "envoy.extensions.matching.common_inputs.network.v3.FilterStateInput",
        "envoy.extensions.matching.common_inputs.environment_variable.v3.Config",
    ],
    actions: &["envoy.config.route.v3.Route", "envoy.config.route.v3.RouteList"],
    keeps_matching: false,
};
const CHAINS: Place = Place {
    inputs: &["envoy.matching.network.input", "envoy.matching.common_inputs"],
    actions: &["google.protobuf.StringValue"],
    keeps_matching: true,
};
const ACCESS: Place = Place {
    inputs: &["envoy.matching.http.input", "envoy.matching.common_inputs"],
    actions: &["envoy.config.rbac.v3.Action"],
    keeps_matching: false,
};
const NETWORK_ACCESS: Place = Place {
    inputs: &["envoy.matching.network.input", "envoy.matching.common_inputs"],
    actions: &["envoy.config.rbac.v3.Action"],
    keeps_matching: false,
};
const SOCKETS: Place = Place {
    inputs: &[
        "envoy.matching.transport_socket.input",
        "envoy.matching.network.input",
        "envoy.matching.common_inputs",
    ],
    actions: &[
        "envoy.extensions.matching.common_inputs.transport_socket.v3.TransportSocketNameAction",
    ],
    keeps_matching: true,
};
const FILTERS: Place = Place {
    inputs: ANY,
    actions: &[
        "envoy.extensions.filters.common.matcher.action.v3.SkipFilter",
        "envoy.extensions.filters.http.composite.v3.ExecuteFilterAction",
    ],
    keeps_matching: false,
};

/// Fields with a matcher of which only the actions are special: the type, the field, and the actions.
const OTHERS: &[(&str, &str, &[&str])] = &[
    (
        super::common::HCM,
        "forward_client_cert_matcher",
        &[
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.ForwardClientCertConfig",
        ],
    ),
    (
        "envoy.extensions.filters.http.custom_response.v3.CustomResponse",
        "custom_response_matcher",
        &["envoy.http.custom_response"],
    ),
    (
        "envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig",
        "bucket_matchers",
        &["envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings"],
    ),
    (
        "envoy.extensions.filters.network.generic_proxy.v3.RouteConfiguration",
        "routes",
        &["envoy.extensions.filters.network.generic_proxy.action.v3.RouteAction"],
    ),
    (
        "envoy.extensions.filters.network.generic_proxy.v3.VirtualHost",
        "routes",
        &["envoy.extensions.filters.network.generic_proxy.action.v3.RouteAction"],
    ),
    (
        "envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig",
        "matcher",
        &["envoy.extensions.filters.udp.udp_proxy.v3.Route"],
    ),
    (
        "envoy.extensions.router.cluster_specifiers.matcher.v3.MatcherClusterSpecifier",
        "cluster_matcher",
        &["envoy.extensions.router.cluster_specifiers.matcher.v3.ClusterAction"],
    ),
];

/// Returns the types of messages with such a field.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    OTHERS.iter().map(|(kind, ..)| *kind)
}

/// The matcher of a message chooses actions of its place.
pub(super) fn other<'m>(owner: &'m Message<'_>, findings: &mut Findings<'m>) {
    for (kind, field, actions) in OTHERS {
        if owner.kind.name == *kind {
            Place { inputs: ANY, actions, keeps_matching: true }.field(owner, field, findings);
        }
    }
}

/// The matchers of access control choose whether a connection is allowed.
pub(super) fn network_access<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in ["matcher", "shadow_matcher"] {
        NETWORK_ACCESS.field(filter, field, findings);
    }
}

/// The matcher of a cluster chooses a transport socket for each endpoint or connection.
pub(super) fn transport_sockets<'m>(cluster: &'m Message<'_>, findings: &mut Findings<'m>) {
    SOCKETS.field(cluster, "transport_socket_matcher", findings);
}

/// The matcher of a filter chooses what to do with the filter.
pub(super) fn filters<'m>(extension: &'m Message<'_>, findings: &mut Findings<'m>) {
    FILTERS.field(extension, "xds_matcher", findings);
}

/// The matcher of a virtual host chooses routes by the headers of requests.
pub(super) fn routes<'m>(host: &'m Message<'_>, findings: &mut Findings<'m>) {
    ROUTES.field(host, "matcher", findings);
}

/// The matcher of a listener chooses filter chains by connections.
pub(super) fn filter_chains<'m>(listener: &'m Message<'_>, findings: &mut Findings<'m>) {
    CHAINS.field(listener, "filter_chain_matcher", findings);
}

/// The matchers of access control choose whether a request is allowed.
pub(super) fn access<'m>(filter: &'m Message<'_>, findings: &mut Findings<'m>) {
    for field in ["matcher", "shadow_matcher"] {
        ACCESS.field(filter, field, findings);
    }
}

impl Place {
    fn field<'m>(&self, owner: &'m Message<'_>, field: &'static str, findings: &mut Findings<'m>) {
        if let Some(matcher) = owner.message(field) {
            findings.field(field, |findings| self.matcher(matcher, findings));
        }
    }

    fn matcher<'m>(&self, matcher: &'m Message<'_>, findings: &mut Findings<'m>) {
        if let Some(list) = matcher.message("matcher_list") {
            for (index, entry) in list.messages("matchers").enumerate() {
                findings.field("matcher_list", |findings| {
                    findings.item("matchers", index, |findings| {
                        if let Some(predicate) = entry.message("predicate") {
                            findings.field("predicate", |f| self.predicate(predicate, f));
                        }
                        self.then(entry, "on_match", findings);
                    });
                });
            }
        }
        if let Some(tree) = matcher.message("matcher_tree") {
            findings.field("matcher_tree", |findings| self.tree(tree, findings));
        }
        self.then(matcher, "on_no_match", findings);
    }

    /// Checks the inputs of a predicate.
    fn predicate<'m>(&self, predicate: &'m Message<'_>, findings: &mut Findings<'m>) {
        if let Some(single) = predicate.message("single_predicate") {
            findings.field("single_predicate", |findings| {
                self.known(single, "input", self.inputs, findings);
            });
        }
        for field in ["or_matcher", "and_matcher"] {
            let list = predicate.message(field).into_iter();
            for (index, part) in list.flat_map(|list| list.messages("predicate")).enumerate() {
                findings.field(field, |findings| {
                    findings.item("predicate", index, |f| self.predicate(part, f));
                });
            }
        }
        if let Some(negated) = predicate.message("not_matcher") {
            findings.field("not_matcher", |findings| self.predicate(negated, findings));
        }
    }

    fn tree<'m>(&self, tree: &'m Message<'_>, findings: &mut Findings<'m>) {
        self.known(tree, "input", self.inputs, findings);
        for map in ["exact_match_map", "prefix_match_map"] {
            for entry in tree.message(map).into_iter().flat_map(|map| map.messages("map")) {
                findings.field(map, |findings| {
                    findings.field("map", |findings| {
                        findings.at(Step::Key(entry.text("key")), |findings| {
                            if let Some(then) = entry.message("value") {
                                self.action(then, findings);
                            }
                        });
                    });
                });
            }
        }
    }

    fn then<'m>(&self, owner: &'m Message<'_>, field: &'static str, findings: &mut Findings<'m>) {
        if let Some(then) = owner.message(field) {
            findings.field(field, |findings| self.action(then, findings));
        }
    }

    fn action<'m>(&self, then: &'m Message<'_>, findings: &mut Findings<'m>) {
        self.field(then, "matcher", findings);
        if then.bits("keep_matching") != 0 && !self.keeps_matching {
            findings.field("keep_matching", |findings| {
                findings.refuse("matcher.keep_matching", "is not possible in this matcher");
            });
        }
        self.known(then, "action", self.actions, findings);
    }

    /// Checks the type of an extension. Types that no descriptor declares have a finding already.
    fn known<'m>(
        &self,
        owner: &'m Message<'_>,
        field: &'static str,
        known: &[&str],
        findings: &mut Findings<'m>,
    ) {
        let Some(any) = owner.message(field).and_then(|it| it.message("typed_config")) else {
            return;
        };
        let kind = registry::kind_of(any);
        let is_envoy = kind.starts_with("envoy.") || kind == CEL_INPUT;
        let is_declared = any.content.is_some() && is_envoy;
        if is_declared && !known.contains(&kind) && !registry::exists(kind, known) {
            findings.field(field, |findings| {
                let rule = format!("{} is not allowed in this matcher", named(kind));
                findings.refuse("matcher.type", rule);
            });
        }
    }
}

/// Returns the types of messages with such a field, each with the field.
#[cfg(test)]
pub(super) fn named_fields() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    OTHERS.iter().map(|(kind, field, _)| (*kind, vec![*field]))
}
