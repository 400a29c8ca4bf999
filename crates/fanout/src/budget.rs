//! How much a shard does in one turn.

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
