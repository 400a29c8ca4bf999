//! The findings that need the connected nodes of all replicas.

use std::{collections::BTreeSet, sync::Arc};

use chancery_model::{Target, Verb};
use tokio::time::Instant;

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::{AdminError, ctx::Ctx};

/// An assignment that no connected node has.
const UNUSED: Rule = Rule {
    id: "assignment.unused",
    severity: Severity::Info,
    fix: "delete it if its nodes do not return",
};

/// Adds the assignments that match no connected node of the fleet. With several replicas, only their nodes together
/// can tell, so that nothing is added.
pub(super) async fn fleet_findings(
    ctx: &Ctx,
    world: &World,
    findings: &mut Findings,
) -> Result<(), AdminError> {
    let is_alone = ctx.deps.replica.n_members() < 2;
    if !is_alone || world.only().is_some() || !ctx.may(Verb::Nodes, Target::Cluster) {
        return Ok(());
    }
    let since = Instant::now();
    let mut used: BTreeSet<Arc<str>> = BTreeSet::new();
    let assignments = &world.whole().assignments;
    let add = |stream: chancery_fanout::StreamStatus| {
        used.extend(assignments.for_node(&stream.node).map(|rule| Arc::clone(&rule.name)));
    };
    ctx.deps.fanout.for_each_stream(add).await;
    if !ctx.deps.fanout.stalled_since(since).is_empty() {
        return Ok(());
    }
    for rule in world.reachable().iter().filter(|rule| !used.contains(&rule.name)) {
        let text = "no connected node has it".to_owned();
        findings.add(UNUSED.of_assignment(&rule.name, text));
    }
    Ok(())
}
