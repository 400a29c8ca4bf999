//! The effect of a write on the access of connected nodes, for a dry run.

use std::collections::BTreeMap;

use chancery_admin_proto::v1 as pb;
use chancery_model::{Identity, Node, State, StreamRefusal};

use crate::node_groups::Client;

/// The maximum number of listed nodes.
pub(crate) const ACCESS_EFFECTS_MAX: usize = 1000;

/// The nodes whose access changes, by node ID and identity, each with the refusal after the write.
pub(crate) type AccessEffects = BTreeMap<(String, String), Option<String>>;

/// Returns the first nodes whose access differs between two states.
pub(crate) fn access_effects(clients: &[Client], before: &State, after: &State) -> AccessEffects {
    let mut effects = AccessEffects::new();
    for Client { node, identity, .. } in clients {
        let Some(identity) = identity.as_deref() else { continue };
        let (old, new) = (decide(before, identity, node), decide(after, identity, node));
        if old.is_some() == new.is_some() {
            continue;
        }
        let key = (node.id.clone(), identity.principal.to_string());
        effects.entry(key).or_insert_with(|| new.map(|refusal| refusal.to_string()));
        if effects.len() == ACCESS_EFFECTS_MAX {
            break;
        }
    }
    effects
}

/// Converts the effect on a node to a message.
pub(crate) fn access_effect(
    ((node, identity), refusal): ((String, String), Option<String>),
) -> pb::AccessEffect {
    let allowed = refusal.is_none();
    pb::AccessEffect { node, identity, allowed, reason: refusal.unwrap_or_default() }
}

fn decide(state: &State, identity: &Identity, node: &Node) -> Option<StreamRefusal> {
    let assignment = state.assignments.for_node(node);
    let scopes = assignment.map(|one| one.scopes_for(node)).unwrap_or_default();
    let unresolved = assignment.and_then(|one| one.unresolved(node));
    let unresolved = unresolved.map(|template| template.as_str());
    state.access.decide_stream(identity, node, &scopes, unresolved).err()
}
