//! The path of a request through the resources of a connected node.

mod contents;
mod show;

use chancery_admin_proto::v1 as pb;
use chancery_resolve::{Request, resolve};

use crate::{
    AdminError,
    ctx::Ctx,
    fleet::{self, FleetRequest},
    nodes,
    work::Size,
};
use contents::{Contents, collect};

/// Returns where a request to a node ends. The replica to which the node is connected answers.
pub(crate) async fn resolve_request(
    ctx: &Ctx,
    request: pb::ResolveRequest,
) -> Result<pb::ResolveResponse, AdminError> {
    let (node, is_local) = (request.node.clone(), request.local);
    let forwarded = pb::ResolveRequest { local: true, ..request };
    match resolve_here(ctx, forwarded.clone()).await {
        Err(AdminError::NotFound(_)) => {}
        answer => return answer,
    }
    let mut there = fleet::ask_unless(is_local, ctx, &forwarded).await;
    match there.replies.pop() {
        Some((_, reply)) => Ok(reply),
        None => Err(nodes::not_connected(&node, &there)),
    }
}

impl FleetRequest for pb::ResolveRequest {
    const NAME: &'static str = "chancery.admin.v1.ResolveRequest";
    type Reply = pb::ResolveResponse;

    async fn answer_here(self, ctx: &Ctx) -> Result<pb::ResolveResponse, AdminError> {
        resolve_here(ctx, self).await
    }
}

/// Returns where a request to a node ends, if the node is connected to this replica.
async fn resolve_here(
    ctx: &Ctx,
    request: pb::ResolveRequest,
) -> Result<pb::ResolveResponse, AdminError> {
    if request.node.is_empty() {
        return Err(AdminError::Parameter("the node ID is empty".to_owned()));
    }
    let parsed = Request::parse(&request.url, &request.method, &request.header);
    let parsed = parsed.map_err(AdminError::Parameter)?;
    let streams = nodes::streams_of_node(ctx, &request.node).await?;
    let Some(collected) = collect(ctx, &streams).await? else {
        return Err(AdminError::NotFound(String::new()));
    };
    let replica_id = ctx.deps.replica.id();
    let work = move || {
        let contents = Contents::new(collected);
        let listener = Some(request.listener.as_str()).filter(|name| !name.is_empty());
        let answer = resolve(&contents, &parsed, listener);
        pb::ResolveResponse { node: request.node, replica_id, ..show::answer(answer) }
    };
    ctx.deps.work.run(Size::Large, work).await
}
