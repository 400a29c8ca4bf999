//! The findings that need the connected nodes of all replicas.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::LiveStream;
use chancery_model::Verb;
use chancery_raft_proto::v1::{UsedAssignmentsAnswer, UsedAssignmentsQuestion};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    findings::{Findings, Rule, Severity},
    world::World,
};
use crate::{
    AdminError,
    ctx::{Access, Ctx, Needs},
    fleet::{self, FleetRequest},
    nodes::check_answered,
};

/// An assignment that no connected node has.
const UNUSED: Rule = Rule {
    id: "assignment.unused",
    severity: Severity::Info,
    fix: "delete it if its nodes do not return",
};

/// The assignments that connected nodes have.
pub(super) struct UsedAssignments {
    names: BTreeSet<String>,
    not_asked: Vec<pb::ReplicaNotAsked>,
}

impl UsedAssignments {
    /// Asks all replicas.
    pub(super) async fn of_fleet(ctx: &Ctx) -> Result<Self, AdminError> {
        let (here, there) = tokio::join!(
            UsedAssignmentsQuestion {}.answer_here(ctx),
            fleet::ask(ctx, &UsedAssignmentsQuestion {})
        );
        let not_asked = there.not_asked.clone();
        let mut names: BTreeSet<String> = here?.names.into_iter().collect();
        names.extend(there.into_replies().flat_map(|reply| reply.names));
        Ok(Self { names, not_asked })
    }

    /// Returns the replicas that did not answer.
    pub(super) fn not_asked(&self) -> &[pb::ReplicaNotAsked] {
        &self.not_asked
    }

    /// Adds the assignments that no connected node of the fleet has. Without the answers of all replicas, adds none.
    pub(super) fn find(&self, world: &World, findings: &mut Findings) {
        if !self.not_asked.is_empty() {
            return;
        }
        for rule in world.reachable().iter().filter(|rule| !self.names.contains(&*rule.name)) {
            let text = "no connected node has it".to_owned();
            findings.add(UNUSED.of_assignment(&rule.name, text));
        }
    }
}

impl Needs for UsedAssignmentsQuestion {
    const NEEDS: Access = Access::Cluster(Verb::Nodes);
}

impl FleetRequest for UsedAssignmentsQuestion {
    const NAME: &'static str = "chancery.raft.v1.UsedAssignmentsQuestion";
    type Reply = UsedAssignmentsAnswer;

    async fn answer_here(self, ctx: &Ctx) -> Result<UsedAssignmentsAnswer, AdminError> {
        let names: Arc<Mutex<BTreeSet<Arc<str>>>> = Arc::default();
        let seen = Arc::clone(&names);
        let see = move |stream: &LiveStream<'_>| {
            if let Some(name) = stream.assignment {
                let mut seen = seen.lock();
                if !seen.contains(name) {
                    seen.insert(Arc::clone(name));
                }
            }
            false
        };
        let since = Instant::now();
        ctx.deps.fanout.for_each_stream_of(Arc::new(see), |_| {}).await;
        check_answered(ctx, since)?;
        let names = std::mem::take(&mut *names.lock());
        Ok(UsedAssignmentsAnswer { names: names.iter().map(ToString::to_string).collect() })
    }
}
