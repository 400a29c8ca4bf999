//! The clients for which a write is checked: declared ones, and those that are connected.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_admission::{
    ConnectedClients, Problem, ProfileSource, Profiles, Validation, ValidationMode,
};
use chancery_model::{ScopeName, Transaction};
use tokio::time::Instant;

use crate::{
    AdminError, ctx::Ctx, error::problem, known_clients::by_scope, nodes::INLINE_STREAMS_MAX,
    work::Size,
};

/// Returns the modes of validation for a call, with the clients of all scopes. A call without validation
/// lists no streams.
pub(crate) async fn validation_of(ctx: &Ctx, call: Option<ValidationMode>) -> Validation {
    let mut validation = Validation { call, ..ctx.deps.validation.clone() };
    if !validation.is_off() {
        let (here, elsewhere) =
            tokio::join!(connected_clients(ctx), ctx.deps.clients.elsewhere(&ctx.deps.replica));
        validation.profiles.connected = here;
        validation.profiles.connected_elsewhere = Arc::clone(&elsewhere.clients);
        validation.profiles.n_unknown_replicas = elsewhere.not_asked.len();
    }
    validation
}

/// Returns the clients that are connected to this replica, by scope.
async fn connected_clients(ctx: &Ctx) -> Arc<ConnectedClients> {
    let is_large = ctx.deps.fanout.n_streams() > INLINE_STREAMS_MAX;
    if is_large && let Some(clients) = ctx.deps.clients.recent() {
        return clients;
    }
    let since = Instant::now();
    let groups = ctx.deps.fanout.clients().await;
    // Clients choose their user agents, so there may be as many groups as streams.
    let collected = if groups.len() > INLINE_STREAMS_MAX {
        ctx.deps.work.run(Size::Large, move || by_scope(&groups)).await
    } else {
        Ok(by_scope(&groups))
    };
    // While the replica shuts down, nothing is known about its clients.
    let clients = Arc::new(collected.unwrap_or_default());
    if ctx.deps.fanout.stalled_since(since).is_empty() {
        ctx.deps.clients.put(&clients);
    }
    clients
}

/// Adds to the answer for which clients a write was checked, and which replicas did not name theirs.
pub(crate) fn with_clients(
    ctx: &Ctx,
    mut response: pb::WriteResponse,
    checked_clients: Vec<pb::CheckedClients>,
) -> pb::WriteResponse {
    if checked_clients.iter().any(|checked| checked.replicas_not_asked > 0) {
        let known = ctx.deps.clients.answered();
        for replica in known.iter().flat_map(|(_, clients)| &clients.not_asked) {
            let is_known =
                response.not_asked.iter().any(|one| one.replica_id == replica.replica_id);
            response.not_asked.extend((!is_known).then(|| replica.clone()));
        }
        response.not_asked.sort_by_key(|replica| replica.replica_id);
    }
    pb::WriteResponse { checked_clients, ..response }
}

/// Returns the clients for which the resources of a transaction were checked. Scopes whose clients are
/// unknown, or whose resources were not checked, are left out.
pub(crate) fn checked_clients(
    validation: &Validation,
    transaction: &Transaction,
) -> Vec<pb::CheckedClients> {
    let scopes: BTreeSet<&ScopeName> =
        transaction.upserts.iter().map(|upsert| &upsert.scope).collect();
    let checked = scopes.into_iter().filter(|scope| validation.mode(scope) != ValidationMode::Off);
    checked.filter_map(|scope| show(&validation.profiles, scope)).collect()
}

/// Returns the error of a refused input, with the clients for which validation found its problems.
pub(crate) fn refused(validation: &Validation, problems: Vec<Problem>) -> AdminError {
    let scopes: BTreeSet<&ScopeName> = problems.iter().filter_map(|p| p.scope.as_ref()).collect();
    let checked = scopes.into_iter().filter_map(|scope| show(&validation.profiles, scope));
    let checked_clients = checked.collect();
    let problems = problems.into_iter().map(problem).collect();
    AdminError::Input(pb::Problems { problems, checked_clients, ..pb::Problems::default() })
}

fn show(profiles: &Profiles, scope: &ScopeName) -> Option<pb::CheckedClients> {
    let (source, clients) = profiles.of_scope(scope);
    let replicas_not_asked = match source {
        ProfileSource::Assumed => return None,
        ProfileSource::Declared => 0,
        ProfileSource::Connected => profiles.n_unknown_replicas as u64,
    };
    Some(pb::CheckedClients {
        scope: scope.to_string(),
        profiles: clients.iter().map(ToString::to_string).collect(),
        source: source.word().to_owned(),
        replicas_not_asked,
    })
}
