//! Matchers (`xds.type.matcher.v3.Matcher`), whose place decides which inputs and actions they take.

use super::registry;
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
}

const ROUTES: Place = Place {
    inputs: &[
        "envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
        "envoy.extensions.matching.common_inputs.network.v3.FilterStateInput",
        "envoy.extensions.matching.common_inputs.environment_variable.v3.Config",
        "xds.type.matcher.v3.HttpAttributesCelMatchInput",
    ],
    actions: &["envoy.config.route.v3.Route", "envoy.config.route.v3.RouteList"],
};
const CHAINS: Place = Place {
    inputs: &["envoy.matching.network.input", "envoy.matching.common_inputs"],
    actions: &["google.protobuf.StringValue"],
};
const ACCESS: Place = Place {
    inputs: &["envoy.matching.http.input", "envoy.matching.common_inputs"],
    actions: &["envoy.config.rbac.v3.Action"],
};

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
        let is_declared = any.content.is_some() && kind.starts_with("envoy.");
        if is_declared && !known.contains(&kind) && !registry::exists(kind, known) {
            findings.field(field, |findings| {
                let rule = format!("{} is not allowed in this matcher", named(kind));
                findings.refuse("matcher.type", rule);
            });
        }
    }
}
