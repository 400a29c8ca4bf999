//! References that dangle in a view in use: that of a connected node, or of an assignment without variables.

use chancery_admin_proto::v1 as pb;

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::{
    fleet_effects::FleetEffects,
    node_groups::{ConnectedNodes, NodeGroup, fixed_scopes},
    nodes::number,
    references::{self, Suspects},
};

/// A reference to a missing resource. The text of the finding is that of a write.
const MISSING: Rule =
    Rule { id: "reference.missing", severity: Severity::Warning, fix: "publish it" };

const UNCHECKED: Rule = Rule {
    id: "reference.unchecked",
    severity: Severity::Info,
    fix: "analyze one scope at a time with --scope (HTTP: scope=SCOPE)",
};

/// Finds the references that dangle. `fleet` has the nodes whose views have a scope of a suspect.
pub(super) fn find(
    world: &World,
    suspects: Suspects,
    fleet: &FleetEffects,
    findings: &mut Findings,
) {
    if suspects.is_empty() {
        return;
    }
    let (state, groups) = (world.whole(), groups(world, fleet));
    // The views of assignments count although no connected node may have them.
    let mut checked = suspects.in_views(state, state, &groups, true);
    let n_unchecked: usize = std::mem::take(&mut checked.unchecked).into_values().sum();
    for (scopes, _) in checked.dangling.iter_mut().flat_map(|one| &mut one.views) {
        scopes.retain(|scope| world.may_name_scope(scope));
    }
    let unknown: Vec<u64> = fleet.not_asked.iter().map(|one| one.replica_id).collect();
    let found = references::findings(checked, &unknown);
    for one in found.refusing.into_iter().chain(found.warnings) {
        if let Some((scope, key)) = one.subject {
            let finding = MISSING.of_resource(&scope, &key, one.problem.rule);
            let field_path = one.problem.field_path.unwrap_or_default();
            findings.add(pb::AnalysisFinding { field_path, fix: one.problem.fix, ..finding });
        }
    }
    if n_unchecked > 0 {
        let references = number(n_unchecked, "reference");
        let text = format!("not checked, because there are too many: {references}");
        findings.add(UNCHECKED.with(text));
    }
}

/// Returns the views of connected nodes, and those of assignments without variables.
fn groups(world: &World, fleet: &FleetEffects) -> Vec<NodeGroup> {
    let mut groups: ConnectedNodes = ConnectedNodes::clone(&fleet.nodes);
    for scopes in world.reachable().iter().filter_map(fixed_scopes) {
        groups.entry((Some(scopes.clone()), Some(scopes))).or_default();
    }
    groups.into_iter().map(|((before, after), users)| NodeGroup { before, after, users }).collect()
}
