//! Operations that every replica runs on its own clients, for the answer of one.
//!
//! The replica that a caller asks forwards the request with the identity of the caller. The others check the rights
//! again, and answer about their own clients. Each operation merges the replies.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb_admin;
use chancery_model::{Identity, Principal, TokenDigest};
use chancery_raft_proto::v1 as pb;
use chancery_store::{AskLimits, NoAnswer, Question};
use prost::Message;

use crate::{
    AdminError,
    caller::Caller,
    ctx::{Call, Ctx, Needs, WriteNotes},
    deps::Deps,
    fleet_messages::{failed, invalid, not_asked},
};

/// The kind of the question.
pub(crate) const OPERATION: &str = "operation";

/// The limits of the answers. A caller waits for them for at most `timeout`.
const LIMITS: AskLimits = AskLimits {
    timeout: Duration::from_secs(2),
    page_bytes_max: 20 << 20,
    answer_bytes_max: 20 << 20,
};

/// A request that every replica answers about its own clients.
pub(crate) trait FleetRequest: Needs + Message + Default {
    /// The full name of the message.
    const NAME: &'static str;
    /// The answer about the clients of one replica.
    type Reply: Message + Default;

    /// Returns the answer about the clients of this replica to another one. A missing object is
    /// [`AdminError::NotFound`].
    fn answer_here(self, ctx: &Ctx)
    -> impl Future<Output = Result<Self::Reply, AdminError>> + Send;
}

/// The answers of the other replicas.
#[derive(Debug)]
pub(crate) struct Elsewhere<T> {
    /// The replies by replica. A replica without the object of the request has none.
    pub(crate) replies: Vec<(u64, T)>,
    /// The replicas that have answered, with or without a reply.
    pub(crate) answered: Vec<u64>,
    /// The replicas that have not answered, each with the reason.
    pub(crate) not_asked: Vec<pb_admin::ReplicaNotAsked>,
    /// The number of these, and of those that a request for one replica does not ask.
    pub(crate) n_not_asked: u64,
}

impl<T> Elsewhere<T> {
    /// Returns the answers to a request that asks no other replica.
    pub(crate) fn unasked(deps: &Deps) -> Self {
        let n_not_asked = deps.replica.n_members().saturating_sub(1) as u64;
        Self { replies: Vec::new(), answered: Vec::new(), not_asked: Vec::new(), n_not_asked }
    }

    /// Returns the number of replicas that have answered.
    pub(crate) fn n_answered(&self) -> u64 {
        self.answered.len() as u64
    }

    /// Iterates over the replies.
    pub(crate) fn into_replies(self) -> impl Iterator<Item = T> {
        self.replies.into_iter().map(|(_, reply)| reply)
    }
}

/// Asks all other replicas, unless the request is for this one.
pub(crate) async fn ask_unless<R: FleetRequest>(
    is_local: bool,
    ctx: &Ctx,
    request: &R,
) -> Elsewhere<R::Reply> {
    if is_local { Elsewhere::unasked(&ctx.deps) } else { ask(ctx, request).await }
}

/// Asks all other replicas.
pub(crate) async fn ask<R: FleetRequest>(ctx: &Ctx, request: &R) -> Elsewhere<R::Reply> {
    let identity = &ctx.caller().identity;
    let body = pb::OperationQuestion {
        request_type: R::NAME.to_owned(),
        request: request.encode_to_vec().into(),
        principal: identity.principal.to_string(),
        token_digest: identity.token.map(|digest| digest.0.to_vec()).unwrap_or_default().into(),
    };
    let revision = ctx.deps.replica.state().revision;
    let question = Question { kind: OPERATION, body: body.encode_to_vec().into(), revision };
    let answers = ctx.deps.replica.ask_all(question, LIMITS).await;
    let mut replies = Vec::new();
    let mut missing: Vec<_> = answers.unanswered.iter().map(not_asked).collect();
    let mut answered = Vec::new();
    for (replica_id, pages) in answers.answered {
        match decode::<R::Reply>(pages) {
            Ok(reply) => {
                answered.push(replica_id);
                replies.extend(reply.map(|reply| (replica_id, reply)));
            }
            Err(reason) => missing.push(failed(replica_id, &reason)),
        }
    }
    replies.sort_by_key(|(replica_id, _)| *replica_id);
    missing.sort_by_key(|replica| replica.replica_id);
    Elsewhere { replies, answered, n_not_asked: missing.len() as u64, not_asked: missing }
}

/// Decodes an answer. Returns `None` if the replica does not have the object of the request.
fn decode<T: Message + Default>(pages: Vec<Bytes>) -> Result<Option<T>, NoAnswer> {
    let page = pages.into_iter().next().unwrap_or_default();
    let answer = pb::OperationAnswer::decode(page).map_err(invalid)?;
    if answer.not_found {
        return Ok(None);
    }
    T::decode(answer.reply).map(Some).map_err(invalid)
}

/// Runs an operation for another replica.
pub(crate) async fn answer<R: FleetRequest>(
    deps: &Arc<Deps>,
    question: pb::OperationQuestion,
) -> Result<Bytes, NoAnswer> {
    let request = R::decode(question.request).map_err(invalid)?;
    let caller = caller(deps, &question.principal, &question.token_digest)?;
    let call = Call::new(Arc::clone(deps), caller);
    let ctx = call.permit(R::NEEDS, WriteNotes::default());
    let reply = match ctx {
        Ok(ctx) => request.answer_here(&ctx).await,
        Err(error) => Err(error),
    };
    let answer = match reply {
        Ok(reply) => pb::OperationAnswer { reply: reply.encode_to_vec().into(), not_found: false },
        Err(AdminError::NotFound(_)) => {
            pb::OperationAnswer { reply: Bytes::new(), not_found: true }
        }
        Err(error) => return Err(NoAnswer::Failed(error.to_string())),
    };
    Ok(answer.encode_to_vec().into())
}

/// Returns the caller that another replica has authenticated, with its rights on this one.
fn caller(deps: &Deps, principal: &str, token_digest: &[u8]) -> Result<Caller, NoAnswer> {
    let principal = Principal::new(principal).map_err(invalid)?;
    let token = match token_digest {
        [] => None,
        digest => Some(TokenDigest(digest.try_into().map_err(invalid)?)),
    };
    let rights = deps.access.rights_of(&principal);
    Ok(Caller { identity: Identity { principal, token }, rights, ends_at: None })
}
