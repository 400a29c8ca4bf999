//! Freezes: their beginning and end, and the list. [`chancery_model::Freezes`] decides what clients receive.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use chancery_admin_proto::v1 as pb;
use chancery_audit::duration_text;
use chancery_model::{
    AccessOp, Freeze, FreezeParts, FreezeTarget, Revision, ScopeName, State, Transaction,
    TransactionMeta, Verb,
};
use tracing::{info, warn};

use crate::{
    AdminError,
    changes::Effect,
    ctx::Ctx,
    deps::{Deps, Freshness},
    fleet::FleetRequest,
    held_changes::{HeldBack, may_see, name_of},
    page::Page,
    record::Operation,
    releases,
    rollback::{self, restoring, set_reason},
    time_limits::FREEZE,
    times::millis,
    work::Size,
    write::{self, took_effect, transaction},
    write_access::authorize_write,
    write_input::Input,
    write_options::check,
};

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
    if let Some(time) = time.filter(|time| !FREEZE.contains(time)) {
        let [time, min, max] = [time, *FREEZE.start(), *FREEZE.end()].map(duration_text);
        let text = format!("invalid `for`: {time} is outside the range of {min} to {max}");
        return Err(AdminError::Parameter(text));
    }
    let mut checked = check(request.options, ctx.source())?;
    if checked.effect == Effect::DryRun || checked.wait.is_some() {
        let text = "`freeze` supports neither `dry_run` nor `wait`, because it changes nothing for clients; remove the option";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    if checked.if_revision.is_some() || checked.override_freeze {
        let text =
            "`freeze` supports neither `if_revision` nor `override_freeze`; remove the option";
        return Err(AdminError::Parameter(text.to_owned()));
    }
    set_reason(&mut checked, &format!("freeze of {target}"));
    let until_ms = time.map(|time| millis(SystemTime::now() + time));
    checked.content = Some(format!("freeze {target} {:?}", request.for_ms).into_bytes());
    let mut transaction = transaction(&checked);
    transaction.access.push(AccessOp::Freeze { target: target.clone(), until_ms });
    authorize_write(ctx, &mut transaction, &checked)?;
    releases::require(ctx, "freeze", "without freezes, which would stop the replica").await?;
    let response = write::commit(ctx, transaction, checked, Input::default()).await?;
    if response.access == 0 {
        let text = format!(
            "cannot freeze {target} alone: all scopes are frozen, so this scope is frozen already; \
             `chancery thaw --all` ends that freeze and sends its held changes"
        );
        return Err(AdminError::Precondition(text));
    }
    let mut response = without_freeze(response);
    response.warnings.extend(unknown_scope(&ctx.deps.replica.state(), &target));
    Ok(response)
}

/// Returns a warning if a frozen scope has no resources.
fn unknown_scope(state: &State, target: &FreezeTarget) -> Option<pb::Problem> {
    let scope = target.scope().filter(|scope| !state.scopes.contains_key(*scope))?;
    let message = format!("scope \"{scope}\" has no resources: the freeze holds only new ones");
    let fix = "check the name".to_owned();
    Some(pb::Problem { message, fix, ..pb::Problem::default() })
}

/// Returns an answer that does not count the freeze itself among the changes.
fn without_freeze(response: pb::WriteResponse) -> pb::WriteResponse {
    pb::WriteResponse { access: response.access.saturating_sub(1), ..response }
}

/// Returns the record of [`thaw`].
pub(crate) fn record_thaw(request: &pb::ThawRequest) -> Operation {
    Operation::write("thaw", &request.scope, request.options.as_ref())
        .detail("all", request.all)
        .detail("discard", request.discard)
}

/// Ends a freeze. Clients receive the held changes, or the server discards the changes.
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
        let mut planned = restoring(self::transaction(&checked), &state, &compared);
        if let Ok(planned) = &mut planned {
            planned.transaction.access.push(thaw);
        }
        let committed = Box::pin(rollback::commit(ctx, planned, checked));
        return committed.await.map(without_freeze);
    }
    let (caller, now) = (ctx.clone(), Arc::clone(&state));
    let list = move |response| HeldBack::of(&now, &freeze).list(&caller, response);
    if checked.effect == Effect::DryRun {
        let tried = write::commit(ctx, transaction, checked, Input::default()).await?;
        let pb::WriteResponse { guards, not_asked, warnings, access_effects, .. } = tried;
        let response = pb::WriteResponse {
            dry_run: true,
            revision: state.revision.0,
            guards,
            not_asked,
            warnings,
            access_effects,
            ..Default::default()
        };
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
        let text = format!(
            "cannot thaw {target} alone: all scopes are frozen; `chancery thaw --all` ends that freeze and sends its \
             held changes"
        );
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
            let text = "no scope: `scope` is empty and `all` is not set; set one of them (--all for all scopes)";
            Err(AdminError::Parameter(text.to_owned()))
        }
        ("", true) => Ok(FreezeTarget::All),
        (scope, true) => {
            let text = format!("scope {scope:?} conflicts with `all`; set only one of them");
            Err(AdminError::Parameter(text))
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
    // The freeze of all scopes has no name, so that it is the first.
    let page = Page::parse_or_all("freezes", request.limit, &request.cursor)?;
    let (state, visible) = ctx.states(Freshness::of(request.stale)).await?;
    let may_read = |target: &FreezeTarget| may_see(ctx, &visible, target.scope());
    let freezes = state.freezes.iter().filter(|freeze| may_read(&freeze.parts().target));
    let (freezes, next) = page.of(freezes, |freeze| name_of(&freeze.parts().target));
    let freezes = freezes.into_iter().map(|freeze| show(&state, freeze)).collect();
    Ok(pb::ListFreezesResponse { freezes, revision: state.revision.0, next })
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
