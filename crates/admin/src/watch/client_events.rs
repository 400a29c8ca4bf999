//! The events of clients that a replica has, for a watch on it or on another replica.

use std::sync::LazyLock;

use chancery_fanout::{Fanout, LoggedEvent, LoggedKind};
use chancery_model::Verb;
use chancery_raft_proto::v1 as pb;

use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::FleetRequest,
    times::millis,
    wait_progress::random_number,
};

/// The maximum number of events of a replica in one answer.
const EVENTS_MAX: usize = 1000;

/// The number of this process in the positions of events.
static PROCESS: LazyLock<u64> = LazyLock::new(random_number);

/// Returns the events of the clients of this replica.
pub(super) fn events_here(
    ctx: &Ctx,
    question: &pb::ClientEventsQuestion,
) -> pb::ClientEventsAnswer {
    let replica_id = ctx.deps.replica.id();
    let known = question.known.iter().find(|one| one.replica_id == replica_id);
    let answer = client_events(&ctx.deps.fanout, known);
    // Read after the events, so that no event is about a later revision.
    pb::ClientEventsAnswer { revision: ctx.deps.replica.state().revision.0, ..answer }
}

fn client_events(
    fanout: &Fanout,
    known: Option<&pb::ClientEventsPosition>,
) -> pb::ClientEventsAnswer {
    let process = *PROCESS;
    let after = match known {
        None => {
            let last = fanout.client_events(u64::MAX, 0).newest;
            return pb::ClientEventsAnswer { process, last, ..Default::default() };
        }
        Some(known) if known.process == process => known.last,
        Some(_) => 0,
    };
    let read = fanout.client_events(after, EVENTS_MAX);
    let last = read.events.last().map_or(after.min(read.newest), |event| event.number);
    let events = read.events.into_iter().map(record).collect();
    let missed = read.n_missed;
    pb::ClientEventsAnswer { process, events, missed, last, ..Default::default() }
}

fn record(event: LoggedEvent) -> pb::ClientEventRecord {
    let kind = match event.kind {
        LoggedKind::Connected => "connected",
        LoggedKind::Disconnected => "disconnected",
        LoggedKind::Rejected => "rejected",
        LoggedKind::Recovered => "recovered",
    };
    pb::ClientEventRecord {
        kind: kind.to_owned(),
        time_ms: millis(event.time),
        node: event.node,
        peer: event.peer.to_string(),
        type_url: event.type_url.map(|url| url.to_string()).unwrap_or_default(),
        message: event.message,
    }
}

impl Needs for pb::ClientEventsQuestion {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for pb::ClientEventsQuestion {
    const NAME: &'static str = "chancery.raft.v1.ClientEventsQuestion";
    type Reply = pb::ClientEventsAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::ClientEventsAnswer, AdminError> {
        Ok(events_here(ctx, &self))
    }
}
