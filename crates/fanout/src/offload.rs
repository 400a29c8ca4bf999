//! Offloaded sessions: sessions that are *away* from their shard, on the thread for large work or partly
//! registered in the index.
//!
//! Handling a request with a million names, planning its response and freeing its session each take
//! about a second. A shard may only take milliseconds. It therefore hands the session over
//! ([`LargeWork`]), and registers its names in bounded steps when the session is back.
//!
//! Invariants:
//! - A request is handled as a whole, and nothing is sent meanwhile. A session that is away is not
//!   polled, and its further requests wait in order until it is back.
//! - No change is missed. Changes during the absence are recorded one by one, or as one mark that
//!   anything may have changed. A name gets its response only after the shard has registered the name,
//!   from the state at that time.
//! - The key of a session in its shard stays taken until nothing in the index refers to it.

use std::{collections::VecDeque, sync::Arc};

use chancery_protocol::Session;
use chancery_view::{Differ, View};
use tokio::time::Instant;

use crate::{
    messages::session::Key,
    metrics::large_work,
    stream::slot::{ReadyList, StreamSlot},
    turn::clock::Now,
};

pub(crate) mod away;
pub(crate) mod large;
pub(crate) mod work;

use large::LargeWork;
use work::{Done, Returned, Work};

/// The large work of a shard.
#[derive(Debug)]
pub(crate) struct Offload {
    large: LargeWork,
    differ: Arc<Differ>,
    /// Sessions whose names are being registered or removed. They take turns.
    registering: VecDeque<Key>,
}

/// Returns a session to its shard, even if the work panics.
struct ReturnGuard {
    ready_list: Arc<ReadyList>,
    back: Option<Returned>,
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        if let Some(back) = self.back.take() {
            self.ready_list.send_back(back);
        }
    }
}

impl Offload {
    pub(crate) fn new(large: LargeWork, differ: Arc<Differ>) -> Self {
        Self { large, differ, registering: VecDeque::new() }
    }

    /// Hands a session over for work on `cost` names.
    pub(crate) fn submit(
        &self,
        key: Key,
        slot: &Arc<StreamSlot>,
        handover: Handover,
        cost: usize,
        now: Now,
    ) {
        large_work().increment(1.0);
        let back = Some(Returned { key, done: None });
        let mut ticket = ReturnGuard { ready_list: Arc::clone(slot.ready_list()), back };
        let (differ, slot) = (Arc::clone(&self.differ), Arc::clone(slot));
        let address = slot.info.peer.ip().to_canonical();
        self.large.submit(
            address,
            cost,
            Box::new(move || {
                // The work may have waited in the queue.
                let ms = now.ms_at(Instant::now());
                let Handover { session, work, view } = handover;
                // A stream that has ended needs no response.
                let is_skipped =
                    slot.is_closed() && matches!(work, Work::Take(..) | Work::Poll { .. });
                let done = if is_skipped {
                    (Some(session), Done::Polled(None, ms))
                } else {
                    work.run(session, view.as_ref(), &differ, ms)
                };
                if let Some(back) = &mut ticket.back {
                    back.done = Some(done);
                }
            }),
        );
    }

    /// Adds a session whose names are to be registered.
    pub(crate) fn start_registering(&mut self, key: Key) {
        self.registering.push_back(key);
    }

    /// Returns the next session whose names are to be registered.
    pub(crate) fn next_registering(&mut self) -> Option<Key> {
        self.registering.pop_front()
    }

    /// Returns whether the names of a session are to be registered.
    pub(crate) fn is_registering(&self) -> bool {
        !self.registering.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn large(&self) -> &LargeWork {
        &self.large
    }
}

/// A session with the work on it, and the view that it needs.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) session: Session,
    pub(crate) work: Work,
    pub(crate) view: Option<View>,
}
