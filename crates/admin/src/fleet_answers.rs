//! The answers of this replica to the questions of others about its clients.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_fanout::Fanout;
use chancery_model::State;
use chancery_proto::csds::ClientStatusRequest;
use chancery_raft_proto::v1::{
    ClientEventsQuestion, FindNode, NodeSurveyQuestion, OperationQuestion, UsedAssignmentsQuestion,
    WaitQuestion,
};
use chancery_store::{AnswerPage, Answerer, Asked, NoAnswer};
use futures::{FutureExt, future::BoxFuture};
use prost::Message;
use tokio::time::Instant;

use crate::{
    access_effects::{AccessEffects, access_effects},
    collection_requests,
    deps::Deps,
    fleet::{self, FleetRequest, OPERATION},
    fleet_messages::{
        self, CLIENTS, COLLECTIONS, WRITE_EFFECTS, WriteEffects, WriteEffectsQuestion,
        encode_clients,
    },
    node_groups::{Client, connected_nodes},
};

/// Answers other replicas. The store limits the number of concurrent answers.
struct FleetAnswers {
    fanout: Fanout,
    /// The parts with which operations work. They own the answerer.
    deps: Weak<Deps>,
}

/// Returns what answers other replicas about the streams of `fanout`.
pub(crate) fn answerer(fanout: &Fanout, deps: &Weak<Deps>) -> Arc<dyn Answerer> {
    Arc::new(FleetAnswers { fanout: fanout.clone(), deps: Weak::clone(deps) })
}

impl Answerer for FleetAnswers {
    fn answer(&self, asked: Asked) -> BoxFuture<'static, Result<AnswerPage, NoAnswer>> {
        let (fanout, deps) = (self.fanout.clone(), self.deps.clone());
        let answer = async move {
            let body = match asked.kind.as_str() {
                WRITE_EFFECTS => write_effects(&fanout, asked.body, asked.state).await?,
                CLIENTS => clients_by_scope(&deps).await?,
                COLLECTIONS => collection_requests(&fanout, asked.body).await?,
                OPERATION => operation(&deps, asked.body).await?,
                _ => return Err(NoAnswer::OldRelease),
            };
            Ok(AnswerPage { body, next: Bytes::new() })
        };
        answer.boxed()
    }
}

/// Runs an operation for another replica.
async fn operation(deps: &Weak<Deps>, question: Bytes) -> Result<Bytes, NoAnswer> {
    let deps = deps.upgrade().ok_or(NoAnswer::Starting)?;
    let question = OperationQuestion::decode(question).map_err(fleet_messages::invalid)?;
    match question.request_type.as_str() {
        pb::DescribeResourceRequest::NAME => {
            fleet::answer::<pb::DescribeResourceRequest>(&deps, question).await
        }
        pb::ExplainRequest::NAME => fleet::answer::<pb::ExplainRequest>(&deps, question).await,
        pb::GetLoadRequest::NAME => fleet::answer::<pb::GetLoadRequest>(&deps, question).await,
        pb::GetMcpStatusRequest::NAME => {
            fleet::answer::<pb::GetMcpStatusRequest>(&deps, question).await
        }
        pb::GetNodeRequest::NAME => fleet::answer::<pb::GetNodeRequest>(&deps, question).await,
        pb::ListNodesRequest::NAME => fleet::answer::<pb::ListNodesRequest>(&deps, question).await,
        pb::DisconnectNodeRequest::NAME => {
            fleet::answer::<pb::DisconnectNodeRequest>(&deps, question).await
        }
        pb::DrainReplicaRequest::NAME => {
            fleet::answer::<pb::DrainReplicaRequest>(&deps, question).await
        }
        pb::UndrainReplicaRequest::NAME => {
            fleet::answer::<pb::UndrainReplicaRequest>(&deps, question).await
        }
        pb::ListFreezesRequest::NAME => {
            fleet::answer::<pb::ListFreezesRequest>(&deps, question).await
        }
        UsedAssignmentsQuestion::NAME => {
            fleet::answer::<UsedAssignmentsQuestion>(&deps, question).await
        }
        pb::ResolveRequest::NAME => fleet::answer::<pb::ResolveRequest>(&deps, question).await,
        NodeSurveyQuestion::NAME => fleet::answer::<NodeSurveyQuestion>(&deps, question).await,
        FindNode::NAME => fleet::answer::<FindNode>(&deps, question).await,
        ClientEventsQuestion::NAME => fleet::answer::<ClientEventsQuestion>(&deps, question).await,
        WaitQuestion::NAME => fleet::answer::<WaitQuestion>(&deps, question).await,
        ClientStatusRequest::NAME => fleet::answer::<ClientStatusRequest>(&deps, question).await,
        _ => Err(NoAnswer::OldRelease),
    }
}

async fn write_effects(
    fanout: &Fanout,
    body: Bytes,
    before: Arc<State>,
) -> Result<Bytes, NoAnswer> {
    let question = WriteEffectsQuestion::decode(body)?;
    let before = of_nodes(before);
    let since = Instant::now();
    let clients = clients(fanout).await;
    check_complete(fanout, since)?;
    let compute = move || {
        let after = before.apply(&question.rules).state;
        effects_on(&clients, &before, &after, &question).encode()
    };
    // The number of clients and of assignments may be large.
    let computed = tokio::task::spawn_blocking(compute).await;
    computed.map_err(|error| NoAnswer::Failed(error.to_string()))
}

/// Returns the state by which nodes have their scopes: freezes of all scopes hold the assignments, too.
pub(crate) fn of_nodes(state: Arc<State>) -> Arc<State> {
    if state.freezes.is_empty() { state } else { Arc::new(state.served()) }
}

/// Fails if a query since a time may have left out streams.
fn check_complete(fanout: &Fanout, since: Instant) -> Result<(), NoAnswer> {
    match fanout.stalled_since(since).first() {
        None => Ok(()),
        Some(stalled) => Err(NoAnswer::Failed(stalled.to_string())),
    }
}

/// Returns the effects of the changed rules of a write on clients.
pub(crate) fn effects_on(
    clients: &[Client],
    before: &State,
    after: &State,
    question: &WriteEffectsQuestion,
) -> WriteEffects {
    let access = if question.access_effects {
        access_effects(clients, before, after)
    } else {
        AccessEffects::new()
    };
    let nodes = connected_nodes(clients, before, after, &question.touched);
    WriteEffects { nodes, n_omitted: 0, access }
}

/// Returns the clients of all streams of this replica.
pub(crate) async fn clients(fanout: &Fanout) -> Vec<Client> {
    let mut clients = Vec::new();
    // The status of a stream is much larger than what is kept of it.
    fanout.for_each_stream(|stream| clients.push(Client::of(&stream))).await;
    clients
}

async fn clients_by_scope(deps: &Weak<Deps>) -> Result<Bytes, NoAnswer> {
    let deps = deps.upgrade().ok_or(NoAnswer::Starting)?;
    let since = Instant::now();
    let clients = deps.clients.here_now(&deps.fanout).await;
    // A shard that does not turn has not placed its newest streams, and one that has ended has no groups.
    check_complete(&deps.fanout, since)?;
    let computed = tokio::task::spawn_blocking(move || encode_clients(&clients)).await;
    computed.map_err(|error| NoAnswer::Failed(error.to_string()))
}

async fn collection_requests(fanout: &Fanout, question: Bytes) -> Result<Bytes, NoAnswer> {
    let since = Instant::now();
    let answer = collection_requests::answer(fanout, question).await?;
    check_complete(fanout, since)?;
    Ok(answer)
}
