//! Full states of collections of MCP.

use chancery_view::{Differ, TypeView, difference};

use super::Plan;
use crate::subscription::Subscription;

impl Subscription {
    /// Replaces the planned difference by the full state (MCP-32), unless the difference is empty and no request is due
    /// an answer.
    pub(super) fn plan_full_collection(&self, plan: &mut Plan, view: &TypeView, differ: &Differ) {
        if plan.resources.is_empty() && plan.removed.is_empty() && !self.work.answer_due {
            return;
        }
        plan.resources = difference(differ, &TypeView::empty(), view).changed;
        plan.removed.clear();
        (plan.send, plan.first_state) = (true, true);
    }
}
