//! The command `watch`, and the flags of other commands that follow events.

use std::time::{Duration, Instant};

use chancery_admin::json::JsonMessage as _;
use chancery_admin_proto::v1::{
    self as pb, watch_event::Event, watch_service_client::WatchServiceClient,
};
use clap::{Args, ValueEnum, builder::NonEmptyStringValueParser};
use tonic::{Code, Status, Streaming};

use super::{
    client::{Servers, refusal},
    connector::Channel,
    fleet::Extent,
};
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    text::{count, labels, plain, printable_json, short_type},
    time::timestamp,
};

/// The time after which a silent server counts as hanging. It sends an event or a progress notification every 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The pause before a lost stream is opened again.
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum time for which a lost stream is opened again.
const LOST_MAX: Duration = Duration::from_secs(120);

/// The arguments of `watch`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Show only these kinds of events [default: all]
    #[arg(long = "kind", value_enum, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Also show the revisions after this one [default: only new ones]
    #[arg(long, value_name = "REVISION")]
    after: Option<u64>,
    /// Show only revisions that change this scope [default: all]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    scope: Option<String>,
    #[command(flatten)]
    extent: Extent,
}

/// A kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// Revisions, with their changes by scope and type
    Revisions,
    /// Streams that open and end, rejections and their ends
    Nodes,
    /// The leader and the members of the cluster
    Members,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Revisions => "revisions",
            Self::Nodes => "nodes",
            Self::Members => "members",
        }
    }
}

/// Shows events until the command is interrupted.
pub(super) async fn run(
    watch: Watch,
    servers: &Servers,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    let request = pb::WatchRequest {
        after_revision: watch.after,
        kinds: watch.kinds.iter().map(|kind| kind.name().to_owned()).collect(),
        scope: watch.scope.unwrap_or_default(),
        local: watch.extent.local,
        position: None,
    };
    Follower::new(request).follow(servers, answer).await
}

/// A stream of events that resumes after the last event when it is lost, on any of the servers.
pub(super) struct Follower {
    request: pb::WatchRequest,
    /// The open stream.
    events: Option<Streaming<pb::WatchEvent>>,
    lost_at: Option<Instant>,
    /// Whether a stream has sent its position.
    has_begun: bool,
}

impl Follower {
    fn new(request: pb::WatchRequest) -> Self {
        Self { request, events: None, lost_at: None, has_begun: false }
    }

    /// Returns a stream of some kinds of events.
    pub(super) fn of_kinds(kinds: &[Kind], after: Option<u64>, local: bool) -> Self {
        let kinds = kinds.iter().map(|kind| kind.name().to_owned()).collect();
        let (scope, position) = (String::new(), None);
        Self::new(pb::WatchRequest { after_revision: after, kinds, scope, local, position })
    }

    /// Opens the stream. [`Self::follow`] shows the events from now on.
    pub(super) async fn open(&mut self, channel: Channel) -> Result<(), Status> {
        let mut client = WatchServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        let opened = client.watch(self.request.clone());
        self.events = Some(before_silence_ends(opened).await??.into_inner());
        Ok(())
    }

