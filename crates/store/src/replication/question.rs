//! Questions to other replicas, and the reasons why a replica does not answer.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_model::{Revision, State};
use chancery_raft_proto::v1 as pb;
use futures::future::BoxFuture;
use pb::no_answer::Reason;

/// The maximum length of a question in bytes.
pub(crate) const QUESTION_BYTES_MAX: usize = 8 << 20;
/// The maximum length of the text of a failure from another replica, in characters.
const TEXT_CHARS_MAX: usize = 300;

/// A question to other replicas about what only they know, such as their clients. The store does not know the
/// contents of questions and answers.
#[derive(Debug, Clone)]
pub struct Question {
    /// The kind of question, by which the other replica selects the code that answers.
    pub kind: &'static str,
    /// The content.
    pub body: Bytes,
    /// The revision that a replica must have applied before it answers.
    pub revision: Revision,
}

/// The limits of the answers to a question.
#[derive(Debug, Clone, Copy)]
pub struct AskLimits {
    /// The maximum time for all pages of an answer. All replicas answer at the same time.
    pub timeout: Duration,
    /// The maximum length of one page in bytes.
    pub page_bytes_max: usize,
    /// The maximum length of the whole answer of one replica in bytes.
    pub answer_bytes_max: usize,
}

/// The answers of the other replicas.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// The replicas that have answered, by ID, with the pages of their answers.
    pub answered: Vec<(u64, Vec<Bytes>)>,
    /// The replicas that have not.
    pub unanswered: Vec<Unanswered>,
}

/// A replica that has not answered a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// The ID of the replica.
    pub replica_id: u64,
    /// The address of its replication port.
    pub address: String,
    /// The reason why there is no answer.
    pub reason: NoAnswer,
}

/// The reason why a replica has not answered, as a phrase that follows "replica 3".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No connection is possible.
    #[error("cannot be reached: {0}")]
    Down(String),
    /// The replica starts, and serves no clients yet.
    #[error("is starting")]
    Starting,
    /// There was no answer in time.
    #[error("did not answer within {0:?}")]
    TimedOut(Duration),
    /// The release of the replica does not know the question.
    #[error("runs a release that does not know the question")]
    OldRelease,
    /// The replica has not applied the revision in time. It has applied this one.
    #[error("is behind, at revision {0}")]
    Behind(Revision),
    /// The replica answers the maximum number of questions.
    #[error("answers too many other questions")]
    Busy,
    /// This replica has the maximum number of questions to the replica.
    #[error("was not asked in time, because this replica waits for its answers to other questions")]
    NotSent,
    /// The question or the answer is longer than this number of bytes.
    #[error("cannot answer within the limit of {0} bytes")]
    TooLarge(usize),
    /// The state of the replica differs from that of the cluster.
    #[error("has stopped: {0}")]
    Diverged(String),
    /// The replica refuses calls of this one.
    #[error("refuses the question: {0}")]
    Refused(String),
    /// The answer could not be computed or understood.
    #[error("failed to answer: {0}")]
    Failed(String),
}

/// Answers the questions of other replicas.
pub trait Answerer: Send + Sync {
    /// Returns one page of an answer, or the reason for its absence. Runs on the runtime that was registered with
    /// the answerer. An unknown kind of question is [`NoAnswer::OldRelease`].
    fn answer(&self, asked: Asked) -> BoxFuture<'static, Result<AnswerPage, NoAnswer>>;
}

/// A question of another replica.
pub struct Asked {
    /// The kind of question.
    pub kind: String,
    /// The content.
    pub body: Bytes,
    /// The place at which the page begins: [`AnswerPage::next`] of the page before it, or empty.
    pub cursor: Bytes,
    /// The maximum length of the page in bytes.
    pub bytes_max: usize,
    /// The newest state of this replica. It includes the revision that the caller requires.
    pub state: Arc<State>,
}

/// A page of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerPage {
    /// The content.
    pub body: Bytes,
    /// The place at which the next page begins; empty after the last page.
    pub next: Bytes,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("kind", &self.kind).finish_non_exhaustive()
    }
}

// === impl NoAnswer ===

impl NoAnswer {
    /// Returns the word for the reason in answers to programs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Down(_) => "down",
            Self::Starting => "starting",
            Self::TimedOut(_) => "timed-out",
            Self::OldRelease => "old-release",
            Self::Behind(_) => "behind",
            Self::Busy | Self::NotSent => "busy",
            Self::TooLarge(_) => "too-large",
            Self::Diverged(_) => "diverged",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }

    pub(crate) fn to_proto(&self) -> pb::NoAnswer {
        let (mut message, mut revision) = (String::new(), 0);
        let reason = match self {
            Self::Starting => Reason::Starting,
            Self::OldRelease => Reason::UnknownQuestion,
            Self::Behind(at) => {
                revision = at.0;
                Reason::Behind
            }
            Self::Busy => Reason::Busy,
            Self::TooLarge(_) => Reason::TooLarge,
            Self::Diverged(text) => {
                message.clone_from(text);
                Reason::Diverged
            }
            Self::TimedOut(_) => {
                message = self.to_string();
                Reason::TimedOut
            }
            Self::Down(_) | Self::NotSent | Self::Refused(_) | Self::Failed(_) => {
                message = self.to_string();
                Reason::Failed
            }
        };
        pb::NoAnswer { reason: reason.into(), message, revision }
    }

    /// Converts the reason of another replica, which had `timeout` for an answer of at most `bytes_max` bytes.
    pub(crate) fn from_proto(message: pb::NoAnswer, timeout: Duration, bytes_max: usize) -> Self {
        match message.reason() {
            Reason::UnknownQuestion => Self::OldRelease,
            Reason::Behind => Self::Behind(Revision(message.revision)),
            Reason::Busy => Self::Busy,
            Reason::TooLarge => Self::TooLarge(bytes_max),
            Reason::Diverged => Self::Diverged(shortened(&message.message)),
            Reason::Starting => Self::Starting,
            Reason::TimedOut => Self::TimedOut(timeout),
            Reason::Failed | Reason::Unspecified => Self::Failed(shortened(&message.message)),
        }
    }
}

/// Returns the beginning of a text from another replica.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason of a callee that ran out of time was "failed", which looks like a fault.
    #[test]
    fn reason_for_no_answer_survives_encoding() {
        let timeout = Duration::from_millis(200);
        for reason in [
            NoAnswer::Starting,
            NoAnswer::OldRelease,
            NoAnswer::Busy,
            NoAnswer::TimedOut(Duration::from_millis(199)),
            NoAnswer::Behind(Revision(7)),
            NoAnswer::TooLarge(3),
            NoAnswer::Diverged("x".to_owned()),
            NoAnswer::Failed("x".to_owned()),
        ] {
            let received = NoAnswer::from_proto(reason.to_proto(), timeout, 5);
            assert_eq!(received.word(), reason.word());
        }
    }
}
