//! The budget of a shard's turn.

/// The divisor for the part of a turn that bulk work may take. The part is small so that turns stay
/// short. A shard with only bulk work takes one turn after another.
const BULK_PART: usize = 8;

/// The number of names or resources that cost as much as one step.
const ITEMS_PER_STEP: usize = 64;

/// The maximum number of names that a shard handles itself in one call of a session. The work takes
/// about a millisecond. More is large work.
pub(crate) const INLINE_NAMES_MAX: usize = 2048;

/// The remaining work of a turn. A step may cost more than remains: it is then the last one.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    pub(crate) fn new(steps: usize) -> Self {
        Self { left: steps }
    }

    /// Returns the budget for bulk work in a turn of `steps` steps. It is at least one step, so that
    /// new streams progress in each turn.
    pub(crate) fn of_bulk(steps: usize) -> Self {
        Self::new((steps / BULK_PART).max(1))
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn spend(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
    }
}

/// Returns the cost of a step with `items` names or resources, in steps.
pub(crate) fn cost_of(items: usize) -> usize {
    1 + items / ITEMS_PER_STEP
}
