//! A stream of what happens in the cluster: revisions, events of clients on all replicas, and changes of the members.
//!
//! Invariants:
//! - The stream has each revision of the history once, in order. A caller resumes after the last one, on any replica.
//! - What the stream has not sent yet is read again from the history and from the logs of the replicas. No event waits
//!   in memory for a slow caller, except those of one round.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    pin::Pin,
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1::{self as pb, watch_event::Event};
use chancery_fanout::{Fanout, LoggedEvent, LoggedKind};
use chancery_model::{Revision, ScopeName, Target, Verb};
use chancery_raft_proto::v1 as pb_raft;
use chancery_store::HistoryEntry;
use futures::{Stream, StreamExt, stream};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    AdminError,
    cluster::show_entry,
    ctx::{Access, Ctx, Needs},
    deps::{Freshness, READ_TIMEOUT, WATCHES_MAX},
    fleet::{self, Elsewhere, FleetRequest},
    lasting::right_ends,
    times::millis,
    wait_progress::random_number,
};

/// The pause between two rounds of questions about clients and members.
const ROUND: Duration = Duration::from_millis(500);
/// The time after which a stream without events shows its progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// The maximum time for which client events wait for the revisions of their replica.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);
/// The maximum number of events of a replica, and of revisions, in one round.
const ROUND_EVENTS_MAX: usize = 1000;

