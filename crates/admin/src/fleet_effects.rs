//! The nodes of all replicas that a write concerns.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_fanout::AccessControl;
use chancery_model::{ScopeName, State, Transaction};
use chancery_store::{Answers, NoAnswer, Question};

use crate::{
    AdminError,
    access_effects::{ACCESS_EFFECTS_MAX, AccessEffects},
    changes::Effect,
    ctx::Ctx,
    fleet_answers::{clients, effects_on, of_nodes},
    fleet_messages::{
        LIMITS, WRITE_EFFECTS, WriteEffects, WriteEffectsQuestion, failed, not_asked,
    },
    item_changes::assignment_changes,
    node_groups::ConnectedNodes,
    nodes::INLINE_STREAMS_MAX,
    trial::{Clients, Trial},
    work::Size,
};

/// Answers of more bytes are large work.
const SMALL_ANSWERS_MAX: usize = 64 << 10;

/// The nodes that a write concerns, on this replica and on all others that have answered.
#[derive(Debug, Default)]
pub(crate) struct FleetEffects {
    pub(crate) nodes: Arc<ConnectedNodes>,
    pub(crate) access: AccessEffects,
    /// The replicas whose nodes are not known, or not all of them.
    pub(crate) not_asked: Vec<pb::ReplicaNotAsked>,
}

/// Returns the nodes that a write concerns. Asks the other replicas if a check needs to know their nodes. Most
/// writes cost nothing here.
pub(crate) async fn fleet_effects(
    ctx: &Ctx,
    tried: &Trial,
    effect: Effect,
) -> Result<FleetEffects, AdminError> {
    let Trial { transaction, suspects, dangling, addresses, clients, .. } = tried;
    let (before, applied) = match clients {
        Some(Clients { had, has, .. }) => (had, has),
        None => (&tried.before, &tried.applied),
    };
    let after = applied.state.clone();
    let mut touched: BTreeSet<ScopeName> = suspects.scopes();
    touched.extend(dangling.scopes());
    touched.extend(addresses.scopes());
    let access_effects = effect == Effect::DryRun
        && ctx.deps.access.control != AccessControl::Off
        && before.placement_changed() != after.placement_changed();
    if touched.is_empty() && !suspects.assignments && !access_effects {
        return Ok(FleetEffects::default());
    }
    let mut rules = Transaction::default();
    if before.assignments.changed != after.assignments.changed {
        rules.assignments = match clients {
            Some(_) => assignment_changes(&before.assignments, &after.assignments),
            None => transaction.assignments.clone(),
        };
    }
    if access_effects {
        rules.access.clone_from(&transaction.access);
    }
    let question = WriteEffectsQuestion { rules, touched, access_effects };
    ask(ctx, Arc::clone(before), after, question).await
}

/// Returns the nodes of all replicas whose view has one of the `touched` scopes.
pub(crate) async fn nodes_with(
    ctx: &Ctx,
    state: &Arc<State>,
    touched: BTreeSet<ScopeName>,
) -> Result<FleetEffects, AdminError> {
    if touched.is_empty() {
        return Ok(FleetEffects::default());
    }
    let rules = Transaction::default();
    let question = WriteEffectsQuestion { rules, touched, access_effects: false };
    ask(ctx, Arc::clone(state), State::clone(state), question).await
}

/// Asks all replicas for the nodes that a question concerns. `after` is the state after the rules of the question.
async fn ask(
    ctx: &Ctx,
    before: Arc<State>,
    after: State,
    question: WriteEffectsQuestion,
) -> Result<FleetEffects, AdminError> {
    let body = question.encode();
    let asked = Question { kind: WRITE_EFFECTS, body, revision: before.revision };
    let (clients, answers) =
        tokio::join!(clients(&ctx.deps.fanout), ctx.deps.replica.ask_all(asked, LIMITS));
    let n_bytes: usize =
        answers.answered.iter().flat_map(|(_, pages)| pages).map(|page| page.len()).sum();
    let is_small = clients.len() <= INLINE_STREAMS_MAX && n_bytes <= SMALL_ANSWERS_MAX;
    // The other replicas find the effects from the same state and rules.
    let (before, after) = if before.freezes.is_empty() {
        (before, after)
    } else {
        let before = of_nodes(before);
        let after = before.apply(&question.rules).state;
        (before, after)
    };
    let merge = move || merge(effects_on(&clients, &before, &after, &question), answers);
    ctx.deps.work.run(Size::of(is_small), merge).await
}

