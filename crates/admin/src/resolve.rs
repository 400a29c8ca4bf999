//! The path of a request through the resources of a connected node.

mod contents;
mod show;

use chancery_admin_proto::v1 as pb;
use chancery_resolve::{Request, resolve};

use crate::{AdminError, ctx::Ctx, nodes, work::Size};
use contents::{Contents, collect};

/// Returns where a request to a node ends.
pub(crate) async fn resolve_request(
    ctx: &Ctx,
    request: pb::ResolveRequest,
) -> Result<pb::ResolveResponse, AdminError> {
    if request.node.is_empty() {
        return Err(AdminError::Parameter("the node ID is empty".to_owned()));
    }
    let parsed = Request::parse(&request.url, &request.method, &request.header);
    let parsed = parsed.map_err(AdminError::Parameter)?;
    let streams = nodes::streams(ctx).await?;
    let streams = nodes::streams_of(&streams, &request.node);
    let collected = collect(ctx, &streams).await?;
    if streams.is_empty() || collected.is_none() {
        return Err(nodes::not_connected(&ctx.deps, &request.node));
    }
    let replica_id = ctx.deps.replica.status().replica_id;
    let work = move || {
        let contents = Contents::new(collected.unwrap_or_default());
        let listener = Some(request.listener.as_str()).filter(|name| !name.is_empty());
        let answer = resolve(&contents, &parsed, listener);
        pb::ResolveResponse { node: request.node, replica_id, ..show::answer(answer) }
    };
    ctx.deps.work.run(Size::Large, work).await
}
