//! The end of answers that last: when the caller loses its right, or the replica drains.

use std::sync::Arc;

use chancery_model::{State, Target, Verb};

use crate::ctx::Ctx;

/// Returns when the credential of the caller ends, when a change of rules or tokens takes one of its rights, or when the
/// replica drains.
pub(crate) async fn right_ends(ctx: &Ctx, verbs: &[Verb]) {
    tokio::select! {
        () = rights_end(ctx, verbs) => {}
        () = ctx.deps.drain.cancelled() => {}
    }
}

async fn rights_end(ctx: &Ctx, verbs: &[Verb]) {
    let ends_at = ctx.caller().ends_at;
    let is_lost = async {
        let mut states = ctx.deps.replica.watch();
        let mut checked = states.borrow_and_update().access.changed;
        while verbs.iter().all(|verb| ctx.may(*verb, Target::Cluster)) {
            let changed = |state: &Arc<State>| state.access.changed != checked;
            match states.wait_for(changed).await {
                Ok(state) => checked = state.access.changed,
                Err(_) => return,
            }
        }
    };
    match ends_at {
        Some(at) => drop(tokio::time::timeout_at(at, is_lost).await),
        None => is_lost.await,
    }
}
