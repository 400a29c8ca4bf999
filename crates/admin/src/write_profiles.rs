//! The clients for which a write is checked: declared ones, and those that are connected.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_admission::{Problem, ProfileSource, Profiles, Validation, ValidationMode};
use chancery_model::{ScopeName, Transaction};

use crate::{AdminError, ctx::Ctx, error::problem, known_clients::ClientsElsewhere};

/// Returns the modes of validation for a call, with the clients of all scopes, and the clients of other replicas. A call
/// without validation asks for no clients.
pub(crate) async fn validation_of(
    ctx: &Ctx,
    call: Option<ValidationMode>,
) -> (Validation, Arc<ClientsElsewhere>) {
    let mut validation = Validation { call, ..ctx.deps.validation.clone() };
    if validation.is_off() {
        return (validation, Arc::default());
    }
    let clients = &ctx.deps.clients;
    let (here, elsewhere) =
        tokio::join!(clients.here(&ctx.deps.fanout), clients.elsewhere(&ctx.deps.replica));
    validation.profiles.connected = here;
    validation.profiles.connected_elsewhere = Arc::clone(&elsewhere.clients);
    validation.profiles.n_unknown_replicas = elsewhere.not_asked.len();
    (validation, elsewhere)
}

/// Adds to the answer for which clients a write was checked, and which replicas did not name theirs.
pub(crate) fn with_clients(
    mut response: pb::WriteResponse,
    checked_clients: Vec<pb::CheckedClients>,
    elsewhere: &ClientsElsewhere,
) -> pb::WriteResponse {
    if checked_clients.iter().any(|checked| checked.replicas_not_asked > 0) {
        for replica in &elsewhere.not_asked {
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
        ProfileSource::Assumed if profiles.n_unknown_replicas == 0 => return None,
        ProfileSource::Declared => 0,
        ProfileSource::Assumed | ProfileSource::Connected => profiles.n_unknown_replicas as u64,
    };
    Some(pb::CheckedClients {
        scope: scope.to_string(),
        profiles: clients.iter().map(ToString::to_string).collect(),
        source: source.word().to_owned(),
        replicas_not_asked,
    })
}
