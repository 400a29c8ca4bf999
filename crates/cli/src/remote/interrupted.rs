//! The outcome of a write that a signal interrupted.

use std::time::Duration;

use chancery_admin_proto::v1 as pb;
use chancery_store::RequestId;
use serde_json::json;

use super::client::Servers;
use crate::{
    answer::{Answer, Output},
    failure::Failure,
    progress::{Progress, Stopped},
};

/// The maximum time to ask whether the write took effect.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// The end of an attempt to write.
pub(super) enum Sent {
    Answered(Box<pb::WriteResponse>),
    Interrupted(Interrupted),
}

/// The known outcome of a write that a signal interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interrupted {
    stopped: Stopped,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// No server received a write.
    NotWritten,
    /// The revision of the write.
    Written(u64),
    /// A server may have received the write, and the history does not have it yet.
    Unknown(RequestId),
}

/// Asks for the outcome of a write. `sent` is its request ID, if a server may have received the write. A second signal
/// ends the question.
pub(super) async fn find(
    servers: &Servers,
    progress: &mut Progress,
    stopped: Stopped,
    sent: Option<RequestId>,
) -> Interrupted {
    let outcome = match sent {
        None => Outcome::NotWritten,
        Some(id) => {
            let revision = tokio::select! {
                revision = tokio::time::timeout(ASK_TIMEOUT, revision_of(servers, id)) => revision.ok().flatten(),
                _ = progress.signal() => None,
            };
            revision.map_or(Outcome::Unknown(id), Outcome::Written)
        }
    };
    Interrupted { stopped, outcome }
}

/// Returns the revision that a request made, if the history has it.
async fn revision_of(servers: &Servers, id: RequestId) -> Option<u64> {
    let mut client = servers.connect_any().await.ok()?;
    let request_id = id.to_string();
    let request = pb::ListHistoryRequest {
        limit: 1,
        request_id: request_id.clone(),
        ..pb::ListHistoryRequest::default()
    };
    let list = client.list_history(request).await.ok()?.into_inner();
    // A server of an older release does not know the selection, and returns the newest revision.
    let is_selected = list.request_id == request_id;
    list.entries.first().filter(|_| is_selected).map(|entry| entry.revision)
}

/// Returns the failure of a command that was interrupted before it wrote.
pub(super) fn not_written(stopped: Stopped) -> Failure {
    Interrupted { stopped, outcome: Outcome::NotWritten }.failure()
}

impl Interrupted {
    /// Shows the revision, if it is known. Returns the failure of the command.
    pub(super) fn show(self, answer: &mut Answer<'_>) -> Result<(), Failure> {
        if let Outcome::Written(revision) = self.outcome {
            match answer.output {
                Output::Text | Output::Wide => {
                    answer.text(|out| writeln!(out, "written as revision {revision}"))?;
                }
                Output::Json | Output::Sarif => {
                    answer.json(&json!({"revision": revision, "interrupted": true}))?;
                }
                Output::Yaml => answer.yaml(&json!({"revision": revision, "interrupted": true}))?,
            }
        }
        Err(self.failure())
    }

    /// Returns the failure of the command.
    pub(super) fn failure(self) -> Failure {
        let lines = match self.outcome {
            Outcome::NotWritten => vec!["interrupted: not written".to_owned()],
            Outcome::Written(revision) => {
                vec![format!(
                    "interrupted: written as revision {revision}; `chancery wait {revision}` waits for its sessions"
                )]
            }
            Outcome::Unknown(id) => vec![
                "interrupted: the outcome is unknown; the write may have taken effect, or may still take effect"
                    .to_owned(),
                format!(
                    "to retry safely, run the same command with --request-id {id}: the write takes effect once; \
                     `chancery history --request-id {id}` shows whether it did"
                ),
            ],
        };
        self.stopped.failure(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn interrupted_write_says_what_is_known_about_it() {
        let id = RequestId([7; 16]);
        let said = |stopped, outcome| {
            let failure = Interrupted { stopped, outcome }.failure();
            (failure.exit, failure.lines.join("\n"))
        };
        let (exit, text) = said(Stopped::Interrupted, Outcome::NotWritten);
        assert_eq!((exit, text.as_str()), (Exit::Interrupted, "interrupted: not written"));
        let (_, text) = said(Stopped::Interrupted, Outcome::Written(42));
        assert!(text.starts_with("interrupted: written as revision 42;"), "{text}");
        let (exit, text) = said(Stopped::Terminated, Outcome::Unknown(id));
        assert_eq!(exit, Exit::Failed);
        assert!(text.contains(&format!("--request-id {id}")), "{text}");
    }
}
