//! Routes that never match.

use chancery_admin_proto::v1 as pb;
use chancery_admission::{RouteComparisons, for_each_unreachable_route, may_have_routes};
use chancery_model::ResourceKey;

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::nodes::number;

/// The maximum number of comparisons of two routes: about a second of work.
const COMPARISONS_MAX: usize = 100_000_000;

const UNREACHABLE: Rule = Rule {
    id: "route.unreachable",
    severity: Severity::Warning,
    fix: "remove it, or move it before the other route",
};

const UNCHECKED: Rule = Rule {
    id: "route.unchecked",
    severity: Severity::Info,
    fix: "analyze one scope at a time with --scope (HTTP: scope=SCOPE)",
};

/// Finds the routes that never match.
pub(super) fn find(world: &World, findings: &mut Findings) {
    let mut comparisons = RouteComparisons::at_most(COMPARISONS_MAX);
    for collection in world.collections().filter(|one| may_have_routes(one.type_url.as_str())) {
        for (name, resource) in &collection.resources {
            let key = ResourceKey { type_url: collection.type_url.clone(), name: name.clone() };
            let body = resource.body().unwrap_or_default();
            for_each_unreachable_route(&key, &body, &mut comparisons, |route| {
                let text = format!("never matches: {} matches all its requests", route.earlier);
                let finding = UNREACHABLE.of_resource(&collection.scope, &key, text);
                findings.add(pb::AnalysisFinding { field_path: route.field, ..finding });
            });
        }
    }
    if comparisons.n_unchecked > 0 {
        let routes = number(comparisons.n_unchecked, "route");
        findings.add(UNCHECKED.with(format!("not checked, because there are too many: {routes}")));
    }
}
