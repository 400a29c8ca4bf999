//! The analysis of what is stored: resources that nothing uses, routes that never match, scopes that no node has, and
//! references that dangle. It also finds the connected nodes that have a problem.
//!
//! The whole state decides about a finding, so that a resource that another team uses is not called unused. The answer
//! names only what the caller may read.

mod assignments;
mod dangling;
mod findings;
mod fleet;
mod nodes;
mod routes;
mod unused;
mod world;

use std::sync::Arc;

use chancery_admin_proto::v1 as pb;
use chancery_model::{ScopeName, Target, Verb};

use self::{findings::Findings, fleet::UsedAssignments, nodes::Nodes, world::World};
use crate::{
    AdminError, ctx::Ctx, deps::Freshness, fleet_effects, references::Suspects, work::Size,
};

/// Returns the findings about what is stored.
pub(crate) async fn analyze(
    ctx: &Ctx,
    request: pb::AnalyzeRequest,
) -> Result<pb::AnalyzeResponse, AdminError> {
    let mut findings = Findings::new(&request)?;
    let only = (!request.scope.is_empty()).then(|| ScopeName::new(&request.scope)).transpose()?;
    let (whole, visible) = ctx.states(Freshness::of(request.stale)).await?;
    let world = Arc::new(World::new(whole, visible, only));
    if let Some(scope) = world.missing_scope() {
        let text = format!("scope {scope:?} has no resources; `chancery get` lists the scopes");
        return Err(AdminError::NotFound(text));
    }
    let sees_assignments = ctx.may(Verb::Assignments, Target::Cluster);
    let (index, settings) =
        (Arc::clone(&ctx.deps.references), Arc::clone(&ctx.deps.reference_settings));
    let of = Arc::clone(&world);
    let stored = move || {
        if sees_assignments {
            assignments::find(&of, &mut findings);
        }
        assignments::find_scopes(&of, &mut findings);
        routes::find(&of, &mut findings);
        unused::find(&of, &index.at(of.whole()), &mut findings);
        let suspects = Suspects::stored(of.whole(), of.collections(), &settings);
        (findings, suspects)
    };
    let (mut findings, suspects) = ctx.deps.work.run(Size::Large, stored).await?;
    let fleet = fleet_effects::nodes_with(ctx, world.whole(), suspects.scopes()).await?;
    let mut not_asked = fleet.not_asked.clone();
    if world.only().is_none() && ctx.may(Verb::Nodes, Target::Cluster) {
        let (nodes, used) = tokio::join!(Nodes::of_fleet(ctx), UsedAssignments::of_fleet(ctx));
        let (nodes, used) = (nodes?, used?);
        nodes.find(&mut findings);
        if sees_assignments {
            used.find(&world, &mut findings);
        }
        for one in nodes.not_asked().iter().chain(used.not_asked()) {
            if not_asked.iter().all(|known| known.replica_id != one.replica_id) {
                not_asked.push(one.clone());
            }
        }
        not_asked.sort_by_key(|one| one.replica_id);
    }
    let of = Arc::clone(&world);
    let finish = move || {
        dangling::find(&of, suspects, &fleet, &mut findings);
        findings
    };
    let findings = ctx.deps.work.run(Size::Large, finish).await?;
    Ok(pb::AnalyzeResponse {
        revision: world.whole().revision.0,
        resources: world.collections().map(|one| one.resources.len() as u64).sum(),
        not_asked,
        ..findings.into_response()
    })
}
