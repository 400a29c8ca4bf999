//! Full states of collections of MCP.

use chancery_view::{Differ, TypeView, difference};

use super::content::Plan;

/// Replaces the planned difference by the full state (MCP-32), unless the difference is empty and no request is due
/// an answer.
pub(super) fn plan_full_collection(
    plan: &mut Plan,
    is_answer_due: bool,
    view: &TypeView,
    differ: &Differ,
) {
    if plan.resources.is_empty() && plan.removed.is_empty() && !is_answer_due {
        return;
    }
    plan.resources = difference(differ, &TypeView::empty(), view).changed;
    plan.removed.clear();
    (plan.send, plan.first_state) = (true, true);
}
