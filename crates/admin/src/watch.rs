//! A stream of what happens in the cluster: revisions, events of clients on all replicas, and changes of the members.
//!
//! Invariants:
//! - The stream has each revision of the history once, in order. A caller resumes after the last one, on any replica.
//! - What the stream has not sent yet is read again from the history and from the logs of the replicas. No event waits
//!   in memory for a slow caller, except those of one round.

use std::{
    collections::{BTreeSet, VecDeque},
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1::{self as pb, watch_event::Event};
use chancery_model::{Revision, ScopeName, Target, Verb};
use chancery_raft_proto::v1 as pb_raft;
use chancery_store::HistoryEntry;
use futures::{Stream, StreamExt, stream};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    AdminError,
    cluster::show_entry,
    ctx::Ctx,
    deps::{Freshness, READ_TIMEOUT, WATCHES_MAX},
    fleet::{self, Elsewhere},
    lasting::right_ends,
    times::millis,
    watch::{
        client_events::events_here,
        members::Members,
        position::{Position, PositionChange},
    },
};

mod client_events;
mod members;
mod position;

/// The pause between two rounds of questions about clients and members.
const ROUND: Duration = Duration::from_millis(500);
/// The time after which a stream without events shows its progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// The maximum time for which client events wait for the revisions of their replica.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// The maximum number of revisions in one round.
const ROUND_REVISIONS_MAX: usize = 1000;

/// The events of a watch.
pub(crate) struct WatchEvents(pub(crate) Events);

type Events = Pin<Box<dyn Stream<Item = Result<pb::WatchEvent, AdminError>> + Send>>;

