//! The assignments of a cluster, in evaluation order.

use crate::{Assignment, AssignmentOp, Node, Revision};

/// The assignments, in evaluation order.
#[derive(Debug, Clone)]
pub struct Assignments {
    /// The last revision that changed an assignment.
    pub changed: Revision,
    /// The assignments by descending priority, then by name.
    pub rules: Vec<Assignment>,
}

impl Assignments {
    /// Returns the first assignment that matches `node`.
    #[must_use]
    pub fn for_node(&self, node: &Node) -> Option<&Assignment> {
        self.rules.iter().find(|rule| rule.matcher.mismatch(node).is_none())
    }

    /// Sorts assignments into evaluation order.
    pub fn sort(rules: &mut [Assignment]) {
        rules.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)));
    }

    /// Returns the assignments after the operations, and the number of changes; `None` if nothing changed.
    pub(crate) fn with(&self, revision: Revision, ops: &[AssignmentOp]) -> (Option<Self>, u64) {
        let mut rules = self.rules.clone();
        let mut count = 0;
        for op in ops {
            let name = match op {
                AssignmentOp::Put(assignment) => &assignment.name,
                AssignmentOp::Delete(name) => name,
            };
            let at = rules.iter().position(|rule| rule.name == *name);
            match (op, at) {
                (AssignmentOp::Put(new), Some(at)) if rules[at] == *new => continue,
                (AssignmentOp::Put(new), Some(at)) => rules[at] = new.clone(),
                (AssignmentOp::Put(new), None) => rules.push(new.clone()),
                (AssignmentOp::Delete(_), Some(at)) => drop(rules.remove(at)),
                (AssignmentOp::Delete(_), None) => continue,
            }
            count += 1;
        }
        if count == 0 {
            return (None, 0);
        }
        Self::sort(&mut rules);
        (Some(Self { changed: revision, rules }), count)
    }
}
