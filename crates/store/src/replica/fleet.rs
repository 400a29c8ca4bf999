//! Questions to the other replicas, and the answers to theirs.

use std::sync::{Arc, Weak};

use super::Replica;
use crate::{
    NoAnswer,
    replication::question::{Answerer, Answers, AskLimits, Question, Unanswered},
};

impl Replica {
    /// Asks all other members at the same time. Returns after the timeout at the latest. In a cluster of one, returns
    /// at once.
    pub async fn ask_all(&self, question: Question, limits: AskLimits) -> Answers {
        if self.n_members() < 2 {
            return Answers::default();
        }
        let core = Arc::clone(self.core());
        let asking = async move { core.asker.ask_all(&question, limits).await };
        match self.core().calls.runtime.spawn(asking).await {
            Ok(answers) => answers,
            // The replica is shut down.
            Err(error) => {
                let membership = self.core().node.membership();
                let others = membership.nodes().filter(|(id, _)| **id != self.core().id());
                let unanswered = others.map(|(id, peer)| Unanswered {
                    replica_id: *id,
                    address: peer.address.clone(),
                    reason: NoAnswer::Failed(error.to_string()),
                });
                Answers { answered: Vec::new(), unanswered: unanswered.collect() }
            }
        }
    }

    /// Lets `answerer` answer the questions of other replicas, on the runtime of the caller. Until then, and after
    /// `answerer` is dropped, others learn that this replica is starting.
    ///
    /// # Panics
    /// If the caller is on no runtime.
    pub fn answer_with(&self, answerer: Weak<dyn Answerer>) {
        self.core().answering.register(answerer, tokio::runtime::Handle::current());
    }
}
