//! Processes that do not survive a failed test.

use std::{
    ops::{Deref, DerefMut},
    process::Child,
};

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
