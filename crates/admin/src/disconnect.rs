//! The end of all streams of a node, on all replicas.

use std::sync::Arc;

use chancery_admin_proto::v1 as pb;
use chancery_fanout::{End, EndCode};

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    record::Operation,
};

/// The maximum length of the ID of a node.
const NODE_BYTES_MAX: usize = 4096;

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
    let n_bytes = request.node.len();
    if !(1..=NODE_BYTES_MAX).contains(&n_bytes) {
        let text = format!(
            "the ID of the node has {n_bytes} bytes; it must have 1 to {NODE_BYTES_MAX} bytes"
        );
        return Err(AdminError::Parameter(text));
    }
    let (mut all, there) =
        tokio::join!(disconnect_here(ctx, &request.node), fleet::ask(ctx, &request));
    all.not_asked = there.not_asked.clone();
    all.replicas.extend(there.into_replies().flat_map(|reply| reply.replicas));
    if all.replicas.is_empty() && all.not_asked.is_empty() {
        let text = format!("node {:?} is not connected to any replica", request.node);
        return Err(AdminError::NotFound(text));
    }
    all.replicas.sort_by_key(|one| one.replica_id);
    Ok(all)
}

impl FleetRequest for pb::DisconnectNodeRequest {
    const NAME: &'static str = "chancery.admin.v1.DisconnectNodeRequest";
    type Reply = pb::DisconnectNodeResponse;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::DisconnectNodeResponse, AdminError> {
        Ok(disconnect_here(ctx, &self.node).await)
    }
}

/// Ends the streams of a node on this replica.
async fn disconnect_here(ctx: &Ctx, node: &str) -> pb::DisconnectNodeResponse {
    let id = node.to_owned();
    let mut streams = 0;
    let end = |status: chancery_fanout::StreamStatus| {
        streams += 1;
        status.stream.end(End::new(EndCode::Unavailable, TEXT));
    };
    ctx.deps.fanout.for_each_stream_of(Arc::new(move |stream| stream.node.id == id), end).await;
    let mut response = pb::DisconnectNodeResponse::default();
    if streams > 0 {
        let principal = ctx.call().principal();
        tracing::info!(node, streams, principal, "an operator ended the streams of a node");
        let replica_id = ctx.deps.replica.id();
        response.replicas.push(pb::DisconnectedStreams { replica_id, streams });
    }
    response
}
