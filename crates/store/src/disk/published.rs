//! The published state and the stored state, which other modules read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chancery_model::{Revision, State};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::disk::{apply_times::ApplyTimes, image::Image, recent_changes::RecentChanges};

/// The number of a published image. Images with the same number are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ImageNumber(u64);

/// The applied state, and the stored one. Stays readable after the state machine has ended. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Published(Arc<Shared>);

struct Shared {
    /// Only the state machine's task changes the image, while it holds the lock of `state`. Anyone
    /// reads it.
    image: Mutex<(ImageNumber, Image)>,
    /// The newest image that is stored.
    stored: watch::Sender<Image>,
    state: watch::Sender<Arc<State>>,
    /// The newest state as clients receive it.
    served: watch::Sender<Arc<State>>,
    /// The tasks that wait for an entry to be applied, by its index. Each is woken once.
    waiting: Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
    times: ApplyTimes,
    changes: RecentChanges,
}

impl Shared {
    /// Exchanges the newest image for another, which gets the next number.
    fn exchange(&self, image: &mut Image) {
        let mut newest = self.image.lock();
        newest.0.0 += 1;
        std::mem::swap(&mut newest.1, image);
    }
}

impl Published {
    /// Creates the state that a start has found.
    pub(crate) fn new(image: Image) -> Self {
        let state = Arc::new(image.state.clone());
        let served = watch::Sender::new(served(&state));
        let state = watch::Sender::new(state);
        let stored = watch::Sender::new(image.clone());
        let (image, waiting) = (Mutex::new((ImageNumber(0), image)), Mutex::default());
        let (times, changes) = (ApplyTimes::default(), RecentChanges::default());
        Self(Arc::new(Shared { image, stored, state, served, waiting, times, changes }))
    }

    /// Returns when the newest entries were applied.
    pub(crate) fn times(&self) -> &ApplyTimes {
        &self.0.times
    }

    /// Returns the changes of the newest revisions.
    pub(crate) fn changes(&self) -> &RecentChanges {
        &self.0.changes
    }

    /// Returns the newest image. Its tally may be that of an earlier one.
    pub(crate) fn newest(&self) -> Image {
        self.newest_numbered().1
    }

    /// Returns the newest image with its number.
    pub(crate) fn newest_numbered(&self) -> (ImageNumber, Image) {
        self.0.image.lock().clone()
    }

    /// Returns the newest image that is stored. It may lack the newest entries, see [`crate::disk::persister`].
    pub(crate) fn stored(&self) -> Image {
        self.0.stored.borrow().clone()
    }

    /// Returns the index of the last entry that the stored image includes, or 0.
    pub(crate) fn stored_index(&self) -> u64 {
        self.0.stored.borrow().applied.map_or(0, |id| id.index)
    }

    /// Returns the stored image once it includes the entry at an index.
    pub(crate) async fn stored_at(&self, index: u64) -> Image {
        let mut stored = self.0.stored.subscribe();
        let includes = |image: &Image| image.applied.map_or(0, |id| id.index) >= index;
        let image = stored.wait_for(includes).await.map(|image| image.clone());
        // The sender cannot be gone: this holds it.
        image.unwrap_or_else(|_| self.stored())
    }

    /// Records that an image is stored.
    pub(crate) fn set_stored(&self, image: Image) {
        self.0.stored.send_replace(image);
    }

    /// Returns the revision that the next transaction will make.
    pub(crate) fn next_revision(&self) -> Revision {
        Revision(self.0.image.lock().1.state.revision.0 + 1)
    }

    /// Returns the index of the last applied entry, or 0.
    pub(crate) fn applied(&self) -> u64 {
        self.0.image.lock().1.applied.map_or(0, |id| id.index)
    }

    /// Returns whether the cluster has been formed.
    pub(crate) fn is_formed(&self) -> bool {
        self.0.image.lock().1.cluster_id.is_some()
    }

