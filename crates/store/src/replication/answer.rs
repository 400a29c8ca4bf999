//! Answers to the questions of other replicas.
//!
//! Invariants:
//! - Raft's runtime only waits for an answer. Another runtime computes it.
//! - At most [`ANSWERING_MAX`] answers are computed at a time, even if the callers have left.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use chancery_model::{Revision, State};
use chancery_raft_proto::v1::{self as pb, ask_response::Result as Answered};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
    time::timeout_at,
};

use crate::replication::question::{AnswerPage, Answerer, Asked, NoAnswer, QUESTION_BYTES_MAX};

/// The maximum number of answers that are computed at a time.
const ANSWERING_MAX: usize = 4;
/// The maximum number of questions, including those that wait. Further ones are refused.
const QUESTIONS_MAX: usize = 64;
/// The maximum time for an answer, whatever the caller allows.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// Computes answers on the runtime of the answerer.
pub(crate) struct Answering {
    /// The answerer and its runtime; `None` before the replica serves clients.
    answerer: Mutex<Option<(Weak<dyn Answerer>, Handle)>>,
    questions: Semaphore,
    answers: Arc<Semaphore>,
}

impl Default for Answering {
    fn default() -> Self {
        Self {
            answerer: Mutex::default(),
            questions: Semaphore::new(QUESTIONS_MAX),
            answers: Arc::new(Semaphore::new(ANSWERING_MAX)),
        }
    }
}

impl Answering {
    /// Sets the answerer, and the runtime on which it answers.
    pub(crate) fn register(&self, answerer: Weak<dyn Answerer>, runtime: Handle) {
        *self.answerer.lock() = Some((answerer, runtime));
    }

    /// Returns one page of an answer, or the reason for its absence.
    pub(crate) async fn answer(
        &self,
        question: pb::AskRequest,
        states: watch::Receiver<Arc<State>>,
    ) -> pb::AskResponse {
        let bytes_max = usize::try_from(question.bytes_max).unwrap_or(usize::MAX);
        let result = match self.page(question, states, bytes_max).await {
            Ok(page) if page.body.len() > bytes_max => {
                Answered::NoAnswer(NoAnswer::TooLarge(bytes_max).to_proto())
            }
            Ok(AnswerPage { body, next }) => Answered::Page(pb::AnswerPage { answer: body, next }),
            Err(reason) => Answered::NoAnswer(reason.to_proto()),
        };
        pb::AskResponse { result: Some(result) }
    }

    async fn page(
        &self,
        question: pb::AskRequest,
        mut states: watch::Receiver<Arc<State>>,
        bytes_max: usize,
    ) -> Result<AnswerPage, NoAnswer> {
        let pb::AskRequest { kind, question: body, revision, timeout_ms, cursor, .. } = question;
        if body.len() > QUESTION_BYTES_MAX {
            return Err(NoAnswer::TooLarge(QUESTION_BYTES_MAX));
        }
        let known = self.answerer.lock().clone();
        let (answerer, runtime) = known.ok_or(NoAnswer::Starting)?;
        let answerer = answerer.upgrade().ok_or(NoAnswer::Starting)?;
        let _place = self.questions.try_acquire().map_err(|_| NoAnswer::Busy)?;
        let timeout = Duration::from_millis(timeout_ms.into()).min(TIMEOUT_MAX);
        let now = Instant::now();
        let deadline = now + timeout;
        // The rest of the time is for the answer, or for the reason to arrive.
        let state = applied(&mut states, Revision(revision), now + timeout / 2).await?;
        let permit = timeout_at(deadline.into(), Arc::clone(&self.answers).acquire_owned()).await;
        let permit = permit.ok().and_then(Result::ok).ok_or(NoAnswer::Busy)?;
        let answer = answerer.answer(Asked { kind, body, cursor, bytes_max, state });
        let computing = runtime.spawn(async move {
            let answer = tokio::time::timeout(TIMEOUT_MAX, answer).await;
            drop(permit);
            answer.unwrap_or(Err(NoAnswer::TimedOut(TIMEOUT_MAX)))
        });
        match timeout_at(deadline.into(), computing).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(NoAnswer::Failed("the computation has ended".to_owned())),
            Err(_) => Err(NoAnswer::TimedOut(timeout)),
        }
    }
}

/// Returns the newest state once it includes a revision.
async fn applied(
    states: &mut watch::Receiver<Arc<State>>,
    revision: Revision,
    deadline: Instant,
) -> Result<Arc<State>, NoAnswer> {
    let includes = |state: &Arc<State>| state.revision >= revision;
    let state = timeout_at(deadline.into(), states.wait_for(includes)).await;
    let state = state.ok().and_then(Result::ok).map(|state| Arc::clone(&state));
    state.ok_or_else(|| NoAnswer::Behind(states.borrow().revision))
}

/// Returns the response of a replica whose state is wrong.
pub(crate) fn diverged(reason: &str) -> pb::AskResponse {
    let reason = NoAnswer::Diverged(reason.to_owned()).to_proto();
    pb::AskResponse { result: Some(Answered::NoAnswer(reason)) }
}
