//! Assignments that apply to no node, and scopes that no assignment gives.

use std::collections::BTreeMap;

use chancery_model::ScopeName;

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::nodes::number;

/// An assignment that no node can have.
const UNREACHABLE: Rule = Rule {
    id: "assignment.unreachable",
    severity: Severity::Info,
    fix: "delete it, or give it a higher priority",
};

/// A scope with resources that no node can have.
const UNASSIGNED: Rule = Rule {
    id: "scope.unassigned",
    severity: Severity::Warning,
    fix: "add the scope to an assignment, or delete its resources",
};

/// Finds the assignments that come after one that matches every node.
pub(super) fn find(world: &World, findings: &mut Findings) {
    let reachable = world.reachable();
    let Some(last) = reachable.last().filter(|_| world.only().is_none()) else { return };
    for rule in &world.whole().assignments.rules[reachable.len()..] {
        let text = format!(
            "applies to no node: the assignment {:?} matches every node and comes first",
            &*last.name
        );
        findings.add(UNREACHABLE.of_assignment(&rule.name, text));
    }
}

/// Finds the scopes that no assignment gives to a node.
pub(super) fn find_scopes(world: &World, findings: &mut Findings) {
    let mut scopes: BTreeMap<&ScopeName, usize> = BTreeMap::new();
    for collection in world.collections() {
        *scopes.entry(&collection.scope).or_default() += collection.resources.len();
    }
    for (scope, n) in scopes.into_iter().filter(|(_, n)| *n > 0) {
        if !world.may_have(scope) {
            let text = format!(
                "no assignment gives this scope to a node, so that nobody receives its {}",
                number(n, "resource")
            );
            findings.add(UNASSIGNED.of_scope(scope, text));
        }
    }
}
