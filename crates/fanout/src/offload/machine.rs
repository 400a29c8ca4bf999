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
//! - The place of a session in its shard stays taken until nothing in the index refers to it.

use std::{collections::VecDeque, sync::Arc};

use chancery_protocol::Session;
use tokio::time::Instant;

use crate::{
    messages::status::{End, EndCode},
    metrics::large_work,
    offload::away::{After, Indexing, Offloaded, PendingChanges},
    offload::work::{Done, Returned, Work},
    sessions::index::{key, place},
    shard::Shard,
    stream::slot::ReadyList,
    turn::clock::Now,
};

/// The number of names that a shard registers in one turn.
const NAMES_PER_TURN: usize = 1024;

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

impl Shard {
    /// Hands a session over for work on `cost` names.
    pub(crate) fn offload(&mut self, at: usize, work: Work, cost: usize, now: Now) {
        let view = self.view_of(at);
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let status = entry.session.status();
        let stand_in = Session::new(entry.slot.info.kind.clone(), Arc::clone(&self.protocol));
        let session = std::mem::replace(&mut entry.session, stand_in);
        entry.slot.set_away(true);
        entry.away = Some(Box::new(Offloaded {
            indexing: None,
            missed: PendingChanges::Some(Vec::new()),
            since: matches!(work, Work::Take(..)).then_some(now.ms),
            waiting: VecDeque::new(),
            status,
            is_over: matches!(work, Work::End),
            is_poll_due: false,
        }));
        large_work().increment(1.0);
        let back = Some(Returned { key: key(at), done: None });
        let mut ticket = ReturnGuard { ready_list: Arc::clone(entry.slot.ready_list()), back };
        let (differ, slot) = (Arc::clone(&self.differ), Arc::clone(&entry.slot));
        let address = slot.info.peer.ip().to_canonical();
        self.large.submit(
            address,
            cost,
            Box::new(move || {
                // The work may have waited in the queue.
                let ms = now.ms_at(Instant::now());
                // A stream that has ended needs no response.
                let is_in_vain =
                    slot.is_closed() && matches!(work, Work::Take(..) | Work::Poll { .. });
                let done = if is_in_vain {
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

    /// Takes back the sessions that have returned.
    pub(crate) fn on_back(&mut self, ready_list: &ReadyList, now: Now) {
        for back in ready_list.take_back(self.config.turn_work_max) {
            self.come_back(back, now);
        }
    }

    pub(crate) fn come_back(&mut self, Returned { key, done }: Returned, now: Now) {
        let at = place(key);
        large_work().decrement(1.0);
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let Some((session, done)) = done else {
            // The index may still refer to the session, so its place stays taken.
            let text = "the replica could not handle a request of this stream";
            entry.slot.end(End::new(EndCode::Unavailable, text));
            self.forget(key, now);
            return;
        };
        if let Some(session) = session {
            entry.session = session;
        }
        // Rights may have changed before the reassignment reached this session. The session must not send a response
        // under its old rights.
        self.reassign_away(at, now);
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let scopes = || entry.scopes().to_vec();
        let indexing = match done {
            Done::Polled(response, ms) => {
                // A deadline that has passed since the poll is due now.
                let then = Now { ms, ..now };
                self.end_away(at, now, |shard| {
                    shard.on_polled(at, response, then);
                });
                return;
            }
            Done::Taken(result, interests) if interests.is_empty() => {
                self.end_away(at, now, |shard| shard.on_taken(at, result, now));
                return;
            }
            Done::Taken(result, interests) => Indexing {
                interests: interests.into_iter(),
                gone: Vec::new(),
                come: scopes(),
                then: After::Taken(result),
            },
            Done::Moved { interests, gone, come } => {
                Indexing { interests: interests.into_iter(), gone, come, then: After::Moved }
            }
            Done::Over(interests, remains) => Indexing {
                interests: interests.into_iter(),
                gone: scopes(),
                come: Vec::new(),
                then: After::Over(remains),
            },
        };
        if let Some(away) = &mut entry.away {
            away.indexing = Some(indexing);
        }
        self.indexing.push_back(key);
    }

    /// Registers some of the names of the sessions that have returned. Consecutive calls serve the
    /// sessions in turn.
    pub(crate) fn index_some(&mut self, now: Now) {
        let Some(key) = self.indexing.pop_front() else { return };
        let at = place(key);
        let Self { sessions, index, .. } = self;
        let away = sessions.get_mut(at).and_then(|entry| entry.away.as_mut());
        let Some(Indexing { interests, gone, come, .. }) =
            away.and_then(|away| away.indexing.as_mut())
        else {
            return;
        };
        for interest in interests.by_ref().take(NAMES_PER_TURN) {
            index.forget(key, gone, &interest);
            index.note(key, come, &interest);
        }
        match interests.len() {
            0 => self.indexed(at, now),
            _ => self.indexing.push_back(key),
        }
    }

    fn indexed(&mut self, at: usize, now: Now) {
        let away = self.sessions.get_mut(at).and_then(|entry| entry.away.as_mut());
        let Some(away) = away else { return };
        let Some(Indexing { then, .. }) = away.indexing.take() else { return };
        match then {
            After::Taken(result) => {
                self.end_away(at, now, |shard| shard.on_taken(at, result, now));
            }
            After::Moved => {
                let changed = self.views.state().placement_changed();
                if let Some(entry) = self.sessions.get_mut(at) {
                    entry.session.on_new_view();
                    if entry.assigned_at == changed {
                        self.set_moving(at, None);
                    }
                }
                self.end_away(at, now, |shard| shard.enqueue(at, now));
            }
            After::Over(remains) => self.remove(key(at), remains, now),
        }
    }

    /// Takes the session back: applies the changes that it missed, continues with `then`, and handles
    /// the waiting requests.
    fn end_away(&mut self, at: usize, now: Now, then: impl FnOnce(&mut Self)) {
        let Some(entry) = self.sessions.get_mut(at) else { return };
        let Some(away) = entry.away.take() else { return };
        let Offloaded { missed, since, mut waiting, is_over, is_poll_due, .. } = *away;
        // Without a reason the session is not polled again. Otherwise one large poll that finds nothing
        // to send would follow another while an answer is awaited.
        let is_due = is_poll_due || !missed.is_empty();
        entry.slot.set_away(false);
        if let Some(since) = since {
            entry.session.taken_at(since, now.ms);
        }
        if is_over {
            self.forget(key(at), now);
            return;
        }
        match missed {
            PendingChanges::Some(missed) => {
                for (type_url, name) in missed {
                    entry.session.on_change(&type_url, name.as_ref());
                }
            }
            PendingChanges::Anything => entry.session.on_new_view(),
        }
        then(self);
        self.settle_memory(at);
        if is_due {
            self.enqueue(at, now);
        }
        while let Some(event) = waiting.pop_front() {
            self.handle(event, now);
            if let Some(away) = self.sessions.get_mut(at).and_then(|entry| entry.away.as_mut()) {
                away.waiting.append(&mut waiting);
            }
        }
    }
}
