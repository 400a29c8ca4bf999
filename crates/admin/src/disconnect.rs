//! The end of all streams of a node, on all replicas.

use std::time::Duration;

use bytes::Bytes;
use chancery_admin_proto::v1 as pb;
use chancery_fanout::{End, EndCode, Fanout};
use chancery_model::Revision;
use chancery_raft_proto::v1 as pb_raft;
use chancery_store::{AskLimits, NoAnswer, Question};
use prost::Message;

use crate::{
    AdminError,
    ctx::Ctx,
    fleet_messages::{failed, not_asked},
    record::Operation,
};

/// The kind of the question that ends streams.
pub(crate) const DISCONNECT: &str = "disconnect";

/// The maximum length of the ID of a node.
const NODE_BYTES_MAX: usize = 4096;

const LIMITS: AskLimits = AskLimits {
    timeout: Duration::from_secs(5),
    page_bytes_max: 4 << 10,
    answer_bytes_max: 4 << 10,
};

/// The text for the client.
const TEXT: &str = "an operator disconnected this node; reconnect";

/// Returns the record of a request.
pub(crate) fn record(request: &pb::DisconnectNodeRequest) -> Operation {
    Operation::new("node.disconnect").target("node", request.node.clone())
}

/// Ends all streams of a node.
pub(crate) async fn disconnect_node(
    ctx: &Ctx,
    request: pb::DisconnectNodeRequest,
) -> Result<pb::DisconnectNodeResponse, AdminError> {
    let node = request.node;
    if node.is_empty() || node.len() > NODE_BYTES_MAX {
        let text = format!(
            "the ID of the node has {} bytes; it must have 1 to {NODE_BYTES_MAX}",
            node.len()
        );
        return Err(AdminError::Parameter(text));
    }
    let question = pb_raft::DisconnectQuestion { node: node.clone() };
    let body = question.encode_to_vec().into();
    let asked = Question { kind: DISCONNECT, body, revision: Revision(0) };
    let (here, answers) =
        tokio::join!(disconnect(&ctx.deps.fanout, &node), ctx.deps.replica.ask_all(asked, LIMITS));
    let mut missing: Vec<_> = answers.unanswered.iter().map(not_asked).collect();
    let mut all = vec![(ctx.deps.replica.status().replica_id, here)];
    for (replica_id, pages) in answers.answered {
        match pages.into_iter().next().map(pb_raft::DisconnectAnswer::decode) {
            Some(Ok(answer)) => all.push((replica_id, answer.streams)),
            Some(Err(error)) => {
                missing.push(failed(replica_id, &NoAnswer::Failed(error.to_string())))
            }
            None => {
                missing.push(failed(replica_id, &NoAnswer::Failed("an empty answer".to_owned())))
            }
        }
    }
    all.retain(|(_, streams)| *streams > 0);
    all.sort_unstable();
    if all.is_empty() && missing.is_empty() {
        return Err(AdminError::NotFound(format!("node {node:?} is not connected to any replica")));
    }
    let replicas = all.into_iter();
    let replicas =
        replicas.map(|(replica_id, streams)| pb::DisconnectedStreams { replica_id, streams });
    Ok(pb::DisconnectNodeResponse { replicas: replicas.collect(), not_asked: missing })
}

/// Answers the question of another replica.
pub(crate) async fn answer(fanout: &Fanout, question: Bytes) -> Result<Bytes, NoAnswer> {
    let question = pb_raft::DisconnectQuestion::decode(question)
        .map_err(|error| NoAnswer::Failed(error.to_string()))?;
    let streams = disconnect(fanout, &question.node).await;
    Ok(pb_raft::DisconnectAnswer { streams }.encode_to_vec().into())
}

/// Ends the streams of a node on this replica. Returns their number.
async fn disconnect(fanout: &Fanout, node: &str) -> u64 {
    let mut n = 0;
    fanout
        .for_each_stream(|status| {
            if status.node.id == node {
                n += 1;
                status.stream.end(End::new(EndCode::Unavailable, TEXT));
            }
        })
        .await;
    if n > 0 {
        tracing::info!(node, streams = n, "an operator ended the streams of a node");
    }
    n
}