    /// Returns when the entry at an index has been applied.
    pub(crate) async fn wait_applied(&self, index: u64) {
        let applied = {
            // Held across the check so that no wake-up is lost.
            let mut waiting = self.0.waiting.lock();
            if self.applied() >= index {
                return;
            }
            let (sender, applied) = oneshot::channel();
            waiting.entry(index).or_default().push(sender);
            applied
        };
        if applied.await.is_err() {
            // The state machine has ended; the caller has a deadline.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the entry at an index has been applied. Returns whether that happened within `timeout`.
    pub(crate) async fn applied_within(&self, index: u64, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.wait_applied(index)).await.is_ok()
    }

    /// Returns a receiver of the newest state and of later ones.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<State>> {
        self.0.state.subscribe()
    }

    /// Returns a receiver of what clients receive in the newest state and in later ones.
    pub(crate) fn watch_served(&self) -> watch::Receiver<Arc<State>> {
        self.0.served.subscribe()
    }

    /// Returns the newest state.
    pub(crate) fn state(&self) -> Arc<State> {
        self.0.state.borrow().clone()
    }

    /// Publishes an image. Publishes the served state first, then the image and the state in one step, and then wakes the
    /// waiters.
    pub(crate) fn publish(&self, image: Image) {
        let state = Arc::new(image.state.clone());
        let applied = image.applied.map_or(0, |id| id.index);
        let mut replaced = image;
        let is_new = is_other(&self.0.state.borrow(), &state);
        if is_new {
            // A reader that has seen the entry applied must find its effect on clients.
            self.0.served.send_replace(served(&state));
        }
        // The image is replaced under the lock of the watched state. A reader that sees one of them
        // in its new form, and then reads the other, sees the new form of both. No code takes the
        // locks in the other order.
        self.0.state.send_if_modified(|published| {
            self.0.exchange(&mut replaced);
            if is_new {
                *published = state;
            }
            is_new
        });
        let mut waiting = self.0.waiting.lock();
        let later = waiting.split_off(&applied.saturating_add(1));
        for sender in std::mem::replace(&mut *waiting, later).into_values().flatten() {
            // Some no longer wait.
            sender.send(()).unwrap_or_default();
        }
    }
}

/// Returns whether a state is another one. Opened and resealed resources are another form of the same revision.
fn is_other(old: &State, new: &State) -> bool {
    old.revision != new.revision
        || old.incarnation != new.incarnation
        || !old.scopes.ptr_eq(&new.scopes)
        || !Arc::ptr_eq(&old.freezes, &new.freezes)
}

/// Returns what clients receive in a state.
fn served(state: &Arc<State>) -> Arc<State> {
    if state.freezes.is_empty() { Arc::clone(state) } else { Arc::new(state.served()) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::format::raft::log_id;

    /// The time within which a reader could see a state that it must not see.
    const PATIENCE: Duration = Duration::from_millis(300);

    fn image(n: u64) -> Image {
        let mut image = Image { applied: Some(log_id(1, n)), ..Image::new() };
        image.state.revision = Revision(n);
        image
    }

    /// L2: a linearizable read waits for an index, and then reads the watched state. The test holds
    /// the watched state in its old form, so that `publish` stops just before it replaces it.
    #[tokio::test]
    async fn index_is_shown_as_applied_only_with_its_state() {
        let published = Published::new(image(0));
        let watching = published.watch();
        let old = watching.borrow();
        let publisher = published.clone();
        let publish = thread::spawn(move || publisher.publish(image(1)));
        let wait = tokio::time::timeout(PATIENCE, published.wait_applied(1));
        assert!(wait.await.is_err(), "a waiter was released at revision {}", old.revision);
        assert_eq!(published.applied(), 0, "entry 1 is shown at revision {}", old.revision);
        drop(old);
        published.wait_applied(1).await;
        assert_eq!(published.state().revision, Revision(1));
        publish.join().unwrap();
    }

    /// Readers of both values see the same state, in whichever order they read.
    #[test]
    fn image_and_state_change_together() {
        const LAST: u64 = 20_000;
        let published = Published::new(image(0));
        let publisher = published.clone();
        let publish = thread::spawn(move || (1..=LAST).for_each(|n| publisher.publish(image(n))));
        loop {
            let state = published.state().revision.0;
            let applied = published.applied();
            let later = published.state().revision.0;
            assert!(state <= applied && applied <= later, "{state}, {applied}, {later}");
            if state == LAST {
                break;
            }
        }
        publish.join().unwrap();
    }
}
