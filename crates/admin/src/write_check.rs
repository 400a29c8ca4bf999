//! The check of a write by the guards, and of the references that it leaves dangling.

use std::{collections::BTreeSet, sync::Arc};

use chancery_admin_proto::v1 as pb;
use chancery_admission::{Validation, ValidationMode};
use chancery_model::State;

use crate::{
    AdminError,
    ctx::Ctx,
    deps::Deps,
    error,
    fleet_effects::FleetEffects,
    node_groups::groups,
    nodes::INLINE_STREAMS_MAX,
    references::{self, Finding, Findings, ReferenceIndex},
    trial::{Checks, Trial},
    work::Size,
    write_guards::{self, Suspects, Tried, settings::Guard},
    write_input::{Input, Published, reading_size},
    write_profiles,
};

/// Checks of more references are large work.
const SMALL_SUSPECTS_MAX: usize = 100;

/// Returns the settings by which a transaction is checked.
pub(crate) fn checks(deps: &Deps, call: Option<ValidationMode>) -> Checks {
    Checks {
        guards: Arc::clone(&deps.guards),
        settings: Arc::clone(&deps.reference_settings),
        references: Arc::clone(&deps.references),
        validation: Validation { call, ..deps.validation.clone() },
        secrets: deps.replica.secrets().clone(),
    }
}

/// Returns the guards that a write trips. A write without suspicious parts costs nothing here.
pub(crate) async fn tripped_guards(
    ctx: &Ctx,
    before: &Arc<State>,
    after: &State,
    suspects: Suspects,
    references: Option<ReferenceIndex>,
    confirmed: &BTreeSet<Guard>,
    fleet: &FleetEffects,
) -> Result<Vec<pb::GuardFinding>, AdminError> {
    let (n_not_asked, guard) = (fleet.not_asked.len(), Guard::Unasked);
    // An author who confirms this guard accepts that the other guards judge by the known nodes.
    let is_confirmed = confirmed.contains(&guard) || !ctx.deps.guards.applies(guard);
    let n_unknown_replicas = if is_confirmed { 0 } else { n_not_asked };
    let (before, after, settings) =
        (Arc::clone(before), after.clone(), Arc::clone(&ctx.deps.guards));
    let nodes = Arc::clone(&fleet.nodes);
    let size = Size::of(nodes.len() <= INLINE_STREAMS_MAX);
    let find = move || {
        let tried = Tried {
            before: &before,
            after: &after,
            suspects: &suspects,
            references: references.as_ref(),
            settings: &settings,
            n_unknown_replicas,
        };
        write_guards::findings(&tried, &nodes)
    };
    let mut findings = ctx.deps.work.run(size, find).await?;
    if n_not_asked > 0 && ctx.deps.guards.applies(guard) {
        findings.push(write_guards::unasked(&fleet.not_asked));
    }
    let show = |finding| write_guards::show(finding, confirmed, n_not_asked);
    Ok(findings.into_iter().map(show).collect())
}

/// Returns the references that a write leaves dangling in the views of nodes. A write without suspects
/// costs nothing here.
pub(crate) async fn dangling_references(
    ctx: &Ctx,
    before: &Arc<State>,
    after: &State,
    suspects: references::Suspects,
    fleet: &FleetEffects,
) -> Result<Findings, AdminError> {
    if suspects.is_empty() {
        return Ok(Findings::default());
    }
    let nodes = Arc::clone(&fleet.nodes);
    let unknown: Vec<u64> = fleet.not_asked.iter().map(|one| one.replica_id).collect();
    let is_small = suspects.len() <= SMALL_SUSPECTS_MAX;
    let size = Size::of(is_small && nodes.len() <= INLINE_STREAMS_MAX);
    let (before, after) = (Arc::clone(before), after.clone());
    let find = move || {
        let groups = groups(&nodes, &after, &suspects.scopes());
        let checked = suspects.in_views(&before, &after, &groups, !unknown.is_empty());
        references::findings(checked, &unknown)
    };
    ctx.deps.work.run(size, find).await
}

/// Returns the listeners of a write that have the address of another listener of a view. A write without
/// suspects costs nothing here.
pub(crate) async fn shared_addresses(
    ctx: &Ctx,
    tried: &Trial,
    call: Option<ValidationMode>,
    fleet: &FleetEffects,
) -> Result<Findings, AdminError> {
    let suspects = Arc::clone(&tried.addresses);
    let Some(index) = tried.references.clone().filter(|_| !suspects.is_empty()) else {
        return Ok(Findings::default());
    };
    let (validation, _) = write_profiles::validation_of(ctx, call).await;
    let nodes = Arc::clone(&fleet.nodes);
    let size = Size::of(nodes.len() <= INLINE_STREAMS_MAX);
    let after = tried.applied.state.clone();
    let find = move || {
        let groups = groups(&nodes, &after, &suspects.scopes());
        suspects.findings(&after, &groups, &index, &validation)
    };
    ctx.deps.work.run(size, find).await
}

/// Returns the warnings of the input and the findings, ordered by position. Only if a finding concerns a
/// resource of the input, this reads the files again to find the position.
pub(crate) async fn located(
    ctx: &Ctx,
    input: Input,
    findings: Vec<Finding>,
    published: &Published,
) -> Vec<pb::Problem> {
    let Input { files, origins, warnings } = input;
    let found = published.origins(&origins, findings);
    let mut located = None;
    if found.iter().any(|(origin, _)| origin.is_some()) {
        let (size, warnings, found) = (reading_size(&files), warnings.clone(), found.clone());
        let locate = move || chancery_admission::locate(&files, warnings, found);
        // The write may be committed already, so it must not fail because positions are unavailable.
        located = ctx.deps.work.run(size, locate).await.ok();
    }
    let mut located = located.unwrap_or_else(|| chancery_admission::locate(&[], warnings, found));
    references::shorten(&mut located);
    located.into_iter().map(error::problem).collect()
}

/// Keeps the index of references up to date, if checks of writes need it.
pub(crate) async fn update_references(deps: &Deps) {
    if checks(deps, None).need_references() || !deps.validation.is_off() {
        let (index, states) = (Arc::clone(&deps.references), deps.replica.watch());
        references::update(index, states, deps.work.clone(), deps.drain.clone()).await;
    }
}