/// Starts a watch.
pub(crate) async fn watch(ctx: &Ctx, request: pb::WatchRequest) -> Result<WatchEvents, AdminError> {
    let kinds = Kinds::parse(&request.kinds)?;
    let scope = match request.scope.as_str() {
        "" => None,
        scope => Some(ScopeName::new(scope)?),
    };
    let mut verbs = vec![Verb::History];
    if kinds.nodes {
        ctx.authorize(Verb::Nodes, Target::Cluster)?;
        verbs.push(Verb::Nodes);
    }
    let permit = Arc::clone(&ctx.deps.watches).try_acquire_owned().map_err(|_| {
        let text = format!(
            "this replica serves {WATCHES_MAX} watches, which is the maximum; end one, or watch on another replica"
        );
        AdminError::Busy { reason: "watches", text }
    })?;
    let resumed = request.position.map(Position::decode).transpose()?;
    let after = first_revision(ctx, request.after_revision).await?;
    let mut watch = Watch {
        ctx: ctx.clone(),
        kinds,
        scope,
        is_local: request.local,
        revision: after,
        waiting: VecDeque::new(),
        position: Position::default(),
        unanswered: BTreeSet::new(),
        unknown: BTreeSet::new(),
        round_at: Instant::now(),
        sent_at: Instant::now(),
        _permit: permit,
    };
    // A caller that loses its stream before the first event resumes at this position.
    watch.push(millis(SystemTime::now()), None, None);
    // Fails at once if the history no longer has the revision.
    watch.read_history()?;
    watch.begin(resumed);
    watch.round().await?;
    let end = {
        let ctx = ctx.clone();
        async move { right_ends(&ctx, &verbs).await }
    };
    let events = stream::unfold(Some(watch), |watch| async {
        let mut watch = watch?;
        match watch.next().await {
            Ok(event) => Some((Ok(event), Some(watch))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(WatchEvents(events.take_until(end).boxed()))
}

/// Returns the revision after which a watch begins.
///
/// # Errors
/// Fails if `after` is later than the newest revision. Succeeds if this replica cannot determine the newest revision:
/// another replica may have reported `after`.
async fn first_revision(ctx: &Ctx, after: Option<u64>) -> Result<Revision, AdminError> {
    let Some(after) = after.map(Revision) else {
        ctx.deps.catch_up(Freshness::Current).await?;
        return Ok(ctx.deps.replica.state().revision);
    };
    // Catches up first, so that a lagging replica does not report outdated members as changes.
    drop(ctx.deps.replica.read_barrier(READ_TIMEOUT).await);
    ctx.deps.check_exists(after, READ_TIMEOUT).await?;
    Ok(after)
}

/// The kinds of events that a caller watches.
#[derive(Debug, Clone, Copy)]
struct Kinds {
    revisions: bool,
    nodes: bool,
    members: bool,
}

impl Kinds {
    fn parse(names: &[String]) -> Result<Self, AdminError> {
        let is_all = names.is_empty();
        let mut kinds = Self { revisions: is_all, nodes: is_all, members: is_all };
        for name in names {
            match name.as_str() {
                "revisions" => kinds.revisions = true,
                "nodes" => kinds.nodes = true,
                "members" => kinds.members = true,
                other => {
                    return Err(AdminError::Parameter(format!(
                        "{other:?} is no kind of event; the kinds are revisions, nodes and members"
                    )));
                }
            }
        }
        Ok(kinds)
    }
}

/// The state of one watch.
struct Watch {
    ctx: Ctx,
    kinds: Kinds,
    scope: Option<ScopeName>,
    is_local: bool,
    /// The revision up to which the history was read.
    revision: Revision,
    /// The events that were read and not sent.
    waiting: VecDeque<Waiting>,
    /// The position after the last event that was sent. A round begins after all events were sent.
    position: Position,
    /// The replicas that did not answer in the last round.
    unanswered: BTreeSet<u64>,
    /// The replicas for which a resumed watch lacks the position, and which have not answered yet.
    unknown: BTreeSet<u64>,
    round_at: Instant,
    sent_at: Instant,
    _permit: OwnedSemaphorePermit,
}

/// An event that was read and not sent.
struct Waiting {
    event: pb::WatchEvent,
    change: Option<PositionChange>,
}

impl Watch {
    async fn next(&mut self) -> Result<pb::WatchEvent, AdminError> {
        let mut states = self.ctx.deps.replica.watch();
        loop {
            states.borrow_and_update();
            if self.waiting.is_empty() {
                self.read_history()?;
            }
            if self.waiting.is_empty() && self.round_at <= Instant::now() {
                self.round().await?;
            }
            let progress_at = self.sent_at + PROGRESS;
            if self.waiting.is_empty() && progress_at <= Instant::now() {
                self.push(millis(SystemTime::now()), None, None);
            }
            if let Some(waiting) = self.waiting.pop_front() {
                self.sent_at = Instant::now();
                return Ok(self.send(waiting));
            }
            let next = if self.kinds.nodes || self.kinds.members {
                progress_at.min(self.round_at)
            } else {
                progress_at
            };
            tokio::select! {
                changed = states.changed() => {
                    changed.map_err(|_| AdminError::Unavailable("the replica ends".to_owned()))?;
                }
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Adds an event of the present revision.
    fn push(&mut self, time_ms: u64, event: Option<Event>, change: Option<PositionChange>) {
        let event = pb::WatchEvent { revision: self.revision.0, time_ms, event, position: None };
        self.waiting.push_back(Waiting { event, change });
    }

    /// Returns an event with the position after it.
    fn send(&mut self, Waiting { event, change }: Waiting) -> pb::WatchEvent {
        if let Some(change) = change {
            self.position.apply(change);
        }
        let has_position = self.kinds.nodes || self.kinds.members;
        pb::WatchEvent { position: has_position.then(|| self.position.encode()), ..event }
    }

    /// Sets the position to that of the lost stream, or to the present one. If the position of the lost stream lacks the
    /// leader, an event of members names it.
    fn begin(&mut self, resumed: Option<Position>) {
        let is_resumed = resumed.is_some();
        self.position = resumed.unwrap_or_default();
        if self.position.members.roles.is_empty() {
            let now = Members::now(&self.ctx, &self.position.members);
            let leader = now.leader.filter(|_| !is_resumed);
            self.position.members = Members { leader, ..now };
        }
        if is_resumed {
            let followed = self.followed(&self.position.members);
            let lacks_position = |id: &u64| !self.position.clients.contains_key(id);
            self.unknown = followed.into_iter().filter(lacks_position).collect();
        }
    }

    /// Returns the replicas whose clients are followed.
    fn followed(&self, members: &Members) -> BTreeSet<u64> {
        let own = self.ctx.deps.replica.id();
        let others = members.roles.keys().filter(|_| !self.is_local);
        others.copied().chain([own]).collect()
    }

    /// Reads the next revisions.
    fn read_history(&mut self) -> Result<(), AdminError> {
        let replica = &self.ctx.deps.replica;
        let entries = replica.history_after(self.revision, ROUND_REVISIONS_MAX).map_err(|first| {
            AdminError::Precondition(format!(
                "the history no longer has the revisions after {}: it begins after revision {first}; read the state, and \
                 watch from there",
                self.revision
            ))
        })?;
        for entry in entries {
            self.revision = entry.revision;
            if let Some(event) = self.made(&entry).filter(|_| self.kinds.revisions) {
                self.push(entry.meta.time_ms, Some(Event::Made(Box::new(event))), None);
            }
        }
        Ok(())
    }

    /// Returns the event of a revision; `None` if it does not change the watched scope. The changes in scopes that the
    /// caller may not read are left out.
    fn made(&self, entry: &HistoryEntry) -> Option<pb::RevisionEvent> {
        let known = self.ctx.deps.replica.changes_of(entry.revision);
        let n_changes = entry.summary.changed + entry.summary.removed;
        let changes_known = known.is_some() || n_changes == 0;
        let is_watched = |name: &ScopeName| self.scope.as_ref().is_none_or(|scope| scope == name);
        let may_get = |name: &ScopeName| self.ctx.may(Verb::Get, Target::Scope(name));
        let changes = known.iter().flat_map(|changes| changes.iter());
        let changes: Vec<pb::ScopeChange> = changes
            .filter(|one| is_watched(&one.scope) && may_get(&one.scope))
            .map(|one| pb::ScopeChange {
                scope: one.scope.to_string(),
                type_url: one.type_url.to_string(),
                changed: one.changed,
                removed: one.removed,
            })
            .collect();
        if self.scope.is_some() && changes_known && changes.is_empty() {
            return None;
        }
        Some(pb::RevisionEvent { entry: Some(show_entry(entry)), changes, changes_known })
    }

    /// Asks for the events of clients, and compares the members. The revisions that the answering replicas had precede these
    /// events.
    async fn round(&mut self) -> Result<(), AdminError> {
        self.round_at = Instant::now() + ROUND;
        // A replica that could not determine the newest revision when the watch began may do so now.
        self.ctx.deps.check_exists(self.revision, ROUND).await?;
        let now = Members::now(&self.ctx, &self.position.members);
        let followed = self.followed(&now);
        let mut clients = None;
        if self.kinds.nodes {
            self.follow_new(&followed);
            clients = Some(self.ask(&followed).await);
        }
        self.read_history()?;
        self.report_members(now);
        if let Some((here, there)) = clients {
            self.report_unfollowed(&followed);
            self.report_unanswered(there.not_asked);
            let own = (self.ctx.deps.replica.id(), here);
            let answers = [own].into_iter().chain(there.replies);
            self.take_answers(answers.filter(|(id, _)| followed.contains(id)));
        }
        Ok(())
    }

    /// Begins to follow the clients of new members. The next question asks for all their events.
    fn follow_new(&mut self, followed: &BTreeSet<u64>) {
        for id in followed.iter().filter(|id| self.position.members.is_new(**id)) {
            let start = pb_raft::ClientEventsPosition { replica_id: *id, ..Default::default() };
            self.position.clients.entry(*id).or_insert(start);
        }
    }

    /// Asks for the events of clients after the position, and waits for the revisions before them.
    async fn ask(
        &self,
        followed: &BTreeSet<u64>,
    ) -> (pb_raft::ClientEventsAnswer, Elsewhere<pb_raft::ClientEventsAnswer>) {
        let known = self.position.clients.values().filter(|one| followed.contains(&one.replica_id));
        let question = pb_raft::ClientEventsQuestion { known: known.copied().collect() };
        let here = events_here(&self.ctx, &question);
        let there = fleet::ask_unless(self.is_local, &self.ctx, &question).await;
        let revisions = there.replies.iter().map(|(_, answer)| answer.revision);
        self.catch_up(revisions.max().unwrap_or_default()).await;
        (here, there)
    }

    /// Waits until this replica has a revision, at most [`CATCH_UP_MAX`].
    async fn catch_up(&self, revision: u64) {
        let mut states = self.ctx.deps.replica.watch();
        let reached = states.wait_for(|state| state.revision.0 >= revision);
        drop(tokio::time::timeout(CATCH_UP_MAX, reached).await);
    }

    /// Reports the changes of the leader and of the members.
    fn report_members(&mut self, now: Members) {
        let events = self.position.members.changes(&now);
        if !self.kinds.members || events.is_empty() {
            self.position.members = now;
            return;
        }
        let (time, last) = (millis(SystemTime::now()), events.len() - 1);
        for (at, event) in events.into_iter().enumerate() {
            let change = (at == last).then(|| PositionChange::Members(now.clone()));
            self.push(time, Some(Event::Member(event)), change);
        }
    }

    /// Reports `missed` for each replica that the watch no longer follows.
    fn report_unfollowed(&mut self, followed: &BTreeSet<u64>) {
        let unfollowed = self.position.clients.keys().filter(|id| !followed.contains(id));
        for id in unfollowed.copied().collect::<Vec<_>>() {
            let reason = if self.is_local {
                "the watch moved to another replica and no longer follows the clients of this one"
            } else {
                "the replica was removed from the cluster; the watch no longer follows its clients"
            };
            self.push_missed(id, 0, reason.to_owned(), Some(PositionChange::Unfollowed(id)));
        }
        self.unknown.retain(|id| followed.contains(id));
    }

    /// Reports `missed` once for each replica that does not answer.
    fn report_unanswered(&mut self, not_asked: Vec<pb::ReplicaNotAsked>) {
        let before = std::mem::take(&mut self.unanswered);
        for one in not_asked {
            if !before.contains(&one.replica_id) {
                self.push_missed(one.replica_id, 0, one.message, None);
            }
            self.unanswered.insert(one.replica_id);
        }
    }

    fn push_missed(
        &mut self,
        replica_id: u64,
        count: u64,
        reason: String,
        change: Option<PositionChange>,
    ) {
        let event = Event::Missed(pb::MissedEvents { replica_id, count, reason });
        self.push(millis(SystemTime::now()), Some(event), change);
    }

    /// Takes the answers about clients, ordered by time.
    fn take_answers(&mut self, answers: impl Iterator<Item = (u64, pb_raft::ClientEventsAnswer)>) {
        let mut events = Vec::new();
        for (replica_id, answer) in answers {
            let process = answer.process;
            let position = |last| pb_raft::ClientEventsPosition { replica_id, process, last };
            // The numbers of the events ascend by one.
            let mut last = answer.last.saturating_sub(answer.events.len() as u64);
            match self.gap(replica_id, &answer) {
                Some((count, reason)) => {
                    let change = PositionChange::Clients(position(last));
                    self.push_missed(replica_id, count, reason.to_owned(), Some(change));
                }
                None if answer.events.is_empty() => {
                    self.position.apply(PositionChange::Clients(position(last)));
                }
                None => {}
            }
            // The clock may go back, but events of a replica stay in their order.
            let mut time = 0;
            for one in answer.events {
                (last, time) = (last + 1, one.time_ms.max(time));
                let change = PositionChange::Clients(position(last));
                events.push((time, change, shown(one, replica_id)));
            }
        }
        events.sort_by_key(|(time, ..)| *time);
        for (_, change, (time_ms, event)) in events {
            self.push(time_ms, Some(Event::Node(event)), Some(change));
        }
    }

    /// Returns the number of missing events (0 if unknown) and the reason, if the answer has a gap.
    fn gap(
        &mut self,
        id: u64,
        answer: &pb_raft::ClientEventsAnswer,
    ) -> Option<(u64, &'static str)> {
        let before = self.position.clients.get(&id);
        if self.unknown.remove(&id) {
            return Some((0, "the watch has resumed without the position of this replica"));
        }
        if before.is_some_and(|before| ![0, answer.process].contains(&before.process)) {
            return Some((0, "the replica has restarted"));
        }
        (answer.missed > 0).then_some((answer.missed, "there were too many events at a time"))
    }
}

/// Returns the time of an event, and the event as callers receive it.
fn shown(event: pb_raft::ClientEventRecord, replica_id: u64) -> (u64, pb::NodeEvent) {
    let pb_raft::ClientEventRecord { kind, time_ms, node, peer, type_url, message } = event;
    (time_ms, pb::NodeEvent { kind, node, replica_id, peer, type_url, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_checked() {
        let parse = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Kinds::parse(&names).map(|kinds| [kinds.revisions, kinds.nodes, kinds.members])
        };
        assert_eq!(parse(&[]).unwrap(), [true; 3]);
        assert_eq!(parse(&["nodes"]).unwrap(), [false, true, false]);
        assert!(parse(&["node"]).unwrap_err().to_string().contains("revisions, nodes and members"));
    }
}
