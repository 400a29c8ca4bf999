//! The opening of sealed resources, in memory, after entries were applied. Those of a large command are opened earlier, by
//! [`crate::disk::preparer`].
//!
//! Opening changes no record and no version. What the log makes of the state never depends on it, so replicas with and
//! without keys have the same records.

use std::{sync::Arc, time::Duration};

use chancery_secrets::Secrets;
use tokio::sync::watch;

use crate::disk::machine::Machine;

/// The interval at which key files are checked, and missing keys are unwrapped again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The task that unwraps keys when they appear, and then opens resources.
pub(crate) struct Opener {
    pub(crate) machine: Machine,
    pub(crate) secrets: Secrets,
    /// Becomes true after the first attempt to unwrap all keys.
    pub(crate) has_tried: watch::Sender<bool>,
}

impl Opener {
    /// Runs until the runtime ends.
    pub(crate) async fn run(self) {
        let mut states = self.machine.published().watch();
        loop {
            let keys = Arc::clone(&states.borrow_and_update().keys);
            self.secrets.refresh(&keys).await;
            let machine = self.machine.clone();
            // A failure of the thread has stopped the replica.
            drop(tokio::task::spawn_blocking(move || machine.open_sealed()).await);
            self.has_tried.send_replace(true);
            let changed = states.wait_for(|state| !Arc::ptr_eq(&state.keys, &keys));
            match tokio::time::timeout(REFRESH_INTERVAL, changed).await {
                Ok(Ok(_)) | Err(_) => {}
                // The state machine has ended.
                Ok(Err(_)) => return,
            }
        }
    }
}
