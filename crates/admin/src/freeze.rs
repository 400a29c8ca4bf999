//! Freezes: their beginning and end, and the list. [`chancery_model::Freezes`] decides what clients receive.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1 as pb;
use chancery_model::{
    AccessOp, Freeze, FreezeParts, FreezeTarget, Revision, ScopeName, State, Transaction,
    TransactionMeta, Verb,
};
use tracing::{info, warn};

use crate::{
    AdminError,
    changes::Effect,
    ctx::{Access, Ctx},
    deps::{Deps, Freshness},
    fleet::{self, FleetRequest},
    held_changes::{HeldBack, may_see, name_of},
    record::Operation,
    rollback::{self, restoring, set_reason},
    times::millis,
    work::Size,
    write::{self, took_effect, transaction},
    write_access::authorize_write,
    write_input::Input,
    write_options::check,
};

/// The time of the shortest and of the longest freeze with an end.
const FOR_MIN: Duration = Duration::from_secs(1);
const FOR_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// The interval at which the leader looks for freezes that end.
const END_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the record of [`freeze`].
pub(crate) fn record_freeze(request: &pb::FreezeRequest) -> Operation {
    Operation::write("freeze", &request.scope, request.options.as_ref())
        .detail("all", request.all)
        .detail("for_ms", request.for_ms.unwrap_or_default())
}

