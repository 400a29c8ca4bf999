//! Questions to the other replicas.

use std::sync::Arc;

use crate::{
    NoAnswer,
    replication::{
        core::Core,
        question::{Answers, AskLimits, Question, Unanswered},
    },
};

/// Asks all other members at the same time. Returns after the timeout at the latest. In a cluster of one, returns
/// at once.
pub(super) async fn ask_all(core: &Arc<Core>, question: Question, limits: AskLimits) -> Answers {
    if core.node.membership().nodes().count() < 2 {
        return Answers::default();
    }
    let shared = Arc::clone(core);
    let asking = async move { shared.asker.ask_all(&question, limits).await };
    match core.calls.runtime.spawn(asking).await {
        Ok(answers) => answers,
        // The replica is shut down.
        Err(error) => {
            let membership = core.node.membership();
            let others = membership.nodes().filter(|(id, _)| **id != core.id());
            let unanswered = others.map(|(id, peer)| Unanswered {
                replica_id: *id,
                address: peer.address.clone(),
                reason: NoAnswer::Failed(error.to_string()),
            });
            Answers { answered: Vec::new(), unanswered: unanswered.collect() }
        }
    }
}
