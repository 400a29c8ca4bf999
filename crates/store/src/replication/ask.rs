//! Questions of this replica to all others.
//!
//! Invariants:
//! - A question takes at most its timeout, however many replicas are down or hang. A replica that did not answer
//!   in time gets less time for the questions of the next seconds.
//! - A replica that is down or hangs delays no question to another one.
//! - The answer of a replica takes at most the bytes that the limits allow, whatever the replica sends.
//! - Questions have their own connections, so that a long answer delays no heartbeat and no entry.

use std::{
    collections::BTreeMap,
    error::Error,
    io::{self, ErrorKind},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chancery_raft_proto::v1::{self as pb, ask_response::Result as Answered};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::{Code, Status};

use crate::replication::{
    calls::Calls,
    peers::{Client, Lane},
    question::{Answers, AskLimits, NoAnswer, QUESTION_BYTES_MAX, Question, Unanswered, shortened},
    raft_node::RaftNode,
};

/// The maximum number of concurrent questions to one replica. Further ones wait.
const ASKING_MAX: usize = 4;
/// The time for which a replica counts as silent after it did not answer in time.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// The maximum time for the answer of a silent replica.
const SILENT_TIMEOUT: Duration = Duration::from_millis(200);
/// The maximum number of pages of an answer. A page may be empty, so that the bytes do not limit it.
const PAGES_MAX: usize = 1000;
/// The maximum number of broken connections for one answer. A channel may report the same one twice.
const BROKEN_MAX: usize = 3;
/// The bytes by which a message exceeds the page in it.
const MESSAGE_BYTES_MORE: usize = 64 << 10;

/// Asks the other replicas.
pub(crate) struct Asker {
    node: Arc<RaftNode>,
    calls: Calls,
    /// The free places for questions to each replica.
    asking: Mutex<BTreeMap<u64, Arc<Semaphore>>>,
    /// The replicas that did not answer in time, each since when.
    silent: Mutex<BTreeMap<u64, Instant>>,
}

impl Asker {
    pub(crate) fn new(node: Arc<RaftNode>, calls: Calls) -> Self {
        Self { node, calls, asking: Mutex::default(), silent: Mutex::default() }
    }

    /// Asks all other members. Must be called on the runtime of the store.
    pub(crate) async fn ask_all(&self, question: &Question, limits: AskLimits) -> Answers {
        let membership = self.node.membership();
        let others = membership.nodes().filter(|(id, _)| **id != self.node.id());
        let others: Vec<(u64, String)> =
            others.map(|(id, peer)| (*id, peer.address.clone())).collect();
        self.forget_others(&others);
        let asked = others.into_iter().map(|(id, address)| async move {
            let answer = self.ask(id, &address, question, limits).await;
            (id, address, answer)
        });
        let mut answers = Answers::default();
        for (replica_id, address, answer) in join_all(asked).await {
            match answer {
                Ok(pages) => answers.answered.push((replica_id, pages)),
                Err(reason) => {
                    answers.unanswered.push(Unanswered { replica_id, address, reason });
                }
            }
        }
        answers
    }

    /// Forgets the replicas that are no longer members.
    fn forget_others(&self, members: &[(u64, String)]) {
        let is_member = |id: &u64| members.iter().any(|(member, _)| member == id);
        self.asking.lock().retain(|id, _| is_member(id));
        self.silent.lock().retain(|id, _| is_member(id));
    }

    /// Returns the pages of the answer of one replica.
    async fn ask(
        &self,
        id: u64,
        address: &str,
        question: &Question,
        limits: AskLimits,
    ) -> Result<Vec<Bytes>, NoAnswer> {
        if question.body.len() > QUESTION_BYTES_MAX {
            return Err(NoAnswer::TooLarge(QUESTION_BYTES_MAX));
        }
        let now = Instant::now();
        let is_silent = self.silent.lock().get(&id).is_some_and(|since| now < *since + SILENT_FOR);
        let timeout = if is_silent { limits.timeout.min(SILENT_TIMEOUT) } else { limits.timeout };
        let deadline = now + timeout;
        let places = Arc::clone(
            self.asking.lock().entry(id).or_insert_with(|| Arc::new(Semaphore::new(ASKING_MAX))),
        );
        let place = tokio::time::timeout_at(deadline.into(), places.acquire()).await;
        let Ok(_place) = place else { return Err(NoAnswer::NotSent) };
        let waited = now.elapsed();
        let client = self.calls.client(address, Lane::Questions);
        let client = client.map_err(|error| refusal(&error, limits))?;
        let client = client.max_decoding_message_size(limits.page_bytes_max + MESSAGE_BYTES_MORE);
        let limits = AskLimits { timeout, ..limits };
        let pages = self.pages(client, id, question, limits, deadline);
        let answer = tokio::time::timeout_at(deadline.into(), pages).await;
        let answer = answer.unwrap_or_else(|_| Err(NoAnswer::TimedOut(timeout)));
        let mut silent = self.silent.lock();
        match &answer {
            // The time was short, so that it says nothing about the replica.
            Err(NoAnswer::TimedOut(_)) if is_silent || waited > timeout / 2 => {}
            Err(NoAnswer::TimedOut(_)) => drop(silent.insert(id, Instant::now())),
            _ => drop(silent.remove(&id)),
        }
        answer
    }

    async fn pages(
        &self,
        mut client: Client,
        id: u64,
        question: &Question,
        limits: AskLimits,
        deadline: Instant,
    ) -> Result<Vec<Bytes>, NoAnswer> {
        let (mut pages, mut n_bytes, mut cursor) = (Vec::new(), 0, Bytes::new());
        let mut n_broken = 0;
        while pages.len() < PAGES_MAX {
            let left = deadline.saturating_duration_since(Instant::now()).as_millis();
            let request = pb::AskRequest {
                header: Some(self.calls.header(id)),
                kind: question.kind.to_owned(),
                question: question.body.clone(),
                revision: question.revision.0,
                timeout_ms: u32::try_from(left).unwrap_or(u32::MAX),
                cursor: cursor.clone(),
                bytes_max: limits.page_bytes_max as u64,
            };
            let answer = match client.ask(request).await {
                // The connection may have broken long ago, and the next one says how the replica is now.
                Err(status) if is_broken(&status) && n_broken < BROKEN_MAX => {
                    n_broken += 1;
                    continue;
                }
                answer => answer.map_err(|status| refusal(&status, limits))?,
            };
            let page = match answer.into_inner().result {
                Some(Answered::Page(page)) => page,
                Some(Answered::NoAnswer(reason)) => {
                    return Err(NoAnswer::from_proto(
                        reason,
                        limits.timeout,
                        limits.page_bytes_max,
                    ));
                }
                None => return Err(NoAnswer::Failed("the answer is empty".to_owned())),
            };
            n_bytes += page.answer.len();
            if n_bytes > limits.answer_bytes_max {
                return Err(NoAnswer::TooLarge(limits.answer_bytes_max));
            }
            pages.push(page.answer);
            if page.next.is_empty() {
                return Ok(pages);
            }
            cursor = page.next;
        }
        Err(NoAnswer::Failed(format!("the answer has more than {PAGES_MAX} pages")))
    }
}

/// Returns whether a call failed because its connection broke. A connection that was not possible has another error.
fn is_broken(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<hyper::Error>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Returns the reason for a call that failed.
fn refusal(status: &Status, limits: AskLimits) -> NoAnswer {
    match status.code() {
        Code::Unimplemented => NoAnswer::OldRelease,
        // The other replica answers this while it starts. The errors of connections have a source.
        Code::Unavailable if status.source().is_none() => NoAnswer::Starting,
        Code::Unavailable | Code::Unknown | Code::Cancelled => NoAnswer::Down(cause(status)),
        Code::FailedPrecondition | Code::InvalidArgument => {
            NoAnswer::Refused(shortened(status.message()))
        }
        // tonic decodes no message beyond the limit.
        Code::OutOfRange | Code::ResourceExhausted => NoAnswer::TooLarge(limits.page_bytes_max),
        _ => NoAnswer::Failed(shortened(status.message())),
    }
}

/// Returns the error of the operating system or of TLS behind a failed call.
fn cause(status: &Status) -> String {
    let mut source = status.source();
    while let Some(error) = source {
        match error.downcast_ref::<io::Error>() {
            Some(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::Other) => {
                return shortened(&error.to_string());
            }
            Some(error) => return error.kind().to_string(),
            None => source = error.source(),
        }
    }
    shortened(status.message())
}
