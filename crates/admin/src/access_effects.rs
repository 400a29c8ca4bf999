//! The effect of a write on the access of connected nodes, for a dry run.

use std::sync::Arc;

use chancery_fanout::{AccessControl, StreamStatus};
use chancery_model::{Identity, State, StreamRefusal};
use chancery_proto::admin::v1 as pb;

use crate::{AdminError, nodes::INLINE_STREAMS_MAX, service::Service, work::Size};

/// The maximum number of listed nodes.
const EFFECTS_MAX: usize = 1000;

impl Service {
    /// Returns the nodes of this replica whose access differs between two states.
    pub(crate) async fn access_effects(
        &self,
        before: &Arc<State>,
        after: &State,
    ) -> Result<Vec<pb::AccessEffect>, AdminError> {
        let is_same = before.placement_changed() == after.placement_changed();
        if is_same || self.access.control == AccessControl::Off {
            return Ok(Vec::new());
        }
        let streams = self.fanout.nodes().await;
        let size = Size::of(streams.len() <= INLINE_STREAMS_MAX);
        let (before, after) = (Arc::clone(before), after.clone());
        let compare = move || {
            let mut effects: Vec<pb::AccessEffect> = Vec::new();
            for stream in &streams {
                let Some(identity) = stream.identity.as_deref() else { continue };
                let old = decide(&before, identity, stream);
                let new = decide(&after, identity, stream);
                let is_known = |one: &pb::AccessEffect| {
                    one.node == stream.node.id && one.identity == identity.principal.as_str()
                };
                if old.is_some() == new.is_some() || effects.iter().any(is_known) {
                    continue;
                }
                effects.push(pb::AccessEffect {
                    node: stream.node.id.clone(),
                    identity: identity.principal.to_string(),
                    allowed: new.is_none(),
                    reason: new.map(|refusal| refusal.to_string()).unwrap_or_default(),
                });
                if effects.len() == EFFECTS_MAX {
                    break;
                }
            }
            effects
        };
        self.work.run(size, compare).await
    }
}

fn decide(state: &State, identity: &Identity, stream: &StreamStatus) -> Option<StreamRefusal> {
    let assignment = state.assignments.for_node(&stream.node);
    let scopes = assignment.map(|one| one.scopes_for(&stream.node)).unwrap_or_default();
    let unresolved = assignment.and_then(|one| one.unresolved(&stream.node));
    let unresolved = unresolved.map(|template| template.as_str());
    state.access.decide_stream(identity, &stream.node, &scopes, unresolved).err()
}