    /// Shows events until the command is interrupted.
    pub(super) async fn follow(
        mut self,
        servers: &Servers,
        answer: &mut Answer<'_>,
    ) -> Result<(), Failure> {
        loop {
            let end = self.show_all(servers, answer).await?;
            // Nothing was received yet, so there is nothing to resume.
            if self.request.after_revision.is_none() && self.lost_at.is_none() {
                return Err(end);
            }
            if self.lost_at.get_or_insert_with(Instant::now).elapsed() > LOST_MAX {
                return Err(end);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Shows the events of one stream. Returns why the stream has ended, if another one may have the rest.
    async fn show_all(
        &mut self,
        servers: &Servers,
        answer: &mut Answer<'_>,
    ) -> Result<Failure, Failure> {
        if self.events.is_none() {
            let channel = match servers.any_channel().await {
                Ok(channel) => channel,
                Err(failure) => return Ok(failure),
            };
            if let Err(status) = self.open(channel).await {
                return self.lost(&status);
            }
        }
        let Some(mut events) = self.events.take() else { return Ok(ended()) };
        loop {
            match before_silence_ends(events.message()).await.and_then(|message| message) {
                Ok(Some(mut event)) => {
                    self.lost_at = None;
                    self.has_begun = true;
                    self.request.after_revision = Some(event.revision);
                    // A server of an earlier release sends no position. The next server then says what may be missing.
                    self.request.position = Some(event.position.take().unwrap_or_default());
                    show(&event, answer)?;
                }
                Ok(None) => return Ok(ended()),
                Err(status) => return self.lost(&status),
            }
        }
    }

    /// Returns why a stream was lost, or fails if another attempt fails in the same way. A watch that has begun also waits
    /// for a replica with space for it.
    fn lost(&self, status: &Status) -> Result<Failure, Failure> {
        let is_full = status.code() == Code::ResourceExhausted && self.has_begun;
        if is_full || !is_final(status.code()) { Ok(refusal(status)) } else { Err(refusal(status)) }
    }
}

/// Returns the output of what waits for a server.
///
/// # Errors
/// Fails if the server takes longer than [`SILENCE_MAX`].
async fn before_silence_ends<T>(wait: impl Future<Output = T>) -> Result<T, Status> {
    tokio::time::timeout(SILENCE_MAX, wait).await.map_err(|_| {
        let text = format!("the server has sent nothing for {SILENCE_MAX:?}; it may hang");
        Status::deadline_exceeded(text)
    })
}

fn ended() -> Failure {
    Failure::new("the server ended the stream")
}

/// Returns whether another attempt fails in the same way.
fn is_final(code: Code) -> bool {
    !matches!(
        code,
        Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::Internal
            | Code::DeadlineExceeded
    )
}

fn show(event: &pb::WatchEvent, answer: &mut Answer<'_>) -> Result<(), Failure> {
    match answer.output {
        Output::Text | Output::Wide => {
            for line in lines(event) {
                answer.text(|out| writeln!(out, "{line}"))?;
            }
        }
        Output::Yaml => {
            writeln!(answer.out, "---")?;
            answer.yaml(&event.to_json())?;
        }
        Output::Json | Output::Sarif => {
            writeln!(answer.out, "{}", printable_json(&event.to_json().to_string()))?;
        }
    }
    // Each event is for a reader who waits.
    answer.out.flush().map_err(Failure::from)
}

/// Returns the lines of an event. A progress notification has none.
fn lines(event: &pb::WatchEvent) -> Vec<String> {
    let time = timestamp(event.time_ms);
    let Some(what) = &event.event else { return Vec::new() };
    match what {
        Event::Made(made) => of_revision(&time, made),
        Event::Node(node) => {
            let place = format!("{} on replica {}", plain(&node.node), node.replica_id);
            let rest = match node.kind.as_str() {
                "rejected" => {
                    format!(" {}: {}", short_type(&node.type_url), plain(&node.message))
                }
                _ => format!(" from {}", node.peer),
            };
            vec![format!("{time}  node {place} {}{rest}", node.kind)]
        }
        Event::Member(member) => {
            let text = match (member.kind.as_str(), member.replica_id) {
                ("leader", 0) => "no leader is known".to_owned(),
                ("leader", id) => format!("replica {id} leads"),
                ("removed", id) => format!("replica {id} was removed"),
                ("added", id) => format!("replica {id} was added as {}", member.role),
                (_, id) => format!("replica {id} is now {}", member.role),
            };
            vec![format!("{time}  {text}")]
        }
        Event::Missed(missed) => {
            let n = match missed.count {
                0 => "events".to_owned(),
                n => count(n, "event"),
            };
            let reason = plain(&missed.reason);
            vec![format!("{time}  {n} of replica {} may be missing: {reason}", missed.replica_id)]
        }
    }
}

/// Returns the labels of a revision as text: that of its versions first.
pub(super) fn all_labels(entry: &pb::HistoryEntry) -> String {
    let pairs = Some(labels(&entry.labels)).filter(|_| !entry.labels.is_empty());
    let of_versions = Some(entry.label.clone()).filter(|label| !label.is_empty());
    of_versions.into_iter().chain(pairs).collect::<Vec<_>>().join(",")
}

fn of_revision(time: &str, made: &pb::RevisionEvent) -> Vec<String> {
    let entry = made.entry.clone().unwrap_or_default();
    let label = all_labels(&entry);
    let texts = [("by", &entry.author), ("label", &label), ("reason", &entry.reason)];
    let texts = texts.iter().filter(|(_, text)| !text.is_empty());
    let texts: Vec<String> =
        texts.map(|(what, text)| format!(", {what} {}", plain(text))).collect();
    let (revision, changed, removed) = (entry.revision, entry.changed, entry.removed);
    let head = format!(
        "{time}  revision {revision}: {changed} changed, {removed} removed{}",
        texts.concat()
    );
    let changes = made.changes.iter().map(|one| {
        let (scope, type_name) = (plain(&one.scope), short_type(&one.type_url));
        format!("  {scope} {type_name}: {} changed, {} removed", one.changed, one.removed)
    });
    [head].into_iter().chain(changes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_shown_in_lines() {
        let event = |event| pb::WatchEvent {
            revision: 3,
            time_ms: 1000,
            event: Some(event),
            position: None,
        };
        let change = pb::ScopeChange {
            scope: "edge".into(),
            type_url: chancery_model::types::CLUSTER.into(),
            changed: 1,
            removed: 2,
        };
        let entry = pb::HistoryEntry {
            revision: 3,
            author: "ann\u{1b}a".into(),
            changed: 1,
            removed: 2,
            ..Default::default()
        };
        let made =
            pb::RevisionEvent { entry: Some(entry), changes: vec![change], changes_known: true };
        assert_eq!(
            lines(&event(Event::Made(Box::new(made)))),
            [
                "1970-01-01T00:00:01Z  revision 3: 1 changed, 2 removed, by ann\\u{1b}a",
                "  edge cluster: 1 changed, 2 removed",
            ]
        );
        let node = pb::NodeEvent {
            kind: "rejected".into(),
            node: "n".into(),
            replica_id: 2,
            peer: "127.0.0.1:1".into(),
            type_url: chancery_model::types::LISTENER.into(),
            message: "bad port".into(),
        };
        assert_eq!(
            lines(&event(Event::Node(node))),
            ["1970-01-01T00:00:01Z  node n on replica 2 rejected listener: bad port"]
        );
        assert!(lines(&pb::WatchEvent::default()).is_empty());
    }
}