/// Adds the answers of other replicas to the effects on this one.
fn merge(here: WriteEffects, answers: Answers) -> FleetEffects {
    let WriteEffects { mut nodes, mut access, .. } = here;
    let mut not_asked: Vec<_> = answers.unanswered.iter().map(not_asked).collect();
    for (replica_id, pages) in answers.answered {
        for page in pages {
            let there = match WriteEffects::decode(page) {
                Ok(there) => there,
                Err(reason) => {
                    not_asked.push(failed(replica_id, &reason));
                    break;
                }
            };
            for (scopes, users) in there.nodes {
                nodes.entry(scopes).or_default().add(users);
            }
            access.extend(there.access);
            if there.n_omitted > 0 {
                not_asked.push(incomplete(replica_id, there.n_omitted));
            }
        }
    }
    not_asked.sort_by_key(|replica| replica.replica_id);
    while access.len() > ACCESS_EFFECTS_MAX {
        access.pop_last();
    }
    FleetEffects { nodes: Arc::new(nodes), access, not_asked }
}

fn incomplete(replica_id: u64, n_omitted: usize) -> pb::ReplicaNotAsked {
    pb::ReplicaNotAsked {
        reason: "incomplete".to_owned(),
        message: format!("omitted {n_omitted} nodes, because its nodes have too many views"),
        ..failed(replica_id, &NoAnswer::Busy)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use chancery_store::Unanswered;

    use super::*;
    use crate::node_groups::Users;

    fn effects(scope: &str, n_nodes: usize, node: &str) -> WriteEffects {
        let view = Some(vec![ScopeName::new(scope).unwrap()]);
        let users = Users { n_nodes, ..Users::default() };
        let nodes = ConnectedNodes::from([((view, None), users)]);
        let access = AccessEffects::from([((node.to_owned(), "team".to_owned()), None)]);
        WriteEffects { nodes, n_omitted: 0, access }
    }

    #[test]
    fn answers_of_replicas_are_added_and_missing_ones_are_named() {
        let partial = WriteEffects { n_omitted: 5, ..effects("blue", 1, "d") };
        let down = Unanswered {
            replica_id: 3,
            address: "10.0.0.3:18002".to_owned(),
            reason: NoAnswer::Down("connection refused".to_owned()),
        };
        let answers = Answers {
            answered: vec![
                (5, vec![Bytes::from_static(b"\x0a\x09damaged")]),
                (2, vec![effects("edge", 2, "b").encode(), effects("blue", 3, "c").encode()]),
                (4, vec![partial.encode()]),
            ],
            unanswered: vec![down],
        };
        let merged = merge(effects("edge", 1, "a"), answers);
        let counts: Vec<usize> = merged.nodes.values().map(|users| users.n_nodes).collect();
        assert_eq!(counts, [4, 3], "blue, edge");
        let nodes: Vec<&str> = merged.access.keys().map(|(node, _)| node.as_str()).collect();
        assert_eq!(nodes, ["a", "b", "c", "d"]);
        let reasons: Vec<(u64, &str)> =
            merged.not_asked.iter().map(|one| (one.replica_id, one.reason.as_str())).collect();
        assert_eq!(reasons, [(3, "down"), (4, "incomplete"), (5, "failed")]);
        assert_eq!(merged.not_asked[0].message, "cannot be reached: connection refused");
    }
}
