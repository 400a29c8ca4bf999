//! How much a shard does in one turn.

/// The part of a turn's work that bulk may take. Small, so that the turn is short for whoever waits for the next
/// one; a shard that has nothing else to do takes turn after turn.
const BULK_PART: usize = 8;

/// Names or resources that cost as much as one step.
const ITEMS_PER_STEP: usize = 64;

/// What is left of a turn's work. A step may cost more than is left: it is done, and is the last.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    pub(crate) fn new(steps: usize) -> Self {
        Self { left: steps }
    }

    /// Returns the part of a turn of `steps` steps that bulk work may take. It is at least one step, so that
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

/// The cost of a step with so many names or resources, in steps.
pub(crate) fn cost_of(items: usize) -> usize {
    1 + items / ITEMS_PER_STEP
}
