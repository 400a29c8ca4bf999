//! The part of each wait on this replica: a task that watches the sessions of this replica, for a caller of any replica.
//!
//! Invariants:
//! - At most [`WAITS_MAX`] waits of other replicas run at a time.
//! - A wait ends when nobody has asked for its progress for [`UNASKED_MAX`].

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher as _, RandomState},
    ops::ControlFlow,
    sync::{Arc, Weak},
    time::Duration,
};

use chancery_fanout::{Change, Fanout, Unacknowledged, UnacknowledgedState};
use chancery_raft_proto::v1 as pb;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::wait::{LISTED_MAX, Waited, Waits};

/// The maximum number of waits of other replicas.
pub(crate) const WAITS_MAX: usize = 1024;
/// The time after which a wait ends if nobody has asked for its progress.
const UNASKED_MAX: Duration = Duration::from_secs(10);

/// A wait on the sessions of this replica.
pub(crate) struct SessionWait {
    instance: u64,
    progress: watch::Receiver<(u64, Waited)>,
    asked_at: Arc<Mutex<Instant>>,
}

impl SessionWait {
    /// Starts a task that watches the sessions that a change concerns, as long as somebody asks for the progress.
    pub(crate) fn start(
        waits: &Waits,
        fanout: &Fanout,
        change: Change,
        timeout: Duration,
    ) -> Arc<Self> {
        let (sender, progress) = watch::channel((0, Waited::default()));
        let asked_at = Arc::new(Mutex::new(Instant::now()));
        let (waits, fanout, asked) = (waits.clone(), fanout.clone(), Arc::downgrade(&asked_at));
        tokio::spawn(async move {
            let observe = |waited: Waited| {
                sender
                    .send_modify(|(queries, latest)| (*queries, *latest) = (*queries + 1, waited));
                let is_asked = |at: &Arc<Mutex<Instant>>| at.lock().elapsed() < UNASKED_MAX;
                match Weak::upgrade(&asked) {
                    Some(at) if is_asked(&at) => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            };
            waits.watch(&fanout, Arc::new(change), timeout, observe).await;
        });
        Arc::new(Self { instance: random_number(), progress, asked_at })
    }

    /// Returns the progress, as soon as the sessions have been asked once. `left` are nodes whose sessions on other
    /// replicas have ended.
    pub(crate) async fn progress(&self, left: &BTreeSet<String>) -> pb::WaitAnswer {
        *self.asked_at.lock() = Instant::now();
        let mut progress = self.progress.clone();
        // The task ends only if nobody asks.
        drop(progress.wait_for(|(queries, _)| *queries > 0).await);
        let (queries, waited) = progress.borrow().clone();
        let here: BTreeSet<&str> = waited
            .present
            .iter()
            .map(|node| node.id.as_str())
            .filter(|id| left.contains(*id))
            .collect();
        pb::WaitAnswer {
            instance: self.instance,
            queries,
            asked: waited.n_asked as u64,
            acknowledged: waited.n_acknowledged as u64,
            unsettled: waited.unsettled.iter().map(show_unsettled).collect(),
            unsettled_omitted: (waited.n_unsettled - waited.unsettled.len()) as u64,
            r#final: waited.is_final,
            left: waited.left.iter().map(|node| node.id.clone()).collect(),
            left_omitted: (waited.n_left - waited.left.len()) as u64,
            here: here.into_iter().map(str::to_owned).collect(),
            gone: waited.gone.iter().take(LISTED_MAX).map(|node| node.id.clone()).collect(),
            gone_omitted: waited.gone.len().saturating_sub(LISTED_MAX) as u64,
        }
    }
}

/// The waits of other replicas, by wait ID.
#[derive(Clone, Default)]
pub(crate) struct ForeignWaits(Arc<Mutex<HashMap<u64, Arc<SessionWait>>>>);

impl ForeignWaits {
    /// Returns a wait, which `start` starts with the first question. Returns `None` if there are too many.
    pub(crate) fn of(
        &self,
        wait_id: u64,
        start: impl FnOnce() -> Arc<SessionWait>,
    ) -> Option<Arc<SessionWait>> {
        let mut waits = self.0.lock();
        if let Some(wait) = waits.get(&wait_id) {
            return Some(Arc::clone(wait));
        }
        waits.retain(|_, wait| wait.asked_at.lock().elapsed() < UNASKED_MAX);
        if waits.len() >= WAITS_MAX {
            return None;
        }
        let wait = start();
        waits.insert(wait_id, Arc::clone(&wait));
        Some(wait)
    }
}

/// Returns a random number that identifies a wait or a process.
pub(crate) fn random_number() -> u64 {
    RandomState::new().hash_one(Instant::now())
}

fn show_unsettled(unsettled: &Unacknowledged) -> pb::UnsettledSession {
    let (state, message) = match &unsettled.state {
        UnacknowledgedState::Pending => ("pending", String::new()),
        UnacknowledgedState::Nacked(message) => ("nacked", message.clone()),
        UnacknowledgedState::Unassigned => {
            ("unassigned", "no assignment matches the node; it keeps its resources".to_owned())
        }
        UnacknowledgedState::Behind(reached) => {
            ("behind", format!("a shard of the replica is still at revision {reached}"))
        }
        UnacknowledgedState::Stalled(shard) => ("behind", shard.to_string()),
    };
    pb::UnsettledSession {
        node: unsettled.node.clone(),
        type_url: unsettled.type_url.as_ref().map(ToString::to_string).unwrap_or_default(),
        state: state.to_owned(),
        message,
    }
}
