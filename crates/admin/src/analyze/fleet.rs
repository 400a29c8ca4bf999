//! The findings that need the connected nodes of all replicas.

use std::collections::BTreeSet;

use chancery_admin_proto::v1 as pb;
use chancery_model::{Target, Verb};
use chancery_raft_proto::v1::{UsedAssignmentsAnswer, UsedAssignmentsQuestion};

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::{self, FleetRequest},
    nodes,
};

/// An assignment that no connected node has.
const UNUSED: Rule = Rule {
    id: "assignment.unused",
    severity: Severity::Info,
    fix: "delete it if its nodes do not return",
};

/// Adds the assignments that no connected node of the fleet has. Returns the replicas that did not answer: without
/// their nodes, nothing is added.
pub(super) async fn fleet_findings(
    ctx: &Ctx,
    world: &World,
    findings: &mut Findings,
) -> Result<Vec<pb::ReplicaNotAsked>, AdminError> {
    if world.only().is_some() || !ctx.may(Verb::Nodes, Target::Cluster) {
        return Ok(Vec::new());
    }
    let (here, there) = tokio::join!(
        UsedAssignmentsQuestion {}.answer_here(ctx),
        fleet::ask(ctx, &UsedAssignmentsQuestion {})
    );
    let not_asked = there.not_asked.clone();
    if !not_asked.is_empty() {
        return Ok(not_asked);
    }
    let mut used: BTreeSet<String> = here?.names.into_iter().collect();
    used.extend(there.into_replies().flat_map(|reply| reply.names));
    for rule in world.reachable().iter().filter(|rule| !used.contains(&*rule.name)) {
        let text = "no connected node has it".to_owned();
        findings.add(UNUSED.of_assignment(&rule.name, text));
    }
    Ok(not_asked)
}

impl Needs for UsedAssignmentsQuestion {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for UsedAssignmentsQuestion {
    const NAME: &'static str = "chancery.raft.v1.UsedAssignmentsQuestion";
    type Reply = UsedAssignmentsAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<UsedAssignmentsAnswer, AdminError> {
        let streams = nodes::streams(ctx).await?;
        let names = streams.iter().filter_map(|stream| stream.assignment.as_deref());
        let names: BTreeSet<&str> = names.collect();
        Ok(UsedAssignmentsAnswer { names: names.into_iter().map(str::to_owned).collect() })
    }
}