/// The number of this process in the positions of events.
static PROCESS: LazyLock<u64> = LazyLock::new(random_number);

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
    let after = first_revision(ctx, request.after_revision).await?;
    let mut watch = Watch {
        ctx: ctx.clone(),
        kinds,
        scope,
        is_local: request.local,
        revision: after,
        waiting: VecDeque::new(),
        clients: BTreeMap::new(),
        silent: BTreeSet::new(),
        members: Members::of(ctx),
        round_at: Instant::now(),
        sent_at: Instant::now(),
        _permit: permit,
    };
    // A caller that loses its stream before the first event resumes at this position.
    let position = watch.event(millis(SystemTime::now()), None);
    watch.waiting.push_back(position);
    // Fails at once if the history no longer has the revision.
    watch.read_history()?;
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
/// Fails if `after` is later than the newest revision. A replica that cannot know goes on: its caller may have the
/// revision from another one.
async fn first_revision(ctx: &Ctx, after: Option<u64>) -> Result<Revision, AdminError> {
    let Some(after) = after.map(Revision) else {
        ctx.deps.catch_up(Freshness::Current).await?;
        return Ok(ctx.deps.replica.state().revision);
    };
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
    waiting: VecDeque<pb::WatchEvent>,
    /// The last known event of each replica. The process is 0 until a replica that joined after the watch began has
    /// answered.
    clients: BTreeMap<u64, pb_raft::ClientEventsPosition>,
    /// The replicas that did not answer in the last round.
    silent: BTreeSet<u64>,
    members: Members,
    round_at: Instant,
    sent_at: Instant,
    _permit: OwnedSemaphorePermit,
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
            if let Some(event) = self.waiting.pop_front() {
                self.sent_at = Instant::now();
                return Ok(event);
            }
            let progress_at = self.sent_at + PROGRESS;
            if progress_at <= Instant::now() {
                self.sent_at = Instant::now();
                return Ok(self.event(millis(SystemTime::now()), None));
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

    fn event(&self, time_ms: u64, event: Option<Event>) -> pb::WatchEvent {
        pb::WatchEvent { revision: self.revision.0, time_ms, event }
    }

    /// Reads the next revisions.
    fn read_history(&mut self) -> Result<(), AdminError> {
        let replica = &self.ctx.deps.replica;
        let entries = replica.history_after(self.revision, ROUND_EVENTS_MAX).map_err(|first| {
            AdminError::Precondition(format!(
                "the history no longer has the revisions after {}: it begins after revision {first}; read the state, and \
                 watch from there",
                self.revision
            ))
        })?;
        for entry in entries {
            self.revision = entry.revision;
            if let Some(event) = self.made(&entry).filter(|_| self.kinds.revisions) {
                let event = self.event(entry.meta.time_ms, Some(Event::Made(Box::new(event))));
                self.waiting.push_back(event);
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
        let (now, time) = (Members::of(&self.ctx), millis(SystemTime::now()));
        let changes = self.members.changes(&now);
        self.take_members(now);
        let clients = if self.kinds.nodes {
            let known = self.clients.values().copied().collect();
            let question = pb_raft::ClientEventsQuestion { known };
            let here = events_here(&self.ctx, &question);
            let there = fleet::ask_unless(self.is_local, &self.ctx, &question).await;
            let revisions = there.replies.iter().map(|(_, answer)| answer.revision);
            self.catch_up(revisions.max().unwrap_or_default()).await;
            Some((here, there))
        } else {
            None
        };
        self.read_history()?;
        if self.kinds.members {
            for event in changes {
                let event = self.event(time, Some(Event::Member(event)));
                self.waiting.push_back(event);
            }
        }
        if let Some((here, there)) = clients {
            self.take_clients(here, there);
        }
        Ok(())
    }

    /// Waits until this replica has a revision, at most [`CATCH_UP_MAX`].
    async fn catch_up(&self, revision: u64) {
        let mut states = self.ctx.deps.replica.watch();
        let reached = states.wait_for(|state| state.revision.0 >= revision);
        drop(tokio::time::timeout(CATCH_UP_MAX, reached).await);
    }

    /// Records the members. The next question asks a new member for all its events.
    fn take_members(&mut self, now: Members) {
        for id in now.roles.keys().filter(|id| !self.members.roles.contains_key(id)) {
            let start = pb_raft::ClientEventsPosition { replica_id: *id, ..Default::default() };
            self.clients.entry(*id).or_insert(start);
        }
        self.members = now;
    }

    /// Takes the events of clients of one round.
    fn take_clients(
        &mut self,
        here: pb_raft::ClientEventsAnswer,
        there: Elsewhere<pb_raft::ClientEventsAnswer>,
    ) {
        let (revision, now) = (self.revision.0, millis(SystemTime::now()));
        let missed = |replica_id, count, reason: String| pb::WatchEvent {
            revision,
            time_ms: now,
            event: Some(Event::Missed(pb::MissedEvents { replica_id, count, reason })),
        };
        let mut events = Vec::new();
        let silent: BTreeSet<u64> = there.not_asked.iter().map(|one| one.replica_id).collect();
        for one in there.not_asked {
            if !self.silent.contains(&one.replica_id) {
                events.push(missed(one.replica_id, 0, one.message));
            }
        }
        self.silent = silent;
        let own = (self.ctx.deps.replica.id(), here);
        for (replica_id, answer) in [own].into_iter().chain(there.replies) {
            let position = pb_raft::ClientEventsPosition {
                replica_id,
                process: answer.process,
                last: answer.last,
            };
            let before = self.clients.insert(replica_id, position);
            if before.is_some_and(|before| ![0, answer.process].contains(&before.process)) {
                events.push(missed(replica_id, 0, "the replica has restarted".to_owned()));
            }
            if answer.missed > 0 {
                let reason = "there were too many events at a time".to_owned();
                events.push(missed(replica_id, answer.missed, reason));
            }
            events.extend(answer.events.into_iter().map(|one| pb::WatchEvent {
                revision,
                time_ms: one.time_ms,
                event: Some(Event::Node(pb::NodeEvent {
                    kind: one.kind,
                    node: one.node,
                    replica_id,
                    peer: one.peer,
                    type_url: one.type_url,
                    message: one.message,
                })),
            }));
        }
        events.sort_by_key(|event| event.time_ms);
        self.waiting.extend(events);
    }
}

/// Returns the events of the clients of this replica.
fn events_here(ctx: &Ctx, question: &pb_raft::ClientEventsQuestion) -> pb_raft::ClientEventsAnswer {
    let replica_id = ctx.deps.replica.id();
    let known = question.known.iter().find(|one| one.replica_id == replica_id);
    let answer = client_events(&ctx.deps.fanout, known);
    // Read after the events, so that no event is about a later revision.
    pb_raft::ClientEventsAnswer { revision: ctx.deps.replica.state().revision.0, ..answer }
}

fn client_events(
    fanout: &Fanout,
    known: Option<&pb_raft::ClientEventsPosition>,
) -> pb_raft::ClientEventsAnswer {
    let process = *PROCESS;
    let after = match known {
        None => {
            let last = fanout.client_events(u64::MAX, 0).newest;
            return pb_raft::ClientEventsAnswer { process, last, ..Default::default() };
        }
        Some(known) if known.process == process => known.last,
        Some(_) => 0,
    };
    let read = fanout.client_events(after, ROUND_EVENTS_MAX);
    let last = read.events.last().map_or(after.min(read.newest), |event| event.number);
    let events = read.events.into_iter().map(record).collect();
    let missed = read.n_missed;
    pb_raft::ClientEventsAnswer { process, events, missed, last, ..Default::default() }
}

fn record(event: LoggedEvent) -> pb_raft::ClientEventRecord {
    let kind = match event.kind {
        LoggedKind::Connected => "connected",
        LoggedKind::Disconnected => "disconnected",
        LoggedKind::Rejected => "rejected",
        LoggedKind::Recovered => "recovered",
    };
    pb_raft::ClientEventRecord {
        kind: kind.to_owned(),
        time_ms: millis(event.time),
        node: event.node,
        peer: event.peer.to_string(),
        type_url: event.type_url.map(|url| url.to_string()).unwrap_or_default(),
        message: event.message,
    }
}

impl Needs for pb_raft::ClientEventsQuestion {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for pb_raft::ClientEventsQuestion {
    const NAME: &'static str = "chancery.raft.v1.ClientEventsQuestion";
    type Reply = pb_raft::ClientEventsAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb_raft::ClientEventsAnswer, AdminError> {
        Ok(events_here(ctx, &self))
    }
}

/// The leader and the members, as a replica knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Members {
    leader: Option<u64>,
    /// Whether each member is a voter.
    roles: BTreeMap<u64, bool>,
}

impl Members {
    fn of(ctx: &Ctx) -> Self {
        Self { leader: ctx.deps.replica.leader(), roles: ctx.deps.replica.roles() }
    }

    /// Returns the events that lead to `now`.
    fn changes(&self, now: &Self) -> Vec<pb::MemberEvent> {
        let event = |kind: &str, replica_id, role: &str| pb::MemberEvent {
            kind: kind.to_owned(),
            replica_id,
            role: role.to_owned(),
        };
        let role = |is_voter: bool| if is_voter { "voter" } else { "learner" };
        let mut events = Vec::new();
        for (id, is_voter) in &now.roles {
            match self.roles.get(id) {
                None => events.push(event("added", *id, role(*is_voter))),
                Some(before) if before != is_voter => {
                    events.push(event("role", *id, role(*is_voter)));
                }
                Some(_) => {}
            }
        }
        let gone = self.roles.keys().filter(|id| !now.roles.contains_key(id));
        events.extend(gone.map(|id| event("removed", *id, "")));
        if self.leader != now.leader {
            events.push(event("leader", now.leader.unwrap_or_default(), ""));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_members_are_events() {
        let members = |leader, roles: &[(u64, bool)]| Members {
            leader,
            roles: roles.iter().copied().collect(),
        };
        let before = members(Some(1), &[(1, true), (2, true), (3, false)]);
        let now = members(None, &[(1, true), (3, true), (4, false)]);
        let events: Vec<String> = before
            .changes(&now)
            .into_iter()
            .map(|one| format!("{} {} {}", one.kind, one.replica_id, one.role))
            .collect();
        assert_eq!(events, ["role 3 voter", "added 4 learner", "removed 2 ", "leader 0 "]);
        assert!(now.changes(&now).is_empty());
    }

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