/// Freezes a scope, or all.
pub(crate) async fn freeze(
    ctx: &Ctx,
    request: pb::FreezeRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let target = target(&request.scope, request.all)?;
    let time = request.for_ms.map(Duration::from_millis);
    if let Some(time) = time.filter(|time| *time < FOR_MIN || *time > FOR_MAX) {
        let text = format!("invalid `for`: {time:?} is not from {FOR_MIN:?} to {FOR_MAX:?} (720h)");
        return Err(AdminError::Parameter(text));
    }
    let mut checked = check(request.options, ctx.source())?;
    if checked.effect == Effect::DryRun || checked.wait.is_some() {
        let text = "`freeze` does not support `dry_run` and `wait`: it changes nothing for clients; remove the option";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    set_reason(&mut checked, &format!("freeze of {target}"));
    let until_ms = time.map(|time| millis(SystemTime::now() + time));
    checked.content = Some(format!("freeze {target} {:?}", request.for_ms).into_bytes());
    let mut transaction = transaction(&checked);
    transaction.access.push(AccessOp::Freeze { target: target.clone(), until_ms });
    authorize_write(ctx, &mut transaction, &checked)?;
    check_releases(ctx).await?;
    let response = write::commit(ctx, transaction, checked, Input::default()).await?;
    if response.access == 0 {
        let text = format!(
            "cannot freeze {target} alone: all scopes are frozen; run `chancery thaw --all` first"
        );
        return Err(AdminError::Precondition(text));
    }
    Ok(without_freeze(response))
}

/// Returns an answer that does not count the freeze itself among the changes.
fn without_freeze(response: pb::WriteResponse) -> pb::WriteResponse {
    pb::WriteResponse { access: response.access.saturating_sub(1), ..response }
}

/// Checks that every replica that answers knows freezes. A replica that does not know them stops at the first one.
async fn check_releases(ctx: &Ctx) -> Result<(), AdminError> {
    let there = fleet::ask(ctx, &pb::ListFreezesRequest { stale: true }).await;
    let old = there.not_asked.iter().find(|one| one.reason == "old-release");
    let Some(old) = old else { return Ok(()) };
    let id = old.replica_id;
    Err(AdminError::Precondition(format!(
        "cannot freeze: replica {id} runs a release that does not support freezes, and would stop; upgrade all replicas first"
    )))
}

/// Returns the record of [`thaw`].
pub(crate) fn record_thaw(request: &pb::ThawRequest) -> Operation {
    Operation::write("thaw", &request.scope, request.options.as_ref())
        .detail("all", request.all)
        .detail("discard", request.discard)
}

/// Ends a freeze: clients receive the held changes, or the changes are taken back.
pub(crate) async fn thaw(
    ctx: &Ctx,
    request: pb::ThawRequest,
) -> Result<pb::WriteResponse, AdminError> {
    let target = target(&request.scope, request.all)?;
    let freshness = Freshness::of(request.options.as_ref().is_some_and(|options| options.stale));
    let mut checked = check(request.options, ctx.source())?;
    let discarding = if request.discard { ", discarding its changes" } else { "" };
    set_reason(&mut checked, &format!("thaw of {target}{discarding}"));
    checked.content = Some(format!("thaw {target} {}", request.discard).into_bytes());
    let thaw = AccessOp::Thaw { target: target.clone(), until_ms: None };
    let mut transaction = transaction(&checked);
    transaction.access.push(thaw.clone());
    authorize_write(ctx, &mut transaction, &checked)?;
    let state = ctx.deps.state(freshness).await?;
    let freeze = match frozen(&state, &target) {
        Err(_) if took_effect(ctx, &checked).await? => {
            let repeated = write::commit(ctx, transaction, checked, Input::default()).await;
            return repeated.map(without_freeze);
        }
        found => found?,
    };
    if request.discard {
        let compared = HeldBack::of(&state, &freeze).discarded();
        rollback::authorize(ctx, &checked, &compared)?;
        let planned = restoring(self::transaction(&checked), &state, &compared).map(|planned| {
            let access = [planned.access, vec![thaw]].concat();
            Transaction { access, ..planned }
        });
        return rollback::commit(ctx, planned, checked).await.map(without_freeze);
    }
    let (caller, now) = (ctx.clone(), Arc::clone(&state));
    let list = move |response| HeldBack::of(&now, &freeze).list(&caller, response);
    if checked.effect == Effect::DryRun {
        let revision = state.revision.0;
        let response = pb::WriteResponse { dry_run: true, revision, ..Default::default() };
        return ctx.deps.work.run(Size::Large, move || list(response)).await;
    }
    let wait = checked.wait.take();
    let response = write::commit(ctx, transaction, checked, Input::default()).await?;
    if response.access == 0 {
        return Err(not_frozen(&target));
    }
    let response = without_freeze(response);
    let response = ctx.deps.work.run(Size::Large, move || list(response)).await?;
    let wait = wait.map(|timeout| write::wait_for_all(ctx, Revision(response.revision), timeout));
    let wait = match wait {
        Some(wait) => Some(wait.await),
        None => None,
    };
    Ok(pb::WriteResponse { wait, ..response })
}

/// Returns the freeze of a target.
fn frozen(state: &State, target: &FreezeTarget) -> Result<Arc<Freeze>, AdminError> {
    let found = state.freezes.get(target).cloned().ok_or_else(|| not_frozen(target))?;
    if target.scope().is_some() && state.freezes.get(&FreezeTarget::All).is_some() {
        let text = format!("cannot thaw {target} alone: all scopes are frozen; thaw all first");
        return Err(AdminError::Precondition(text));
    }
    Ok(found)
}

fn not_frozen(target: &FreezeTarget) -> AdminError {
    AdminError::NotFound(format!(
        "cannot thaw {target}: there is no freeze of {target}; `chancery freezes` lists the freezes"
    ))
}

fn target(scope: &str, all: bool) -> Result<FreezeTarget, AdminError> {
    match (scope, all) {
        ("", false) => {
            let text = "name the scope, or all scopes (--all)";
            Err(AdminError::Parameter(text.to_owned()))
        }
        ("", true) => Ok(FreezeTarget::All),
        (_, true) => {
            let text = "name either a scope or all scopes (--all)";
            Err(AdminError::Parameter(text.to_owned()))
        }
        (scope, false) => Ok(FreezeTarget::Scope(ScopeName::new(scope)?)),
    }
}

/// Lists the freezes of scopes that the caller may read, and that of all scopes.
pub(crate) async fn list_freezes(
    ctx: &Ctx,
    request: pb::ListFreezesRequest,
) -> Result<pb::ListFreezesResponse, AdminError> {
    let verbs = [Verb::Get, Verb::Freeze, Verb::FreezeAll];
    if !verbs.into_iter().any(|verb| ctx.may_somewhere(verb)) {
        return Err(ctx.denied(Verb::Freeze.name()));
    }
    let (state, visible) = ctx.states(Freshness::of(request.stale)).await?;
    let may_read = |target: &FreezeTarget| may_see(ctx, &visible, target.scope());
    let freezes = state.freezes.iter().filter(|freeze| may_read(&freeze.parts().target));
    let freezes = freezes.map(|freeze| show(&state, freeze)).collect();
    Ok(pb::ListFreezesResponse { freezes, revision: state.revision.0 })
}

fn show(state: &State, freeze: &Freeze) -> pb::Freeze {
    let held = HeldBack::of(state, freeze);
    let FreezeParts { target, meta, .. } = freeze.parts();
    pb::Freeze {
        scope: name_of(target),
        revision: meta.revision.0,
        time_ms: meta.time_ms,
        until_ms: meta.until_ms,
        author: meta.author.clone(),
        reason: meta.reason.clone(),
        held_resources: held.len() as u64,
        held_assignments: held.has_assignments(),
    }
}

impl FleetRequest for pb::ListFreezesRequest {
    const NAME: &'static str = "chancery.admin.v1.ListFreezesRequest";
    const NEEDS: Access = Access::Open;
    type Reply = pb::ListFreezesResponse;

    /// Answers that this replica knows freezes. Every replica has the same ones.
    async fn answer_here(self, _ctx: &Ctx) -> Result<pb::ListFreezesResponse, AdminError> {
        Ok(pb::ListFreezesResponse::default())
    }
}

/// Ends each freeze at its time while this replica is the leader. Never returns.
pub(crate) async fn end_freezes(deps: &Deps) {
    let mut ticks = tokio::time::interval(END_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let state = deps.replica.state();
        if state.freezes.is_empty() || deps.replica.leader() != Some(deps.replica.id()) {
            continue;
        }
        let now = millis(SystemTime::now());
        for freeze in state.freezes.iter() {
            let FreezeParts { target, meta, .. } = freeze.parts();
            let has_ended = meta.until_ms.is_some_and(|until| until <= now);
            if has_ended && frozen(&state, target).is_ok() {
                end(deps, target, meta.until_ms, now).await;
            }
        }
    }
}

async fn end(deps: &Deps, target: &FreezeTarget, until_ms: Option<u64>, time_ms: u64) {
    let meta = TransactionMeta {
        author: "chancery".to_owned(),
        reason: format!("thaw of {target}: its time has ended"),
        time_ms,
        ..TransactionMeta::default()
    };
    let access = vec![AccessOp::Thaw { target: target.clone(), until_ms }];
    match deps.replica.transact(Transaction { access, meta, ..Transaction::default() }).await {
        Ok(_) => info!(%target, "a freeze ended at its time"),
        Err(error) => {
            warn!(%target, %error, "a freeze has not ended at its time; the leader tries again")
        }
    }
}
